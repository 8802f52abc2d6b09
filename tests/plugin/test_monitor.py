"""How the executor plugin watches its jobs, with a Slurm that is made up."""

import asyncio
import os
import pickle
import types

import pytest
from slurmlab import job

from snakemake_executor_plugin_submitit import ExecutorSettings, failure, slurm
from snakemake_executor_plugin_submitit.executor import Executor
from snakemake_executor_plugin_submitit.jobs import SubmittedJob
from snakemake_executor_plugin_submitit.request import JobKey, read_request

KEY = "smk-0123456789ab-0123456789ab-01234567"


class Scheduler:
    def __init__(self):
        self.done, self.failed = [], []

    def finish_callback(self, job):
        self.done.append(job)

    def error_callback(self, job):
        self.failed.append(job)


@pytest.fixture
def watcher(monkeypatch, tmp_path):
    """An executor with one job, number 7, and no polling thread."""
    made = object.__new__(Executor)
    made.prepare(ExecutorSettings(queue_interval=0.0, grace=0.0))
    made.workflow = types.SimpleNamespace(scheduler=Scheduler())
    messages = made.messages = []
    made.logger = types.SimpleNamespace(**dict.fromkeys(("info", "warning", "error"), messages.append))
    made.print_job_error = lambda *_, **__: None
    paths = types.SimpleNamespace(
        stdout=tmp_path / "7_0_log.out", result_pickle=tmp_path / "7.pkl", submitted_pickle=tmp_path / "s"
    )
    info = types.SimpleNamespace(job=job(runtime=10, mem_mb=100), external_jobid="7", aux={})
    live = SubmittedJob(info, read_request(info.job, made.settings), JobKey.find(KEY))
    live.handle, live.since = types.SimpleNamespace(job_id="7", paths=paths), 0.0
    info.aux["submitted"] = live
    made.submitted_jobs = {id(live): live}
    made.info, made.paths, made.calls = info, paths, 0
    monkeypatch.setattr(slurm, "post_mortem", lambda _: slurm.JobEnd(made.answer, "", "n1"))

    def queue():
        made.calls += 1
        return None if made.answer is None else {"7": slurm.QueueEntry(made.answer, "", None)}

    made.answer = "RUNNING"
    monkeypatch.setattr(slurm, "queue", queue)
    return made


def test_a_failure_is_reported_with_slurms_reason_once_it_is_known(watcher):
    watcher.settings.grace = 20.0
    watcher.paths.result_pickle.write_bytes(pickle.dumps(("success", {"code": 1})))
    watcher.answer = "COMPLETING"
    assert look(watcher) == [watcher.info]
    watcher.answer = "OUT_OF_MEMORY"
    assert look(watcher) == [] and "OUT_OF_MEMORY: its command failed" in watcher.messages[-1]


def test_result_is_found_in_a_folder_that_was_quiet(watcher, tmp_path):
    """A folder that has not changed is not searched again; one that has is."""
    watcher.settings.queue_interval = 60.0
    watcher.result_folders = {str(tmp_path)}
    os.utime(tmp_path, (1, 1))
    assert look(watcher) == [watcher.info] and watcher.unchanged is not None
    watcher.is_running = lambda _: pytest.fail("searched a folder that has not changed")
    assert look(watcher) == [watcher.info]
    del watcher.is_running
    watcher.paths.result_pickle.write_bytes(pickle.dumps(("success", {"code": 0})))
    assert look(watcher) == []


def look(executor, jobs=None):
    async def collect():
        return [info async for info in executor.check_active_jobs(jobs or [executor.info])]

    return asyncio.run(collect())


def test_a_preempted_or_requeued_job_is_alive(watcher):
    for state in ("RUNNING", "PREEMPTED", "PENDING", "RUNNING", "NODE_FAIL", "REQUEUED"):
        watcher.answer = state
        assert look(watcher) == [watcher.info], state
    watcher.paths.result_pickle.write_bytes(pickle.dumps(("success", {"code": 0})))
    assert look(watcher) == [] and watcher.workflow.scheduler.done == [watcher.info.job]


def test_death_without_a_result_is_reported_with_its_state(watcher):
    watcher.paths.stdout.write_text("last words\n")
    watcher.answer = "OUT_OF_MEMORY"
    assert look(watcher) == []
    assert watcher.workflow.scheduler.failed == [watcher.info.job]
    text = watcher.messages[-1]
    assert "OUT_OF_MEMORY on n1" in text and "mem_mb=100" in text and "last words" in text


def test_a_squeue_that_does_not_answer_ends_no_job(watcher):
    watcher.answer = None
    for _ in range(5):
        assert look(watcher) == [watcher.info]
    assert sum("squeue does not answer" in line for line in watcher.messages) == 1


def test_an_exception_while_polling_does_not_leave_the_workflow_waiting(watcher, monkeypatch):
    monkeypatch.setattr(watcher, "state_of", lambda _: 1 / 0)
    for _ in range(29):
        assert look(watcher) == [watcher.info]
    assert look(watcher) == [] and watcher.workflow.scheduler.failed == [watcher.info.job]


def test_exception_while_reporting_still_reaches_the_scheduler(watcher, monkeypatch):
    monkeypatch.setattr(failure, "describe", lambda *_: 1 / 0)
    watcher.paths.result_pickle.write_bytes(pickle.dumps(("success", {"code": 1})))
    assert look(watcher) == []
    assert watcher.workflow.scheduler.failed == [watcher.info.job]


def test_one_squeue_per_interval_whatever_the_number_of_jobs(watcher):
    watcher.settings.queue_interval = 60.0
    for _ in range(3):
        look(watcher, [watcher.info] * 200)
    assert watcher.calls == 1


def test_polling_slows_down_with_the_number_of_jobs(watcher):
    look(watcher)
    few = watcher.next_seconds_between_status_checks
    look(watcher, [watcher.info] * 20000)
    assert watcher.settings.poll <= few < watcher.next_seconds_between_status_checks <= 10


def test_polling_slows_down_when_nothing_happens(watcher):
    watcher.last_event -= 500
    look(watcher)
    assert watcher.next_seconds_between_status_checks == pytest.approx(5, abs=0.5)
    asyncio.run(anext(watcher.check_active_jobs([]), None))
    assert watcher.next_seconds_between_status_checks == 1
    watcher.paths.result_pickle.write_bytes(pickle.dumps(("success", {"code": 0})))
    look(watcher)
    assert watcher.next_seconds_between_status_checks < 1


def test_cancel_is_one_call_for_all_jobs(watcher, monkeypatch):
    calls = []
    monkeypatch.setattr(slurm, "output", lambda command, seconds=60: calls.append(command) or "")
    watcher.submitted_jobs = {
        i: SubmittedJob(watcher.info, None, None, types.SimpleNamespace(job_id=str(i))) for i in range(300)
    }
    watcher.cancel_jobs([])
    assert [len(c) for c in calls] == [301] and calls[0][0] == "scancel"


def test_jobs_can_be_left_in_the_queue(watcher, monkeypatch):
    monkeypatch.setattr(slurm, "cancel", lambda _: pytest.fail("cancelled"))
    watcher.settings.on_exit = "leave"
    watcher.cancel_jobs([])
    assert "Left in the queue: 7" in watcher.messages[-1]
