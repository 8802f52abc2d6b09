"""Stage report: the paper's tables and figures, ours beside the paper's, and one page to read."""

from __future__ import annotations

from pathlib import Path

from iha.manifest import atomic_path, sha256_file
from iha.report import figures, page
from iha.report.collect import Results
from iha.report.export import cells_csv, cells_facts
from iha.report.ledger import flops_grid
from iha.report.records import Grid
from iha.report.render import latex, markdown
from iha.report.ruler import ruler, ruler_grid
from iha.report.story import provenance, story
from iha.report.tables import caption, paper_tables
from iha.slices import ReportSlice
from iha.stages.common import Context, Made, run


def body(part: ReportSlice, context: Context) -> Made:
    """Everything is written next to the manifest; the manifest's facts hold the numbers."""
    folder = context.output.parent
    folder.mkdir(parents=True, exist_ok=True)
    results = Results(part, context.inputs, context.state)
    tables, numbers = paper_tables(results), ruler(results)
    ruler_table, ledger = ruler_grid(results, numbers), flops_grid(results)
    for table in tables:
        _write(folder / f"{table.name}.csv", cells_csv(results, table))
        _write_grids(folder, table.name, table.grids)
    _write_grids(folder, "ruler", (ruler_table,))
    _write(folder / "flops.md", markdown([ledger]))
    images = (*figures.figure2(results, numbers, folder), *figures.training_curves(results, folder))
    sections = {t.name: page.tables(*t.grids) for t in tables}
    sections["figure2"] = page.image(images[0], ruler_table.caption, "The numbers are in the table below.")
    sections["figure2"] += page.tables(ruler_table)
    sections["flops"] = page.tables(ledger)
    sections["training"] = page.image(
        images[2], caption(results, "Training loss per stage."), "Loss against step for every variant and seed."
    )
    _write(folder / "report.html", page.page(results, sections, story(results, tables, numbers), provenance(results)))
    return Made(facts={"files": _digests(folder, context.output), **cells_facts(results, tables, numbers)})


def _write(path: Path, text: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _write_grids(folder: Path, name: str, grids: tuple[Grid, ...]) -> None:
    _write(folder / f"{name}.md", markdown(grids))
    _write(folder / f"{name}.tex", latex(grids))


def _digests(folder: Path, manifest: Path) -> dict[str, str]:
    names = ("table1", "table2", "ruler", "flops", "figure2", "training", "report")
    return {p.name: sha256_file(p) for p in sorted(folder.iterdir()) if p.stem in names and p != manifest}


def main() -> None:
    """Entry point of the rule `report`."""
    run("report", ReportSlice, body)


if __name__ == "__main__":
    main()
