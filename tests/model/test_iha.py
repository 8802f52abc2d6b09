"""The acceptance tests of an IHA implementation (spec 13: T1 to T12) and what the paper's proofs miss (spec 8)."""

from __future__ import annotations

import attention_oracle as oracle
import pytest
import torch
from attention_lab import context, layer, model, spec_of, tokens

from iha.model.attention.iha import collapse_heads, interleave, mix_heads, un_interleave
from iha.model.attention.kernels import attend, dispatch, reference_attention
from iha.model.attention.masks import Mask

P, HEADS, LENGTH = 3, 4, 21


def interleaved(mask="flat", pseudo_heads=P, collapse="global", **kwargs):
    """An IHA layer without a window."""
    spec = spec_of("iha", pseudo_heads=pseudo_heads, mask=mask, collapse=collapse, global_layers="iha", window=64)
    return layer(spec, index=4, heads=HEADS, **kwargs)


def set_identity(module, own):
    """Alpha: identity for every pseudo-head; collapse: own head only, with weights `own` (P,)."""
    eye = torch.eye(HEADS, dtype=torch.float64)
    with torch.no_grad():
        for alpha in (module.alpha_q, module.alpha_k, module.alpha_v):
            alpha.copy_(eye.expand_as(alpha))
        module.collapse.copy_(torch.einsum("p,gh->gph", torch.tensor(own, dtype=torch.float64), eye))


def shared_positions(n_pseudo=P, positions=True):
    """A context in which all virtual tokens of a token share its position, or in which there are none."""
    ctx = context(LENGTH, n_pseudo=(1, n_pseudo))
    cos, sin = ctx.rotations[1, "virtual"]
    if not positions:
        cos, sin = torch.ones_like(cos), torch.zeros_like(sin)
    ctx.rotations[1, "virtual"] = (cos, sin)
    ctx.rotations[n_pseudo, "virtual"] = (cos.repeat_interleave(n_pseudo, 0), sin.repeat_interleave(n_pseudo, 0))
    return ctx


def plain(module):
    """MHA with the same projections."""
    mha = layer(spec_of("global"), heads=HEADS)
    mha.load_state_dict({"qkv.weight": module.qkv.weight, "out.weight": module.out.weight})
    return mha


@pytest.fixture
def x():
    torch.manual_seed(0)
    return torch.randn(2, LENGTH, 32, dtype=torch.float64)


@pytest.mark.parametrize("positions", [True, False])
@pytest.mark.parametrize("own", [[1.0, 0.0, 0.0], [0.2, 0.3, 0.5]])
def test_t01_identity_under_token_causality_is_mha(x, positions, own):
    module = interleaved("token")
    set_identity(module, own)
    ctx = shared_positions(positions=positions)
    torch.testing.assert_close(module(x, ctx), plain(module)(x, ctx))


def test_t02_identity_under_flat_causality_is_mha_with_the_last_pseudo_output_only(x):
    module = interleaved("flat")
    ctx = shared_positions()
    want = plain(module)(x, ctx)
    set_identity(module, [0.0, 0.0, 1.0])
    torch.testing.assert_close(module(x, ctx), want)
    set_identity(module, [1.0, 0.0, 0.0])
    assert (module(x, ctx) - want).abs().max() > 0.1


def test_d02_virtual_positions_are_never_mha(x):
    """The deployed layer is no superset of RoPE-MHA: inclusion holds without virtual positions only."""
    module = interleaved("flat")
    set_identity(module, [0.0, 0.0, 1.0])
    ctx = context(LENGTH, n_pseudo=(1, P))
    assert (module(x, ctx) - plain(module)(x, ctx)).abs().max() > 0.1


def test_t03_one_pseudo_head_is_mha_with_remixed_weights(x):
    module = interleaved(pseudo_heads=1, noise=0.5)
    mha = plain(module)
    with torch.no_grad():
        parts = mha.qkv.weight.view(3, HEADS, -1, 32)
        alphas = torch.cat((module.alpha_q, module.alpha_k, module.alpha_v))
        mha.qkv.weight.copy_(torch.einsum("thm,tmdx->thdx", alphas, parts).reshape(-1, 32))
        out = module.out.weight.view(32, HEADS, -1)
        mha.out.weight.copy_(torch.einsum("xgd,gh->xhd", out, module.collapse[:, 0]).reshape(32, 32))
    ctx = context(LENGTH)
    torch.testing.assert_close(module(x, ctx), mha(x, ctx))


