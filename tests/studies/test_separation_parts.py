"""The learned test of the separation, piece by piece: grid, schedule, clipping, tasks, price, what is kept."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from iha.config.studies import CountTask, FilterTask, LearnRecipe, SeparationConfig
from iha.studies.price import forward_flops, training_flops
from iha.studies.separation.grid import Point, points, root
from iha.studies.separation.learn import (
    Counts,
    Filters,
    clip_by_seed,
    counted,
    examples,
    floor,
    learner,
    schedule,
    signed_graph,
    with_positions,
)
from iha.studies.separation.run import begun_with, kept, run_grid

QUICK = settings(max_examples=40, deadline=None, derandomize=True)
SMALL = {"seeds": 2, "filters": {"sizes": [2], "free_sizes": [], "nodes": 4, "recipe": {"steps": 2, "batch": 4}},
         "cpm": {"sizes": [2], "mlp_width": 4, "recipe": {"steps": 2, "batch": 4}}}  # fmt: skip


def config(**changes):
    return SeparationConfig.model_validate_json(json.dumps({**SMALL, **changes}))


@QUICK
@given(st.integers(1, 10**9))
def test_the_root_is_the_smallest_square_from_above(size):
    assert (root(size) - 1) ** 2 < size <= root(size) ** 2


def test_points_have_names_of_their_own_and_the_expensive_ones_come_last():
    found = points(config(filters={"sizes": [1, 4, 5], "free_sizes": [4], "nodes": 5}))
    assert len({p.name for p in found}) == len(found) == 2 * (1 + 4 + 5 + 4 + 2)
    last = [p.layer == "iha" and p.heads > p.needed + 1 for p in found]
    assert last == sorted(last)
    assert Point("filters_free", "iha", 9, 2).name == "filters_free-iha-size9-heads2"
    assert [Point("filters", "iha", 9, h).pseudo_heads for h in (1, 2, 3, 9)] == [1, 2, 3, 3]
    assert Point("filters", "mha", 9, 9).pseudo_heads == 0 and Point("filters", "iha", 1, 1).needed == 1


@QUICK
@given(st.integers(1, 80), st.integers(1, 120))
def test_the_schedule_rises_to_one_and_falls_towards_zero(warmup, steps):
    recipe = LearnRecipe(steps=steps, warmup_steps=warmup)
    shares = [schedule(s, recipe) for s in range(steps)]
    assert shares[: min(warmup, steps)] == pytest.approx([(s + 1) / warmup for s in range(min(warmup, steps))])
    assert shares[warmup:] == sorted(shares[warmup:], reverse=True) and all(0 < x <= 1 for x in shares)
    if steps > warmup:
        assert shares[warmup] == 1
        assert shares[-1] == pytest.approx(math.sin(math.pi / 2 / (steps - warmup)) ** 2 if steps > warmup + 1 else 1)


def test_each_seed_is_clipped_by_its_own_norm():
    pair = [torch.nn.Parameter(torch.zeros(3, 2, 2)), torch.nn.Parameter(torch.zeros(3, 1))]
    pair[0].grad = torch.tensor([[[3.0, 0], [0, 0]], [[0.1, 0], [0, 0]], [[0.0, 0], [0, 0]]])
    pair[1].grad = torch.tensor([[4.0], [0.2], [0.0]])
    clip_by_seed(pair)
    assert pair[0].grad[:, 0, 0].tolist() == pytest.approx([0.6, 0.1, 0.0])
    assert pair[1].grad[:, 0].tolist() == pytest.approx([0.8, 0.2, 0.0])


def test_positions_are_the_identity_beside_the_feature():
    found = with_positions(torch.tensor([[5.0, 6.0], [7.0, 8.0]]))
    assert found.tolist() == [[[5.0, 1.0, 0.0], [6.0, 0.0, 1.0]], [[7.0, 1.0, 0.0], [8.0, 0.0, 1.0]]]


@pytest.mark.parametrize("seed", range(4))
def test_a_graph_is_signed_cyclic_and_of_radius_one(seed):
    a = signed_graph(FilterTask(sizes=(2,), free_sizes=(), nodes=6, density=0.2), torch.Generator().manual_seed(seed))
    assert float(torch.linalg.eigvals(a).abs().max()) == pytest.approx(1.0)
    assert torch.linalg.matrix_power(a, 6).abs().max() > 1e-6, "without a cycle all powers would end"
    entries = a[a != 0].abs()
    assert torch.allclose(entries, entries[:1].expand_as(entries))


def test_a_tasks_stream_depends_on_its_generator_alone():
    task = Filters.draw(config().filters, 2, torch.Generator().manual_seed(0))
    count = Counts.draw(config().cpm, 3, torch.Generator().manual_seed(0))
    for of in (task, count):
        one, two = (of.batch(3, torch.Generator().manual_seed(7)) for _ in range(2))
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
        assert not torch.equal(of.batch(3, torch.Generator().manual_seed(8))[0], one[0])
    stacked = examples([task, task], 3, [torch.Generator().manual_seed(s) for s in (7, 8)])
    assert stacked[0].shape == (2, 3, 4, 5) and torch.equal(
        stacked[0][0], task.batch(3, torch.Generator().manual_seed(7))[0]
    )


def test_inputs_of_the_count_are_centred_values_beside_the_identity():
    task = CountTask(modulus=5, group=12)
    drawn = Counts.draw(task, 4, torch.Generator().manual_seed(0))
    x, y = drawn.batch(2000, torch.Generator().manual_seed(1))
    values = (x[..., 0] * math.sqrt(2) + 2).round().long()
    torch.testing.assert_close(x[..., 0], (values - 2) / math.sqrt(2))
    assert values.unique().tolist() == [0, 1, 2, 3, 4] and x[..., 0].std().item() == pytest.approx(1, abs=0.03)
    torch.testing.assert_close(y[..., 0], ((counted(values, task) - drawn.mean) / drawn.std).float())
    assert torch.equal(x[..., 1:], torch.eye(4).expand(2000, 4, 4))
    assert drawn.exact(y, y) == 1.0 and drawn.exact(y + 1 / drawn.std, y) == 0.0


POINTS = [Point("filters", "mha", 3, 2), Point("filters", "iha", 5, 3), Point("filters_free", "iha", 4, 2),
          Point("cpm", "mha", 4, 3), Point("cpm", "iha", 5, 2)]  # fmt: skip


@pytest.mark.parametrize("point", POINTS, ids=lambda p: p.name)
def test_the_price_is_what_torch_counts(point):
    whole = SeparationConfig()
    recipe = whole.cpm.recipe if point.task == "cpm" else whole.filters.recipe
    model = learner(whole, point, seed=0)
    n = whole.filters.nodes if point.task != "cpm" else point.size
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(recipe.batch, n, n + 1))
    assert counter.get_total_flops() == forward_flops(whole, point)
    assert training_flops(whole, point) == 3 * whole.seeds * recipe.steps * forward_flops(whole, point)


def test_a_floor_is_zero_from_the_constructions_heads_on_and_falls_with_them():
    task = Filters.draw(SeparationConfig().filters, 5, torch.Generator().manual_seed(0))
    mha = [floor(Point("filters", "mha", 5, h), task) for h in range(1, 6)]
    assert mha == sorted(mha, reverse=True) and mha[-1] == 0.0 and mha[-2] > 0
    iha = [floor(Point("filters", "iha", 5, h), task) for h in range(1, 4)]
    assert iha[0] == mha[0] and iha[1] == mha[3] and iha[2] == 0.0, "H heads of IHA stand for H^2 operators"


def test_start_values_differ_from_seed_to_seed_and_are_the_same_every_time():
    point = Point("cpm", "iha", 4, 2)
    states = [learner(config(), point, seed).state_dict() for seed in (0, 0, 1)]
    assert all(torch.equal(states[0][n], states[1][n]) for n in states[0])
    assert all(not torch.equal(states[0][n], states[2][n]) for n in states[0] if "bias" not in n)


def test_what_a_point_was_begun_with_leaves_the_budget_and_the_rest_of_the_grid_out():
    point = Point("filters", "mha", 2, 1)
    base = begun_with(config(), point, "c")
    assert begun_with(config(cpu_seconds=5.0), point, "c") == base
    assert begun_with(config(layers=["mha"]), point, "c") == base
    assert begun_with(config(cpm={"sizes": [3]}), point, "c") == base, "another task's settings"
    wider = {**SMALL["filters"], "sizes": [2, 3], "free_sizes": [2]}
    assert begun_with(config(filters=wider), point, "c") == base
    for other in (begun_with(config(seeds=3), point, "c"), begun_with(config(noise_std=0.1), point, "c"),
                  begun_with(config(), point, "d"), begun_with(config(), Point("filters", "mha", 2, 2), "c"),
                  begun_with(config(filters={**SMALL["filters"], "density": 0.4}), point, "c")):  # fmt: skip
        assert other != base


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "3",
        "{}",
        '{"begun_with": "b"}',
        '{"begun_with": "x", "record": 1, "cpu_seconds": 1}',
        "\udcff",
    ],
)
def test_a_record_that_cannot_be_read_or_is_of_something_else_is_no_record(tmp_path, text):
    path = tmp_path / "point.json"
    assert kept(path, "b") is None
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert kept(path, "b") is None
    path.write_text('{"begun_with": "b", "record": 1, "cpu_seconds": 1}')
    assert kept(path, "b") == {"begun_with": "b", "record": 1, "cpu_seconds": 1}


def test_a_grid_is_the_same_whichever_point_was_trained_first(tmp_path):
    part = config(layers=["mha"])
    whole = run_grid(part, tmp_path / "a", "c")
    run_grid(config(layers=["mha"], filters={**SMALL["filters"], "sizes": []}), tmp_path / "b", "c")
    assert run_grid(part, tmp_path / "b", "c") == whole
    assert {json.dumps(r, sort_keys=True) for r in whole["points"]} == {
        json.dumps(json.loads(p.read_text())["record"], sort_keys=True) for p in (tmp_path / "a").iterdir()
    }
