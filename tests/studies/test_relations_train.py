"""Training runs: batches, scores, padding and grouping are exact, a killed run resumes bit for bit, and every stop says why."""

import json
import os
import signal
import subprocess
import sys
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from iha.config.studies import Examples, RelationBudget, RelationModel, RelationRecipe, RelationTask, SyntheticConfig
from iha.errors import CheckpointError
from iha.studies.relations import train as module
from iha.studies.relations.grid import data_slice, runs, shape_of, train_slice
from iha.studies.relations.model import build, places
from iha.studies.relations.tasks import generate
from iha.studies.relations.train import (
    PROGRESS,
    ExampleTables,
    State,
    Trainer,
    batch_ids,
    evaluate,
    run_key_of,
    summed_loss,
    train,
)

CPU = torch.device("cpu")
QUICK = settings(max_examples=40, deadline=None, derandomize=True)


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
SPLITS = generate(data_slice(CONFIG, "small"))


def part_of(name="iha", lr=1e-2, seed=0, of=CONFIG):
    return train_slice(of, "small", name, lr, seed)


def run(part, folder, **options):
    return train(part, SPLITS, folder, run_key=run_key_of(part, {"train": "ab"}), code="c0de", **options)


def without_clock(facts):
    return {**facts, "best": None, "history": [{k: v for k, v in e.items() if k != "cpu_s"} for e in facts["history"]]}


@pytest.mark.parametrize("name", ["mha", "iha", "simplicial"])
def test_one_padded_batch_and_groups_of_equal_size_are_the_same_loss_and_gradient(name):
    part = part_of(name)
    ids = batch_ids(60, 16, 0, 1)
    found = []
    for padded in (False, True):
        shelf, model = ExampleTables(SPLITS["train"], part.shape, CPU, padded), build(part.shape, 0)
        loss = sum(
            summed_loss(model(group.cells, group.places, group.valid), group) for group in shelf.groups(ids)
        ) / shelf.cells_of(ids)
        loss.backward()
        found.append((loss.detach(), [p.grad for p in model.parameters()]))
        assert len(list(shelf.groups(ids))) == (1 if padded else 3)
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-5, atol=1e-6)
    for one, two in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-6)
    scores = [evaluate(model, ExampleTables(SPLITS["test"], part.shape, CPU, padded)) for padded in (False, True)]
    assert scores[0]["by_size"] == scores[1]["by_size"]


def test_an_epoch_holds_every_example_once_whatever_the_model():
    seen = np.concatenate([batch_ids(60, 16, 3, step) for step in range(4)])
    assert sorted(seen.tolist()) == list(range(60))
    assert batch_ids(60, 16, 3, 4).tolist() != batch_ids(60, 16, 3, 0).tolist()
    assert batch_ids(60, 16, 4, 0).tolist() != batch_ids(60, 16, 3, 0).tolist()


def test_evaluation_is_over_cells_and_per_size():
    part = part_of()
    model, shelf = build(part.shape, 0), ExampleTables(SPLITS["test"], part.shape, CPU)
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
    first = run(part, tmp_path / "cut", proceed=lambda: next(left))
    assert (first["stopped"], len(first["history"])) == (None, 1)
    second = run(part, tmp_path / "cut")
    assert without_clock(second) == without_clock(whole)
    name = "final/model.safetensors"
    assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


