"""`iha trace` and `iha diff` on a finished experiment of manifests and journals."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reports import manifest, whole

from iha.artifacts.manifest import read_manifest, sha256_file, write_json, write_manifest
from iha.cli import main
from iha.config.load import load_config
from iha.errors import UserError
from iha.report.diff import changed_files
from iha.report.results import Experiment, choose, manifest_path
from iha.report.trace import trace, trace_text
from iha.tracking.metrics import MetricsFile

PRESET = Path(__file__).parents[2] / "configs" / "smoke.yaml"


@pytest.fixture(scope="module")
def whole_report(tmp_path_factory):
    """A folder with results/smoke, state/smoke and the config that names them."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        world = whole(Path("state/smoke"), seeds=(1, 2))
        world.everything()
        text = {"corpus_sha256": "12" * 32, "n_tokens": 7}
        world.inputs["data:sft"] = manifest("tokenise", text, {"data": {"sources": []}})
        search = {"hits": [{"item": "gsm8k/1"}], "checked": 16, "too_short": 2, "n_words": 13}
        world.inputs["contamination:sft"] = manifest("contamination", search)
        (world.state / "config.json").write_text(json.dumps(load_config(PRESET).model_dump(mode="json")))
        world.lay_out(Path("results/smoke"))
    (folder / "configs").mkdir()
    (folder / "configs" / "smoke.yaml").write_text("experiment: smoke\nscale: smoke\n")
    return folder


@pytest.fixture
def finished(whole_report, tmp_path, monkeypatch):
    """A copy to work in."""
    folder = tmp_path / "copy"
    shutil.copytree(whole_report, folder)
    monkeypatch.chdir(folder)
    return folder


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
    links = [(link["what"], link["path"], link["state"]) for link in found["links"]]
    for seed in (1, 2):
        assert ("evaluation", f"results/smoke/evals/iha/seed{seed}/reasoning.sft.json", "ok") in links
        assert ("samples", f"state/smoke/evals/iha/seed{seed}/reasoning.sft.samples.jsonl.gz", "ok") in links
        assert ("training", f"results/smoke/runs/iha/seed{seed}/sft.json", "ok") in links
        assert ("training", f"results/smoke/runs/iha/seed{seed}/pretrain.json", "ok") in links
    assert ("text", "results/smoke/data/sft.json", "ok") in links
    assert not any("ruler" in path or "global" in path or "base.json" in path for _, path, _ in links)
    (row,) = next(link for link in found["links"] if link["what"] == "evaluation")["metadata"]["rows"]
    assert (row["metric"], row["value"]) == ("maj16", 1.0)
    text = run(capsys, "trace", "table1:iha:gsm8k_maj16")
    assert text.startswith("table1:iha:gsm8k_maj16 = 100\n")
    assert "gsm8k maj16 = 1.0 over 4 items, synthetic" in text
    assert "CHANGED" not in text


def test_every_cell_of_the_report_recorded_its_inputs(finished):
    report = read_manifest(finished / "results/smoke/report/report.json")
    cells = report.metadata["cells"]
    names = {f"{t}:{r}:{c}": x for t, rows in cells.items() for r, columns in rows.items() for c, x in columns.items()}
    sources = report.metadata["sources"]
    assert set(sources) == set(names)
    bare = {n.partition(":")[0] for n, x in names.items() if x is not None and not sources[n]["inputs"]}
    assert bare <= {"plan", "claims"}, "prices come from the configuration, some claims were not tested"
    assert all(name in report.parents for source in sources.values() for name in source["inputs"])
    assert all(compared in names for source in sources.values() for compared in source.get("compared", []))


def test_an_average_rank_is_of_every_benchmark_of_its_table(finished, capsys):
    found = json.loads(run(capsys, "trace", "table2:iha:avg_rank", "--json"))
    rows = next(link for link in found["links"] if link["what"] == "evaluation")["metadata"]["rows"]
    assert {row["benchmark"] for row in rows} == {"gsm8k", "math500", "mbpp", "humaneval"}
    assert "table2:global:avg_rank" in found["compared"]
    assert "vt at 1024 official = 0.7" in run(capsys, "trace", "ruler:iha:overall")
    assert "vt at" not in run(capsys, "trace", "ruler:iha:multikey.1024")


