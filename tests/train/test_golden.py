"""Golden losses: a change that should not alter numerics must leave them as they are.

Computed in float64 at a learning rate at which every variant is stable, so that they are the same on every CPU:
rounding all initial weights to other float32 numbers (what another vector unit does) moves them by 3e-8, a change of
one setting by much more than the tolerance of 1e-6. In float32 at a rate of 1e-2 differential attention is chaotic: a
last digit grows by three orders of magnitude within 25 steps, and no tolerance would separate rounding from a change.
Initial weights are five times the usual size; at the usual size attention at this width is uniform, and the
losses would not depend on how a variant mixes its heads.

`python tests/train/test_golden.py` writes the file again after a change that is meant to alter them.
"""

import json
from pathlib import Path

import pytest
import torch
from trainlab import ENGINE, KINDS, MODEL, VOCAB, Kept, plain_store, recipe, variant

from iha.data.loader import Batches
from iha.data.store import TokenStore
from iha.model.transformer import build_model
from iha.train.distributed import World
from iha.train.loop import Trainer, prepare
from iha.train.optimizer import AdamW

GOLDEN = Path(__file__).with_name("golden_losses.json")
STEPS = 60
WIDE = MODEL.model_copy(update={"init_std": 0.1})


def losses(kind, folder, engine=ENGINE, steps=STEPS, dtype=torch.float64, **changes):
    """Loss of each step at D = 32, 5 layers, 64 tokens x 4 sequences."""
    plan = recipe(**{"steps": steps, "checkpoint_every": 1000, "weight_decay": 0.1, "lr": 1e-3, **changes})
    model = build_model(WIDE, variant(kind).attention, VOCAB, 64, seed=1).to(dtype)
    world = World(0, 1, torch.device("cpu"))
    objective = prepare(model, engine, world)
    optimizer = AdamW(dict(model.named_parameters()), model.no_decay_names(), plan)
    store = TokenStore.open(plain_store(folder), folder)
    loop = Trainer(objective, optimizer, Batches(store, 64, 4, 1), plan, world, steps=steps, checkpoints=folder / kind)
    kept = Kept()
    assert loop.run([kept])
    return [kept.rows[s]["loss"] for s in range(1, steps + 1)]


@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_the_golden_ones(kind, tmp_path):
    result = losses(kind, tmp_path)
    assert result == pytest.approx(json.loads(GOLDEN.read_text())[kind], rel=1e-6)
    assert result[-1] < result[0] - 0.5


@pytest.mark.parametrize("change", [{"lr": 1.001e-3}, {"weight_decay": 0.2}, {"betas": (0.9, 0.96)}])
def test_a_small_change_leaves_the_golden_losses(change, tmp_path):
    straight = losses("global", tmp_path / "a", steps=20)
    assert losses("global", tmp_path / "b", steps=20, **change) != pytest.approx(straight, rel=1e-5)


def test_variants_have_losses_of_their_own():
    golden = json.loads(GOLDEN.read_text())
    assert len({round(golden[kind][-1], 3) for kind in KINDS}) == len(KINDS)


def test_recomputing_activations_changes_nothing(tmp_path):
    engine = ENGINE.model_copy(update={"activation_checkpointing": True})
    recomputed = losses("iha", tmp_path / "a", engine, 4)
    assert recomputed == pytest.approx(losses("iha", tmp_path / "b", ENGINE, 4), rel=1e-12)


@pytest.mark.slow
def test_compiling_blocks_changes_nothing_but_the_last_digits(tmp_path):
    engine = ENGINE.model_copy(update={"compile": True})
    compiled = losses("global", tmp_path / "a", engine, 3, torch.float32)
    assert compiled == pytest.approx(losses("global", tmp_path / "b", ENGINE, 3, torch.float32), rel=1e-5)


def test_bf16_follows_fp32(tmp_path):
    engine = ENGINE.model_copy(update={"precision": "bf16"})
    fp32 = losses("iha", tmp_path / "fp32", ENGINE, 10, torch.float32)
    assert losses("iha", tmp_path, engine, 10, torch.float32) == pytest.approx(fp32, rel=0.01)


def test_variants_of_one_seed_begin_alike():
    golden = json.loads(GOLDEN.read_text())
    assert {kind: golden[kind][0] for kind in KINDS} == pytest.approx(
        dict.fromkeys(KINDS, golden["global"][0]), abs=0.05
    )


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        table = {kind: losses(kind, Path(scratch)) for kind in KINDS}
    rows = ",\n".join(f' "{kind}": {json.dumps([round(x, 9) for x in row])}' for kind, row in table.items())
    GOLDEN.write_text(f"{{\n{rows}\n}}\n")
