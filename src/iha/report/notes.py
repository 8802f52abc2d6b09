"""What a reader must know about a run before believing a number: budgets, skipped steps, generated data."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

from iha.config.schema import MODEL_STAGES, SPLITS, ModelStage, TrainStage
from iha.report.collect import Results
from iha.report.format import BENCHMARKS, display

#: The solver matches budgets within this share, or within half a step.
MATCHED = 1e-3
STAGES: dict[TrainStage, str] = {"pretrain": "pretraining", "extend": "extension", "sft": "fine-tuning"}


def variant_notes(results: Results, variant: str, model: ModelStage) -> list[str]:
    """Footnotes on a variant's row: compute away from the reference's; skipped steps behind `model`.

    Each names all variants it concerns, so that their rows share one footnote.
    """
    stages: tuple[TrainStage, ...] = tuple(dict.fromkeys(("pretrain", MODEL_STAGES[model])))
    away = {v: f"{display(v)} {text}" for v in results.part.variants if (text := _away(results, v, stages))}
    skipped = {v: f"{display(v)} {text}" for v in results.part.variants if (text := _skipped(results, v, stages))}
    reference = display(results.part.reference)
    notes = []
    if variant in away:
        named = " / ".join(STAGES[stage] for stage in stages)
        notes.append(f"FLOPs of {named} against {reference} (see Compute): {', '.join(away.values())}.")
    if variant in skipped:
        notes.append(f"Optimiser steps skipped as non-finite or spiking: {'; '.join(skipped.values())}.")
    return notes + _formats(results, model)


def _formats(results: Results, model: ModelStage) -> list[str]:
    """That the scores of one table were not all computed in one number format."""
    found: dict[str, set[str]] = {}
    for variant, seed, settings in results.settings(model):
        if "dtype" in settings:
            found.setdefault(settings["dtype"], set()).add(f"{display(variant)} seed {seed}")
    if len(found) < 2:
        return []
    named = "; ".join(f"{dtype}: {', '.join(sorted(runs))}" for dtype, runs in sorted(found.items()))
    return [f"Evaluated in different number formats: {named}."]


def _away(results: Results, variant: str, stages: tuple[TrainStage, ...]) -> str:
    found = [mismatch(results, variant, stage) for stage in stages]
    return " / ".join(f"{x:+.1%}" for x in found) if any(abs(x) > MATCHED for x in found) else ""


def mismatch(results: Results, variant: str, stage: TrainStage) -> float:
    """A stage's FLOPs against the reference's, as a share; 0 where the ledger has none."""
    row = results.facts("flops").get("variants", {}).get(variant, {})
    return float(row.get("stage_mismatch", {"pretrain": row.get("mismatch", 0.0)}).get(stage, 0.0))


def _skipped(results: Results, variant: str, stages: tuple[TrainStage, ...]) -> str:
    runs = [(seed, stage, results.train(variant, seed, stage)) for seed, stage in product(results.part.seeds, stages)]
    return ", ".join(f"seed {s} {stage} {run.skipped} of {run.steps}" for s, stage, run in runs if run and run.skipped)


def generated(results: Results, benchmarks: Iterable[str], tuned: bool) -> str:
    """Sentences naming which of `benchmarks` were generated or bundled instead of taken from the benchmark.

    `tuned`: also whether the fine-tuning conversations were. Empty if nothing was.
    """
    tasks: dict[str, Any] = results.facts("items").get("tasks", {})
    wanted = set(benchmarks)
    groups = {
        source: ", ".join(
            BENCHMARKS.get(t, t) for t, facts in sorted(tasks.items()) if facts["source"] == source and t in wanted
        )
        for source in ("synthetic", "exemplar")
    }
    sentences = []
    if groups["synthetic"]:
        sentences.append(f"Items of {groups['synthetic']} are generated from templates (synthetic).")
    if groups["exemplar"]:
        sentences.append(f"Items of {groups['exemplar']} are the stock tasks' own examples (exemplar).")
    if tuned and "templates" in source_kinds(results, "sft"):
        sentences.append("Fine-tuning conversations are generated from templates.")
    return " ".join(sentences)


def evaluated(results: Results, benchmark: str) -> list[int]:
    """How many items of a benchmark were evaluated, each number once."""
    scores = (s for m, by in results.scores.items() if m.benchmark == benchmark for s in by.values())
    return sorted({score.n for score in scores if score.value is not None})


def source_kinds(results: Results, split: str) -> list[str]:
    """Kinds of the corpora a split was made of."""
    manifest = results.inputs.get(f"data:{split}")
    return [source["kind"] for source in manifest.slice["data"]["sources"]] if manifest else []


def searched(results: Results) -> dict[str, dict[str, Any]]:
    """What the search for evaluation items found in each split that was searched."""
    found: dict[str, dict[str, Any]] = {}
    for split in SPLITS:
        facts = results.facts(f"contamination:{split}") or results.facts(f"data:{split}").get("contamination")
        if facts:
            found[split] = facts
    return found


def met(facts: dict[str, Any]) -> int:
    """Number of items that a split holds."""
    return len({hit["item"] for hit in facts["hits"]})


def contamination(results: Results) -> str:
    """How many evaluation items were met in the training text of each split, or that nobody looked."""
    found = searched(results)
    if not found:
        return "Contamination: the training text was not searched for evaluation items."
    shares = ", ".join(f"{split} {met(facts)}" for split, facts in found.items())
    one = next(iter(found.values()))
    return (
        f"Contamination: of the {one['checked']} items in the files that are long enough to be looked for (not only "
        f"those evaluated; {one['too_short']} more are too short), these share {one['n_words']} words in a row with "
        f"the training text: {shares}."
    )
