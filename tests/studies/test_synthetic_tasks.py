"""Relation composition as data: the definition, the balance of spec 6.4, and artifacts that are the same every time."""

import hashlib

import numpy as np
import pytest

from iha.config.studies import Examples, RelationTask, SyntheticConfig
from iha.errors import DataError
from iha.studies.relations.shapes import data_slice
from iha.studies.relations.tasks import SPLITS, balance_by_size, compose, facts, load, majority, make, sample, save

CONFIG = SyntheticConfig(examples=Examples(train=4000, validation=300, test=300))


def literal(relation, hops):
    """The definition, entry by entry: is there a path of `hops` steps from i to j?"""
    size = len(relation)
    reached = [{i} for i in range(size)]
    for _ in range(hops):
        reached = [{j for k in ends for j in range(size) if relation[k][j]} for ends in reached]
    return [[int(j in ends) for j in range(size)] for ends in reached]


@pytest.mark.parametrize("hops", [2, 3])
def test_composition_is_the_definition(hops):
    rng = np.random.default_rng(3)
    for size in (1, 4, 7):
        relation = (rng.random((size, size)) < 0.3).astype(np.uint8)
        assert compose(relation, hops).tolist() == literal(relation.tolist(), hops)


def test_the_defaults_are_the_papers():
    binary, ternary = SyntheticConfig().tasks
    assert (binary.hops, list(binary.sizes), binary.density, binary.max_len) == (2, [6, 7, 8, 9, 10], 0.325, 100)
    assert (ternary.hops, list(ternary.sizes), ternary.density, ternary.max_len) == (3, [5, 6, 7, 8], 0.264, 64)
    examples = SyntheticConfig().examples
    assert (examples.train, examples.validation, examples.test) == (40_000, 5_000, 5_000)
    assert (SyntheticConfig().lrs, SyntheticConfig().recipe.patience, SyntheticConfig().n_heads) == (
        (1e-3, 1e-4),
        10,
        8,
    )


@pytest.mark.parametrize(
    ("task", "overall", "smallest", "largest"), [("binary", 0.611, 0.496, 0.674), ("ternary", 0.499, 0.36, 0.58)]
)
def test_labels_are_balanced_as_spec_6_4_says(task, overall, smallest, largest):
    relations = make(data_slice(CONFIG, task))["train"]
    shares = balance_by_size(relations)
    assert relations.targets.mean() == pytest.approx(overall, abs=0.012)
    assert (min(shares.values()), max(shares.values())) == pytest.approx((smallest, largest), abs=0.025)
    assert relations.cells.mean() == pytest.approx(CONFIG.task(task).density, abs=0.005)
    assert np.unique(relations.sizes).tolist() == list(CONFIG.task(task).sizes)


def test_the_majority_baseline_is_told_from_training_labels_and_per_size():
    task = RelationTask(name="t", hops=2, min_size=5, max_size=8, density=0.325)
    train, test = sample(task, 500, np.random.default_rng(0)), sample(task, 400, np.random.default_rng(1))
    found = majority(train, test)
    assert balance_by_size(train)[5] < 0.5 < balance_by_size(train)[8]
    assert found["by_size"]["5"] == pytest.approx(1 - balance_by_size(test)[5])
    assert found["by_size"]["8"] == pytest.approx(balance_by_size(test)[8])
    assert found["accuracy"] == pytest.approx(test.targets.mean())


def test_artifacts_have_the_same_bytes_every_time_and_read_back(tmp_path):
    splits = make(data_slice(CONFIG, "ternary"))
    digests = []
    for folder in ("one", "two"):
        for split in SPLITS:
            save(tmp_path / folder / split, splits[split])
        digests.append([hashlib.sha256((tmp_path / folder / s).read_bytes()).hexdigest() for s in SPLITS])
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == 3
    again = load(tmp_path / "one" / "test")
    for field in ("sizes", "cells", "targets"):
        assert np.array_equal(getattr(again, field), getattr(splits["test"], field))
    assert facts(splits)["test"]["examples"] == 300
    first = int(again.sizes[0])
    relation = again.cells[: first**2].reshape(first, first)
    assert np.array_equal(compose(relation, 3).ravel(), again.targets[: again.offsets[1]])


def test_a_split_does_not_depend_on_the_size_of_another():
    more = CONFIG.model_copy(update={"examples": Examples(train=10, validation=300, test=300)})
    one, two = make(data_slice(CONFIG, "binary")), make(data_slice(more, "binary"))
    assert np.array_equal(one["test"].cells, two["test"].cells)
    assert not np.array_equal(one["test"].cells[:500], one["validation"].cells[:500])


def test_a_broken_artifact_is_one_message(tmp_path):
    (tmp_path / "cut").write_bytes(b"abc")
    for name in ("cut", "missing"):
        with pytest.raises(DataError, match=f"{name}.*synthetic_data"):
            load(tmp_path / name)
