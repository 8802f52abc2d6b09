"""C++ kernels for the CPU: compiled once per machine, at first use; without a compiler there are none.

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

from torch import Tensor

log = logging.getLogger("iha")
#: Included by the kernels.
HEADER = Path(__file__).with_name("vector.h")
#: -ffast-math is not among these: infinities mark what is hidden.
FLAGS = (
    "-O3",
    "-march=native",
    "-std=c++17",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-Wno-psabi",
    "-pthread",
    "-shared",
    "-fPIC",
)


@cache
def library(source: Path) -> Any:
    """The compiled kernel; None, said once, if it cannot be built."""
    try:
        return ctypes.CDLL(str(_built(source)))
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        log.info("The C++ kernel %s is done without (%s).", source.stem, said.strip().splitlines()[-1:])
        return None


def _built(source: Path) -> Path:
    """The shared library for this source and this processor, compiled if it is not in the cache.

    Raises:
        OSError: there is no compiler, or the cache cannot be written.
        SubprocessError: the compiler refused.
    """
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        raise OSError("no C++ compiler")
    cpu = next((x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("flags")), "")
    code = b"".join(path.read_bytes() for path in (source, HEADER))
    key = hashlib.sha256(code + " ".join((*FLAGS, compiler, cpu)).encode()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "iha"
    final = folder / f"{source.stem}-{key}.so"
    if not final.exists():
        folder.mkdir(parents=True, exist_ok=True)
        temporary = final.with_suffix(f".{secrets.token_hex(4)}.tmp")
        command = [compiler, *FLAGS, f"-I{HEADER.parent}", str(source), "-o", str(temporary)]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
        temporary.replace(final)
    return final


def addresses(*tensors: Tensor) -> list[ctypes.c_void_p]:
    """Where the tensors' numbers begin, as arguments of a kernel."""
    return [ctypes.c_void_p(t.data_ptr()) for t in tensors]
