"""The C++ kernel of 2-simplicial attention: compiled once per machine, at first use; without a compiler there is none.

Built by the system's compiler into the cache folder and called by address: torch's extension builder would compile its
headers for a minute and leaves a lock behind when it is killed.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import secrets
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger("iha")
SOURCE = Path(__file__).with_name("simplicial.cpp")
#: Vectors of 64 bytes on any machine; -ffast-math is not among these: infinities mark padding.
FLAGS = (
    "-O3",
    "-march=native",
    "-std=c++17",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-Wno-psabi",
    "-shared",
    "-fPIC",
)
#: Width of a head that the kernel is written for.
HEAD_DIM = 16


def usable(q: Tensor, valid: Tensor | None) -> bool:
    """Whether the kernel takes these operands and can be had."""
    fits = q.device.type == "cpu" and q.dtype == torch.float32 and q.shape[-1] == HEAD_DIM and valid is None
    return fits and library() is not None


@cache
def library() -> Any:
    """The compiled kernel; None, said once, if it cannot be built."""
    try:
        return ctypes.CDLL(str(_built()))
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        log.info("2-simplicial attention runs without its C++ kernel (%s).", said.strip().splitlines()[-1:])
        return None


def _built() -> Path:
    """The shared library for this source and this processor, compiled if it is not in the cache.

    Raises:
        OSError: there is no compiler, or the cache cannot be written.
        SubprocessError: the compiler refused.
    """
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        raise OSError("no C++ compiler")
    cpu = next((x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("flags")), "")
    key = hashlib.sha256(SOURCE.read_bytes() + " ".join((*FLAGS, compiler, cpu)).encode()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "iha"
    final = folder / f"simplicial-{key}.so"
    if not final.exists():
        folder.mkdir(parents=True, exist_ok=True)
        temporary = final.with_suffix(f".{secrets.token_hex(4)}.tmp")
        command = [compiler, *FLAGS, str(SOURCE), "-o", str(temporary)]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
        temporary.replace(final)
    return final


def _addresses(*tensors: Tensor) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(t.data_ptr()) for t in tensors]


def _sizes(q: Tensor) -> tuple[ctypes.c_long, ctypes.c_long, ctypes.c_float]:
    batch, heads, length, d = q.shape
    return ctypes.c_long(batch * heads), ctypes.c_long(length), ctypes.c_float(d**-0.5)


class Fused(torch.autograd.Function):
    """`iha.synthetic.simplicial.plain` without a mask, for operands that are `usable`; memory O(N^2)."""

    @staticmethod
    def forward(ctx: Any, *operands: Tensor) -> Tensor:
        """Outputs (B, H, N, 16) of Q, K, K', V, V' of that shape."""
        operands = tuple(x.contiguous() for x in operands)
        out, lse = torch.empty_like(operands[0]), operands[0].new_empty(operands[0].shape[:3])
        library().simplicial_forward(*_addresses(*operands, out, lse), *_sizes(out))
        ctx.save_for_backward(*operands, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        """Gradients of the five operands; scores are computed again."""
        *operands, out, lse = ctx.saved_tensors
        made = [torch.zeros_like(x) for x in operands]
        grad = grads[0].contiguous()
        library().simplicial_backward(*_addresses(grad, *operands, out, lse, *made), *_sizes(out))
        return tuple(made)
