"""Sliding-window MHA with a global layer every `period` layers: the Global+Local baseline (spec 10.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from iha.variants.base import Geometry, GroupedSpec, LayerFlops, layer_type, live_pairs


class GlobalLocalSpec(GroupedSpec):
    """LLLLG: `period - 1` layers of windowed MHA, then one global layer; parameters as global attention.

    `window`: tokens a local layer sees, the current one included; None: pretrain_len / 16, the paper's 512 at 8,192.
    With IHA's window it is the control for the window alone (spec D17).
    """

    kind: Literal["global_local"]
    module: ClassVar[str] = "iha.model.attention.mha:SlidingWindowAttention"

    window: int | None = None
    period: int = 5

    def problems(self, geometry: Geometry) -> list[str]:
        """Window outside 1 .. pretrain_len, or no period."""
        return [*super().problems(geometry), *self._problems(geometry)]

    def _problems(self, geometry: Geometry) -> Iterator[str]:
        if self.period < 1:
            yield f"period is {self.period}; allowed: 1 or more (every period-th layer is global)"
        length = geometry.pretrain_len
        if self.window is None and length < 16:
            yield f"window is null, which means pretrain.seq_len / 16, but that is {length}; set a window of 1 or more"
        if self.window is not None and not 1 <= self.window <= length:
            yield f"window is {self.window}; allowed: 1 to pretrain.seq_len, {length}"

    def window_at(self, geometry: Geometry, layer: int) -> int | None:
        """Window of a local layer; None for every `period`-th."""
        if layer_type(layer, self.period) == "global":
            return None
        return geometry.pretrain_len // 16 if self.window is None else self.window

    def forward_flops(self, geometry: Geometry, layer: int, seq_len: int) -> LayerFlops:
        """Four D x D projections; 4d FLOPs per live pair and head, the window's pairs only in a local layer."""
        d_model = geometry.hidden_dim
        pairs = live_pairs(seq_len, self.window_at(geometry, layer))
        return LayerFlops(projections=self.projection_flops(geometry, seq_len), mixing=0, attention=4 * d_model * pairs)
