"""Per-forward context shared by all layers: positions, attention mask, RoPE tables.

The model creates one per forward pass, so that layers that see alike share one mask and one set of rotations. A layer
that is called alone creates its own.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from iha.model.attention.masks import Mask
from iha.model.rope import Rope, Rotation
from iha.variants.base import PositionKind

#: Virtual tokens per token, and how their positions count.
Layout = tuple[int, PositionKind]


class ForwardContext:
    """Positions and visibility of `length` new tokens after `start` cached ones.

    Args:
        length: new tokens N of this pass, pads included.
        rope: rotary tables.
        device: of the tokens.
        start: tokens that the cache holds already, pads included.
        pad: (B,) left-pad tokens of each row. Positions count from the first real token, so that a padded row equals
            the same row alone.
        longest_pad: the largest of `pad`, if known: windows past it need no mask.
        documents: (B, N) non-decreasing numbers; attention stays within a document, positions continue.
        positions: (N,) or (B, N) positions of the new tokens, if they are not `start`, `start + 1`, ...
        layouts: the (n_pseudo, positions) of the layers, whose rotations are prepared once for all of them.
    """

    def __init__(
        self,
        length: int,
        rope: Rope,
        device: torch.device,
        *,
        start: int = 0,
        pad: Tensor | None = None,
        longest_pad: int | None = None,
        documents: Tensor | None = None,
        positions: Tensor | None = None,
        layouts: Iterable[Layout] = ((1, "virtual"),),
    ) -> None:
        self.length = length
        self.start = start
        self.pad = pad
        self.longest_pad = longest_pad
        self.documents = documents
        self.positions = positions
        self.device = device
        self._masks: dict[tuple[int, int, int | None, bool], Mask] = {}
        self.rotations: dict[Layout, Rotation] = {layout: self._rotation(rope, *layout) for layout in layouts}

    def _rotation(self, rope: Rope, n_pseudo: int, kind: PositionKind) -> Rotation:
        """Angles of the virtual tokens, each (N P, d), or (B, N P, d) where rows differ.

        virtual: token n's p-th is at n P + p (spec 2.3). scaled: at n + p / P. shared: at n.
        """
        if kind == "shared" and n_pseudo > 1:
            cos, sin = self._rotation(rope, 1, "virtual")
            return cos.repeat_interleave(n_pseudo, -2), sin.repeat_interleave(n_pseudo, -2)
        unit = n_pseudo if kind == "scaled" else 1
        start, length = self.start * n_pseudo, self.length * n_pseudo
        if self.positions is not None:
            index = self.positions[..., None] * n_pseudo + torch.arange(n_pseudo, device=self.device)
            return rope.gather(index.flatten(-2), int(index.max()) + 1, unit)
        if self.pad is None:
            return rope.span(start, length, self.device, unit)
        index = torch.arange(start, start + length, device=self.device)
        positions = (index - self.pad[:, None] * n_pseudo).clamp_min(0)
        return rope.gather(positions, start + length, unit)

    def mask(self, n_keys: int, *, n_pseudo: int = 1, window: int | None = None, token_causal: bool = False) -> Mask:
        """Mask of this pass's queries over the last `n_keys` virtual keys; `window` in tokens.

        Layers that see alike share one, with what kernels have computed from it.
        """
        key = (n_keys, n_pseudo, window, token_causal)
        if key not in self._masks:
            self._masks[key] = self._mask(*key)
        return self._masks[key]

    def _mask(self, n_keys: int, n_pseudo: int, window: int | None, token_causal: bool) -> Mask:
        first = self.start + self.length - n_keys // n_pseudo
        past_padding = self.longest_pad is not None and first >= self.longest_pad
        return Mask(
            n_queries=self.length * n_pseudo,
            n_keys=n_keys,
            window=None if window is None else window * n_pseudo,
            group=n_pseudo if token_causal else 1,
            n_pseudo=n_pseudo,
            first=first,
            pad=None if past_padding else self.pad,
            documents=self.documents,
        )


def document_runs(doc_ids: Tensor) -> Tensor:
    """Numbers (B, N) of the runs of equal neighbours: an id that comes back names another document."""
    return F.pad((doc_ids[:, 1:] != doc_ids[:, :-1]).cumsum(dim=1), (1, 0))
