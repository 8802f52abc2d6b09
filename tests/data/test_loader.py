"""Batches: a pure function of (seed, step), whatever the world size or the point of restart."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from datalab import TEXT, WORDS, build, chat_slice, text_store, tokenizer, write_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from iha.data.loader import IGNORE_INDEX, Batches
from iha.data.order import permute, samples
from iha.data.store import TokenStore
from iha.errors import DataError


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    texts = [" ".join(WORDS[i % 9 :]) + f" {i}" for i in range(120)]
    return text_store(tmp_path_factory.mktemp("store"), texts, shard_tokens=500)


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed")
    turns = [
        [{"role": "user", "content": "hats"}, {"role": "assistant", "content": "e " * (i % 9 + 1)}] for i in range(60)
    ]
    path = write_rows(folder / "chat.jsonl", [{"conversations": t} for t in turns])
    return TokenStore.open(build(chat_slice(path, 48, 200), folder), folder)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 2**31), st.integers(0, 5))
def test_the_order_is_a_permutation_of_any_size(size, seed, epoch):
    image = permute(np.arange(size), size, seed, epoch)
    assert np.array_equal(np.sort(image), np.arange(size))


def test_the_order_of_a_huge_store_needs_no_table():
    size = 30_000_000_001
    image = permute(np.arange(0, size, size // 1000), size, 1, 0)
    assert len(set(image.tolist())) == len(image)
    assert image.min() >= 0
    assert image.max() < size


def test_the_order_is_frozen():
    """Golden: a change of these numbers changes the data order of every run that is resumed."""
    assert permute(np.arange(10), 10, 1, 0).tolist() == [8, 0, 3, 4, 9, 7, 2, 6, 5, 1]


def test_the_order_looks_random():
    image = permute(np.arange(10_000), 10_000, 7, 0)
    other = permute(np.arange(10_000), 10_000, 8, 0)
    ranks = np.corrcoef(np.arange(10_000), image)[0, 1], np.corrcoef(image, other)[0, 1]
    steps = np.bincount(np.diff(image) % 4, minlength=4) / 9999
    assert max(map(abs, ranks)) < 0.04
    assert np.allclose(steps, 0.25, atol=0.02)
    assert not np.array_equal(image, permute(np.arange(10_000), 10_000, 7, 1))


def test_a_resumed_epoch_repeats_and_loses_nothing():
    straight = samples(0, 64, 64, 3)
    resumed = np.concatenate([samples(0, 20, 64, 3), samples(20, 44, 64, 3)])
    assert len(set(resumed.tolist())) == 64
    assert np.array_equal(straight, resumed)


def test_every_epoch_has_every_sample_once_in_its_own_order():
    epochs = samples(0, 3 * 64, 64, 3).reshape(3, 64)
    assert all(len(set(epoch)) == 64 for epoch in epochs.tolist())
    assert len({tuple(epoch) for epoch in epochs.tolist()}) == 3


@pytest.mark.parametrize("name", ["store", "packed"])
def test_the_global_batch_does_not_know_the_world_size(name, request):
    found = request.getfixturevalue(name)
    batches = Batches(found, 48, 8, seed=5)
    for step in (0, 3, 40):
        whole = batches.batch(step)
        for world in (2, 4, 8):
            parts = [batches.batch(step, rank, world) for rank in range(world)]
            assert torch.equal(torch.cat([p.tokens for p in parts]), whole.tokens)
            assert torch.equal(torch.cat([p.targets for p in parts]), whole.targets)
        assert batches.digest(step) == Batches(found, 48, 8, seed=5).digest(step)


def test_the_digest_sees_seed_step_and_content(store):
    batches = Batches(store, 48, 8, seed=5)
    found = [
        batches.digest(0),
        batches.digest(1),
        Batches(store, 48, 8, 6).digest(0),
        Batches(store, 48, 4, 5).digest(0),
    ]
    assert len(set(found)) == 4


def test_windows_are_contiguous_and_the_token_after_eos_is_no_target(store):
    tok, batches = tokenizer(), Batches(store, 48, 4, seed=1)
    stream = store.read(0, store.n_tokens).tolist()
    batch = batches.batch(2)
    assert batch.doc_ids is None
    for sample, tokens, targets in zip(
        batches.sample_ids(2).tolist(), batch.tokens.tolist(), batch.targets.tolist(), strict=True
    ):
        window = stream[sample * 48 : sample * 48 + 49]
        assert tokens == window[:-1]
        assert targets == [IGNORE_INDEX if a == tok.eos else b for a, b in pairwise(window)]
    assert (batch.targets == IGNORE_INDEX).any()
    assert (batch.targets == tok.eos).any(), "EOS itself is learned"


def test_an_epoch_covers_the_stream(store):
    batches = Batches(store, 48, 1, seed=1)
    seen = {int(batches.sample_ids(step)[0]) for step in range(batches.size)}
    assert seen == set(range((store.n_tokens - 1) // 48))


def test_sft_targets_are_the_labelled_tokens_and_stay_within_a_document(packed):
    tok, batches = tokenizer(), Batches(packed, 48, packed.n_tokens // 48, seed=1)
    batch = batches.batch(0)
    labelled = batch.targets != IGNORE_INDEX
    assert labelled.sum() == packed.metadata["n_labels"]
    assert torch.equal(batch.targets[:, :-1][labelled[:, :-1]], batch.tokens[:, 1:][labelled[:, :-1]])
    assert not labelled[:, -1].any()
    crossing = batch.doc_ids[:, :-1] != batch.doc_ids[:, 1:]
    assert not (labelled[:, :-1] & crossing).any()
    assert not (labelled & (batch.tokens == tok.pad)).any()
    assert batch.doc_ids.dtype == torch.int32


def test_document_numbers_give_a_block_diagonal_mask():
    from iha.data.packing import Row, row_arrays

    row = Row(8)
    row.add([1, 2, 3, 4, 5], [True] * 5)
    row.add([6, 7, 8], [True] * 3)
    _, mask, docs = row_arrays(row, 8, 0, np.uint16)
    attend = (docs[:, None] == docs[None, :]) & np.tri(8, dtype=bool)
    assert attend.sum(1).tolist() == [1, 2, 3, 4, 5, 1, 2, 3]
    assert mask.tolist() == [0, 1, 1, 1, 1, 0, 1, 1]


def test_a_store_shorter_than_a_window_is_refused(tmp_path):
    store = text_store(tmp_path, ["cat cat cat"])
    assert Batches(store, store.n_tokens - 1, 1, 0).size == 1
    with pytest.raises(DataError, match=r"seq_len: 5 needs a store of at least 6 tokens; this one has 5"):
        Batches(store, store.n_tokens, 1, 0)


def test_a_packed_store_of_another_length_is_refused(packed):
    with pytest.raises(DataError, match="seq_len: 32, but the store has rows of 48"):
        Batches(packed, 32, 1, 0)


def test_a_world_that_does_not_divide_the_batch_is_refused(store):
    with pytest.raises(DataError, match="global_batch: 8 does not divide over 3 ranks"):
        Batches(store, 48, 8, 0).batch(0, 0, 3)


def test_a_small_store_is_read_again_in_another_order(tmp_path):
    batches = Batches(text_store(tmp_path, [TEXT]), 64, 16, seed=1)
    assert batches.size < 16
    ids = batches.sample_ids(0).tolist()
    assert set(ids) == set(range(batches.size))
