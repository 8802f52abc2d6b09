"""Small float64 attention layers and models for the attention tests."""

from __future__ import annotations

import torch

from iha.config.schema import ModelConfig
from iha.model.attention import ForwardContext, build_attention
from iha.model.rope import Rope
from iha.model.transformer import build_model
from iha.variants.base import Geometry, spec_class

THETA = 500_000.0

#: Every variant, each option of IHA, windows short enough to matter at 30 tokens.
VARIANTS = {
    "global": {"kind": "global"},
    "global_local": {"kind": "global_local", "window": 4},
    "talking_heads": {"kind": "talking_heads"},
    "diff": {"kind": "diff"},
    "iha": {"kind": "iha", "pseudo_heads": 3, "window": 4},
    "iha_token": {"kind": "iha", "pseudo_heads": 3, "window": 4, "mask": "token"},
    "iha_global": {"kind": "iha", "pseudo_heads": 2, "window": 4, "global_layers": "iha", "period": 2},
    "iha_mix_only": {"kind": "iha", "pseudo_heads": 1, "window": 4, "collapse": "none"},
    "iha_scaled": {"kind": "iha", "pseudo_heads": 2, "window": 4, "mix": ("q", "k"), "positions": "scaled"},
    "iha_grouped": {"kind": "iha", "pseudo_heads": 2, "window": 4, "n_kv_heads": 2},
    "paired_heads": {"kind": "paired_heads", "window": 4},
    "iha_p1": {"kind": "iha", "pseudo_heads": 1, "window": 4, "collapse": "per_head"},
}


def spec_of(kind, **fields):
    """An attention spec."""
    return spec_class(kind)(kind=kind, **fields)


def layer(spec, *, heads=4, head_dim=8, index=0, length=64, backend="auto", seed=0, noise=0.0):
    """One float64 layer with N(0, 1/D) projections; `noise` is added to its own parameters."""
    geometry = Geometry(heads * head_dim, 5, heads, length)
    module = build_attention(spec, geometry, index, backend=backend).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            start = module.init_parameter(name, generator)
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(drawn * geometry.hidden_dim**-0.5 if start is None else start.double() + noise * drawn)
    return module


def context(length, head_dim=8, *, n_pseudo=(1,), theta=THETA, **kwargs):
    """Context of a whole sequence; fp64 angles, as the oracle's."""
    rope = Rope(head_dim, theta, torch.float64)
    layouts = [(p, "virtual") for p in n_pseudo]
    return ForwardContext(length, rope, torch.device("cpu"), layouts=layouts, **kwargs)


def model(variant, *, layers=3, heads=4, hidden=32, vocab=50, length=64, seed=1, backend="auto", dtype=torch.float64):
    """A small model of a named variant; float64 unless asked otherwise."""
    config = ModelConfig(hidden_dim=hidden, n_layers=layers, n_heads=heads, ffn_dim=48)
    fields = VARIANTS[variant]
    built = build_model(config, spec_of(**fields), vocab, length, seed=seed, backend=backend).to(dtype)
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if parameter.dim() > 1 and "blocks" in name and "weight" in name:
                parameter.mul_(5)  # start values are small; differences between positions should not be
    return built


def tokens(batch, length, vocab=50, seed=0):
    """Random tokens."""
    return torch.randint(0, vocab, (batch, length), generator=torch.Generator().manual_seed(seed))
