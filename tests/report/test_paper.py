"""The paper's own numbers: as its tables print them, and what the notes on them say, computed anew."""

from __future__ import annotations

import math
import re

import pytest

from iha.report.claims import claims
from iha.report.paper import paper

#: As printed: value, and in brackets the difference to Global, which the paper prints too.
TABLE1 = """
iha           | 34.3 +4.8 | 54.2 +5.8 | 10.0 +1.2 | 18.4 +2.8 | 15.5 +0.8 | 41.6 +0.4 | 1.5
global        | 29.5      | 48.4      | 8.8       | 15.6      | 14.7      | 41.2      | 3.8
global_local  | 26.5 -3.0 | 46.9 -1.5 | 7.6 -1.2  | 15.0 -0.6 | 15.0 +0.3 | 41.9 +0.7 | 4.3
talking_heads | 29.3 -0.2 | 49.4 +1.0 | 7.8 -1.0  | 18.2 +2.6 | 15.9 +1.2 | 43.1 +1.9 | 2.5
diff          | 31.6 +2.1 | 53.5 +5.1 | 9.0 +0.2  | 18.0 +2.4 | 15.3 +0.6 | 39.2 -2.0 | 2.8
"""
TABLE2 = """
iha           | 8.34 +2.73 | 8.42 +2.81 | 3.54 +0.66 | 24.5 +1.1 | 17.1 -0.1 | 1.4
global        | 5.61       | 5.61       | 2.88       | 23.4      | 17.2      | 2.9
global_local  | 6.82 +1.21 | 6.90 +1.29 | 2.26 -0.62 | 23.6 +0.2 | 16.0 -1.2 | 2.9
talking_heads | 5.46 -0.15 | 5.38 -0.23 | -          | 23.8 +0.4 | 16.0 -1.2 | 4.0
diff          | 5.46 -0.15 | 5.61 +0.00 | -          | 25.0 +1.6 | 15.4 -1.8 | 3.5
"""
METRICS = {
    "table1": ["gsm8k_p1", "gsm8k_maj16", "math500_p1", "math500_maj16", "mbpp_p1", "mbpp_p10", "avg_rank"],
    "table2": ["gsm8k_em", "gsm8k_maj5", "math500_em", "mbpp_p1", "humaneval_p1", "avg_rank"],
}


@pytest.mark.parametrize(("name", "printed"), [("table1", TABLE1), ("table2", TABLE2)])
def test_every_number_and_difference_is_as_printed(name, printed):
    values = paper().tables[name]
    assert list(values) == METRICS[name]
    lines = [[cell.strip() for cell in line.split("|")] for line in printed.strip().splitlines()]
    for variant, *cells in lines:
        for metric, cell in zip(METRICS[name], cells, strict=True):
            value, _, delta = cell.partition(" ")
            own = paper().value(name, metric, variant)
            assert own == (None if value == "-" else float(value)), (metric, variant)
            if delta:
                assert own - paper().value(name, metric, "global") == pytest.approx(float(delta)), (metric, variant)
    assert {v for column in values.values() for v in column} == {line[0] for line in lines}
    assert paper().value(name, "no_such_metric", "iha") is paper().value(name, "avg_rank", "my_variant") is None


def test_the_numbers_of_the_text_are_as_printed():
    found = paper()
    assert found.tables["ruler"]["ruler_overall"] == {
        "iha": 44.0, "global_local": 40.6, "diff": 37.2, "global": 35.0, "talking_heads": None,
    }  # fmt: skip
    assert found.gain == {4096: 27, 8192: 32, 16384: 112}
    assert found.relation_gain == {"binary": 4.7, "ternary": 3.3}


