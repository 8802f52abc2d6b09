"""Variants are compared only if they were trained on the same tokens in the same order.

Every training run notes a rolling digest of its data at milestones. Variants take different numbers of steps (budgets
are matched in FLOPs), so their streams must agree at every milestone that two runs share.
"""

from __future__ import annotations

from itertools import product

from iha.config.schema import SPLITS
from iha.errors import DataError
from iha.report.collect import Results
from iha.report.format import display


def check(results: Results) -> str:
    """Compare every run's stream with the reference's; returns a sentence that says what was compared.

    Raises:
        DataError: two runs of one seed and stage read different data.
    """
    part = results.part
    compared, blind = 0, []
    problems = []
    for seed, stage, variant in product(part.seeds, SPLITS, part.variants):
        own, other = (results.train(v, seed, stage) for v in (variant, part.reference))
        if variant == part.reference or own is None or other is None:
            continue
        shared = sorted(own.digests.keys() & other.digests.keys(), key=int)
        first = next((at for at in shared if own.digests[at] != other.digests[at]), None)
        if first is not None:
            problems.append(f"runs/{variant}/seed{seed}/{stage}.json differs from {part.reference}'s by step {first}")
        compared += len(shared)
        if not shared:
            blind.append(f"{display(variant)} seed {seed} {stage}")
    if problems:
        raise DataError(
            f"variants saw different training data: {'; '.join(problems)}. Allowed: one stream per seed and stage. "
            "Delete the manifests of the odd runs below results/ and their folders below state/, then run again."
        )
    unknown = f" Not comparable, no milestone in common: {', '.join(blind)}." if blind else ""
    return f"Token streams of all variants agree with the reference's at {compared} of {compared} milestones.{unknown}"
