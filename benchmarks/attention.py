"""Attention benchmarks: kernels, layers and decoding against the plain way to compute the same thing.

Ratios only are comparable between machines: both sides run interleaved, in CPU time of one thread, and the ratio is of
medians. Prints a card, then one JSON line. Run: ``OMP_NUM_THREADS=1 python benchmarks/attention.py [--repeats 7]``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import torch
import torch.nn.functional as F
from timing import Run, both_ways, interleaved
from torch import Tensor

from iha.model.attention import build_attention
from iha.model.attention import talking_heads as talking
from iha.model.attention.kernels import attend
from iha.model.attention.masks import Mask
from iha.model.cache import LayerCache
from iha.variants.base import Geometry, spec_class

CPU = torch.device("cpu")


def leaves(batch: int, heads: int, length: int, width: int) -> list[Tensor]:
    """Queries, keys, values as projections leave them: (B, H, L, d) over (B, L, H, d) memory."""
    return [torch.randn(batch, length, heads, width).transpose(1, 2).requires_grad_() for _ in range(3)]


def naive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The literal P N x P N softmax."""
    scores = (q @ k.mT) * q.shape[-1] ** -0.5
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Ordinary causal attention."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def masked(mask: Mask, backend: str) -> Callable[..., Tensor]:
    """A kernel of this package on a mask."""
    return lambda q, k, v: attend(q, k, v, mask, q.shape[-1] ** -0.5, backend)


def sliding(window: int) -> Callable[..., Tensor]:
    """The `local-attention` package's sliding window, which holds one key more than ours."""
    from local_attention import LocalAttention

    return LocalAttention(window, causal=True, exact_windowsize=True, use_rotary_pos_emb=False)


def kernels(batch: int, heads: int, length: int, p: int, width: int, repeats: int) -> dict[str, float]:
    """Ratios above 1 say ours is faster; `local` and `flat` compare unequal work (spec 3)."""
    plain, virtual = leaves(batch, heads, length, width), leaves(batch, heads, length * p, width)
    size, window = length * p, length // (2 * p)
    flat, token, local = Mask(size, size), Mask(size, size, group=p, n_pseudo=p), Mask(size, size, window=window)
    times = interleaved(
        {
            "mha": both_ways(causal, plain),
            "flat": both_ways(masked(flat, "auto"), virtual),
            "naive": both_ways(naive, virtual),
            "token": both_ways(masked(token, "auto"), virtual),
            "token_mask": both_ways(masked(token, "sdpa"), virtual),
            "band": both_ways(masked(local, "auto"), virtual),
            "band_mask": both_ways(masked(local, "sdpa"), virtual),
            "band_peer": both_ways(sliding(window), virtual),
        },
        repeats,
    )
    return {
        "flat: P^2 MHA / ours": p * p * times["mha"] / times["flat"],
        "flat: naive / ours": times["naive"] / times["flat"],
        "token: Boolean mask / ours": times["token_mask"] / times["token"],
        "band: Boolean mask / ours": times["band_mask"] / times["band"],
        "band: local-attention / ours": times["band_peer"] / times["band"],
        "band: MHA / ours": times["mha"] / times["band"],
    }


def layer(kind: str, geometry: Geometry, index: int, **fields: object) -> Run:
    """Forward and backward of one attention layer."""
    spec = spec_class(kind).model_validate({"kind": kind, **fields})
    module = build_attention(spec, geometry, index)
    for name, parameter in module.named_parameters():
        start = module.init_parameter(name, torch.Generator())
        parameter.data.copy_(0.02 * torch.randn(parameter.shape) if start is None else start)
    x = torch.randn(2, geometry.pretrain_len, geometry.hidden_dim, requires_grad=True)
    return lambda: module(x).sum().backward()


def layers(width: int, heads: int, length: int, repeats: int) -> dict[str, float]:
    """Time of a variant's layer over MHA's: projections, mixing and attention."""
    geometry = Geometry(width, 5, heads, length)
    times = interleaved(
        {
            "mha": layer("global", geometry, 4),
            "iha_global": layer("iha", geometry, 4, pseudo_heads=2, global_layers="iha"),
            "iha_local": layer("iha", geometry, 0, pseudo_heads=2),
            "diff": layer("diff", geometry, 0),
            "talking": layer("talking_heads", geometry, 0),
        },
        repeats,
    )
    return {f"layer: {name} / MHA": times[name] / times["mha"] for name in times if name != "mha"}


def talking_heads(heads: int, length: int, width: int, repeats: int) -> dict[str, float]:
    """Chunked over its causal prefix against all scores at once; gradients of both mixes included, as in training."""
    module = build_attention(
        spec_class("talking_heads").model_validate({"kind": "talking_heads"}),
        Geometry(heads * width, 1, heads, length), 0, "auto",
    )  # fmt: skip
    for parameter in (module.pre_mix, module.post_mix):
        parameter.data.copy_(torch.eye(heads))
    inputs = leaves(1, heads, length, width)
    mask = Mask(length, length)
    scale = width**-0.5

    def whole(q: Tensor, k: Tensor, v: Tensor, pre: Tensor, post: Tensor) -> Tensor:
        return talking.talk(q * scale, k, v, mask.dense(CPU), pre, post)

    def chunked(q: Tensor, k: Tensor, v: Tensor, *_: Tensor) -> Tensor:
        return module._chunked(q, k, v, mask)

    learned = [*inputs, module.pre_mix, module.post_mix]
    sides = {"chunked": both_ways(chunked, learned), "whole": both_ways(whole, learned)}
    times = interleaved({**sides, "mha": both_ways(causal, inputs)}, repeats)
    return {
        "talking heads: materialised / ours": times["whole"] / times["chunked"],
        "talking heads: ours / MHA": times["chunked"] / times["mha"],
    }


