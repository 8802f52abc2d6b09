"""What was trained, how, and when: the sizes and budgets of a run, as its own manifests and journals hold them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import yaml
from pydantic import ValidationError

from iha.config.schema import SPLITS, TrainStage
from iha.evals.grade import CODE
from iha.planning.slices import TrainSlice
from iha.report.collect import Results
from iha.report.cost import CONFIG
from iha.report.experiment import manifest_path
from iha.report.format import BENCHMARKS, big, display
from iha.report.notes import STAGES
from iha.report.page import definitions
from iha.report.render import fold
from iha.report.section import Findings, Section
from iha.tracking.metrics import read_events
from iha.variants.base import Geometry


def setup_section(found: Findings) -> Section | None:
    """Sizes, windows, budgets, items, date; None if no training tells its configuration."""
    facts = setup(found.results)
    return Section("setup", "What was trained", definitions(facts)) if facts else None


def setup(results: Results) -> dict[str, str]:
    """Name and text; empty without a training that tells its configuration."""
    runs = {stage: run for stage in SPLITS if (run := _run(results, stage)) is not None}
    if not runs:
        return {}
    first = next(iter(runs.values()))
    model, tokenizer = first.model, results.facts("tokenizer")
    found = {
        "model": f"decoder of {model.n_layers} layers, width {model.hidden_dim}, {model.n_heads} heads, SwiGLU of "
        f"{model.ffn_dim}, RoPE base {model.rope_theta:,.0f}, embeddings {'' if model.tie_embeddings else 'un'}tied",
        "attention": "; ".join(_windows(results)),
        "tokenizer": f"{tokenizer.get('kind', 'unknown')}, {first.vocab_size:,} entries",
    }
    found |= {STAGES[stage]: _budget(results, stage, run) for stage, run in runs.items()}
    found["precision"] = first.engine.precision
    found["evaluation"] = "; ".join(_evaluations(results))
    found |= _journals(results)
    return {name: text for name, text in found.items() if text}


def _run(results: Results, stage: TrainStage, variant: str | None = None) -> TrainSlice | None:
    """Slice of a stage's first training, by default of the reference's."""
    for seed in results.part.seeds:
        manifest = results.inputs.get(f"train:{variant or results.part.reference}:{seed}:{stage}")
        if manifest is not None and "model" in manifest.slice:
            try:
                return TrainSlice.model_validate_json(json.dumps(manifest.slice))
            except ValidationError:  # of an earlier version
                return None
    return None


def _windows(results: Results) -> Iterator[str]:
    """For each variant: its layers' windows, and what of its parameters is not a default."""
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
        text = f"{schedule}, local window {', '.join(map(str, local))} tokens" if local else "all layers global"
        yield f"{display(v)}: {f'{heads} pseudo-heads, ' if heads else ''}{text}"


def _budget(results: Results, stage: TrainStage, run: TrainSlice) -> str:
    recipe = run.recipe
    runs = results.trained(stage)
    steps, tokens = _span([r.steps for r in runs]), _span([r.tokens for r in runs])
    return (
        f"context {recipe.seq_len:,} tokens, batch {recipe.global_batch}, {steps} steps, {tokens} tokens "
        f"by variant (see Compute), learning rate {recipe.lr:g} to {recipe.min_lr:g}, {recipe.warmup_steps} steps of "
        f"warm-up, weight decay {recipe.weight_decay:g}"
    )


def _span(counts: list[int]) -> str:
    low, high = (big(x) for x in (min(counts), max(counts)))
    return low if low == high else f"{low} to {high}"


def _evaluations(results: Results) -> Iterator[str]:
    """Each suite's lengths, or its shots, answers per item, temperature and limit."""
    for name in dict.fromkeys(":".join(n.split(":")[3:]) for n in results.inputs if n.startswith("eval:")):
        part = next(m.slice for n, m in results.inputs.items() if n.startswith("eval:") and n.endswith(f":{name}"))
        if "suite" not in part:
            continue
        suite, _, model = name.partition(":")
        if part["suite"]["lengths"]:
            yield f"{suite} ({model}): {', '.join(map(str, part['suite']['lengths']))} tokens, greedy"
        else:
            limit = f", first {part['limit']} items of each benchmark" if part["limit"] else ""
            yield f"{suite} ({model}): {_answers(part, model)}{limit}"


def _answers(part: Mapping[str, Any], model: str) -> str:
    """A base model answers greedily; samples are drawn besides, for a vote, where answers are not programs."""
    sampled = f"{part['samples']} answers per item at temperature {part['temperature']}"
    if model != "base":
        return sampled
    voted = [BENCHMARKS[task] for task in part["suite"]["tasks"] if task not in CODE]
    votes = f", and for majority votes on {', '.join(voted)} {sampled}" if voted else ""
    return f"{part['shots']} shots, one greedy answer per item{votes}"


def _journals(results: Results) -> dict[str, str]:
    """First and last moment, machines and commits in the journals of the trainings."""
    times: list[float] = []
    commits, machines = set[str](), set[str]()
    for path in (results.state / run.journal for stage in SPLITS for run in results.trained(stage)):
        for _, event in read_events(path) if path.exists() else ():
            times += [event["time"]] if "time" in event else []
            tags = event.get("run", {}).get("tags", {}) if event["event"] == "start" else {}
            if "device" in tags:
                machines.add(f"{tags['ranks']} x {tags['device']}")
            if "git.commit" in tags:
                changed = " with uncommitted changes" if tags.get("git.dirty") == "true" else ", clean tree"
                commits.add(f"{tags['git.commit']}{changed}")
    if not times:
        return {}
    first, last = (datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%d %H:%M") for t in (min(times), max(times)))
    found = {"trained": f"{first} to {last} UTC", "commit of the trainings": "; ".join(sorted(commits))}
    return found | ({"trained on": "; ".join(sorted(machines))} if machines else {})


def folds(results: Results) -> str:
    """For a reader who has the page alone: the whole configuration, and every input with its path and digest."""
    path = results.state / CONFIG
    config = yaml.safe_dump(yaml.safe_load(path.read_text()), sort_keys=False) if path.exists() else ""
    inputs = "".join(f"{manifest_path(n)}  {_code(m)}\n" for n, m in sorted(results.inputs.items()))
    found = {"Configuration (YAML)": config, "Inputs: manifests, and code that made them": inputs}
    return "".join(f"{fold(title, text)}\n" for title, text in found.items() if text)


def _code(manifest: Any) -> str:
    return f"code {manifest.code}, MLflow run {manifest.run_id}" if manifest.run_id else f"code {manifest.code}"
