"""Submission of jobs, with stubs of Slurm's commands, and their results."""

import os
import pickle
import time
import types

import pytest
from slurmlab import job
from snakemake_interface_common.exceptions import WorkflowError

from snakemake_executor_plugin_submitit import ExecutorSettings, jobs, slurm, task
from snakemake_executor_plugin_submitit.jobs import SubmittedJob
from snakemake_executor_plugin_submitit.request import JobKey, read_request


def live(tmp_path, **resources):
    wanted = read_request(job(**resources), ExecutorSettings())
    paths = types.SimpleNamespace(
        result_pickle=tmp_path / "7_result.pkl", submitted_pickle=tmp_path / "7.pkl", stdout=tmp_path / "7.out"
    )
    handle = types.SimpleNamespace(job_id="7", paths=paths)
    return SubmittedJob(None, wanted, JobKey("0" * 12, "1" * 12, "2" * 8), handle)


def test_an_exception_in_a_job_is_a_failure_with_its_last_line(tmp_path):
    found = live(tmp_path)
    found.handle.paths.result_pickle.write_bytes(pickle.dumps(("error", "Traceback ...\n  x\nOSError: disk\n\n")))
    assert jobs.read_result(found) == {"code": 1, "note": "OSError: disk"}
    found.handle.paths.result_pickle.write_bytes(pickle.dumps(("success", {"code": 0})))
    assert jobs.read_result(found) == {"code": 0}


def test_files_of_a_running_job_are_removed_and_its_log_is_kept(tmp_path):
    found = live(tmp_path)
    for path in vars(found.handle.paths).values():
        path.write_text("x")
    jobs.clean_up(found)
    jobs.clean_up(found)
    assert [path.name for path in tmp_path.iterdir()] == ["7.out"]


def test_a_job_that_waits_for_a_gpu_has_neither_number_nor_log():
    waiting = SubmittedJob(None, None, None)
    assert (waiting.id, waiting.log) == ("waiting", None)


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Slurm's commands as scripts: a real controller does not lose its answers on request."""
    slurm.partition_limit.cache_clear()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    slept = []
    monkeypatch.setattr(jobs, "time", types.SimpleNamespace(time=time.time, sleep=slept.append))

    def _commands(**bodies):
        for name, body in bodies.items():
            path = tmp_path / name
            path.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$*\" >> {tmp_path}/{name}.calls\n{body}\n")
            path.chmod(0o755)

    def calls(name):
        path = tmp_path / f"{name}.calls"
        return path.read_text().splitlines() if path.exists() else []

    return _commands, calls, slept


TAKEN = 'if [ -e {0}/asked ]; then echo "Submitted batch job 12"; else touch {0}/asked; echo "sbatch: error: {1}" >&2; exit 1; fi'  # fmt: skip


def submit(tmp_path):
    found = live(tmp_path, runtime=10)
    jobs.submit(found, task.JobTask("true", "slurm"), tmp_path / "rule", ExecutorSettings())
    return found


@pytest.mark.parametrize("words", ["Batch job submission failed: Socket timed out on send/recv operation",
                                   "Unable to contact slurm controller (connect failure)"])  # fmt: skip
def test_a_submission_whose_answer_was_lost_is_cancelled_before_the_next_attempt(tmp_path, commands, words):
    """Else two jobs would write the same files: the controller may have taken the first."""
    make, calls, slept = commands
    key = JobKey("0" * 12, "1" * 12, "2" * 8)
    other = JobKey("3" * 12, "1" * 12, "2" * 8)
    rows = f"11|PENDING|x|train|{key}\n10|RUNNING|x|train|{other}\n9|FAILED|x|train|{key}"
    make(sbatch=TAKEN.format(tmp_path, words), squeue=f"printf '{rows}\\n'", scancel="")
    found = submit(tmp_path)
    assert (found.id, slept) == ("12", [5])
    assert calls("scancel") == ["11"], "its own that is alive, and no other"
    assert len(calls("sbatch")) == 2
    assert str(found.log) == str(tmp_path / "rule" / "12_0_log.out")


