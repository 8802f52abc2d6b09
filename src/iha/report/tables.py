"""Tables 1 and 2 as grids: ours, the difference to the reference, the paper's value, and the footnotes."""

from __future__ import annotations

from dataclasses import dataclass

from iha.report.cells import Block, build
from iha.report.collect import Results
from iha.report.columns import TABLE1, TABLE2, Column, companions, resolved
from iha.report.format import MISSING, SCALE_LABELS, display, mean_text, signed
from iha.report.notes import contamination, generated, variant_notes
from iha.report.paper import PaperTable, paper
from iha.report.power import power
from iha.report.records import Cell, Footnotes, Grid, Text
from iha.report.stats import LEVEL, average_ranks

READING = (
    "Cells: mean over training seeds (± sample SD, ddof 1, from two seeds on) and its 95 % interval; Δ: difference to "
    f"{{reference}} over the seeds and items that both have, * if significant at {LEVEL} (sign-flip test over paired "
    "items and, from two seeds on, t-test over seeds; Holm over the table); bold: best of its column and better than "
    "each other variant by the same tests (Bonferroni over the table); paper: the published value."
)
INTERVALS = (
    "Intervals: the wider of over items and, from two seeds on, t over seeds. Over items: Clopper-Pearson where each "
    "scores 0 or 1 (0 of 8: 0.0 to 36.9); where fewer than six score anything but 0, or but 1, the Clopper-Pearson "
    "bound of the share of such items, which may then score anything; else bootstrap; none for a loss that does not "
    "vary."
)
TESTS = "tests of a difference to the reference"
TITLES = {
    "table1": "Table 1. Reasoning and code after supervised fine-tuning, percent.",
    "table2": "Table 2. Base models after pretraining, percent.",
}


@dataclass(frozen=True)
class PaperTableReport:
    """One of the paper's tables: the numbers, and the two grids that show them."""

    name: str
    main: Block
    companion: Block
    ranks: dict[str, float]
    grids: tuple[Grid, Grid]


def paper_tables(results: Results) -> tuple[PaperTableReport, PaperTableReport]:
    """Tables 1 and 2."""
    published = paper()
    return (
        _table(results, "table1", TABLE1, published.table1),
        _table(results, "table2", TABLE2, published.table2),
    )


def _table(results: Results, name: str, columns: tuple[Column, ...], published: PaperTable) -> PaperTableReport:
    columns = resolved(columns, results)
    main, companion = build(results, columns, published), build(results, companions(columns))
    means = [{v: main.cells[v][i].mean for v in results.part.variants} for i in range(len(columns))]
    ranks = average_ranks(means)
    grids = (_main_grid(results, name, main, ranks, published), _companion_grid(results, name, companion))
    return PaperTableReport(name, main, companion, ranks, grids)


def caption(results: Results, title: str, detail: str = "") -> str:
    """A title with the label of the scale in front; seeds, budget and `detail` behind."""
    part = results.part
    seeds = f"{len(part.seeds)} training seed{'s' if len(part.seeds) > 1 else ''}"
    budget = "equal compute per variant" if part.match.pretrain == "flops" else "equal steps per variant"
    return f"{SCALE_LABELS[part.scale]}{title} {seeds}, {budget}. {detail}".strip()


def _main_grid(results: Results, table: str, block: Block, ranks: dict[str, float], published: PaperTable) -> Grid:
    notes = Footnotes()
    rows = [(*_items_row(table, block), Text(""))]
    for v in results.part.variants:
        rank = published.value("avg_rank", v)
        average = Text(
            f"{ranks[v]:.1f}" if v in ranks else MISSING,
            () if rank is None else (f"paper {rank:.1f}",),
            cell=f"{table}:{v}:avg_rank",
            value=ranks.get(v),
        )
        name = Text(display(v), marks=notes.mark(*variant_notes(results, v, block.columns[0].model)))
        rows.append((name, *_row(table, block, v, notes), average))
    reading = READING.format(reference=display(results.part.reference))
    clashes = [f"Measured twice, first kept: {text}." for text in results.clashes]
    able = [text for text in (power(block.reaches, TESTS), _answers(results, block)) if text]
    footnotes = (*notes.texts, *able, reading, INTERVALS, contamination(results), *clashes, *published.notes)
    header = ("variant", *(c.label for c in block.columns), "avg rank")
    return Grid(table, caption(results, TITLES[table], _origin(results, block)), header, tuple(rows), footnotes)


