"""The page of relation composition: verdicts, tables, what they say in words, and Figures 3 to 5.

`python -m iha.studies.relations.report` is the entry point of the rule `synthetic_report`. Free of torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from iha.evals.scores import mean_sd
from iha.report.statistics import t_interval
from iha.stages.common import Context, StageResult, run
from iha.studies.output import publish
from iha.studies.relations.figures import STOPS, curves, figure3
from iha.studies.relations.grid import RelationReportSlice, train_slice
from iha.studies.relations.results import (
    AXES,
    Axis,
    Gap,
    Outcome,
    Outcomes,
    direction,
    extent,
    label,
    read_outcomes,
    verdicts,
)
from iha.studies.tables import MISSING, SCALE_LABELS, Text, big, labelled_csv, markdown, mean_text, signed, write_texts
from iha.studies.tables import Grid as Table

TITLE = "Relation composition"
#: Names of the tables of verdicts and of differences.
CLAIMS, COMPARED = "relations_claims", "relations_compared"
UNITS: dict[Axis, str] = {"epoch": "epochs", "flops": "FLOPs", "cpu_s": "CPU-s"}
LEGEND = (
    "m: elements of the relation, so that an example has m x m cells. IHA q × p: q pseudo-queries and p pseudo-keys "
    "and -values per head. Majority: always the more frequent answer, of all sizes or of the one, on the test split."
)
READING = (
    "Difference in validation accuracy, percentage points, of the best validation so far, read where the shorter run "
    "ends on that axis (interpolated between the longer run's validations). Equal epochs: the same examples. "
    "Equal FLOPs and CPU-seconds: the same compute, counted and measured. Interval: 95 % t over seeds. "
    "Inconclusive: the interval contains zero, or there is none because one seed was run."
)
INTRODUCTION = """# Relation composition (paper Appendix D, Figures 3 to 5)

Can a one-layer encoder predict every entry of R∘R (binary) or R∘R∘R (ternary) from the cells of a random Boolean
relation R? The paper reports that IHA does so better than multi-head and 2-simplicial attention. A run ends by early
stopping or at its budget.
"""


def claims_table(outcomes: Outcomes, scale: str) -> Table:
    """The paper's two gains and the verdicts on them."""
    rows = [
        (
            Text(f"IHA above 2-simplicial attention by up to {v.claimed} points, {v.task}"),
            Text(v.verdict, bold=v.verdict != "inconclusive", cell=f"{CLAIMS}:{v.task}:verdict", value=v.verdict),
            Text(MISSING if v.gap is None else signed(v.gap, 1), cell=f"{CLAIMS}:{v.task}:gap", value=v.gap),
            Text(v.why),
        )
        for v in verdicts(outcomes)
    ]
    caption = f"{SCALE_LABELS[scale]}Relation composition: the paper's gains."
    return Table(CLAIMS, caption, ("claim", "verdict", "largest gain, points", "why"), tuple(rows))


def comparison_table(outcomes: Outcomes, scale: str) -> Table:
    """Differences at equal epochs, equal FLOPs and equal CPU-seconds."""
    rows = []
    for task in outcomes.config.tasks:
        for lr in outcomes.config.lrs:
            for pair in outcomes.pairs():
                gaps = [outcomes.gap(task.name, lr, pair, axis) for axis in AXES]
                if any(gaps):
                    names = [label(outcomes.config.model(name)) for name in pair]
                    lead = (f"{names[0]} – {names[1]}", task.name, f"{lr:g}")
                    place = f"{COMPARED}:{task.name}/{'/'.join(pair)}/lr{lr:g}"
                    cells = (_gap_cell(gap, f"{place}:{axis}") for axis, gap in zip(AXES, gaps, strict=True))
                    rows.append((*map(Text, lead), *cells))
    header = ("models", "task", "learning rate", "at equal epochs", "at equal FLOPs", "at equal CPU-seconds")
    caption = f"{SCALE_LABELS[scale]}Relation composition: differences."
    return Table(COMPARED, caption, header, tuple(rows), (READING,))