SCRIPT = """
import sys, time
sys.path.insert(0, sys.argv[1])
import test_relations_train as t
from pathlib import Path
def proceed():
    if len(list((Path(sys.argv[2]) / "checkpoints").glob("step_*"))) >= 2:
        print("two", flush=True)
        time.sleep(60)
    return True
t.run(t.part_of(), Path(sys.argv[2]), proceed=proceed)
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
    run(part_of(), tmp_path, proceed=iter((True, False)).__next__)
    with pytest.raises(CheckpointError, match=r"hidden_dim: 8 -> 16"):
        run(part_of(of=config(hidden_dim=16)), tmp_path)


def test_the_grid_is_balanced_at_its_front():
    grid = runs(config(lrs=(1e-3, 1e-4)))
    assert len(grid) == len(set(grid)) == 3 * 2 * 2
    assert [(model, lr, seed) for _, model, lr, seed in grid[:4]] == [
        ("mha", 1e-3, 0), ("iha", 1e-3, 0), ("simplicial", 1e-3, 0), ("mha", 1e-3, 1),
    ]  # fmt: skip


SQUARES = RelationTask(name="squares", hops=2, min_size=1, max_size=4, density=0.4)
FEW = config(tasks=(SQUARES,), examples=Examples(train=23, validation=1, test=7))
FEW_SPLITS = generate(data_slice(FEW, "squares"))
SMALL = RelationTask(name="small", hops=2, min_size=2, max_size=3, density=0.4)


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("limit", [1, 40, 1 << 20])
def test_everything_goes_through_once_in_groups_that_fit(padded, limit, monkeypatch):
    monkeypatch.setattr(module, "GROUP_CELLS", limit)
    monkeypatch.setattr(module, "PADDED_CELLS", max(16, limit))
    train = FEW_SPLITS["train"]
    tables = ExampleTables(train, shape_of(FEW, SQUARES, FEW.models[0]), CPU, padded)
    want = sorted((int(m), train.cells[a:b].tolist(), train.targets[a:b].tolist())
                  for m, a, b in zip(train.sizes, train.offsets, train.offsets[1:], strict=False))  # fmt: skip
    found, groups = [], list(tables.everything())
    for group in groups:
        assert group.cells.dtype == torch.int64 and group.targets.dtype == torch.float32
        assert (group.valid is not None) == padded
        if not padded:
            assert len(group.sizes.unique()) == 1 and (group.cells.numel() <= limit or len(group.cells) == 1)
        for row, size in enumerate(group.sizes.tolist()):
            valid = slice(0, size * size) if group.valid is None else group.valid[row]
            assert group.valid is None or int(group.valid[row].sum()) == size * size
            where = group.places if group.places.dim() == 1 else group.places[row]
            assert where[valid].tolist() == list(range(size * size))
            found.append((size, group.cells[row][valid].tolist(), group.targets[row][valid].int().tolist()))
    assert sorted(found) == want and len(tables) == 23
    ids = np.array([5, 2, 5])
    assert tables.cells_of(ids) == sum(int(train.sizes[i]) ** 2 for i in ids)


@QUICK
@given(st.integers(1, 30), st.integers(1, 40), st.integers(0, 5), st.integers(0, 3))
def test_every_epoch_is_a_permutation_cut_into_batches_of_which_the_last_may_be_short(count, batch, seed, epoch):
    per_epoch = -(-count // batch)
    parts = [batch_ids(count, batch, seed, epoch * per_epoch + i).tolist() for i in range(per_epoch)]
    assert sorted(chain(*parts)) == list(range(count))
    assert all(len(part) == batch for part in parts[:-1]) and 1 <= len(parts[-1]) <= batch


@pytest.mark.parametrize("name", ["mha", "iha", "simplicial"])
@pytest.mark.parametrize("padded", [True, False])
def test_a_score_is_what_one_example_after_the_other_gives(name, padded):
    shape = shape_of(FEW, SQUARES, FEW.model(name))
    model, split = build(shape, 3).double(), FEW_SPLITS["test"]
    with torch.no_grad():
        model.head.bias.fill_(0.3)
    right, cells, loss = {}, {}, 0.0
    for i, m in enumerate(split.sizes.tolist()):
        part = slice(split.offsets[i], split.offsets[i + 1])
        logits = model(torch.from_numpy(split.cells[part]).long()[None], places(shape, m))[0].detach()
        target = torch.from_numpy(split.targets[part]).double()
        right[m] = right.get(m, 0) + int(((logits > 0) == (target > 0)).sum())
        cells[m] = cells.get(m, 0) + m * m
        p = torch.sigmoid(logits)
        loss -= float((target * p.log() + (1 - target) * (1 - p).log()).sum())
    found = evaluate(model, ExampleTables(split, shape, CPU, padded))
    assert found["accuracy"] == sum(right.values()) / sum(cells.values())
    assert found["by_size"] == {str(m): right[m] / cells[m] for m in sorted(cells)}
    assert found["loss"] == pytest.approx(loss / sum(cells.values()), rel=1e-5)


def fifty(**changes):
    """50 examples in batches of 13: four updates an epoch."""
    base = {"tasks": (SMALL,), "examples": Examples(train=50, validation=20, test=20), "lrs": (1e-2,),
            "recipe": RelationRecipe(batch=13), "budget": RelationBudget(epochs=2)}  # fmt: skip
    return config(**{**base, **changes})


FIFTY = generate(data_slice(fifty(), "small"))


def part_of_fifty(lr=1e-2, **changes):
    return train_slice(fifty(**changes), "small", "mha", lr, 0)


def begin(part, folder, code="c", **options):
    return train(part, FIFTY, folder, run_key=run_key_of(part, {"train": "ab"}), code=code, **options)


@pytest.mark.parametrize(
    ("evals", "epochs"),
    [(1, [1.0, 2.0]), (2, [0.5, 1.0, 1.5, 2.0]), (3, [0.5, 0.75, 1.0, 1.5, 1.75, 2.0]),
     (9, [0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0])],
)  # fmt: skip
def test_validations_divide_an_epoch_as_evenly_as_its_updates_allow(tmp_path, evals, epochs):
    """50 examples in batches of 13: four updates an epoch."""
    facts = begin(part_of_fifty(recipe=RelationRecipe(batch=13, evals_per_epoch=evals)), tmp_path)
    assert [e["epoch"] for e in facts["history"]] == epochs
    assert [e["steps"] for e in facts["history"]] == [4 * e for e in epochs]


def test_the_weights_that_are_tested_are_those_of_the_first_best_validation(tmp_path):
    """At a rate far too high the accuracy jumps about, so the best weights are not the last."""
    part = part_of_fifty(lr=0.5, budget=RelationBudget(epochs=8))
    facts = begin(part, tmp_path)
    scores = [e["validation"]["accuracy"] for e in facts["history"]]
    best = scores.index(max(scores))
    assert best < len(scores) - 1 and facts["best"] == facts["history"][best]
    model = build(part.shape, 0)
    model.load_state_dict(load_file(tmp_path / "final" / "model.safetensors"), strict=True)
    cpu = torch.device("cpu")
    assert evaluate(model, ExampleTables(FIFTY["test"], part.shape, cpu)) == facts["test"]
    assert evaluate(model, ExampleTables(FIFTY["validation"], part.shape, cpu)) == facts["best"]["validation"]


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
        part_of_fifty(recipe=recipe, budget=RelationBudget(epochs=25, cpu_seconds=5.0)), FIFTY, tmp_path, "cpu"
    )
    history = [{"validation": {"accuracy": 0.9}}] + [{"validation": {"accuracy": 0.9}}] * after_best
    trainer.state = State(step=step, cpu_s=cpu_s, history=history)
    assert trainer.stopped() == why


def test_only_the_leading_examples_are_validated_when_asked(tmp_path):
    few = part_of_fifty(recipe=RelationRecipe(batch=13, validation_examples=6))
    trainer = Trainer(few, FIFTY, tmp_path, "cpu")
    assert len(trainer.watched["validation"]) == len(trainer.watched["test"]) == 6 and len(trainer.examples) == 50
    assert trainer.watched["validation"].sizes.tolist() == FIFTY["validation"].sizes[:6].tolist()
    many = part_of_fifty(recipe=RelationRecipe(batch=13, validation_examples=999))
    assert len(Trainer(many, FIFTY, tmp_path, "cpu").watched["validation"]) == 20


def test_an_update_is_adamw_on_the_mean_over_the_cells_of_its_batch(tmp_path):
    """One example after the other, with torch's own optimiser, over the end of an epoch."""
    part = part_of_fifty(lr=1e-2, recipe=RelationRecipe(batch=13, weight_decay=0.1))
    trainer, other = Trainer(part, FIFTY, tmp_path, "cpu"), build(part.shape, 0)
    spared = other.no_decay_names()
    named = dict(other.named_parameters())
    groups = [
        {"params": [named[n] for n in named if (n in spared) == s], "weight_decay": 0.0 if s else 0.1}
        for s in (False, True)
    ]
    adamw = torch.optim.AdamW(groups, lr=1e-2, betas=part.recipe.betas, eps=part.recipe.eps)
    split = FIFTY["train"]
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
        assert trainer.update(step)[0].item() == pytest.approx(loss.item(), rel=1e-4)
    for (name, ours), theirs in zip(trainer.model.named_parameters(), other.parameters(), strict=True):
        if name == "attention.qkv.bias":  # a bias of the keys moves no weight of a softmax: its gradient is rounding
            moved = slice(0, 8), slice(16, 24)
            pairs = [(ours[part], theirs[part]) for part in moved]
        else:
            pairs = [(ours, theirs)]
        for mine, torchs in pairs:
            torch.testing.assert_close(mine, torchs, rtol=1e-3, atol=2e-4, msg=name)