@pytest.mark.parametrize(
    ("cell", "kinds"),
    [
        ("claims:sft_gsm8k_p1:p_holm", {"evaluation", "training"}), ("flops:iha:parameters", {"ledger"}),
        ("training:iha:sft.loss", {"training", "journal"}), ("compare:iha:loss", {"training"}),
        ("depth:iha:512.3", {"evaluation"}), ("ruler:iha:vt.512", {"evaluation"}),
    ],
)  # fmt: skip
def test_cells_of_every_kind_lead_to_their_inputs(finished, cell, kinds):
    found = trace(Experiment(Path("results/smoke"), Path("state/smoke")), cell)
    assert kinds <= {link.what for link in found.links}
    assert trace_text(found).startswith(f"{cell} = ")


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


def test_a_parent_that_no_input_has_any_more_is_named_by_its_role(finished, capsys):
    results, name = finished / "results/smoke", "eval:iha:1:ruler:long"
    path = results / manifest_path(name)
    suite = read_manifest(path)
    write_manifest(path, suite.model_copy(update={"parents": {**suite.parents, "model": "0" * 64}}))
    report = read_manifest(results / "report/report.json")
    parents = {**report.parents, name: sha256_file(path)}
    write_manifest(results / "report/report.json", report.model_copy(update={"parents": parents}))
    assert re.search(
        r"model of eval:iha:1:ruler:long: changed since  sha256 0+  CHANGED", run(capsys, "trace", "ruler:iha:512")
    )


def test_the_commit_comes_from_the_journal_or_the_record_of_the_stage(finished, capsys):
    journal = MetricsFile(finished / "state/smoke/runs/iha/seed1/sft/metrics.jsonl")
    journal.write("start", run={"tags": {"git.commit": "abc123", "git.dirty": "true"}})
    journal.close()
    assert "commit abc123+" in run(capsys, "trace", "table1:iha:gsm8k_p1")
    path = finished / "results/smoke" / manifest_path("train:iha:1:sft")
    write_json(finished / f"state/smoke/origins/{sha256_file(path)}.json", {"commit": "def456", "dirty": False})
    assert "commit def456\n" in run(capsys, "trace", "table1:iha:gsm8k_p1")


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("a:b:c:d", ("'a:b:c:d'", "TABLE:ROW:COLUMN")), ("table1", ("row", "required", "diff, global,")),
        ("table1:iha", ("column", "required", "avg_rank")), ("ruler:iha:multikey.511", ("did you mean multikey.512?",)),
        ("claims:sft_rang:p_holm", ("'sft_rang'", "did you mean sft_rank?")), ("table3:iha:gsm8k_p1", ("'table3'", "table2")),
        ("table1:iha:gsm8k_maj4", ("'gsm8k_maj4'", "did you mean gsm8k_maj16?")),
    ],
)  # fmt: skip
def test_a_cell_that_is_not_there_names_those_there_are(finished, capsys, cell, words):
    printed = fails(capsys, "trace", cell)
    assert all(word in printed for word in words)


def test_without_a_report_the_error_says_what_to_run(finished, capsys):
    (finished / "results/smoke/report/report.json").unlink()
    assert "run snakemake" in fails(capsys, "trace", "table1:iha:gsm8k_p1")
    (finished / "configs/smoke.yaml").unlink()
    assert "configs/smoke.yaml" in fails(capsys, "trace", "table1:iha:gsm8k_p1")


@given(st.text(max_size=12), st.lists(st.text(min_size=1, max_size=12), max_size=5))
def test_a_choice_is_taken_or_refused_with_what_is_allowed(given_, allowed):
    if given_ in allowed:
        assert choose("what", given_, allowed) == given_
        return
    with pytest.raises(UserError) as caught:
        choose("what", given_, allowed)
    assert all(name in str(caught.value) for name in allowed)


