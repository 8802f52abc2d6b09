"""Shared by all tests: in CI a test that needs what IHA_REQUIRE names may not skip."""

import os
import signal

import pytest
from slurmlab import cluster, no_workflow_left

__all__ = ["cluster", "no_workflow_left"]

# Workers of the test run share the cores; torch's spinning threads would cost more than they bring.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A run that a script started in the background ignores SIGINT, and so would the workflows that the tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
REQUIRED = set(filter(None, os.environ.get("IHA_REQUIRE", "").split(",")))
#: Groups of tests that take minutes: begun last, one of them would run alone at the end.
LONG = ("dag", "slurm", "resume")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """The tests of a file are a group if they are in none: one worker makes their fixtures. Long groups come first."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
    slow = {_group(item) for item in items if item.get_closest_marker("slow")}
    order = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(_group(item), len(LONG) + (_group(item) not in slow)))


def _group(item):
    return item.get_closest_marker("xdist_group").args[0]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    required = REQUIRED & {mark.name for mark in item.iter_markers()}
    if report.skipped and required and "IHA_TEST_DATA" not in str(report.longrepr):
        report.outcome = "failed"
        report.longrepr = f"skipped although IHA_REQUIRE={','.join(sorted(required))}: {report.longrepr}"


#: How to install what a marked test needs.
INSTALL = {
    "slurm": "apt install slurmctld slurmd slurm-client munge",
    "sandbox": "allow user namespaces (docs/cluster.md)",
    "chromium": "apt install chromium",
    "latex": "apt install texlive-latex-recommended",
    "gpu": "a machine with an NVIDIA GPU",
}


def pytest_terminal_summary(terminalreporter):
    """Say what was skipped, and what to install to run it."""
    counts = {}
    for report in terminalreporter.stats.get("skipped", ()):
        reason = report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else ""
        need = next((name for name in INSTALL if name in report.keywords), reason)
        counts[need] = counts.get(need, 0) + 1
    for need, count in sorted(counts.items()):
        terminalreporter.write_line(f"skipped {count}: {need}" + (f"; {INSTALL[need]}" if need in INSTALL else ""))
