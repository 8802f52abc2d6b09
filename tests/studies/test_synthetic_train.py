"""Training runs: padding and grouping are exact, a killed run resumes bit for bit, and every stop says why."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from iha.config.studies import Examples, RelationBudget, RelationModel, RelationRecipe, RelationTask, SyntheticConfig
from iha.errors import CheckpointError
from iha.studies.relations.batches import Shelf, batch_ids
from iha.studies.relations.folders import PROGRESS
from iha.studies.relations.model import build
from iha.studies.relations.score import evaluate, summed_loss
from iha.studies.relations.shapes import data_slice, runs, train_slice
from iha.studies.relations.tasks import make
from iha.studies.relations.train import begun_with, train

CPU = torch.device("cpu")


def config(**changes):
    base = {
        "tasks": (RelationTask(name="small", hops=2, min_size=2, max_size=4, density=0.4),),
        "models": (
            RelationModel(name="mha", attention="mha"),
            RelationModel(name="iha", attention="iha", pseudo_heads=2),
            RelationModel(name="simplicial", attention="simplicial"),
        ),
        "examples": Examples(train=60, validation=30, test=30),
        "hidden_dim": 8,
        "n_heads": 2,
        "recipe": RelationRecipe(batch=16),
        "budget": RelationBudget(epochs=3),
        "seeds": (0, 1),
    }
    return SyntheticConfig(**{**base, **changes})


CONFIG = config()
SPLITS = make(data_slice(CONFIG, "small"))


def part_of(name="iha", lr=1e-2, seed=0, of=CONFIG):
    return train_slice(of, "small", name, lr, seed)


def run(part, folder, **options):
    return train(part, SPLITS, folder, begun_with=begun_with(part, {"train": "ab"}), code="c0de", **options)


def without_clock(facts):
    return {**facts, "best": None, "history": [{k: v for k, v in e.items() if k != "cpu_s"} for e in facts["history"]]}


@pytest.mark.parametrize("name", ["mha", "iha", "simplicial"])
def test_one_padded_batch_and_groups_of_equal_size_are_the_same_loss_and_gradient(name):
    part = part_of(name)
    ids = batch_ids(60, 16, 0, 1)
    found = []
    for padded in (False, True):
        shelf, model = Shelf(SPLITS["train"], part.shape, CPU, padded), build(part.shape, 0)
        loss = sum(summed_loss(model, group) for group in shelf.groups(ids)) / shelf.cells_of(ids)
        loss.backward()
        found.append((loss.detach(), [p.grad for p in model.parameters()]))
        assert len(list(shelf.groups(ids))) == (1 if padded else 3)
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-5, atol=1e-6)
    for one, two in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-6)
    scores = [evaluate(model, Shelf(SPLITS["test"], part.shape, CPU, padded)) for padded in (False, True)]
    assert scores[0]["by_size"] == scores[1]["by_size"]


def test_an_epoch_holds_every_example_once_whatever_the_model():
    seen = np.concatenate([batch_ids(60, 16, 3, step) for step in range(4)])
    assert sorted(seen.tolist()) == list(range(60))
    assert batch_ids(60, 16, 3, 4).tolist() != batch_ids(60, 16, 3, 0).tolist()
    assert batch_ids(60, 16, 4, 0).tolist() != batch_ids(60, 16, 3, 0).tolist()


def test_evaluation_is_over_cells_and_per_size():
    part = part_of()
    model, shelf = build(part.shape, 0), Shelf(SPLITS["test"], part.shape, CPU)
    found = evaluate(model, shelf)
    weights = {m: int((SPLITS["test"].sizes == m).sum()) * m * m for m in (2, 3, 4)}
    mean = sum(found["by_size"][str(m)] * w for m, w in weights.items()) / sum(weights.values())
    assert found["accuracy"] == pytest.approx(mean)


def test_a_run_learns_and_reports_how_far_it_went(tmp_path):
    facts = run(part_of(of=config(budget=RelationBudget(epochs=12))), tmp_path)
    assert facts["stopped"] in ("epochs", "patience")
    assert facts["history"][-1]["train_loss"] < facts["history"][0]["train_loss"] - 0.02
    assert facts["best"]["validation"]["accuracy"] == max(e["validation"]["accuracy"] for e in facts["history"])
    assert json.loads((tmp_path / PROGRESS).read_text()) == facts
    assert (tmp_path / "final" / "model.safetensors").exists()


def test_resumed_runs_are_bit_for_bit_those_that_never_stopped(tmp_path):
    part = part_of()
    whole = run(part, tmp_path / "whole")
    left = iter([True, False])
    first = run(part, tmp_path / "cut", go_on=lambda: next(left))
    assert (first["stopped"], len(first["history"])) == (None, 1)
    second = run(part, tmp_path / "cut")
    assert without_clock(second) == without_clock(whole)
    name = "final/model.safetensors"
    assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


SCRIPT = """
import sys, time
sys.path.insert(0, sys.argv[1])
import test_synthetic_train as t
from pathlib import Path
def go_on():
    if len(list((Path(sys.argv[2]) / "checkpoints").glob("step_*"))) >= 2:
        print("two", flush=True)
        time.sleep(60)
    return True
t.run(t.part_of(), Path(sys.argv[2]), go_on=go_on)
"""


def test_a_run_survives_kill_9(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(Path(__file__).parent), str(tmp_path / "killed")], stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"two\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    facts = run(part_of(), tmp_path / "killed")
    assert without_clock(facts) == without_clock(run(part_of(), tmp_path / "whole"))


def test_patience_ends_a_run_and_a_larger_budget_goes_on(tmp_path):
    still = config(recipe=RelationRecipe(batch=16, patience=2), budget=RelationBudget(epochs=50))
    facts = run(part_of(lr=1e-9, of=still), tmp_path / "still")
    assert (facts["stopped"], len(facts["history"])) == ("patience", 3)
    short = run(part_of(of=config(budget=RelationBudget(epochs=1))), tmp_path / "more")
    assert (short["stopped"], len(short["history"])) == ("epochs", 1)
    longer = run(part_of(), tmp_path / "more")
    assert len(longer["history"]) == 3
    assert without_clock(longer) == without_clock(run(part_of(), tmp_path / "straight"))


def test_cpu_seconds_end_a_run_after_a_validation(tmp_path):
    of = config(budget=RelationBudget(cpu_seconds=1e-6), recipe=RelationRecipe(batch=16, evals_per_epoch=2))
    facts = run(part_of(of=of), tmp_path)
    assert (facts["stopped"], [e["epoch"] for e in facts["history"]]) == ("cpu_seconds", [0.5])


def test_an_unfinished_run_of_something_else_is_refused(tmp_path):
    run(part_of(), tmp_path, go_on=iter((True, False)).__next__)
    with pytest.raises(CheckpointError, match=r"hidden_dim: 8 -> 16"):
        run(part_of(of=config(hidden_dim=16)), tmp_path)


def test_the_grid_is_balanced_at_its_front():
    grid = runs(config(lrs=(1e-3, 1e-4)))
    assert len(grid) == len(set(grid)) == 3 * 2 * 2
    assert [(model, lr, seed) for _, model, lr, seed in grid[:4]] == [
        ("mha", 1e-3, 0), ("iha", 1e-3, 0), ("simplicial", 1e-3, 0), ("mha", 1e-3, 1),
    ]  # fmt: skip
