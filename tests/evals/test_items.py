"""Items of the user and stock tasks: broken lines and columns are named, nothing of them is written, state is restored."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from datalab import write_rows
from evallab import SOURCES, Oracle, math_rows, tasks

from iha.config.schema import BookSource, FileSource
from iha.errors import ConfigError, DataError
from iha.evals.mirror import SETS, Mirrored, local_files, write_code_metric, write_haystack, write_set
from iha.evals.ruler import questions
from iha.evals.ruler.items import write_items
from iha.evals.ruler.tasks import Haystack, read_haystack
from iha.evals.run import Settings, run_suite
from iha.evals.tasks import BENCHMARKS, free_shots, load_tasks, official_scores, requests
from iha.planning.slices import ItemsSlice

MBPP = {
    "task_id": 11,
    "text": "t",
    "code": "c",
    "test_list": ["assert f()"],
    "test_setup_code": "",
    "challenge_test_list": [],
}


def given(folder, task, rows):
    write_rows(folder / f"{task}_test.jsonl", rows)
    return lambda: write_set(folder / "mirror", task, "files", items_dir=folder, limit=None)


@pytest.mark.parametrize(
    ("task", "rows", "words"),
    [
        (
            "math500",
            [*math_rows("1"), {"problem": "q"}],
            r"evals\.items\.math500: test items lack solution, answer, subject",
        ),
        ("math500", [b"{cut"], r"math500_test\.jsonl, line 1: not JSON"),
        ("math500", [[1, 2]], r"math500_test\.jsonl, line 1: no JSON object"),
        ("math500", [*math_rows("1"), 7], r"math500_test\.jsonl, line 2: no JSON object"),
        ("math500", [b'{"problem": "\xe9"}'], r"math500_test\.jsonl, line 1: not UTF-8"),
        (
            "math500",
            [*math_rows("1"), {**math_rows("1")[0], "problem": None}],
            r"line 2: problem is null; needed: text",
        ),
        ("math500", [{**math_rows("1")[0], "subject": "\ud800"}], "line 1: half of a surrogate pair"),
        ("math500", [{**math_rows("1")[0], "answer": 7}], r"line 1: answer is 7; needed: text"),
        ("math500", [{**math_rows("1")[0], "problem": " "}], r'line 1: problem is " "; needed: text'),
        (
            "mbpp",
            [{**MBPP, "test_list": "assert f()"}],
            r'line 1: test_list is "assert f\(\)"; needed: a list of texts',
        ),
        ("mbpp", [{**MBPP, "test_list": []}], r"line 1: test_list is \[\]; needed: a list of texts"),
        ("mbpp", [{**MBPP, "test_list": ["a", None]}], r"test_list is \[\"a\", null\]; needed: a list of texts"),
        ("humaneval", [dict.fromkeys(SETS["humaneval"].columns)], "line 1: prompt is null; needed: text"),
        ("math500", [], "the test split is empty; the stock task needs it"),
        ("mbpp", [{"text": "x"}], r"evals\.items\.mbpp: test items lack task_id, code"),
        ("mbpp", [MBPP, {**MBPP, "task_id": 511}, {"text": "x"}], "test items lack task_id"),
        ("mbpp", [{**MBPP, "task_id": 511}, {**MBPP, "task_id": 10}], "the test split is empty"),
        ("humaneval", [{"prompt": "p"}], "needed: task_id, prompt, canonical_solution, test, entry_point"),
    ],
    ids=range(18),
)
def test_items_that_are_not_the_benchmarks_are_refused_before_anything_is_written(tmp_path, task, rows, words):
    with pytest.raises(DataError, match=words):
        given(tmp_path, task, rows)()
    assert not (tmp_path / "mirror").exists()


def test_items_may_have_columns_of_their_own_and_windows_line_ends(tmp_path):
    path = tmp_path / "math500_test.jsonl"
    rows = [{**row, "note": "é"} for row in math_rows("1", "2")]
    path.write_bytes("\r\n".join(json.dumps(row) for row in rows).encode())
    done = write_set(tmp_path / "m", "math500", "files", items_dir=tmp_path, limit=None)
    assert done == Mirrored("real", 2, f"files in {tmp_path} (MIT)", done.sha256)
    written = (tmp_path / "m" / SETS["math500"].path / "test.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in written] == rows


def test_a_byte_order_mark_is_not_part_of_the_first_item(tmp_path):
    text = json.dumps(math_rows("1")[0])
    (tmp_path / "math500_test.jsonl").write_bytes(b"\xef\xbb\xbf" + text.encode() + b"\n")
    assert write_set(tmp_path / "m", "math500", "files", items_dir=tmp_path, limit=None).n == 1


def test_repeated_items_are_counted_with_a_warning(tmp_path, caplog):
    done = given(tmp_path, "math500", [*math_rows("1", "2"), *math_rows("1"), *math_rows("1")])()
    assert (done.n, done.repeated) == (4, 2)
    assert "math500: 2 of 4 test items repeat an earlier one" in caplog.text
    caplog.clear()
    assert given(tmp_path, "math500", math_rows("1", "2"))().repeated == 0 and not caplog.records


def test_a_benchmark_without_templates_names_the_other_sources(tmp_path):
    with pytest.raises(DataError, match=r"evals\.items\.humaneval: no templates exist for it; allowed: hub, files"):
        write_set(tmp_path, "humaneval", "templates", items_dir=None, limit=3)


def test_local_files_are_those_that_are_there_whatever_the_folder_is_called(tmp_path):
    folder = tmp_path / "my [items] *"
    for name in ("gsm8k_test.jsonl", "gsm8k_train_2.jsonl", "mbpp.jsonl", "other.jsonl", "dev-v2.0.json"):
        write_rows(folder / name, [{}])
    hay = write_rows(tmp_path / "hay.jsonl", [{"text": "x"}])
    items = {"gsm8k": "files", "math500": "files", "mbpp": "templates"}
    source = FileSource(kind="files", paths=(str(hay), str(tmp_path / "none*")))
    part = ItemsSlice(items=items, items_dir=str(folder), haystack=source, limit=None, needed=True)
    assert [Path(p).name for p in local_files(part)] == [
        "hay.jsonl",
        "dev-v2.0.json",
        "gsm8k_test.jsonl",
        "gsm8k_train_2.jsonl",
    ]
    assert local_files(part.model_copy(update={"items_dir": None, "haystack": BookSource(kind="book")})) == []


def test_the_code_metric_in_the_mirror_is_the_projects_own(tmp_path):
    write_code_metric(tmp_path)
    write_code_metric(tmp_path)
    text = (tmp_path / "code_eval/code_eval.py").read_text()
    assert "from iha.evals import sandbox" in text and len(list((tmp_path / "code_eval").iterdir())) == 1


def test_a_haystack_that_breaks_off_leaves_the_old_one(tmp_path):
    path, _ = write_haystack(tmp_path, iter(["one."]), enough=99)
    before = path.read_bytes()

    def dying():
        yield "two."
        raise DataError("gone")

    with pytest.raises(DataError, match="gone"):
        write_haystack(tmp_path, dying(), enough=99)
    with pytest.raises(DataError, match="gave no text"):
        write_haystack(tmp_path, iter([]), enough=99)
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == before


def test_a_haystack_without_words_is_refused_and_sentence_ends_may_close_with_quotes(tmp_path):
    path = write_rows(tmp_path / "hay.jsonl", [{"text": " \n"}])
    with pytest.raises(DataError, match=r"no text for RULER's essay haystacks\. Change evals\.haystack"):
        read_haystack(path, "real")
    assert Haystack(("He", "said", '"no."', "(Why?)", "A.B", "ends.", "it’s…”"), "real").ends == [3, 4, 6]


def test_a_mirror_that_is_gone_or_empty_is_named_and_the_process_is_left_as_it_was(tmp_path):
    before, modules = Path.cwd(), sys.modules.get("evaluate")
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(DataError, match=rf"{folder}: items of math500 cannot be read \(.*Rerun stage items"):
            load_tasks(["math500"], folder)
        assert Path.cwd() == before and sys.modules.get("evaluate") is modules


def test_tasks_are_left_as_they_were_after_their_requests_are_built():
    chosen = tasks(*SOURCES)
    assert [free_shots(chosen[name]) for name in SOURCES] == [True, False, False, False]
    for limit in (1, 3, None):
        made = requests(chosen["gsm8k"], limit=limit, shots=0, template=None)
        assert len(made) == min(limit or 8, 8) and made[0].args[0].count("Question:") == 1
    assert chosen["gsm8k"].config.num_fewshot == 5
    prompts = [[r.args[0] for r in requests(chosen["gsm8k"], limit=2, shots=None, template=None)] for _ in range(2)]
    assert prompts[0] == prompts[1] and prompts[0][0].count("Question:") == 6, "the same examples every time"


@pytest.mark.parametrize("name", SETS)
def test_the_gold_continues_the_prompt_and_is_right_by_its_own_answer(name):
    from iha.evals import grading

    benchmark = BENCHMARKS[name]
    for doc in list(tasks(*SOURCES)[name].test_docs())[:8]:
        if benchmark.answer is not None:
            assert benchmark.gold(doc).startswith(" ")
            assert grading.equal(name, grading.extract(name, benchmark.gold(doc)), benchmark.answer(doc))
        else:
            space = {}
            exec("\n".join(benchmark.program(doc, benchmark.gold(doc))), space)


def test_official_scores_are_per_answer_and_leave_no_trace():
    task = tasks(*SOURCES)["gsm8k"]
    (request,) = requests(task, limit=1, shots=0, template=None)
    gold = request.doc["answer"].rpartition("#### ")[2]
    found = official_scores(task, request, [f"#### {gold}", f"it is {gold}", "no", ""])
    strict, flexible = (("exact_match", name) for name in ("strict-match", "flexible-extract"))
    assert [(f[strict], f[flexible]) for f in found] == [(1, 1), (0, 1), (0, 0), (0, 0)]
    assert request.resps == []


def test_a_suite_survives_answers_of_a_model_in_a_loop():
    loops = ("9" * 5000, r"\boxed{" * 500, "%" * 3000, "\n" * 5000, "\\frac{1}{" * 300, "\ud800", "")
    lm = Oracle(lambda doc, number: loops[number % len(loops)])
    settings = Settings(samples=len(loops), temperature=0.6, max_new_tokens=50, context=64, chat=True, limit=1)
    outcome = run_suite(
        lm, {name: tasks(*SOURCES)[name] for name in ("gsm8k", "math500")}, settings, dict.fromkeys(SOURCES, "real")
    )
    assert {row.value for row in outcome.rows if row.metric in ("p1", f"maj{len(loops)}", "strict", "math_verify")} == {
        0.0
    }


@pytest.mark.parametrize(("name", "file"), [("qa_1", "dev-v2.0.json"), ("qa_2", "hotpot_dev_distractor_v1.json")])
@pytest.mark.parametrize("text", ["{", "[1]", '{"data": 3}', '{"other": []}', '[{"question": "q"}]'])
def test_a_question_file_of_another_layout_is_named(tmp_path, name, file, text):
    (tmp_path / file).write_text(text)
    with pytest.raises(DataError, match=rf"{file}: .*\w+/\w+ \(\w+Error: .*evals\.items_dir"):
        questions.read_questions(name, tmp_path)


def test_only_answerable_questions_are_asked_and_documents_are_numbered_once(tmp_path):
    asked = [
        {"question": "who", "answers": [{"text": "a"}, {"text": "b"}]},
        {"question": "why", "is_impossible": True, "answers": [], "plausible_answers": [{"text": "x"}]},
    ]
    paragraphs = [{"context": c, "qas": asked[:1] if c != "D" else asked[1:]} for c in ("C", "B", "D", "C")]
    (tmp_path / "dev-v2.0.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    corpus = questions.read_questions("qa_1", tmp_path)
    assert corpus.documents == ["B", "C", "D"]
    assert [(q.query, q.answers, q.gold, q.near) for q in corpus.questions] == [
        ("who", ["a", "b"], [1], [0, 2]), ("who", ["a", "b"], [0], [1, 2]), ("who", ["a", "b"], [1], [0, 2]),
    ]  # fmt: skip
    (tmp_path / "dev-v2.0.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs[2:3]}]}))
    with pytest.raises(DataError, match="no answerable question"):
        questions.read_questions("qa_1", tmp_path)


def test_ruler_items_are_written_whole_or_not_at_all(tmp_path):
    def dying():
        yield {"index": 0}
        raise ConfigError("too small")

    with pytest.raises(ConfigError, match="too small"):
        write_items(tmp_path / "ruler/64/vt.jsonl", dying())
    assert list((tmp_path / "ruler/64").iterdir()) == []
