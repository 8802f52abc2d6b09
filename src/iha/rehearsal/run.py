"""Try every fault and say what was seen."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from iha.rehearsal.experiment import prepare
from iha.rehearsal.lab import Job, Lab
from iha.rehearsal.scenarios import SCENARIOS, Scenario
from iha.rehearsal.trial import Skipped, Trial

log = logging.getLogger("iha")


@dataclass(frozen=True)
class Outcome:
    """What one fault led to. `held`: all that must hold did; None: it cannot be rehearsed here."""

    name: str
    title: str
    held: bool | None
    seen: str


def attempt(scenario: Scenario, undisturbed: Lab, jobs: dict[str, Job], root: Path) -> Outcome:
    """Try one fault in a fresh copy below `root`; a failure is an outcome, not an error."""
    job = jobs[scenario.job]
    held: bool | None = True
    try:
        seen = scenario.run(Trial(undisturbed.without(job, root), undisturbed, job, jobs))
    except Skipped as error:
        held, seen = None, str(error) or type(error).__name__
    except Exception as error:
        held, seen = False, f"{type(error).__name__}: {error}"
    return Outcome(scenario.name, scenario.title, held, seen)


def rehearse(folder: Path, scenarios: Iterable[Scenario] = SCENARIOS) -> list[Outcome]:
    """Try all faults below `folder`, which is removed at the end, and before if a killed rehearsal left it."""
    outcomes, scenarios = [], [*scenarios]
    shutil.rmtree(folder, ignore_errors=True)
    try:
        lab, jobs = prepare(folder / "undisturbed", {scenario.job for scenario in scenarios})
        for number, scenario in enumerate(scenarios):
            outcome = attempt(scenario, lab, jobs, folder / f"trial{number}")
            words = {True: "held", False: "DID NOT HOLD", None: "not rehearsed"}[outcome.held]
            log.info("%s: %s: %s", scenario.title, words, outcome.seen)
            outcomes.append(outcome)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return outcomes
