"""The preflight as a job of the cluster, sent the way the workflow sends its jobs: same options, same launcher."""

from __future__ import annotations

import json
import secrets
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from iha.config.schema import Config
from iha.doctor.outcome import Outcome
from iha.doctor.site import Profile, request_of, threads_of

#: The rule whose request the job makes, on at most so many nodes, for so many minutes.
RULE, NODES, MINUTES = "pretrain", 2, 20
#: Seconds between two looks, and after which a job that left the queue without a result counts as dead.
POLL, GRACE = 0.5, 20.0


def submitted(config: Config, path: Path | None, profile: Profile, patience: float) -> Iterator[Outcome]:
    """Submit, wait for the report and pass it on; a job that does not start or end within `patience` s is cancelled."""
    from snakemake_executor_plugin_submitit import backend, failure

    asked = profile.resources(RULE)
    minutes = min(int(asked.get("runtime") or MINUTES), MINUTES)
    local = profile.settings.cluster != "slurm"
    nodes = 1 if local else min(int(asked.get("nodes") or 1), NODES)
    wanted = request_of(profile, RULE, threads_of(config, RULE), nodes=nodes, runtime=minutes)
    folder = Path(profile.settings.folder).absolute() / "doctor"
    report = folder / f"report-{secrets.token_hex(4)}.json"
    live = _live(wanted)
    work = _work(report, path, wanted, profile.settings)
    try:
        backend.start(live, work, folder, profile.settings)
    except Exception as error:
        advice = failure.refusal(str(error)) or "change set-resources of pretrain in the profile"
        yield Outcome("job", "fail", f"could not be submitted: {error}", advice)
        return
    try:
        problem = _outcome(live, local, patience)
        rows = json.loads(report.read_text()) if report.exists() else []
        yield from (Outcome(**row) for row in rows)
        yield _verdict(live, problem, bool(rows))
    finally:
        report.unlink(missing_ok=True)


def _live(wanted: Any) -> Any:
    from snakemake_executor_plugin_submitit.backend import Live
    from snakemake_executor_plugin_submitit.keys import Key

    return Live(None, wanted, Key(secrets.token_hex(6), "0" * 12, "0" * 8))


def _work(report: Path, path: Path | None, wanted: Any, settings: Any) -> Any:
    from snakemake_executor_plugin_submitit.task import Task

    command = [sys.executable, "-m", "iha.doctor.node", "--report", str(report), "--nodes", str(wanted.nodes)]
    command += ["--tasks", str(wanted.tasks_per_node), "--threads", str(wanted.threads), "--gpus", str(wanted.gpus)]
    command += ["--config", str(path.absolute())] if path else []
    return Task(f"exec {shlex.join(command)}", settings.cluster, requeue=0)


def _outcome(live: Any, local: bool, patience: float) -> str:
    """`_wait`; whoever gives up waiting (Ctrl-C) leaves no job behind."""
    try:
        return _wait(live, local, patience)
    except BaseException:
        _cancel(live, local)
        raise


def _wait(live: Any, local: bool, patience: float) -> str:
    """Wait for the job's result; why there is none, or nothing."""
    from snakemake_executor_plugin_submitit import slurm

    end, gone, looked, reason = time.monotonic() + patience, 0.0, 0.0, ""
    while not Path(live.result_file).exists():
        now = time.monotonic()
        if now > end:
            _cancel(live, local)
            return f"no end after {patience:.0f} s{f' ({reason})' if reason else ''}; cancelled"
        if now - looked > 5 and not local:
            looked, rows = now, slurm.queue()
            row = (rows or {}).get(live.id)
            alive = rows is None or (row is not None and row.state in slurm.ALIVE)
            reason = f"{row.state}, {row.reason}" if row else reason
            gone = 0.0 if alive else gone or now
        if local and live.handle.state != "RUNNING":
            gone = gone or now
        if gone and now - gone > GRACE:
            return "it ended without a result: " + ("killed" if local else slurm.post_mortem(live.id).state)
        time.sleep(POLL)
    return ""


def _cancel(live: Any, local: bool) -> None:
    from snakemake_executor_plugin_submitit import slurm

    live.handle.cancel() if local else slurm.cancel([live.id])


def _verdict(live: Any, problem: str, reported: bool) -> Outcome:
    from snakemake_executor_plugin_submitit import backend
    from snakemake_executor_plugin_submitit.failure import tail

    where = f"job {live.id}"
    if not problem and reported:
        backend.forget(live)
        return Outcome("job", "ok", f"{where} was submitted, ran on {live.wanted.nodes} node(s) and returned")
    last = tail(live.log)[-1:] if live.log and live.log.exists() else []
    text = f"{where}: {problem or 'it left no report'}" + (f"; last line: {last[0]}" if last else "")
    return Outcome("job", "fail", text, f"read {live.log}; `squeue --me` shows what waits, and why")
