"""Runs of the grid: when they are validated, which weights are tested, what a second start finds."""

import json
import time

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from iha.artifacts.manifest import read_manifest
from iha.config.studies import Examples, RelationBudget, RelationModel, RelationRecipe, RelationTask, SyntheticConfig
from iha.errors import CheckpointError, ConfigError
from iha.studies.relations import grid as command
from iha.studies.relations.batches import Shelf
from iha.studies.relations.folders import PROGRESS, data_manifest, run_folder, run_manifest
from iha.studies.relations.grid import Grid
from iha.studies.relations.model import build
from iha.studies.relations.score import evaluate
from iha.studies.relations.shapes import data_slice, runs, train_slice
from iha.studies.relations.tasks import make
from iha.studies.relations.train import State, Trainer, begun_with, train

TASK = RelationTask(name="small", hops=2, min_size=2, max_size=3, density=0.4)


def config(**changes):
    base = {"tasks": (TASK,), "models": (RelationModel(name="mha", attention="mha"),), "hidden_dim": 8, "n_heads": 2,
            "examples": Examples(train=50, validation=20, test=20), "recipe": RelationRecipe(batch=13),
            "budget": RelationBudget(epochs=2), "lrs": (1e-2,), "seeds": (0,)}  # fmt: skip
    return SyntheticConfig(**{**base, **changes})


SPLITS = make(data_slice(config(), "small"))


def part_of(lr=1e-2, **changes):
    return train_slice(config(**changes), "small", "mha", lr, 0)


def start(part, folder, code="c", **options):
    return train(part, SPLITS, folder, begun_with=begun_with(part, {"train": "ab"}), code=code, **options)


@pytest.mark.parametrize(
    ("evals", "epochs"),
    [(1, [1.0, 2.0]), (2, [0.5, 1.0, 1.5, 2.0]), (3, [0.5, 0.75, 1.0, 1.5, 1.75, 2.0]),
     (9, [0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0])],
)  # fmt: skip
def test_validations_divide_an_epoch_as_evenly_as_its_updates_allow(tmp_path, evals, epochs):
    """50 examples in batches of 13: four updates an epoch."""
    facts = start(part_of(recipe=RelationRecipe(batch=13, evals_per_epoch=evals)), tmp_path)
    assert [e["epoch"] for e in facts["history"]] == epochs
    assert [e["steps"] for e in facts["history"]] == [4 * e for e in epochs]


def test_the_weights_that_are_tested_are_those_of_the_first_best_validation(tmp_path):
    """At a rate far too high the accuracy jumps about, so the best weights are not the last."""
    part = part_of(lr=0.5, budget=RelationBudget(epochs=8))
    facts = start(part, tmp_path)
    scores = [e["validation"]["accuracy"] for e in facts["history"]]
    best = scores.index(max(scores))
    assert best < len(scores) - 1 and facts["best"] == facts["history"][best]
    model = build(part.shape, 0)
    model.load_state_dict(load_file(tmp_path / "final" / "model.safetensors"), strict=True)
    cpu = torch.device("cpu")
    assert evaluate(model, Shelf(SPLITS["test"], part.shape, cpu)) == facts["test"]
    assert evaluate(model, Shelf(SPLITS["validation"], part.shape, cpu)) == facts["best"]["validation"]


@pytest.mark.parametrize(
    ("accuracies", "best"), [([], -1), ([0.5], 0), ([0.5, 0.7, 0.7], 1), ([0.7, 0.7, 0.6], 0), ([0.1, 0.2, 0.3], 2)]
)
def test_the_first_best_validation_is_the_best(accuracies, best):
    assert State(history=[{"validation": {"accuracy": a}} for a in accuracies]).best == best


@pytest.mark.parametrize(
    ("after_best", "step", "cpu_s", "why"),
    [(3, 4, 0.0, None), (4, 4, 0.0, "patience"), (0, 99, 0.0, None), (0, 100, 0.0, "epochs"), (0, 4, 4.99, None),
     (0, 4, 5.0, "cpu_seconds"), (4, 100, 9.0, "patience")],
)  # fmt: skip
def test_a_run_ends_at_its_limits_and_not_before(tmp_path, after_best, step, cpu_s, why):
    """Patience 2 epochs of two validations, 25 epochs of four updates, 5 CPU-seconds."""
    recipe = RelationRecipe(batch=13, patience=2, evals_per_epoch=2)
    trainer = Trainer(
        part_of(recipe=recipe, budget=RelationBudget(epochs=25, cpu_seconds=5.0)), SPLITS, tmp_path, "cpu"
    )
    history = [{"validation": {"accuracy": 0.9}}] + [{"validation": {"accuracy": 0.9}}] * after_best
    trainer.state = State(step=step, cpu_s=cpu_s, history=history)
    assert trainer.stopped() == why


def test_only_the_leading_examples_are_validated_when_asked(tmp_path):
    few = part_of(recipe=RelationRecipe(batch=13, validation_examples=6))
    trainer = Trainer(few, SPLITS, tmp_path, "cpu")
    assert len(trainer.shelves["validation"]) == 6 and len(trainer.shelves["train"]) == 50
    assert trainer.shelves["validation"].sizes.tolist() == SPLITS["validation"].sizes[:6].tolist()
    many = part_of(recipe=RelationRecipe(batch=13, validation_examples=999))
    assert len(Trainer(many, SPLITS, tmp_path, "cpu").shelves["validation"]) == 20


