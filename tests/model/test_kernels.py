"""Every kernel against the formula in float64, forward and gradient, over random shapes and masks."""

from __future__ import annotations

import pytest
import torch
from attention_oracle import rows_apart, softmax_attention, visible
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iha.model.attention import ForwardContext
from iha.model.attention.kernels import attend, cpu, dispatch
from iha.model.attention.masks import Mask
from iha.model.attention.mha import MultiHeadAttention
from iha.model.rope import Rope

CASES = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 2),
        "heads": st.sampled_from([1, 3]),
        "tokens": st.sampled_from([1, 2, 5, 13, 27]),
        "n_pseudo": st.sampled_from([1, 2, 3]),
        "window": st.sampled_from([None, 1, 2, 7, 40]),
        "token_causal": st.booleans(),
        "pad": st.booleans(),
        "documents": st.booleans(),
        "value_width": st.sampled_from([8, 12, 7]),
        "seed": st.integers(0, 9),
    }
)


def setup(case):
    """Tensors and mask of one case."""
    torch.manual_seed(case["seed"])
    b, n, p = case["batch"], case["tokens"], case["n_pseudo"]
    pad = torch.randint(0, n, (b,)) if case["pad"] else None
    documents = torch.randint(0, 2, (b, n)).cumsum(1) if case["documents"] else None
    shape = (b, case["heads"], n * p, 8)
    shapes = (shape, shape, (*shape[:3], case["value_width"]))
    q, k, v = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    window = None if case["window"] is None else case["window"] * p
    group = p if case["token_causal"] else 1
    mask = Mask(n * p, n * p, window, group, p, 0, pad, documents)
    seen = visible(n, p, case["window"], case["token_causal"])
    seen = rows_apart(seen, None if pad is None else pad.tolist(), documents, p)
    return q, k, v, mask, seen


def compare(case, backend):
    """Forward and gradient of `backend` equal those of the oracle."""
    q, k, v, mask, seen = setup(case)
    want = softmax_attention(q, k, v, seen, 0.3)
    got = attend(q, k, v, mask, 0.3, backend)
    assert got.shape == want.shape
    weight = torch.randn_like(want)
    want_grads = torch.autograd.grad((want * weight).sum(), (q, k, v))
    got_grads = torch.autograd.grad((got * weight).sum(), (q, k, v))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    for ours, theirs in zip(got_grads, want_grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Small tiles, so that small shapes have heads, repeated bands and ragged ends."""
    monkeypatch.setattr(cpu, "BAND_ROWS", 6)
    monkeypatch.setattr(cpu, "TILE_ROWS", 10)
    monkeypatch.setattr(cpu, "MOST_REPEATS", 3)
    monkeypatch.setattr(dispatch, "MERGE_FROM", 0)


@pytest.mark.parametrize("backend", ["reference", "sdpa", "banded", "auto"])
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, derandomize=True)
@given(case=CASES)
def test_backend_equals_formula(backend, case):
    compare(case, backend)


@pytest.mark.parametrize("backend", ["reference", "sdpa", "banded", "auto"])
@pytest.mark.parametrize("value_width", [7, 8, 3, 1, 9, 16])
@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_of_any_width_with_and_without_a_cache(backend, value_width, window, padded, dtype):
    """Whole, and as prefill, a chunk on the cache and decode steps."""
    torch.manual_seed(0)
    rope, n = Rope(8, 1e4), 45
    layer = MultiHeadAttention(16, 2, window=window, backend=backend)
    q, k, v = (torch.randn(2, n, 2, width, dtype=torch.float64) for width in (8, 8, value_width))
    pad = torch.tensor([0, 5]) if padded else None
    seen = rows_apart(visible(n, 1, window, False), None if pad is None else pad.tolist(), None, 1)
    want = softmax_attention(*(x.transpose(1, 2) for x in (q, k, v)), seen, layer.scale).transpose(1, 2)
    for pieces in ([n], [20, 22, 1, 2]):
        cache = None if pieces == [n] else layer.new_cache()
        got, start = [], 0
        for length in pieces:
            part = [x[:, start : start + length].to(dtype) for x in (q, k, v)]
            got.append(layer.attend(*part, ForwardContext(length, rope, q.device, start=start, pad=pad), cache))
            start += length
        torch.testing.assert_close(
            torch.cat(got, 1).double(), want, rtol=0, atol=2e-6 if dtype.itemsize == 4 else 1e-12
        )
