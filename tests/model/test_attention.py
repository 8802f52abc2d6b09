"""Each variant's layer against its formula in float64: forward, and the gradient of input and every parameter."""

from __future__ import annotations

import attention_oracle as oracle
import pytest
import torch
from attention_lab import THETA, context, layer, spec_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iha.model.attention import talking_heads

SHAPES = {
    "batch": st.integers(1, 2),
    "tokens": st.sampled_from([1, 2, 7, 19, 33]),
    "heads": st.sampled_from([2, 4]),
    "seed": st.integers(0, 9),
    "backend": st.sampled_from(["auto", "sdpa", "reference"]),
}
QUICK = settings(max_examples=15, deadline=None, derandomize=True)


def check(module, x, want_of, ctx):
    """Layer and oracle agree in value and gradients."""
    leaves = (x, *module.parameters())
    got, want = module(x, ctx), want_of(module, x)
    weight = torch.linspace(-1, 1, got.numel(), dtype=got.dtype).view_as(got)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-11)
    ours = torch.autograd.grad((got * weight).sum(), leaves)
    theirs = torch.autograd.grad((want * weight).sum(), leaves)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


def inputs(case, head_dim=8):
    torch.manual_seed(case["seed"])
    return torch.randn(case["batch"], case["tokens"], case["heads"] * head_dim, dtype=torch.float64, requires_grad=True)


@QUICK
@given(st.fixed_dictionaries({**SHAPES, "window": st.sampled_from([None, 1, 3, 50])}))
def test_mha_and_local(case):
    spec = spec_of("global") if case["window"] is None else spec_of("global_local", window=case["window"])
    module = layer(spec, heads=case["heads"], seed=case["seed"], backend=case["backend"])
    seen = oracle.visible(case["tokens"], 1, case["window"])
    check(module, inputs(case), lambda m, x: oracle.mha(m, x, THETA, seen), context(case["tokens"]))


@pytest.fixture(params=[True, False], ids=["recomputed", "kept"])
def small_chunks(request, monkeypatch):
    """Chunks of five queries, recomputed in the backward pass or kept for it."""
    monkeypatch.setattr(talking_heads, "WHOLE", 5)
    monkeypatch.setattr(talking_heads, "CHUNK", 5)
    monkeypatch.setattr(talking_heads, "RECOMPUTE_FROM", 10 if request.param else 999)


@settings(QUICK, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.fixed_dictionaries(SHAPES))
def test_talking_heads(small_chunks, case):
    module = layer(spec_of("talking_heads"), heads=case["heads"], seed=case["seed"], noise=0.5)
    seen = oracle.visible(case["tokens"])
    check(module, inputs(case), lambda m, x: oracle.talking_heads(m, x, THETA, seen), context(case["tokens"]))


@QUICK
@given(st.fixed_dictionaries(SHAPES), st.integers(0, 3))
def test_diff(case, index):
    module = layer(
        spec_of("diff"), heads=case["heads"], seed=case["seed"], index=index, backend=case["backend"], noise=0.2
    )
    seen = oracle.visible(case["tokens"])
    check(module, inputs(case), lambda m, x: oracle.diff(m, x, THETA, seen, index), context(case["tokens"]))


@QUICK
@given(
    st.fixed_dictionaries(
        {
            **SHAPES,
            "window": st.sampled_from([1, 3, 50]),
            "pseudo_heads": st.sampled_from([1, 2, 3, 5]),
            "mask": st.sampled_from(["flat", "token"]),
            "collapse": st.sampled_from(["global", "per_head"]),
            "layer": st.sampled_from([0, 4]),
        }
    )
)
def test_iha(case):
    options = {name: case[name] for name in ("window", "pseudo_heads", "mask", "collapse")}
    spec = spec_of("iha", global_layers="iha", **options)
    module = layer(
        spec, heads=case["heads"], seed=case["seed"], index=case["layer"], backend=case["backend"], noise=0.3
    )
    window = None if case["layer"] == 4 else case["window"]
    seen = oracle.visible(case["tokens"], case["pseudo_heads"], window, case["mask"] == "token")
    ctx = context(case["tokens"], n_pseudo=(case["pseudo_heads"],))
    check(module, inputs(case), lambda m, x: oracle.iha(m, x, THETA, seen), ctx)


