"""One real run of the micro DAG, then what does and what does not rerun after it."""

import json
import re
import shutil
import subprocess

import pytest
from dag import BIN, ROOT, checkout, edit_config, planned, snakemake

from iha.artifacts.manifest import read_manifest, sha256_file

pytestmark = [pytest.mark.xdist_group("dag"), pytest.mark.slow]

TRAINING = {"pretrain", "extend", "sft"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder in which the micro DAG has run to the end."""
    folder = checkout(tmp_path_factory.mktemp("dag"))
    snakemake(folder)
    return folder


def test_the_dag_ends_in_tables_and_a_page(finished):
    report = finished / "results" / "micro" / "report"
    for name in ("report.json", "table1.md", "table2.md", "figure2.png", "flops.md", "report.html"):
        assert (report / name).stat().st_size > 100, name
    assert "smoke" in (report / "table1.md").read_text().lower()


def test_a_cell_can_be_traced(finished):
    command = [BIN / "iha", "trace", "table2:iha:avg_rank", "--config", "micro.yaml"]
    done = subprocess.run(command, cwd=finished, capture_output=True, text=True, check=True)
    for what in ("evaluation", "samples", "training", "checkpoint", "text", "items", "tokenizer"):
        assert f"  {what} " in done.stdout
    assert "CHANGED" not in done.stdout
    assert "MISSING" not in done.stdout


def test_every_variant_reads_the_same_text_along_the_extended_context(finished):
    evals = finished / "results" / "micro" / "evals"
    found = [read_manifest(evals / v / "seed1" / "ruler.long.json").facts["positions"] for v in ("global", "iha")]
    assert found[0]["tokens"] == found[1]["tokens"]
    assert all(one["unseen"] and one["length"] == 512 for one in found)
    assert found[0]["loss"] != found[1]["loss"]


def test_snakemakes_own_report_has_every_result_with_category_and_caption(finished):
    snakemake(finished, "--report", "report.html")
    text = (finished / "report.html").read_text()
    categories = json.loads(re.search(r"categories = (\{.*?\});?\n", text)[1])
    assert set(categories) == {"The page", "Claims", "Tables", "Figures"}
    paths = [path for groups in categories.values() for paths in groups.values() for path in paths]
    assert len(paths) >= 9
    for path in paths:
        entry = text[text.index(f'"{path}": {{"name"') :]
        labels, caption = re.search(r'"labels": \{"result": "([^"]+)"\}.*?"caption": "([^"]*)"', entry).groups()
        assert labels
        assert len(caption) > 100, f"{path} has no caption"
    assert not re.findall(r'(?:src|href)="https?://', text), "opens offline"


def test_every_manifest_names_its_parents_by_content(finished):
    results = finished / "results" / "micro"
    hashes = {sha256_file(p) for p in results.rglob("*.json") if "report" not in p.parts}
    checked = 0
    for variant in ("global", "iha"):
        for stage in sorted(TRAINING):
            manifest = read_manifest(results / "runs" / variant / "seed1" / f"{stage}.json", stage)
            assert manifest.parents
            assert set(manifest.parents.values()) <= hashes
            checked += 1
    assert checked == 6


def test_all_variants_saw_the_same_stream(finished):
    runs = finished / "results" / "micro" / "runs"
    for stage in ("extend", "sft"):
        facts = [read_manifest(runs / v / "seed1" / f"{stage}.json").facts for v in ("global", "iha")]
        if facts[0]["steps"] == facts[1]["steps"]:
            assert facts[0]["data_digest"] == facts[1]["data_digest"]


@pytest.mark.parametrize("seed", ["1", "2"])
def test_snk_04_a_second_run_has_nothing_to_do(finished, seed):
    assert planned(snakemake(finished, "-n", PYTHONHASHSEED=seed)) == {}


def test_snk_03_touching_a_small_manifest_reruns_nothing(finished):
    (finished / "results" / "micro" / "data" / "pretrain.json").touch()
    assert planned(snakemake(finished, "-n")) == {}


def test_snk_07_a_deleted_manifest_is_made_again(finished):
    path = finished / "results" / "micro" / "data" / "items.json"
    text = path.read_text()
    path.unlink()
    assert planned(snakemake(finished, "-n")).get("items") == 1
    path.write_text(text)


def test_snk_06_a_half_shard_is_refused_also_without_snakemakes_own_records(finished, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy, ignore=shutil.ignore_patterns(".snakemake", "src-*"))
    shard = copy / "state/micro/data/pretrain/shard_00000.ds"
    shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
    shutil.rmtree(copy / "state/micro/runs/global/seed1/pretrain")
    target = "results/micro/runs/global/seed1/pretrain.json"
    (copy / target).unlink()
    done = snakemake(copy, target, check=False)
    assert done.returncode != 0
    log = (copy / "results/micro/logs/pretrain-global-seed1.log").read_text()
    assert shard.name in log
    assert "Traceback" not in log
    assert not (copy / target).exists()


EVERYTHING_TRAINED = TRAINING | {"evaluate", "report"}
#: One key of each reach; that every key reaches its own stages only is asked in test_slices.py, without Snakemake.
KEYS = {
    "pretrain__lr": (1e-3, EVERYTHING_TRAINED),
    "extend__lr": (2e-4, {"extend", "evaluate", "report"}),
    "sft__lr": (2e-5, {"sft", "evaluate", "report"}),
    "tokenizer__train_bytes": (150000, EVERYTHING_TRAINED | {"tokenizer", "tokenise", "contamination", "ruler"}),
    "data__extend__max_tokens": (19000, {"tokenise", "contamination", "extend", "evaluate", "report"}),
    "evals__limit": (1, {"items", "contamination", "ruler", "evaluate", "report"}),
    "evals__ruler_samples": (1, {"ruler", "evaluate", "report"}),
    "match": ("tokens", {"flops", "extend", "sft", "evaluate", "report"}),
    "runtime__device": ("cpu", set()),
}


@pytest.mark.parametrize("key", sorted(KEYS))
def test_snk_02_a_config_key_reruns_its_rules_and_no_others(finished, key):
    value, rules = KEYS[key]
    jobs = planned(snakemake(finished, "-n", config=str(edit_config(finished, **{key: value}))))
    assert set(jobs) == rules


def _edited_source(folder, path, edit):
    """PYTHONPATH of a copy of the sources with one file changed."""
    target = folder / f"src-{path.replace('/', '-')}-{abs(hash(edit))}"
    shutil.copytree(ROOT / "src", target, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    file = target / "iha" / path
    file.write_text(edit(file.read_text()))
    return str(target)


def _comment(text):
    return text + "\n# a remark\n"


def _statement(text):
    return text + "\n_EDITED = 1\n"


@pytest.mark.parametrize(
    ("path", "edit", "rules"),
    [
        ("train/loop.py", _comment, set()),
        ("stages/ruler.py", _statement, {"ruler", "evaluate", "report"}),
        ("stages/sft.py", _statement, {"sft", "evaluate", "report"}),
        ("stages/report.py", _statement, {"report"}),
        ("attention/iha.py", _statement, EVERYTHING_TRAINED | {"theory"}),
    ],
)
def test_editing_code_reruns_what_can_reach_it(finished, path, edit, rules):
    done = snakemake(finished, "-n", PYTHONPATH=_edited_source(finished, path, edit))
    assert set(planned(done)) == rules
    if path == "attention/iha.py":
        assert planned(done)["pretrain"] == 1, "only the variant whose code changed"


def test_numbers_carry_their_source_and_count(finished):
    manifest = read_manifest(finished / "results/micro/evals/iha/seed1/words.sft.json", "evaluate")
    rows = manifest.facts["rows"]
    assert rows
    assert {row["source"] for row in rows} == {"synthetic"}
    assert all(row["n"] > 0 for row in rows)
    assert {"gold_nll", "gold_acc"} <= {row["metric"] for row in rows}


def test_the_runs_are_read_back_through_mlflow(finished):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{finished}/mlflow.db")
    (experiment,) = [e for e in client.search_experiments() if e.name == "micro"]
    runs = client.search_runs([experiment.experiment_id], max_results=100)
    tags = {(r.data.tags.get("variant"), r.data.tags.get("stage")): r for r in runs}
    for variant in ("global", "iha"):
        run = tags[variant, "pretrain"]
        assert run.info.status == "FINISHED"
        assert run.data.params["recipe.steps"] or run.data.params
        assert len(client.get_metric_history(run.info.run_id, "loss")) >= 10
        parent = client.get_run(run.data.tags["mlflow.parentRunId"])
        assert parent.data.tags["iha.key"] == f"{variant}/seed1"
        experiment_run = client.get_run(parent.data.tags["mlflow.parentRunId"])
        assert "mlflow.parentRunId" not in experiment_run.data.tags


def test_manifests_hold_no_machine_paths(finished):
    for path in (finished / "results" / "micro").rglob("*.json"):
        assert str(finished) not in path.read_text(), path
        json.loads(path.read_text())
