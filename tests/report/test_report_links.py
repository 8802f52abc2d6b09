"""The links behind a number and the two sides of a difference, one by one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reports import manifest

from iha.artifacts.manifest import FileEntry, Manifest, sha256_file, write_manifest
from iha.errors import DataError, UserError
from iha.report.chain import _parents, follow, plain
from iha.report.compare import _flat, _short, diff, diff_text, open_run
from iha.report.experiment import ORIGINS, Experiment, choose, manifest_path
from iha.report.trace import find, trace, trace_text
from iha.tracking.metrics import MetricsFile


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Experiment(Path("results/x"), Path("state/x"))


def put(experiment: Experiment, name: str, *, parents=(), files=None, slice_=None, **facts) -> str:
    """Write an input of the report, made from others that lie there; returns its SHA-256."""
    path = experiment.results / manifest_path(name)
    hashes = {role: experiment.digest(of) or "gone" for role, of in dict(parents).items()}
    found = manifest("stage", facts, slice_ or {}, files)
    write_manifest(path, found.model_copy(update={"parents": hashes}))
    return sha256_file(path)


def report(experiment: Experiment, cells, names=(), slice_=None) -> Manifest:
    found = manifest("report", {"cells": cells}, slice_ or {"variants": ["iha"], "reference": "iha", "seeds": [1]})
    made = found.model_copy(update={"parents": {name: experiment.digest(name) for name in names}})
    write_manifest(experiment.results / "report/report.json", made)
    return made


def trained(experiment: Experiment, stage: str, size: int, **options) -> str:
    """A training whose weights have `size` bytes on disk and 3 in its manifest."""
    weights = experiment.state / f"runs/{stage}/model.bin"
    weights.parent.mkdir(parents=True, exist_ok=True)
    if size:
        weights.write_bytes(b"x" * size)
    entry = FileEntry(path=f"runs/{stage}/model.bin", sha256="ab" * 32, bytes=3)
    parents = {"store": f"data:{stage}"} | ({"parent": "train:iha:1:pretrain"} if stage != "pretrain" else {})
    return put(
        experiment,
        f"train:iha:1:{stage}",
        files={"weights": entry},
        model=f"runs/{stage}/final",
        parents=parents,
        **options,
    )


@pytest.mark.parametrize(("size", "state"), [(3, "ok"), (4, "changed"), (0, "missing")])
def test_links_lead_from_a_training_to_its_text_each_with_its_state(experiment, size, state):
    put(experiment, "data:pretrain", corpus_sha256="cd" * 32)
    put(experiment, "data:sft")
    trained(experiment, "pretrain", 3)
    trained(experiment, "sft", size, steps=7)
    made = report(experiment, {}, ["train:iha:1:sft"])
    links = follow(experiment, made, ["train:iha:1:sft"], lambda m: None)
    told = [(link.what, Path(link.path).relative_to(experiment.results.parent.parent).as_posix()) for link in links]
    assert told == [
        ("training", "results/x/runs/iha/seed1/sft.json"), ("checkpoint", "state/x/runs/sft/model.bin"),
        ("journal", "state/x/runs/sft/metrics.jsonl"), ("training", "results/x/runs/iha/seed1/pretrain.json"),
        ("checkpoint", "state/x/runs/pretrain/model.bin"), ("journal", "state/x/runs/pretrain/metrics.jsonl"),
        ("text", "results/x/data/sft.json"), ("text", "results/x/data/pretrain.json"),
    ]  # fmt: skip
    assert [link.state for link in links[:3]] == ["ok", state, "missing"]
    assert links[0].facts == {"steps": 7} and links[7].facts == {"corpus_sha256": "cd" * 32}
    assert links[1].facts == {"bytes": 3} and links[1].sha256 == "ab" * 32


@pytest.mark.parametrize(
    ("name", "role", "parent"),
    [
        ("eval:iha:2:ruler:long", "model", "train:iha:2:extend"), ("eval:iha:2:r:base", "model", "train:iha:2:pretrain"),
        ("eval:iha:2:r:sft", "model", "train:iha:2:sft"), ("eval:iha:2:ruler:long", "ruler_512", "ruler:512"),
        ("eval:iha:2:ruler:long", "store", "data:extend"), ("train:iha:2:extend", "parent", "train:iha:2:pretrain"),
        ("train:iha:2:extend", "store", "data:extend"), ("train:iha:2:sft", "flops", "flops"),
        ("synthetic_run:binary/iha-lr0.1-seed0", "data", "synthetic_data:binary"), ("contamination:sft", "data", "data:sft"),
        ("data:sft", "tokenizer", "tokenizer"),
    ],
)  # fmt: skip
def test_the_parent_in_each_role(name, role, parent):
    found = manifest("stage", {}).model_copy(update={"parents": {role: "ab"}})
    assert list(_parents(name, found)) == [(parent, "ab")]


def test_an_evaluation_without_the_rows_in_question_is_left_out_with_all_behind_it(experiment):
    for suite, rows in (("one", [{"metric": "p1"}]), ("two", [])):
        put(experiment, f"eval:iha:1:{suite}:sft", rows=rows, parents={"tokenizer": "tokenizer"})
    made = report(experiment, {}, [f"eval:iha:1:{suite}:sft" for suite in ("one", "two")])
    links = follow(experiment, made, made.parents, lambda m: m.facts["rows"])
    assert [Path(link.path).name for link in links] == ["one.sft.json", "tokenizer.json"]
    assert (links[0].facts, links[1].state) == ({"rows": [{"metric": "p1"}]}, "missing")


def test_the_commit_is_that_of_the_manifest_as_it_lies_there(experiment):
    digest = trained(experiment, "sft", 3)
    _, found = experiment.manifest("train:iha:1:sft")
    assert experiment.commit(found, digest) is None and experiment.start(found) == {}
    journal = MetricsFile(experiment.state / "runs/sft/metrics.jsonl")
    for commit, dirty in (("first", "true"), ("again", "false")):
        journal.write("start", run={"tags": {"git.commit": commit, "git.dirty": dirty}})
    journal.close()
    assert experiment.commit(found) == experiment.commit(found, digest) == "again", "the last start of a resumed run"
    note = experiment.state / ORIGINS / f"{digest}.json"
    note.parent.mkdir()
    note.write_text(json.dumps({"commit": "noted", "dirty": True}))
    assert experiment.commit(found, digest) == "noted+"
    assert experiment.commit(found, "other") == "again", "a note is of one content"
    assert experiment.commit(manifest("flops", {})) is None


def test_where_an_experiment_lies_follows_from_where_a_manifest_lies(experiment):
    for place, results, state in (
        ("results/x/runs/iha/seed1/sft.json", "results/x", "state/x"),
        ("results/y/evals/iha/seed1/r.sft.json", "results/y", "state/y"),
        ("elsewhere/results/z/runs/iha/seed1/sft.json", "elsewhere/results/z", "elsewhere/state/z"),
    ):
        found = experiment.around(Path(place))
        assert (found.results.resolve(), found.state.resolve()) == (Path(results).resolve(), Path(state).resolve())
    assert experiment.around(Path("alone.json")) is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("tabel1", "table: 'tabel1' (did you mean table1?); allowed: table1, table2. Example: table1:iha:x"),
        ("", "table: is missing; allowed: table1, table2. Example: table1:iha:x"),
        ("zzz", "table: 'zzz'; allowed: table1, table2. Example: table1:iha:x"),
    ],
)
def test_a_wrong_choice_names_value_nearest_and_allowed(given, said):
    assert choose("table", "table2", ("table1", "table2")) == "table2"
    with pytest.raises(UserError) as caught:
        choose("table", given, ("table1", "table2"), "table1:iha:x")
    assert str(caught.value) == said


def test_the_first_report_that_names_a_table_holds_its_cells(experiment):
    with pytest.raises(
        UserError, match=r"results/x/report/report.json: this experiment has no report yet; run snakemake"
    ):
        find(experiment, "flops:iha:steps")
    report(experiment, {"flops": {"iha": {"steps": 3}}})
    other = experiment.results / "synthetic/report/report.json"
    write_manifest(
        other, manifest("report", {"cells": {"flops": {"iha": {"steps": 9}}, "relations_x": {"a": {"b": 0.5}}}})
    )
    assert find(experiment, "flops:iha:steps")[2] == 3
    path, cell, value = find(experiment, "relations_x:a:b")
    assert (path, value, cell.table) == (other, 0.5, "relations_x")
    with pytest.raises(UserError, match=r"row: 'c'; allowed: a\. Example: relations_x:a:b"):
        find(experiment, "relations_x:c:b")
    text = trace_text(trace(experiment, "flops:iha:steps"))
    assert text.splitlines()[0] == "flops:iha:steps = 3"
    assert "nothing was measured" not in text


def test_a_report_that_was_edited_is_refused(experiment):
    report(experiment, {"flops": {"iha": {"steps": 3}}})
    path = experiment.results / "report/report.json"
    path.write_text(path.read_text().replace('"steps": 3', '"steps": 4'))
    with pytest.raises(DataError, match="edited since stage 'report' wrote it"):
        trace(experiment, "flops:iha:steps")


def test_a_cell_without_anything_behind_it_says_so(experiment):
    report(experiment, {"training": {"iha": {"sft.loss": None}}})
    found = trace(experiment, "training:iha:sft.loss")
    assert found.chains == {"seed 1": ()} and found.data()["value"] is None
    lines = trace_text(found).splitlines()
    assert lines[0] == "training:iha:sft.loss = no value" and lines[-1] == "  nothing was measured for it"


def test_a_file_that_nothing_describes_is_there_or_missing(tmp_path):
    (tmp_path / "a").touch()
    assert [plain(tmp_path / name, "files").state for name in ("a", "b")] == ["ok", "missing"]


LEAVES = st.one_of(st.integers(), st.none(), st.lists(st.integers(), max_size=2), st.just({}))
KEYS = st.sampled_from(["a", "b", "c"])


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(
        KEYS, st.one_of(LEAVES, st.dictionaries(KEYS, st.one_of(LEAVES, st.fixed_dictionaries({"x": LEAVES}))))
    )
)
def test_a_nested_configuration_is_flat_and_loses_nothing(tree):
    flat, leaves = _flat(tree), 0
    queue = [((), tree)]
    while queue:
        place, node = queue.pop()
        if isinstance(node, dict) and (node or not place):
            queue += [((*place, key), inner) for key, inner in node.items()]
        else:
            leaves += 1
            assert flat[".".join(place)] == node
    assert len(flat) == leaves


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"), (0.1 + 0.2, "0.3"), (True, "True"), (0, "0"), ("ab" * 32, "ababababab"[:10] + "ab"), ("x" * 60, "x" * 60),
        ("x" * 61, "x" * 57 + "..."), ("word " * 12 + "four", "word " * 11 + "wo..."), ([1, "a"], "[1, 'a']"),
    ],
)  # fmt: skip
def test_values_of_a_difference_are_short(value, shown):
    assert _short(value) == shown


def test_a_run_against_itself_is_equal_in_everything(experiment):
    trained(experiment, "sft", 3, slice_={"recipe": {"lr": 0.1}}, steps=7, data_digests={"5": "aa", "10": "bb"})
    one = open_run(experiment, "iha/seed1/sft")
    again = open_run(experiment, str(experiment.results / "runs/iha/seed1/sft.json"))
    found = diff(one, again)
    assert [found[section] for section in ("config", "code", "data", "metrics", "files")] == [{}, {}, {}, {}, []]
    lines = [line for line in diff_text(found).splitlines()[2:] if line]
    assert lines == ["config: equal", "code: equal", "data: equal", "metrics: equal"]
    whole = diff(one, again, everything=True)
    assert whole["config"] == {"recipe.lr": [0.1, 0.1]} and whole["metrics"] == {"steps": [7, 7]}
    assert whole["data"]["stream up to step 10"] == ["bb", "bb"], "10 is after 5"


def test_a_run_of_nothing_says_what_to_do(experiment):
    with pytest.raises(UserError) as caught:
        open_run(experiment, "iha/seed1/sft")
    assert str(caught.value) == (
        "run: 'iha/seed1/sft'; allowed: a manifest's path, or one of: none yet below results/x; run snakemake, or name "
        "another with --config."
    )
