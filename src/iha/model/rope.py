"""Rotary positions: fp32 tables that no cast of the model touches, grown on demand, rotated by halves as in Llama.

The tables live outside the module's buffers: `model.to(bfloat16)` leaves them fp32, a load through the meta device
cannot leave them uninitialised, and they are rebuilt from `theta` alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

Rotation = tuple[Tensor, Tensor]


class Rope:
    """Cosines and sines of position x frequency, for heads of width `head_dim`.

    Angles are computed in float64 and stored in `dtype`, float32 by default: at position 131,071 an fp32 angle is off
    by up to 4e-3. `unit`: table rows per position, P for virtual tokens at n + p / P.
    """

    def __init__(self, head_dim: int, theta: float, dtype: torch.dtype = torch.float32) -> None:
        self.head_dim = head_dim
        self.theta = theta
        self.dtype = dtype
        exponent = torch.arange(0, head_dim, 2, dtype=torch.float64, device="cpu") / head_dim
        self.inv_freq = theta**-exponent
        self._tables: dict[tuple[torch.device, int], Rotation] = {}

    def table(self, length: int, device: torch.device, unit: int = 1) -> Rotation:
        """Tables (>= length, head_dim) for both halves of a head: (cos, cos) and (-sin, sin).

        With these a rotation is x cos + (x with halves swapped) sin.
        """
        known = self._tables.get((device, unit))
        if known is None or known[0].shape[0] < length:
            rows = length if known is None else max(length, 2 * known[0].shape[0])
            with torch.inference_mode(False):  # a tensor created in that mode cannot take part in training later
                angle = torch.outer(torch.arange(rows, dtype=torch.float64, device="cpu") / unit, self.inv_freq)
                cos, sin = angle.cos(), angle.sin()
                halves = torch.cat((cos, cos), dim=1), torch.cat((-sin, sin), dim=1)
                known = (halves[0].to(self.dtype).to(device), halves[1].to(self.dtype).to(device))
            self._tables[device, unit] = known
        return known

    def span(self, start: int, length: int, device: torch.device, unit: int = 1) -> Rotation:
        """Rotation of rows start .. start + length - 1, each (length, head_dim)."""
        cos, sin = self.table(start + length, device, unit)
        return cos[start : start + length], sin[start : start + length]

    def gather(self, positions: Tensor, longest: int, unit: int = 1) -> Rotation:
        """Rotation of any rows, each (positions.shape, head_dim); all must be below `longest`.

        Raises:
            IndexError: a position is beyond the table.
        """
        cos, sin = self.table(longest, positions.device, unit)
        return cos[positions], sin[positions]


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate (..., length, heads, head_dim) by angles of (length, head_dim) or (batch, length, head_dim).

    Computed in fp32 (float64 stays float64), returned in the type of `x`.
    """
    cos, sin = (part.unsqueeze(-2) for part in rotation)
    swapped = x.roll(x.shape[-1] // 2, dims=-1)
    return torch.addcmul(x * cos, swapped, sin).to(x.dtype)