#: Claim -> questions of its benchmark, with the numbers its note states: points, standard errors.
ERRORS = {
    "sft_gsm8k_maj16": 1319, "sft_math500_maj16": 500, "sft_gsm8k_maj16_diff": 1319, "base_gsm8k_em": 1319,
    "base_math_em": 5000,
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_the_standard_errors_in_the_notes_are_those_of_two_shares(name):
    """sqrt(p (1 - p) / n + q (1 - q) / n) of the published p and q."""
    claim = next(c for c in claims() if c.id == name)
    table, _, metric = claim.measure.partition(".")
    p, q = (paper().value(table, metric, v) / 100 for v in (claim.better, claim.worse))
    n = ERRORS[name]
    errors = (p - q) / math.sqrt(p * (1 - p) / n + q * (1 - q) / n)
    (note,) = [text for text in claim.notes if "standard errors" in text]
    assert re.search(r"([\d.]+) unpaired binomial standard errors", note)[1] == f"{errors:.1f}"
    if points := re.search(r"([\d.]+) points", note):
        assert float(points[1]) == pytest.approx(100 * (p - q))
    if counted := re.search(r"(\d+) of (?:500|1,319) questions", note):
        assert int(counted[1]) == round(n * p) - round(n * q)


def test_what_the_notes_say_about_multiples_is_true():
    """A share of n questions is a multiple of 1/n: MATH of all 5,000, and MBPP of 500 from more than one sample."""
    math500 = paper().tables["table2"]["math500_em"]
    exact = {v: 50 * x for v, x in math500.items() if x is not None}
    assert all(x == pytest.approx(round(x)) for x in exact.values()), "whole questions of 5,000"
    assert any(abs(5 * x - round(5 * x)) > 0.01 for x in math500.values() if x is not None), "not of 500"
    assert (round(exact["iha"]), round(exact["global"])) == (177, 144)
    assert 5 * paper().value("table2", "mbpp_p1", "iha") == pytest.approx(122.5)
    em, maj = (paper().tables["table2"][m] for m in ("gsm8k_em", "gsm8k_maj5"))
    away = {v: abs(round(13.19 * em[v]) - round(13.19 * maj[v])) for v in em}
    (note,) = {n for c in claims() for n in c.notes if "Maj@5 differs from EM" in n}
    assert (max(away.values()), away["iha"]) == (2, 1) and "at most two questions (of IHA by one)" in note


def test_iha_is_third_on_the_metric_that_the_text_calls_second():
    column = paper().tables["table1"]["mbpp_p10"]
    assert sorted(column, key=lambda v: -column[v])[:3] == ["talking_heads", "global_local", "iha"]
    (claim,) = [c for c in claims() if c.id == "sft_mbpp_p10_second"]
    assert "Talking Heads 43.1, Global+Local 41.9, IHA 41.6" in claim.notes[0]


def test_what_each_claim_says_is_what_it_measures():
    """Stage, benchmark, metric and the other variant, in the words of its sentence."""
    words = {"gsm8k": "GSM8K", "math500": "MATH", "mbpp": "MBPP", "humaneval": "HumanEval"}
    others = {
        "global_local": ("Global+Local", "hybrid"), "diff": ("Diff",), "global": ("Global", "full attention"),
        "talking_heads": ("Talking Heads",), "others": ("all variants",),
    }  # fmt: skip
    starts = {
        "table1": ("After fine-tuning",), "table2": ("The pretrained",), "ruler": ("After context", "IHA gains", "IHA scores"),
        "gain": ("IHA's gain",),
    }  # fmt: skip
    for claim in claims():
        kind, _, name = claim.measure.partition(".")
        assert claim.says.startswith(starts[kind]), claim.id
        assert {"iha": "IHA", "talking_heads": "Talking Heads"}[claim.better] in claim.says
        assert any(word in claim.says for word in others[claim.worse]), claim.id
        assert ("average rank" in claim.says) == (name == "avg_rank")
        if name == "avg_rank":
            continue
        benchmark, _, metric = name.partition("_")
        if kind != "ruler":
            assert words[benchmark] in claim.says
            assert ("majority" in claim.says) == metric.startswith("maj"), claim.id
            assert ("P@10" in claim.says) == (metric == "p10"), claim.id
        elif name.startswith("multikey."):
            assert f"at {int(name.rpartition('.')[2]) // 1024}k" in claim.says
        assert ("to within" in claim.says) == (claim.within > 0)
