"""The attention variants as torch modules; their parameters and prices are in `iha.variants`."""

from iha.attention.base import Attention, build_attention
from iha.attention.frame import Frame

__all__ = ["Attention", "Frame", "build_attention"]
