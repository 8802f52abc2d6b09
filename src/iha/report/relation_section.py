"""Relation composition: its files, and its section of the page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from iha.artifacts.manifest import Manifest
from iha.config.studies import SyntheticConfig
from iha.errors import DataError
from iha.report import relation_claims, relations
from iha.report import relation_figures as figures
from iha.report.format import SCALE_LABELS
from iha.report.page import image, tables
from iha.report.records import Grid as Table
from iha.report.records import cells_of
from iha.report.render import labelled_csv, markdown, write_texts
from iha.report.section import Findings, Section
from iha.studies.relations.results import Grid, outcome
from iha.studies.relations.shapes import params, train_slice

RUN, DATA = "synthetic_run:", "synthetic_data:"


def grid_of(config: SyntheticConfig, inputs: Mapping[str, Manifest]) -> Grid:
    """The outcomes among the inputs, named `synthetic_run:...` and `synthetic_data:TASK`.

    Raises:
        DataError: a run was made under another configuration, so that its name here would be a wrong one.
    """
    runs = {name.removeprefix(RUN): m for name, m in inputs.items() if name.startswith(RUN)}
    for name, manifest in runs.items():
        _check(config, name, manifest)
    found = (outcome(m.facts) for m in runs.values())
    splits = {name.removeprefix(DATA): m.facts["splits"] for name, m in inputs.items() if name.startswith(DATA)}
    majority = {task: of["test"]["majority"] for task, of in splits.items()}
    validation = {task: of["validation"]["majority"]["accuracy"] for task, of in splits.items()}
    return Grid(config, tuple(o for o in found if o is not None), majority, validation)


def _check(config: SyntheticConfig, name: str, manifest: Manifest) -> None:
    facts = manifest.facts
    part = train_slice(config, facts["task"], facts["model"], facts["lr"], facts["seed"])
    wanted = part.model_dump(mode="json")
    cost = {"params": params(part.shape), "flops_per_epoch": part.flops}
    other = [key for key in wanted if manifest.slice.get(key) != wanted[key]]
    other += [key for key in cost if facts[key] != cost[key]]
    if other:
        raise DataError(
            f"relation run {name}: {', '.join(other)} differ from the configuration of this report; allowed: runs made "
            f"with it. Make the run again (snakemake does so when asked for the report), or report with its own "
            f"configuration."
        )


def relation_tables(grid: Grid, scale: str) -> list[Table]:
    """Claims, differences, and one table per task."""
    rows = [relations.task_table(grid, task.name, scale) for task in grid.config.tasks]
    return [relation_claims.verdict_table(grid, scale), relations.comparison_table(grid, scale), *rows]


def write_relations(grid: Grid, scale: str, folder: Path) -> list[Path]:
    """Write tables as Markdown and CSV, Figure 3, and the curves of each task from Figure 4 on; returns the paths."""
    texts = {
        "relations.md": markdown(relation_tables(grid, scale)),
        "relations_runs.csv": labelled_csv(scale, relations.HEADER, relations.run_lines(grid)),
        "relations_curves.csv": labelled_csv(scale, relations.CURVE, relations.curve_lines(grid)),
    }
    paths = write_texts(folder, texts)
    paths += figures.figure3(grid, scale, folder)
    for number, task in enumerate(grid.config.tasks, 4):
        paths += figures.curves(grid, task.name, scale, folder, f"figure{number}")
    return paths


def captions(grid: Grid) -> dict[str, str]:
    """What each figure draws, by file name; numbers are those of the paper's figures."""
    found = {
        "figure3": "Figure 3 (the paper's number). Relation composition: accuracy over cells of the best weights of "
        "every model, on the split named below its bar, with the epochs it ran; whiskers: SD over seeds. Dashed: "
        f"always the more frequent answer. {relations.LEGEND}"
    }
    for number, task in enumerate(grid.config.tasks, 4):
        found[f"figure{number}"] = (
            f"Figure {number} (the paper's number). Relation composition, {task.name}: validation accuracy against "
            "epochs (left) and training FLOPs (middle), bands: SD over seeds; accuracy of the best weights per size m "
            "(right). Dashed: always the more frequent answer."
        )
    return found


def relations_section(found: Findings) -> Section | None:
    """Figures 3 to 5 with their tables; None if the experiment has no such part."""
    part = found.results.part
    if part.synthetic is None or not any(name.startswith(DATA) for name in found.results.inputs):
        return None
    grid = grid_of(part.synthetic, found.results.inputs)
    paths = found.keep(tuple(write_relations(grid, part.scale, found.folder)))
    label = SCALE_LABELS[part.scale]
    pictures = [
        image(
            path,
            f"{label}{captions(grid)[path.stem]}",
            "The tables hold the numbers.",
        )
        for path in paths
        if path.suffix == ".png"
    ]
    shown = relation_tables(grid, part.scale)
    found.note(cells_of(shown))
    told = relation_claims.verdicts(grid)
    said = ", ".join(f"{v.verdict} ({v.task})" for v in told) or "not among this run's tasks"
    summary = f"Relation composition, the paper's gain of IHA over 2-simplicial attention: {said}."
    return Section("relations", "Relation composition", "".join(pictures) + tables(*shown), summary)
