"""Every table of the report: cells computed from results, then written as Markdown, CSV, LaTeX or HTML.

A cell is one number; the paper's is shown next to it, smaller. When it is computed, a cell records its inputs, which
`iha trace` prints. Bold: significantly better than the reference after correction.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_HALF_UP, Decimal
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from iha.artifacts.text import hours, size
from iha.config.schema import MODEL_STAGES, SPLITS, Config, TrainStage
from iha.errors import UserError
from iha.evals.scores import mean_sd
from iha.report.claims import Finding, published
from iha.report.paper import paper
from iha.report.results import (
    LAST,
    RATES,
    STAGES,
    Curve,
    Measure,
    Metric,
    Results,
    Sample,
    Samples,
    average,
    companions,
    overall_lengths,
    ruler,
    ruler_tasks,
    table1,
    table2,
)
from iha.report.statistics import Comparison, average_ranks, compare, correct

MISSING = "–"
SCALE_LABELS = {
    "paper": "",
    "ladder": "Ladder run, not a reproduction",
    "smoke": "Smoke run, not a reproduction",
}
#: Budgets are matched to within this share, or half a step.
MATCHED = 1e-3
#: Tables whose small numbers are the paper's.
PUBLISHED = ("summary", "table1", "table2", "ruler")
#: How a cell starts that is a number, its sign or bound ahead.
NUMBER = re.compile(r"[-+−<>≤≥≈±]?\s?\d")


@dataclass(frozen=True)
class Cell:
    """What a cell shows, the unrounded value, its name TABLE:ROW:COLUMN, and what it was computed from.

    `small`: the paper's number, or another in smaller print. `inputs`: names of the report's inputs. `rows`: fields and
    values that select the rows of an evaluation that were read. `compared`: names of the cells that it compares.
    """

    text: str
    value: Any = None
    name: str = ""
    small: str = ""
    bold: bool = False
    inputs: tuple[str, ...] = ()
    rows: dict[str, Any] = field(default_factory=dict)
    compared: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table; the first column holds the names of the rows. `notes`: below it."""

    name: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    @property
    def words(self) -> frozenset[int]:
        """Columns of words, which are aligned to the left: those where most filled cells are not numbers."""
        found = {0}
        for i in range(1, len(self.header)):
            filled = [row[i].text for row in self.rows if row[i].text not in ("", MISSING)]
            if 2 * sum(NUMBER.match(text) is None for text in filled) > len(filled):
                found.add(i)
        return frozenset(found)

    def cells(self) -> Iterator[Cell]:
        """Cells that have a name."""
        return (cell for row in self.rows for cell in row if cell.name)


# ----------------------------------------------------------------------------------------------------------------------
# Numbers
# ----------------------------------------------------------------------------------------------------------------------


def number(value: float, decimals: int) -> str:
    """Rounded half up in decimal, as a reader with a pencil would: 0.125 -> 0.13."""
    exact = Decimal(repr(round(float(value), 9)))
    text = str(exact.quantize(Decimal(1).scaleb(-decimals), rounding=ROUND_HALF_UP))
    return text.removeprefix("-") if float(text) == 0 else text


def signed(value: float, decimals: int) -> str:
    """`+1.2`, `-0.3`, `0.0`."""
    text = number(value, decimals)
    return text if text.startswith("-") or float(text) == 0 else f"+{text}"


