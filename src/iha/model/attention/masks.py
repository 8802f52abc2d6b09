"""Which keys a query sees, described in O(N) and turned into Boolean blocks only where a kernel needs one.

Units are virtual tokens: a layer with P pseudo-heads has P of them per token, every other layer has one. Queries are
always the last `n_queries` of the `n_keys` keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Mask:
    """Causal visibility with an optional window, padding and documents.

    `window`: keys a query sees, itself included (a flash kernel's window_size is (window - 1, 0)); None: all.
    `group`: 1 for flat causality; P for token causality, where a query sees every pseudo-key of its own token and the
    `window` counts tokens, not virtual tokens (spec 2.4). `n_pseudo`: virtual tokens per token. `first`: index in
    tokens of the first key, counted from the start of the sequence, pads included.
    `pad` (B,): left-pad tokens of each row. `documents` (B, tokens of the keys): only keys of the
    query's own document are seen.
    `memo`: what kernels have computed from this mask, for the next layer that uses it.
    """

    n_queries: int
    n_keys: int
    window: int | None = None
    group: int = 1
    n_pseudo: int = 1
    first: int = 0
    pad: Tensor | None = None
    documents: Tensor | None = None
    memo: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def offset(self) -> int:
        """Index of query 0 among the keys."""
        return self.n_keys - self.n_queries

    @property
    def ragged(self) -> bool:
        """Whether rows of the batch differ, or documents interrupt the band."""
        return self.pad is not None or self.documents is not None

    @property
    def windowed(self) -> bool:
        """Whether the window hides any causal key."""
        return self.window is not None and self.window < self.n_keys

    @property
    def square(self) -> bool:
        """Whether every key is also a query."""
        return self.n_queries == self.n_keys

    @property
    def plain(self) -> bool:
        """Whether this is the ordinary causal mask of a complete sequence, which kernels know by a flag."""
        return self.square and self.group == 1 and not self.windowed and not self.ragged

    def keys_of(self, start: int, stop: int) -> tuple[int, int]:
        """Smallest key range that holds every key of queries start .. stop - 1."""
        low, high = self.offset + start, self.offset + stop
        group = self.group
        first = 0 if self.window is None else max(0, low // group - self.window // group + 1)
        return first * group, min(-(-high // group) * group, self.n_keys)

    def dense(self, device: torch.device, queries: tuple[int, int] | None = None) -> Tensor:
        """Boolean (1 or B, 1, queries, keys): True where seen; with `queries`, that block over `keys_of` it.

        A query always sees itself, so that rows of padding stay finite in every kernel.
        """
        start, stop = queries or (0, self.n_queries)
        low, high = self.keys_of(start, stop) if queries else (0, self.n_keys)
        q = torch.arange(self.offset + start, self.offset + stop, device=device)[:, None]
        k = torch.arange(low, high, device=device)[None, :]
        seen = self._causal(q, k)[None, None]
        if self.pad is not None:
            real = k // self.n_pseudo + self.first >= self.pad[:, None, None]
            seen = seen & (real | (q == k))[:, None]
        if self.documents is not None:
            of_q = self.documents[:, q[:, 0] // self.n_pseudo]
            of_k = self.documents[:, k[0] // self.n_pseudo]
            seen = seen & (of_q[:, None, :, None] == of_k[:, None, None, :])
        return seen

    def bias(self, like: Tensor) -> Tensor:
        """The complete mask as 0 and minus infinity, with dtype and device of `like`."""
        return additive(self.dense(like.device), like.dtype)

    def step_bias(self, like: Tensor) -> Tensor | None:
        """Bias of all queries over `keys_of` them; None if all are seen. Computed once per mask, for many layers."""
        if self.ragged:
            if "bias" not in self.memo:
                self.memo["bias"] = additive(self.dense(like.device, (0, self.n_queries)), like.dtype)
            bias: Tensor = self.memo["bias"]
            return bias
        if self.n_queries <= self.group:
            return None
        low, high = self.keys_of(0, self.n_queries)
        band = Mask(self.n_queries, high - low, self.window, self.group)
        return _band_bias(band, like.device, like.dtype)

    def _causal(self, q: Tensor, k: Tensor) -> Tensor:
        if self.group > 1:
            q, k = q // self.group, k // self.group
        seen = k <= q
        if self.window is not None:
            seen = seen & (q - k < self.window // self.group)
        return seen


@lru_cache(maxsize=64)
def _band_bias(mask: Mask, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A windowed decode step has the same bias each time; kept an ordinary tensor also under inference mode."""
    with torch.inference_mode(False):
        return additive(mask.dense(device)[0, 0], dtype)


def additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where seen, minus infinity elsewhere."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))
