"""Extension and fine-tuning: which weights they start from, what they may see, what they leave."""

import json

import pytest
import torch
from safetensors.torch import load_file
from trainlab import Lab, packed_store, plain_store, recipe, train_slice

from iha.artifacts.manifest import read_manifest, verify_files
from iha.config.schema import Budget
from iha.data.loader import Batches
from iha.data.store import TokenStore
from iha.model.files import load_model
from iha.planning.flops import ledger
from iha.planning.slices import LedgerSlice

KIND = "iha"
BASE = train_slice(KIND, recipe=recipe(steps=6))
LONG = train_slice(KIND, "extend", recipe=recipe(steps=3, seq_len=256, global_batch=2, micro_batch=1, warmup_steps=1))
TUNE = train_slice(KIND, "sft", recipe=recipe(steps=4, weight_decay=0.0, min_lr=0.0))


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """All three stages, one after the other, as the workflow runs them."""
    found = Lab(tmp_path_factory.mktemp("lab"))
    for part, store in ((BASE, None), (LONG, plain_store(found.state, 6000, 5)), (TUNE, packed_store(found.state))):
        if store is not None:
            found.give("store", store)
            found.give("parent", read_manifest(found.output(BASE), "pretrain"))
        code, text = found.run(part)
        assert code == 0, text
    return found


@pytest.mark.parametrize("part", [BASE, LONG, TUNE], ids=lambda p: p.stage)
def test_manifest_describes_a_model_that_loads(lab, part):
    made = lab.made(part)
    verify_files(made, lab.state, deep=True)
    assert (made.metadata["steps"], made.metadata["skipped_steps"]) == (part.steps, 0)
    assert made.metadata["tokens"] == part.recipe.tokens
    assert made.metadata["model"] == f"runs/{KIND}/seed1/{part.stage}/final"
    model = load_model(lab.state / made.metadata["model"])
    assert model.pretrain_len == 64
    assert made.files["weights"].sha256 == made.metadata["weights_sha256"]
    assert model(torch.zeros(1, 8, dtype=torch.long)).isfinite().all()


def test_a_finished_run_stays_when_a_setting_that_changes_no_weight_does(tmp_path):
    found, part = Lab(tmp_path), train_slice(recipe=recipe(steps=3))
    assert found.run(part)[0] == 0
    weights, losses = found.made(part).metadata["weights_sha256"], found.losses(part)
    other = part.model_copy(update={"recipe": recipe(steps=3, keep_checkpoints=5, max_skipped=7)})
    code, text = found.run(other)
    assert code == 0, text
    assert (found.made(other).metadata["weights_sha256"], found.losses(other)) == (weights, losses)
    assert not found.folder(part).with_name("pretrain.1").exists()


def first_loss(lab, part, isolate=True):
    """Loss of the parent's weights on the first batch of a stage's store, computed without the training loop."""
    model = load_model(lab.state / lab.made(BASE).metadata["model"])
    store = packed_store(lab.state) if part is TUNE else plain_store(lab.state, 6000, 5)
    batch = Batches(TokenStore.open(store, lab.state), part.recipe.seq_len, part.recipe.global_batch, 1).batch(0)
    logits = model(batch.tokens, doc_ids=batch.doc_ids if isolate else None)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten()).item()


@pytest.mark.parametrize("part", [LONG, TUNE], ids=lambda p: p.stage)
def test_children_start_from_the_parents_weights(lab, part):
    assert lab.losses(part)[1] == pytest.approx(first_loss(lab, part), rel=1e-5)


def test_fine_tuning_isolates_documents(lab):
    assert abs(lab.losses(TUNE)[1] - first_loss(lab, TUNE, isolate=False)) > 1e-4


def test_loss_counts_the_labelled_tokens_only(lab):
    batch = Batches(TokenStore.open(packed_store(lab.state), lab.state), 64, 4, 1).batch(0)
    assert int((batch.targets != -100).sum()) == 4 * (10 + 22)


@pytest.mark.parametrize("part", [LONG, TUNE], ids=lambda p: p.stage)
def test_children_run_their_own_schedule_from_step_0(lab, part):
    lines = [json.loads(x) for x in (lab.folder(part) / "metrics.jsonl").read_text().splitlines()]
    rates = [x["values"]["lr"] for x in lines if x["event"] == "metrics" and "lr" in x["values"]]
    assert rates[0] == pytest.approx(part.recipe.lr / part.recipe.warmup_steps)
    assert rates[-1] == part.recipe.min_lr


def test_parent_is_untouched(lab):
    weights = load_file(lab.state / lab.made(BASE).metadata["model"] / "model.safetensors")
    assert any(not torch.equal(weights[n], w) for n, w in lab.weights(TUNE).items())
    verify_files(lab.made(BASE), lab.state, deep=True)


def test_a_store_of_another_vocabulary_is_refused(tmp_path):
    found = Lab(tmp_path)
    code, text = found.run(train_slice(vocab_size=32))
    assert code == 2
    assert "tokenizer.vocab_size: 32" in text


def test_flops_are_the_ledgers(tmp_path):
    found = Lab(tmp_path)
    part = train_slice(recipe=recipe(steps=2))
    assert found.run(part)[0] == 0
    budget = Budget(seq_len=part.recipe.seq_len, steps=2, global_batch=part.recipe.global_batch)
    priced = LedgerSlice(
        model=part.model, vocab_size=part.vocab_size, variants=(part.variant,), reference=part.variant.name,
        match="tokens", budgets=dict.fromkeys(("pretrain", "extend", "sft"), budget),
    )  # fmt: skip
    row = ledger(priced)["variants"][part.variant.name]
    assert found.made(part).metadata["flops"] == row["train_flops"]["pretrain"]
    assert '"tflops"' in (found.folder(part) / "metrics.jsonl").read_text()


def test_a_parent_changed_in_place_is_refused(lab):
    weights = lab.state / lab.made(BASE).metadata["model"] / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    try:
        code, text = lab.run(TUNE)
    finally:
        weights.write_bytes(whole)
    assert code == 2
    assert "model.safetensors: differs from its manifest" in text