def test_a_submission_that_is_refused_is_not_repeated_and_keeps_slurms_words(tmp_path, commands):
    make, calls, slept = commands
    make(sbatch='echo "noise" >&2; echo "sbatch: error: invalid partition specified: x" >&2; exit 1')
    with pytest.raises(WorkflowError) as caught:
        submit(tmp_path)
    assert str(caught.value) == "sbatch: error: invalid partition specified: x"
    assert (len(calls("sbatch")), slept) == (1, [])


def test_a_controller_that_does_not_answer_is_asked_five_times(tmp_path, commands):
    make, calls, slept = commands
    make(sbatch='echo "sbatch: error: Unable to contact slurm controller" >&2; exit 1', squeue="exit 1", scancel="")
    with pytest.raises(WorkflowError, match="Unable to contact slurm controller"):
        submit(tmp_path)
    assert (len(calls("sbatch")), slept, calls("scancel")) == (5, [5, 15, 30, 60], [])


def test_the_submission_file_has_what_was_requested(tmp_path, commands):
    make, _, _ = commands
    make(sbatch=f'cp "$2" {tmp_path}/seen; echo "Submitted batch job 12"')
    found = submit(tmp_path)
    text = (tmp_path / "seen").read_text()
    for line in ("--time=10", "--nodes=1", "--cpus-per-task=4", f"--comment={found.key}", "--signal=B:USR2@120"):
        assert f"#SBATCH {line}\n" in text
    assert "\nexec " in text, "Slurm signals the batch process, which must be Python itself"
    assert not list((tmp_path / "rule").glob(".submission_file_*"))


@pytest.mark.parametrize(
    ("answer", "job_id"),
    [
        ("12", "12"),
        ("12;cluster", "12"),
        ("Submitted batch job 12", "12"),
        ("Welcome to job 7 of the week, 2026\n99 nodes are free\n12", "12"),
        ("3\nSubmitted batch job 12 on cluster lab", "12"),
        ("12\nquota: 80 % of 100 TB", "12"),
    ],
)
def test_the_id_is_read_from_whatever_a_sites_wrapper_prints(tmp_path, commands, answer, job_id):
    make, calls, _ = commands
    make(sbatch=f"printf '{answer.replace('%', '%%')}\\n'")
    assert submit(tmp_path).id == job_id
    assert calls("sbatch")[0].startswith("--parsable ")


def test_an_answer_without_an_id_is_an_error_with_the_answer(tmp_path, commands):
    make, _, _ = commands
    make(sbatch="echo welcome")
    with pytest.raises(WorkflowError, match="'welcome'"):
        submit(tmp_path)


SINFO = "printf 'short*|2:00:00\\nlong|10-00:00:00\\nall|infinite\\n'"


@pytest.mark.parametrize(
    ("partition", "minutes", "limit"),
    [("", 120, None), ("", 121, 120), ("long", 14_400, None), ("long", 259_200, 14_400), ("all", 259_200, None), ("other", 9**9, None)],
)  # fmt: skip
def test_a_runtime_over_the_partitions_limit_is_refused(tmp_path, commands, partition, minutes, limit):
    make, calls, _ = commands
    make(sbatch="echo 12", sinfo=SINFO)
    found = live(tmp_path, runtime=minutes, slurm_partition=partition)
    if limit is None:
        jobs.submit(found, task.JobTask("true", "slurm"), tmp_path / "rule", ExecutorSettings())
        assert found.id == "12"
    else:
        with pytest.raises(WorkflowError) as caught:
            jobs.submit(found, task.JobTask("true", "slurm"), tmp_path / "rule", ExecutorSettings())
        assert f"runtime: {minutes}" in str(caught.value) and f" {limit}," in str(caught.value)
        assert calls("sbatch") == []
