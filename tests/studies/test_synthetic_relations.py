"""Relations, batches and scores against loops over examples; shapes and outcomes at their edges."""

import json
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from iha.config.studies import Examples, RelationModel, RelationTask, SyntheticConfig
from iha.errors import DataError
from iha.studies.relations import batches, fused, simplicial
from iha.studies.relations.batches import Shelf, batch_ids
from iha.studies.relations.folders import (
    data_manifest,
    digests,
    load_data,
    make_data,
    run_folder,
    run_manifest,
    run_name,
)
from iha.studies.relations.model import build, places
from iha.studies.relations.results import Gap, Grid, Outcome, Point, outcome
from iha.studies.relations.score import evaluate
from iha.studies.relations.shapes import data_slice, mean_flops, shape_of
from iha.studies.relations.tasks import Relations, compose, load, majority, make, sample, save

QUICK = settings(max_examples=40, deadline=None, derandomize=True)
CPU = torch.device("cpu")
TASK = RelationTask(name="small", hops=2, min_size=1, max_size=4, density=0.4)
CONFIG = SyntheticConfig(
    tasks=(TASK,), hidden_dim=8, n_heads=2, examples=Examples(train=23, validation=1, test=7), seeds=(0, 4, 2),
    models=(RelationModel(name="mha", attention="mha"), RelationModel(name="iha", attention="iha", pseudo_heads=2),
            RelationModel(name="simplicial", attention="simplicial")), lrs=(1e-3,),
)  # fmt: skip
SPLITS = make(data_slice(CONFIG, "small"))
MATRIX = st.integers(0, 6).flatmap(lambda m: st.lists(st.booleans(), min_size=m * m, max_size=m * m))


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
    train, head = SPLITS["train"], SPLITS["train"].head(count)
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


def test_examples_are_made_once_and_refused_when_they_change(tmp_path):
    manifests = [make_data(data_slice(CONFIG, "small"), tmp_path / name, "c") for name in "ab"]
    assert manifests[0] == manifests[1] and set(digests(manifests[0])) == {"train", "validation", "test"}
    found = load_data(manifests[0], tmp_path / "a")
    assert all(np.array_equal(found[s].targets, SPLITS[s].targets) for s in SPLITS)
    assert manifests[0].facts["splits"]["validation"]["examples"] == 1
    path = tmp_path / "a" / manifests[0].files["test"].path
    path.write_bytes(path.read_bytes()[:-1] + b"\x07")
    with pytest.raises(DataError, match=r"test.safetensors: differs from its manifest"):
        load_data(manifests[0], tmp_path / "a")


def test_names_of_runs_are_the_same_in_results_and_state(tmp_path):
    assert [run_name("iha", lr, 0) for lr in (1e-3, 1e-4, 1e-5, 0.25)] == [
        "iha-lr0.001-seed0", "iha-lr0.0001-seed0", "iha-lr1e-05-seed0", "iha-lr0.25-seed0",
    ]  # fmt: skip
    key = ("small", "iha", 1e-4, 3)
    assert run_manifest(tmp_path, *key) == tmp_path / "synthetic" / "small" / "iha-lr0.0001-seed3.json"
    assert run_folder(tmp_path, *key) == run_manifest(tmp_path, *key).with_suffix("")
    assert data_manifest(tmp_path, "small").parent == run_manifest(tmp_path, *key).parent


def test_the_majority_of_a_tie_and_of_a_size_that_was_never_seen_is_one():
    train = Relations(*(np.array(x, dtype=np.uint8) for x in ([2, 1], [0] * 5, [1, 1, 0, 0, 0])))
    split = Relations(
        *(np.array(x, dtype=np.uint8) for x in ([1, 2, 3], [0] * 14, [1, 1, 0, 0, 0] + [1] * 3 + [0] * 6))
    )
    found = majority(train, split)
    assert found["positive"] == 5 / 14 and found["accuracy"] == pytest.approx(9 / 14), "2 of 5 in training: zero"
    assert found["by_size"] == {"1": 0.0, "2": 0.25, "3": pytest.approx(3 / 9)}
    assert found["positive_by_size"] == {"1": 1.0, "2": 0.25, "3": pytest.approx(3 / 9)}


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("limit", [1, 40, 1 << 20])
def test_everything_goes_through_once_in_groups_that_fit(padded, limit, monkeypatch):
    monkeypatch.setattr(batches, "GROUP_CELLS", limit)
    monkeypatch.setattr(batches, "PADDED_CELLS", max(16, limit))
    train = SPLITS["train"]
    shelf = Shelf(train, shape_of(CONFIG, TASK, CONFIG.models[0]), CPU, padded)
    want = sorted((int(m), train.cells[a:b].tolist(), train.targets[a:b].tolist())
                  for m, a, b in zip(train.sizes, train.offsets, train.offsets[1:], strict=False))  # fmt: skip
    found, groups = [], list(shelf.everything())
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
    assert sorted(found) == want and len(shelf) == 23
    ids = np.array([5, 2, 5])
    assert shelf.cells_of(ids) == sum(int(train.sizes[i]) ** 2 for i in ids)


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
    shape = shape_of(CONFIG, TASK, CONFIG.model(name))
    model, split = build(shape, 3).double(), SPLITS["test"]
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
    found = evaluate(model, Shelf(split, shape, CPU, padded))
    assert found["accuracy"] == sum(right.values()) / sum(cells.values())
    assert found["by_size"] == {str(m): right[m] / cells[m] for m in sorted(cells)}
    assert found["loss"] == pytest.approx(loss / sum(cells.values()), rel=1e-5)


