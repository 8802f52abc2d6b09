"""FlexAttention and flash: what they are asked to compute, checked without a GPU; with one, the kernels themselves."""

from __future__ import annotations

import attention_oracle as oracle
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from test_kernels import CASES, setup

from iha.errors import UserError
from iha.model.attention.kernels import attend, dispatch, flash, flex
from iha.model.attention.masks import Mask

QUICK = settings(max_examples=25, deadline=None, derandomize=True)


@pytest.fixture
def eager_flex(monkeypatch):
    """Run FlexAttention's eager form as it stands; it would compile itself for each new shape."""
    monkeypatch.setattr(torch.nn.attention.flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile")
@settings(QUICK, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=CASES)
def test_flex_forward_equals_formula(eager_flex, case):
    q, k, v, mask, seen = setup(case)
    q, k, v = (x.detach() for x in (q, k, v))
    with torch.no_grad():
        got = attend(q, k, v, mask, 0.3, "flex")
    torch.testing.assert_close(got, oracle.softmax_attention(q, k, v, seen, 0.3), rtol=0, atol=1e-6)


@QUICK
@given(case=CASES)
def test_flex_blocks_cover_what_is_visible_and_full_blocks_hide_nothing(case):
    """With blocks of 4: eager FlexAttention ignores the block structure, the GPU kernel obeys it."""
    old, flex.BLOCK = flex.BLOCK, 4
    try:
        _, _, _, mask, seen = setup(case)
        some, every = flex.visible_blocks(mask, torch.device("cpu"))
    finally:
        flex.BLOCK = old
    short = -seen.shape[-1] % 4
    padded = torch.nn.functional.pad(seen, (0, short, 0, short))
    rows = padded.unfold(2, 4, 4).unfold(3, 4, 4)
    real = torch.nn.functional.pad(torch.ones_like(seen), (0, short, 0, short)).unfold(2, 4, 4).unfold(3, 4, 4)
    assert not (rows.any(-1).any(-1) & ~some).any()
    assert not (every & (real & ~rows).any(-1).any(-1)).any()
    assert not (every & ~some).any()


def test_flex_skips_what_a_window_hides():
    """At 8,192 tokens, P = 2, the derived window: a tenth of the blocks are touched, and most of these are full."""
    some, every = flex.visible_blocks(Mask(16_384, 16_384, window=2048), torch.device("cpu"))
    assert some.float().mean() < 0.13
    assert every.sum() > 0.85 * some.sum()


def fake_flash(q, k, v, bounds, longest, window, scale):
    """The documented contract of a variable-length kernel: causal, window (left, right) excludes the query itself."""
    out = torch.empty_like(q)
    for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        assert stop - start <= longest
        i = torch.arange(stop - start)
        back = i[:, None] - i[None, :]
        seen = (back >= -window[1]) & ((back <= window[0]) | (window[0] < 0))
        part = (x[start:stop].transpose(0, 1)[None] for x in (q, k, v))
        out[start:stop] = oracle.softmax_attention(*part, seen, scale)[0].transpose(0, 1)
    return out


@QUICK
@given(case=CASES)
def test_flash_segments_and_window_mean_the_mask(case):
    q, k, v, mask, seen = setup(case | {"token_causal": False})
    old, flash.variable_length_kernel = flash.variable_length_kernel, lambda: fake_flash
    try:
        got = attend(q, k, v, mask, 0.3, "flash")
    finally:
        flash.variable_length_kernel = old
    real = slice(None) if mask.pad is None else (torch.arange(q.shape[2]) // mask.n_pseudo >= mask.pad[:, None])
    want = oracle.softmax_attention(q, k, v, seen, 0.3)
    torch.testing.assert_close(got.transpose(1, 2)[real], want.transpose(1, 2)[real], rtol=0, atol=1e-12)


def test_flash_refuses_a_token_causal_mask():
    x = torch.zeros(1, 1, 4, 8)
    with pytest.raises(UserError, match=r"engine\.backend"):
        attend(x, x, x, Mask(4, 4, group=2, n_pseudo=2), 1.0, "flash")


def test_choice_by_device():
    assert dispatch.choose("cpu", "auto") == "banded"
    assert dispatch.choose("cuda", "auto") == "fused"
    assert dispatch.choose("cuda", "sdpa") == "sdpa"


def test_without_the_private_operators_masked_sdpa_takes_over(monkeypatch):
    monkeypatch.setattr(dispatch.cpu, "AVAILABLE", False)
    assert dispatch.choose("cpu", "auto") == "sdpa"
    q = torch.randn(1, 2, 12, 8, dtype=torch.float64)
    got = attend(q, q, q, Mask(12, 12, window=3), 0.3, "banded")
    torch.testing.assert_close(got, oracle.softmax_attention(q, q, q, oracle.visible(12, 1, 3), 0.3))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("backend", ["auto", "flex", "flash", "sdpa"])
@pytest.mark.parametrize("window", [None, 64, 200])
def test_gpu_backends_equal_the_formula(backend, window):
    """bf16 on the GPU against float64, forward and gradient, with two documents."""
    torch.manual_seed(0)
    documents = torch.zeros(2, 512, dtype=torch.long)
    documents[1, 200:] = 1
    leaves = [torch.randn(2, 4, 512, 64, dtype=torch.float64).bfloat16().double().requires_grad_() for _ in range(3)]
    near = [x.detach().bfloat16().cuda().requires_grad_() for x in leaves]
    seen = oracle.rows_apart(oracle.visible(512, 1, window), None, documents)
    want = oracle.softmax_attention(*leaves, seen, 0.125)
    got = attend(*near, Mask(512, 512, window, documents=documents.cuda()), 0.125, backend)
    pairs = [(got, want)]
    weight = torch.randn_like(want)
    pairs += zip(
        torch.autograd.grad((got * weight.cuda()).sum(), near),
        torch.autograd.grad((want * weight).sum(), leaves),
        strict=True,
    )
    for ours, theirs in pairs:
        assert (ours.cpu().double() - theirs).norm() < 0.01 * theirs.norm()