def _answers(results: Results, block: Block) -> str:
    """Answers per item behind each metric, and why a majority vote may give a share of an item."""
    model = block.columns[0].model
    drawn = " or ".join(map(str, sorted({x["samples"] for *_, x in results.settings(model) if "samples" in x})))
    what = "EM and P@1: one greedy answer per item; Maj@k" if model == "base" else "P@k and Maj@k"
    said = [f"{what}: from {drawn} sampled answers per item."] if drawn else []
    if any(column.metric.startswith("maj") for column in block.columns):
        said.append(
            "Maj@k: ties share the credit, so an item may count in part; an answer that cannot be read never wins."
        )
    return " ".join(said)


def _companion_grid(results: Results, name: str, block: Block) -> Grid:
    notes = Footnotes()
    rows = [_items_row(name, block)]
    rows += [(Text(display(v)), *_row(name, block, v, notes)) for v in results.part.variants]
    title = "Companions, of the gold answers: loss (nats per token, lower is better) and token accuracy (percent)."
    header = ("variant", *(c.label for c in block.columns))
    title = caption(results, title, _origin(results, block))
    notes.mark(*(text for text in [power(block.reaches, TESTS)] if text), "Cells as in the table above.")
    return Grid(f"{name}_companion", title, header, tuple(rows), tuple(notes.texts))


def _origin(results: Results, block: Block) -> str:
    tuned = any(column.model == "sft" for column in block.columns)
    return generated(results, (column.benchmark for column in block.columns), tuned)


def _items_row(table: str, block: Block) -> tuple[Text, ...]:
    """Number and source of each column's items (the smallest number where variants differ)."""
    texts = []
    for i, column in enumerate(block.columns):
        cells = [row[i] for row in block.cells.values() if row[i].n is not None]
        sources = sorted({c.source for c in cells if c.source})
        n = min((c.n or 0 for c in cells), default=None)
        text = MISSING if n is None else f"{n} {', '.join(sources)}"
        texts.append(Text(text, cell=f"{table}:items:{column.name}", value=n))
    return (Text("items"), *texts)


def _row(table: str, block: Block, variant: str, notes: Footnotes) -> list[Text]:
    return [
        _text(cell, column, notes, f"{table}:{variant}:{column.name}")
        for cell, column in zip(block.cells[variant], block.columns, strict=True)
    ]


def _text(cell: Cell, column: Column, notes: Footnotes, name: str) -> Text:
    if cell.missing is not None:
        return Text(MISSING, tuple(_paper_line(cell, column)), notes.mark(cell.missing), cell=name)
    lines = []
    if cell.low is not None and cell.high is not None:
        lines.append(f"[{cell.low:.{column.decimals}f}, {cell.high:.{column.decimals}f}]")
    if cell.delta is not None:
        star = "*" if cell.p is not None and cell.p < LEVEL else ""
        lines.append(f"Δ {signed(cell.delta, column.decimals)}{star}")
    lines += _paper_line(cell, column)
    shown = mean_text(cell.values, column.decimals)
    return Text(shown, tuple(lines), notes.mark(*cell.notes), cell.bold, name, cell.mean)


def _paper_line(cell: Cell, column: Column) -> list[str]:
    return [] if cell.paper is None else [f"paper {cell.paper:.{column.decimals}f}"]
