"""Relation composition as data: the definition, the balance of spec 6.4, and artifacts that are the same every time."""

import hashlib
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iha.artifacts.manifest import read_manifest
from iha.config.studies import Examples, RelationTask, SyntheticConfig
from iha.errors import DataError
from iha.studies.relations.grid import data_slice, run_folder, run_name
from iha.studies.relations.tasks import (
    SPLITS,
    Relations,
    balance_by_size,
    compose,
    describe,
    digests,
    generate,
    load,
    load_data,
    main,
    majority,
    sample,
    save,
)

QUICK = settings(max_examples=40, deadline=None, derandomize=True)
MATRIX = st.integers(0, 6).flatmap(lambda m: st.lists(st.booleans(), min_size=m * m, max_size=m * m))
TINY = SyntheticConfig(
    tasks=(RelationTask(name="small", hops=2, min_size=1, max_size=4, density=0.4),),
    examples=Examples(train=23, validation=1, test=7),
)
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
    relations = generate(data_slice(CONFIG, task))["train"]
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
    splits = generate(data_slice(CONFIG, "ternary"))
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
    assert describe(splits)["test"]["examples"] == 300
    first = int(again.sizes[0])
    relation = again.cells[: first**2].reshape(first, first)
    assert np.array_equal(compose(relation, 3).ravel(), again.targets[: again.offsets[1]])


def test_a_split_does_not_depend_on_the_size_of_another():
    more = CONFIG.model_copy(update={"examples": Examples(train=10, validation=300, test=300)})
    one, two = generate(data_slice(CONFIG, "binary")), generate(data_slice(more, "binary"))
    assert np.array_equal(one["test"].cells, two["test"].cells)
    assert not np.array_equal(one["test"].cells[:500], one["validation"].cells[:500])


def test_a_broken_artifact_is_one_message(tmp_path):
    (tmp_path / "cut").write_bytes(b"abc")
    for name in ("cut", "missing"):
        with pytest.raises(DataError, match=f"{name}.*synthetic_data"):
            load(tmp_path / name)


def square(bits):
    m = int(len(bits) ** 0.5)
    return np.array(bits, dtype=np.uint8).reshape(m, m)


@QUICK
@given(MATRIX, st.sampled_from([2, 3]), st.randoms(use_true_random=False))
def test_composition_does_not_care_for_names_and_only_grows_with_the_relation(bits, hops, rng):
    r = square(bits)
    found, order = compose(r, hops), list(range(len(r)))
    assert found.dtype == np.uint8 and set(found.ravel().tolist()) <= {0, 1}
    rng.shuffle(order)
    assert np.array_equal(compose(r[np.ix_(order, order)], hops), found[np.ix_(order, order)])
    assert np.array_equal(compose(r.T.copy(), hops), found.T)
    more = r.copy()
    more[: len(r) // 2] = 1
    assert (compose(more, hops) >= found).all()
    assert np.array_equal(compose(np.eye(len(r), dtype=np.uint8), hops), np.eye(len(r), dtype=np.uint8))
    assert not compose(np.zeros_like(r), hops).any()


def test_a_long_path_is_no_overflow_and_a_batch_is_composed_at_once():
    full = np.ones((2, 300, 300), dtype=np.uint8)
    assert compose(full, 3).all()
    pair = np.stack([np.eye(3, dtype=np.uint8), np.roll(np.eye(3, dtype=np.uint8), 1, 1)])
    assert np.array_equal(compose(pair, 2)[1], np.roll(np.eye(3, dtype=np.uint8), 2, 1))


@pytest.mark.parametrize("count", [1, 5, 23, 99])
def test_the_head_of_a_split_is_its_first_examples(count):
    train = generate(data_slice(TINY, "small"))["train"]
    head = train.head(count)
    n = min(count, 23)
    assert head.sizes.tolist() == train.sizes[:n].tolist()
    assert len(head.cells) == len(head.targets) == int((train.sizes[:n].astype(int) ** 2).sum())
    for i in range(n):
        cells = slice(head.offsets[i], head.offsets[i + 1])
        m = int(head.sizes[i])
        relation = head.cells[cells].reshape(m, m)
        assert np.array_equal(compose(relation, 2).ravel(), head.targets[cells])


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9])
def test_splits_of_any_number_of_bits_come_back(tmp_path, count):
    one = sample(
        RelationTask(name="t", hops=3, min_size=1, max_size=3, density=0.5), count, np.random.default_rng(count)
    )
    save(tmp_path / "ä", one)
    again = load(tmp_path / "ä")
    for name in ("sizes", "cells", "targets"):
        assert np.array_equal(getattr(again, name), getattr(one, name)) and getattr(again, name).dtype == np.uint8
    assert [p.name for p in tmp_path.iterdir()] == ["ä"]


def test_the_majority_of_a_tie_and_of_a_size_that_was_never_seen_is_one():
    train = Relations(*(np.array(x, dtype=np.uint8) for x in ([2, 1], [0] * 5, [1, 1, 0, 0, 0])))
    split = Relations(
        *(np.array(x, dtype=np.uint8) for x in ([1, 2, 3], [0] * 14, [1, 1, 0, 0, 0] + [1] * 3 + [0] * 6))
    )
    found = majority(train, split)
    assert found["positive"] == 5 / 14 and found["accuracy"] == pytest.approx(9 / 14), "2 of 5 in training: zero"
    assert found["by_size"] == {"1": 0.0, "2": 0.25, "3": pytest.approx(3 / 9)}
    assert found["positive_by_size"] == {"1": 1.0, "2": 0.25, "3": pytest.approx(3 / 9)}


def test_the_stage_writes_the_same_examples_every_time_and_changed_ones_are_refused(tmp_path, monkeypatch):
    part, expected, manifests = data_slice(TINY, "small"), generate(data_slice(TINY, "small")), []
    for name in "ab":
        arguments = ["--slice", part.model_dump_json(), "--code", "c", "--output", str(tmp_path / f"{name}.json")]
        monkeypatch.setattr(sys, "argv", ["x", *arguments, "--state", str(tmp_path / name), "--experiment", "x"])
        main()
        manifests.append(read_manifest(tmp_path / f"{name}.json", "synthetic_data"))
    assert manifests[0] == manifests[1] and set(digests(manifests[0])) == {"train", "validation", "test"}
    read = load_data(manifests[0], tmp_path / "a")
    assert all(np.array_equal(read[s].targets, expected[s].targets) for s in SPLITS)
    assert manifests[0].metadata["splits"]["validation"]["examples"] == 1
    path = tmp_path / "a" / manifests[0].files["test"].path
    path.write_bytes(path.read_bytes()[:-1] + b"\x07")
    with pytest.raises(DataError, match=r"test.safetensors: differs"):
        load_data(manifests[0], tmp_path / "a")


def test_names_of_runs_are_the_same_in_results_and_state(tmp_path):
    assert [run_name("iha", lr, 0) for lr in (1e-3, 1e-4, 1e-5, 0.25)] == [
        "iha-lr0.001-seed0", "iha-lr0.0001-seed0", "iha-lr1e-05-seed0", "iha-lr0.25-seed0",
    ]  # fmt: skip
    assert run_folder(tmp_path, "small", "iha", 1e-4, 3) == tmp_path / "synthetic" / "small" / "iha-lr0.0001-seed3"
