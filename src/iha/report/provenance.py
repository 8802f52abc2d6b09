"""What was run and where everything came from: sizes, budgets, data, items, versions, machines, commits."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from iha.artifacts.fingerprint import git_state
from iha.artifacts.manifest import Manifest
from iha.config.schema import SPLITS, TrainStage
from iha.evals.grading import CODE
from iha.planning.slices import TrainSlice
from iha.report.results import BENCHMARKS, STAGES, STOCK_SHOTS, Results, manifest_path
from iha.report.tables import big
from iha.tracking.metrics import read_events
from iha.variants.base import Geometry

PACKAGES = ("torch", "transformers", "tokenizers", "lm-eval", "datasets", "snakemake", "mlflow", "numpy", "scipy")


def setup(results: Results) -> dict[str, str]:
    """What was trained and evaluated; empty without a training run that records its configuration."""
    runs = {stage: run for stage in SPLITS if (run := _run(results, stage)) is not None}
    if not runs:
        return {}
    first = next(iter(runs.values()))
    model, tokenizer = first.model, results.metadata("tokenizer")
    tied = "tied" if model.tie_embeddings else "untied"
    found = {
        "model": f"{model.n_layers} layers, width {model.hidden_dim}, {model.n_heads} heads, "
        f"SwiGLU of {model.ffn_dim}, RoPE base {model.rope_theta:,.0f}, {tied} embeddings, {first.engine.precision}",
        "attention": "; ".join(_windows(results)),
        "tokenizer": f"{tokenizer.get('kind', 'unknown')}, {first.vocab_size:,} entries",
    }
    found |= {STAGES[stage]: _recipe(results, stage, run) for stage, run in runs.items()}
    found["evaluation"] = "; ".join(_evaluations(results))
    return {name: text for name, text in found.items() if text}


def _run(results: Results, stage: TrainStage, variant: str | None = None) -> TrainSlice | None:
    """Slice of a stage's first training run, by default of the reference's."""
    for seed in results.part.seeds:
        manifest = results.inputs.get(f"train:{variant or results.part.reference}:{seed}:{stage}")
        if manifest is not None and "model" in manifest.slice:
            try:
                return TrainSlice.model_validate_json(json.dumps(manifest.slice))
            except ValidationError:  # of an earlier version
                return None
    return None


def _windows(results: Results) -> Iterator[str]:
    """Each variant's layers and windows, and its pseudo-heads."""
    for v in results.part.variants:
        run = _run(results, "pretrain", v)
        if run is None:
            continue
        model = run.model
        geometry = Geometry(model.hidden_dim, model.n_layers, model.n_heads, run.pretrain_len)
        windows = [run.variant.attention.window_at(geometry, layer) for layer in range(model.n_layers)]
        local = sorted({w for w in windows if w is not None})
        schedule = "".join("G" if w is None else "L" for w in windows)
        heads = getattr(run.variant.attention, "pseudo_heads", None)
        text = f"{schedule}, window {', '.join(map(str, local))} tokens" if local else "all layers global"
        yield f"{results.display(v)}: {f'{heads} pseudo-heads, ' if heads else ''}{text}"


def _recipe(results: Results, stage: TrainStage, run: TrainSlice) -> str:
    recipe = run.recipe
    runs = results.trained(stage)
    steps, tokens = _span([r.steps for r in runs]), _span([r.tokens for r in runs])
    return (
        f"context {recipe.seq_len:,} tokens, batch {recipe.global_batch}, {steps} steps, {tokens} tokens, "
        f"learning rate {recipe.lr:g} to {recipe.min_lr:g}, warm-up {recipe.warmup_steps} steps, "
        f"weight decay {recipe.weight_decay:g}, equal {results.match[stage].replace('flops', 'FLOPs')}"
    )


def _span(counts: list[int]) -> str:
    low, high = (big(x) for x in (min(counts), max(counts)))
    return low if low == high else f"{low} to {high}"


def _evaluations(results: Results) -> Iterator[str]:
    """Each suite's lengths, or its shots as used, answers per item and temperature."""
    for name in dict.fromkeys(":".join(n.split(":")[3:]) for n in results.inputs if n.startswith("eval:")):
        manifest = next(m for n, m in results.inputs.items() if n.startswith("eval:") and n.endswith(f":{name}"))
        part, (suite, _, model) = manifest.slice, name.partition(":")
        if "suite" not in part:
            continue
        if part["suite"]["lengths"]:
            yield f"{suite} ({model}): {', '.join(map(str, part['suite']['lengths']))} tokens, greedy"
            continue
        limit = f", first {part['limit']} items" if part["limit"] else ""
        sampled = f"{part['samples']} answers per item at temperature {part['temperature']}"
        if model != "base":
            yield f"{suite} ({model}): no examples, {sampled}{limit}"
            continue
        used = shots(results, manifest)
        examples = ", ".join(f"{results.benchmark(task, model)} {n}" for task, n in used.items())
        voted = [results.benchmark(task, model) for task in part["suite"]["tasks"] if task not in CODE]
        votes = f"; majority votes on {', '.join(voted)} from {sampled}" if voted else ""
        yield f"{suite} ({model}): few-shot examples {examples}; one greedy answer per item{votes}{limit}"


