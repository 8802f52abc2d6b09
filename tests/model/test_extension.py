"""A variant is one file and one config line: nothing in the package knows the toy, yet everything works with it."""

from __future__ import annotations

import re

import pytest
import torch
from attention_lab import VARIANTS, spec_of, tokens
from sinks_variant import SinksSpec
from toy_variant import ToyAttention, ToySpec

from iha.config.load import parse_config
from iha.config.schema import ModelConfig, Variant
from iha.errors import ConfigError
from iha.model.attention.kernels import announce
from iha.model.files import load_model, save_model
from iha.model.transformer import build_model, check_shapes
from iha.variants.base import Geometry, LayerFlops, check_variant

TOY = ToySpec(kind="toy_variant:ToySpec")
SMALL = ModelConfig(hidden_dim=32, n_layers=2, n_heads=4, ffn_dim=48)


def test_a_variant_from_outside_is_configured_trained_decoded_and_saved(tmp_path):
    line = {"name": "toy", "attention": {"kind": "toy_variant:ToySpec", "start": 0.5}}
    spec = Variant.model_validate(line).attention
    config = ModelConfig(hidden_dim=32, n_layers=2, n_heads=4, ffn_dim=48)
    net, ids = build_model(config, spec, 50, 64, seed=1), tokens(2, 12)
    net(ids).sum().backward()
    attention = net.blocks[0].attention
    assert attention.gain.grad.abs().min() > 0
    assert torch.equal(attention.gain.data, torch.full((4, 1), 0.5))
    assert sum(p.numel() for p in attention.parameters()) == spec.params(Geometry(32, 2, 4, 64), 0)
    assert "blocks.0.attention.gain" in net.no_decay_names()
    with torch.no_grad():
        cache = net.new_cache(2)
        steps = torch.cat([net(ids[:, i : i + 1], cache=cache) for i in range(12)], dim=1)
        torch.testing.assert_close(steps, net(ids), rtol=0, atol=1e-5)
        save_model(net, tmp_path, {})
        assert torch.equal(load_model(tmp_path)(ids), net(ids))


@pytest.mark.parametrize("shape", [(1, 2, 1), (1, 1, 32), (1, 2, 31), (2, 32), (1, 1, 2, 32)])
def test_a_forward_of_another_shape_is_named_and_never_broadcast(shape, monkeypatch):
    monkeypatch.setattr(ToyAttention, "compute", lambda self, x, context, cache: x.new_zeros(shape))
    with pytest.raises(ConfigError) as caught:
        build_model(SMALL, TOY, 50, 64, seed=1)
    assert "ToyAttention of layer 0" in str(caught.value) and f"returned {shape}" in str(caught.value)
    assert "(1, 2, 32)" in str(caught.value)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_layer_of_every_variant_keeps_the_shape(variant):
    check_shapes(build_model(SMALL, spec_of(**VARIANTS[variant]), 50, 64, seed=1))


@pytest.mark.parametrize(
    ("member", "wrong", "line"),
    [
        ("forward_flops", lambda *_: LayerFlops(5, -7, 5), "forward_flops.mixing(layer 0, 8192 tokens) is -7"),
        ("forward_flops", lambda *_: LayerFlops(5, 7, 2.5), "forward_flops.attention(layer 0, 8192 tokens) is 2.5"),
        (
            "forward_flops",
            lambda self, geometry, layer, n: LayerFlops(1, 2, 65536 - n - layer),
            "forward_flops.attention(layer 1, 65536 tokens) is -1",
        ),
        ("params", lambda *_: float("nan"), "params(layer 0) is nan"),
        ("cache_values", lambda *_: -1, "cache_values(layer 0, 8192 tokens) is -1"),
        ("asymptotic_pairs", lambda *_: None, "asymptotic_pairs(layer 0, 8192 tokens) is None"),
    ],
)
def test_a_spec_the_ledger_cannot_reckon_with_is_refused_before_anything_runs(member, wrong, line, monkeypatch):
    monkeypatch.setattr(ToySpec, member, wrong)
    said = _refusal()
    assert said.startswith(f"config: variants.global.attention.{line}")
    assert said.count("\n") == 0, "once, not for every layer"
    assert "; allowed: a whole number, 0 or more. Change it in class toy_variant:ToySpec" in said


def _refusal():
    """What a config that names the toy is answered."""
    with pytest.raises(ConfigError) as caught:
        parse_config({"variants": [{"name": "global", "attention": {"kind": "toy_variant:ToySpec"}}]})
    return str(caught.value)


