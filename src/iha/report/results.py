"""What an experiment measured: its manifests, evaluation rows and training journals as typed records.

Everything the report shows is read here. What is absent stays absent: nothing is imputed. Free of torch.
"""

from __future__ import annotations

import difflib
import gzip
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from iha.artifacts.fingerprint import ORIGINS
from iha.artifacts.manifest import Manifest, read_manifest, sha256_file
from iha.config.load import load_config
from iha.config.schema import SPLITS, ModelStage, TrainStage
from iha.errors import DataError, UserError
from iha.evals.scores import mean_present, present
from iha.planning.slices import ReportSlice
from iha.tracking.metrics import read_events, read_metrics
from iha.variants.display import NAMES

BENCHMARKS = {
    "gsm8k": "GSM8K",
    "math500": "MATH-500",
    "math": "MATH",
    "mbpp": "MBPP",
    "humaneval": "HumanEval",
    "ruler": "RULER",
}
#: What takes a benchmark's place where its items are generated. Such a column never bears the benchmark's name.
STAND_INS = {
    "gsm8k": "word problems",
    "math500": "short maths",
    "math": "short maths",
    "mbpp": "short programs",
    "humaneval": "example programs",
}
METRICS = {"em": "EM", "p1": "P@1", "p10": "P@10", "gold_nll": "gold NLL", "gold_acc": "gold accuracy"}
STAGES: dict[TrainStage, str] = {"pretrain": "pretraining", "extend": "extension", "sft": "fine-tuning"}
#: RULER's score, and the lengths of its overall mean where all of them were run.
RULER, PAPER_LENGTHS = "official", (4096, 8192, 16_384)
#: Share of items at which a rate is worth a warning.
RATES = {"truncated": 0.05, "over_context": 0.0, "no_room": 0.0}
#: Few-shot examples that the stock tasks of lm-eval bring along; the others take `evals.shots`.
STOCK_SHOTS = {"math500": 4, "math": 4, "mbpp": 3, "humaneval": 0}
#: Steps that a training loss is the mean of, where every run has that many.
LAST = 20
#: Series of a journal that the report reads.
SERIES = ("loss", "step_seconds")

#: Scores of single items: (task, item) -> value.
ItemScores = dict[tuple[str, str], float]
Curve = list[tuple[float, float]]


@dataclass(frozen=True)
class Metric:
    """What was measured on which checkpoint (base, long or sft). RULER adds task and length."""

    model: str
    benchmark: str
    name: str
    task: str = ""
    length: int | None = None


@dataclass(frozen=True)
class Score:
    """One seed's value, a fraction (or nats for gold_nll), over `n` items. None: not measured, `note` has the reason.

    `origin`: the report's input that holds it. `span`: its bootstrap interval over items, None if it was not recorded.
    """

    value: float | None
    n: int
    source: str
    note: str | None
    origin: str
    span: tuple[float, float] | None = None


@dataclass(frozen=True)
class TrainRun:
    """One training stage of one (variant, seed). `digests`: step -> digest of all training data up to it."""

    steps: int
    tokens: int
    final_loss: float | None
    flops: float | None
    skipped: int
    digests: dict[str, str]
    journal: str
    origin: str


@dataclass(frozen=True)
class Measure:
    """A quantity on which variants are compared: the mean over `groups` of the means over their metrics.

    `paper`: metrics of paper.yaml, of which the published value is the mean.
    """

    name: str
    label: str
    groups: tuple[tuple[Metric, ...], ...]
    paper: tuple[str, ...] = ()
    decimals: int = 1
    unit: Literal["percent", "nats"] = "percent"
    generated: bool = False

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """All of them."""
        return tuple(metric for group in self.groups for metric in group)

    @property
    def factor(self) -> float:
        """From the stored value to the displayed one."""
        return 100.0 if self.unit == "percent" else 1.0

    @property
    def lower_is_better(self) -> bool:
        """True for losses."""
        return self.unit == "nats"


