"""The page's sections in order. A new one is a function in a module of its own and one line in `SECTIONS`."""

from __future__ import annotations

from iha.report import figures
from iha.report.answers import answers_section
from iha.report.cost import cost_section
from iha.report.curves import loss_against_cost
from iha.report.depth import depth_section
from iha.report.export import cells_csv, rate_cells
from iha.report.ledger import flops_grid
from iha.report.page import image, tables
from iha.report.positions import positions_section
from iha.report.reach import reach_grid
from iha.report.ruler import ruler_grid, task_cells
from iha.report.section import Build, Findings, Section
from iha.report.setup import setup_section
from iha.report.story import provenance_section
from iha.report.tables import PaperTableReport, caption
from iha.report.training import training_cells, training_grid
from iha.report.verdicts import claims_section

FIGURE2 = (
    "Left: overall mean, dashed: the paper's. Middle and right: mean over all tasks and over multi-key retrieval, by "
    "length of the context; bars: 95 % interval, the variants of one length side by side."
)


def table1(found: Findings) -> Section:
    """Table 1 with its companions."""
    return _table(found, found.tables[0], "Table 1: after fine-tuning")


def table2(found: Findings) -> Section:
    """Table 2 with its companions."""
    return _table(found, found.tables[1], "Table 2: after pretraining")


def _table(found: Findings, table: PaperTableReport, title: str) -> Section:
    found.write(f"{table.name}.csv", cells_csv(found.results, table))
    found.write_grids(table.name, table.grids)
    found.note(rate_cells(found.results, table))
    return Section(table.name, title, tables(*table.grids))


def figure2(found: Findings) -> Section:
    """RULER."""
    grid = ruler_grid(found.results, found.ruler)
    found.write_grids("ruler", (grid,))
    found.write_csv("ruler", grid)
    found.note(task_cells(found.results, found.ruler))
    png, _ = found.keep(figures.figure2(found.results, found.ruler, found.folder))
    text = caption(found.results, "Figure 2. RULER after context extension.", FIGURE2)
    picture = image(png, text, "The numbers are in the table below.")
    return Section("figure2", "Figure 2: long context", picture + tables(grid))


def flops(found: Findings) -> Section:
    """The FLOP ledger."""
    grid = flops_grid(found.results)
    found.write_grids("flops", (grid,))
    found.write_csv("flops", grid)
    return Section("flops", "Compute", tables(grid))


def training(found: Findings) -> Section:
    """Training curves."""
    png, _ = found.keep(figures.training_curves(found.results, found.folder))
    cost, _ = found.keep(loss_against_cost(found.results, found.folder))
    text = caption(found.results, "Training loss per stage.")
    what, panel = ("FLOPs", "first") if found.results.part.match.pretrain == "flops" else ("tokens", "second")
    against = (
        f"Pretraining loss against FLOPs, tokens and seconds. Variants are compared at equal {what}: curves end "
        f"together in the {panel} panel. Seconds depend on the machine and on what else ran there."
    )
    pictures = image(png, text, "Loss against step for every variant and seed.")
    pictures += image(cost, against, "The same loss against three costs.")
    grids = (training_grid(found.results), reach_grid(found.results))
    found.write_grids("training", grids)
    found.write_csv("training", grids[0])
    if grids[1].rows:
        found.write_csv("reach", grids[1])
    found.note(training_cells(found.results))
    return Section("training", "Training", pictures + tables(*grids))


SECTIONS: tuple[Build, ...] = (
    setup_section,
    claims_section,
    table1,
    table2,
    figure2,
    depth_section,
    positions_section,
    answers_section,
    flops,
    cost_section,
    training,
    provenance_section,
)


def sections(found: Findings) -> tuple[Section, ...]:
    """Build every section that has something to show."""
    built = (build(found) for build in SECTIONS)
    return tuple(section for section in built if section is not None)
