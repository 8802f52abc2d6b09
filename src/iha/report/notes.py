"""What a reader must know about a run before believing a number: budgets, skipped steps, generated data."""

from __future__ import annotations

from itertools import product
from typing import Any

from iha.config import ModelStage
from iha.report.collect import Results
from iha.report.format import BENCHMARKS, display
from iha.slices import MODEL_STAGES, SPLITS

#: The solver matches budgets within this share, or within half a step.
MATCHED = 1e-3


def variant_notes(results: Results, variant: str, model: ModelStage) -> list[str]:
    """Footnotes on a variant's row: compute away from the reference's; skipped steps behind `model`."""
    stages = tuple(dict.fromkeys(("pretrain", MODEL_STAGES[model])))
    return [*_mismatch(results, variant), *_skipped(results, variant, stages)]


def _mismatch(results: Results, variant: str) -> list[str]:
    row = results.facts("flops").get("variants", {}).get(variant, {})
    mismatch = float(row.get("mismatch", 0.0))
    if abs(mismatch) <= MATCHED:
        return []
    reference = display(results.part.reference)
    return [f"{display(variant)}: pretraining costs {mismatch:+.1%} FLOPs against {reference} (see the FLOP ledger)."]


def _skipped(results: Results, variant: str, stages: tuple[str, ...]) -> list[str]:
    parts = []
    for seed, stage in product(results.part.seeds, stages):
        run = results.train(variant, seed, stage)
        if run is not None and run.skipped:
            parts.append(f"seed {seed} {stage} {run.skipped} of {run.steps}")
    if not parts:
        return []
    return [f"{display(variant)}: optimiser steps skipped as non-finite or spiking: {', '.join(parts)}."]


def generated(results: Results) -> str:
    """Sentences naming what was generated or bundled instead of taken from the benchmark; empty if nothing was."""
    tasks: dict[str, Any] = results.facts("items").get("tasks", {})
    groups = {
        source: ", ".join(BENCHMARKS.get(t, t) for t, facts in sorted(tasks.items()) if facts["source"] == source)
        for source in ("synthetic", "exemplar")
    }
    sentences = []
    if groups["synthetic"]:
        sentences.append(f"Items of {groups['synthetic']} are generated from templates (synthetic).")
    if groups["exemplar"]:
        sentences.append(f"Items of {groups['exemplar']} are the stock tasks' own examples (exemplar).")
    if "templates" in source_kinds(results, "sft"):
        sentences.append("Fine-tuning conversations are generated from templates.")
    return " ".join(sentences)


def source_kinds(results: Results, split: str) -> list[str]:
    """Kinds of the corpora a split was made of."""
    manifest = results.inputs.get(f"data:{split}")
    return [source["kind"] for source in manifest.slice["data"]["sources"]] if manifest else []


def contamination(results: Results) -> list[str]:
    """How many evaluation items were met in the training text of each split, or that nobody looked."""
    found = []
    for split in SPLITS:
        facts = results.facts(f"contamination:{split}") or results.facts(f"data:{split}").get("contamination")
        if facts:
            met = len({hit["item"] for hit in facts["hits"]})
            found.append(
                f"Contamination, {split}: {met} of {facts['checked']} items share {facts['n_words']} words in a row "
                f"with the training text; {facts['too_short']} are too short to be looked for."
            )
    return found or ["Contamination: the training text was not searched for evaluation items."]
