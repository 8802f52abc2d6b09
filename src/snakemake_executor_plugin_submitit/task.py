"""What runs inside a job: one `snakemake --mode remote`, and the requeue when it has to stop early.

This module is pickled by value (see jobs.py): a queued job runs the version it was submitted with, and imports nothing
of this package. It must therefore not import from it.

Exit code 75 (EX_TEMPFAIL) of a rule means "I saved my state, start me again". Only the job itself acts on it: with
`scontrol requeue`, under the same job id, so that there is one writer at all times.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

RESUMABLE = 75
#: How Snakemake's output reports the exit code of a rule's command.
_RESUMABLE_TEXT = re.compile(rb"returned non-zero exit status 75\b")
#: Attempts shorter than this that end with 75 without a request are no progress; so many in a row are an error.
QUICK_SECONDS, QUICK_ATTEMPTS = 30.0, 3
CODE = ("*.py", "*.smk", "*Snakefile*", "*.sh", "*.R", "*.yaml", "*.yml")


class JobTask:
    """Callable for submitit; returns what happened as a plain dict (`code` 0: the job's outputs are complete)."""

    def __init__(
        self,
        command: str,
        cluster: str,
        log: str = "",
        requeue: int = -1,
        code: dict[str, str] | None = None,
        root: str = "",
        on_drift: str = "warn",
        grace: float = 20.0,
    ) -> None:
        self.command, self.cluster, self.log, self.max_requeues = command, cluster, log, requeue
        self.code, self.root, self.on_drift, self.grace = code or {}, root, on_drift, grace
        self.cwd, self.head = str(Path.cwd()), os.getpid()
        self.stop_reason = ""
        self.time_limit_near = False

    def __call__(self) -> dict[str, Any]:
        """Run the job, as often as it takes without going back to the queue."""
        _install_handlers(self)
        self.log = self.log.replace("%j", os.environ.get("SUBMITIT_LOCAL_JOB_ID") or os.environ.get("SLURM_JOB_ID", ""))
        drift = sorted(p for p, digest in fingerprint(self.root, self.code).items() if self.code.get(p) != digest)
        if drift:
            say(f"changed since this job was submitted: {', '.join(drift[:10])}")
            if self.on_drift == "fail":
                return self._leave({"code": 1, "note": "code changed since submission", "drift": drift})
            if self.on_drift == "snapshot":
                say("this job runs the copy of that time")
                drift = []
        while True:
            started, self.time_limit_near = time.time(), False
            code, resumable = self._attempt()
            result = {"code": code, "resumable": resumable, "stop": self.stop_reason, "node": _node(), "drift": drift}
            if code == 0:
                return result
            attempts = self._record(started, resumable)
            problem = self.reason_to_give_up(attempts) if resumable else ""
            if problem:
                result["note"] = problem
            if self.cluster == "slurm":
                self.requeue(result, resumable and not problem)
                return self._leave(result)
            if not resumable or problem or self.stop_reason:
                return self._leave(result)
            say("exit code 75: starting again")

    def stop(self, why: str) -> None:
        """Ask the job to end: from a signal, or from the workflow when the job runs inside it."""
        self.stop_reason = self.stop_reason or why

    # ---- one attempt ---------------------------------------------------------------------------------

    def _attempt(self) -> tuple[int, bool]:
        """Run the command once; its exit code, and whether that is the resumable one."""
        say(f"attempt {1 + len(self._attempts())} on {_node()}, process {os.getpid()}, in {self.cwd}")
        offset = _size(self.log)
        env = {k: v for k, v in os.environ.items() if k != "SNAKEMAKE_PROFILE"}
        # USR2 reaches all processes of the job, and would kill those that have no handler for it.
        with Path(self.log).open("ab") if self.cluster == "debug" else nullcontext() as inside:
            child = subprocess.Popen(
                ["bash", "-c", f"trap '' USR2; {self.command}"],
                cwd=self.cwd,
                env=env,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=inside,
                stderr=subprocess.STDOUT if inside else None,
            )
            code = self._wait(child)
        return code, code != 0 and bool(_RESUMABLE_TEXT.search(read_from(self.log, offset)))

    def _wait(self, child: subprocess.Popen[bytes]) -> int:
        """Wait for the child; pass on the signals that this process receives."""
        ended = threading.Event()

        def watch() -> None:
            child.wait()
            ended.set()

        threading.Thread(target=watch, daemon=True).start()
        stopped = warned = False
        while not ended.wait(0.25):
            if self.cluster == "local" and not self.stop_reason and not Path(f"/proc/{self.head}").exists():
                self.stop("the workflow that started this job is gone")
            if self.time_limit_near and not warned:
                warned = True
                say("the time limit is near: asking the job to save")
                if self.cluster == "slurm":
                    output(["scancel", "--signal=USR2", os.environ["SLURM_JOB_ID"]])
                _signal_group(child.pid, signal.SIGUSR2)
            if self.stop_reason and not stopped:
                stopped = True
                say(f"stopping: {self.stop_reason}")
                _signal_group(child.pid, signal.SIGTERM)
                if self.cluster != "slurm":
                    _kill_later(child.pid, self.grace)
        return child.returncode

    # ---- between attempts ------------------------------------------------------------------------------

    def _attempts(self) -> list[dict[str, Any]]:
        try:
            return [json.loads(line) for line in Path(self._record_file).read_text().splitlines()]
        except (OSError, ValueError):
            return []

    @property
    def _record_file(self) -> str:
        return re.sub(r"_0_log\.out$", "", self.log) + "_attempts.jsonl"

    def _record(self, started: float, resumable: bool) -> list[dict[str, Any]]:
        entry = {"started": started, "seconds": round(time.time() - started, 1), "node": _node()}
        entry |= {"resumable": resumable, "asked": self.time_limit_near or bool(self.stop_reason)}
        with Path(self._record_file).open("a") as record:
            record.write(json.dumps(entry) + "\n")
        return self._attempts()

    def reason_to_give_up(self, attempts: list[dict[str, Any]]) -> str:
        """Why a resumable job is not started again; empty if it is."""
        if 0 <= self.max_requeues < len(attempts):
            return f"was requeued {self.max_requeues} times, which is the limit (--submitit-requeue)"
        last = attempts[-QUICK_ATTEMPTS:]
        if len(last) == QUICK_ATTEMPTS and all(
            x["resumable"] and not x["asked"] and x["seconds"] < QUICK_SECONDS for x in last
        ):
            return f"ended with code 75 within {QUICK_SECONDS:.0f} s, {QUICK_ATTEMPTS} times in a row"
        return ""

    def requeue(self, result: dict[str, Any], resumable: bool) -> None:
        """Requeue this Slurm job if it saved its state or is being preempted; returns only if it stays failed.

        A cancelled job is never requeued, however it ended: `scontrol requeue` would start it again.
        """
        for _ in range(3):
            fields = _job_fields()
            state, preempted = fields.get("JobState", ""), is_preempted(fields)
            if fields or self.stop_reason:
                timed_out = state == "TIMEOUT" or fields.get("Reason") == "TimeLimit"
                if state != "RUNNING" and not (timed_out and resumable):
                    say(f"Slurm is ending this job ({state or self.stop_reason}): waiting for it")
                    return self.wait_for_slurm(90)
            if not resumable and not (preempted and self.max_requeues):
                return None
            if output(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]]) is not None:
                say("requeued")
                return self.wait_for_slurm(300)
            time.sleep(5)
        say("cannot requeue this job from here: the workflow will submit it again")
        result["again"] = True
        return None

    def wait_for_slurm(self, seconds: float) -> None:
        """Wait for Slurm to end this job, and exit without a result as soon as it does."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.stop_reason:
                _exit_with_failure()
            time.sleep(0.2)

    def _leave(self, result: dict[str, Any]) -> dict[str, Any]:
        """Exit with an error once submitit has written the result, so that Slurm records FAILED too."""
        if self.cluster == "slurm":
            atexit.register(_exit_with_failure)
        return result


def say(text: str) -> None:
    """A line in the job's log."""
    print(f"[submitit {time.strftime('%H:%M:%S')}] {text}", flush=True)


