"""How the next token of an answer is chosen: greedily, or by a random number that belongs to exactly that token.

Random numbers are counted, not drawn: the one used at a step is a hash of (seed, prompt, sample, step).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. `temperature` 0 is greedy; `top_p` keeps the smallest set of that much probability."""

    max_new_tokens: int
    stop: tuple[str, ...] = ()
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Draw:
    """One answer wanted from a prompt: how its tokens are chosen, and the number of the sample."""

    sampling: Sampling
    sample: int = 0


def prompt_digest(prompt: Sequence[int]) -> bytes:
    """Identity of a prompt's token ids, 16 bytes."""
    return hashlib.blake2b(struct.pack(f"<{len(prompt)}I", *prompt), digest_size=16).digest()


def uniform(seed: int, prompt: bytes, sample: int, step: int) -> float:
    """Number in [0, 1) that belongs to this step of this sample of this prompt."""
    text = struct.pack("<qqq", seed, sample, step)
    word = hashlib.blake2b(text, key=prompt, digest_size=8).digest()
    return float(int.from_bytes(word, "little") >> 11) / float(1 << 53)


def choose(logits: Tensor, sampling: Sampling, uniforms: Sequence[float]) -> Tensor:
    """Next token of each row: arg max, or the inverse of the cumulated probabilities at the row's uniform number.

    Args:
        logits: (B, V) float.
        sampling: temperature and top-p.
        uniforms: B numbers in [0, 1); unused when greedy.

    Returns:
        (B,) int64.
    """
    if sampling.temperature == 0.0:
        return logits.argmax(dim=-1)
    probs = (logits.double() / sampling.temperature).softmax(dim=-1)
    order = None
    if sampling.top_p < 1.0:
        probs, order = probs.sort(dim=-1, descending=True, stable=True)
        before = probs.cumsum(dim=-1) - probs
        probs = probs.masked_fill(before >= sampling.top_p, 0.0)
    cumulated = probs.cumsum(dim=-1)
    target = torch.tensor(uniforms, dtype=torch.float64, device=logits.device) * cumulated[:, -1]
    index = torch.searchsorted(cumulated, target[:, None], right=True).clamp_(max=logits.shape[-1] - 1)
    # Rounding may point past the last kept token, where the probability is zero: step back onto it.
    index = torch.minimum(
        index, (probs > 0).long().mul(torch.arange(probs.shape[-1], device=probs.device)).amax(-1, True)
    )
    return (index if order is None else order.gather(1, index)).squeeze(1)
