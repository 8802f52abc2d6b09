"""`code_eval`, the metric of lm-eval's stock code tasks, run in this project's sandbox.

The items stage copies this file into the mirror as `code_eval/code_eval.py`, where `evaluate.load("code_eval")` finds
it without a network; the hub's own metric runs programs bare. One import per line: `evaluate` scans them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate

from iha.evals import sandbox
from iha.evals.scores import pass_at_k


class CodeEval(evaluate.Metric):  # type: ignore[misc]  # evaluate is untyped
    """pass@k of programs, each followed by its tests."""

    def _info(self) -> Any:
        text = datasets.Value("string")
        features = datasets.Features({"predictions": datasets.Sequence(text), "references": text})
        return evaluate.MetricInfo(description=__doc__, citation="", inputs_description="", features=features)

    def _compute(
        self,
        predictions: Sequence[Sequence[str]],
        references: Sequence[str],
        k: Sequence[int] = (1, 10, 100),
        num_workers: int = 2,
        timeout: float = 5.0,
    ) -> tuple[dict[str, float], dict[int, list[tuple[int, dict[str, Any]]]]]:
        """As the hub's metric: mean pass@k over the problems where k programs were drawn, and every verdict."""
        jobs = [
            (program, tests) for programs, tests in zip(predictions, references, strict=True) for program in programs
        ]
        verdicts = iter(sandbox.check(jobs, num_workers, timeout))
        results: dict[int, list[tuple[int, dict[str, Any]]]] = {}
        for problem, programs in enumerate(predictions):
            found = [next(verdicts) for _ in programs]
            results[problem] = [
                (i, {"task_id": problem, "passed": v.passed, "result": v.reason, "completion_id": i})
                for i, v in enumerate(found)
            ]
        means = {}
        for tries in k:
            values = [pass_at_k(len(rows), sum(row["passed"] for _, row in rows), tries) for rows in results.values()]
            known = [value for value in values if value is not None]
            if len(known) == len(values) and known:
                means[f"pass@{tries}"] = sum(known) / len(known)
        return means, results