def test_diff_shows_what_differs(finished, capsys):
    one, two = (finished / "results/smoke" / manifest_path(f"train:{v}:1:pretrain") for v in ("iha", "global"))
    for path, kind, loss in ((one, "iha", 2.0), (two, "global", 2.5)):
        found = read_manifest(path)
        slice_ = {"variant": {"attention": {"kind": kind}}, "recipe": {"lr": 0.1}}
        write_manifest(
            path, found.model_copy(update={"slice": slice_, "metadata": {**found.metadata, "final_loss": loss}})
        )
    found = json.loads(run(capsys, "diff", "iha/seed1/pretrain", "global/seed1/pretrain", "--json"))
    assert found["config"] == {"variant.attention.kind": ["iha", "global"]}
    assert found["metrics"] == {"final_loss": [2.0, 2.5]}
    assert found["data"] == found["code"] == {}
    text = run(capsys, "diff", "iha/seed1/pretrain", str(two))
    assert re.search(r"variant.attention.kind +iha +global", text)
    assert re.search(r"final_loss +2 +2.5 +\+0.5", text)
    assert "code: equal" in text
    assert "recipe.lr" in run(capsys, "diff", "iha/seed1/pretrain", str(two), "--all")


def test_diff_compares_the_order_of_the_data_at_a_step_both_have(finished, capsys):
    path = finished / "results/smoke" / manifest_path("train:iha:1:pretrain")
    found = read_manifest(path)
    other = ("global/seed1/pretrain", "--json")
    for digest, expected in (("aa", {}), ("xx", {"data up to step 2": ["xx", "aa"]})):
        metadata = {**found.metadata, "data_digests": {"2": digest, "6": "zz"}}
        write_manifest(path, found.model_copy(update={"metadata": metadata}))
        assert json.loads(run(capsys, "diff", "iha/seed1/pretrain", *other))["data"] == expected


def test_diff_of_evaluations_compares_their_rows(finished, capsys):
    found = json.loads(run(capsys, "diff", "iha/seed1/reasoning.sft", "diff/seed1/reasoning.sft", "--json"))
    assert found["metrics"]["gsm8k p1"] == [1.0, 0.75]
    assert set(found["data"]) == {"input model"}


def test_diff_of_paths_reads_the_journals_of_their_own_experiment(finished, capsys):
    shutil.copytree("results/smoke", "results/other")
    shutil.copytree("state/smoke", "state/other")
    journal = MetricsFile(Path("state/other/runs/iha/seed1/sft/metrics.jsonl"))
    journal.write("metrics", step=9, values={"step_seconds": 2.0, "tokens_per_second": 7.0})
    journal.close()
    paths = [f"results/{e}/runs/iha/seed1/sft.json" for e in ("smoke", "other")]
    found = json.loads(run(capsys, "diff", *paths, "--json"))
    assert found["metrics"] == {"seconds in steps": [None, 2.0], "tokens per second, median": [None, 7.0]}


def test_a_run_that_is_not_there_names_those_there_are(finished, capsys):
    printed = fails(capsys, "diff", "iha/seed1/sfd", "global/seed1/sft")
    assert "'iha/seed1/sfd' (did you mean iha/seed1/sft?)" in printed and "global/seed1/pretrain" in printed


def test_files_changed_between_commits_need_two_commits_that_git_knows():
    assert changed_files(None, "abc") == changed_files("abc", "abc") == changed_files("no-such", "commit") == []


def test_every_input_has_a_place():
    assert manifest_path("train:iha:2:extend") == "runs/iha/seed2/extend.json"
    assert manifest_path("eval:iha:2:ruler:long") == "evals/iha/seed2/ruler.long.json"
    with pytest.raises(KeyError):
        manifest_path("nothing:1")
