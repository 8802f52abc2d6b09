"""The layers used alone, as `from iha import InterleavedHeadAttention` offers them."""

from __future__ import annotations

import subprocess
import sys

import attention_oracle as oracle
import pytest
import torch
from attention_lab import VARIANTS, model, spec_of

import iha
from iha.config.schema import ModelConfig
from iha.model.attention.paired_heads import PairedHeadsAttention

D, H, N = 32, 4, 21
LAYERS = {
    "iha": lambda: iha.InterleavedHeadAttention(D, H, pseudo_heads=3, window=4),
    "iha_global": lambda: iha.InterleavedHeadAttention(D, H),
    "iha_token": lambda: iha.InterleavedHeadAttention(D, H, pseudo_heads=2, window=4, mask="token"),
    "iha_per_head": lambda: iha.InterleavedHeadAttention(D, H, pseudo_heads=2, collapse="per_head"),
    "iha_scaled": lambda: iha.InterleavedHeadAttention(D, H, window=5, positions="scaled"),
    "iha_shared": lambda: iha.InterleavedHeadAttention(D, H, window=5, positions="shared"),
    "iha_mix_only": lambda: iha.InterleavedHeadAttention(D, H, pseudo_heads=1, window=4, collapse="none"),
    "paired_heads": lambda: PairedHeadsAttention(D, H, window=4),
    "talking_heads": lambda: iha.TalkingHeadsAttention(D, H),
    "diff": lambda: iha.DifferentialAttention(D, H, depth=2),
    "sliding_window": lambda: iha.SlidingWindowAttention(D, H, window=4),
    "mha": lambda: iha.MultiHeadAttention(D, H),
}
every_layer = pytest.mark.parametrize("name", LAYERS)


@pytest.fixture
def x():
    return torch.randn(2, N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def make(name):
    torch.manual_seed(1)
    return LAYERS[name]().double()


def test_importing_the_package_does_not_import_torch():
    code = "import sys, iha; dir(iha); iha.__version__; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="NoSuchAttention"):
        iha.NoSuchAttention  # noqa: B018
    assert {"InterleavedHeadAttention", "build_model", "load_model", "__version__"} <= set(dir(iha))


@every_layer
def test_a_layer_is_initialised_causal_and_keeps_the_shape(name, x):
    module = make(name)
    out = module(x)
    assert out.shape == x.shape and out.isfinite().all() and out.std() > 0.01
    changed = x.clone()
    changed[:, 11:] = torch.randn_like(changed[:, 11:])
    moved = (module(changed) - out).abs()
    assert moved[:, :11].max() == 0 and moved[:, 11:].max() > 1e-3
    out.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())


@every_layer
@pytest.mark.parametrize("pieces", [(1,) * N, (7, 1, 1, 12), (20, 1)])
def test_decoding_with_a_cache_equals_the_whole(name, x, pieces):
    module = make(name)
    cache = module.new_cache()
    with torch.no_grad():
        steps = torch.cat([module(piece, cache=cache) for piece in x.split(pieces, dim=1)], dim=1)
        torch.testing.assert_close(steps, module(x), rtol=0, atol=1e-6)
    assert cache.length == N * module.n_pseudo
    assert module.window is None or cache.entries <= module.window * module.n_pseudo


@every_layer
def test_documents_are_kept_apart(name, x):
    module = make(name)
    ids = torch.tensor([[5] * 8 + [2] * 9 + [5] * 4] * 2)
    out, start = module(x, doc_ids=ids), 0
    for length in (8, 9, 4):
        rows = slice(start, start + length)
        alone = module(x[:, rows], positions=torch.arange(start, start + length))
        torch.testing.assert_close(out[:, rows], alone, rtol=0, atol=1e-6)
        start += length


@every_layer
def test_positions_count_by_their_distances_only(name, x):
    module = make(name)
    far = torch.arange(N) + torch.tensor([[0], [1000]])
    torch.testing.assert_close(module(x, positions=far), module(x), rtol=0, atol=1e-4)
    assert (module(x, positions=torch.arange(N) * 3) - module(x)).abs().max() > 1e-3


@every_layer
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_runs_in_every_type(name, dtype, x):
    module, want = make(name), make(name)(x)
    got = module.to(dtype)(x.to(dtype))
    assert got.dtype == dtype
    assert (got.double() - want).norm() / want.norm() < {torch.float32: 1e-5, torch.bfloat16: 0.05}[dtype]