def diff(heads: int, length: int, width: int, repeats: int) -> dict[str, float]:
    """Both softmax maps of H/2 heads in one call, over MHA's time."""
    q, k, v = leaves(1, heads, length, width)
    wide = torch.randn(1, length, heads // 2, 2 * width).transpose(1, 2).requires_grad_()
    times = interleaved(
        {
            "mha": both_ways(causal, [q, k, v]),
            "diff": both_ways(lambda *x: attend(*x, Mask(length, length), width**-0.5), [q, k, wide]),
        },
        repeats,
    )
    return {"diff: ours / MHA": times["diff"] / times["mha"]}


@torch.inference_mode()
def decode(batch: int, heads: int, width: int, length: int, p: int, repeats: int) -> dict[str, float]:
    """One step on a cache of `length` tokens: P times MHA's time over ours; 1 is the floor set by memory bandwidth."""

    def step(n_pseudo: int) -> Run:
        cache = LayerCache(None)
        cache.append(*(torch.randn(batch, heads, length * n_pseudo, width) for _ in range(2)))
        cache.append(*(torch.randn(batch, heads, n_pseudo, width) for _ in range(2)))
        new = [torch.randn(batch, heads, n_pseudo, width) for _ in range(3)]

        def run() -> None:
            k, v = cache.append(new[1], new[2])
            attend(new[0], k, v, Mask(n_pseudo, k.shape[2], n_pseudo=n_pseudo), width**-0.5)

        return run

    times = interleaved({"mha": step(1), "iha": step(p)}, 4 * repeats)
    return {"decode: P MHA / ours": p * times["mha"] / times["iha"]}


#: Least (or, where ours is the numerator, largest) acceptable ratios at the named size.
TARGETS = {
    "N512 P2 | flat: P^2 MHA / ours": (">=", 1.1),
    "N1024 P2 | flat: P^2 MHA / ours": (">=", 1.1),
    "N1024 P2 | flat: naive / ours": (">=", 3.0),
    "N1024 P2 | token: Boolean mask / ours": (">=", 1.4),
    "N2048 P2 | band: Boolean mask / ours": (">=", 4.0),
    "N1024 P2 | band: local-attention / ours": (">=", 2.0),
    "N2048 P2 | band: local-attention / ours": (">=", 2.0),
    "N1024 P2 | band: MHA / ours": (">=", 0.65),
    "N2048 P2 | band: MHA / ours": (">=", 0.65),
    "N1024 | talking heads: materialised / ours": (">=", 1.2),
    "N1024 | diff: ours / MHA": ("<=", 2.1),
    "D512 N512 | layer: iha_global / MHA": ("<=", 2.2),
    "T4096 P2 | decode: P MHA / ours": (">=", 0.85),
}


def measure(repeats: int) -> dict[str, float]:
    """All ratios, by size and name."""
    results: dict[str, float] = {}

    def add(size: str, ratios: dict[str, float]) -> None:
        for name, ratio in ratios.items():
            results[f"{size} | {name}"] = round(ratio, 3)
            print(f"{size:>12}  {name:<40} {ratio:6.2f}", flush=True)

    for shape in ((1, 8, 512, 2, 64), (1, 8, 1024, 2, 64), (1, 4, 2048, 2, 64), (1, 4, 1024, 4, 64)):
        add(f"N{shape[2]} P{shape[3]}", kernels(*shape, repeats))
    for heads, length, width in ((8, 512, 64), (8, 1024, 64)):
        add(f"N{length}", talking_heads(heads, length, width, repeats))
        add(f"N{length}", diff(heads, length, width, repeats))
    for width, heads, length in ((256, 4, 256), (512, 8, 512)):
        add(f"D{width} N{length}", layers(width, heads, length, repeats))
    for batch, length in ((4, 4096), (4, 16_384)):
        add(f"T{length} P2", decode(batch, 8, 64, length, 2, repeats))
    return results


def main() -> None:
    """Measure, print the card and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7, help="rounds per comparison")
    repeats = parser.parse_args().repeats
    torch.manual_seed(0)
    torch.set_num_threads(1)
    results = measure(repeats)
    verdict = {
        name: (results[name] >= bound) if sense == ">=" else (results[name] <= bound)
        for name, (sense, bound) in TARGETS.items()
    }
    for name, met in verdict.items():
        print(
            f"{'met   ' if met else 'MISSED'} {name} = {results[name]} (target {TARGETS[name][0]} {TARGETS[name][1]})"
        )
    print(
        json.dumps(
            {
                "benchmark": "attention",
                "torch": torch.__version__,
                "repeats": repeats,
                "ratios": results,
                "met": verdict,
            }
        )
    )


if __name__ == "__main__":
    main()
