"""Every attention kernel that can run here against the formula in float64, forward and gradient.

This is how a kernel that another machine lacks (flash-attn, FlexAttention's fused form) proves itself where it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import torch
from torch import Tensor

from iha.doctor.outcome import Outcome
from iha.model.attention.kernels import attend, dispatch
from iha.model.attention.kernels.dispatch import KERNELS
from iha.model.attention.masks import Mask

LENGTH, HEADS, WIDTH = 384, 4, 64
#: Relative error allowed: fp32 on a CPU, bf16 on a GPU.
TOLERANCE = {"cpu": 1e-5, "cuda": 1e-2}
#: What runs only on one kind of device; the rest runs on both.
ONLY = {"banded": "cpu", "fused": "cuda", "flex": "cuda", "flash": "cuda"}


def masks(device: torch.device) -> dict[str, Mask]:
    """What the variants ask for: all, a window, interleaved pseudo-tokens in a window, documents kept apart."""
    documents = (torch.arange(LENGTH, device=device) >= LENGTH // 3).long().expand(2, LENGTH)
    return {
        "causal": Mask(LENGTH, LENGTH),
        "window": Mask(LENGTH, LENGTH, window=96),
        "interleaved": Mask(LENGTH, LENGTH, window=64, per_token=2),
        "documents": Mask(LENGTH, LENGTH, documents=documents),
    }


def check(device: str = "auto") -> Iterator[Outcome]:
    """One outcome per kernel family; those of the other kind of device are skipped."""
    use_gpu = device != "cpu" and torch.cuda.is_available()
    kind = "cuda" if use_gpu else "cpu"
    chosen = dispatch.choose(kind, "auto")
    for name in KERNELS:
        label = f"kernel {name}" + (" (auto)" if name == chosen else "")
        if ONLY.get(name, kind) != kind:
            yield Outcome(label, "skipped", f"runs on {'a GPU' if kind == 'cpu' else 'a CPU'} only")
        else:
            yield _one(label, name, torch.device(kind))
    yield flash_attn(kind)


def _one(label: str, backend: str, device: torch.device) -> Outcome:
    other = "sdpa" if device.type == "cuda" else "reference"
    advice = f"set engine.backend: {other} in the config file (slower, same results), and report this line"
    try:
        errors = {name: worst_error(backend, mask, device) for name, mask in masks(device).items()}
    except Exception as error:
        return Outcome(label, "fail", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}", advice)
    name = max(errors, key=errors.__getitem__)
    right = errors[name] < TOLERANCE[device.type]
    text = f"within {errors[name]:.1e} of float64 ({name}), allowed {TOLERANCE[device.type]:g}; forward and gradient"
    return Outcome(label, "ok" if right else "fail", text, "" if right else advice)


def worst_error(backend: str, mask: Mask, device: torch.device) -> float:
    """Largest relative error of output and gradients against the materialised formula in float64.

    Inputs are (2, HEADS, LENGTH, WIDTH), rounded to the type under test before either side sees them.
    """
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    source = torch.Generator().manual_seed(0)
    near = [torch.randn(2, HEADS, LENGTH, WIDTH, generator=source).to(device, kind).requires_grad_() for _ in range(3)]
    exact = [x.detach().double().requires_grad_() for x in near]
    weight = torch.randn(2, HEADS, LENGTH, WIDTH, generator=source).to(device)
    got = _with_gradients(attend(near[0], near[1], near[2], mask, WIDTH**-0.5, backend), near, weight)
    want = _with_gradients(attend(exact[0], exact[1], exact[2], mask, WIDTH**-0.5, "reference"), exact, weight)
    return max(float((a.double() - b).norm() / b.norm()) for a, b in zip(got, want, strict=True))


def _with_gradients(out: Tensor, leaves: list[Tensor], weight: Tensor) -> list[Tensor]:
    return [out.detach(), *torch.autograd.grad((out * weight.to(out.dtype)).sum(), leaves)]


def flash_attn(kind: str) -> Outcome:
    """Which binding the backend `flash` uses."""
    if find_spec("flash_attn") is not None:
        from importlib.metadata import version

        return Outcome("flash-attn", "ok", f"{version('flash_attn')}; engine.backend: flash uses it")
    other = "torch's own variable-length attention takes its place" if kind == "cuda" else "not needed on a CPU"
    return Outcome("flash-attn", "skipped", f"not installed; {other}")
