"""Relation-composition benchmarks: an epoch of each model, and each exact shortcut against the plain way.

CPU time of one thread, sides in turn, medians. Prints a card, then one JSON line.
Run: ``OMP_NUM_THREADS=1 python benchmarks/synthetic.py [--repeats 3] [--small]``.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from timing import Run, both_ways, interleaved
from torch import Tensor

from iha.config.studies import Examples, RelationRecipe, SyntheticConfig
from iha.studies.relations.grid import data_slice, train_slice
from iha.studies.relations.model import ChunkedSimplicial, build, simplicial_at_once
from iha.studies.relations.tasks import generate
from iha.studies.relations.train import ExampleTables, Trainer, summed_loss

BATCH = 64
CPU = torch.device("cpu")


def epochs(config: SyntheticConfig, task: str, models: list[str], updates: int) -> dict[str, float]:
    """CPU-seconds of an epoch of 40,000 examples, from a few updates after one to warm up."""
    splits, seconds = generate(data_slice(config, task)), {}
    for name in models:
        trainer = Trainer(train_slice(config, task, name, 1e-3, 0), splits, Path("unused"), "cpu")
        trainer.update(0)
        started = time.process_time()
        for step in range(1, updates + 1):
            trainer.update(step)
        seconds[f"{task} {name}: CPU-s per epoch"] = (time.process_time() - started) / updates / BATCH * 40_000
    return seconds


def batching(config: SyntheticConfig, task: str, repeats: int) -> dict[str, float]:
    """The same batch as one padded group with a mask, over groups of equal size without padding."""
    splits, ids = generate(data_slice(config, task)), np.arange(BATCH)
    ratios = {}
    for name in ("mha", "iha_q1"):
        shape = train_slice(config, task, name, 1e-3, 0).shape
        model = build(shape, 0)

        def step(tables: ExampleTables, model: torch.nn.Module = model) -> Run:
            return lambda: [
                summed_loss(model(group.cells, group.places, group.valid), group).backward()
                for group in tables.groups(ids)
            ]

        sides = {
            side: step(ExampleTables(splits["train"], shape, CPU, side == "padded")) for side in ("padded", "grouped")
        }
        times = interleaved(sides, repeats)
        ratios[f"{task} {name}: padded / grouped"] = times["padded"] / times["grouped"]
    return ratios


def pseudo(cells: int, queries: int, repeats: int) -> dict[str, float]:
    """Softmax over stacked pseudo-tokens (H = 8, P = 8, d = 16): materialised over one unmasked call."""
    q, k, v = (torch.randn(4, 8, n * cells, 16).requires_grad_() for n in (queries, 8, 8))

    def naive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT * 0.25).softmax(-1) @ v

    flash = torch.nn.functional.scaled_dot_product_attention
    times = interleaved({"naive": both_ways(naive, [q, k, v]), "ours": both_ways(flash, [q, k, v])}, repeats)
    return {f"IHA {queries} x 8, N = {cells}: materialised / ours": times["naive"] / times["ours"]}


def trilinear(cells: int, repeats: int) -> dict[str, float]:
    """2-simplicial attention of one example (H = 8, d = 16): all scores at once over chunks of queries."""
    inputs = [torch.randn(1, 8, cells, 16).requires_grad_() for _ in range(5)]
    sides = {
        "plain": both_ways(lambda *x: simplicial_at_once(*x, None), inputs),
        "chunked": both_ways(lambda *x: ChunkedSimplicial.apply(*x, None), inputs),
    }
    times = interleaved(sides, repeats)
    return {
        f"simplicial, N = {cells}: plain, ms": times["plain"],
        f"simplicial, N = {cells}: plain / chunked": times["plain"] / times["chunked"],
    }


def main() -> None:
    """Run all of it."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--small", action="store_true", help="a few seconds: do the scripts run?")
    args = p.parse_args()
    torch.set_num_threads(1)
    updates = 1 if args.small else 3
    config = SyntheticConfig(
        examples=Examples(train=BATCH * (updates + 1), validation=8, test=8), recipe=RelationRecipe(batch=BATCH)
    )
    measured: dict[str, float] = {}
    models = ["mha", "iha_q1"] if args.small else ["mha", "iha_q1", "iha", "simplicial", "mha_wide"]
    for task in ["ternary"] if args.small else ["binary", "ternary"]:
        measured |= epochs(config, task, models, updates)
        measured |= batching(config, task, args.repeats)
    for cells in (36,) if args.small else (64, 100):
        measured |= pseudo(cells, 1, args.repeats)
        measured |= {} if args.small else pseudo(cells, 8, args.repeats)
        measured |= trilinear(cells, args.repeats)
    for name, value in measured.items():
        print(f"{name:<56}{value:10.2f}")
    print(json.dumps({"benchmark": "synthetic", **{name: round(value, 4) for name, value in measured.items()}}))


if __name__ == "__main__":
    main()
