"""The learned test of the separation as CSV, Markdown, figures and a fragment of the report."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from iha.stages.common import StageResult
from iha.studies.output import publish
from iha.studies.tables import (
    COLOURS,
    MARKERS,
    MISSING,
    SCALE_LABELS,
    Grid,
    Text,
    labelled_csv,
    legend_below,
    markdown,
    pyplot,
    save,
    write_texts,
)

HEADER = (
    "task", "layer", "size", "heads", "pseudo_heads", "heads_of_construction", "params", "seed", "unexplained", "floor",
    "exact",
)  # fmt: skip
TITLE = "Does gradient descent find the separation?"
CAPTION = (
    "Unexplained variance of fresh examples against heads (above) and parameters (below), median over seeds, bars from "
    "the best to the worst seed. Dotted: no weights leave less. Dashed: heads of the paper's construction."
)
TITLES = {
    "filters": "Polynomial filters of a random signed digraph, softmax-free, scores from positions only",
    "filters_free": "Polynomial filters of a random signed digraph, softmax-free, scores from positions and features",
    "cpm": "CPM-3, softmax and MLP",
}
SIZE = {"filters": "k", "filters_free": "k", "cpm": "N"}
NAMES = {"mha": "MHA", "iha": "IHA"}
NOTES = (
    "Cells: share of the targets' variance left unexplained on fresh examples, median over seeds (smallest to "
    "largest); lower is better, 0 is exact.",
    "Floor: no weights leave less, median over seeds: H operators for MHA, at most H^2 for IHA. A dash: no bound is "
    "known.",
    "* heads of the paper's construction; from there on weights with error 0 exist.",
)
#: Below this an error is drawn as this.
SMALLEST = 1e-4

Record = dict[str, Any]


def write_separation(result: Record, scale: str, folder: Path) -> StageResult:
    """Write CSV, Markdown, a figure per task (PNG and PDF) and the fragment; returns the stage's result."""
    records = sorted(result["points"], key=lambda r: (r["task"], r["size"], r["layer"], r["heads"]))
    grids = tables(result, scale)
    texts = {"separation.csv": labelled_csv(scale, HEADER, lines(records)), "separation.md": markdown(grids)}
    paths, pictures = write_texts(folder, texts), []
    for task in (task for task in TITLES if any(r["task"] == task for r in records)):
        png, pdf = figure(task, [r for r in records if r["task"] == task], scale, folder)
        paths.append(pdf)
        pictures.append((png, f"{SCALE_LABELS[scale]}{TITLES[task]}. {CAPTION}"))
    summary = f"Learned separation: {len(records)} points were trained, {len(result['open'])} were not."
    return publish(folder, TITLE, summary, grids, figures=pictures, files=paths, metadata=result)


def tables(result: Record, scale: str) -> list[Grid]:
    """One for each task that has points."""
    points = result["points"]
    return [table(t, points, result["open"], scale) for t in TITLES if any(r["task"] == t for r in points)]


def lines(records: list[Record]) -> Iterable[tuple[object, ...]]:
    """One line per seed."""
    for r in records:
        for seed, unexplained in enumerate(r["unexplained"]):
            exact = r["exact"][seed] if "exact" in r else None
            yield (
                r["task"], r["layer"], r["size"], r["heads"], r["pseudo_heads"], r["needed"], r["params"], seed,
                f"{unexplained:.6g}", _number(r["floor"][seed]), _number(exact),
            )  # fmt: skip


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def table(task: str, records: list[Record], unfinished: list[str], scale: str) -> Grid:
    """Heads down, sizes and layers across."""
    by_point = {(r["size"], r["layer"], r["heads"]): r for r in records if r["task"] == task}
    columns = sorted({(size, layer) for size, layer, _ in by_point}, key=lambda c: (c[0], c[1] != "mha"))
    rows = tuple(
        (Text(str(heads)), *(_cell(by_point.get((size, layer, heads))) for size, layer in columns))
        for heads in sorted({heads for _, _, heads in by_point})
    )
    header = ("heads", *(f"{SIZE[task]} = {size}, {NAMES[layer]}" for size, layer in columns))
    missing = sum(name.startswith(f"{task}-") for name in unfinished)
    notes = (*NOTES, *([f"{missing} points were not run: the budget ended."] if missing else []))
    return Grid(f"separation_{task}", f"{SCALE_LABELS[scale]}{TITLES[task]}.", header, rows, notes)


def _cell(record: Record | None) -> Text:
    if record is None:
        return Text("")
    name = f"separation:{record['task']}.{record['layer']}.{record['size']}.{record['heads']}:unexplained"
    values, floors = record["unexplained"], [f for f in record["floor"] if f is not None]
    mark = "*" if record["heads"] == record["needed"] else ""
    spread = f"{min(values):.3f} to {max(values):.3f}"
    least = f"floor {median(floors):.3f}" if floors else f"floor {MISSING}"
    exact = [f"exact {median(record['exact']):.0%}"] if "exact" in record else []
    return Text(f"{median(values):.3f}{mark}", (spread, least, *exact), cell=name, value=median(values))


def figure(task: str, records: list[Record], scale: str, folder: Path) -> tuple[Path, Path]:
    """Error against heads (above) and parameters (below), a column per size; bars from the best to the worst seed."""
    plt = pyplot()
    sizes = sorted({r["size"] for r in records})
    drawn, axes = plt.subplots(
        2, len(sizes), figsize=(2.3 * len(sizes) + 1.2, 5.2), layout="constrained", sharey=True, squeeze=False
    )
    for column, size in enumerate(sizes):
        for i, layer in enumerate(NAMES):
            curve = sorted((r for r in records if (r["size"], r["layer"]) == (size, layer)), key=lambda r: r["heads"])
            if curve:
                _curve(axes[0][column], curve, "heads", i)
                _curve(axes[1][column], curve, "params", i)
        axes[0][column].set_title(f"{SIZE[task]} = {size}")
        axes[0][column].set_xlabel("heads")
        axes[1][column].set_xlabel("parameters")
        axes[1][column].tick_params(axis="x", labelrotation=30)
    for row in axes:
        row[0].set_yscale("log")
        row[0].set_ylabel("unexplained variance")
    legend_below(drawn, axes[0][0])
    drawn.suptitle(f"{SCALE_LABELS[scale]}{TITLES[task]}")
    return save(drawn, folder, f"separation_{task}")


def _curve(axis: Any, records: list[Record], key: str, i: int) -> None:
    layer, colour = NAMES[records[0]["layer"]], COLOURS[i]
    x = [r[key] for r in records]
    middle = [max(SMALLEST, median(r["unexplained"])) for r in records]
    low = [m - max(SMALLEST, min(r["unexplained"])) for m, r in zip(middle, records, strict=True)]
    high = [max(SMALLEST, *r["unexplained"]) - m for m, r in zip(middle, records, strict=True)]
    axis.errorbar(x, middle, yerr=(low, high), color=colour, marker=MARKERS[i], capsize=2, label=f"{layer}, learned")
    floors = [(at, r["floor"]) for at, r in zip(x, records, strict=True) if None not in r["floor"]]
    axis.plot(
        [at for at, _ in floors],
        [max(SMALLEST, median(f)) for _, f in floors],
        color=colour, linestyle=":", linewidth=1.2, label=f"{layer}, floor",
    )  # fmt: skip
    if key == "heads":
        axis.axvline(records[0]["needed"], color=colour, linestyle="--", linewidth=0.7, label=f"{layer}, construction")
