"""Stage evaluate: one suite on one checkpoint. lm-eval and torch are imported once the arguments are known good."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from iha.artifacts.run import STOP_SIGNALS
from iha.config.schema import CONTEXTS
from iha.evals.tasks import offline
from iha.planning.slices import EvalSlice
from iha.stages.common import RESUMABLE, Context, StageResult, run
from iha.tracking import Tracker

if TYPE_CHECKING:
    import torch

    from iha.evals.generate import AnswerJournal
    from iha.evals.lm import IhaLM
    from iha.evals.run import MetricRow, SuiteResult

log = logging.getLogger("iha")
#: Sampling seed: the same numbers for every variant and training seed, so that comparisons are paired.
SEED = 0


@dataclass(frozen=True)
class Subject:
    """The checkpoint under evaluation."""

    variant: str
    seed: int
    context: int
    weights: str
    folder: Path


def body(part: EvalSlice, context: Context) -> StageResult:
    """Run the suite; answers already given by an earlier attempt are kept."""
    offline()
    from iha.evals.generate import AnswerJournal
    from iha.evals.ruler.scoring import summary
    from iha.evals.run import write_records

    os.environ.setdefault("HF_DATASETS_CACHE", str(context.state / "mirror" / ".cache"))
    subject = subject_of(context)
    context.verify("model", "tokenizer", "items")
    home = context.state / "evals" / subject.variant / f"seed{subject.seed}" / f"{part.suite.name}.{part.suite.model}"
    tracker = Tracker.start(
        context.tracking_uri,
        context.experiment,
        subject.variant,
        subject.seed,
        stage=f"{part.suite.name}.{part.suite.model}",
        params={**part.model_dump(mode="json"), "weights": subject.weights},
        jsonl=home / "metrics.jsonl",
        tags={"code": context.code},
    )
    identity = identity_of(subject, context)
    with _killed_if_stopped(tracker), AnswerJournal(home / "answers.jsonl", identity) as journal:
        lm, settings = _load(part, context, subject, journal)
        result = _ruler(lm, part, context, subject) if part.suite.lengths else _reasoning(lm, part, context, subject)
        write_records(home / "samples.jsonl.gz", result.records)
        journal.discard()
        tracker.log(0, **_metrics(result.rows))
    metadata: dict[str, Any] = {"rows": [asdict(row) for row in result.rows], "settings": settings}
    if part.suite.lengths:
        metadata["ruler"] = summary(result.records)
        if max(part.suite.lengths) >= subject.context and "store" in context.inputs:
            metadata["positions"] = _positions(lm, context)
    else:
        settings["shots"] = result.shots
        settings["grading_timeouts"] = result.grading_timeouts
    return StageResult({"samples": context.entry(home / "samples.jsonl.gz")}, metadata, tracker.run_id)


@contextmanager
def _killed_if_stopped(tracker: Tracker) -> Iterator[None]:
    """Close the run with status KILLED: a stopped evaluation is not a failed one."""
    with tracker:
        try:
            yield
        except SystemExit:
            tracker.finish("KILLED")
            raise


def subject_of(context: Context) -> Subject:
    """The checkpoint that the manifest `model` describes."""
    manifest = context.inputs["model"]
    part = manifest.slice
    return Subject(
        variant=part["variant"]["name"],
        seed=part["seed"],
        context=part["recipe"]["seq_len"],
        weights=manifest.metadata["weights_sha256"],
        folder=context.state / manifest.metadata["model"],
    )


def identity_of(subject: Subject, context: Context) -> str:
    """What an answer depends on, apart from its prompt: weights, tokenizer, code, precision."""
    tokenizer = context.inputs["tokenizer"].metadata["sha256"]
    return f"{subject.weights}|{tokenizer}|{context.code}|{_precision(context)[1]}"


def _precision(context: Context) -> tuple[str, torch.dtype]:
    """Device of the model, and its dtype on that device."""
    import torch

    device = context.device if context.device != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")
    return device, torch.bfloat16 if device == "cuda" else torch.float32


def _load(part: EvalSlice, context: Context, subject: Subject, journal: AnswerJournal) -> tuple[IhaLM, dict[str, Any]]:
    """The model behind its adapter, and how it is run, for the manifest."""
    import torch

    from iha.data.tokenizer import Tokenizer
    from iha.evals.lm import IhaLM
    from iha.model.files import load_model

    torch.set_num_threads(context.threads)
    device, dtype = _precision(context)
    model = load_model(subject.folder, device, dtype)
    limit = CONTEXTS * subject.context
    lm = IhaLM(
        model,
        Tokenizer.load(context.state / "tokenizer"),
        max_length=limit,
        batch_size=part.batch_size,
        seed=SEED,
        journal=journal,
    )
    settings: dict[str, Any] = {
        "batch_size": part.batch_size,
        "context": subject.context,
        "dtype": str(dtype).removeprefix("torch."),
        "max_length": limit,
    }
    if part.suite.lengths:
        settings["prompt"] = "RULER, greedy"
    else:
        chat = part.suite.model == "sft"
        settings["prompt"] = "chat, no examples" if chat else "stock few-shot"
        settings.update(sampling_seed=SEED, temperature=part.temperature, samples=part.samples)
    return lm, settings


def _reasoning(lm: IhaLM, part: EvalSlice, context: Context, subject: Subject) -> SuiteResult:
    from iha.evals.run import Settings, run_suite
    from iha.evals.tasks import load_tasks

    settings = Settings(
        samples=part.samples,
        temperature=part.temperature,
        max_new_tokens=part.max_new_tokens,
        context=subject.context,
        chat=part.suite.model == "sft",
        limit=part.limit,
        shots=part.shots,
        workers=context.threads,
    )
    known = context.inputs["items"].metadata["tasks"]
    tasks = load_tasks(part.suite.tasks, context.state / "mirror")
    return run_suite(lm, tasks, settings, {name: known[name]["source"] for name in part.suite.tasks})


def _ruler(lm: IhaLM, part: EvalSlice, context: Context, subject: Subject) -> SuiteResult:
    from iha.evals.ruler.items import read_items
    from iha.evals.run import run_ruler

    tokenizer = context.inputs["tokenizer"].metadata["sha256"]
    items = {
        (length, task): read_items(context.inputs[f"ruler_{length}"], context.state, task, tokenizer)
        for length in part.suite.lengths
        for task in part.suite.tasks
    }
    return run_ruler(lm, items, subject.context, chat=part.suite.model == "sft")


def _positions(lm: IhaLM, context: Context) -> dict[str, Any]:
    from iha.data.store import TokenStore
    from iha.evals.likelihood import position_loss

    store = TokenStore.open(context.inputs["store"], context.state)
    return position_loss(lm.model, store, context.inputs["model"])


def _metrics(rows: list[MetricRow]) -> dict[str, float]:
    """Measured rows as tracking metrics, `task/metric` or `task/length/metric`."""
    return {
        "/".join([row.task, *([str(row.length)] if row.length else []), row.metric]): row.value
        for row in rows
        if row.value is not None
    }


def stop_resumable(number: int, frame: FrameType | None) -> None:
    """Signal handler: end with the resumable exit code."""
    log.warning("%s received: the answers so far are kept; start again to resume.", signal.Signals(number).name)
    raise SystemExit(RESUMABLE)


def main() -> None:
    """Entry point of the rule `evaluate`; a stopping signal ends it with the resumable code."""
    for number in STOP_SIGNALS:
        signal.signal(number, stop_resumable)
    run("evaluate", EvalSlice, body)


if __name__ == "__main__":
    main()
