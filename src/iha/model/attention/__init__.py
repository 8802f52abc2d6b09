"""The attention variants as torch modules; their settings and FLOPs are in `iha.variants`."""

from iha.model.attention.base import Attention, build_attention
from iha.model.attention.context import ForwardContext

__all__ = ["Attention", "ForwardContext", "build_attention"]
