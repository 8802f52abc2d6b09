"""Attention variants as data: settings, parameters and FLOPs, without torch. `iha.model.attention` computes them."""

from iha.variants.base import (
    AttentionSpec,
    Geometry,
    LayerFlops,
    check_variant,
    known_kinds,
    layer_type,
    live_pairs,
    spec_class,
)

__all__ = [
    "AttentionSpec",
    "Geometry",
    "LayerFlops",
    "check_variant",
    "known_kinds",
    "layer_type",
    "live_pairs",
    "spec_class",
]
