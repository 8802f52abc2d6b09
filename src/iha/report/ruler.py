"""Figure 2's numbers: RULER means per variant and length, over all tasks and over multi-key retrieval.

A mean over a suite is blank if one of its tasks is missing; -1 is missing, not a score (RUL-03).
"""

from __future__ import annotations

from dataclasses import dataclass

from iha.evals.scores import mean_present, suite_mean
from iha.report.collect import Results
from iha.report.format import MISSING, display, mean_text, signed
from iha.report.paper import paper
from iha.report.records import Footnotes, Grid, Metric, Text
from iha.report.tables import caption

#: Lengths of the overall mean where all of them were run [spec 11]; otherwise every length.
PAPER_LENGTHS = (4096, 8192, 16_384)
METRIC = "official"
#: Seed -> percent.
BySeed = dict[int, float]


@dataclass(frozen=True)
class Ruler:
    """Percent by variant (and length) and seed; a missing seed is absent."""

    lengths: tuple[int, ...]
    tasks: dict[int, tuple[str, ...]]
    overall_lengths: tuple[int, ...]
    by_length: dict[tuple[str, int], BySeed]
    multikey: dict[tuple[str, int], BySeed]
    overall: dict[str, BySeed]


def ruler(results: Results) -> Ruler:
    """All means. The tasks of a length are those its items were made for."""
    tasks = {
        int(name.partition(":")[2]): tuple(manifest.slice["tasks"])
        for name, manifest in results.inputs.items()
        if name.startswith("ruler:")
    }
    lengths = tuple(sorted(tasks))
    over = PAPER_LENGTHS if set(PAPER_LENGTHS) <= set(lengths) else lengths
    variants = results.part.variants
    by_length = {(v, n): _means(results, v, n, tasks[n]) for v in variants for n in lengths}
    keyed = {n: tuple(t for t in tasks[n] if t.startswith("niah_multikey")) for n in lengths}
    multikey = {(v, n): _means(results, v, n, keyed[n]) for v in variants for n in lengths}
    overall = {v: _overall([by_length[v, n] for n in over], results.part.seeds) for v in variants}
    return Ruler(lengths, tasks, over, by_length, multikey, overall)


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


def ruler_grid(results: Results, numbers: Ruler) -> Grid:
    """Overall, per length, and multi-key per length with the relative gain over the reference."""
    notes, reference = Footnotes(), results.part.reference
    rows = []
    for v in results.part.variants:
        published = paper().ruler_overall.get(v)
        cells = [_cell(numbers.overall[v], () if published is None else (f"paper {published:.1f}",), notes)]
        cells += [_cell(numbers.by_length[v, n], (), notes) for n in numbers.lengths]
        cells += [_cell(numbers.multikey[v, n], _gain(numbers, v, reference, n), notes) for n in numbers.lengths]
        rows.append((Text(display(v)), *cells))
    header = (
        "variant",
        "overall",
        *(f"{n} tokens" for n in numbers.lengths),
        *(f"multi-key {n}" for n in numbers.lengths),
    )
    return Grid("figure2", figure_caption(results, numbers), header, tuple(rows), (*notes.texts, *_notes(numbers)))


def figure_caption(results: Results, numbers: Ruler) -> str:
    """Caption of figure and table."""
    over = ", ".join(map(str, numbers.overall_lengths)) or "no length"
    return caption(results, f"Figure 2. RULER after context extension, percent; overall: mean over {over} tokens.")


def _notes(numbers: Ruler) -> list[str]:
    counts = sorted({len(t) for t in numbers.tasks.values()})
    tasks = sorted({t for names in numbers.tasks.values() for t in names})
    own = f"Means over {' or '.join(map(str, counts))} tasks ({', '.join(tasks)}); RULER has 13." if counts else ""
    gains = ", ".join(f"{gain:+.0f}% at {n}" for n, gain in paper().multikey_gain.items())
    theirs = f"Gain: multi-key mean relative to the reference; the paper gives IHA {gains} relative to Global."
    return [text for text in (own, theirs, *paper().figure_notes) if text]


def _cell(values: BySeed, lines: tuple[str, ...], notes: Footnotes) -> Text:
    if not values:
        return Text(MISSING, lines, notes.mark("A task of this mean was not measured, so the mean is blank."))
    return Text(mean_text(list(values.values()), 1), lines)


def _gain(numbers: Ruler, variant: str, reference: str, length: int) -> tuple[str, ...]:
    """Relative gain over the reference in percent; undefined if the reference scores zero."""
    own, base = numbers.multikey[variant, length], numbers.multikey[reference, length]
    if variant == reference or not own or not base or sum(base.values()) == 0:
        return ()
    ratio = (sum(own.values()) / len(own)) / (sum(base.values()) / len(base))
    return (f"gain {signed(100 * (ratio - 1), 0)}%",)
