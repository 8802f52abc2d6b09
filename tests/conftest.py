"""Shared by all tests: in CI a test that needs what IHA_REQUIRE names may not skip."""

import os

import pytest
from slurmlab import cluster, no_workflow_left

__all__ = ["cluster", "no_workflow_left"]

# Workers of the test run share the cores; torch's spinning threads would cost more than they bring.
os.environ.setdefault("OMP_NUM_THREADS", "1")
REQUIRED = set(filter(None, os.environ.get("IHA_REQUIRE", "").split(",")))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    required = REQUIRED & {mark.name for mark in item.iter_markers()}
    if report.skipped and required and "IHA_TEST_DATA" not in str(report.longrepr):
        report.outcome = "failed"
        report.longrepr = f"skipped although IHA_REQUIRE={','.join(sorted(required))}: {report.longrepr}"
