"""RULER: budgets, needles, independence of items, templates, scores, the stage."""

import ast
import hashlib
import json
import re
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from iha.artifacts.manifest import Manifest, file_entry
from iha.config.schema import RULER_TASKS, TokenizerConfig
from iha.data import needles
from iha.data.needles import categories
from iha.data.tokenizer import Tokenizer
from iha.data.tokenizer_build import build
from iha.errors import ConfigError, DataError, UserError
from iha.evals.ruler import questions, tasks
from iha.evals.ruler.items import Sizer, generate, item_path, prompt, read_items, write_items
from iha.evals.ruler.scoring import score
from iha.evals.ruler.tasks import Draft, Haystack, Materials, Task
from iha.planning.slices import RulerSlice
from iha.stages import ruler as stage
from iha.stages.common import Context

STORY = (
    "In the beginning there was a long road. It went over a hill, and nobody knew where it ended! "
    'Was it far? "Very far," said the miller. He had walked it once, in the summer of 1887, and never again. '
)
ROOM = {"cwe": 120, "fwe": 50, "vt": 30, "qa_1": 32, "qa_2": 32}
GENERATED = RULER_TASKS[:-2]


class Letters:
    """A tokenizer of one token per character."""

    sha256 = "letters"

    def encode_text(self, text):
        return list(map(ord, text))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    words = " ".join(word for group in categories().values() for word in group)
    templates = (
        " ".join([tasks.MANY, needles.NEEDLE, needles.NOISE, tasks.TRACKING, tasks.TRACKING_PREFIX, tasks.COMMON]) * 50
    )
    config = TokenizerConfig(kind="bpe", vocab_size=1024)
    return build(config, [words + templates + STORY * 50], tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def materials(tmp_path):
    documents = [f"Fact {i}: the {w} lives in room {i} of the old house." for i, w in enumerate(categories()["noun"])]
    squad = {
        "data": [
            {
                "paragraphs": [
                    {
                        "context": text,
                        "qas": [{"question": f"Who is in room {i}?", "answers": [{"text": text.split()[3]}]}],
                    }
                    for i, text in enumerate(documents[start : start + 5], start)
                ]
            }
            for start in range(0, 300, 5)
        ]
    }
    hotpot = [
        {
            "question": f"Which {i}?",
            "answer": f"room {i}",
            "context": [["A", [documents[i]]], ["B", [documents[i + 1]]]],
        }
        for i in range(200)
    ]
    (tmp_path / "dev-v2.0.json").write_text(json.dumps(squad))
    (tmp_path / "hotpot_dev_distractor_v1.json").write_text(json.dumps(hotpot))
    return Materials(Haystack(tuple(STORY.split() * 30), "synthetic"), tmp_path)


def made(task, length, samples, tokenizer, materials):
    return list(generate(task, length, samples, tokenizer, materials))


@pytest.mark.parametrize("task", RULER_TASKS)
def test_every_item_keeps_its_budget_and_its_answers(task, tokenizer, materials):
    for length in (2048, 4096):
        if task == "cwe" and length == 4096:
            continue  # 30 x 10 common words are more than 4,096 tokens of this small vocabulary
        items = made(task, length, 12, tokenizer, materials)
        for item in items:
            ids = [tokenizer.bos, *tokenizer.encode_text(prompt(item))]
            assert item["max_new_tokens"] == ROOM.get(task, 128)
            assert len(ids) + item["max_new_tokens"] == item["length"] <= length
            assert item["length"] >= 0.9 * length
            back = tokenizer.decode(ids)
            assert back == prompt(item)
            assert all(gold in back for gold in item["outputs"])


@pytest.mark.parametrize("task", ["niah_single_1", "niah_multikey_1", "niah_multikey_2", "vt"])
@pytest.mark.parametrize("length", [512, 1024])
def test_small_lengths_with_a_small_vocabulary(task, length, tokenizer, materials):
    lengths = [item["length"] for item in made(task, length, 8, tokenizer, materials)]
    assert max(lengths) <= length
    assert min(lengths) >= 0.85 * length


def padded(extra):
    """A task of 'x ' units; item 0 is `extra` tokens longer than the calibration items."""

    def build(rng, index, units):
        return Draft("x" * units + "y" * (extra if index == 0 else 0), "", ["x"])

    return Task("niah_single_1", 128, build, least=1)


def test_over_by_three_is_rebuilt_with_fewer_units():
    plain = Sizer(padded(0), 4096, Letters()).fit(0)
    assert (plain.tokens, plain.units) == (4096, 4096 - 128 - 1)
    over = Sizer(padded(3), 4096, Letters()).fit(0)
    assert (over.tokens, over.units) == (4096, plain.units - 3)


@pytest.mark.parametrize("task", GENERATED)
def test_too_small_a_budget_is_an_error(task, tokenizer, materials):
    with pytest.raises(UserError, match=rf"{task}.*at the least.*length is 180"):
        made(task, 180, 1, tokenizer, materials)


def test_a_tokenizer_that_counts_nothing_is_an_error():
    class Mute(Letters):
        def encode_text(self, text):
            return []

    with pytest.raises(UserError, match="cannot size prompts"):
        made("niah_single_1", 4096, 1, Mute(), Materials())


GOLDEN = {
    "niah_single_1": "2c91b295275d884f",
    "niah_single_3": "b1c79b59678d1806",
    "niah_multikey_2": "03642dadbf0b319c",
    "niah_multikey_3": "787ffe59481468be",
    "niah_multiquery": "a7451b297aeea628",
    "fwe": "500b74204de9fd17",
    "vt": "66aa80a5d9cbd8cd",
    "cwe": "fe178648ff3ac822",
}


@pytest.mark.parametrize("task", GOLDEN)
def test_items_are_equal_on_every_machine_and_in_every_version(task):
    """A change of these digests changes every score of the task: the changelog must say so."""
    text = Haystack(tuple(STORY.split() * 30), "synthetic")
    items = made(task, 20_000 if task == "cwe" else 4096, 3, Letters(), Materials(text))
    assert hashlib.sha256("".join(json.dumps(i) + "\n" for i in items).encode()).hexdigest()[:16] == GOLDEN[task]


@pytest.mark.parametrize("task", ["niah_multikey_2", "vt", "cwe", "fwe"])
def test_items_depend_on_nothing_made_before(task, tokenizer, materials):
    first = made(task, 2048, 6, tokenizer, materials)
    made("niah_single_1", 1024, 3, tokenizer, materials)
    again = made(task, 2048, 9, tokenizer, materials)
    assert again[:6] == first
    assert len({item["input"] for item in again}) == 9
    assert made(task, 2100, 1, tokenizer, materials)[0]["outputs"] != first[0]["outputs"]


def test_needles_are_whole_and_where_depth_says(tokenizer, materials):
    depths = []
    for task, shape in tasks.NEEDLES.items():
        for item in made(task, 3000, 10, tokenizer, materials):
            found = re.findall(r"One of the special magic (\w+) for (\S+) is: (\S+)\.", item["input"])
            kinds, keys, values = zip(*found, strict=True)
            assert set(kinds) == {shape.value_kind}
            assert len(set(values)) == len(values)
            expected = shape.queries * shape.values
            asked = [(k, v) for k, v in zip(keys, values, strict=True) if k in item["answer_prefix"]]
            assert sorted(v for _, v in asked) == sorted(item["outputs"])
            assert len(asked) == expected
            if shape.haystack != "needle":
                assert len(found) == shape.keys * shape.values
            assert (item["depth"] is None) == (expected > 1)
            if item["depth"] is not None:
                assert item["depth"] == pytest.approx(
                    item["input"].index(item["outputs"][0]) / len(item["input"]), abs=0.1
                )
                depths.append(item["depth"])
    assert min(depths) < 0.15
    assert max(depths) > 0.85


def test_chain_is_in_order_and_its_example_is_apart(tokenizer, materials):
    for item in made("vt", 2048, 5, tokenizer, materials):
        example, question = item["input"].rsplit("\n\nMemorize", 1)
        assert not set(item["outputs"]) & set(re.findall(r"\b[A-Z]{3,5}\b", example))
        value = re.search(r"assigned the value (\d+)", question)[1]
        steps = re.findall(r"VAR (\w+) = (?:VAR )?(\w+)", question)
        assert steps == list(zip(item["outputs"], [value, *item["outputs"]], strict=False))
        assert item["answer_prefix"].endswith(f" 5 variables are assigned the value {value}, they are: ")
        assert re.search(r"they are:  [A-Z]{3}( [A-Z]{3}){4}$", example), "two blanks: one of the prefix, one of RULER"
        lines = question.split("\n")[2:-1]
        assert lines.count(needles.NOISE) + 5 == len(lines), "a line each"


def test_most_frequent_words_are_the_answers(tokenizer, materials):
    for item in made("cwe", 2048, 5, tokenizer, materials):
        listed = Counter(
            re.findall(r"\d+\. (\S+(?: [a-z]\S*)*)", item["input"].split("list of words.")[-1].split("\nQ")[0])
        )
        assert {w for w, _ in listed.most_common(10)} == set(item["outputs"])
        assert sorted(set(listed.values())) == [1, 6]
    for item in made("fwe", 2048, 5, tokenizer, materials):
        coded = Counter(item["input"].split("coded words. ")[1].split("\nQuestion")[0].split())
        ranked = coded.most_common(5)
        assert [w for w, _ in ranked[:4]] == ["...", *item["outputs"]]
        assert ranked[3][1] > ranked[4][1]


def test_gold_documents_are_always_there(tokenizer, materials):
    squad = made("qa_1", 2048, 12, tokenizer, materials)
    assert len({item["input"].count("Document ") for item in squad}) >= 1
    for i, item in enumerate(squad):
        assert f"room {i} of" in item["input"]
        assert item["answer_prefix"] == " Answer:"
    hotpot = made("qa_2", 2048, 3, tokenizer, materials)
    assert "A\nFact 2" in hotpot[2]["input"]
    assert "B\nFact 3" in hotpot[2]["input"]


def test_hub_rows_give_the_same_questions_as_the_release_files(materials):
    squad = json.loads((materials.items_dir / "dev-v2.0.json").read_text())
    rows = [
        {
            "title": f"t{i}",
            "context": p["context"],
            "question": q["question"],
            "answers": {"text": [a["text"] for a in q["answers"]]},
        }
        for i, article in enumerate(squad["data"])
        for p in article["paragraphs"]
        for q in p["qas"]
    ]
    assert questions.as_corpus(questions.squad_rows(rows)) == questions.as_corpus(questions.squad_file(squad))
    hotpot = json.loads((materials.items_dir / "hotpot_dev_distractor_v1.json").read_text())
    rows = [
        {**r, "context": {"title": [t for t, _ in r["context"]], "sentences": [s for _, s in r["context"]]}}
        for r in hotpot
    ]
    assert questions.as_corpus(questions.hotpot_rows(rows)) == questions.as_corpus(questions.hotpot_file(hotpot))


def test_missing_questions_name_both_sources(monkeypatch, tmp_path):
    import datasets

    def offline(*args, **kwargs):
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(DataError, match=r"hotpotqa/hotpot_qa.*hotpot_dev_distractor_v1\.json in evals\.items_dir"):
        questions.read_questions("qa_2", tmp_path)


def test_unknown_task_and_missing_text_are_config_errors(tokenizer):
    with pytest.raises(ConfigError, match=r"niah_single_9.*allowed"):
        made("niah_single_9", 1024, 1, tokenizer, Materials())
    with pytest.raises(ConfigError, match=r"evals\.haystack"):
        made("niah_single_2", 1024, 1, tokenizer, Materials())


def blank(text):
    return re.sub(r"\{[^}]*\}", "{}", text).strip()


def test_templates_are_rulers_own():
    """Word for word those in lm-eval's copy of NVIDIA/RULER, read from its source (importing it needs a network)."""
    folder = Path(find_spec("lm_eval").submodule_search_locations[0]) / "tasks" / "ruler"
    strings = set()
    for path in folder.glob("*_utils.py"):
        nodes = ast.walk(ast.parse(path.read_text()))
        strings |= {blank(n.value) for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    for ours in (tasks.MANY, tasks.TRACKING, tasks.COMMON, tasks.FREQUENT, tasks.ANSWERING):
        assert blank(ours) in strings
    tracking = tasks.TRACKING_PREFIX.replace("assigned", "assgined")  # corrected in NVIDIA/RULER, not in the copy
    for prefix in (tracking, tasks.COMMON_PREFIX, tasks.FREQUENT_PREFIX, tasks.ANSWERING_PREFIX):
        assert blank(prefix) in {s.strip() for s in strings} | strings


def context_of(tmp_path, tokenizer):
    haystack = tmp_path / "mirror" / "train.jsonl"
    haystack.parent.mkdir()
    haystack.write_text(json.dumps({"text": STORY * 30}) + "\n")
    (tmp_path / "tokenizer").symlink_to(tokenizer.folder)
    items = Manifest(
        stage="items",
        slice={"items_dir": None},
        code="",
        files={"haystack": file_entry(haystack, tmp_path)},
        metadata={"haystack": {"source": "synthetic"}},
    )
    return Context(tmp_path / "out.json", tmp_path, {"items": items}, "", "x", 1, "cpu")


def test_stage_writes_hashed_items_and_says_where_text_is_not_rulers(tmp_path, tokenizer):
    part = RulerSlice(length=1024, tasks=("niah_single_1", "niah_single_2"), samples=3)
    done = stage.body(part, context_of(tmp_path, tokenizer))
    facts = done.metadata["tasks"]
    assert [facts[t]["source"] for t in part.tasks] == ["real", "synthetic"]
    assert facts["niah_single_2"]["n"] == 3
    assert facts["niah_single_2"]["tokens_max"] <= 1024
    assert facts["niah_single_2"]["sha256"] == done.files["niah_single_2"].sha256
    manifest = Manifest(stage="ruler", slice={}, code="", files=done.files, metadata=done.metadata)
    items = read_items(manifest, tmp_path, "niah_single_2", tokenizer.sha256)
    assert items == made(
        "niah_single_2", 1024, 3, tokenizer, Materials(Haystack(tuple((STORY * 30).split()), "synthetic"))
    )


def test_stage_names_every_task_that_does_not_fit(tmp_path, tokenizer):
    part = RulerSlice(length=300, tasks=("niah_multiquery", "niah_single_1", "cwe"), samples=3)
    with pytest.raises(UserError) as caught:
        stage.body(part, context_of(tmp_path, tokenizer))
    assert [line.split("'")[1] for line in str(caught.value).splitlines()] == ["niah_multiquery", "cwe"]
    assert not (tmp_path / "ruler").exists()


def test_items_of_another_tokenizer_are_refused(tmp_path, tokenizer):
    path = item_path(tmp_path, 1024, "niah_single_1")
    write_items(path, made("niah_single_1", 1024, 2, tokenizer, Materials()))
    manifest = Manifest(stage="ruler", slice={}, code="", files={"niah_single_1": file_entry(path, tmp_path)})
    assert len(read_items(manifest, tmp_path, "niah_single_1", tokenizer.sha256)) == 2
    with pytest.raises(DataError, match=r"counted with tokenizer.*Rerun the stage ruler"):
        read_items(manifest, tmp_path, "niah_single_1", "f" * 64)
    with pytest.raises(DataError, match="not in the manifest"):
        read_items(manifest, tmp_path, "vt", tokenizer.sha256)
    path.write_text(path.read_text().replace("special", "SPECIAL"))
    with pytest.raises(DataError, match="differs"):
        read_items(manifest, tmp_path, "niah_single_1", tokenizer.sha256)


def test_prefix_is_apart_from_the_question(tokenizer, materials):
    for task in RULER_TASKS:
        item = made(task, 2048, 1, tokenizer, materials)[0]
        assert not item["input"].endswith(item["answer_prefix"].strip())
        assert prompt(item) == item["input"] + item["answer_prefix"]
        assert item["answer_prefix"].startswith(" ")
        assert item["answer_prefix"].endswith(" ") == (task == "vt")
        assert item["tokenizer"] == tokenizer.sha256


def test_haystack_starts_over_when_it_is_too_short():
    hay = Haystack(("a", "b.", "c"), "synthetic")
    words, borders = hay.first(7)
    assert words == ["a", "b.", "c", "a", "b.", "c", "a"]
    assert borders == [0, 2, 5, 7]
    assert hay.first(2) == (["a", "b."], [0, 2])


def test_tokenizer_folder_serves_as_encoder(tokenizer):
    assert Tokenizer.load(tokenizer.folder).sha256 == tokenizer.sha256


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


NEWLINES = "\n" * 300_000


def test_loops_in_a_long_context_answer_are_read_in_one_pass():
    assert score("niah_single_1", f"1234567{NEWLINES}x", ["1234567"]) == {"official": 1.0, "strict": 1.0}
    assert score("vt", "VAR " * 300_000, ["ABCDE"]) == {"official": 0.0, "strict": 0.0}