def test_more_patience_and_budget_proceed_and_nothing_else_may_change(tmp_path):
    short = part_of_fifty()
    begin(short, tmp_path, proceed=iter((True, False)).__next__)
    assert run_key_of(short, {})["slice"].keys() >= {"lr", "seed", "shape", "recipe", "task"}
    longer = part_of_fifty(recipe=RelationRecipe(batch=13, patience=3), budget=RelationBudget(epochs=3))
    assert run_key_of(longer, {}) == run_key_of(short, {})
    for other in (part_of_fifty(recipe=RelationRecipe(batch=13, eps=1e-6)), part_of_fifty(lr=2e-2)):
        with pytest.raises(CheckpointError, match="holds an unfinished run"):
            begin(other, tmp_path)
    with pytest.raises(CheckpointError, match=r"data.train: ab -> cd"):
        train(short, FIFTY, tmp_path, run_key=run_key_of(short, {"train": "cd"}), code="c")
    facts = begin(longer, tmp_path)
    assert len(facts["history"]) == 3 and facts["codes"] == ["c"]


@pytest.mark.parametrize(
    ("budget", "stopped", "epochs"),
    [({"steps": 3}, "steps", [0.75]), ({"steps": 6}, "steps", [1.0, 1.5]), ({"flops": 1.25}, "flops", [1.0, 1.25]),
     ({"flops": 1e-9}, "flops", [0.25]), ({"steps": 99}, "epochs", [1.0, 2.0])],
)  # fmt: skip
def test_a_budget_in_steps_or_flops_ends_a_run_at_the_update_it_buys(tmp_path, budget, stopped, epochs):
    """FLOPs are given here in those of an epoch."""
    if "flops" in budget:
        budget = {"flops": budget["flops"] * part_of_fifty().flops}
    result = begin(part_of_fifty(budget=RelationBudget(epochs=2, **budget)), tmp_path)
    assert (result["stopped"], [e["epoch"] for e in result["history"]]) == (stopped, epochs)


def test_accuracies_of_all_splits_are_recorded_at_each_validation(tmp_path):
    part = part_of_fifty()
    result = begin(part, tmp_path)
    cells = [int((FIFTY["train"].sizes[batch_ids(50, 13, 0, s)].astype(int) ** 2).sum()) for s in range(4)]
    for entry in result["history"]:
        hits = entry["train"]["accuracy"] * sum(cells)
        assert hits == pytest.approx(round(hits)) and 0 < hits < sum(cells), "a share of the cells of one epoch"
        assert set(entry["test"]["by_size"]) == {"2", "3"}
    assert result["test"] == result["best"]["test"], "the best weights on the same examples"


def test_the_budget_is_no_part_of_what_a_run_began_with():
    part, longer = part_of_fifty(), part_of_fifty(budget=RelationBudget(epochs=3))
    assert run_key_of(part, {}) == run_key_of(longer, {})
    assert json.dumps(run_key_of(part, {})) != json.dumps(run_key_of(part, {"train": "ab"}))
