"""Stock lm-eval tasks of the reasoning benchmarks, built from the local mirror of the hub.

The YAML files are lm-eval's own, unchanged: `datasets` prefers a folder of the requested name, so they are loaded with
the mirror as working directory. Only the folders of the requested tasks are indexed (all 13,000 take half a minute).
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from iha.errors import ConfigError, DataError
from iha.evals.grading import last_boxed, without_thoughts
from iha.evals.programs import code_of, complete, function_under_test, humaneval_tests, mbpp_tests

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from lm_eval.api.task import ConfigurableTask

Doc = Mapping[str, Any]
#: What Minerva's extraction makes of a text without an answer.
_NO_ANSWER = "[invalidanswer]"


@dataclass(frozen=True)
class Benchmark:
    """A stock task and what we add to it.

    `task`, `folder`: lm-eval's name and folder. `gold`: a model answer that is right, as the stock prompt continues.
    `answer`: the gold to grade against (none for code). `program`: (code, tests) of an answer text, for code tasks.
    `official`: lm-eval's (metric, filter) -> the name we report it under.
    """

    name: str
    task: str
    folder: str
    gold: Callable[[Doc], str]
    answer: Callable[[Doc], str] | None = None
    program: Callable[[Doc, str], tuple[str, str]] | None = None
    official: Mapping[tuple[str, str], str] = field(default_factory=dict)


def _humaneval(doc: Doc, text: str) -> tuple[str, str]:
    code = complete(doc["prompt"], without_thoughts(text), doc["entry_point"])
    return code, humaneval_tests(doc["test"], doc["entry_point"])


def _mbpp(doc: Doc, text: str) -> tuple[str, str]:
    code = code_of(without_thoughts(text), function_under_test(doc["test_list"]))
    return code or "", mbpp_tests(doc.get("test_setup_code") or "", doc["test_list"])


def _math_answer(doc: Doc) -> str:
    """The solution's last box: in place of `answer` the stock task puts what Minerva's normalisation leaves of it."""
    boxed = last_boxed(doc["solution"])
    return str(doc["answer"]) if boxed is None else boxed


BENCHMARKS: dict[str, Benchmark] = {
    b.name: b
    for b in (
        Benchmark(
            "gsm8k", "gsm8k", "gsm8k",
            gold=lambda doc: f" {doc['answer']}",
            answer=lambda doc: str(doc["answer"]),
            official={
                ("exact_match", "strict-match"): "strict",
                ("exact_match", "flexible-extract"): "flexible",
            },
        ),
        Benchmark(
            "math500", "minerva_math500", "minerva_math",
            gold=lambda doc: f" {doc['solution']}",
            answer=_math_answer,
            official={("exact_match", "none"): "minerva", ("math_verify", "none"): "math_verify"},
        ),
        Benchmark("mbpp", "mbpp", "mbpp", gold=lambda doc: f"{doc['code']}\n[DONE]", program=_mbpp),
        Benchmark(
            "humaneval", "humaneval", "humaneval", gold=lambda doc: str(doc["canonical_solution"]), program=_humaneval
        ),
    )
}  # fmt: skip


def offline() -> None:
    """Forbid the hub to every library imported from here on: what is missing fails at once, with its name."""
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    os.environ.update(HF_DATASETS_DISABLE_PROGRESS_BARS="1", TQDM_DISABLE="1")


def load_tasks(names: Sequence[str], mirror: Path) -> dict[str, ConfigurableTask]:
    """Build the stock tasks of the benchmarks `names` from the mirror.

    Raises:
        DataError: the mirror lacks a data set.
    """
    from lm_eval import tasks as stock

    root = Path(stock.__file__).parent
    chosen = [BENCHMARKS[name] for name in names]
    manager = stock.TaskManager(include_defaults=False, include_path=[root / b.folder for b in chosen])
    try:
        with _inside(mirror), _code_metric():
            loaded = manager.load([b.task for b in chosen])["tasks"]
    except (OSError, ValueError) as error:
        raise DataError(
            f"{mirror}: items of {', '.join(names)} cannot be read ({error}). Rerun stage items."
        ) from error
    for task in loaded.values():
        _memoise_equivalence(task)
    return {b.name: loaded[b.task] for b in chosen}


def _memoise_equivalence(task: ConfigurableTask) -> None:
    """Minerva's symbolic comparison parses both sides again each time, a quarter second each; most answers repeat.

    A missing answer (which it would parse as a product of twelve letters) equals no gold.
    """
    names = getattr(task.config.process_results, "__globals__", {})
    stock = names.get("is_equiv")
    if stock is None or hasattr(stock, "cache_info"):
        return

    def is_equiv(answer: str, gold: str) -> bool:
        return answer == gold if answer == _NO_ANSWER else bool(stock(answer, gold))

    names["is_equiv"] = cache(is_equiv)


def requests(
    task: ConfigurableTask,
    *,
    limit: int | None,
    shots: int | None,
    template: Callable[..., str] | None,
) -> list[Instance]:
    """One request per item, with the stock prompt.

    Args:
        task: from `load_tasks`.
        limit: items, the first ones; None: all.
        shots: few-shot examples; None: the stock task's number. Examples that a stock task fixes are not changed.
        template: renders a conversation (chat models), or None for plain text.
    """
    stock = task.config.num_fewshot
    if shots is not None:
        task.set_config("num_fewshot", shots)
    task.set_fewshot_seed(seed=1234)
    task.build_all_requests(
        limit=limit,
        apply_chat_template=template is not None,
        fewshot_as_multiturn=template is not None,
        chat_template=template,
    )
    task.set_config("num_fewshot", stock)
    return list(task.instances)


def free_shots(task: ConfigurableTask) -> bool:
    """Whether the stock task draws its examples from a split, so that their number is open."""
    return task.config.fewshot_split is not None and bool(task.config.num_fewshot)


def official_scores(
    task: ConfigurableTask, request: Instance, texts: Sequence[str]
) -> list[dict[tuple[str, str], float]]:
    """lm-eval's own metrics of each answer to one request, through the task's own filters and `process_results`."""
    from lm_eval.api.instance import Instance
    from lm_eval.filters import build_filter_ensemble

    stock = task.config.filter_list or [{"name": "none", "filter": [{"function": "take_first"}]}]
    filters = [
        build_filter_ensemble(part["name"], [(step["function"], _options(step)) for step in part["filter"]])
        for part in stock
    ]
    scores = []
    for text in texts:
        instance = Instance(request.request_type, request.doc, request.arguments, 0, request.metadata, resps=[text])
        for ensemble in filters:
            ensemble.apply([instance])
        scores.append(
            {
                (metric, name): float(value)
                for name, response in instance.filtered_resps.items()
                for metric, value in task.process_results(request.doc, [response]).items()
            }
        )
    return scores


def _options(step: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in step.items() if key != "function"}


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def _code_metric() -> Iterator[None]:
    """Keep `evaluate` from being imported while tasks are built: ten CPU seconds for one metric we do not use.

    The code tasks load it and run a trial program at once, outside any sandbox. The replacement runs nothing; generated
    programs run in `iha.evals.sandbox` only.
    """
    before = sys.modules.get("evaluate")
    metric = _NoCode()
    module = ModuleType("evaluate")
    module.__spec__ = importlib.util.spec_from_loader("evaluate", None)
    module.load = lambda name: metric  # type: ignore[attr-defined]
    sys.modules["evaluate"] = module
    try:
        yield
    finally:
        metric.building = False
        if before is None:
            del sys.modules["evaluate"]
        else:
            sys.modules["evaluate"] = before


class _NoCode:
    """Replaces `code_eval`: answers the trial while tasks are built, refuses to score afterwards."""

    building = True

    def compute(self, **_: Any) -> tuple[dict[str, float], dict[str, Any]]:
        """Nothing passed: no program is run."""
        if not self.building:
            raise ConfigError("Programs are scored in the sandbox (iha.evals.sandbox), not by lm-eval's code_eval.")
        return {"pass@1": 0.0}, {}
