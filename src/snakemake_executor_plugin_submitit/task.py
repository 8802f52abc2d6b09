"""What runs inside a job: one `snakemake --mode remote`, and the way back to the queue when it has to stop early.

Pickled by value (see executor.py): a queued job runs the version it was submitted with, and imports nothing of this
package. Hence no import from it here.

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
#: How Python words the exit code of a rule's command in Snakemake's output.
_RESUMABLE_TEXT = re.compile(rb"returned non-zero exit status 75\b")
#: Lives shorter than this that end with 75 unasked are no progress; so many in a row are a bug.
QUICK_SECONDS, QUICK_LIVES = 30.0, 3
CODE = ("*.py", "*.smk", "*Snakefile*", "*.sh", "*.R", "*.yaml", "*.yml")


class Task:
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
        self._stop = ""
        self._asked = False

    def __call__(self) -> dict[str, Any]:
        """Run the job, through as many lives as it takes on this side of the queue."""
        _install(self)
        self.log = self.log.replace("%j", os.environ.get("SUBMITIT_LOCAL_JOB_ID") or os.environ.get("SLURM_JOB_ID", ""))
        drift = sorted(p for p, digest in fingerprint(self.root, self.code).items() if self.code.get(p) != digest)
        if drift:
            say(f"changed since this job was submitted: {', '.join(drift[:10])}")
            if self.on_drift == "fail":
                return self._leave({"code": 1, "note": "code changed since submission", "drift": drift})
            if self.on_drift == "snapshot":
                say("this job runs the copy that was made then")
                drift = []
        while True:
            started, self._asked = time.time(), False
            code, resumable = self._live()
            result = {"code": code, "resumable": resumable, "stop": self._stop, "node": _node(), "drift": drift}
            if code == 0:
                return result
            lives = self._record(started, resumable)
            tired = resumable and self._tired(lives)
            if tired:
                result["note"] = tired
            if self.cluster == "slurm":
                self._back_to_queue(result, resumable and not tired)
                return self._leave(result)
            if not resumable or tired or self._stop:
                return self._leave(result)
            say("exit code 75: starting again")

    def stop(self, why: str) -> None:
        """Ask the job to end: from a signal, or from the workflow when the job runs inside it."""
        self._stop = self._stop or why

    # ---- one life ---------------------------------------------------------------------------------

    def _live(self) -> tuple[int, bool]:
        """Run the command once; its exit code, and whether that is the resumable one."""
        say(f"life {1 + len(self._lives())} on {_node()}, process {os.getpid()}, in {self.cwd}")
        offset = _size(self.log)
        env = {k: v for k, v in os.environ.items() if k != "SNAKEMAKE_PROFILE"}
        # USR2 reaches everything in the job and kills what does not expect it; whoever does installs a handler.
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
        return code, code != 0 and bool(_RESUMABLE_TEXT.search(_read_from(self.log, offset)))

    def _wait(self, child: subprocess.Popen[bytes]) -> int:
        """Wait for the child; hand on what this process is told meanwhile."""
        ended = threading.Event()

        def watch() -> None:
            child.wait()
            ended.set()

        threading.Thread(target=watch, daemon=True).start()
        told = warned = False
        while not ended.wait(0.25):
            if self.cluster == "local" and not self._stop and not Path(f"/proc/{self.head}").exists():
                self.stop("the workflow that started this job is gone")
            if self._asked and not warned:
                warned = True
                say("the time limit is near: asking the job to save")
                if self.cluster == "slurm":
                    output(["scancel", "--signal=USR2", os.environ["SLURM_JOB_ID"]])
                _signal_group(child.pid, signal.SIGUSR2)
            if self._stop and not told:
                told = True
                say(f"stopping: {self._stop}")
                _signal_group(child.pid, signal.SIGTERM)
                if self.cluster != "slurm":
                    _kill_later(child.pid, self.grace)
        return child.returncode

    # ---- between lives ------------------------------------------------------------------------------

    def _lives(self) -> list[dict[str, Any]]:
        try:
            return [json.loads(line) for line in Path(self._diary).read_text().splitlines()]
        except (OSError, ValueError):
            return []

    @property
    def _diary(self) -> str:
        return re.sub(r"_0_log\.out$", "", self.log) + "_lives.jsonl"

    def _record(self, started: float, resumable: bool) -> list[dict[str, Any]]:
        life = {"started": started, "seconds": round(time.time() - started, 1), "node": _node()}
        with Path(self._diary).open("a") as diary:
            diary.write(json.dumps(life | {"resumable": resumable, "asked": self._asked or bool(self._stop)}) + "\n")
        return self._lives()

    def _tired(self, lives: list[dict[str, Any]]) -> str:
        """Why not to start again, if there is a reason."""
        if 0 <= self.max_requeues < len(lives):
            return f"went back to the queue {self.max_requeues} times, which is the limit (--submitit-requeue)"
        last = lives[-QUICK_LIVES:]
        if len(last) == QUICK_LIVES and all(
            x["resumable"] and not x["asked"] and x["seconds"] < QUICK_SECONDS for x in last
        ):
            return f"ended with code 75 within {QUICK_SECONDS:.0f} s, {QUICK_LIVES} times in a row"
        return ""

    def _back_to_queue(self, result: dict[str, Any], wanted: bool) -> None:
        """Requeue this Slurm job if it asked for it or is being preempted; returns only if it stays failed.

        A cancelled job is never requeued, however it ended: that would bring it back to life.
        """
        for _ in range(3):
            facts = _facts()
            state, preempted = facts.get("JobState", ""), _preempted(facts)
            if facts or self._stop:
                timed_out = state == "TIMEOUT" or facts.get("Reason") == "TimeLimit"
                if state != "RUNNING" and not (timed_out and wanted):
                    say(f"Slurm is ending this job ({state or self._stop}): waiting for it")
                    return self._linger(90)
            if not wanted and not (preempted and self.max_requeues):
                return None
            if output(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]]) is not None:
                say("back to the queue")
                return self._linger(300)
            time.sleep(5)
        say("cannot requeue this job from here: the workflow will submit it again")
        result["again"] = True
        return None

    def _linger(self, seconds: float) -> None:
        """Wait for Slurm to end this job, and leave without a result as soon as it says so."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self._stop:
                _exit_with_failure()
            time.sleep(0.2)

    def _leave(self, result: dict[str, Any]) -> dict[str, Any]:
        """Let Slurm's own record say FAILED too, once submitit has written the result."""
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


def _install(task: Task) -> None:
    """Signals become flags; submitit's own handlers would count time limits and give up at the third."""
    if threading.current_thread() is not threading.main_thread():
        return
    signal.signal(signal.SIGUSR2, lambda *_: setattr(task, "_asked", True))
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


def _facts() -> dict[str, str]:
    """What Slurm says of this job; empty if it cannot be asked."""
    out = output(["scontrol", "show", "job", "-o", os.environ["SLURM_JOB_ID"]]) or ""
    return dict(re.findall(r"\b(JobState|Reason|PreemptTime|StartTime)=(\S+)", out))


def _preempted(facts: dict[str, str]) -> bool:
    """Whether Slurm is preempting this life of the job: the record of an earlier preemption stays."""
    when = facts.get("PreemptTime", "None")
    return when != "None" and when >= facts.get("StartTime", "")


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0


def _read_from(path: str, offset: int, most: int = 1 << 18) -> bytes:
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
    """End a process group for good after a while, even if this process does not live to see it."""
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