@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "banded"])
@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("mask", ["flat", "token"])
def test_t04_later_tokens_change_nothing_before_them(x, mask, window, backend):
    spec = spec_of("iha", pseudo_heads=P, mask=mask, global_layers="iha", window=window or 64)
    module = layer(spec, index=4 if window is None else 0, backend=backend).float()
    x = x.float()
    changed = x.clone()
    changed[:, 11:] = torch.randn_like(changed[:, 11:])
    ctx = context(LENGTH, n_pseudo=(P,))
    before, after = module(x, ctx), module(changed, ctx)
    assert (before - after)[:, :11].abs().max() == 0
    assert (before - after)[:, 11:].abs().max() > 0.01


@pytest.mark.parametrize("pseudo_heads", [2, 3, 5])
def test_t05_virtual_index_is_n_times_p_plus_p(pseudo_heads):
    base = torch.arange(7.0)[:, None, None].expand(7, HEADS, 2)[None]
    alpha = torch.zeros(pseudo_heads, HEADS, HEADS)
    for p in range(pseudo_heads):
        for h in range(HEADS):
            alpha[p, h, 0] = 100 * p + 1000 * h  # pseudo-head (p, h) of token n is n (100 p + 1000 h)
    virtual = interleave(mix_heads(base, alpha))
    assert virtual.shape == (1, 7 * pseudo_heads, HEADS, 2)
    for n in range(7):
        for p in range(pseudo_heads):
            for h in range(HEADS):
                assert virtual[0, n * pseudo_heads + p, h, 0] == n * (100 * p + 1000 * h)


@pytest.mark.parametrize("pseudo_heads", [2, 3, 5])
def test_t05_collapse_inverts_the_interleaving(pseudo_heads):
    torch.manual_seed(0)
    heads = torch.randn(2, 7, HEADS, 2)
    alpha = torch.randn(pseudo_heads, HEADS, HEADS, dtype=torch.float64)
    stacked = alpha.view(-1, HEADS)
    inverse = torch.linalg.pinv(stacked).view(HEADS, pseudo_heads, HEADS)
    virtual = interleave(mix_heads(heads.double(), alpha))
    back = collapse_heads(un_interleave(virtual, pseudo_heads), inverse)
    torch.testing.assert_close(back, heads.double())


def test_t06_query_sees_min_of_index_and_window():
    window, p, n = 4, 3, 10
    seen = Mask(n * p, n * p, window=window * p, n_pseudo=p).dense(torch.device("cpu"))[0, 0]
    for token in range(n):
        for pseudo in range(p):
            assert seen[token * p + pseudo].sum() == min(token * p + pseudo + 1, window * p)


@pytest.mark.parametrize("k", [4, 9])
def test_t07_polynomial_filter_bank_with_sqrt_k_heads(k):
    """Spec 7.1, softmax off: [X, A X, .., A^(k-1) X] from s = sqrt(k) heads with s pseudo-heads each."""
    s, n, d = int(k**0.5), 12, 2
    generator = torch.Generator().manual_seed(k)
    a = torch.randn(n, n, generator=generator, dtype=torch.float64) / n**0.5
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    powers = [torch.linalg.matrix_power(a, i) for i in range(k)]
    q = torch.stack([powers[m * s] for m in range(s)], dim=1)[None]
    keys = torch.stack([powers[m].T for m in range(s)], dim=1)[None]
    values = torch.zeros(1, n, s, d * s, dtype=torch.float64)
    for m in range(s):
        values[0, :, m, m * d : (m + 1) * d] = x
    alpha_q = torch.zeros(s, s, s, dtype=torch.float64)
    alpha_q[0] = torch.eye(s)
    alpha_kv = torch.eye(s, dtype=torch.float64)[:, None, :].expand(s, s, s)
    vq, vk, vv = (interleave(mix_heads(x, a)) for x, a in ((q, alpha_q), (keys, alpha_kv), (values, alpha_kv)))
    scores = torch.einsum("bqhx,bkhx->bhqk", vq, vk)
    pseudo = torch.einsum("bhqk,bkhd->bqhd", scores, vv)
    first = torch.zeros(s, s, s, dtype=torch.float64)
    first[:, 0] = torch.eye(s)
    bank = collapse_heads(un_interleave(pseudo, s), first)[0].flatten(1)
    torch.testing.assert_close(bank, torch.cat([power @ x for power in powers], dim=1))