@pytest.mark.parametrize("positions", ["virtual", "scaled", "shared"])
@pytest.mark.parametrize("window", [None, 4])
def test_interleaved_layer_against_the_oracle_at_every_kind_of_positions(positions, window, x):
    torch.manual_seed(2)
    module = iha.InterleavedHeadAttention(D, H, pseudo_heads=3, window=window, positions=positions, rope_theta=1e3)
    module.double()
    n, p = torch.arange(N)[:, None], torch.arange(3)
    places = {"virtual": n * 3 + p, "scaled": n + p / 3, "shared": n + 0 * p}[positions].flatten()
    want = oracle.iha(module, x, 1e3, oracle.visible(N, 3, window, False), places)
    torch.testing.assert_close(module(x), want, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("mask", "collapse", "same"), [("token", "global", True), ("token", "per_head", True), ("flat", "global", False)]
)
def test_without_noise_at_shared_positions_a_token_causal_layer_starts_as_mha(mask, collapse, same, x):
    """With a flat mask it does not: the last pseudo-query sees its own token more often than the first."""
    options = {"positions": "shared", "noise_std": 0.0, "mask": mask, "collapse": collapse}
    module = iha.InterleavedHeadAttention(D, H, pseudo_heads=2, **options).double()
    plain = iha.MultiHeadAttention(D, H).double()
    plain.load_state_dict({"qkv.weight": module.qkv.weight, "out.weight": module.out.weight})
    with torch.no_grad():
        difference = float((module(x) - plain(x)).abs().max())
    assert difference < 1e-14 if same else difference > 1e-3


def test_the_automatic_window_is_n_over_two_p_squared():
    layer = iha.InterleavedHeadAttention(D, H, pseudo_heads=2, window="auto", seq_len=8192)
    assert layer.window == 1024
    assert iha.InterleavedHeadAttention(D, H).window is None
    spec, shape = spec_of("iha", pseudo_heads=2), ModelConfig(hidden_dim=D, n_layers=1, n_heads=H, ffn_dim=48)
    assert iha.build_model(shape, spec, 50, 8192, seed=0).blocks[0].attention.window == 1024


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: iha.MultiHeadAttention(30, 4), "dim is 30"),
        (lambda: iha.MultiHeadAttention(12, 4)(torch.zeros(1, 2, 12)), "dim / n_heads is 3"),
        (lambda: iha.SlidingWindowAttention(32, 4, window=0), "window is 0"),
        (lambda: iha.DifferentialAttention(24, 3), "n_heads is 3"),
        (lambda: iha.InterleavedHeadAttention(32, 4, pseudo_heads=0), "pseudo_heads is 0"),
        (lambda: iha.InterleavedHeadAttention(32, 4, window="auto"), "seq_len None"),
        (lambda: iha.InterleavedHeadAttention(32, 4, pseudo_heads=3, window="auto", seq_len=64), "seq_len 64"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_with_field_and_value(build, field):
    with pytest.raises(ValueError, match=field):
        build()


def test_documents_and_a_cache_exclude_each_other(x):
    module = make("mha")
    with pytest.raises(ValueError, match="doc_ids and cache"):
        module(x, cache=module.new_cache(), doc_ids=torch.zeros(2, N, dtype=torch.long))


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_layers_of_a_model_are_these_classes_and_work_alone(variant, x):
    classes = {
        "global": {iha.MultiHeadAttention},
        "global_local": {iha.MultiHeadAttention, iha.SlidingWindowAttention},
        "talking_heads": {iha.TalkingHeadsAttention},
        "diff": {iha.DifferentialAttention},
        "paired_heads": {iha.MultiHeadAttention, PairedHeadsAttention},
        "iha_global": {iha.InterleavedHeadAttention},
    }
    network = model(variant, layers=5)
    expected = classes.get(variant, {iha.MultiHeadAttention, iha.InterleavedHeadAttention})
    assert {type(block.attention) for block in network.blocks} == expected
    attention = network.blocks[0].attention
    context = network.blocks[4].attention.context(x)
    if attention.n_pseudo == 1:
        assert torch.equal(attention(x), attention(x, context))
    assert attention(x).shape == x.shape


def test_the_mix_of_heads_is_defined_in_one_place(monkeypatch, x):
    """Another mix in the algorithm's module changes the language model's layer, whoever built it."""
    from iha.model.attention import iha as algorithm

    network, alone = model("iha", layers=1), make("iha")
    before = network.blocks[0].attention(x), alone(x)
    original = algorithm.mix_heads
    monkeypatch.setattr(algorithm, "mix_heads", lambda x, alpha, n_pseudo=1: original(x, alpha.flip(-1), n_pseudo))
    for old, module in zip(before, (network.blocks[0].attention, alone), strict=True):
        assert (module(x) - old).abs().max() > 1e-3


def test_a_model_in_16_bits_keeps_mixes_and_norms_in_fp32(tmp_path):
    from iha.model.files import load_model, save_model

    ids = torch.arange(12)[None]
    for variant in ("iha", "diff", "talking_heads"):
        network = model(variant, dtype=torch.float32)
        save_model(network, tmp_path, {})
        low = load_model(tmp_path, dtype=torch.bfloat16)
        kept = {name for name, p in low.named_parameters() if p.dtype == torch.float32}
        assert kept == network.no_decay_names() - {"embed.weight"}
        with torch.no_grad():
            want, got = network(ids), low(ids)
        assert (got - want).norm() / want.norm() < 0.05
