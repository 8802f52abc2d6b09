"""A variant is one file and one config line: nothing in the package knows the toy, yet everything works with it."""

from __future__ import annotations

import torch
from attention_lab import tokens

from iha.config import ModelConfig, Variant
from iha.model import build_model
from iha.modelfile import load_model, save_model
from iha.variants.base import Geometry


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