def big(value: float | None) -> str:
    """Counts to three digits with SI letters: 2.52e11 -> `252 G`."""
    if value is None:
        return MISSING
    letters = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")
    value = float(f"{value:.2e}")  # first: 999,999 is 1.00 M, not 1000 k
    power = min(max(0, int(math.log10(abs(value)) // 3)), len(letters) - 1) if value else 0
    scaled = value / 1000**power
    digits = 0 if abs(scaled) >= 100 or not power else 1 if abs(scaled) >= 10 else 2
    return f"{scaled:.{digits}f} {letters[power]}".rstrip()


def p_text(p: float | None) -> str:
    """`0.012`, `< 0.001`, a dash for none."""
    return MISSING if p is None else "< 0.001" if p < 0.001 else number(p, 3)


def span_text(low: float | None, high: float | None, decimals: int) -> str:
    """`-1.2 to +3.4`, a dash for none."""
    return MISSING if low is None or high is None else f"{signed(low, decimals)} to {signed(high, decimals)}"


# ----------------------------------------------------------------------------------------------------------------------
# The paper's tables
# ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Endpoint:
    """A measure with every variant's sample and its comparison with the reference."""

    measure: Measure
    samples: Samples
    tests: dict[str, Comparison]

    @property
    def zero(self) -> bool:
        """Whether every variant scores zero."""
        return not any(sample.mean for sample in self.samples.values())


def endpoints(results: Results, measured: Sequence[tuple[Measure, Samples]]) -> tuple[Endpoint, ...]:
    """Compare each measure's variants with the reference, corrected over all of them together."""
    tests = {
        m.name: compare(samples, results.part.reference, m.lower_is_better, m.factor, len(measured))
        for m, samples in measured
    }
    corrected = correct(tests)
    return tuple(Endpoint(measure, samples, corrected[measure.name]) for measure, samples in measured)


def observed(results: Results, measures: Iterable[Measure]) -> tuple[Endpoint, ...]:
    """`endpoints` of measures that are read from evaluations."""
    return endpoints(results, [(measure, results.observe(measure)) for measure in measures])


def headline(results: Results) -> tuple[Endpoint, ...]:
    """The primary endpoint first, alone in its family; then the secondary ones, corrected together.

    Primary: the mean of Table 1. It is fixed here, before any run.
    """
    means = (
        average("table1_mean", "Table 1 mean", results, table1(results)),
        average("table2_mean", "Table 2 mean", results, table2(results)),
        replace(ruler(results), name="ruler_mean"),
    )
    observed_means = [(measure, results.observe(measure)) for measure in means]
    loss = Measure("loss", "pretraining loss", (), (), 3, "nats")
    primary, *secondary = (*observed_means, (loss, loss_samples(results, "pretrain")))
    return (*endpoints(results, [primary]), *endpoints(results, secondary))


def loss_samples(results: Results, stage: TrainStage) -> Samples:
    """Training loss at the end of a stage by seed, on the batches that all variants took."""

    def of(variant: str) -> Sample:
        values = {s: x for s in results.part.seeds if (x := final_loss(results, variant, s, stage, True)) is not None}
        origins = tuple(f"train:{variant}:{seed}:{stage}" for seed in values)
        return Sample(values, origins=origins, missing="" if values else "no training journal")

    return {variant: of(variant) for variant in results.part.variants}


def budget(results: Results) -> str:
    """What is equal between variants, stage by stage where it differs."""
    units = {"flops": "FLOPs", "tokens": "tokens"}
    match = results.match
    if len(set(match.values())) == 1:
        return f"equal {units[match['pretrain']]} in every stage"
    return ", ".join(f"equal {units[unit]} in {STAGES[stage]}" for stage, unit in match.items())


def title(results: Results, text: str) -> str:
    """A title with the number of seeds and what is equal."""
    seeds = len(results.part.seeds)
    return f"{text} {f'Mean of {seeds} training seeds' if seeds > 1 else 'One training seed'}; {budget(results)}."


def summary_table(results: Results, found: Sequence[Endpoint]) -> Table:
    """The compact table of the first screen: one row per variant, one number per cell."""
    shown = [e for e in found if any(sample.by_seed for sample in e.samples.values())]
    rows = tuple((Cell(results.display(v)), *(_cell(e, v, "summary") for e in shown)) for v in results.part.variants)
    header = ("variant", *(_heading(e.measure) for e in shown))
    return Table("summary", title(results, "All variants."), header, rows)


def _heading(measure: Measure) -> str:
    return measure.label if measure.unit == "percent" else f"{measure.label} ↓"


def _cell(endpoint: Endpoint, variant: str, table: str) -> Cell:
    """A variant's mean, next to the paper's where the items are the benchmark's."""
    measure, sample = endpoint.measure, endpoint.samples[variant]
    theirs = None if measure.generated else paper().of(measure, variant)
    test = endpoint.tests.get(variant)
    rows: dict[str, Any] = {}
    if measure.metrics:
        rows = {"benchmark": sorted({m.benchmark for m in measure.metrics})}
        rows |= {"metric": sorted({m.name for m in measure.metrics})}
    if any(m.length for m in measure.metrics):
        rows |= {"task": sorted({m.task for m in measure.metrics})}
        rows |= {"length": sorted({m.length for m in measure.metrics if m.length})}
    return Cell(
        text=MISSING if sample.mean is None else number(sample.mean, measure.decimals),
        value=sample.mean,
        name=f"{table}:{variant}:{measure.name}",
        small="" if theirs is None else number(theirs, measure.decimals),
        bold=test is not None and test.verdict == "better",
        inputs=sample.origins,
        rows=rows,
    )


def comparison_table(results: Results, found: Sequence[Endpoint]) -> Table:
    """Each variant against the reference on each endpoint of the first screen."""
    rows = []
    for endpoint in found:
        label = _heading(endpoint.measure)
        for variant, test in endpoint.tests.items():
            rows.append(_comparison_row(results, endpoint, variant, test, label))
            label = ""
    header = ("endpoint", "variant", "difference", "95 % interval", "p", "detectable", "verdict")
    blind = any(
        t.seeds > 1 and not t.items and t.p is not None and e.measure.metrics for e in found for t in e.tests.values()
    )
    note = "The answers to single items are not kept: the tests are over seeds alone, on these items."
    text = title(results, f"Each variant minus {results.reference}.")
    return Table("compare", text, header, tuple(rows), (note,) if blind else ())


def _comparison_row(
    results: Results, endpoint: Endpoint, variant: str, test: Comparison, label: str
) -> tuple[Cell, ...]:
    measure, reference = endpoint.measure, results.part.reference
    decimals, name = measure.decimals, f"compare:{variant}:{measure.name}"
    inputs = (*endpoint.samples[variant].origins, *endpoint.samples[reference].origins)
    compared = tuple(f"summary:{v}:{measure.name}" for v in (variant, reference))
    shown = {
        "": (signed(test.difference, decimals), test.difference),
        ".interval": (span_text(test.low, test.high, decimals), [test.low, test.high]),
        ".p": (p_text(test.corrected), test.corrected),
        ".detectable": (MISSING if test.detectable is None else number(test.detectable, decimals), test.detectable),
        ".verdict": (test.verdict, test.verdict),
    }
    bold = test.verdict in ("better", "worse")
    cells = (
        Cell(text, value, name + suffix, bold=bold and suffix == ".verdict", inputs=inputs, compared=compared)
        for suffix, (text, value) in shown.items()
    )
    return (Cell(label), Cell(results.display(variant)), *cells)


def paper_table(results: Results, name: str) -> tuple[Table, tuple[Endpoint, ...]]:
    """Table 1 or 2, and its columns."""
    measures = {"table1": table1, "table2": table2}[name](results)
    columns = observed(results, measures)
    heads = {
        "table1": "Table 1. After supervised fine-tuning, percent.",
        "table2": "Table 2. Base models after pretraining, percent.",
    }
    ranks = average_ranks([{v: sample.mean for v, sample in c.samples.items()} for c in columns])
    rows = []
    for v in results.part.variants:
        theirs = None if any(m.generated for m in measures) else paper().value(name, "avg_rank", v)
        rank = Cell(
            number(ranks[v], 1) if v in ranks else MISSING,
            ranks.get(v),
            f"{name}:{v}:avg_rank",
            "" if theirs is None else number(theirs, 1),
            inputs=tuple(dict.fromkeys(o for c in columns for o in c.samples[v].origins)),
            rows={"metric": sorted({m.metrics[0].name for m in measures})},
            compared=tuple(f"{name}:{other}:avg_rank" for other in results.part.variants if other != v),
        )
        rows.append((Cell(results.display(v)), *(_cell(c, v, name) for c in columns), rank))
    header = ("variant", *(measure.label for measure in measures), "avg. rank")
    notes = (*missing_notes(results, columns), *warnings(results, measures))
    return Table(name, title(results, heads[name]), header, tuple(rows), notes), columns


def companion_table(results: Results, name: str, measures: Sequence[Measure]) -> tuple[Table, tuple[Endpoint, ...]]:
    """Loss and token accuracy of the gold answers of a table's benchmarks."""
    columns = observed(results, companions(results, measures))
    run = [c for c in columns if any(sample.by_seed for sample in c.samples.values())]
    rows = tuple((Cell(results.display(v)), *(_cell(c, v, name) for c in run)) for v in results.part.variants)
    text = "Of the gold answers: loss (nats per token, lower is better) and token accuracy (percent)."
    header = ("variant", *(_heading(c.measure) for c in run))
    return Table(f"{name}_companion", title(results, text), header, rows, missing_notes(results, run)), columns


def ruler_table(results: Results) -> tuple[Table, tuple[Endpoint, ...]]:
    """RULER: overall mean, then by length, then multi-key retrieval by length."""
    lengths = tuple(ruler_tasks(results))
    measures = (ruler(results), *(ruler(results, str(n)) for n in lengths))
    measures += tuple(m for n in lengths if (m := ruler(results, f"multikey.{n}")).metrics)
    columns = observed(results, measures)
    rows = tuple((Cell(results.display(v)), *(_cell(c, v, "ruler") for c in columns)) for v in results.part.variants)
    over = ", ".join(map(str, overall_lengths(lengths))) or "no length"
    text = title(results, f"RULER after context extension, percent. Mean over {over} tokens.")
    notes = (*missing_notes(results, columns), *_ruler_notes(results))
    header = ("variant", "mean", *(m.label.removeprefix("RULER ") for m in measures[1:]))
    return Table("ruler", text, header, rows, notes), columns


def _ruler_notes(results: Results) -> tuple[str, ...]:
    tasks = sorted({task for names in ruler_tasks(results).values() for task in names})
    ruled = {m: by for m, by in results.scores.items() if m.benchmark == "ruler"}
    counts = {score.n for by in ruled.values() for score in by.values() if score.value is not None}
    if not counts:
        return ()
    other = sorted({m.task for m, by in ruled.items() if any(s.source != "real" for s in by.values())})
    notes = [f"Tasks ({len(tasks)} of RULER's 13): {', '.join(tasks)}. Items per task and length: {min(counts)}."]
    if other:
        notes.append(f"With another text than RULER's essays as haystack ({haystack(results)}): {', '.join(other)}.")
    return tuple(notes)


def haystack(results: Results) -> str:
    """The text that takes the place of RULER's essays."""
    origin = results.metadata("items").get("haystack", {}).get("origin", {})
    kinds = {
        "book": "the King James Bible",
        "docstrings": "docstrings of installed packages",
        "templates": "generated problems",
        "needles": "generated needle texts",
    }
    where = origin.get("name") or ", ".join(origin.get("paths", ()))
    return str(where or kinds.get(origin.get("kind"), "another text"))


def ruler_task_cells(results: Results) -> list[Cell]:
    """Every task's own score at every length: column TASK.LENGTH."""
    found = []
    for length, tasks in ruler_tasks(results).items():
        for column in observed(results, [ruler(results, f"{task}.{length}") for task in tasks]):
            found += [_cell(column, v, "ruler") for v in results.part.variants if column.samples[v].by_seed]
    return found


def missing_notes(results: Results, columns: Iterable[Endpoint]) -> tuple[str, ...]:
    """Why cells are empty, and which seeds a mean lacks: each reason once, with the cells it concerns."""
    reasons: dict[str, list[str]] = {}
    seeds: dict[str, list[str]] = {}
    for column in columns:
        empty = [v for v, sample in column.samples.items() if sample.missing]
        for reason in dict.fromkeys(column.samples[v].missing for v in empty):
            reasons.setdefault(reason.rstrip("."), []).append(column.measure.label)
        for v, sample in column.samples.items():
            absent = [str(s) for s in results.part.seeds if s not in sample.by_seed]
            if sample.by_seed and absent:
                seeds.setdefault(f"{results.display(v)} has no seed {', '.join(absent)}", []).append(
                    column.measure.label
                )
    notes = [f"{MISSING} {', '.join(labels)}: {reason}." for reason, labels in reasons.items()]
    return (*notes, *(f"{who} in {', '.join(labels)}; it is left out, not imputed." for who, labels in seeds.items()))


def warnings(results: Results, measures: Sequence[Measure]) -> tuple[str, ...]:
    """What a reader has to know before believing these columns: cut answers, skipped steps, unequal budgets."""
    places = dict.fromkeys((m.metrics[0].model, m.metrics[0].benchmark) for m in measures)
    texts = {
        "truncated": "Answers cut at the generation limit",
        "over_context": "Prompts longer than the training context",
        "no_room": "Answers not generated because prompt and answer exceed the model's context",
    }
    notes = []
    for rate, text in texts.items():
        parts = []
        for model, benchmark in places:
            found = [results.rate(Metric(model, benchmark, rate), v) for v in results.part.variants]
            high = [x for x in found if x is not None and x > RATES[rate]]
            if high:
                low, most = number(100 * min(high), 0), number(100 * max(high), 0)
                span = low if low == most else f"{low} to {most}"
                parts.append(f"{results.benchmark(benchmark, model)} {span} %")
        if parts:
            notes.append(f"{text}: {', '.join(parts)}.")
    stages = list(dict.fromkeys(("pretrain", *(MODEL_STAGES[model] for model, _ in places))))
    notes += [*_budgets(results, stages), *_skipped(results, stages), *_dtypes(results, places)]
    notes += _timeouts(results, places)
    notes += [f"Measured twice, the first value is shown: {text}." for text in results.clashes]
    return tuple(notes)


def _budgets(results: Results, stages: Sequence[TrainStage]) -> list[str]:
    notes = []
    for stage in stages:
        away = {v: results.mismatch(v, stage) for v in results.part.variants}
        off = {v: x for v, x in away.items() if abs(x) > MATCHED}
        if off:
            shares = ", ".join(f"{results.display(v)} {signed(100 * x, 1)} %" for v, x in off.items())
            notes.append(f"FLOPs of {STAGES[stage]} relative to {results.reference}: {shares}.")
    return notes


def _skipped(results: Results, stages: Sequence[TrainStage]) -> list[str]:
    found = [
        f"{results.display(v)} seed {seed} {STAGES[stage]} {run.skipped} of {run.steps}"
        for v, seed, stage in product(results.part.variants, results.part.seeds, stages)
        if (run := results.train(v, seed, stage)) is not None and run.skipped
    ]
    return [f"Optimizer steps skipped as non-finite or spiking: {', '.join(found)}."] if found else []


def _timeouts(results: Results, places: Iterable[tuple[str, str]]) -> list[str]:
    counts = {
        results.benchmark(benchmark, model): sum(
            settings.get("grading_timeouts", {}).get(benchmark, 0) for *_, settings in results.settings(model)
        )
        for model, benchmark in places
    }
    shown = ", ".join(f"{name} {count}" for name, count in counts.items() if count)
    return [f"Comparisons of answers that ran out of time and count as different: {shown}."] if shown else []


def _dtypes(results: Results, places: Iterable[tuple[str, str]]) -> list[str]:
    found: dict[str, set[str]] = {}
    for model in dict.fromkeys(model for model, _ in places):
        for variant, seed, settings in results.settings(model):
            if "dtype" in settings:
                found.setdefault(settings["dtype"], set()).add(f"{results.display(variant)} seed {seed}")
    if len(found) < 2:
        return []
    shown = "; ".join(f"{dtype}: {', '.join(sorted(runs))}" for dtype, runs in sorted(found.items()))
    return [f"Evaluated in different number formats: {shown}."]


# ----------------------------------------------------------------------------------------------------------------------
# Claims
# ----------------------------------------------------------------------------------------------------------------------


def claims_table(results: Results, findings: Sequence[Finding]) -> Table:
    """One row per claim that was tested; those that were not are named in one line below, by their reason."""
    notes: list[str] = []
    rows = []
    untested: dict[str, list[str]] = {}
    for f in findings:
        if f.test is None:
            untested.setdefault(f.why, []).append(f.claim.id)
            continue
        marks = []
        for note in f.claim.notes:
            if note not in notes:
                notes.append(note)
            marks.append(str(notes.index(note) + 1))
        measured = f"{f.measured} [{', '.join(marks)}]" if marks else f.measured
        rows.append((Cell(f.claim.says, small=measured), *_claim_cells(f)))
    below = [f"[{i}] {note}" for i, note in enumerate(notes, 1)]
    below += [f"Not tested ({why}): {', '.join(ids)}." for why, ids in untested.items()]
    header = ("claim", "verdict", "difference", "95 % interval", "p", "items × seeds", "paper")
    return Table("claims", title(results, "The paper's claims."), header, tuple(rows), tuple(below))


def _claim_cells(f: Finding) -> tuple[Cell, ...]:
    test, theirs, name = f.test, published(f.claim), f"claims:{f.claim.id}"
    assert test is not None
    low, high = test.low, test.high
    shown = {
        "verdict": (f.verdict, f.verdict),
        "effect": (signed(test.difference, 1), test.difference),
        "low": (span_text(low, high, 1), low),
        "p_holm": (p_text(f.p), f.p),
        "items": (f"{test.items or MISSING} × {test.seeds}", test.items),
        "paper": (theirs or MISSING, theirs or None),
    }
    bold = f.verdict in ("supported", "contradicted")
    small = {"verdict": "on generated items"} if f.generated and bold else {}
    return tuple(
        Cell(text, value, f"{name}:{column}", small.get(column, ""), bold and column == "verdict", f.origins)
        for column, (text, value) in shown.items()
    )


# ----------------------------------------------------------------------------------------------------------------------
# Training, compute, cost
# ----------------------------------------------------------------------------------------------------------------------


def final_loss(results: Results, variant: str, seed: int, stage: TrainStage, common: bool) -> float | None:
    """Mean loss of the last steps, as many as every run has, LAST at most.

    `common`: of the last steps that all runs took, so that variants are compared on the same batches.
    """
    shortest = min((run.steps for run in results.trained(stage)), default=0)
    losses = results.losses(variant, seed, stage)
    kept = [x for step, x in losses if not common or step <= shortest][-min(LAST, shortest) :] if shortest else []
    if kept:
        return sum(kept) / len(kept)
    run = results.train(variant, seed, stage)
    return None if run is None or common else run.final_loss


def training_values(results: Results, variant: str, stage: TrainStage, what: str) -> list[float]:
    """One value for each seed that has it: loss, common, steps, tokens, flops, skipped or seconds."""
    found: list[float | None] = []
    for seed in results.part.seeds:
        if what in ("loss", "common"):
            found.append(final_loss(results, variant, seed, stage, what == "common"))
        elif what == "seconds":
            curve = results.loss_against("seconds", variant, seed, stage)
            found.append(curve[-1][0] if curve else None)
        else:
            found.append(getattr(results.train(variant, seed, stage), what, None))
    return [float(x) for x in found if x is not None]


def training_table(results: Results) -> Table:
    """Loss at the end of each stage, and what pretraining took."""

    def cell(v: str, stage: TrainStage, what: str, show: Callable[[list[float]], str]) -> Cell:
        values = training_values(results, v, stage, what)
        mean = sum(values) / len(values) if values else None
        inputs = tuple(f"train:{v}:{s}:{stage}" for s in results.part.seeds if results.train(v, s, stage))
        return Cell(show(values) if values else MISSING, mean, f"training:{v}:{stage}.{what}", inputs=inputs)

    rows = []
    for v in results.part.variants:
        if not any(training_values(results, v, stage, "steps") for stage in SPLITS):
            continue
        losses = [cell(v, s, what, _loss_text) for s in SPLITS for what in ("loss", "common")]
        spent = [cell(v, "pretrain", what, lambda x: big(sum(x) / len(x))) for what in ("tokens", "flops")]
        seconds = cell(v, "pretrain", "seconds", lambda x: f"{sum(x) / len(x):,.0f}")
        rows.append((Cell(results.display(v)), *losses, *spent, seconds))
    heads = [f"{name}{text}" for name in STAGES.values() for text in ("", ", same batches")]
    header = ("variant", *heads, "tokens", "FLOPs", "seconds")
    return Table("training", title(results, "Training loss at the end of each stage."), header, tuple(rows))


def rate_cells(results: Results, name: str, measures: Iterable[Measure]) -> list[Cell]:
    """The rates that only warnings speak of, in percent, the highest of the seeds': column BENCHMARK_RATE."""
    places = dict.fromkeys((m.metrics[0].model, m.metrics[0].benchmark) for m in measures)
    return [
        Cell("", 100 * share, f"{name}:{v}:{benchmark}_{rate}", inputs=results.observe(measure)[v].origins)
        for (model, benchmark), rate, v in product(places, RATES, results.part.variants)
        if (share := results.rate(Metric(model, benchmark, rate), v)) is not None
        and (measure := Measure(rate, rate, ((Metric(model, benchmark, rate),),)))
    ]


def training_cells(results: Results) -> list[Cell]:
    """Every number of the training table and those that it does not show."""
    shown = ("loss", "common", "steps", "tokens", "flops", "skipped", "seconds")
    return [
        Cell("", sum(x) / len(x), f"training:{v}:{stage}.{what}", inputs=inputs)
        for v, stage, what in product(results.part.variants, SPLITS, shown)
        if (x := training_values(results, v, stage, what))
        and (inputs := tuple(f"train:{v}:{s}:{stage}" for s in results.part.seeds if results.train(v, s, stage)))
    ]


def _loss_text(values: list[float]) -> str:
    mean, sd = mean_sd(values)
    return number(mean, 3) if sd is None else f"{number(mean, 3)} ± {number(sd, 3)}"


#: Training stage and cost: the columns of the table of compute needed to reach the reference's loss.
REACH = (
    ("pretrain", "flops", "FLOPs"),
    ("pretrain", "tokens", "tokens"),
    ("pretrain", "seconds", "seconds"),
    ("sft", "flops", "FLOPs"),
)


def first_at(points: Curve, level: float) -> float | None:
    """Cost at which the mean of the last LAST losses of `points` (cost, loss) first is at or below `level`, if ever."""
    window = 0.0
    for i, (cost, loss) in enumerate(points):
        window += loss - (points[i - LAST][1] if i >= LAST else 0.0)
        if i + 1 >= LAST and window <= LAST * level + 1e-9:
            return cost
    return None


def reach_table(results: Results) -> Table:
    """Compute needed to reach the reference's final loss, relative to the reference; by seed in the file."""
    columns = [c for c in REACH if _ratios(results, results.part.reference, c[0], c[1])]
    rows = []
    for v in results.part.variants:
        cells = []
        for stage, cost, text in columns:
            ratios = _ratios(results, v, stage, cost)
            reached = [x for x in ratios.values() if x is not None]
            mean = sum(reached) / len(reached) if reached and len(reached) == len(ratios) else None
            shown = (
                MISSING
                if not ratios
                else "not reached"
                if not reached
                else f"in {len(reached)} of {len(ratios)} seeds"
                if mean is None
                else number(mean, 2)
            )
            inputs = tuple(f"train:{who}:{s}:{stage}" for who in (v, results.part.reference) for s in ratios)
            small = (
                " / ".join(MISSING if x is None else number(x, 2) for x in ratios.values()) if len(ratios) > 1 else ""
            )
            cells.append(Cell(shown, mean, f"reach:{v}:{stage}.{text}", small, inputs=tuple(dict.fromkeys(inputs))))
        if any(cell.text != MISSING for cell in cells):
            rows.append((Cell(results.display(v)), *cells))
    header = ("variant", *(f"{STAGES[stage]} {text}" for stage, _, text in columns))  # type: ignore[index]
    text = f"Compute needed to reach {results.reference}'s final loss, relative to {results.reference}."
    return Table("reach", title(results, text), header, tuple(rows))


def _ratios(results: Results, variant: str, stage: str, cost: str) -> dict[int, float | None]:
    """Seed -> cost relative to the reference's; None: not reached."""
    found: dict[int, float | None] = {}
    for seed in results.part.seeds:
        base = results.loss_against(cost, results.part.reference, seed, stage)
        own = results.loss_against(cost, variant, seed, stage)
        if len(base) < LAST or not own:
            continue
        level = sum(loss for _, loss in base[-LAST:]) / LAST
        target, reached = first_at(base, level), first_at(own, level)
        if target:
            found[seed] = None if reached is None else reached / target
    return found


def flops_table(results: Results) -> Table:
    """The FLOP ledger."""
    ledger = results.metadata("flops").get("variants", {})
    rows = tuple(_flops_row(results, v, ledger[v]) for v in results.part.variants if v in ledger)
    header = (
        "variant", "parameters", "in attention", "FLOPs/token", "attention, relative", "all, relative", "steps",
        "tokens", "pretraining FLOPs", "mismatch, %", "KV cache",
    )  # fmt: skip
    return Table("flops", title(results, "FLOP ledger."), header, rows)


def _flops_row(results: Results, variant: str, row: Mapping[str, Any]) -> tuple[Cell, ...]:
    params, steps, tokens = row.get("params", {}), row.get("steps", {}), row.get("tokens", {})
    cache, forward = row.get("cache_bytes", {}), row.get("flops_per_token", {}).get("forward")
    spent, longest = row.get("train_flops", {}).get("pretrain"), max(row.get("cache_bytes", {}), key=int, default=None)
    away = row.get("stage_mismatch", {"pretrain": row.get("mismatch", 0.0)})

    def ratio(key: str) -> tuple[str, Any]:
        return MISSING if row.get(key) is None else number(row[key], 2), row.get(key)

    cells = {
        "parameters": (big(params.get("total")), params.get("total")),
        "attention_parameters": (big(params.get("attention")), params.get("attention")),
        "forward_flops_per_token": (big(forward), forward),
        "attention_ratio": ratio("attention_ratio"),
        "forward_ratio": ratio("forward_ratio"),
        "steps": (" / ".join(str(steps.get(stage, MISSING)) for stage in SPLITS), steps),
        "tokens": (" / ".join(big(tokens.get(stage)) for stage in SPLITS), tokens),
        "pretrain_flops": (big(spent), spent),
        "mismatch": (" / ".join(signed(100 * away[s], 2) if s in away else MISSING for s in SPLITS), away),
        "cache_bytes": (f"{big(cache[longest])}B at {longest}" if longest else MISSING, cache.get(longest)),
    }
    named = (Cell(text, x, f"flops:{variant}:{name}", inputs=("flops",)) for name, (text, x) in cells.items())
    return (Cell(results.display(variant)), *named)


RULES = {
    "flops": "FLOP ledger", "items": "evaluation items", "theory": "theory", "tokenise": "tokenization",
    "contamination": "contamination search", "ruler": "RULER items", "pretrain": "pretraining", "extend": "extension",
    "sft": "fine-tuning", "evaluate": "evaluation", "synthetic_data": "relation examples",
    "synthetic_train": "relation training",
}  # fmt: skip


def priced(state: Path) -> dict[str, Any] | None:
    """The plan of the configuration in the state folder, with what finished jobs took; None if there is no plan."""
    from iha.planning.price import plan

    try:
        return plan(Config.model_validate_json((state / "config.json").read_text()))
    except (FileNotFoundError, ValidationError, UserError):
        return None


def cost_table(results: Results, facts: Mapping[str, Any]) -> Table:
    """Predicted against actual time, for the jobs that have finished."""
    rows = [_cost_row(name, row) for name, row in facts["rules"].items() if "actual" in row]
    total = _cost_row("total", facts["total"]) if "actual" in facts["total"] else None
    header = ("job", "jobs", "predicted", "actual", "actual / predicted", "memory, actual")
    text = f"Cost of the finished jobs; the prediction is for {facts['device']}."
    return Table("plan", text, header, (*rows, total) if total else tuple(rows))


def _cost_row(rule: str, row: Mapping[str, Any]) -> tuple[Cell, ...]:
    actual = row["actual"]
    unit = "gpu_hours" if row["gpu_hours"] else "cpu_hours"
    took, expected = actual[unit], actual[f"predicted_{unit}"]
    shown = {
        "actual.jobs": (str(actual["jobs"]), actual["jobs"]),
        f"predicted.{unit}": (hours(expected) if expected else MISSING, expected),
        f"actual.{unit}": (hours(took) if took else MISSING, took),
        "actual.ratio": (
            number(took / expected, 1) if took and expected else MISSING,
            took / expected if expected else None,
        ),
        "actual.memory_bytes_per_rank": (size(actual["memory_bytes_per_rank"]), actual["memory_bytes_per_rank"]),
    }
    cells = (Cell(text, value, f"plan:{rule}:{column}") for column, (text, value) in shown.items())
    return (Cell(RULES.get(rule, rule)), *cells)


def cost_cells(facts: Mapping[str, Any]) -> list[Cell]:
    """Every predicted and actual number of the plan."""
    rows = {**facts["rules"], "total": facts["total"]}
    return [
        Cell("", value, f"plan:{rule}:{column}")
        for rule, row in rows.items()
        for column, value in {**row, **{f"actual.{k}": x for k, x in row.get("actual", {}).items()}}.items()
        if column != "actual"
    ]