def fingerprint(root: str, known: dict[str, str] | None = None) -> dict[str, str]:
    """Digests of code and configuration files below `root`: those of `known`, or all that git does not ignore."""
    names = list(known) if known else []
    if known is None:
        listed = output(["git", "-C", root, "ls-files", "-coz", "--exclude-standard", "--", *CODE])
        names = [name for name in (listed or "").split("\0") if name][:5000]
    return {name: _digest(Path(root) / name) for name in names}


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return "missing"


def _install_handlers(task: JobTask) -> None:
    """Turn signals into flags; submitit's own handlers count time limits and give up at the third."""
    if threading.current_thread() is not threading.main_thread():
        return
    signal.signal(signal.SIGUSR2, lambda *_: setattr(task, "time_limit_near", True))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda n, _: task.stop(f"{signal.Signals(n).name} received"))


def _node() -> str:
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def output(command: Sequence[str], seconds: float = 60) -> str | None:
    """Output of a command; None if it failed, hung or does not exist."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="backslashreplace", timeout=seconds, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return None if done.returncode else done.stdout


def _job_fields() -> dict[str, str]:
    """State of this job in Slurm; empty if it does not answer."""
    out = output(["scontrol", "show", "job", "-o", os.environ["SLURM_JOB_ID"]]) or ""
    return dict(re.findall(r"\b(JobState|Reason|PreemptTime|StartTime)=(\S+)", out))


def is_preempted(fields: dict[str, str]) -> bool:
    """True if Slurm is preempting this attempt of the job; an earlier preemption stays in its record."""
    when = fields.get("PreemptTime", "None")
    return when != "None" and when >= fields.get("StartTime", "")


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0


def read_from(path: str, offset: int, most: int = 1 << 18) -> bytes:
    """Content of a file from `offset` on, of which at most the last `most` bytes; empty if it cannot be read."""
    try:
        with Path(path).open("rb") as log:
            log.seek(max(offset, _size(path) - most))
            return log.read()
    except OSError:
        return b""


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _kill_later(pid: int, seconds: float) -> None:
    """Kill a process group after a while, even if this process has ended by then."""
    subprocess.Popen(
        ["bash", "-c", f"sleep {seconds}; kill -KILL -- -{pid} 2>/dev/null"],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _exit_with_failure() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