def shots(results: Results, manifest: Manifest) -> dict[str, int]:
    """Few-shot examples of each task of a base model's suite, as used: stock tasks with their own keep them."""
    recorded = manifest.metadata.get("settings", {}).get("shots", {})
    part = manifest.slice
    known = recorded if isinstance(recorded, dict) else {}
    return {task: known.get(task, STOCK_SHOTS.get(task, part["shots"])) for task in part["suite"]["tasks"]}


def provenance(results: Results, milestones: int) -> dict[str, str]:
    """Versions, commits, machines, data, items, contamination."""
    git = git_state(Path(__file__).parent)
    found = {
        "experiment": results.part.experiment,
        "commit of this report": f"{git['commit']}{', with uncommitted changes' if git['dirty'] else ''}",
        "python": platform.python_version(),
        "packages": ", ".join(f"{name} {_version(name)}" for name in PACKAGES),
        **_journals(results),
    }
    if tokenizer := results.metadata("tokenizer"):
        found["tokenizer"] = (
            f"{tokenizer.get('kind')}, {tokenizer.get('vocab_size')} entries, {tokenizer.get('sha256')}"
        )
    for name, manifest in results.inputs.items():
        if name.startswith("data:"):
            found[f"text of {STAGES[name[5:]]}"] = _corpus(manifest)  # type: ignore[index]
    for task, facts in sorted(results.metadata("items").get("tasks", {}).items()):
        counts = {
            s.n for m, by in results.scores.items() if m.benchmark == task for s in by.values() if s.value is not None
        }
        used = ", ".join(map(str, sorted(counts))) or "none"
        kind = "" if facts["source"] == "real" else f" ({facts['source']}, in place of {BENCHMARKS.get(task, task)})"
        found[f"items: {results.benchmark(task)}"] = (
            f"{facts['n']} in the file{kind}, {used} evaluated, {facts.get('origin')}, {facts['sha256']}"
        )
    for name, manifest in sorted(results.inputs.items(), key=lambda item: (len(item[0]), item[0])):
        if name.startswith("ruler:"):
            tasks = manifest.metadata.get("tasks", {}).items()
            found[f"RULER at {name[6:]} tokens"] = "; ".join(
                f"{t}: {x['n']} items, {x['sha256'][:12]}" for t, x in tasks
            )
    found["order of the data"] = f"equal for all variants at {milestones} milestones" if milestones else ""
    found["contamination"] = contamination(results)
    return {name: text for name, text in found.items() if text}


def contamination(results: Results) -> str:
    """Evaluation items found in the training text, by split."""
    found = {}
    for split in SPLITS:
        facts = results.metadata(f"contamination:{split}") or results.metadata(f"data:{split}").get("contamination")
        if facts:
            found[split] = facts
    if not found:
        return "not searched"
    one = next(iter(found.values()))
    counts = ", ".join(
        f"{STAGES[split]} {len({hit['item'] for hit in facts['hits']})}" for split, facts in found.items()
    )
    return (
        f"{counts} of {one['checked']} items share {one['n_words']} words in a row with the training text "
        f"({one['too_short']} more are too short to search for)"
    )


def _journals(results: Results) -> dict[str, str]:
    """First and last moment, machines and commits in the journals of the training runs."""
    times: list[float] = []
    commits, machines = set[str](), set[str]()
    for path in (results.state / run.journal for stage in SPLITS for run in results.trained(stage)):
        for _, event in read_events(path) if path.exists() else ():
            times += [event["time"]] if "time" in event else []
            tags = event.get("run", {}).get("tags", {}) if event["event"] == "start" else {}
            if "device" in tags:
                machines.add(f"{tags['ranks']} × {tags['device']}")
            if "git.commit" in tags:
                changed = ", with uncommitted changes" if tags.get("git.dirty") == "true" else ""
                commits.add(f"{tags['git.commit']}{changed}")
    if not times:
        return {}
    first, last = (datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%d %H:%M") for t in (min(times), max(times)))
    found = {"trained": f"{first} to {last} UTC", "commit of the training runs": "; ".join(sorted(commits))}
    return found | ({"trained on": "; ".join(sorted(machines))} if machines else {})


def _corpus(manifest: Manifest) -> str:
    sources = manifest.slice.get("data", {}).get("sources", [])
    names = "; ".join(" ".join(f"{k}={json.dumps(v)}" for k, v in s.items() if v not in (None, 1.0)) for s in sources)
    if any(source.get("kind") == "book" for source in sources):
        names += " (the King James Bible, public domain)"
    return f"{names}; sha256 {manifest.metadata.get('corpus_sha256', 'unknown')}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def inputs_text(results: Results) -> str:
    """Every input with its path, the fingerprint of its code, and its MLflow run."""
    return "".join(f"{_path(name)}  {_code(manifest)}\n" for name, manifest in sorted(results.inputs.items()))


def _path(name: str) -> str:
    try:
        return manifest_path(name)
    except KeyError:
        return name


def _code(manifest: Any) -> str:
    return f"code {manifest.code}, MLflow run {manifest.run_id}" if manifest.run_id else f"code {manifest.code}"


def configuration(results: Results) -> str:
    """The complete configuration as YAML, which the workflow leaves in the state folder."""
    path = results.state / "config.json"
    return yaml.safe_dump(yaml.safe_load(path.read_text()), sort_keys=False) if path.exists() else ""
