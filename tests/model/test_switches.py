"""IHA's switches (mix, collapse none, positions, learning rate) and paired heads, each against an exact oracle."""

from __future__ import annotations

import attention_oracle as oracle
import pytest
import torch
from attention_lab import model, spec_of
from torch.utils.flop_counter import FlopCounterMode

import iha
from iha.config.schema import ModelConfig
from iha.model.attention.iha import fold_heads
from iha.train.optimizer import AdamW
from iha.variants import Geometry, live_pairs

D, H, N = 32, 4, 21


@pytest.fixture
def x():
    return torch.randn(2, N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def interleaved(**options):
    torch.manual_seed(3)
    return iha.InterleavedHeadAttention(D, H, noise_std=0.5, **options).double()


@pytest.mark.parametrize("mix", [(), ("q",), ("k", "v"), ("q", "k")])
@pytest.mark.parametrize("collapse", ["global", "per_head"])
def test_what_is_not_mixed_is_copied(mix, collapse, x):
    module = interleaved(pseudo_heads=3, window=4, mix=mix, collapse=collapse)
    whole = interleaved(pseudo_heads=3, window=4, collapse=collapse)
    with torch.no_grad():
        for part in "qkv":
            getattr(whole, f"alpha_{part}").copy_(torch.eye(H).expand(3, -1, -1))
        missing, unexpected = whole.load_state_dict(module.state_dict(), strict=False)
    assert set(missing) == {f"alpha_{part}" for part in "qkv" if part not in mix} and not unexpected
    torch.testing.assert_close(module(x), oracle.iha(whole, x, 5e5, oracle.visible(N, 3, 4)), rtol=0, atol=1e-5)
    torch.testing.assert_close(module(x), whole(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("mix", [("q", "k", "v"), ("v",)])
@pytest.mark.parametrize("tokens", [N, 5])
def test_mixing_alone_is_mha_with_mixed_projections(mix, tokens, x):
    """Folded into the weights where there are D tokens or more, token by token below; the same function."""
    module = interleaved(pseudo_heads=1, window=4, mix=mix, collapse="none")
    plain = iha.SlidingWindowAttention(D, H, window=4).double()
    assert (2 * tokens >= D) == (tokens == N), "both sides of the choice are tested"
    alphas = [getattr(module, f"alpha_{part}") for part in "qkv"]
    weights = [
        w if a is None else torch.einsum("hm,mdx->hdx", a[0], w.view(H, -1, D)).reshape(D, D)
        for w, a in zip(module.qkv.weight.chunk(3), alphas, strict=True)
    ]
    plain.load_state_dict({"qkv.weight": torch.cat(weights), "out.weight": module.out.weight})
    torch.testing.assert_close(module(x[:, :tokens]), plain(x[:, :tokens]), rtol=0, atol=1e-12)
    assert not hasattr(module.collapse, "shape")


def test_folding_is_projecting_and_then_mixing(x):
    weight, alpha = torch.randn(D, D, dtype=torch.float64), torch.randn(H, H, dtype=torch.float64)
    mixed = torch.einsum("hm,bnmd->bnhd", alpha, (x @ weight.T).view(2, N, H, -1)).flatten(2)
    torch.testing.assert_close(x @ fold_heads(weight, alpha).T, mixed)


@pytest.mark.parametrize("window", [None, 4])
def test_paired_heads_are_one_hot_iha(window, x):
    torch.manual_seed(1)
    paired = iha_paired(window)
    whole = iha.InterleavedHeadAttention(D, H, pseudo_heads=2, window=window).double()
    groups = H // 2
    alpha, collapse = torch.zeros(2, H, H), torch.zeros(H, 2, H)
    for p in range(2):
        for h in range(H):
            alpha[p, h, p * groups + h % groups] = 1
        for g in range(groups):
            collapse[p * groups + g, p, g] = 1
    mixes = {"alpha_q": alpha, "alpha_k": alpha, "alpha_v": alpha, "collapse": collapse}
    whole.load_state_dict({**paired.state_dict(), **mixes})
    torch.testing.assert_close(paired(x), whole(x), rtol=0, atol=1e-13)


def iha_paired(window):
    from iha.model.attention.paired_heads import PairedHeadsAttention

    return PairedHeadsAttention(D, H, window=window).double()


def test_paired_heads_cost_half_of_ihas_attention():
    geometry = Geometry(D, 5, H, 64)
    paired, whole = spec_of("paired_heads"), spec_of("iha", pseudo_heads=2)
    for layer in range(5):
        ours, theirs = (s.forward_flops(geometry, layer, 64) for s in (paired, whole))
        assert paired.window_at(geometry, layer) == whole.window_at(geometry, layer)
        assert ours.attention * (2 if layer < 4 else 1) == theirs.attention
        assert (ours.mixing, paired.params(geometry, layer)) == (0, 4 * D * D)
    assert paired.asymptotic_pairs(geometry, 0, 64) == 2 * 64 * 8
    assert "n_heads is 3" in spec_of("paired_heads").problems(Geometry(48, 2, 3, 64))[0]
    assert "window is 0" in spec_of("paired_heads", window=0).problems(geometry)[0]


@pytest.mark.parametrize("tokens", [16, 64])
@pytest.mark.parametrize(
    ("kind", "fields", "pairs"),
    [
        ("iha", {"pseudo_heads": 1, "collapse": "none"}, 1),
        ("iha", {"pseudo_heads": 1, "collapse": "none", "mix": ["k", "v"]}, 1),
        ("iha", {"pseudo_heads": 2, "mix": ["q"], "positions": "scaled"}, 2),
        ("iha", {"pseudo_heads": 2, "n_kv_heads": 2}, 2),
        ("global_local", {"n_kv_heads": 1}, 1),
        ("paired_heads", {}, 2),
    ],
)
def test_the_ledger_equals_torchs_counter(kind, fields, pairs, tokens):
    """One local layer with every pair computed, in place of the pairs that its mask leaves."""
    spec = spec_of(kind, window=64, **fields)
    geometry = Geometry(D, 1, H, 64)
    shape = ModelConfig(hidden_dim=D, n_layers=1, n_heads=H, ffn_dim=48)
    layer = iha.build_model(shape, spec, 50, 64, seed=0, backend="reference").blocks[0].attention
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        layer(torch.zeros(1, tokens, D))
    counted = spec.forward_flops(geometry, 0, tokens)
    dense = counted.attention * (pairs * tokens) ** 2 // live_pairs(pairs * tokens, pairs * 64)
    assert counter.get_total_flops() == counted.projections + counted.mixing + dense
    assert sum(p.numel() for p in layer.parameters()) == spec.params(geometry, 0)


@pytest.mark.parametrize("kv", [1, 2])
@pytest.mark.parametrize("pseudo_heads", [2, 3])
def test_grouped_keys_lie_within_iha_with_all_heads(kv, pseudo_heads, x):
    """Unused key heads are zero, and alpha_k and alpha_v are repeated for the query heads that share one."""
    module = interleaved(pseudo_heads=pseudo_heads, window=4, n_kv_heads=kv)
    whole = interleaved(pseudo_heads=pseudo_heads, window=4)
    state, width = module.state_dict(), D // H
    wq, wk, wv = state["qkv.weight"].split([D, kv * width, kv * width])
    rows = [torch.nn.functional.pad(w, (0, 0, 0, D - kv * width)) for w in (wk, wv)]
    state["qkv.weight"] = torch.cat((wq, *rows))
    for name in ("alpha_k", "alpha_v"):
        state[name] = torch.nn.functional.pad(state[name].repeat_interleave(H // kv, dim=1), (0, H - kv))
    whole.load_state_dict(state)
    torch.testing.assert_close(module(x), whole(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kv", [1, 2])
def test_grouped_mha_is_mha_with_repeated_projections(kv, x):
    module = iha.MultiHeadAttention(D, H, n_kv_heads=kv).double()
    plain, width = iha.MultiHeadAttention(D, H).double(), D // H
    wq, wk, wv = module.qkv.weight.split([D, kv * width, kv * width])
    rows = [w.view(kv, width, D).repeat_interleave(H // kv, dim=0).reshape(D, D) for w in (wk, wv)]
    plain.load_state_dict({"qkv.weight": torch.cat((wq, *rows)), "out.weight": module.out.weight})
    torch.testing.assert_close(module(x), plain(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["global", "global_local", "iha"])
def test_grouped_keys_are_counted_and_cached(kind):
    spec, geometry = spec_of(kind, n_kv_heads=2), Geometry(D, 5, H, 64)
    all_heads = spec_of(kind)
    for layer in (0, 4):
        assert 2 * spec.cache_values(geometry, layer, 50) == all_heads.cache_values(geometry, layer, 50)
        assert spec.forward_flops(geometry, layer, 64).projections == 2 * 64 * 3 * D * D
    assert "n_kv_heads is 3" in spec_of(kind, n_kv_heads=3).problems(geometry)[0]
    with pytest.raises(ValueError, match="n_kv_heads is 2"):
        iha.TalkingHeadsAttention(D, H, n_kv_heads=2)


def test_the_learning_rate_of_mixes_is_multiplied():
    torch.manual_seed(0)
    spec, shape = spec_of("iha", lr_multiplier=10.0), ModelConfig(hidden_dim=D, n_layers=5, n_heads=H, ffn_dim=48)
    network = iha.build_model(shape, spec, 50, 64, seed=1)
    multipliers = network.lr_multipliers()
    mixes = {n for n, _ in network.named_parameters() if "alpha_" in n or "collapse" in n}
    assert multipliers == dict.fromkeys(mixes, 10.0) and len(mixes) == 4 * 4
    assert model("iha").lr_multipliers() == {}
    named = dict(network.named_parameters())
    before = {n: p.detach().clone() for n, p in named.items()}
    for p in named.values():
        p.grad = torch.ones_like(p)

    class Plain:
        betas, eps, weight_decay = (0.9, 0.95), 1e-8, 0.0

    AdamW(named, network.no_decay_names(), Plain(), multipliers).step(1e-3)
    for name, value in before.items():
        moved = (value - named[name].detach()).mean()
        assert float(moved) == pytest.approx(1e-2 if name in mixes else 1e-3, rel=1e-2)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"pseudo_heads": 2, "collapse": "none"}, "collapse is 'none' with pseudo_heads 2"),
        ({"mix": ("q", "q")}, "mix is ['q', 'q']"),
        ({"lr_multiplier": 0.0}, "lr_multiplier is 0.0"),
    ],
)
def test_switches_that_do_not_fit_are_named(fields, words):
    (problem,) = spec_of("iha", **fields).problems(Geometry(D, 5, H, 64))
    assert words in problem
