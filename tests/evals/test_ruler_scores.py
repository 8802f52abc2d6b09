"""RULER's official and strict scores."""

import pytest

from iha.evals.ruler.scoring import score


@pytest.mark.parametrize(
    ("task", "output", "golds", "official", "strict"),
    [
        ("niah_single_1", " 1234567.", ["1234567"], 1, 1),
        ("niah_single_1", " 912345678", ["1234567"], 1, 0),
        ("niah_single_1", " 1234567 and 7654321.", ["1234567"], 1, 0),
        ("niah_single_1", " 7654321", ["1234567"], 0, 0),
        ("niah_single_3", "ABCDEF00-0000-4000-8000-000000000000", ["abcdef00-0000-4000-8000-000000000000"], 1, 1),
        ("niah_multivalue", "1111111, 2222222, 3333333", ["1111111", "2222222", "3333333", "4444444"], 0.75, 0),
        ("niah_multiquery", "2222222, 1111111.\n\nThe 9999999", ["1111111", "2222222"], 1, 1),
        ("vt", "ABCDE FGHIJ", ["ABCDE", "FGHIJ"], 1, 1),
        ("vt", "ABCDE FGHIJ XYZUV", ["ABCDE", "FGHIJ"], 1, 0),
        ("vt", " VAR ABCDE, VAR FGHIJ", ["ABCDE", "FGHIJ"], 1, 1),
        ("vt", " VAR ABCDE, VAR VARXY", ["ABCDE"], 1, 0),
        ("vt", "aaaaa bbbbb", ["AAAAA", "BBBBB"], 1, 1),
        ("vt", "they are aaaaa and bbbbb", ["AAAAA", "BBBBB"], 1, 1),
        ("vt", "aaaaa bbbbb ccccc", ["AAAAA", "BBBBB"], 1, 0),
        ("vt", "aaaaa", ["AAAAA", "BBBBB"], 0.5, 0),
        ("cwe", "1. go 2. Wolf", ["go", "wolf"], 1, 1),
        ("cwe", "1. mango 2. wolf", ["go", "wolf"], 1, 0),
        ("qa_1", "The Miller.\nQuestion: who", ["miller", "the old miller"], 1, 1),
        ("qa_1", "It was the miller", ["miller"], 1, 0),
        ("qa_2", "no", ["yes"], 0, 0),
        ("niah_single_1", "", ["1234567"], 0, 0),
    ],
)
def test_scores(task, output, golds, official, strict):
    assert score(task, output, golds) == {"official": official, "strict": strict}


def test_score_refuses_what_it_cannot_score():
    with pytest.raises(ValueError, match="niah_single_9"):
        score("niah_single_9", "x", ["x"])
    with pytest.raises(ValueError, match="0 references"):
        score("vt", "x", [])
