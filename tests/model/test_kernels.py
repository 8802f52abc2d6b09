"""Every kernel against the formula in float64, forward and gradient, over random shapes and masks."""

from __future__ import annotations

import pytest
import torch
from attention_oracle import rows_apart, softmax_attention, visible
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iha import native
from iha.model.attention import Frame, folded
from iha.model.attention.kernels import attend, banded, decode, dispatch
from iha.model.attention.masks import Mask
from iha.model.attention.mha import MultiHeadAttention
from iha.model.rope import Rope
from iha.variants.base import Geometry
from iha.variants.global_local import GlobalLocalSpec

CASES = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 2),
        "heads": st.sampled_from([1, 3]),
        "tokens": st.sampled_from([1, 2, 5, 13, 27]),
        "per_token": st.sampled_from([1, 2, 3]),
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
    b, n, p = case["batch"], case["tokens"], case["per_token"]
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
    monkeypatch.setattr(banded, "BAND_ROWS", 6)
    monkeypatch.setattr(banded, "TILE_ROWS", 10)
    monkeypatch.setattr(banded, "MOST_REPEATS", 3)
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
    geometry, rope, n = Geometry(16, 1, 2, 64), Rope(8, 1e4), 45
    spec = GlobalLocalSpec(kind="global_local", window=window or 64, period=2)
    layer = MultiHeadAttention(spec, geometry, 0, backend)
    q, k, v = (torch.randn(2, n, 2, width, dtype=torch.float64) for width in (8, 8, value_width))
    pad = torch.tensor([0, 5]) if padded else None
    seen = rows_apart(visible(n, 1, window, False), None if pad is None else pad.tolist(), None, 1)
    want = softmax_attention(*(x.transpose(1, 2) for x in (q, k, v)), seen, layer.scale).transpose(1, 2)
    for pieces in ([n], [20, 22, 1, 2]):
        cache = None if pieces == [n] else layer.new_cache(None, "pseudo")
        got, start = [], 0
        for length in pieces:
            part = [x[:, start : start + length].to(dtype) for x in (q, k, v)]
            got.append(layer.attend(*part, Frame(length, rope, q.device, start=start, pad=pad), cache))
            start += length
        torch.testing.assert_close(
            torch.cat(got, 1).double(), want, rtol=0, atol=2e-6 if dtype.itemsize == 4 else 1e-12
        )


STEPS = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 3),
        "heads": st.sampled_from([(1, 1), (4, 4), (4, 2)]),
        "widths": st.sampled_from([(8, 8), (40, 40), (64, 64), (96, 200), (40, 16)]),
        "tokens": st.sampled_from([2, 9, 33, 70]),
        "new": st.integers(1, 3),
        "per_token": st.sampled_from([1, 2, 3]),
        "window": st.sampled_from([None, 1, 5, 40]),
        "token_causal": st.booleans(),
        "pad": st.booleans(),
        "threads": st.sampled_from([1, 3]),
    }
)


def step_of(case):
    """Operands of a decode step as a cache hands them out: slices of longer buffers."""
    torch.manual_seed(0)
    b, (heads, value_heads), (width, value_width) = case["batch"], case["heads"], case["widths"]
    p, new = case["per_token"], min(case["new"], case["tokens"] - 1)
    n = case["tokens"] * p
    q = 2 * torch.randn(b, new * p, heads, width).transpose(1, 2)
    k = torch.randn(b, heads, n + 7, width)[:, :, 3 : 3 + n]
    v = torch.randn(b, value_heads, n + 5, value_width)[:, :, :n]
    pad = torch.randint(0, case["tokens"] - new + 1, (b,)) + 4 if case["pad"] else None
    window = None if case["window"] is None else case["window"] * p
    return q, k, v, Mask(new * p, n, window, p if case["token_causal"] else 1, p, 4, pad)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(STEPS)
def test_the_decode_kernel_is_exact(case):
    if decode.library() is None:
        pytest.skip("no C++ compiler")
    q, k, v, mask = step_of(case)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "THREAD_NUMBERS", 1)
        patch.setattr(torch, "get_num_threads", lambda: case["threads"])
        assert decode.usable(q, k, v, mask)
        got = decode.attend(q, k, v, mask, 0.3)
    want = attend(q.double(), k.double(), v.double(), mask, 0.3, "reference")
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("heads", [1, 3, 4])
@pytest.mark.parametrize(("tokens", "new"), [(1, 1), (2, 1), (21, 2), (40, 1)])
@pytest.mark.parametrize(("window", "group"), [(None, 1), (None, 3), (7, 1), (7, 3)])
@pytest.mark.parametrize("padded", [False, True])
def test_the_folded_decode_kernel_is_exact(heads, tokens, new, window, group, padded, monkeypatch):
    if decode.library() is None:
        pytest.skip("no C++ compiler")
    monkeypatch.setattr(decode, "THREAD_NUMBERS", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    torch.manual_seed(1)
    p, width = 3, 32
    q = torch.randn(2, new * p, heads, width)
    k, v = (torch.randn(2, tokens + 3, heads * width)[:, 2 : 2 + tokens] for _ in range(2))
    mixes = [torch.randn(p, heads, heads) for _ in range(2)]
    pad = torch.tensor([0, tokens - new]) if padded else None
    mask = Mask(new * p, tokens * p, None if window is None else window * p, group, p, 0, pad)
    within = Rope(width, 1e4).span(0, p, torch.device("cpu"))
    assert decode.usable_folded(q, k, v, mask)
    got = folded.attend(q, k, v, *mixes, within, mask, 0.2)
    doubles = [x.double() for x in (q, k, v, *mixes)]
    want = folded.attend(*doubles, (within[0].double(), within[1].double()), mask, 0.2)
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)


def test_the_decode_kernel_leaves_alone_what_it_cannot_do():
    q, k, v = (torch.randn(1, 2, n, 8) for n in (1, 40, 40))
    mask = Mask(1, 40)
    assert decode.usable(q, k, v, mask) == (decode.library() is not None)
    assert not decode.usable(q.double(), k.double(), v.double(), mask)
    assert not decode.usable(q[..., :7], k[..., :7], v, mask)
    assert not decode.usable(q.clone().requires_grad_(), k, v, mask)
    assert not decode.usable(q, k, v, Mask(1, 40, documents=torch.zeros(1, 40)))


def test_without_a_compiler_a_step_goes_through_torch(monkeypatch, caplog):
    q, k, v = (torch.randn(2, 2, n, 8) for n in (1, 40, 40))
    mask, want = Mask(1, 40), attend(q, k, v, Mask(1, 40), 0.3)
    caplog.set_level("INFO", "iha")
    monkeypatch.setenv("CXX", "no-such-compiler")
    native.library.cache_clear()
    try:
        assert not decode.usable(q, k, v, mask)
        torch.testing.assert_close(attend(q, k, v, mask, 0.3), want)
    finally:
        native.library.cache_clear()
    assert "kernel decode is done without" in caplog.text
