"""`iha trace` and `iha diff` on a finished experiment of manifests and journals."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from reports import manifest, whole

from iha.artifacts.manifest import read_manifest, sha256_file, write_manifest
from iha.cli import main
from iha.config.load import load_config
from iha.report.compare import changed_files
from iha.report.experiment import Experiment, manifest_path
from iha.report.records import cells_of
from iha.report.trace import trace, trace_text
from iha.studies.separation import report as separation
from iha.tracking.metrics import MetricsFile

SMOKE = "experiment: smoke\nscale: smoke\n"
PRESET = Path(__file__).parents[2] / "configs" / "smoke.yaml"
TALLY = {"holds": 1, "holds with correction": 0, "fails as printed": 0}
STATEMENT = {
    "name": "superset", "kind": "theorem", "statement": "Every MHA layer is an IHA layer.", "verdict": "holds", "error": 1e-15,
    "printed_error": 1e-15, "measure": "largest difference", "source": "Theorem 2", "tried": "P = 1..4",
    "reason": "Copies.", "correction": None, "mends": None, "instead": None, "counterexample": None,
}  # fmt: skip


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
    (folder / "configs" / "smoke.yaml").write_text(SMOKE)
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
    assert set(found["chains"]) == {"seed 1", "seed 2"}
    links = [(link["what"], link["path"], link["state"]) for link in found["chains"]["seed 2"]]
    assert ("evaluation", "results/smoke/evals/iha/seed2/reasoning.sft.json", "ok") in links
    assert ("samples", "state/smoke/evals/iha/seed2/reasoning.sft.samples.jsonl.gz", "ok") in links
    assert ("training", "results/smoke/runs/iha/seed2/sft.json", "ok") in links
    assert ("training", "results/smoke/runs/iha/seed2/pretrain.json", "ok") in links
    assert ("text", "results/smoke/data/sft.json", "ok") in links
    (row,) = found["chains"]["seed 2"][0]["facts"]["rows"]
    assert (row["metric"], row["value"]) == ("maj16", 1.0)
    text = run(capsys, "trace", "table1:iha:gsm8k_maj16")
    assert text.startswith("table1:iha:gsm8k_maj16 = 100\n")
    assert "gsm8k maj16 = 1.0 over 4 items, synthetic" in text
    assert "CHANGED" not in text


def test_an_average_rank_stands_on_every_benchmark_of_its_table(finished, capsys):
    found = json.loads(run(capsys, "trace", "table2:iha:avg_rank", "--json"))
    rows = found["chains"]["seed 1"][0]["facts"]["rows"]
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
    journal = MetricsFile(finished / "state/smoke/runs/iha/seed1/sft/metrics.jsonl")
    journal.write("start", run={"tags": {"git.commit": "abc123", "git.dirty": "true"}})
    journal.close()
    assert "commit abc123+" in run(capsys, "trace", "table1:iha:gsm8k_p1")


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("a:b:c:d", "allowed: TABLE:ROW:COLUMN, such as table1:iha:gsm8k_maj16"),
        ("table1", "variant: is missing; allowed: diff, global,"),
        ("table1:iha", "column: is missing; allowed: avg_rank, gsm8k_gold_acc,"),
        ("ruler:iha:multikey.511", "(did you mean multikey.512?); allowed: 1024, 512, multikey.1024,"),
        ("claims:sft_rang:p_holm", "claim: 'sft_rang' (did you mean sft_rank?)"),
        ("table3:iha:gsm8k_p1", "table: 'table3' (did you mean table2?)"),
        ("table1:ihaa:gsm8k_p1", "variant: 'ihaa' (did you mean iha?); allowed: diff, global,"),
        ("table1:iha:gsm8k_maj4", "column: 'gsm8k_maj4' (did you mean gsm8k_maj16?)"),
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
        write_manifest(
            path, found.model_copy(update={"slice": slice_, "metadata": {**found.facts, "final_loss": loss}})
        )
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
    write_manifest(path, found.model_copy(update={"metadata": {**found.facts, "data_digests": {"2": "aa", "6": "zz"}}}))
    other = ("global/seed1/pretrain", "--json")
    assert json.loads(run(capsys, "diff", "iha/seed1/pretrain", *other))["data"] == {}
    write_manifest(path, found.model_copy(update={"metadata": {**found.facts, "data_digests": {"2": "xx", "6": "zz"}}}))
    assert json.loads(run(capsys, "diff", "iha/seed1/pretrain", *other))["data"] == {
        "stream up to step 2": ["xx", "aa"]
    }


def test_diff_of_evaluations_compares_their_rows(finished, capsys):
    found = json.loads(run(capsys, "diff", "iha/seed1/reasoning.sft", "diff/seed1/reasoning.sft", "--json"))
    assert found["metrics"]["gsm8k p1"] == [1.0, 0.75]
    assert set(found["data"]) == {"input model"}


def test_diff_of_paths_reads_the_journals_of_their_own_experiment(finished, capsys):
    """One place, three experiments: this one, another, and one whose state is gone."""
    for name, speed in (("smoke", 10.0), ("other", 30.0), ("gone", None)):
        if name != "smoke":
            shutil.copytree("results/smoke", f"results/{name}")
        if speed:
            journal = MetricsFile(Path(f"state/{name}/runs/iha/seed1/pretrain/metrics.jsonl"))
            journal.write("start", run={"tags": {"git.commit": f"c0{name}"}})
            journal.write("metrics", step=9, values={"step_seconds": 1.0, "tokens_per_second": speed})
            journal.close()
    ours, other, gone = (f"results/{name}/runs/iha/seed1/pretrain.json" for name in ("smoke", "other", "gone"))
    found = json.loads(run(capsys, "diff", ours, other, "--json"))
    assert found["code"] == {"commit": ["c0smoke", "c0other"]}
    assert found["metrics"] == {"tokens per second, median": [10.0, 30.0]}
    found = json.loads(run(capsys, "diff", "iha/seed1/pretrain", gone, "--json"))
    assert found["code"] == {"commit": ["c0smoke", None]}
    assert found["metrics"] == {"seconds in steps": [1.0, None], "tokens per second, median": [10.0, None]}
    shutil.copy(ours, "alone.json")
    assert json.loads(run(capsys, "diff", other, "alone.json", "--json"))["code"] == {"commit": ["c0other", None]}


def test_a_run_that_is_not_there_names_those_that_are(finished, capsys):
    said = fails(capsys, "diff", "iha/seed1/pretrain", "iha/seed9/pretrain")
    assert "run: 'iha/seed9/pretrain'; allowed: a manifest's path, or one of: diff/seed1/extend," in said


def test_files_between_commits_need_two_known_ones():
    assert changed_files("abc", "abc") == changed_files(None, "abc") == changed_files("0" * 40, "1" * 40) == []


class Named(HTMLParser):
    """The cells of all tables of a page: what is shown first in each, and its name for `iha trace`."""

    def __init__(self):
        super().__init__()
        self.cells, self.inside = [], False

    def handle_starttag(self, tag, attrs):
        self.inside = tag in ("td", "strong") and (self.inside or tag == "td")
        if tag == "td":
            self.cells.append(["", (dict(attrs).get("title") or "").removeprefix("iha trace ")])

    def handle_data(self, data):
        if self.inside:
            self.cells[-1][0] += data.strip()


def test_every_number_of_the_pages_tables_has_a_name_and_leads_to_what_it_was_made_from(finished):
    page = Named()
    page.feed((finished / "results/smoke/report/report.html").read_text())
    unnamed = {shown for shown, name in page.cells if not name and re.match(r"[-+<]?\s*\d", shown)}
    assert unnamed == set()
    names = {tuple(name.split(":")): shown for shown, name in page.cells if name}
    assert {table for table, _, _ in names} == {
        "table1", "table2", "ruler", "claims", "flops", "training", "plan",
    }  # fmt: skip
    experiment = Experiment.of(None)
    one_of_each = {(table, column): (row, shown) for (table, row, column), shown in names.items()}
    assert len(one_of_each) > 60
    for (table, column), (row, shown) in one_of_each.items():
        found = trace(experiment, f"{table}:{row}:{column}")
        links = [link for chain in found.chains.values() for link in chain]
        assert (found.value is None) == (shown == "–") or table == "plan", found.cell
        assert links or found.value in (None, "inconclusive"), found.cell
        assert {link.state for link in links} <= {"ok"}, found.cell
        assert trace_text(found).startswith(f"{found.cell} = ")


@pytest.mark.parametrize(
    ("cell", "files", "value"),
    [
        ("ruler:iha:vt.1024", ["evals/iha/seed1/ruler.long.json", "runs/iha/seed1/extend.json"], 70.0),
        ("ruler:iha:1024", ["evals/iha/seed2/ruler.long.json"], 55.0),
        ("depth:iha:512.3", ["evals/iha/seed1/ruler.long.json"], 50.0),
        ("positions:iha:end", ["evals/iha/seed1/ruler.long.json"], None),
        ("training:diff:extend.loss", ["runs/diff/seed1/extend.json", "runs/diff/seed1/extend/metrics.jsonl"], 2.9375),
        ("table1:items:gsm8k_p1", [f"evals/{v}/seed1/reasoning.sft.json" for v in ("global", "iha")], 4),
        ("claims:sft_gsm8k_p1:effect", [f"evals/{v}/seed1/reasoning.sft.json" for v in ("global", "iha")], 100.0),
        ("claims:sft_gsm8k_p1:paper", ["paper.yaml"], "+4.8"),
        ("flops:iha:steps", ["flops.json"], {"pretrain": 150, "extend": 10, "sft": 60}),
        ("contamination:sft:met", ["contamination/sft.json"], 1),
        ("items:mbpp:n", ["data/items.json"], 4),
        ("plan:pretrain:cpu_hours", ["config.json"], None),
    ],
)
def test_a_cell_of_each_kind_leads_to_its_files(finished, cell, files, value):
    found = trace(Experiment.of(None), cell)
    paths = [link.path for chain in found.chains.values() for link in chain]
    for file in files:
        assert any(path.endswith(f"/{file}") for path in paths), (file, paths)
    if value is not None:
        assert found.value == (pytest.approx(value) if isinstance(value, float) else value)
    assert json.dumps(found.data())


def test_a_long_trace_tells_once_what_all_of_it_shares(finished, capsys):
    text = run(capsys, "trace", "table1:items:gsm8k_p1")
    assert text.count("data/tokenizer.json") == 1
    assert text.index("all of them") < text.index("data/tokenizer.json")
    assert text.count("reasoning.sft.json") == 10


def test_configuration_and_digests_are_told(finished, capsys):
    flops = finished / "results/smoke/flops.json"
    write_manifest(
        flops, read_manifest(flops).model_copy(update={"slice": {"match": "flops", "model": {"n_heads": 4}}})
    )
    note = finished / "state/smoke/origins" / f"{sha256_file(flops)}.json"
    note.write_text(json.dumps({"stage": "flops", "commit": "abc123", "dirty": True}))
    text = run(capsys, "trace", "flops:iha:mismatch")
    assert re.search(r"  report .*\n +code c0de · commit \w+", text), "every stage notes its commit"
    assert "config match=flops" in text
    assert "commit abc123+" in text
    (link,) = json.loads(run(capsys, "trace", "flops:iha:mismatch", "--json"))["chains"]["every seed"]
    assert link["config"] == {"match": "flops", "model": {"n_heads": 4}}
    assert "corpus_sha256 1212" in run(capsys, "trace", "table1:iha:gsm8k_p1")


def test_an_experiment_of_one_part_alone_is_followed_too(finished, capsys):
    (finished / "results/smoke/report/report.json").unlink()
    point = {
        "task": "filters", "layer": "iha", "size": 4, "heads": 2, "pseudo_heads": 2, "needed": 2, "params": 9,
        "unexplained": [0.25, 0.5, 0.125], "floor": [None] * 3,
    }  # fmt: skip
    cells = cells_of(separation.tables({"points": [point], "open": []}, "smoke"))
    write_manifest(finished / "results/smoke/separation/separation.json", manifest("separation", {"cells": cells}))
    text = run(capsys, "trace", "separation:filters.iha.4.2:unexplained")
    assert text.startswith("separation:filters.iha.4.2:unexplained = 0.25\n")
    assert "results/smoke/separation/separation.json" in text
    assert "allowed: separation." in fails(capsys, "trace", "table1:iha:gsm8k_p1")


def test_a_report_of_an_earlier_version_is_said_to_be_one(finished, capsys):
    path = finished / "results/smoke/report/report.json"
    write_manifest(path, read_manifest(path).model_copy(update={"metadata": {"table1": {}}}))
    assert "of an earlier version" in fails(capsys, "trace", "table1:iha:gsm8k_p1")
