"""One real run of the micro DAG, then what does and what does not rerun after it."""

import json
import os
import re
import shutil
import subprocess
from collections import Counter

import pytest
import settings
from dag import BIN, ROOT, checkout, planned, snakemake

from iha.artifacts.manifest import read_manifest, sha256_file
from iha.config.load import load_config, parse_config
from iha.planning import dag

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
    for name in ("report.json", "table1.md", "table2.md", "compare.md", "loss.png", "flops.md", "report.html"):
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
    found = [read_manifest(evals / v / "seed1" / "ruler.long.json").metadata["positions"] for v in ("global", "iha")]
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
        facts = [read_manifest(runs / v / "seed1" / f"{stage}.json").metadata for v in ("global", "iha")]
        if facts[0]["steps"] == facts[1]["steps"]:
            assert facts[0]["data_digest"] == facts[1]["data_digest"]


def test_a_second_run_has_nothing_to_do_whatever_the_hash_seed_and_the_times_of_manifests(finished):
    (finished / "results" / "micro" / "data" / "pretrain.json").touch()
    assert planned(snakemake(finished, "-n", PYTHONHASHSEED="2")) == {}


def test_a_deleted_manifest_is_written_again(finished):
    path = finished / "results" / "micro" / "data" / "items.json"
    text = path.read_text()
    path.unlink()
    assert planned(snakemake(finished, "-n")).get("items") == 1
    path.write_text(text)


def test_a_damaged_file_stops_the_job_that_reads_it_and_the_next_start_writes_it_again(finished, tmp_path):
    """Also without Snakemake's own records: the size stays, so only the digest shows it."""
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy, ignore=shutil.ignore_patterns(".snakemake", "src-*"))
    shard, target = copy / "state/micro/data/pretrain/shard_00000.ds", "results/micro/runs/global/seed1/pretrain.json"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    shutil.rmtree(copy / "state/micro/runs/global/seed1/pretrain")
    before = read_manifest(copy / target)
    (copy / target).unlink()
    done = snakemake(copy, target, check=False)
    assert done.returncode != 0
    log = (copy / "results/micro/logs/pretrain-global-seed1.log").read_text()
    assert shard.name in log
    assert "Traceback" not in log
    assert not (copy / target).exists()
    assert planned(snakemake(copy, "-n", target)) == {"tokenise": 1, "pretrain": 1}
    snakemake(copy, target)
    assert shard.read_bytes() == whole
    assert read_manifest(copy / target).metadata["weights_sha256"] == before.metadata["weights_sha256"]


BASE = load_config(ROOT / "tests" / "configs" / "micro.yaml")
#: Keys that move every path, that this machine cannot change, or whose section the config has not.
PLACES = {"experiment", "runtime.results_dir", "tokenizer.kind", "synthetic", "separation", "recall"}


def _groups():
    """Keys by the stages that they declare, if these are few: what several declare is the union."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for key, _, stages in settings.keys(BASE):
        if key not in PLACES and len(stages) <= 1:
            groups.setdefault(tuple(sorted(stages)), []).append(key)
    return groups


def _changed(keys):
    config = BASE
    for key, value, _ in [*settings.keys(config)]:
        changes = settings.other(config, key, value) if key in keys else None
        if changes is not None:
            config = parse_config(settings.changed(config, changes))
    return config


def _affected(config):
    """Jobs whose slice differs from the base's, and all that read their results: by stage."""
    before, after, affected = dag.jobs(BASE), dag.jobs(config), set()
    for path, job in after.items():
        if job.slice != before[path].slice or not affected.isdisjoint(job.inputs.values()):
            affected.add(path)
    return dict(Counter(after[path].stage for path in affected))


@pytest.mark.parametrize("stages", sorted(_groups()), ids="-".join)
def test_the_keys_of_a_stage_rerun_it_and_what_reads_its_results_and_nothing_else(finished, stages):
    """New keys are among them by themselves; that each alone reaches its stages is tested in test_slices.py."""
    config = _changed(_groups()[stages])
    (finished / "changed.yaml").write_text(config.model_dump_json())
    affected = _affected(config)
    assert bool(affected) == bool(stages)
    assert planned(snakemake(finished, "-n", config="changed.yaml")) == affected


def test_without_snakemakes_records_the_same_jobs_run(finished, tmp_path):
    config, records = _changed(["pretrain.lr"]), finished / ".snakemake"
    (finished / "changed.yaml").write_text(config.model_dump_json())
    aside = records.rename(tmp_path / "records")
    for manifest in (finished / "results").rglob("*.json"):
        os.utime(manifest, (manifest.stat().st_size,) * 2)  # as copied in any order
    try:
        assert planned(snakemake(finished, "-n")) == {}
        done = snakemake(finished, "-n", config="changed.yaml")
        assert planned(done) == _affected(config)
        assert "recipe.lr" in done.stderr
    finally:
        shutil.rmtree(records, ignore_errors=True)
        aside.rename(records)


def test_a_deleted_table_is_written_again(finished):
    table = finished / "results" / "micro" / "report" / "table1.md"
    text = table.read_text()
    table.unlink()
    try:
        assert planned(snakemake(finished, "-n")) == {"report": 1}
    finally:
        table.write_text(text)


def _edited_source(folder, edits):
    """PYTHONPATH of a copy of the sources with a line added to some files."""
    target = folder / f"src-{len(edits)}-{'-'.join(edits).replace('/', '-')}"
    shutil.copytree(ROOT / "src", target, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for path, line in edits.items():
        file = target / "iha" / path
        file.write_text(f"{file.read_text()}\n{line}\n")
    return str(target)


NOTHING = {"train/loop.py": "# a remark", "tracking/__init__.py": "_EDITED = 1", "artifacts/progress.py": "_EDITED = 1"}


@pytest.mark.parametrize(
    ("edits", "rules"),
    [
        (NOTHING, {}),
        ({"stages/ruler.py": "_EDITED = 1"}, {"ruler": 1, "evaluate": 2, "report": 1}),
        (
            {"model/attention/iha.py": "_EDITED = 1"},
            {"pretrain": 1, "extend": 1, "sft": 1, "evaluate": 3, "theory": 1, "report": 1},
        ),
    ],
)
def test_editing_code_reruns_what_can_reach_it(finished, edits, rules):
    """Comments, and what cannot change a number, rerun nothing; a variant's code reruns that variant alone."""
    assert planned(snakemake(finished, "-n", PYTHONPATH=_edited_source(finished, edits))) == rules


def test_numbers_carry_their_source_and_count(finished):
    manifest = read_manifest(finished / "results/micro/evals/iha/seed1/words.sft.json", "evaluate")
    rows = manifest.metadata["rows"]
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
