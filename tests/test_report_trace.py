"""`iha trace` and `iha diff` on a finished experiment of manifests and journals."""

from __future__ import annotations

import json
import re

import pytest
from reports import manifest, whole

from iha.cli import main
from iha.manifest import read_manifest, sha256_file, write_manifest
from iha.report.compare import changed_files
from iha.report.experiment import manifest_path
from iha.tracking.journal import Journal

SMOKE = "experiment: smoke\nscale: smoke\n"


@pytest.fixture
def finished(tmp_path, monkeypatch):
    """A folder with results/smoke, state/smoke and the config that names them."""
    monkeypatch.chdir(tmp_path)
    world = whole(tmp_path / "state" / "smoke", seeds=(1, 2))
    world.inputs["data:sft"] = manifest(
        "tokenise", {"corpus_sha256": "12" * 32, "n_tokens": 7}, {"data": {"sources": []}}
    )
    world.lay_out(tmp_path / "results" / "smoke")
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "smoke.yaml").write_text(SMOKE)
    return tmp_path


def run(capsys, *args):
    main(list(args))
    return capsys.readouterr().out


def fails(capsys, *args):
    with pytest.raises(SystemExit) as caught:
        main(list(args))
    assert caught.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1, "one line, no traceback"
    return printed.err


def test_a_cell_leads_to_samples_checkpoint_and_data(finished, capsys):
    found = json.loads(run(capsys, "trace", "table1:iha:gsm8k_maj16", "--json"))
    assert found["value"] == 100.0
    assert set(found["seeds"]) == {"1", "2"}
    links = [(link["what"], link["path"], link["state"]) for link in found["seeds"]["2"]]
    assert ("evaluation", "results/smoke/evals/iha/seed2/reasoning.sft.json", "ok") in links
    assert ("samples", "state/smoke/evals/iha/seed2/reasoning.sft.samples.jsonl.gz", "ok") in links
    assert ("training", "results/smoke/runs/iha/seed2/sft.json", "ok") in links
    assert ("training", "results/smoke/runs/iha/seed2/pretrain.json", "ok") in links
    assert ("text", "results/smoke/data/sft.json", "ok") in links
    (row,) = found["seeds"]["2"][0]["facts"]["rows"]
    assert (row["metric"], row["value"]) == ("maj16", 1.0)
    text = run(capsys, "trace", "table1:iha:gsm8k_maj16")
    assert text.startswith("table1:iha:gsm8k_maj16 = 100 ")
    assert "gsm8k maj16 = 1.0 over 4 items, synthetic" in text
    assert "CHANGED" not in text


def test_an_average_rank_stands_on_every_benchmark_of_its_table(finished, capsys):
    found = json.loads(run(capsys, "trace", "table2:iha:avg_rank", "--json"))
    rows = found["seeds"]["1"][0]["facts"]["rows"]
    assert {row["benchmark"] for row in rows} == {"gsm8k", "math500", "mbpp", "humaneval"}
    assert "ruler vt at 1024" not in run(capsys, "trace", "table2:iha:avg_rank")
    assert "vt at 1024 official = 0.7" in run(capsys, "trace", "ruler:iha:overall")


def test_a_link_that_changed_or_is_gone_is_named(finished, capsys):
    path = finished / "results/smoke" / manifest_path("train:iha:1:sft")
    write_manifest(path, read_manifest(path).model_copy(update={"code": "0ther"}))
    (finished / "results/smoke" / manifest_path("data:sft")).unlink()
    (finished / "state/smoke/evals/iha/seed1/reasoning.sft.samples.jsonl.gz").unlink()
    text = run(capsys, "trace", "table1:iha:gsm8k_p1")
    assert re.search(r"runs/iha/seed1/sft.json  sha256 \w+  CHANGED", text)
    assert re.search(r"data/sft.json  sha256 \w+  MISSING", text)
    assert re.search(r"samples.jsonl.gz  sha256 0+  MISSING", text)
    assert not re.search(r"seed2/sft.json.*CHANGED", text)


def test_every_suite_behind_a_cell_is_followed(finished, capsys):
    results, name = finished / "results/smoke", "eval:iha:1:another:long"
    suite = read_manifest(results / manifest_path("eval:iha:1:ruler:long"))
    parents = {**suite.parents, "model": "0" * 64, "ruler_512": sha256_file(results / manifest_path("ruler:512"))}
    write_manifest(results / manifest_path(name), suite.model_copy(update={"parents": parents}))
    path = results / "report/report.json"
    report = read_manifest(path)
    noted = {**report.parents, name: sha256_file(results / manifest_path(name))}
    write_manifest(path, report.model_copy(update={"parents": noted}))
    text = run(capsys, "trace", "ruler:iha:overall")
    assert re.search(r"runs/iha/seed1/extend.json  sha256 \w+  CHANGED", text), "one suite saw other weights"
    assert re.search(r"ruler/512.json  sha256 \w+$", text, re.M)
    assert not re.search(r"seed2/extend.json.*CHANGED", text)