def test_a_widened_model_has_whole_heads_and_no_width_comes_closer():
    config = SyntheticConfig()
    for task in config.tasks:
        wide = shape_of(config, task, config.model("mha_wide"))
        target = mean_flops(shape_of(config, task, config.model("iha")), task)
        miss = {w: abs(mean_flops(wide.model_copy(update={"hidden_dim": w}), task) - target)
                for w in range(8, 2 * wide.hidden_dim, 8)}  # fmt: skip
        assert min(miss, key=miss.get) == wide.hidden_dim > 128
        assert shape_of(config, task, config.model("iha")).hidden_dim == 128


def test_a_model_computes_the_same_through_the_cpp_kernel_and_without_it(monkeypatch):
    """Projections reach the kernel as strided views, and gradients come back into them."""
    if fused.library() is None:
        pytest.skip("no C++ compiler")
    config = CONFIG.model_copy(update={"hidden_dim": 32})
    shape = shape_of(config, TASK, config.model("simplicial"))
    cells, where = torch.randint(2, (3, 16), generator=torch.Generator().manual_seed(0)), places(shape, 4)
    found = []
    for usable in (fused.usable, lambda q, valid: False):
        monkeypatch.setattr(fused, "usable", usable)
        model = build(shape, 1)
        out = model(cells, where)
        out.square().sum().backward()
        found.append((out.detach(), [p.grad for p in model.parameters()]))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


def test_many_scores_go_in_chunks_and_give_the_same_with_padding(monkeypatch):
    generator = torch.Generator().manual_seed(2)
    inputs = [torch.randn(2, 2, 6, 4, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(5)]
    valid = torch.tensor([[True] * 6, [True] * 2 + [False] * 4])
    whole = simplicial.simplicial_attention(*inputs, valid)
    monkeypatch.setattr(simplicial, "PLAIN_SCORES", 0)
    monkeypatch.setattr(simplicial, "CHUNK_SCORES", 1)
    parts = simplicial.simplicial_attention(*inputs, valid)
    assert "Chunked" in type(parts.grad_fn).__name__
    torch.testing.assert_close(parts, whole)
    alone = simplicial.plain(*(x[1:, :, :2] for x in inputs), None)
    torch.testing.assert_close(whole[1:, :, :2], alone)


def run(seed, accuracies, model="mha", stopped="patience", test=0.5, step=1.0):
    points = tuple(Point(step * (i + 1), 10 * step * (i + 1), i + 1.0, a, {2: a}) for i, a in enumerate(accuracies))
    return Outcome("small", model, 1e-3, seed, 9, 10.0, stopped, points, test if stopped else None, {2: test})


def test_one_shared_seed_of_three_is_a_gap_of_one_seed():
    grid = Grid(CONFIG, (run(2, (0.5, 0.7)), run(0, (0.5,)), run(4, (0.6, 0.6), "iha"), run(2, (0.6, 0.9), "iha")), {})
    assert list(grid.of("small", "mha", 1e-3)) == [0, 2] and list(grid.of("small", "iha", 1e-3)) == [4, 2]
    gap = grid.gap("small", 1e-3, ("iha", "mha"), "epoch")
    assert (gap.limit, gap.by_seed, gap.mean) == (2.0, {2: pytest.approx(0.2)}, pytest.approx(0.2))
    assert Gap("epoch", 1.0, {0: 0.1, 1: -0.3}).mean == pytest.approx(-0.1)
    assert grid.of("small", "mha", 1e-4) == {} and grid.gap("small", 1e-4, ("iha", "mha"), "epoch") is None


@pytest.mark.parametrize(
    ("third", "converged"),
    [("patience", True), ("epochs", False), ("cpu_seconds", False), (None, False), ("missing", False)],
)
def test_a_comparison_has_converged_when_patience_ended_every_seed(third, converged):
    found = [run(0, (0.5,)), run(4, (0.5,))] + ([] if third == "missing" else [run(2, (0.5,), stopped=third)])
    assert Grid(CONFIG, tuple(found), {}).converged("small", 1e-3, ["mha"]) == converged


def test_facts_without_a_validation_are_no_outcome_and_others_survive_json():
    facts = {"task": "small", "model": "mha", "lr": 1e-3, "seed": 0, "params": 5, "flops_per_epoch": 100,
             "stopped": None, "history": [], "test": None}  # fmt: skip
    assert outcome(facts) is None
    entry = {"epoch": 0.5, "cpu_s": 2.0, "validation": {"accuracy": 0.75, "by_size": {"10": 0.75, "2": 0.5}}}
    found = outcome(json.loads(json.dumps({**facts, "history": [entry]})))
    assert (found.last.flops, found.score, found.score_by_size) == (50.0, 0.75, {10: 0.75, 2: 0.5})
    over = outcome({**facts, "history": [entry], "stopped": "epochs", "test": {"accuracy": 0.6, "by_size": {"2": 0.6}}})
    assert (over.score, over.score_by_size, over.best) == (0.6, {2: 0.6}, found.best)
