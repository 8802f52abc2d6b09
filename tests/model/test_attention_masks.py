"""Mask matrices, number by number."""

from __future__ import annotations

import pytest
import torch
from attention_oracle import rows_apart, visible

from iha.model.attention import ForwardContext
from iha.model.attention.kernels import attend
from iha.model.attention.masks import Mask
from iha.model.rope import Rope
from iha.variants.base import Geometry, live_pairs, spec_class

CPU = torch.device("cpu")


def dense(*args, **kwargs):
    return Mask(*args, **kwargs).dense(CPU)[0, 0]


def test_att_01_window_counts_the_token_itself():
    seen = dense(8, 8, window=4)
    assert seen.sum(1).tolist() == [1, 2, 3, 4, 4, 4, 4, 4]
    assert seen.sum() == 26
    assert seen[7].nonzero().flatten().tolist() == [4, 5, 6, 7]
    assert live_pairs(65_536, 1024) == 66_585_088


@pytest.mark.parametrize("backend", ["reference", "sdpa", "banded", "auto"])
def test_att_01_every_backend_attends_to_exactly_the_window(backend):
    """Equal scores make the output the mean of the visible values: it reads the mask off the kernel."""
    length, window = 8, 4
    values = torch.eye(length, dtype=torch.float64)[None, None]
    zeros = torch.zeros(1, 1, length, length, dtype=torch.float64)
    weights = attend(zeros, zeros, values, Mask(length, length, window=window), 1.0, backend)[0, 0]
    assert (weights > 0).sum(1).tolist() == [1, 2, 3, 4, 4, 4, 4, 4]
    torch.testing.assert_close(weights.sum(1), torch.ones(length, dtype=torch.float64))


def test_att_02_iha_window_is_in_virtual_tokens():
    spec = spec_class("iha")(kind="iha", pseudo_heads=2)
    assert spec.window_at(Geometry(32, 5, 4, 16), 0) == 2
    mask = ForwardContext(16, Rope(8, 1e4), CPU).mask(32, n_pseudo=2, window=2)
    assert mask.window == 4
    seen = mask.dense(CPU)[0, 0]
    assert seen.sum() == 122
    assert seen.sum(1).tolist() == [min(u + 1, 4) for u in range(32)]
    assert spec.window_at(Geometry(32, 5, 4, 8192), 0) == 1024
    long = ForwardContext(8192, Rope(8, 1e4), CPU).mask(16_384, n_pseudo=2, window=1024)
    assert (long.window - 1, 0) == (2047, 0)


def test_att_02_flat_and_token_causal_rows():
    assert dense(4, 4, n_pseudo=2).sum(1).tolist() == [1, 2, 3, 4]
    assert dense(4, 4, group=2, n_pseudo=2).sum(1).tolist() == [2, 2, 4, 4]


def test_pck_01_documents_are_block_diagonal():
    documents = torch.tensor([[0, 0, 0, 0, 0, 1, 1, 1]])
    seen = dense(8, 8, documents=documents)
    assert seen.sum(1).tolist() == [1, 2, 3, 4, 5, 1, 2, 3]
    assert seen.sum() == 21
    assert dense(8, 8).sum() == 36


@pytest.mark.parametrize("token_causal", [False, True])
@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("n_pseudo", [1, 2, 3])
def test_dense_equals_the_definition(n_pseudo, window, token_causal):
    tokens, pad, documents = 9, torch.tensor([0, 4]), torch.tensor([[0] * 9, [0] * 5 + [1] * 4])
    ctx = ForwardContext(tokens, Rope(8, 1e4), CPU, pad=pad, documents=documents)
    mask = ctx.mask(tokens * n_pseudo, n_pseudo=n_pseudo, window=window, token_causal=token_causal)
    want = rows_apart(visible(tokens, n_pseudo, window, token_causal), [0, 4], documents, n_pseudo)
    assert torch.equal(mask.dense(CPU), want)
    for start, stop in ((0, n_pseudo), (n_pseudo, 6 * n_pseudo), (6 * n_pseudo, 9 * n_pseudo)):
        low, high = mask.keys_of(start, stop)
        assert torch.equal(mask.dense(CPU, (start, stop)), want[:, :, start:stop, low:high])
        outside = want[:, :, start:stop].clone()
        outside[..., low:high] = False
        assert not outside.any()
