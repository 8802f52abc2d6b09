"""The first pass over a batch of prompts, without computing their padding.

Prompts of like length go through the model together; what they leave in the cache is put together afterwards, so that
all of them share every decode step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from iha.model.cache import KVCache
    from iha.model.transformer import Transformer

#: Tokens that cost as much as one more pass through the model, by device type.
PASS_TOKENS = {"cpu": 16}
_PASS_TOKENS = 1024


def prefill(
    model: Transformer, prompts: Sequence[Sequence[int]], pad: int, device: torch.device
) -> tuple[KVCache, Tensor]:
    """The cache after the prompts and the logits (B, V) of their next tokens.

    Args:
        model: in evaluation mode.
        prompts: token ids, at least one each, the longest first.
        pad: id that fills rows up, on the left.
        device: of the model.
    """
    caches, logits = [], []
    for part in alike(prompts, PASS_TOKENS.get(device.type, _PASS_TOKENS)):
        tokens, pads = left_pad(part, pad, device)
        cache = model.new_cache(len(part))
        logits.append(model(tokens, cache=cache, pad=pads if bool(pads.any()) else None, last_only=True)[:, -1])
        caches.append(cache)
    return caches[0].join(caches[1:]), torch.cat(logits)


def alike(prompts: Sequence[Sequence[int]], spare: int) -> Iterator[Sequence[Sequence[int]]]:
    """Cut prompts, the longest first, into runs that `spare` tokens of padding make equally long."""
    start = padding = 0
    for end, prompt in enumerate(prompts):
        padding += len(prompts[start]) - len(prompt)
        if padding > spare:
            yield prompts[start:end]
            start, padding = end, 0
    yield prompts[start:]


def left_pad(prompts: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids (B, N) padded on the left, and the number of pads of each row (B,)."""
    longest = max(len(p) for p in prompts)
    ids = torch.full((len(prompts), longest), pad, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
    counts = torch.tensor([longest - len(p) for p in prompts], dtype=torch.long)
    return ids.to(device), counts.to(device)
