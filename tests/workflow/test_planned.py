"""The DAG before anything runs: both presets plan, and a wrong config is refused with one message."""

import os
import re
import subprocess
import sys

import pytest
import yaml
from dag import ROOT, checkout, planned, snakemake

from iha.planning.dag import STAGES


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return checkout(tmp_path_factory.mktemp("plan"))


def test_smoke_plans_every_stage_of_every_variant(folder):
    jobs = planned(snakemake(folder, "-n", config="configs/smoke.yaml"))
    assert jobs == {
        "tracking": 1, "flops": 1, "tokenizer": 1, "tokenise": 3, "items": 1, "contamination": 3, "ruler": 3,
        "pretrain": 5, "extend": 5, "sft": 5, "evaluate": 15, "synthetic_data": 1,
        "synthetic_train": 2, "synthetic_report": 1, "theory": 1, "report": 1,
    }  # fmt: skip


def test_smoke_is_the_default_and_presets_do_not_merge(folder):
    assert planned(snakemake(folder, "-n", config=None))["evaluate"] == 15
    both = snakemake(folder, "-n", "--configfile", "configs/smoke.yaml", "configs/paper.yaml", config=None, check=False)
    assert both.returncode != 0
    assert "presets do not merge" in both.stdout + both.stderr


def test_paper_plans_its_whole_dag(folder):
    jobs = planned(snakemake(folder, "-n", config="configs/paper.yaml"))
    assert jobs["pretrain"] == jobs["extend"] == jobs["sft"] == 5
    assert jobs["ruler"] == 5
    assert jobs["evaluate"] == 5 * (5 + 4 + 3)


def test_every_rule_states_its_resources_and_what_it_does():
    """From the rules themselves: a dry run prints no resources of a rule that has a message."""
    text = "\n".join(path.read_text() for path in sorted((ROOT / "workflow" / "rules").glob("*.smk")))
    rules = dict(re.findall(r"^rule (\w+):\n(.*?)(?=^\S|\Z)", text, re.S | re.M))
    assert set(rules) == set(STAGES)
    for rule, body in rules.items():
        for wanted in (r"^    resources:\n", r"^        mem_mb=\d+,$", r"^        runtime=\d+,$", r"^    message:\n"):
            assert re.search(wanted, body, re.M), (rule, wanted)


def test_every_rule_has_log_benchmark_and_one_shell_line():
    for path in (ROOT / "workflow" / "rules").glob("*.smk"):
        for name, body in re.findall(r"^rule (\w+):\n(.*?)(?=^\S|\Z)", path.read_text(), re.S | re.M):
            for directive in ("log:", "benchmark:", "resources:", "shell:"):
                assert directive in body, (path.name, name, directive)
            assert re.search(rf'shell:\n        command\("{name}"\)\n', body), (path.name, name)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"modle": {}}, ["modle", "unknown key", "did you mean model"]),
        ({"pretrain": {"lr": "fast"}}, ["pretrain.lr", "'fast'"]),
        ({"model": {"hidden_dim": 33, "n_heads": 2}}, ["model", "33", "multiple"]),
        ({"seeds": ["010"]}, ["seeds", "010"]),
        ({"runtime": {"tracking_uri": "./mlruns"}}, ["runtime.tracking_uri", "./mlruns", "sqlite:///"]),
        (
            {"data": {"pretrain": {"sources": [{"kind": "files", "paths": ["nowhere/*.jsonl"]}]}}},
            ["data.pretrain.sources.0.paths", "nowhere/*.jsonl", "matches no file"],
        ),
    ],
)
def test_a_wrong_config_is_one_message_before_any_job(folder, change, words):
    raw = yaml.safe_load((folder / "micro.yaml").read_text())
    (folder / "wrong.yaml").write_text(yaml.safe_dump({**raw, **change}))
    done = snakemake(folder, config="wrong.yaml", check=False)
    text = done.stdout + done.stderr
    assert done.returncode != 0
    assert "Traceback" not in text
    assert "wrong.yaml" in text
    for word in words:
        assert word in text, text
    assert not (folder / "results").exists()


def test_blanks_and_letters_in_paths_and_an_ascii_locale_do_not_matter(tmp_path):
    folder = checkout(tmp_path / "my proj\u00e9ct")
    (folder / "v env").symlink_to(sys.prefix)
    target = "results/micro/data/tokenizer.json"
    done = subprocess.run(
        [folder / "v env" / "bin" / "python", "-m", "snakemake", target, "--cores", "1", "--configfile", "micro.yaml"],
        check=False,
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "LC_ALL": "C",
            "PYTHONUTF8": "0",
            "PYTHONCOERCECLOCALE": "0",
        },
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr + (folder / "results/micro/logs/tokenizer.log").read_text()
    assert (folder / target).exists()
