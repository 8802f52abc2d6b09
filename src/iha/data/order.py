"""The order of samples: index arithmetic on (seed, epoch, position). Knows no world size, worker or restart.

The permutation is a Feistel network of at least the needed bits, walked along its cycles until it lands inside: no
table, so a store of any size costs the same, and the order depends on no library's random generator.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

Index = npt.NDArray[np.int64]
_U = npt.NDArray[np.uint64]
_ROUNDS = 6


def permute(positions: Index, size: int, seed: int, epoch: int) -> Index:
    """Images of positions in [0, size) under the permutation of (seed, epoch).

    Args:
        positions: any shape, each in [0, size).
        size: number of samples in an epoch, at least 1.
    """
    half = max(1, (int(size - 1).bit_length() + 1) // 2)
    keys = np.frombuffer(hashlib.sha512(f"{seed} {epoch}".encode()).digest(), "<u8")[:_ROUNDS]
    value = _feistel(positions.astype(np.uint64), half, keys)
    outside = value >= size
    while outside.any():
        value[outside] = _feistel(value[outside], half, keys)
        outside = value >= size
    return value.astype(np.int64)


def _feistel(value: _U, half: int, keys: _U) -> _U:
    mask = np.uint64((1 << half) - 1)
    left, right = value >> np.uint64(half), value & mask
    for key in keys:
        left, right = right, left ^ (_mix(right + key) & mask)
    return (left << np.uint64(half)) | right


def _mix(x: _U) -> _U:
    """splitmix64's finaliser."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def samples(first: int, count: int, size: int, seed: int) -> Index:
    """Samples number first .. first + count - 1 of an endless run over epochs of `size` samples."""
    number = np.arange(first, first + count, dtype=np.int64)
    epochs, positions = np.divmod(number, size)
    out = np.empty(count, np.int64)
    for epoch in np.unique(epochs):
        of_epoch = epochs == epoch
        out[of_epoch] = permute(positions[of_epoch], size, seed, int(epoch))
    return out
