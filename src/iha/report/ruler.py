"""Figure 2's numbers: RULER means per variant and length, over all tasks and over multi-key retrieval.

A mean over a suite is blank if one of its tasks is missing; -1 is missing, not a score (RUL-03).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from iha.evals.scores import mean_present, suite_mean
from iha.report.collect import Results
from iha.report.format import MISSING, display, mean_text, signed
from iha.report.notes import variant_notes
from iha.report.paper import paper
from iha.report.power import power
from iha.report.records import Cells, Footnotes, Grid, ItemScores, Metric, Text
from iha.report.stats import LEVEL, holm, interval, paired_effect, paired_mean
from iha.report.tables import caption

#: Lengths of the overall mean where all of them were run [spec 11]; otherwise every length.
PAPER_LENGTHS = (4096, 8192, 16_384)
METRIC = "official"
#: What may stand in for RULER's essays, by kind of source; a source with a name or paths is called by these.
HAYSTACKS = {
    "book": "the King James Bible",
    "docstrings": "docstrings of installed packages",
    "templates": "generated problems",
    "needles": "generated needle texts",
}
#: Seed -> percent.
BySeed = dict[int, float]


@dataclass(frozen=True)
class Ruler:
    """Percent by variant (and length) and seed; a missing seed is absent. `p`: overall against the reference, Holm;
    `reach`: the smallest value that it could have had; `delta`: the difference tested, over the seeds that both have.

    `bounds`, `multikey_bounds`: 95 % interval of a mean, absent without the scores of single items.
    """

    lengths: tuple[int, ...]
    tasks: dict[int, tuple[str, ...]]
    overall_lengths: tuple[int, ...]
    by_length: dict[tuple[str, int], BySeed]
    multikey: dict[tuple[str, int], BySeed]
    overall: dict[str, BySeed]
    p: dict[str, float]
    reach: dict[str, float]
    delta: dict[str, float]
    bounds: dict[tuple[str, int], tuple[float, float]]
    multikey_bounds: dict[tuple[str, int], tuple[float, float]]


def ruler(results: Results) -> Ruler:
    """All means. The tasks of a length are those its items were made for."""
    tasks = {
        int(name.partition(":")[2]): tuple(manifest.slice["tasks"])
        for name, manifest in results.inputs.items()
        if name.startswith("ruler:")
    }
    lengths = tuple(sorted(tasks))
    over = overall_lengths(lengths)
    variants = results.part.variants
    by_length = {(v, n): _means(results, v, n, tasks[n]) for v in variants for n in lengths}
    keyed = {n: multikey_tasks(tasks[n]) for n in lengths}
    multikey = {(v, n): _means(results, v, n, keyed[n]) for v in variants for n in lengths}
    overall = {v: _overall([by_length[v, n] for n in over], results.part.seeds) for v in variants}
    p, reach, delta = _against_reference(results, {n: tasks[n] for n in over}, overall)
    bounds, key_bounds = (_bounds(results, means, of) for means, of in ((by_length, tasks), (multikey, keyed)))
    return Ruler(lengths, tasks, over, by_length, multikey, overall, p, reach, delta, bounds, key_bounds)


def overall_lengths(lengths: Iterable[int]) -> tuple[int, ...]:
    """Lengths of the overall mean among those that were run."""
    found = tuple(sorted(lengths))
    return PAPER_LENGTHS if set(PAPER_LENGTHS) <= set(found) else found


def _bounds(
    results: Results, means: dict[tuple[str, int], BySeed], tasks: dict[int, tuple[str, ...]]
) -> dict[tuple[str, int], tuple[float, float]]:
    found = {}
    for (v, n), by_seed in means.items():
        span = interval({s: item_scores(results, v, s, {n: tasks[n]}) for s in by_seed})
        if span is not None:
            found[v, n] = (100 * span[0], 100 * span[1])
    return found


def multikey_tasks(tasks: tuple[str, ...]) -> tuple[str, ...]:
    """The tasks of multi-key retrieval."""
    return tuple(task for task in tasks if task.startswith("niah_multikey"))


def _means(results: Results, variant: str, length: int, tasks: tuple[str, ...]) -> BySeed:
    found: BySeed = {}
    for seed in results.part.seeds:
        scores = {}
        for task in tasks:
            score = results.score(Metric("long", "ruler", METRIC, task, length), variant, seed)
            scores[task] = score.value if score else None
        mean = suite_mean(scores, tasks)
        if mean is not None:
            found[seed] = 100 * mean
    return found


def _overall(by_length: list[BySeed], seeds: tuple[int, ...]) -> BySeed:
    """Mean over lengths of each seed that has them all."""
    found = {}
    for seed in seeds:
        mean, present = mean_present([values.get(seed) for values in by_length])
        if mean is not None and present == len(by_length):
            found[seed] = mean
    return found


def _against_reference(
    results: Results, tasks: dict[int, tuple[str, ...]], overall: dict[str, BySeed]
) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Paired tests of the overall mean, over items of all tasks and lengths: p, smallest p, difference in percent."""
    reference = results.part.reference
    items = {v: {s: item_scores(results, v, s, tasks) for s in seeds} for v, seeds in overall.items() if seeds}
    others = [v for v in items if v != reference and reference in items]
    found = {v: paired_effect(items[v], items[reference]) for v in others}
    gaps = {v: paired_mean(overall[v], overall[reference], (items[v], items[reference]), found[v], 100) for v in others}
    delta = {v: gap for v, gap in gaps.items() if gap is not None}
    tested = {v: effect for v, effect in found.items() if effect is not None}
    return holm({v: e.p for v, e in tested.items()}), holm({v: e.floor for v, e in tested.items()}), delta


