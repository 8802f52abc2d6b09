"""Golden losses: a change that should not alter numerics must leave them alone.

The numbers are this code's own, at a tiny fixed configuration; `python tests/test_train_golden.py` writes them anew
after a change that is meant to alter them. The tolerance leaves room for another CPU's rounding, which grows with the
steps, not for a change.
"""

import json
from pathlib import Path

import pytest
import torch
from trainlab import ENGINE, KINDS, MODEL, VOCAB, Asked, Kept, Silent, plain_store, recipe, variant

from iha.data.loader import Batches
from iha.data.store import TokenStore
from iha.model.transformer import build_model
from iha.train.distributed import World
from iha.train.engine import prepare
from iha.train.loop import Loop, Plan
from iha.train.optim import AdamW

GOLDEN = Path(__file__).with_name("golden_losses.json")
STEPS = 200


def losses(kind, folder, engine=ENGINE, steps=STEPS):
    """Loss of the first steps of 200 at D = 32, 5 layers, 64 tokens x 4 sequences."""
    plan = recipe(steps=STEPS, checkpoint_every=1000, weight_decay=0.1)
    model = build_model(MODEL, variant(kind).attention, VOCAB, 64, seed=1)
    world = World(0, 1, torch.device("cpu"))
    objective = prepare(model, engine, world)
    optimizer = AdamW(dict(model.named_parameters()), model.no_decay_names(), plan)
    store = TokenStore.open(plain_store(folder), folder)
    loop = Loop(Plan(plan, steps, folder / kind), objective, optimizer, Batches(store, 64, 4, 1), world)
    kept = Kept()
    assert loop.run(Asked(), kept, Silent())
    return [kept.rows[s]["loss"] for s in range(1, steps + 1)]


@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_the_golden_ones(kind, tmp_path):
    found = losses(kind, tmp_path)
    golden = json.loads(GOLDEN.read_text())[kind]
    assert found[:30] == pytest.approx(golden[:30], rel=1e-4)
    assert found == pytest.approx(golden, rel=1e-3)
    assert found[-1] < found[0] - 0.5


def test_recomputing_activations_changes_nothing(tmp_path):
    engine = ENGINE.model_copy(update={"activation_checkpointing": True})
    assert losses("iha", tmp_path / "a", engine, 4) == losses("iha", tmp_path / "b", ENGINE, 4)


@pytest.mark.slow
def test_compiling_blocks_changes_nothing_but_the_last_digits(tmp_path):
    engine = ENGINE.model_copy(update={"compile": True})
    compiled = losses("global", tmp_path / "a", engine, 3)
    assert compiled == pytest.approx(losses("global", tmp_path / "b", ENGINE, 3), rel=1e-5)


def test_bf16_follows_fp32(tmp_path):
    engine = ENGINE.model_copy(update={"precision": "bf16"})
    assert losses("iha", tmp_path, engine, 10) == pytest.approx(losses("iha", tmp_path / "fp32", ENGINE, 10), rel=0.01)


def test_variants_of_one_seed_begin_alike():
    golden = json.loads(GOLDEN.read_text())
    assert {kind: golden[kind][0] for kind in KINDS} == pytest.approx(
        dict.fromkeys(KINDS, golden["global"][0]), abs=0.05
    )


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        table = {kind: losses(kind, Path(scratch)) for kind in KINDS}
    rows = ",\n".join(f' "{kind}": {json.dumps([round(x, 6) for x in row])}' for kind, row in table.items())
    GOLDEN.write_text(f"{{\n{rows}\n}}\n")