def sign_flip(value_sign):
    """Two pseudo-heads of one head on eight equal tokens, no mask, no positions; query, key, value in R^d."""
    q, k, v = (torch.randn(8, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in range(3))
    flip = torch.tensor([1.0, -1.0], dtype=torch.float64)[:, None, None]
    value = torch.tensor([1.0, value_sign], dtype=torch.float64)[:, None, None]
    bases = (x.expand(1, 6, 1, 8) for x in (q, k, v))
    virtual = [interleave(mix_heads(base, alpha)) for alpha, base in zip((flip, flip, value), bases, strict=True)]
    out = reference_attention(*(x.transpose(1, 2) for x in virtual), None, 8**-0.5)
    return out[0, 0, 0], v, (q @ k) / 8**0.5


def test_t08_sign_flipped_pair_is_v_tanh():
    out, v, score = sign_flip(-1.0)
    torch.testing.assert_close(out, v * torch.tanh(score))


def test_d01_the_papers_own_strictness_example_is_linear():
    """With both values +v the weights sum to one and the output is v, whatever the scores."""
    out, v, _ = sign_flip(1.0)
    torch.testing.assert_close(out, v)


@pytest.mark.parametrize(("collapse", "extra"), [("global", 4 * 16 * P), ("per_head", 3 * 16 * P + 4 * P)])
def test_t09_extra_parameters(collapse, extra):
    module = interleaved(collapse=collapse)
    assert sum(p.numel() for p in module.parameters()) - sum(p.numel() for p in plain(module).parameters()) == extra


def test_t10_merging_by_log_sum_exp_equals_the_interleaved_form(monkeypatch):
    """Token-causal IHA: one softmax over N P keys, or P ordinary attentions per query pseudo-head merged."""
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, HEADS, LENGTH * P, 8, dtype=torch.float64) for _ in range(3))
    seen = oracle.visible(LENGTH, P, None, True)
    want = oracle.softmax_attention(q, k, v, seen, 0.4)
    monkeypatch.setattr(dispatch, "MERGE_FROM", 0)
    torch.testing.assert_close(attend(q, k, v, Mask(LENGTH * P, LENGTH * P, group=P, n_pseudo=P), 0.4), want)
    causal = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    for p in range(P):
        scores = [(q[:, :, p::P] @ k[:, :, j::P].mT * 0.4).masked_fill(~causal, -torch.inf) for j in range(P)]
        parts = torch.stack([s.logsumexp(-1) for s in scores])
        weight = (parts - parts.logsumexp(0)).exp()[..., None]
        outs = torch.stack([s.softmax(-1) @ v[:, :, j::P] for j, s in enumerate(scores)])
        torch.testing.assert_close((weight * outs).sum(0), want[:, :, p::P])


@pytest.mark.parametrize("variant", ["iha", "iha_token", "iha_global", "iha_p1"])
def test_t11_decoding_equals_the_full_forward(variant):
    net, ids = model(variant, layers=5), tokens(2, 14)
    cache = net.new_cache(2)
    steps = [net(ids[:, i : i + 1], cache=cache) for i in range(14)]
    torch.testing.assert_close(torch.cat(steps, 1), net(ids), rtol=0, atol=1e-5)


@pytest.mark.parametrize("mask", ["flat", "token"])
def test_t12_pseudo_heads_differ_from_the_first_step(x, mask):
    module = interleaved(mask)
    loss = module(x, context(LENGTH, n_pseudo=(P,))).pow(2).sum()
    for grad in torch.autograd.grad(loss, (module.alpha_q, module.alpha_k, module.alpha_v)):
        for p in range(1, P):
            assert (grad[p] - grad[0]).abs().max() > 1e-3 * grad.abs().max()


def test_t12_without_noise_and_virtual_positions_they_would_not(x):
    """The symmetric fixed point that the noise breaks (spec 2.7)."""
    module = interleaved("token")
    set_identity(module, [1 / P] * P)
    loss = module(x, shared_positions()).pow(2).sum()
    for grad in torch.autograd.grad(loss, (module.alpha_q, module.alpha_k, module.alpha_v)):
        torch.testing.assert_close(grad, grad[:1].expand_as(grad))


def test_start_values_are_identity_plus_noise():
    module = interleaved(seed=5)
    eye = torch.eye(HEADS, dtype=torch.float64)
    for alpha in (module.alpha_q, module.alpha_k, module.alpha_v):
        assert 0.01 < (alpha - eye).std() < 0.03
    assert 0.01 / P < (module.collapse - eye[:, None, :] / P).std() < 0.03 / P


def test_oracle_and_layer_disagree_on_pseudo_major_order(x):
    """Stacking all first pseudo-heads before all second ones under a causal flag would leak the future."""
    module = interleaved()
    q, k, v = oracle.qkv(module, x)
    stacked = [torch.einsum("phm,bnmd->bpnhd", module.alpha_q, t).flatten(1, 2) for t in (q, k, v)]
    causal = torch.ones(LENGTH * P, LENGTH * P, dtype=torch.bool).tril()

    def run(values):
        return oracle.softmax_attention(*(t.transpose(1, 2) for t in (*stacked[:2], values)), causal, 0.3)

    future = stacked[2].clone()
    future[:, LENGTH - 1] += 1  # the last token's first pseudo-value
    leak = (run(stacked[2]) - run(future))[:, :, LENGTH : 2 * LENGTH - 1]
    assert leak.abs().max() > 1e-3
