"""What one forward pass tells every layer: where its tokens stand, who may see whom, and the rotations in use."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from iha.model.attention.masks import Mask
from iha.model.rope import Rope, Rotation


class Frame:
    """Positions and visibility of `length` new tokens after `start` cached ones.

    `pad` (B,): left-pad tokens of each row; positions count from the first real token, so a padded row equals the same
    row alone (EVL-01). `longest_pad`: the largest of them, if known: windows past it need no mask. `documents`
    (B, length): attention stays within a document; positions go on. `per_token`: the numbers of virtual tokens per
    token that the layers use, whose rotations are prepared once for all layers.
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
        per_token: Iterable[int] = (1,),
    ) -> None:
        self.length = length
        self.start = start
        self.pad = pad
        self.longest_pad = longest_pad
        self.documents = documents
        self.device = device
        self._masks: dict[tuple[int, int, int | None, bool], Mask] = {}
        self.rotations: dict[int, Rotation] = {p: self._rotation(rope, p) for p in per_token}

    def _rotation(self, rope: Rope, per_token: int) -> Rotation:
        """Angles of virtual positions n P + p (spec 2.3), each (length P, d), or (B, length P, d) if padded."""
        start, length = self.start * per_token, self.length * per_token
        if self.pad is None:
            return rope.span(start, length, self.device)
        index = torch.arange(start, start + length, device=self.device)
        positions = (index - self.pad[:, None] * per_token).clamp_min(0)
        return rope.gather(positions, start + length)

    def mask(self, n_keys: int, *, per_token: int = 1, window: int | None = None, token_causal: bool = False) -> Mask:
        """Mask of this pass's queries over the last `n_keys` virtual keys; `window` in tokens.

        Layers that see alike share one, and what it has prepared.
        """
        key = (n_keys, per_token, window, token_causal)
        if key not in self._masks:
            self._masks[key] = self._mask(*key)
        return self._masks[key]

    def _mask(self, n_keys: int, per_token: int, window: int | None, token_causal: bool) -> Mask:
        first = self.start + self.length - n_keys // per_token
        past_padding = self.longest_pad is not None and first >= self.longest_pad
        return Mask(
            n_queries=self.length * per_token,
            n_keys=n_keys,
            window=None if window is None else window * per_token,
            group=per_token if token_causal else 1,
            per_token=per_token,
            first=first,
            pad=None if past_padding else self.pad,
            documents=self.documents,
        )
