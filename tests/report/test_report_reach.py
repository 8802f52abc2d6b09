"""What the reference's loss costs each variant: by hand-made curves whose crossings are known."""

from __future__ import annotations

import pytest
from reports import whole

from iha.report.reach import first_at, reach_grid
from iha.report.training import LAST


def curve(*parts):
    """Losses: `count` steps at each level."""
    return [level for level, count in parts for _ in range(count)]


@pytest.mark.parametrize(
    ("losses", "level", "at"),
    [
        (curve((3.0, 40), (1.0, 40)), 1.0, 60),  # the window has to be below as a whole
        (curve((3.0, 40), (1.0, 40)), 2.0, 50),  # its mean counts: half of it is enough here
        (curve((3.0, 40), (1.0, 40)), 0.5, None),
        (curve((1.0, LAST - 1)), 2.0, None),  # never a whole window
        (curve((1.0, LAST)), 1.0, LAST),
        (curve((9.0, 1), (1.0, LAST)), 1.0, LAST + 1),  # what leaves the window is forgotten
    ],
)
def test_a_level_is_met_by_the_mean_of_a_whole_window(losses, level, at):
    assert first_at([(float(step), loss) for step, loss in enumerate(losses, 1)], level) == at


def cells(grid):
    return {row[0].main: {text.cell.split(":")[2]: text for text in row[1:]} for row in grid.rows}


def world(tmp_path, **own):
    """Global falls to 1.0 with step 81 of 100 in both seeds; other variants by seed."""
    world = whole(tmp_path, variants=("global", *own), seeds=(1, 2))
    for v, curves in {"global": [curve((3.0, 80), (1.0, 20))] * 2, **own}.items():
        for seed, losses in zip((1, 2), curves, strict=True):
            world.train(v, seed, "pretrain", steps=len(losses), losses=losses)
    return world


def test_shares_are_of_the_references_own_cost_by_seed(tmp_path):
    found = cells(reach_grid(world(tmp_path, iha=[curve((1.0, 100)), curve((3.0, 40), (1.0, 60))]).results))
    assert found["Global"]["pretrain.tokens"].main == "1.000 ± 0.000"
    # The fixture counts steps from 0: met with 19 and 59, by Global with 99.
    assert found["IHA"]["pretrain.tokens"].value == pytest.approx((19 + 59) / 2 / 99)
    assert found["IHA"]["pretrain.tokens"].main == "0.394 ± 0.286"
    assert found["IHA"]["pretrain.tokens"].lines == ("by seed 0.19 / 0.60",)


def test_a_loss_that_is_never_met_says_so(tmp_path):
    found = cells(reach_grid(world(tmp_path / "a", iha=[curve((1.5, 100))] * 2).results))
    assert (found["IHA"]["pretrain.tokens"].main, found["IHA"]["pretrain.tokens"].value) == ("not reached", None)
    one = cells(reach_grid(world(tmp_path / "b", iha=[curve((1.5, 100)), curve((1.0, 100))]).results))["IHA"]
    assert one["pretrain.tokens"].lines == ("by seed – / 0.19",)
    assert (one["pretrain.tokens"].main, one["pretrain.tokens"].value) == ("1 of 2 seeds", None), "no mean of survivors"


def test_without_the_references_curve_there_is_no_table(tmp_path):
    short = world(tmp_path, iha=[curve((1.0, 100))] * 2)
    for seed in (1, 2):
        short.train("global", seed, "pretrain", steps=4)  # fewer steps than a window
    assert not reach_grid(short.results).rows