def test_an_update_is_adamw_on_the_mean_over_the_cells_of_its_batch(tmp_path):
    """One example after the other, with torch's own optimiser, over the end of an epoch."""
    part = part_of(lr=1e-2, recipe=RelationRecipe(batch=13, weight_decay=0.1))
    trainer, other = Trainer(part, SPLITS, tmp_path, "cpu"), build(part.shape, 0)
    spared = other.no_decay_names()
    named = dict(other.named_parameters())
    groups = [
        {"params": [named[n] for n in named if (n in spared) == s], "weight_decay": 0.0 if s else 0.1}
        for s in (False, True)
    ]
    adamw = torch.optim.AdamW(groups, lr=1e-2, betas=part.recipe.betas, eps=part.recipe.eps)
    split = SPLITS["train"]
    for step in range(5):
        epoch, place = divmod(step, 4)
        ids = np.random.default_rng([0, epoch, 7]).permutation(50)[place * 13 : (place + 1) * 13]
        losses = []
        for i in ids:
            cells = slice(split.offsets[i], split.offsets[i + 1])
            logits = other(torch.from_numpy(split.cells[cells]).long()[None], torch.arange(int(split.sizes[i]) ** 2))[0]
            target = torch.from_numpy(split.targets[cells]).float()
            losses.append(torch.nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="none"))
        loss = torch.cat(losses).mean()
        adamw.zero_grad()
        loss.backward()
        adamw.step()
        assert trainer.update(step).item() == pytest.approx(loss.item(), rel=1e-4)
    for (name, ours), theirs in zip(trainer.model.named_parameters(), other.parameters(), strict=True):
        if name == "attention.qkv.bias":  # a bias of the keys moves no weight of a softmax: its gradient is rounding
            moved = slice(0, 8), slice(16, 24)
            pairs = [(ours[part], theirs[part]) for part in moved]
        else:
            pairs = [(ours, theirs)]
        for mine, torchs in pairs:
            torch.testing.assert_close(mine, torchs, rtol=1e-3, atol=2e-4, msg=name)


def test_more_patience_and_budget_go_on_and_nothing_else_may_change(tmp_path):
    short = part_of()
    start(short, tmp_path, go_on=iter((True, False)).__next__)
    assert begun_with(short, {})["slice"].keys() >= {"lr", "seed", "shape", "recipe", "task"}
    longer = part_of(recipe=RelationRecipe(batch=13, patience=3), budget=RelationBudget(epochs=3))
    assert begun_with(longer, {}) == begun_with(short, {})
    for other in (part_of(recipe=RelationRecipe(batch=13, eps=1e-6)), part_of(lr=2e-2)):
        with pytest.raises(CheckpointError, match="holds an unfinished run"):
            start(other, tmp_path)
    with pytest.raises(CheckpointError, match=r"data.train: ab -> cd"):
        train(short, SPLITS, tmp_path, begun_with=begun_with(short, {"train": "cd"}), code="c")
    facts = start(longer, tmp_path)
    assert len(facts["history"]) == 3 and facts["codes"] == ["c"]


@pytest.fixture
def place(tmp_path):
    """A grid of two seeds in its folders, with all the time there is."""

    def made(seconds=1e9, **changes):
        of = config(seeds=(0, 1), **changes)
        return Grid(of, tmp_path / "results", tmp_path / "state", "cpu", time.monotonic() + seconds)

    return made


def test_a_turn_is_one_validation_and_the_last_one_leaves_the_manifest(place):
    grid = place()
    key, splits = runs(grid.config)[0], grid.data("small")
    assert grid.spent(key) == 0.0 and not grid.over(key)
    first = grid.turn(key, splits)
    assert (len(first["history"]), first["stopped"]) == (1, None)
    assert not run_manifest(grid.results, *key).exists() and grid.spent(key) == first["history"][-1]["cpu_s"]
    second = grid.turn(key, splits)
    assert second["stopped"] == "epochs" and grid.over(key)
    made = read_manifest(run_manifest(grid.results, *key), "synthetic_train")
    assert made.facts == second == json.loads((run_folder(grid.state, *key) / PROGRESS).read_text())
    assert made.slice == train_slice(grid.config, *key).model_dump(mode="json")
    assert not place(budget=RelationBudget(epochs=3)).over(key), "another budget is another run"


def test_examples_are_kept_until_their_settings_change(place):
    grid = place()
    grid.data("small")
    path = data_manifest(grid.results, "small")
    before = path.stat().st_mtime_ns
    grid.data("small")
    assert path.stat().st_mtime_ns == before
    other = place(data_seed=5)
    assert not np.array_equal(other.data("small")["train"].cells, SPLITS["train"].cells)
    assert path.stat().st_mtime_ns > before and read_manifest(path).slice["data_seed"] == 5


def test_a_grid_goes_on_where_time_ran_out(place, caplog):
    caplog.set_level("INFO", "iha")
    late = place(seconds=-1)
    late.run(runs(late.config))
    assert "time is up" in caplog.text and not list(late.state.rglob(PROGRESS))
    grid, again = place(), place()
    grid.run(runs(grid.config))
    assert caplog.text.endswith("every run is over\n") and all(grid.over(key) for key in runs(grid.config))
    stamps = {p: p.stat().st_mtime_ns for p in grid.state.rglob("*") if p.is_file()}
    again.run(runs(again.config))
    assert {p: p.stat().st_mtime_ns for p in grid.state.rglob("*") if p.is_file()} == stamps


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
def test_devices_and_models_that_are_not_there_are_named():
    with pytest.raises(ConfigError, match=r"--device: 'cuda', but torch sees no GPU; allowed here: auto, cpu"):
        command._device("cuda")
    assert command._device("auto") == command._device("cpu") == "cpu"
    of = SyntheticConfig()
    with pytest.raises(ConfigError, match=r"--models: a, z; allowed: mha, iha, "):
        command._chosen(of, ["z", "mha", "a"])
    assert command._chosen(of, None) == runs(of) and {k[1] for k in command._chosen(of, ["iha_q1"])} == {"iha_q1"}