def item_scores(results: Results, variant: str, seed: int, tasks: dict[int, tuple[str, ...]]) -> ItemScores:
    """Scores of the items of some tasks at each length."""
    scores = results.item_scores(variant, seed, "long")
    wanted = [Metric("long", "ruler", METRIC, task, length) for length, names in tasks.items() for task in names]
    return {(task, f"{m.length}/{item}"): x for m in wanted for (task, item), x in scores.get(m, {}).items()}


def ruler_grid(results: Results, numbers: Ruler) -> Grid:
    """Overall, per length, and multi-key per length with the relative gain over the reference."""
    notes, reference = Footnotes(), results.part.reference
    rows = []
    for v in results.part.variants:
        name = f"ruler:{v}"
        cells = [_cell(f"{name}:overall", numbers.overall[v], _overall_lines(numbers, v), notes)]
        for n in numbers.lengths:
            cells.append(_cell(f"{name}:{n}", numbers.by_length[v, n], _span(numbers.bounds, v, n), notes))
        for n in numbers.lengths:
            lines = (*_span(numbers.multikey_bounds, v, n), *_gain(numbers, v, reference, n))
            cells.append(_cell(f"{name}:multikey.{n}", numbers.multikey[v, n], lines, notes))
        rows.append((Text(display(v), marks=notes.mark(*variant_notes(results, v, "long"))), *cells))
    header = (
        "variant",
        "overall",
        *(f"{n} tokens" for n in numbers.lengths),
        *(f"multi-key {n}" for n in numbers.lengths),
    )
    footnotes = (*notes.texts, *_notes(results, numbers))
    return Grid("figure2", figure_caption(results, numbers), header, tuple(rows), footnotes)


def figure_caption(results: Results, numbers: Ruler) -> str:
    """Caption of figure and table."""
    over = ", ".join(map(str, numbers.overall_lengths)) or "no length"
    return caption(results, f"Figure 2. RULER after context extension, percent; overall: mean over {over} tokens.")


