"""What runs in a job: when an attempt ends, when another begins, and which signals reach the command."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from slurmlab import wait_for

from snakemake_executor_plugin_submitit import task

AGAIN = "echo returned non-zero exit status 75.; exit 1"


class Run:
    """A task beside this process's own work, so that its signals stay this process's."""

    def __init__(self, folder, command, cluster="debug", **more):
        self.log = folder / "1_0_log.out"
        self.task = task.JobTask(command, cluster, str(self.log), **more)
        self.result = None
        self._thread = threading.Thread(target=self._call)
        self._thread.start()

    def _call(self):
        self.result = self.task()

    def end(self):
        self._thread.join(60)
        assert self.result is not None, "the job did not end"
        return self.result, self.log.read_text()


def run(folder, command, **more):
    return Run(folder, command, **more).end()


def attempt(seconds=1.0, resumable=True, asked=False):
    return {"started": 0.0, "seconds": seconds, "node": "n", "resumable": resumable, "asked": asked}


@pytest.mark.parametrize(
    ("attempts", "limit", "words"),
    [
        ([attempt()] * 2, -1, ""),
        ([attempt()] * 3, -1, "ended with code 75 within 30 s, 3 times in a row"),
        ([attempt(29.9)] * 3, -1, "ended with code 75"),
        ([attempt(), attempt(30.0), attempt()], -1, ""),
        ([attempt(), attempt(asked=True), attempt()], -1, ""),
        ([attempt(), attempt(resumable=False), attempt()], -1, ""),
        ([attempt(100.0)] + [attempt()] * 3, -1, "ended with code 75"),
        ([attempt(100.0)] * 1000, -1, ""),
        ([attempt(100.0)], 0, "was requeued 0 times, which is the limit (--submitit-requeue)"),
        ([attempt(100.0)] * 2, 2, ""),
        ([attempt(100.0)] * 3, 2, "was requeued 2 times"),
    ],
)
def test_when_a_job_is_not_started_again(attempts, limit, words):
    assert task.JobTask("true", "local", requeue=limit).reason_to_give_up(attempts).startswith(words)
    assert bool(task.JobTask("true", "local", requeue=limit).reason_to_give_up(attempts)) == bool(words)


def test_task_is_pickled_with_its_code_and_without_this_package(tmp_path):
    import cloudpickle

    cloudpickle.register_pickle_by_value(task)
    (tmp_path / "task.pkl").write_bytes(cloudpickle.dumps(task.JobTask("true", "local", str(tmp_path / "1_0_log.out"))))
    code = "import sys, pickle; t = pickle.load(open('task.pkl', 'rb')); print(t()['code'], any('snakemake' in m for m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 False"


def test_exit_code_75_starts_a_local_job_again(tmp_path):
    command = f"cd {tmp_path}; echo x >> lives; [ $(wc -l < lives) = 3 ] || {{ echo 'returned non-zero exit status 75.'; exit 1; }}"
    result, _ = run(tmp_path, command)
    assert result["code"] == 0
    assert (tmp_path / "lives").read_text() == "x\n" * 3


def test_the_exit_code_of_an_earlier_attempt_does_not_count(tmp_path, capsys):
    """The log has all attempts; only what this one wrote says how it ended."""
    command = f"cd {tmp_path}; if [ -e first ]; then echo broken; exit 1; fi; touch first; {AGAIN}"
    result, _ = run(tmp_path, command)
    assert (result["code"], result["resumable"]) == (1, False)
    assert capsys.readouterr().out.count("exit code 75: starting again") == 1
    assert [entry["resumable"] for entry in record(tmp_path)] == [True, False]


def record(folder):
    return [json.loads(line) for line in (folder / "1_attempts.jsonl").read_text().splitlines()]


def test_attempts_are_counted_across_processes(tmp_path, capsys):
    """A requeued Slurm job is a new process with the same log."""
    (tmp_path / "1_attempts.jsonl").write_text(json.dumps(attempt(100.0)) + "\n")
    result, _ = run(tmp_path, AGAIN, requeue=1)
    assert result["note"].startswith("was requeued 1 times")
    assert "attempt 2 on " in capsys.readouterr().out


def test_a_record_that_was_cut_short_counts_as_none(tmp_path, capsys):
    (tmp_path / "1_attempts.jsonl").write_text('{"started": 1')
    result, _ = run(tmp_path, "true")
    assert result["code"] == 0 and "attempt 1 on " in capsys.readouterr().out


@pytest.mark.parametrize("text", ["returned non-zero exit status 750.", "exit status 75", "status 75"])
def test_only_the_resumable_code_starts_a_job_again(tmp_path, text):
    result, _ = run(tmp_path, f"echo '{text}'; exit 1")
    assert result["resumable"] is False and len(record(tmp_path)) == 1


def test_success_with_code_75_in_its_output_is_success(tmp_path):
    result, _ = run(tmp_path, "echo 'returned non-zero exit status 75.'")
    assert (result["code"], result["resumable"]) == (0, False)
    assert not (tmp_path / "1_attempts.jsonl").exists()


def test_a_job_that_is_stopped_saves_and_is_not_started_again(tmp_path, capsys):
    command = f"cd {tmp_path}; trap 'touch saved; {AGAIN}' TERM; touch ready; while true; do sleep 0.05; done"
    job = Run(tmp_path, command)
    wait_for((tmp_path / "ready").exists, 30, "the job")
    job.task.stop("the workflow was interrupted")
    job.task.stop("another reason")
    result, _ = job.end()
    output = capsys.readouterr().out
    assert (tmp_path / "saved").exists() and result["resumable"]
    assert result["stop"] == "the workflow was interrupted"
    assert "stopping: the workflow was interrupted" in output and "starting again" not in output
    assert record(tmp_path)[0]["asked"] is True


def test_a_job_that_does_not_stop_is_killed_after_its_grace_with_all_its_processes(tmp_path):
    command = f"cd {tmp_path}; trap '' TERM; (trap '' TERM; echo $BASHPID > child; sleep 300) & touch ready; wait"
    job = Run(tmp_path, command, grace=0.3)
    wait_for((tmp_path / "child").exists, 30, "the job")
    job.task.stop("enough")
    result, _ = job.end()
    assert result["code"] == -9
    child = int((tmp_path / "child").read_text())
    wait_for(lambda: not alive(child), 30, "the end of the job's own child")


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_time_limit_that_is_near_reaches_the_command_as_usr2_and_its_shell_survives_it(tmp_path, capsys):
    code = "import signal, sys, time; signal.signal(signal.SIGUSR2, lambda *_: sys.exit(75)); open('ready', 'w'); time.sleep(60)"
    command = f'cd {tmp_path}; [ -e ready ] && exit 0; python3 -c "{code}" || {{ {AGAIN}; }}'
    job = Run(tmp_path, command)
    wait_for((tmp_path / "ready").exists, 30, "the job")
    time.sleep(0.2)
    job.task.time_limit_near = True
    result, log = job.end()
    assert result["code"] == 0, log
    assert (
        "the time limit is near: asking the job to save" in capsys.readouterr().out
        and record(tmp_path)[0]["asked"] is True
    )


def test_a_local_job_stops_when_the_workflow_that_started_it_is_gone(tmp_path, capfd):
    gone = subprocess.Popen(["true"])
    gone.wait()
    job = task.JobTask("sleep 60", "local", str(tmp_path / "1_0_log.out"), grace=5.0)
    job.head = gone.pid
    found = []
    thread = threading.Thread(target=lambda: found.append(job()))
    thread.start()
    thread.join(30)
    assert found[0]["stop"] == "the workflow that started this job is gone"
    assert "stopping: the workflow that started this job is gone" in capfd.readouterr().out


def test_the_command_sees_no_profile_and_no_terminal_and_runs_where_the_workflow_was_started(tmp_path, monkeypatch):
    monkeypatch.setenv("SNAKEMAKE_PROFILE", "slurm")
    monkeypatch.chdir(tmp_path)
    job = Run(tmp_path, "pwd; echo profile=$SNAKEMAKE_PROFILE; cat; echo end")
    result, log = job.end()
    assert result["code"] == 0
    assert log.splitlines()[-3:] == [str(tmp_path), "profile=", "end"]


@pytest.mark.parametrize(("name", "number"), [("SUBMITIT_LOCAL_JOB_ID", "41"), ("SLURM_JOB_ID", "42")])
def test_the_number_of_a_job_completes_the_name_of_its_log(tmp_path, monkeypatch, name, number):
    for other in ("SUBMITIT_LOCAL_JOB_ID", "SLURM_JOB_ID"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, number)
    job = task.JobTask("false", "debug", str(tmp_path / "%j_0_log.out"))
    thread = threading.Thread(target=job)
    thread.start()
    thread.join(30)
    assert job.log == str(tmp_path / f"{number}_0_log.out")
    assert (tmp_path / f"{number}_attempts.jsonl").exists()


@pytest.mark.parametrize(("on_drift", "drift", "ran"), [("warn", ["a.py", "gone.py"], True), ("snapshot", [], True), ("fail", ["a.py", "gone.py"], False)])  # fmt: skip
def test_changed_and_missing_code_by_the_setting(tmp_path, on_drift, drift, ran):
    for name in ("a.py", "gone.py", "same.py"):
        (tmp_path / name).write_text("1")
    code = task.fingerprint(str(tmp_path), dict.fromkeys(("a.py", "gone.py", "same.py"), ""))
    (tmp_path / "a.py").write_text("2")
    (tmp_path / "gone.py").unlink()
    command = f"touch {tmp_path}/ran"
    result, _ = run(tmp_path, command, code=code, root=str(tmp_path), on_drift=on_drift) if ran else refused(
        tmp_path, command, code
    )  # fmt: skip
    assert result["drift"] == drift
    assert (tmp_path / "ran").exists() == ran


def refused(folder, command, code):
    job = Run(folder, command, code=code, root=str(folder), on_drift="fail")
    job._thread.join(30)
    return job.result, ""


def test_code_is_what_git_does_not_ignore_whatever_its_name(tmp_path):
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    names = ("ä.py", "with blank.smk", 'quo"te.yaml', "tab\t.py", "deep/Snakefile", "a.R")
    for name in (*names, "data.csv", "ignored.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("1")
    (tmp_path / ".gitignore").write_text("ignored.py\n")
    before = task.fingerprint(str(tmp_path))
    assert before.keys() == set(names) and "missing" not in before.values()
    (tmp_path / "ä.py").write_text("2")
    after = task.fingerprint(str(tmp_path), before)
    assert {name for name in names if after[name] != before[name]} == {"ä.py"}


def test_without_git_no_code_is_known(tmp_path):
    (tmp_path / "a.py").write_text("1")
    assert task.fingerprint(str(tmp_path)) == {}
    assert task.fingerprint(str(tmp_path), {}) == {}


def test_only_the_end_of_a_huge_log_is_searched(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"a" * 100 + b"b" * 100)
    assert task.read_from(str(log), 150) == b"b" * 50
    assert task.read_from(str(log), 0, most=100) == b"b" * 100
    assert task.read_from(str(log), 150, most=10) == b"b" * 10
    assert task.read_from(str(tmp_path / "none"), 0) == b""


def test_a_preemption_at_the_start_of_an_attempt_belongs_to_it():
    now = "2026-01-01T10:00:00"
    assert task.is_preempted({"PreemptTime": now, "StartTime": now})
    assert not task.is_preempted({"StartTime": now}) and not task.is_preempted({})


# ---- requeue, with a stub of scontrol: the real one is in test_slurm_requeue.py ----------------------


@pytest.fixture
def controller(tmp_path, monkeypatch):
    """A `scontrol` that shows a state and takes or refuses a requeue; its calls."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(task.JobTask, "wait_for_slurm", lambda self, seconds: None)

    def _controller(facts, requeue=True):
        (tmp_path / "bin").mkdir(exist_ok=True)
        path = tmp_path / "bin" / "scontrol"
        body = f'[ "$1" = show ] && {{ echo "{facts}"; exit {0 if facts else 1}; }}; exit {0 if requeue else 1}'
        path.write_text(f"#!/bin/sh\necho $1 >> {tmp_path}/calls\n{body}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    monkeypatch.setattr(task, "time", type("Time", (), {"sleep": lambda _: None, "strftime": time.strftime}))
    return _controller, lambda: (tmp_path / "calls").read_text().split()


START = "StartTime=2026-01-01T10:00:00 PreemptTime="


@pytest.mark.parametrize(
    ("fields", "resumable", "limit", "requeued"),
    [
        (f"JobState=RUNNING Reason=None {START}None", True, -1, True),
        (f"JobState=RUNNING Reason=None {START}None", False, -1, False),
        (f"JobState=RUNNING Reason=None {START}2026-01-01T11:00:00", False, -1, True),
        (f"JobState=RUNNING Reason=None {START}2026-01-01T09:00:00", False, -1, False),
        (f"JobState=RUNNING Reason=None {START}2026-01-01T11:00:00", False, 0, False),
        (f"JobState=COMPLETING Reason=TimeLimit {START}None", True, -1, True),
        (f"JobState=TIMEOUT Reason=None {START}None", True, -1, True),
        (f"JobState=TIMEOUT Reason=None {START}None", False, -1, False),
        (f"JobState=CANCELLED Reason=None {START}None", True, -1, False),
    ],
)
def test_a_job_is_requeued_if_it_saved_or_is_preempted_and_was_not_cancelled(controller, fields, resumable, limit, requeued):  # fmt: skip
    make, calls = controller
    make(fields)
    result = {}
    task.JobTask("true", "slurm", requeue=limit).requeue(result, resumable)
    assert ("requeue" in calls()) == requeued
    assert "again" not in result


def test_a_node_without_a_working_scontrol_asks_the_workflow_to_submit_again(controller):
    make, calls = controller
    make("", requeue=False)
    result = {}
    task.JobTask("true", "slurm").requeue(result, True)
    assert result == {"again": True} and calls() == ["show", "requeue"] * 3


def test_a_stopped_job_is_not_requeued_if_slurm_does_not_answer(controller):
    make, calls = controller
    make("")
    job, result = task.JobTask("true", "slurm"), {}
    job.stop("SIGTERM received")
    job.requeue(result, True)
    assert calls() == ["show"] and result == {}
