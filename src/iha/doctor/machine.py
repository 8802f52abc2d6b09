"""Python, torch, GPUs and NCCL of the machine this runs on."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from iha.doctor.outcome import Outcome

INSTALL = "activate the project's environment (. .venv/bin/activate), or make it: make install"
#: Oldest GPUs with bf16 tensor cores (Ampere).
BF16_CAPABILITY = (8, 0)


def python() -> Iterator[Outcome]:
    """The interpreter, and the packages without which nothing starts."""
    needed = {
        "torch": "torch",
        "snakemake": "snakemake",
        "submitit": "submitit",
        "mlflow": "mlflow",
        "lm-eval": "lm_eval",
    }
    absent = [name for name, module in needed.items() if find_spec(module) is None]
    where = f"Python {platform.python_version()}, {sys.executable}"
    if absent:
        yield Outcome("python", "fail", f"{where}; not installed: {', '.join(absent)}", INSTALL)
        return
    known = ", ".join(f"{name} {_version(name)}" for name in needed)
    if find_spec("snakemake_executor_plugin_submitit") is None:
        yield Outcome("python", "fail", f"{where}; the executor plugin submitit cannot be imported", INSTALL)
    else:
        yield Outcome("python", "ok", f"{where}; {known}")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(no metadata)"


def affinity(threads: int) -> Iterator[Outcome]:
    """CPUs this process may use, against those the job asked for (SUB-03)."""
    mine = len(os.sched_getaffinity(0))
    if mine < threads:
        yield Outcome(
            "cpus",
            "fail",
            f"{mine} usable, {threads} asked for: an enclosing allocation's binding may have leaked in",
            "start from a shell outside of any job, and unset SLURM_CPU_BIND and SBATCH_CPU_BIND",
        )
    else:
        bound = "as asked for" if mine == threads else f"{threads} asked for; this cluster does not bind jobs to CPUs"
        yield Outcome("cpus", "ok", f"{mine} usable, {bound}")


def torch_and_gpus(wanted: int, device: str) -> Iterator[Outcome]:
    """torch, the GPUs it sees, and NCCL; `wanted` GPUs were asked for."""
    import torch

    yield Outcome("torch", "ok", f"{torch.__version__}, CUDA {torch.version.cuda or 'none'}")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        yield _no_gpu(wanted, device, torch.version.cuda)
        return
    short = count < wanted
    names = sorted({torch.cuda.get_device_name(i) for i in range(count)})
    yield Outcome(
        "gpu",
        "fail" if short else "ok",
        f"{count} x {', '.join(names)}" + (f", {wanted} asked for" if short else ""),
        "another job may hold them: nvidia-smi; or lower gpus_per_node in set-resources of the profile"
        if short
        else "",
    )
    yield from _gpu_arithmetic(count)
    yield _nccl()


def _no_gpu(wanted: int, device: str, built_for: str | None) -> Outcome:
    if wanted == 0 and device != "cuda":
        return Outcome("gpu", "skipped", "none seen and none asked for here")
    why = "this torch is built without CUDA" if built_for is None else "torch sees no GPU (driver, container, or node)"
    return Outcome(
        "gpu",
        "fail",
        f"{wanted or 'some'} asked for; {why}",
        "install a CUDA build of torch (pytorch.org), run nvidia-smi on that node, give a container --nv / --gpus all",
    )


def _gpu_arithmetic(count: int) -> Iterator[Outcome]:
    """A bf16 product on every GPU against float64."""
    import torch

    old = [i for i in range(count) if torch.cuda.get_device_capability(i) < BF16_CAPABILITY]
    if old:
        yield Outcome(
            "gpu bf16", "fail", f"device {old[0]} has no bf16 units", "set engine.precision: fp32, or newer GPUs"
        )
        return
    x = torch.randn(256, 256, generator=torch.Generator().manual_seed(0)).bfloat16()
    want = x.double() @ x.double()
    errors = [
        float(((x.to(f"cuda:{i}") @ x.to(f"cuda:{i}")).cpu().double() - want).norm() / want.norm())
        for i in range(count)
    ]
    bad = [i for i, e in enumerate(errors) if not e < 0.01]
    yield Outcome(
        "gpu bf16",
        "fail" if bad else "ok",
        f"a product on device {bad[0]} is wrong" if bad else f"a product on each of {count} is right",
        "leave that node out: --submitit-extra --exclude=NODE, and tell the site" if bad else "",
    )


def _nccl() -> Outcome:
    import torch

    if not torch.distributed.is_nccl_available():
        return Outcome("nccl", "fail", "this torch has no NCCL", "install a CUDA build of torch (pytorch.org)")
    number: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    found = ".".join(map(str, number))
    return Outcome("nccl", "ok", f"{found}; `iha doctor --slurm` sends numbers through it")
