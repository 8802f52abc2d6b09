"""Attention variants as data: parameters and price, without torch. `iha.model.attention` holds the computation."""

from iha.variants.base import AttentionSpec, Geometry, LayerPrice, known_kinds, layer_type, live_pairs, spec_class

__all__ = ["AttentionSpec", "Geometry", "LayerPrice", "known_kinds", "layer_type", "live_pairs", "spec_class"]