def test_the_commit_comes_from_the_journal(finished, capsys):
    journal = Journal(finished / "state/smoke/runs/iha/seed1/sft/metrics.jsonl")
    journal.write("start", run={"tags": {"git.commit": "abc123", "git.dirty": "true"}})
    journal.close()
    assert "commit abc123+" in run(capsys, "trace", "table1:iha:gsm8k_p1")


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("table1:iha", "allowed: TABLE:VARIANT:METRIC, such as table1:iha:gsm8k_maj16"),
        ("table3:iha:gsm8k_p1", "table: 'table3' (did you mean table2?)"),
        ("table1:ihaa:gsm8k_p1", "variant: 'ihaa' (did you mean iha?); allowed: global,"),
        ("table1:iha:gsm8k_maj4", "metric: 'gsm8k_maj4' (did you mean gsm8k_maj16?)"),
    ],
)
def test_a_cell_that_is_not_there_names_what_is(finished, capsys, cell, said):
    assert said in fails(capsys, "trace", cell)


def test_without_a_report_the_error_says_what_to_run(finished, capsys):
    (finished / "results/smoke/report/report.json").unlink()
    assert "no report yet; run snakemake" in fails(capsys, "trace", "table1:iha:gsm8k_p1")
    (finished / "configs/smoke.yaml").unlink()
    assert "configs/smoke.yaml" in fails(capsys, "trace", "table1:iha:gsm8k_p1")


def test_diff_shows_what_differs(finished, capsys):
    one, two = (finished / "results/smoke" / manifest_path(f"train:{v}:1:pretrain") for v in ("iha", "global"))
    for path, kind, loss in ((one, "iha", 2.0), (two, "global", 2.5)):
        found = read_manifest(path)
        slice_ = {"variant": {"attention": {"kind": kind}}, "recipe": {"lr": 0.1}}
        write_manifest(path, found.model_copy(update={"slice": slice_, "facts": {**found.facts, "final_loss": loss}}))
    found = json.loads(run(capsys, "diff", "iha/seed1/pretrain", "global/seed1/pretrain", "--json"))
    assert found["config"] == {"variant.attention.kind": ["iha", "global"]}
    assert found["metrics"] == {"final_loss": [2.0, 2.5]}
    assert found["data"] == found["code"] == {}
    text = run(capsys, "diff", "iha/seed1/pretrain", str(two))
    assert re.search(r"variant.attention.kind +iha +global", text)
    assert "code: equal" in text
    assert "recipe.lr" in run(capsys, "diff", "iha/seed1/pretrain", str(two), "--all")


def test_diff_compares_streams_at_a_step_both_have(finished, capsys):
    path = finished / "results/smoke" / manifest_path("train:iha:1:pretrain")
    found = read_manifest(path)
    write_manifest(path, found.model_copy(update={"facts": {**found.facts, "data_digests": {"2": "aa", "6": "zz"}}}))
    other = ("global/seed1/pretrain", "--json")
    assert json.loads(run(capsys, "diff", "iha/seed1/pretrain", *other))["data"] == {}
    write_manifest(path, found.model_copy(update={"facts": {**found.facts, "data_digests": {"2": "xx", "6": "zz"}}}))
    assert json.loads(run(capsys, "diff", "iha/seed1/pretrain", *other))["data"] == {
        "stream up to step 2": ["xx", "aa"]
    }


def test_diff_of_evaluations_compares_their_rows(finished, capsys):
    found = json.loads(run(capsys, "diff", "iha/seed1/reasoning.sft", "diff/seed1/reasoning.sft", "--json"))
    assert found["metrics"]["gsm8k p1"] == [1.0, 0.75]
    assert set(found["data"]) == {"input model"}


def test_a_run_that_is_not_there_names_those_that_are(finished, capsys):
    said = fails(capsys, "diff", "iha/seed1/pretrain", "iha/seed9/pretrain")
    assert "run: 'iha/seed9/pretrain'; allowed: a manifest's path, or one of: diff/seed1/extend," in said


def test_files_between_commits_need_two_known_ones():
    assert changed_files("abc", "abc") == changed_files(None, "abc") == changed_files("0" * 40, "1" * 40) == []
