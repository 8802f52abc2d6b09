"""What the run says in a few sentences, and where everything came from."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path
from typing import Any

from iha.artifacts.fingerprint import git_state
from iha.config.schema import SPLITS
from iha.report.collect import Results
from iha.report.format import display
from iha.report.notes import MATCHED, STAGES, contamination, evaluated, generated, met, mismatch, searched
from iha.report.page import definitions
from iha.report.power import reached
from iha.report.ruler import Ruler
from iha.report.section import Findings, Section
from iha.report.setup import folds
from iha.report.stats import LEVEL
from iha.report.tables import PaperTableReport

PACKAGES = ("torch", "transformers", "tokenizers", "lm-eval", "datasets", "snakemake", "mlflow", "numpy")
WARNINGS = {
    "smoke": "These models are small enough to train on a laptop in minutes; their scores say nothing about the "
    "paper's claims.",
    "ladder": "These models are smaller than the paper's; read differences, not absolute scores.",
    "paper": "",
}
NAMES = (
    "Every number of the tables leads back to the runs, data, configuration and commit that it was made from. Its name "
    "is listed below its table; where the run was made, iha trace NAME follows it. Configuration and inputs are under "
    "Provenance."
)
#: Sources of RULER's texts in words.
WORDS = {"real": "as in RULER", "synthetic": "another text than RULER's as haystack"}


def story(found: Findings, sections: Sequence[Section]) -> list[str]:
    """Paragraphs for the top of the page; every number in them is computed."""
    results, tables = found.results, found.tables
    part = results.part
    names = ", ".join(display(v) for v in part.variants)
    what = (
        f"{len(part.variants)} attention variants ({names}) in one decoder, trained on one stream of text with "
        f"{len(part.seeds)} seed{'s' if len(part.seeds) > 1 else ''} each: pretraining, then extension to long "
        f"contexts (RULER) and supervised fine-tuning (Table 1). {_stream(results)} {_budget(results)}"
    )
    numbers = " ".join(text for text in (*map(_ranking, tables), _ruler(found.ruler, display(part.reference))) if text)
    said = (
        WARNINGS[part.scale],
        _path(found),
        what,
        numbers,
        _significance(tables, display(part.reference)),
        *(s.summary for s in sections),
    )
    return [text for text in (*said, NAMES) if text]


def _path(found: Findings) -> str:
    """Whether everything that was to be measured is there."""
    part, missing = found.results.part, []
    runs = list(product(part.variants, part.seeds, SPLITS))
    if absent := sum(found.results.train(v, seed, stage) is None for v, seed, stage in runs):
        missing.append(f"{absent} of {len(runs)} trainings")
    cells = [cell for table in found.tables for row in table.main.cells.values() for cell in row]
    if absent := sum(cell.missing is not None or len(cell.seeds) < len(part.seeds) for cell in cells):
        missing.append(f"scores of {absent} of {len(cells)} cells of Tables 1 and 2")
    if absent := sum(len(by_seed) < len(part.seeds) for by_seed in found.ruler.overall.values()):
        missing.append(f"RULER of {absent} of {len(part.variants)} variants")
    if missing:
        return f"This run is not whole; missing: {', '.join(missing)}."
    return "The run is whole: every variant was trained and evaluated, from text to tables."


def _stream(results: Results) -> str:
    """That variants read one stream, and that a cheaper one reads further where budgets are matched in FLOPs."""
    same = "All read it in the same order"
    if results.part.match.pretrain == "flops":
        return f"{same}; at equal FLOPs a cheaper variant takes more steps, so it reads further (tokens: see Compute)."
    return f"{same} and equally far."


def _budget(results: Results) -> str:
    if not results.facts("flops").get("variants"):
        return ""
    variants = results.part.variants
    worst = {stage: max(abs(mismatch(results, v, stage)) for v in variants) for stage in SPLITS}
    if max(worst.values()) <= MATCHED:
        return "All variants spend the same FLOPs on each stage, to within 0.1 %."
    shares = ", ".join(f"{worst[stage]:.1%} ({STAGES[stage]})" for stage in SPLITS)
    return f"FLOPs differ from those of {display(results.part.reference)} by up to {shares}."


def _ranking(table: PaperTableReport) -> str:
    """Who leads a table, only where some difference in it is significant: a rank of noise is no result."""
    if not table.ranks:
        return ""
    name = table.name.replace("table", "Table ")
    best = min(table.ranks.values())
    if len(table.ranks) > 1 and best == max(table.ranks.values()):
        return f"{name} shows no difference: all average ranks are equal."
    if not any(c.p is not None and c.p < LEVEL for row in table.main.cells.values() for c in row):
        return ""
    leaders = " and ".join(display(v) for v, rank in table.ranks.items() if rank == best)
    return f"Best average rank in {name}: {leaders} ({best:.1f})."


def _ruler(numbers: Ruler, reference: str) -> str:
    means = {v: sum(x.values()) / len(x) for v, x in numbers.overall.items() if x}
    ordered = sorted(means, key=lambda v: -means[v])
    if not ordered:
        return ""
    if not any(means.values()):
        return "RULER overall: 0 for every variant."
    if not any(p < LEVEL for p in numbers.p.values()):
        low, high = min(means.values()), max(means.values())
        return f"RULER overall: {low:.1f} to {high:.1f}, no difference to {reference} is significant."
    return f"RULER overall: {', '.join(f'{display(v)} {means[v]:.1f}' for v in ordered)}."


def _significance(tables: tuple[PaperTableReport, ...], reference: str) -> str:
    """How many differences are significant, and how many could have been."""
    cells = [c for t in tables for row in t.main.cells.values() for c in row if c.p is not None]
    if not cells:
        return f"No difference to {reference} could be tested."
    hits = sum(c.p is not None and c.p < LEVEL for c in cells)
    reaches = [x for t in tables for x in t.main.reaches]
    able = reached(reaches)
    least = f"the smallest possible p-value is {min(reaches):.2g}"
    could = (
        f"No test here could have reached {LEVEL}: with so few items, {least} after the correction, so this is true by "
        "construction and says nothing about the variants."
        if not able
        else f"{able} of the tests had enough items to reach it at all."
    )
    ranks = "" if hits else " Average ranks are in the tables, but no leader is named: it would be one by chance."
    said = f"{hits} of {len(cells)} differences to {reference} in Tables 1 and 2 are significant at {LEVEL}."
    return f"{said} {could}{ranks}"


def provenance_section(found: Findings) -> Section:
    """Where everything came from."""
    tasks = found.results.facts("items").get("tasks", {})
    found.note(
        {
            "contamination": {
                s: {"met": met(facts), "checked": facts["checked"], "too_short": facts["too_short"]}
                for s, facts in searched(found.results).items()
            },
            "items": {task: {"n": facts["n"]} for task, facts in tasks.items()},
        }
    )
    facts = definitions({**provenance(found.results), "streams": found.streams})
    return Section("provenance", "Provenance", facts + folds(found.results))


def provenance(results: Results) -> dict[str, str]:
    """Versions, commit, data, items, tokenizer, parents."""
    git = git_state(Path(__file__).parent)
    found = {
        "experiment": results.part.experiment,
        "commit of this report": f"{git['commit']}{' with uncommitted changes' if git['dirty'] else ', clean tree'}",
        "python": platform.python_version(),
        "packages": ", ".join(f"{name} {_version(name)}" for name in PACKAGES),
    }
    tokenizer = results.facts("tokenizer")
    if tokenizer:
        found["tokenizer"] = (
            f"{tokenizer.get('kind')}, {tokenizer.get('vocab_size')} entries, {tokenizer.get('sha256')}"
        )
    for name, manifest in results.inputs.items():
        if name.startswith("data:"):
            found[f"text of {name[5:]}"] = _corpus(manifest.slice, manifest.facts)
    for task, facts in sorted(results.facts("items").get("tasks", {}).items()):
        seen = ", ".join(str(n) for n in evaluated(results, task)) or "none"
        found[f"items of {task}"] = (
            f"{facts['source']}, {facts['n']} items in the file, {seen} of them evaluated, {facts.get('origin')}, "
            f"{facts['sha256']}"
        )
    found |= _others(results)
    found["generated"] = generated(results, results.facts("items").get("tasks", {}), tuned=True)
    found["contamination"] = contamination(results)
    return {name: text for name, text in found.items() if text}


def _others(results: Results) -> dict[str, str]:
    """RULER's items and relation composition's examples."""
    found = {}
    for name, manifest in sorted(results.inputs.items(), key=lambda item: (len(item[0]), item[0])):
        kind, _, rest = name.partition(":")
        if kind == "ruler":
            tasks = manifest.facts.get("tasks", {}).items()
            found[f"RULER at {rest} tokens"] = "; ".join(
                f"{t}: {x['n']} items, {WORDS.get(x['source'], x['source'])}, {x['sha256'][:12]}" for t, x in tasks
            )
        elif kind == "synthetic_data":
            found[f"examples of {rest}"] = "; ".join(f"{n} {e.sha256[:12]}" for n, e in sorted(manifest.files.items()))
    return found


def _corpus(part: dict[str, Any], facts: dict[str, Any]) -> str:
    sources = part.get("data", {}).get("sources", [])
    names = "; ".join(" ".join(f"{k}={json.dumps(v)}" for k, v in s.items() if v not in (None, 1.0)) for s in sources)
    if any(source.get("kind") == "book" for source in sources):
        names += " (the King James Bible, public domain)"
    return f"{names}; sha256 {facts.get('corpus_sha256', 'unknown')}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