def _gap_cell(gap: Gap | None, name: str) -> Text:
    if gap is None:
        return Text(MISSING, cell=name)
    lines = [direction(gap.points), f"{_reach(gap)}, {count(len(gap.points), 'seed')}"]
    if (interval := t_interval(gap.points)) is not None:
        lines.insert(0, f"{signed(interval[0], 1)} to {signed(interval[1], 1)}")
    mean = mean_sd(gap.points)[0]
    return Text(signed(mean, 1), tuple(lines), cell=name, value=mean)


def _reach(gap: Gap) -> str:
    return f"{big(gap.limit) if gap.axis == 'flops' else f'{gap.limit:.3g}'} {UNITS[gap.axis]}"


def task_table(outcomes: Outcomes, task: str, scale: str) -> Table:
    """The majority, then every model and learning rate: how far it was trained, accuracy overall and per size."""
    sizes, majority = outcomes.config.task(task).sizes, outcomes.majority[task]
    guesses = {"accuracy": majority["accuracy"], **{f"m{m}": majority["by_size"][str(m)] for m in sizes}}
    shown = (Text(f"{100 * x:.1f}", cell=f"relations_{task}:majority:{k}", value=100 * x) for k, x in guesses.items())
    rows = [(Text("majority"), *(Text(MISSING),) * 5, *shown)]
    for model in outcomes.config.models:
        for lr in outcomes.config.lrs:
            if of_seeds := list(outcomes.of(task, model.name, lr).values()):
                rows.append(_row(outcomes, of_seeds))
    header = ("model", "learning rate", "parameters", "FLOPs / MHA", "epochs run", "ended by", "test accuracy, %")
    return Table(
        f"relations_{task}",
        f"{SCALE_LABELS[scale]}Relation composition, {task}: test accuracy over cells, and per size m.",
        (*header, *(f"m = {m}" for m in sizes)),
        tuple(rows),
        (LEGEND, setting(outcomes, task)),
    )


def setting(outcomes: Outcomes, task: str) -> str:
    """What was trained on what, in a sentence."""
    config = outcomes.config
    recipe, n, of = config.recipe, config.examples, config.task(task)
    return (
        f"Every model: an encoder of one layer, width {config.hidden_dim}, {config.n_heads} heads, batch "
        f"{recipe.batch}; {n.train:,} training, {n.validation:,} validation and {n.test:,} test examples: a random "
        f"relation (an entry with probability {of.density:g}) composed with itself, {of.hops} factors."
    )


def _row(outcomes: Outcomes, runs: list[Outcome]) -> tuple[Text, ...]:
    first = runs[0]
    model, task = outcomes.config.model(first.model), outcomes.config.task(first.task)
    plain = model.model_copy(update={"attention": "mha", "matches": None})
    reference = outcomes.config.model_copy(update={"models": (plain,)})
    ratio = first.flops_per_epoch / train_slice(reference, task.name, model.name, first.lr, first.seed).flops
    name, epochs = f"relations_{task.name}:{model.name}-lr{first.lr:g}", [r.last.epoch for r in runs]

    def mean(column: str, values: list[float]) -> Text:
        return Text(mean_text(values, 1), cell=f"{name}:{column}", value=sum(values) / len(values))

    return (
        Text(label(model)),
        Text(f"{first.lr:g}"),
        Text(f"{first.params:,}", cell=f"{name}:parameters", value=first.params),
        Text(f"{ratio:.1f}", cell=f"{name}:flops_ratio", value=ratio),
        Text(extent(epochs), cell=f"{name}:epochs", value=max(epochs)),
        Text(", ".join(dict.fromkeys(STOPS[r.stopped] for r in runs)), (count(len(runs), "seed"),)),
        mean("accuracy", [100 * r.test for r in runs]),
        *(mean(f"m{m}", [100 * r.test_by_size[m] for r in runs]) for m in task.sizes),
    )