def _notes(results: Results, numbers: Ruler) -> list[str]:
    counts = sorted({len(t) for t in numbers.tasks.values()})
    tasks = sorted({t for names in numbers.tasks.values() for t in names})
    ruled = {m: by for m, by in results.scores.items() if m.benchmark == "ruler" and m.name == METRIC}
    scores = [score for by in ruled.values() for score in by.values() if score.value is not None]
    own = ""
    if scores:
        other = sorted({m.task for m, by in ruled.items() if any(s.source != "real" for s in by.values())})
        sources = f" ({', '.join(other)} with {_haystack(results)} as haystack, not RULER's essays)" if other else ""
        own = (
            f"Means over {' or '.join(map(str, counts))} of RULER's 13 tasks ({', '.join(tasks)}), "
            f"{min(score.n for score in scores)} items per task and length{sources}; score: share of the wanted "
            "strings found in the answer."
        )
    gains = ", ".join(f"{gain:+.0f}% at {n}" for n, gain in paper().multikey_gain.items())
    theirs = f"Paper: multi-key accuracy of IHA relative to Global: {gains}."
    reference = results.part.reference
    shown = any(_gain(numbers, v, reference, n) for v in results.part.variants for n in numbers.lengths)
    gain = f"Gain: multi-key mean relative to {display(reference)}, of the seeds that both have." if shown else ""
    spans = (
        "Brackets: 95 % interval as in Tables 1 and 2. The overall mean has none; its differences have (claims)."
        if numbers.bounds
        else ""
    )
    stars = f"Δ: difference to {display(reference)}, * if significant at {LEVEL} as in Tables 1 and 2."
    able = power(list(numbers.reach.values()), "tests of an overall difference to the reference")
    return [text for text in (own, able, stars, spans, gain, theirs, *paper().figure_notes) if text]


def _haystack(results: Results) -> str:
    """The text that stood in for RULER's."""
    origin = results.facts("items").get("haystack", {}).get("origin", {})
    where = origin.get("name") or ", ".join(origin.get("paths", ()))
    return where or HAYSTACKS.get(origin.get("kind"), "another text")


def _overall_lines(numbers: Ruler, variant: str) -> tuple[str, ...]:
    published, lines = paper().ruler_overall.get(variant), []
    if variant in numbers.delta:
        lines.append(f"Δ {signed(numbers.delta[variant], 1)}{'*' if numbers.p.get(variant, 1.0) < LEVEL else ''}")
    return (*lines, *(() if published is None else (f"paper {published:.1f}",)))


def task_cells(results: Results, numbers: Ruler) -> Cells:
    """Every task's own score at every length: row is the variant, column is TASK.LENGTH; percent, mean over seeds."""
    return {
        "ruler": {
            v: {
                f"{task}.{n}": mean_present(list(found.values()))[0]
                for n in numbers.lengths
                for task in numbers.tasks[n]
                if (found := _means(results, v, n, (task,)))
            }
            for v in results.part.variants
        }
    }


def _cell(name: str, values: BySeed, lines: tuple[str, ...], notes: Footnotes) -> Text:
    if not values:
        why = notes.mark("A task of this mean was not measured, so the mean is blank.")
        return Text(MISSING, lines, why, cell=name)
    found = list(values.values())
    return Text(mean_text(found, 1), lines, cell=name, value=sum(found) / len(found))


def _span(bounds: dict[tuple[str, int], tuple[float, float]], variant: str, length: int) -> tuple[str, ...]:
    span = bounds.get((variant, length))
    return () if span is None else (f"[{span[0]:.1f}, {span[1]:.1f}]",)


def _gain(numbers: Ruler, variant: str, reference: str, length: int) -> tuple[str, ...]:
    """Relative gain over the reference in percent, of the seeds that both have; undefined if it scores zero."""
    own, base = numbers.multikey[variant, length], numbers.multikey[reference, length]
    shared = own.keys() & base.keys()
    theirs = sum(base[s] for s in shared)
    if variant == reference or theirs == 0:
        return ()
    return (f"gain {signed(100 * (sum(own[s] for s in shared) / theirs - 1), 0)}%",)