@pytest.mark.parametrize(
    ("member", "wrong", "line"),
    [
        ("forward_flops", lambda *_: 1 // 0, "raised ZeroDivisionError: integer division or modulo by zero"),
        (
            "forward_flops",
            lambda *_: None,
            "raised TypeError: forward_flops(layer 0, 8192 tokens) is None, not a LayerFlops",
        ),
        ("window_at", lambda self, geometry, layer, seq_len: None, "raised TypeError: "),
    ],
)
def test_a_spec_that_raises_is_named_with_its_place(member, wrong, line, monkeypatch):
    monkeypatch.setattr(ToySpec, member, wrong)
    said = _refusal()
    assert said.startswith(f"config: variants.global.attention.{line}")
    assert re.search(r"\(\S+\.py, line \d+\)\. Change it in class toy_variant:ToySpec", said)


def test_a_model_with_other_parameters_than_its_spec_says_is_refused(monkeypatch):
    monkeypatch.setattr(ToySpec, "params", lambda self, geometry, layer: 4 * 32**2 + 4 + (layer == 1))
    with pytest.raises(ConfigError) as caught:
        build_model(SMALL, TOY, 50, 64, seed=1)
    assert str(caught.value) == (
        "attention toy_variant:ToySpec: params(layer 1) is 4101; allowed: the number of parameters of its ToyAttention, "
        "4100. Change it in class ToySpec."
    )


def test_the_kernels_are_announced_only_where_they_may_run(caplog):
    announce.cache_clear()
    caplog.set_level("INFO", "iha")
    config = ModelConfig(hidden_dim=32, n_layers=1, n_heads=4, ffn_dim=48)
    build_model(config, SinksSpec(kind="sinks_variant:SinksSpec"), 50, 64, seed=1)(tokens(1, 4))
    assert "attention kernels" not in caplog.text, "this variant attends by itself"
    build_model(config, TOY, 50, 64, seed=1)(tokens(1, 4))
    assert "attention kernels on cpu" in caplog.text


def test_a_window_that_holds_no_token_is_refused(monkeypatch):
    monkeypatch.setattr(ToySpec, "window_at", lambda self, geometry, layer: 0 if layer == 3 else None)
    assert check_variant(TOY, Geometry(32, 5, 4, 64), [64])[0].startswith(
        "window_at(layer 3) is 0; allowed: a whole number, 1 or more."
    )


def _sinks_by_hand(n, width, sinks, pad):
    """(query, key) pairs of one row whose first `pad` tokens are padding, each pair looked at."""
    return {
        (q, k) for q in range(pad, n) for k in range(pad, q + 1) if q - k < width or k - pad < sinks
    }  # fmt: skip


@pytest.mark.parametrize(("n", "width", "sinks"), [(12, 4, 2), (12, 64, 4), (5, 1, 0), (9, 3, 20), (3, 2, 2)])
def test_the_pages_mask_shows_the_pairs_it_is_priced_for(n, width, sinks):
    spec, geometry = SinksSpec(kind="sinks_variant:SinksSpec", width=width, sinks=sinks), Geometry(32, 2, 4, 64)
    assert spec.forward_flops(geometry, 0, n).attention == 4 * 32 * len(_sinks_by_hand(n, width, sinks, 0))


def test_the_pages_mask_is_the_same_in_training_in_decoding_and_padded():
    spec = SinksSpec(kind="sinks_variant:SinksSpec", width=4, sinks=2)
    net = build_model(ModelConfig(hidden_dim=32, n_layers=2, n_heads=4, ffn_dim=48), spec, 50, 64, seed=1).double()
    ids, pad = tokens(2, 12), torch.tensor([0, 5])
    with torch.no_grad():
        whole, alone, cache = net(ids, pad=pad), net(ids[1:, 5:]), net.new_cache(2)
        steps = [net(ids[:, :7], cache=cache, pad=pad)] + [net(ids[:, i : i + 1], cache=cache) for i in range(7, 12)]
    torch.testing.assert_close(torch.cat(steps, dim=1)[1, 5:], whole[1, 5:], rtol=0, atol=1e-12)
    torch.testing.assert_close(alone[0], whole[1, 5:], rtol=0, atol=1e-12)


def test_the_pages_mask_hides_what_it_says():
    """Which inputs move an output: through one layer, exactly the pairs by hand."""
    spec = SinksSpec(kind="sinks_variant:SinksSpec", width=4, sinks=2)
    attention = build_model(ModelConfig(hidden_dim=32, n_layers=1, n_heads=4, ffn_dim=48), spec, 50, 64, seed=1)
    attention, x = attention.blocks[0].attention.double(), torch.randn(1, 12, 32, dtype=torch.float64)
    moved = torch.autograd.functional.jacobian(lambda x: attention(x).sum(-1)[0], x)[:, 0].abs().sum(-1)
    assert {(q, k) for q, k in moved.nonzero().tolist()} == _sinks_by_hand(12, 4, 2, 0)
