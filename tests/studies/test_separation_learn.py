"""The learned test of the separation: tasks, models, training, floors."""

import itertools
import json
import math

import pytest
import torch

from iha.config.studies import SeparationConfig
from iha.studies.separation.grid import Point, points
from iha.studies.separation.learn import Counts, Filters, counted, draw_task, floor, learn, learner, train


def config(**filters):
    """A grid small enough for a test."""
    task = {"sizes": (2,), "free_sizes": (2,), "nodes": 6, "recipe": {"steps": 120, "batch": 8}, **filters}
    cpm = {"sizes": (2,), "mlp_width": 8, "recipe": {"steps": 4, "batch": 8}}
    return SeparationConfig.model_validate_json(json.dumps({"seeds": 2, "filters": task, "cpm": cpm}))


POINTS = [
    Point("filters", "mha", 3, 2), Point("filters", "iha", 5, 3), Point("filters_free", "mha", 4, 2),
    Point("filters_free", "iha", 4, 2), Point("cpm", "mha", 4, 3), Point("cpm", "iha", 5, 2),
]  # fmt: skip


@pytest.mark.parametrize("point", POINTS, ids=lambda p: p.name)
def test_the_cheap_order_of_computation_is_the_layers_own_function(point):
    settings = SeparationConfig()
    model = learner(settings, point, seed=3).double()
    x, y = draw_task(settings, point, 3).batch(4, torch.Generator().manual_seed(0))
    model.layer.qkv.mask = model.layer.qkv.mask.double()
    torch.testing.assert_close(model(x.double()), model.by_layer(x.double()))
    assert model(x.double()).shape == y.shape


def test_routed_layers_score_positions_and_send_features():
    model = learner(SeparationConfig(), Point("filters", "iha", 4, 2), seed=0)
    x = torch.randn(1, 12, 13)
    twice = x.clone()
    twice[..., 0] *= 2
    torch.testing.assert_close(model(twice), 2 * model(x))
    free = learner(SeparationConfig(), Point("filters_free", "iha", 4, 2), seed=0)
    assert (free(twice) - 2 * free(x)).abs().max() > 1e-3


def test_parameters_in_use_are_counted():
    settings = config(recipe={"steps": 1, "batch": 2})
    routed, free = (learn(settings, p) for p in (Point("filters", "mha", 2, 2), Point("filters_free", "iha", 2, 2)))
    n, inputs, heads, k, p = 6, 7, 2, 2, 2
    assert routed["params"] == heads * (2 * n * n + n) + heads * n * k
    assert free["params"] == 3 * heads * n * inputs + heads * n * k + 4 * heads**2 * p


def test_filter_targets_are_powers_of_the_graph_with_variance_one():
    task = Filters.draw(SeparationConfig().filters, 4, torch.Generator().manual_seed(0))
    x, y = task.batch(5000, torch.Generator().manual_seed(1))
    assert y.pow(2).mean(dim=(0, 1)).tolist() == pytest.approx([1] * 4, abs=0.05)
    cube = (x[0, :, 0].double() @ torch.linalg.matrix_power(task.graph, 3).T).float()
    assert torch.corrcoef(torch.stack((cube, y[0, :, 3])))[0, 1] == pytest.approx(1.0, abs=1e-5)
    assert set((task.graph / task.graph.abs().max()).unique().tolist()) == {-1.0, 0.0, 1.0}


def test_counts_by_three_loops():
    task = SeparationConfig().cpm
    x = torch.randint(0, task.modulus, (5, 6), generator=torch.Generator().manual_seed(0))
    want = torch.zeros(5, 6, dtype=torch.long)
    for row, i, a, b in itertools.product(range(5), range(6), range(6), range(6)):
        want[row, i] += int((x[row, i] + task.group * x[row, a] + x[row, b]) % task.modulus == 0)
    assert torch.equal(counted(x, task), want)
    drawn = Counts.draw(task, 6, torch.Generator().manual_seed(0))
    _, y = drawn.batch(4000, torch.Generator().manual_seed(1))
    assert (float(y.mean()), float(y.std())) == (pytest.approx(0, abs=0.05), pytest.approx(1, abs=0.05))
    assert float(drawn.exact(y + 0.4 / drawn.std, y)) == 1.0
    assert float(drawn.exact(y + 0.6 / drawn.std, y)) == 0.0


def test_gradient_descent_finds_two_filters_with_two_heads_and_meets_the_floor_with_one():
    enough, short = (learn(config(), Point("filters", "mha", 2, heads)) for heads in (2, 1))
    assert max(enough["unexplained"]) < 0.05
    assert enough["floor"] == [0.0, 0.0]
    for reached, least in zip(short["unexplained"], short["floor"], strict=True):
        assert least - 0.03 < reached < least + 0.1
        assert least > 0.2


def test_a_floor_is_known_for_routed_layers_only():
    task = draw_task(SeparationConfig(), Point("filters", "mha", 9, 2), 0)
    mha, iha = (floor(Point("filters", layer, 9, 2), task) for layer in ("mha", "iha"))
    assert 0 < iha < mha < 1
    assert floor(Point("filters", "iha", 9, 3), task) == 0.0
    assert floor(Point("filters_free", "mha", 9, 2), task) is None
    assert floor(Point("cpm", "mha", 9, 2), draw_task(SeparationConfig(), Point("cpm", "mha", 9, 2), 0)) is None


def test_seeds_side_by_side_learn_as_each_alone():
    settings, point = config(), Point("cpm", "iha", 2, 2)
    recipe = settings.cpm.recipe
    together = train(
        [learner(settings, point, s) for s in (0, 1)], [draw_task(settings, point, s) for s in (0, 1)], recipe
    )
    alone = train([learner(settings, point, 0)], [draw_task(settings, point, 0)], recipe)
    assert together["unexplained"][0] == pytest.approx(alone["unexplained"][0], rel=1e-3)
    assert len(together["exact"]) == 2


def test_the_default_grid_covers_heads_from_one_to_k_for_k_to_nine():
    found = points(SeparationConfig())
    assert len(set(found)) == len(found)
    for k in range(2, 10):
        for layer in ("mha", "iha"):
            assert {p.heads for p in found if (p.task, p.layer, p.size) == ("filters", layer, k)} == set(
                range(1, k + 1)
            )
    assert max(p.size for p in found if p.task == "cpm") == 9
    for p in found:
        assert p.needed == (p.size if p.layer == "mha" else math.ceil(math.sqrt(p.size)))
        assert p.pseudo_heads <= p.heads
        assert p.pseudo_heads * p.heads >= p.size or p.heads < p.needed or p.layer == "mha"