def test_diff_without_lambda_and_norm_it_is_the_first_sub_head(monkeypatch):
    """Value width 2d, times 1 - lambda_init."""
    module = layer(spec_of("diff"), index=1)
    monkeypatch.setattr(module, "weight", lambda: torch.zeros((), dtype=torch.float64))
    monkeypatch.setattr(module, "normalise", lambda heads: heads * (1 - module.lambda_init))
    x = torch.randn(1, 9, 32, dtype=torch.float64)
    q, k, v = oracle.qkv(module, x)
    q, k = oracle.rope(q, THETA)[:, :, 0::2], oracle.rope(k, THETA)[:, :, 0::2]
    wide = torch.cat((v[:, :, 0::2], v[:, :, 1::2]), dim=-1)
    assert wide.shape == (1, 9, 2, 16)
    first = oracle.softmax_attention(*(t.transpose(1, 2) for t in (q, k, wide)), oracle.visible(9), module.scale)
    want = first.transpose(1, 2).flatten(2) * (1 - 0.355509) @ module.out.weight.T
    torch.testing.assert_close(module(x, context(9)), want, rtol=1e-5, atol=1e-6)


def test_mixing_before_the_mask_would_be_nan():
    """The mixer [[1, -1], [0, 1]] turns masked logits into inf - inf; the mask comes after it."""
    module = layer(spec_of("talking_heads"), heads=2)
    with torch.no_grad():
        module.pre_mix.copy_(torch.tensor([[1.0, -1.0], [0.0, 1.0]]))
    x = torch.randn(1, 4, 16, dtype=torch.float64)
    out = module(x, context(4))
    assert out.isfinite().all()
    for t in range(4):
        changed = x.clone()
        changed[:, t + 1 :] += 1
        assert (module(changed, context(4)) - out)[:, : t + 1].abs().max() == 0
    seen = oracle.visible(4)
    logits = torch.zeros(1, 2, 4, 4).masked_fill(~seen, -torch.inf)
    assert torch.einsum("gh,bhqk->bgqk", module.pre_mix.float(), logits).isnan().any()


def test_identity_mixes_are_mha():
    module, mha = layer(spec_of("talking_heads")), layer(spec_of("global"))
    mha.load_state_dict({"qkv.weight": module.qkv.weight, "out.weight": module.out.weight})
    x = torch.randn(2, 30, 32, dtype=torch.float64)
    torch.testing.assert_close(module(x, context(30)), mha(x, context(30)))


def test_iha_global_layer_is_plain_mha_unless_asked():
    """Spec 2.5: a global IHA layer would cost P^2 times the layer it stands for."""
    assert type(layer(spec_of("iha"), index=4)).__name__ == "MultiHeadAttention"
    assert type(layer(spec_of("iha"), index=3)).__name__ == "InterleavedHeadAttention"
    assert type(layer(spec_of("iha", global_layers="iha"), index=4)).__name__ == "InterleavedHeadAttention"


@pytest.mark.parametrize("kind", ["global", "talking_heads", "diff", "iha"])
def test_bf16_stays_close_to_float64(kind):
    """A bf16 layer is off by rounding, not by a mask or a scale."""
    module = layer(spec_of(kind), seed=3)
    x = torch.randn(2, 40, 32, dtype=torch.float64)
    want = module(x, context(40, n_pseudo=(1, 2)))
    got = module.bfloat16()(x.bfloat16(), context(40, n_pseudo=(1, 2)))
    assert got.dtype == torch.bfloat16
    assert ((got.double() - want).norm() / want.norm()).item() < 0.02


@pytest.mark.parametrize("rows", [1, 3])
def test_talking_heads_row_by_row_gives_the_same_numbers(rows, monkeypatch):
    """Without gradients a CPU takes long rows one by one; every number is the same, with one mask or one per row."""
    monkeypatch.setattr(talking_heads, "BY_ROW_FROM", 1)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(3, 4, n, 8, generator=generator) for n in (5, 9, 9))
    pre, post = (torch.randn(4, 4, generator=generator) for _ in range(2))
    seen = torch.rand(rows, 1, 5, 9, generator=generator) > 0.3
    with torch.no_grad():
        assert torch.equal(
            talking_heads.mixed_attention_by_row(q, k, v, seen, pre, post),
            talking_heads.mixed_attention(q, k, v, seen, pre, post),
        )