def count(number: int, thing: str) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def sentences(outcomes: Outcomes) -> Iterator[str]:
    """The results in words: the claims, where IHA leads, every comparison."""
    for v in verdicts(outcomes):
        yield f"IHA above 2-simplicial attention by up to {v.claimed} points ({v.task}): **{v.verdict}**. {v.why}"
    yield from _leads(outcomes)
    for task in outcomes.config.tasks:
        for lr in outcomes.config.lrs:
            lines = (_compared(outcomes, task.name, lr, pair) for pair in outcomes.pairs())
            yield from (line for line in lines if line is not None)


def _leads(outcomes: Outcomes) -> Iterator[str]:
    """On each axis, in how many comparisons an IHA model is ahead of plain MHA, by the mean over seeds."""
    config = outcomes.config
    plain = [m.name for m in config.models if m.attention == "mha" and m.matches is None]
    ours = {m.name for m in config.models if m.attention == "iha"}
    for axis in AXES:
        gaps = [
            gap
            for task in config.tasks
            for lr in config.lrs
            for pair in outcomes.pairs()
            if pair[0] in ours and pair[1] in plain and (gap := outcomes.gap(task.name, lr, pair, axis)) is not None
        ]
        if gaps:
            clear = sum(not direction(gap.points).startswith("inconclusive") for gap in gaps)
            if all(len(gap.by_seed) < 2 for gap in gaps):
                certainty = "one seed each, so without an interval"
            else:
                certainty = f"{clear or 'none'} of these differences {'has' if clear == 1 else 'have'} an interval "
                certainty += "that excludes zero"
            yield (
                f"At equal {UNITS[axis]}, IHA models are ahead of MHA in {sum(g.mean > 1e-9 for g in gaps)} of "
                f"{count(len(gaps), 'comparison')}, by {signed(100 * min(g.mean for g in gaps), 1)} to "
                f"{signed(100 * max(g.mean for g in gaps), 1)} points; {certainty}"
                f"{': **inconclusive**' if not clear else ''}."
            )


def _compared(outcomes: Outcomes, task: str, lr: float, pair: tuple[str, str]) -> str | None:
    gaps = (outcomes.gap(task, lr, pair, axis) for axis in AXES)
    parts = [_gap_words(gap) for gap in gaps if gap is not None]
    if not parts:
        return None
    names = [label(outcomes.config.model(name)) for name in pair]
    return f"{task}, learning rate {lr:g}, {names[0]} against {names[1]}: {'; '.join(parts)}."


def _gap_words(gap: Gap) -> str:
    seeds = "" if len(gap.points) == 1 else f", {len(gap.points)} seeds"
    return f"{signed(mean_sd(gap.points)[0], 1)} points at {_reach(gap)}, {direction(gap.points)}{seeds}"


RUN_HEADER = (
    "task", "model", "label", "lr", "seed", "params", "flops_per_epoch", "epochs", "cpu_s", "stopped",
    "validation", "test", "by_size",
)  # fmt: skip
CURVE_HEADER = (
    "task", "model", "lr", "seed", "epoch", "flops", "cpu_s", "train", "validation", "test", "majority", "by_size",
)  # fmt: skip


def run_lines(outcomes: Outcomes) -> Iterator[list[Any]]:
    """One line of CSV per run."""
    for o in outcomes.runs:
        name = label(outcomes.config.model(o.model))
        yield [
            o.task, o.model, name, o.lr, o.seed, o.params, o.flops_per_epoch, o.last.epoch, o.last.cpu_s, o.stopped,
            o.best.validation, o.test, _sizes(o.test_by_size),
        ]  # fmt: skip


