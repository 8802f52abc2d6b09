"""Key-value recall: the task, its jobs, a run that learns it, and the page."""

import math
import sys

import pytest
import torch
import yaml
from dag import checkout, planned, snakemake
from torch.utils.flop_counter import FlopCounterMode

from iha.artifacts.manifest import Manifest, read_manifest, write_manifest
from iha.config.load import load_config, parse_config
from iha.config.studies import RecallConfig
from iha.errors import ConfigError
from iha.model.transformer import build_model
from iha.studies.recall import report, train
from iha.studies.recall.grid import RecallReportSlice, recall_slice, runs, step_flops

TINY = {
    "experiment": "tiny",
    "goal": "recall",
    "scale": "smoke",
    "model": {"hidden_dim": 16, "n_layers": 2, "n_heads": 2, "ffn_dim": 32, "init_std": 0.12, "rope_theta": 1e4},
    "pretrain": {"seq_len": 8},
    "variants": [
        {"name": "global", "attention": {"kind": "global"}},
        {"name": "iha", "attention": {"kind": "iha", "pseudo_heads": 2, "period": 2}},
    ],
    "seeds": [0, 1],
    "recall": {"pairs": 1, "keys": 4, "batch": 16, "lrs": [1e-2], "warmup_steps": 5, "max_steps": 300, "target": 0.6},
}
CONFIG = parse_config(TINY)


def test_each_query_is_an_earlier_key_and_its_value_follows():
    recall = RecallConfig(pairs=3, keys=5)
    tokens = train.sequences(recall, 16, 50, torch.Generator().manual_seed(0))
    assert tokens.shape == (50, 16)
    for row in tokens.tolist():
        pairs = dict(zip(row[0:6:2], row[1:6:2], strict=True))
        assert len(pairs) == 3 and all(key < 5 <= value < 10 for key, value in pairs.items())
        assert all(pairs[key] == value for key, value in zip(row[6::2], row[7::2], strict=True))


def test_a_seed_stops_at_the_target_and_its_flops_are_those_of_its_steps():
    part = recall_slice(CONFIG, "iha", 1e-2)
    row = train.learn(part, 0)
    assert row == train.learn(part, 0), "equal bits every time"
    assert row["steps"] is not None and row["accuracy"] >= 0.6
    assert row["flops"] == row["steps"] * step_flops(part)
    short = part.model_copy(update={"recall": part.recall.model_copy(update={"max_steps": 3})})
    assert train.learn(short, 0)["steps"] is None and train.learn(short, 0)["flops"] is None


def test_the_price_of_a_step_is_at_most_what_torch_counts():
    """The ledger counts causal pairs, torch full squares."""
    part = recall_slice(CONFIG, "global", 1e-2)
    model = build_model(part.model, part.variant.attention, 8, 8, seed=0, backend="reference")
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        model(torch.zeros(16, 8, dtype=torch.long))
    assert 0.7 * counted.get_total_flops() < step_flops(part) / 3 <= counted.get_total_flops()


def rows(*flops):
    return [{"seed": i, "steps": f and f // 10, "flops": f, "accuracy": 0.9} for i, f in enumerate(flops)]


def test_a_ratio_is_geometric_paired_by_seed_and_absent_if_a_seed_is_censored():
    found = report.ratio(rows(100, 400), rows(200, 200))
    assert found[0] == pytest.approx(1.0) and found[1] < 1 < found[2]
    assert report.ratio(rows(50, 100), rows(100, 200))[0] == pytest.approx(0.5)
    assert math.isclose(*report.ratio(rows(50, 100), rows(100, 200))[1:])
    assert report.ratio(rows(50, None), rows(100, 200)) is None and report.ratio(rows(50), rows(100)) is None


def test_the_page_has_a_row_per_variant_and_rate(tmp_path, monkeypatch):
    results = {"global": rows(200, None), "iha": rows(100, 200)}
    pairs = []
    for name, of in results.items():
        part = recall_slice(CONFIG, name, 1e-2).model_dump(mode="json")
        write_manifest(tmp_path / name, Manifest(stage="recall_train", slice=part, code="c", metadata={"rows": of}))
        pairs.append(f"{name}-lr0.01={tmp_path / name}")
    out = tmp_path / "recall" / "recall.json"
    part = RecallReportSlice(scale="smoke", reference="global").model_dump_json()
    arguments = ["--slice", part, "--code", "c", "--output", str(out), "--state", str(tmp_path), "--experiment", "x"]
    monkeypatch.setattr(sys, "argv", ["x", *arguments, "--inputs", *pairs])
    report.main()
    made = read_manifest(out, "recall").metadata
    assert made["cells"]["recall"]["iha-lr0.01"] == {"solved": 2, "steps": 15.0, "flops": 150.0, "ratio": None}
    assert (tmp_path / made["fragment"]).is_file() and "3 of 4 runs" in made["summary"]
    assert len((out.parent / "recall.csv").read_text().splitlines()) == 5


def test_the_workflow_has_one_job_per_variant_and_rate(tmp_path):
    folder = checkout(tmp_path)
    (folder / "tiny.yaml").write_text(yaml.safe_dump({**TINY, "recall": {**TINY["recall"], "lrs": [1e-3, 1e-2]}}))
    assert planned(snakemake(folder, "-n", config="tiny.yaml")) == {"recall_train": 4, "recall": 1}
    assert len(runs(load_config(folder / "tiny.yaml"))) == 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"recall": None}, "recall is null with goal 'recall'"), ({"recall": {"pairs": 5, "keys": 4}}, "pairs is 5")],
)
def test_a_wrong_section_is_named(changes, words):
    with pytest.raises(ConfigError, match=words):
        parse_config({**TINY, **changes})
