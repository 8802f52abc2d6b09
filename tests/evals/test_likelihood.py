"""Loss by position: what a plain forward pass gives, on text that training did not reach."""

from __future__ import annotations

import pytest
import torch
from reports import manifest
from torch.nn import functional
from trainlab import ENGINE, MODEL, VOCAB, plain_store, train_slice, variant

from iha.data.loader import IGNORE_INDEX, Batches
from iha.data.store import TokenStore
from iha.evals.likelihood import PARTS, SEQUENCES, position_loss, token_losses
from iha.model.transformer import build_model

LENGTH = 96


@pytest.fixture
def store(tmp_path):
    return TokenStore.open(plain_store(tmp_path, 4000), tmp_path)


def net(kind: str):
    return build_model(MODEL, variant(kind).attention, VOCAB, 64, seed=1, backend=ENGINE.backend)


def run_of(steps: int, seed: int = 1):
    part = train_slice(stage="extend", seed=seed).model_dump(mode="json")
    part["recipe"] |= {"seq_len": LENGTH, "global_batch": 2}
    return manifest("extend", {"steps": steps}, part)


def test_losses_are_those_of_one_plain_forward(store):
    model, batch = net("iha"), Batches(store, LENGTH, 2, 1).batch(0)
    with torch.no_grad():
        logits = model(batch.tokens)
    for row in range(2):
        plain = functional.cross_entropy(logits[row], batch.targets[row], reduction="none", ignore_index=IGNORE_INDEX)
        assert torch.allclose(token_losses(model, batch.tokens[row], batch.targets[row]).float(), plain, atol=1e-5)


def test_parts_average_to_the_loss_of_the_text(store):
    model, found = net("global"), position_loss(net("global"), store, run_of(4))
    assert (len(found["loss"]), found["length"], found["sequences"]) == (PARTS, LENGTH, SEQUENCES)
    size = Batches(store, LENGTH, 1, 1).size
    batch = Batches(store, LENGTH, SEQUENCES, 1).batch(size // SEQUENCES - 1)
    kept = batch.targets != IGNORE_INDEX
    assert sum(found["tokens"]) == int(kept.sum())
    losses = [token_losses(model, t, y)[k].sum() for t, y, k in zip(batch.tokens, batch.targets, kept, strict=True)]
    mean = sum(x * n for x, n in zip(found["loss"], found["tokens"], strict=True)) / sum(found["tokens"])
    assert mean == pytest.approx(float(sum(losses)) / int(kept.sum()), rel=1e-6)


def test_the_text_is_unseen_until_training_reaches_it(store):
    size = Batches(store, LENGTH, 1, 1).size
    first = (size // SEQUENCES - 1) * SEQUENCES
    model = net("global")
    assert position_loss(model, store, run_of(first // 2))["unseen"]
    assert not position_loss(model, store, run_of(first // 2 + 1))["unseen"]


def test_variants_of_a_seed_read_the_same_text_whatever_their_steps(store):
    model = net("global")
    one, two, other = (position_loss(model, store, run_of(s, seed)) for s, seed in ((3, 1), (9, 1), (3, 2)))
    assert one["loss"] == two["loss"]
    assert one["loss"] != other["loss"]