def curve_lines(outcomes: Outcomes) -> Iterator[list[Any]]:
    """One line of CSV per validation; `majority` is that of the validation split."""
    for o in outcomes.runs:
        majority = outcomes.majority_of[o.task]["validation"]
        for p in o.points:
            spent = (p.epoch, p.flops, p.cpu_s)
            yield [
                o.task, o.model, o.lr, o.seed, *spent, p.train, p.validation, p.test, majority, _sizes(p.by_size),
            ]  # fmt: skip


def _sizes(by_size: dict[int, float]) -> str:
    return " ".join(f"{m}:{a:.4f}" for m, a in by_size.items())


def captions(outcomes: Outcomes) -> dict[str, str]:
    """Caption of each figure by file name; the numbers are those of the paper's figures."""
    texts = {
        "figure3": "Figure 3 (the paper's number). Relation composition: test accuracy over cells of the best weights "
        "of every model, with the epochs it was trained; whiskers: SD over seeds. Dashed: always the more frequent "
        f"answer. {LEGEND}"
    }
    for number, task in enumerate(outcomes.config.tasks, 4):
        texts[f"figure{number}"] = (
            f"Figure {number} (the paper's number). Relation composition, {task.name}. From the left: accuracy per "
            "epoch on the training batches since the validation before, on the validation and on the test split; "
            "validation accuracy per training FLOP; test accuracy of the best weights per size m. Bands: SD over "
            "seeds. Dashed: always the more frequent answer."
        )
    return texts


def relation_tables(outcomes: Outcomes, scale: str) -> list[Table]:
    """Claims, differences, and one table per task."""
    rows = [task_table(outcomes, task.name, scale) for task in outcomes.config.tasks]
    return [claims_table(outcomes, scale), comparison_table(outcomes, scale), *rows]


def write_relations(outcomes: Outcomes, scale: str, folder: Path) -> StageResult:
    """Write page, tables and figures into `folder`; returns the stage's result."""
    grids = relation_tables(outcomes, scale)
    paths = [*figure3(outcomes, scale, folder)]
    for number, task in enumerate(outcomes.config.tasks, 4):
        paths += curves(outcomes, task.name, scale, folder, f"figure{number}")
    labels = captions(outcomes)
    pictures = [(path, f"{SCALE_LABELS[scale]}{labels[path.stem]}") for path in paths if path.suffix == ".png"]
    reading = "\n".join(f"- {line}" for line in sentences(outcomes))
    drawn = "\n\n".join(f"![{path.stem}]({path.name})\n\n{caption}" for path, caption in pictures)
    page = f"{INTRODUCTION}\n## Reading\n\n{reading}\n\n## Tables\n\n{markdown(grids)}\n## Figures\n\n{drawn}\n"
    paths += write_texts(
        folder,
        {
            "relations.md": page,
            "relations_runs.csv": labelled_csv(scale, RUN_HEADER, run_lines(outcomes)),
            "relations_curves.csv": labelled_csv(scale, CURVE_HEADER, curve_lines(outcomes)),
        },
    )
    judged = verdicts(outcomes)
    words = ", ".join(f"{v.verdict} ({v.task})" for v in judged) or "not among this run's tasks"
    summary = f"Relation composition, the paper's gain of IHA over 2-simplicial attention: {words}."
    return publish(
        folder,
        TITLE,
        summary,
        grids,
        figures=pictures,
        files=paths,
        metadata={"verdicts": {v.task: {"verdict": v.verdict, "why": v.why} for v in judged}},
    )


def body(part: RelationReportSlice, context: Context) -> StageResult:
    """Everything is written next to the manifest."""
    folder = context.output.parent
    folder.mkdir(parents=True, exist_ok=True)
    return write_relations(read_outcomes(part.synthetic, context.inputs), part.scale, folder)


def main() -> None:
    """Entry point of the rule `synthetic_report`."""
    run("synthetic_report", RelationReportSlice, body)


if __name__ == "__main__":
    main()