@dataclass(frozen=True)
class Sample:
    """One variant's values of a measure: by seed in display units, and by item as stored.

    Items are weighted so that their plain mean is the measure; there are none if the answers are gone. `span`: then the
    mean over seeds of the recorded intervals over items. `missing`: the reason if no seed has a value.
    """

    by_seed: dict[int, float] = field(default_factory=dict)
    items: dict[int, ItemScores] = field(default_factory=dict)
    n: int | None = None
    sources: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    missing: str = ""
    span: tuple[float, float] | None = None

    @property
    def mean(self) -> float | None:
        """Mean over seeds, None if nothing was measured."""
        return sum(self.by_seed.values()) / len(self.by_seed) if self.by_seed else None


Samples = dict[str, Sample]


class Results:
    """All inputs of one report.

    Names of inputs: train:VARIANT:SEED:STAGE, eval:VARIANT:SEED:SUITE:MODEL, data:SPLIT, contamination:SPLIT,
    ruler:LENGTH, flops, items, tokenizer, study_NAME.
    """

    def __init__(self, part: ReportSlice, inputs: Mapping[str, Manifest], state: Path) -> None:
        self.part = part
        self.inputs = dict(inputs)
        self.state = state
        self.scores: dict[Metric, dict[tuple[str, int], Score]] = {}
        self.clashes: list[str] = []
        self.samples: dict[tuple[str, int, str], list[Path]] = {}
        for name, manifest in inputs.items():
            if name.startswith("eval:"):
                self._add_evaluation(name, manifest)
        self.item_scores = cache(self._item_scores)
        self.journal = cache(self._journal)

    def metadata(self, name: str) -> dict[str, Any]:
        """Metadata of an input, empty if it is absent."""
        return self.inputs[name].metadata if name in self.inputs else {}

    def display(self, variant: str) -> str:
        """The variant's label, its published name, or its own name."""
        labels: Mapping[str, str] = getattr(self.part, "labels", None) or {}
        return labels.get(variant) or NAMES.get(variant, variant)

    @property
    def reference(self) -> str:
        """Display name of the reference variant."""
        return self.display(self.part.reference)

    @property
    def match(self) -> dict[TrainStage, str]:
        """What is equal between variants in each stage: flops or tokens."""
        declared: Any = self.part.match
        if isinstance(declared, str):
            return dict.fromkeys(SPLITS, declared)
        fields = declared if isinstance(declared, Mapping) else declared.model_dump()
        return {stage: fields[stage] for stage in SPLITS}

    def _add_evaluation(self, name: str, manifest: Manifest) -> None:
        _, variant, seed, suite, model = name.split(":")
        if "samples" in manifest.files:
            path = self.state / manifest.files["samples"].path
            self.samples.setdefault((variant, int(seed), model), []).append(path)
        for row in manifest.metadata["rows"]:
            ruler = row["benchmark"] == "ruler"
            metric = Metric(model, row["benchmark"], row["metric"], *((row["task"], row["length"]) if ruler else ()))
            by_run = self.scores.setdefault(metric, {})
            if (variant, int(seed)) in by_run:
                self.clashes.append(f"{row['benchmark']} {row['metric']} ({model}), suite {suite}")
                continue
            low, high = row.get("low"), row.get("high")
            span = None if low is None or high is None else (float(low), float(high))
            by_run[variant, int(seed)] = Score(
                measured(row["value"]), int(row["n"]), row["source"], row.get("note"), name, span
            )

    def score(self, metric: Metric, variant: str, seed: int) -> Score | None:
        """One score, None if no suite has it."""
        return self.scores.get(metric, {}).get((variant, seed))

    def rate(self, metric: Metric, variant: str) -> float | None:
        """The highest value over the seeds."""
        found = (self.score(metric, variant, seed) for seed in self.part.seeds)
        return max((s.value for s in found if s is not None and s.value is not None), default=None)

    def settings(self, model: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Variant, seed and settings of each evaluation of a checkpoint."""
        for name, manifest in self.inputs.items():
            if name.startswith("eval:") and name.endswith(f":{model}"):
                _, variant, seed, *_ = name.split(":")
                yield variant, seed, manifest.metadata.get("settings", {})

    def source(self, benchmark: str, model: str | None = None) -> str:
        """Where a benchmark's items come from: real, exemplar, synthetic, or empty if it was not run."""
        rows = (
            (metric, scores)
            for metric, scores in self.scores.items()
            if metric.benchmark == benchmark and model in (None, metric.model)
        )
        sources = {score.source for _, scores in rows for score in scores.values()}
        task = self.metadata("items").get("tasks", {}).get(benchmark, {})
        sources |= {task["source"]} if "source" in task and not sources else set()
        return next((s for s in ("synthetic", "exemplar", "real") if s in sources), "")

    def benchmark(self, name: str, model: str | None = None) -> str:
        """Display name of a benchmark, or of what takes its place."""
        generated = self.source(name, model) in ("synthetic", "exemplar")
        return STAND_INS[name] if generated and name in STAND_INS else BENCHMARKS.get(name, name)

    def votes(self, model: str, benchmark: str, published: str) -> str:
        """Metric of the majority vote: of the published number of answers if it was run, else of the largest."""
        names = {m.name for m in self.scores if (m.model, m.benchmark) == (model, benchmark)}
        found = [name for name in names if re.fullmatch(r"maj\d+", name)]
        return published if published in found or not found else max(found, key=lambda name: int(name[3:]))

    def observe(self, measure: Measure) -> Samples:
        """Every variant's sample of a measure."""
        return {variant: self._sample(measure, variant) for variant in self.part.variants}

    def _sample(self, measure: Measure, variant: str) -> Sample:
        by_seed: dict[int, float] = {}
        items: dict[int, ItemScores] = {}
        seen: list[Score] = []
        for seed in self.part.seeds:
            scores = [self.score(metric, variant, seed) for metric in measure.metrics]
            value = self._mean(measure, variant, seed)
            if value is None:
                continue
            by_seed[seed] = measure.factor * value
            seen += [score for score in scores if score is not None]
            items[seed] = self._weighted_items(measure, variant, seed)
        origins = tuple(dict.fromkeys(score.origin for score in seen))
        sources = tuple(sorted({score.source for score in seen}))
        missing = "" if by_seed else self._why_missing(measure, variant)
        spans = [score.span for score in seen if score.span is not None]
        span = None
        if len(measure.metrics) == 1 and spans and len(spans) == len(by_seed) and not all(items.values()):
            low, high = (sum(ends) / len(ends) for ends in zip(*spans, strict=True))
            span = (measure.factor * low, measure.factor * high)
        n = min((s.n for s in seen), default=None)
        return Sample(by_seed, items, n, sources, origins, missing, span)

    def _mean(self, measure: Measure, variant: str, seed: int) -> float | None:
        """Mean over groups of the means over metrics; None if any metric is missing."""
        means = []
        for group in measure.groups:
            scores = (self.score(metric, variant, seed) for metric in group)
            mean, n = mean_present([None if score is None else score.value for score in scores])
            means.append(mean if n == len(group) else None)
        total, n = mean_present(means)
        return total if means and n == len(means) else None

    def _weighted_items(self, measure: Measure, variant: str, seed: int) -> ItemScores:
        """Item scores whose plain mean is the measure: an item weighs as much as its metric does."""
        of_metric = {m: self.item_scores(variant, seed, m.model).get(m, {}) for m in measure.metrics}
        if not all(of_metric.values()):
            return {}
        keys = {
            m: {(task, f"{m.length or ''}/{item}"): x for (task, item), x in of_metric[m].items()} for m in of_metric
        }
        total = len({key for scores in keys.values() for key in scores})
        found: ItemScores = {}
        for group in measure.groups:
            for metric in group:
                weight = total / (len(measure.groups) * len(group) * len(keys[metric]))
                for key, value in keys[metric].items():
                    found[key] = found.get(key, 0.0) + weight * value
        return found

    def _why_missing(self, measure: Measure, variant: str) -> str:
        runs = (self.score(metric, variant, seed) for metric in measure.metrics for seed in self.part.seeds)
        reasons = sorted({r.note or "no item could be scored" for r in runs if r is not None and r.value is None})
        if reasons:
            return "; ".join(reasons)
        measured_elsewhere = any(self.scores.get(metric) for metric in measure.metrics)
        if measured_elsewhere:
            return f"not evaluated for {self.display(variant)}"
        return "no suite of this experiment runs it; add it to evals.suites"

    def _item_scores(self, variant: str, seed: int, model: str) -> dict[Metric, ItemScores]:
        found: dict[Metric, ItemScores] = {}
        for path in self.samples.get((variant, seed, model), []):
            for line in read_lines(path):
                place = (line["task"], line["length"]) if line["benchmark"] == "ruler" else ()
                for name, value in line["scores"].items():
                    if measured(value) is not None:
                        metric = Metric(model, line["benchmark"], name, *place)
                        found.setdefault(metric, {})[line["task"], str(line["item"])] = float(value)
        return found

    def train(self, variant: str, seed: int, stage: str) -> TrainRun | None:
        """One training stage, None if it is not among the inputs."""
        name = f"train:{variant}:{seed}:{stage}"
        if name not in self.inputs:
            return None
        facts = self.inputs[name].metadata
        return TrainRun(
            steps=int(facts["steps"]),
            tokens=int(facts["tokens"]),
            final_loss=facts.get("final_loss"),
            flops=facts.get("flops"),
            skipped=int(facts.get("skipped_steps", 0)),
            digests=facts.get("data_digests") or {},
            journal=(PurePosixPath(facts["model"]).parent / "metrics.jsonl").as_posix(),
            origin=name,
        )

    def trained(self, stage: TrainStage) -> list[TrainRun]:
        """Every run of a stage that is among the inputs."""
        runs = (self.train(v, seed, stage) for v, seed in product(self.part.variants, self.part.seeds))
        return [run for run in runs if run is not None]

    def _journal(self, variant: str, seed: int, stage: str) -> dict[str, dict[int, float]]:
        run = self.train(variant, seed, stage)
        found = read_metrics(self.state / run.journal) if run is not None else {}
        return {name: dict(found[name]) for name in SERIES if name in found}

    def losses(self, variant: str, seed: int, stage: str) -> list[tuple[int, float]]:
        """(step, finite loss) of one run up to its last step."""
        run = self.train(variant, seed, stage)
        series = self.journal(variant, seed, stage).get("loss", {}) if run is not None else {}
        return [(s, x) for s, x in sorted(series.items()) if run and s <= run.steps and math.isfinite(x)]

    def loss_against(self, cost: str, variant: str, seed: int, stage: str) -> Curve:
        """(cost, loss) of one run; `cost` is flops, tokens or seconds (the sum of step times, without pauses)."""
        run, losses = self.train(variant, seed, stage), self.losses(variant, seed, stage)
        if run is None or not losses:
            return []
        if cost == "seconds":
            seconds = self.journal(variant, seed, stage).get("step_seconds", {})
            spent, curve = 0.0, []
            for step, loss in losses:
                spent += seconds.get(step, 0.0)
                curve.append((spent, loss))
            return curve if seconds else []
        total = run.flops if cost == "flops" else run.tokens
        return [(step * total / run.steps, loss) for step, loss in losses] if total else []

    def mismatch(self, variant: str, stage: TrainStage) -> float:
        """A stage's FLOPs relative to the reference's, minus 1; 0 where the ledger has none."""
        row = self.metadata("flops").get("variants", {}).get(variant, {})
        return float(row.get("stage_mismatch", {"pretrain": row.get("mismatch", 0.0)}).get(stage, 0.0))


def measured(value: Any) -> float | None:
    """A score, or None for what was not run: null, NaN and RULER's -1."""
    return next(iter(present([None if value is None else float(value)])), None)


def read_lines(path: Path) -> Iterable[dict[str, Any]]:
    """Lines of a gzipped JSONL file; none if it is absent (the state folder may have been cleaned)."""
    if path.exists():
        with gzip.open(path, "rt", encoding="utf-8") as handle:
            yield from map(json.loads, handle)


def column(results: Results, model: ModelStage, benchmark: str, metric: str, paper: str, decimals: int = 1) -> Measure:
    """One column of the paper's tables. `metric` maj is the vote over as many answers as were drawn."""
    published = paper.rpartition("_")[2]
    name = results.votes(model, benchmark, published) if metric == "maj" else metric
    label = f"{results.benchmark(benchmark, model)} {METRICS.get(name, re.sub(r'^maj', 'Maj@', name))}"
    generated = results.source(benchmark, model) in ("synthetic", "exemplar")
    unit: Literal["percent", "nats"] = "nats" if metric == "gold_nll" else "percent"
    groups = ((Metric(model, benchmark, name),),)
    comparable = (paper,) if paper else ()
    return Measure(f"{benchmark}_{name}", label, groups, comparable, decimals, unit, generated)


def table1(results: Results) -> tuple[Measure, ...]:
    """Columns of the paper's Table 1: after supervised fine-tuning."""
    return (
        column(results, "sft", "gsm8k", "p1", "gsm8k_p1"),
        column(results, "sft", "gsm8k", "maj", "gsm8k_maj16"),
        column(results, "sft", "math500", "p1", "math500_p1"),
        column(results, "sft", "math500", "maj", "math500_maj16"),
        column(results, "sft", "mbpp", "p1", "mbpp_p1"),
        column(results, "sft", "mbpp", "p10", "mbpp_p10"),
    )


def table2(results: Results) -> tuple[Measure, ...]:
    """Columns of the paper's Table 2: base models. Full MATH is shown next to MATH-500 where it was run."""
    full = any(metric.benchmark == "math" and metric.model == "base" for metric in results.scores)
    return (
        column(results, "base", "gsm8k", "em", "gsm8k_em", 2),
        column(results, "base", "gsm8k", "maj", "gsm8k_maj5", 2),
        column(results, "base", "math500", "em", "" if full else "math500_em", 2),
        *((column(results, "base", "math", "em", "math500_em", 2),) if full else ()),
        column(results, "base", "mbpp", "p1", "mbpp_p1"),
        column(results, "base", "humaneval", "p1", "humaneval_p1"),
    )


def companions(results: Results, measures: Iterable[Measure]) -> tuple[Measure, ...]:
    """Loss and token accuracy of the gold answers of a table's benchmarks: they move before the scores do."""
    places = dict.fromkeys((m.model, m.benchmark) for measure in measures for m in measure.metrics)
    return tuple(
        column(results, model, benchmark, metric, "", 3 if metric == "gold_nll" else 1)  # type: ignore[arg-type]
        for model, benchmark in places
        for metric in ("gold_nll", "gold_acc")
    )


def ruler_tasks(results: Results) -> dict[int, tuple[str, ...]]:
    """Length -> tasks its items were generated for, in order of the length."""
    lengths = {int(n.partition(":")[2]): m for n, m in results.inputs.items() if n.startswith("ruler:")}
    return {length: tuple(lengths[length].slice["tasks"]) for length in sorted(lengths)}


def overall_lengths(lengths: Iterable[int]) -> tuple[int, ...]:
    """Lengths of RULER's overall mean: the paper's if all were run, else all."""
    found = tuple(sorted(lengths))
    return PAPER_LENGTHS if set(PAPER_LENGTHS) <= set(found) else found


def ruler(results: Results, what: str = "overall") -> Measure:
    """A RULER mean: `overall`, a length, `multikey.LENGTH` or `TASK.LENGTH`. Without such items it has no metrics."""
    tasks = ruler_tasks(results)
    task, _, length = what.rpartition(".")
    lengths = overall_lengths(tasks) if what == "overall" else (int(length),)
    prefix = {"multikey": "niah_multikey"}.get(task, task)

    def of(n: int) -> tuple[Metric, ...]:
        names = [t for t in tasks.get(n, ()) if (t.startswith(prefix) if task in ("", "multikey") else t == task)]
        return tuple(Metric("long", "ruler", RULER, t, n) for t in names)

    label = {"": f"RULER {length} tokens", "multikey": f"multi-key {length}"}.get(task, f"{task} {length}")
    groups = tuple(group for n in lengths if (group := of(n)))
    published = ("ruler_overall",) if what == "overall" and lengths == PAPER_LENGTHS else ()
    return Measure(what, "RULER mean" if what == "overall" else label, groups, published)


def average(name: str, label: str, results: Results, measures: Iterable[Measure]) -> Measure:
    """The mean over those columns of a table that every variant and seed has a score in."""
    used = [m for m in measures if all(len(s.by_seed) == len(results.part.seeds) for s in results.observe(m).values())]
    groups = tuple(group for m in used for group in m.groups)
    paper = tuple(name for m in used for name in m.paper)
    return Measure(name, label, groups, paper, 1, "percent", any(m.generated for m in used))


def check_comparable(results: Results) -> int:
    """Refuse results that must not be compared; returns at how many milestones the variants' training data agreed.

    Variants take different numbers of steps where FLOPs are equal, so their data must agree at every milestone that two
    runs of a seed share.

    Raises:
        DataError: runs with different tokenizers, or of one seed and stage with different training data.
    """
    part = results.part
    digests = {n: m.parents["tokenizer"] for n, m in results.inputs.items() if "tokenizer" in m.parents}
    odd = sorted(name for name, digest in digests.items() if digest != next(iter(digests.values())))
    if odd:
        raise DataError(
            f"tokenizer: {', '.join(odd)}: not the tokenizer of {next(iter(digests))}; allowed: one tokenizer for all. "
            "Delete the manifests of these runs below results/ and run again."
        )
    agreed, problems = 0, []
    for seed, stage, variant in product(part.seeds, SPLITS, part.variants):
        own, other = (results.train(v, seed, stage) for v in (variant, part.reference))
        if variant == part.reference or own is None or other is None:
            continue
        shared = sorted(own.digests.keys() & other.digests.keys(), key=int)
        first = next((at for at in shared if own.digests[at] != other.digests[at]), None)
        if first is not None:
            problems.append(f"runs/{variant}/seed{seed}/{stage}.json differs from {part.reference}'s by step {first}")
        agreed += len(shared)
    if problems:
        raise DataError(
            f"variants were trained on different data: {'; '.join(problems)}. Allowed: one order of the data per seed "
            "and stage. Delete the manifests of these runs below results/ and their folders below state/, then rerun."
        )
    return agreed


# ----------------------------------------------------------------------------------------------------------------------
# Where the manifests of an experiment are stored
# ----------------------------------------------------------------------------------------------------------------------

#: What `snakemake` runs when no config is named.
DEFAULT_CONFIG = Path("configs/smoke.yaml")
#: Manifests that name cells, below results/{experiment}.
REPORTS = ("report/report.json", "relations/relations.json", "separation/separation.json", "theory/theory.json")


def manifest_path(name: str) -> str:
    """Path of the report's input `name` below results/{experiment}.

    Raises:
        KeyError: no such kind of input.
    """
    kind, *rest = name.split(":")
    if kind.startswith("study_"):
        return "{0}/{0}.json".format(kind.removeprefix("study_"))
    patterns = {
        "flops": "flops.json",
        "items": "data/items.json",
        "tokenizer": "data/tokenizer.json",
        "data": "data/{}.json",
        "contamination": "contamination/{}.json",
        "ruler": "ruler/{}.json",
        "train": "runs/{}/seed{}/{}.json",
        "eval": "evals/{}/seed{}/{}.{}.json",
    }
    return patterns[kind].format(*rest)


@dataclass(frozen=True)
class Experiment:
    """A finished experiment on disk. `results`: results/{experiment}; `state`: state/{experiment}."""

    results: Path
    state: Path

    @classmethod
    def of(cls, config: Path | None) -> Experiment:
        """The experiment of a config file, by default the one that `snakemake` runs.

        Raises:
            UserError: the file is missing or wrong.
        """
        settings = load_config(config or DEFAULT_CONFIG)
        runtime = settings.runtime
        return cls(Path(runtime.results_dir) / settings.experiment, Path(runtime.state_dir) / settings.experiment)

    def around(self, path: Path) -> Experiment | None:
        """The experiment that a run's manifest belongs to: the folder above `runs` or `evals`.

        Its state folder is found from its results folder as ours is from ours, and may be absent. None: `path` is
        below no such folder.
        """
        folder = path.resolve().parent
        if folder.is_relative_to(self.results.resolve()):
            return self
        results = next((p.parent for p in folder.parents if p.name in ("runs", "evals")), None)
        if results is None:
            return None
        beside = os.path.relpath(self.state.parent.resolve(), self.results.parent.resolve())
        return Experiment(results, results.parent / beside / results.name)

    def reports(self) -> dict[Path, Manifest]:
        """Manifests of the finished reports of this experiment.

        Raises:
            UserError: there is none.
        """
        paths = [self.results / name for name in REPORTS]
        found = {path: read_manifest(path) for path in paths if path.exists()}
        if not any("cells" in manifest.metadata for manifest in found.values()):
            raise UserError(f"{paths[0]}: this experiment has no report; run snakemake, or name another with --config.")
        return found

    def commit(self, manifest: Manifest, digest: str | None = None) -> str | None:
        """Commit a run was started from, `+` if there were uncommitted changes; None if it is not recorded.

        `digest`: SHA-256 of the manifest, under which its stage recorded the commit; a training run also has it in its
        journal.
        """
        note = self.state / ORIGINS / f"{digest}.json"
        if digest and note.exists():
            noted = json.loads(note.read_text())
            return f"{noted['commit']}{'+' if noted['dirty'] else ''}"
        place = manifest.metadata.get("model") or next((f.path for f in manifest.files.values()), None)
        tags = start_tags(self.state / Path(place).parent / "metrics.jsonl") if place else {}
        commit = tags.get("git.commit")
        return None if commit is None else f"{commit}{'+' if tags.get('git.dirty') == 'true' else ''}"


def start_tags(journal: Path) -> dict[str, Any]:
    """Tags of the last `start` event of a journal, empty if there is none."""
    found: dict[str, Any] = {}
    for _, event in read_events(journal) if journal.exists() else ():
        if event["event"] == "start":
            found = event["run"].get("tags", {})
    return found


def digest_of(path: Path) -> str | None:
    """SHA-256 of a file, None if it is absent."""
    return sha256_file(path) if path.exists() else None


def choose(what: str, given: str, allowed: Iterable[str], example: str = "") -> str:
    """`given` if it is allowed.

    Raises:
        UserError: lists what is allowed and proposes the nearest.
    """
    names = list(allowed)
    if given in names:
        return given
    near = difflib.get_close_matches(given, names, 1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    value = f"{given!r}{hint}" if given else "required"
    raise UserError(f"{what}: {value}; allowed: {', '.join(names)}.{f' Example: {example}' if example else ''}")


def with_gain(after: Sample, before: Sample) -> Sample:
    """What one variant gained between two checkpoints, by seed; items are not paired between benchmarks."""
    shared = after.by_seed.keys() & before.by_seed.keys()
    gains = {seed: after.by_seed[seed] - before.by_seed[seed] for seed in sorted(shared)}
    return replace(after, by_seed=gains, items={}, origins=(*after.origins, *before.origins))
