"""The attention variants as torch modules; their parameters and prices are in `iha.variants`."""

from iha.model.attention.base import Attention, build_attention
from iha.model.attention.context import Frame

__all__ = ["Attention", "Frame", "build_attention"]
