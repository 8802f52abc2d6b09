"""Jobs that an earlier workflow left in the queue, GPUs shared out on one machine, and failures to submit."""

import os
import pickle
import signal
import subprocess
import types

import pytest
from slurmlab import job
from snakemake_interface_common.exceptions import WorkflowError

from snakemake_executor_plugin_submitit import ExecutorSettings, executor, monitor, slurm, task
from snakemake_executor_plugin_submitit.executor import Executor
from snakemake_executor_plugin_submitit.jobs import SubmittedJob
from snakemake_executor_plugin_submitit.monitor import PASSING_SECONDS
from snakemake_executor_plugin_submitit.request import key_of, read_request


def make(tmp_path, **settings):
    """An executor without Snakemake around it; its messages are in `messages`, jobs that failed in `failed`."""
    made = object.__new__(Executor)
    made.prepare(ExecutorSettings(**settings))
    made.code = {}
    made.folder, made.messages, made.failed, made.submitted = tmp_path / "submitit", [], [], []
    made.logger = types.SimpleNamespace(**dict.fromkeys(("info", "warning", "error"), made.messages.append))
    scheduler = types.SimpleNamespace(error_callback=made.failed.append)
    made.workflow = types.SimpleNamespace(scheduler=scheduler, main_snakefile=str(tmp_path / "Snakefile"))
    made.print_job_error = lambda *_, **__: None
    made.report_job_submission = made.submitted.append
    made.format_job_exec = lambda _: "true"
    return made


def a_job(**resources):
    found = job(**resources)
    found.output, found.input, found.params = ["a.out"], [], {}
    return found


def live(made, found):
    one = SubmittedJob(types.SimpleNamespace(job=found), read_request(found, made.settings), key_of(found))
    made.submitted_jobs[id(one)] = one
    return one


@pytest.fixture
def queue(monkeypatch):
    """What squeue answers, what was cancelled; a job that is cancelled, or was ending, is gone at the next look."""
    state = types.SimpleNamespace(rows={}, cancelled=[], asked=0)

    def look():
        state.asked += 1
        rows, ending = state.rows, [i for i, row in (state.rows or {}).items() if row.state == "COMPLETING"]
        if rows is not None:
            state.rows = {i: row for i, row in rows.items() if i not in (*state.cancelled, *ending)}
            return {i: row for i, row in rows.items() if i not in state.cancelled}
        return None

    monkeypatch.setattr(slurm, "queue", look)
    monkeypatch.setattr(slurm, "cancel", lambda ids: state.cancelled.extend(ids) or True)
    monkeypatch.setattr(executor, "time", types.SimpleNamespace(sleep=lambda _: None, monotonic=lambda: 0.0))
    return state


def with_other(key, **parts):
    return type(key)(**{**vars(key), **parts})


CASES = {
    "runs as wanted": ("RUNNING", {}, "5", [], "is RUNNING: attached to it, nothing submitted."),
    "waits as wanted": ("PENDING", {}, "5", [], "is PENDING: attached to it, nothing submitted."),
    "runs with older resources": ("RUNNING", {"needs": "f" * 8}, "5", [], "attached to it"),
    "waits with older resources": (
        "PENDING",
        {"needs": "f" * 8},
        None,
        ["5"],
        "is pending with older resources: cancel",
    ),
    "was made otherwise": ("RUNNING", {"how": "f" * 12}, None, ["5"], "from an older definition: cancelling it."),
    "is just ending": ("COMPLETING", {}, None, [], "is completing: waiting for it."),
    "writes something else": ("RUNNING", {"what": "f" * 12}, None, [], ""),
    "has ended": ("FAILED", {}, None, [], ""),
}


@pytest.mark.parametrize("case", CASES)
def test_what_happens_to_a_queued_job_with_the_same_output(tmp_path, queue, case):
    state, parts, found, cancelled, words = CASES[case]
    made, wanted = make(tmp_path), a_job()
    key = with_other(key_of(wanted), **parts)
    queue.rows = {"5": slurm.QueueEntry(state, "", key), "6": slurm.QueueEntry("RUNNING", "", None)}
    assert made.find_orphan(live(made, wanted)) == found
    assert queue.cancelled == cancelled
    assert words in " ".join(made.messages) and bool(words) == bool(made.messages)


def test_a_job_is_attached_to_once_and_the_queue_is_read_once(tmp_path, queue):
    made, wanted = make(tmp_path), a_job()
    queue.rows = {"5": slurm.QueueEntry("RUNNING", "", key_of(wanted))}
    assert [made.find_orphan(live(made, wanted)) for _ in range(3)] == ["5", None, None]
    assert queue.asked == 1


def test_nothing_is_submitted_if_the_queue_cannot_be_read(tmp_path, queue):
    made, wanted = make(tmp_path), a_job()
    queue.rows = None
    made.run_job(wanted)
    assert made.failed == [wanted] and not made.submitted_jobs and not made.submitted
    assert "could not be submitted: squeue does not answer" in made.messages[-1]


def test_a_job_that_does_not_end_stops_the_second_writer(tmp_path, queue, monkeypatch):
    made, wanted = make(tmp_path), a_job()
    queue.rows = {"5": slurm.QueueEntry("RUNNING", "", with_other(key_of(wanted), how="f" * 12))}
    monkeypatch.setattr(slurm, "cancel", lambda ids: True)  # taken, and nothing happens
    with pytest.raises(WorkflowError, match="Slurm job 5 writes the same output and does not end; see `scontrol show"):
        made.find_orphan(live(made, wanted))
    assert queue.asked == 121


def test_an_attached_job_is_monitored_under_its_id(tmp_path, queue):
    made, wanted = make(tmp_path), a_job()
    queue.rows = {"5": slurm.QueueEntry("RUNNING", "", key_of(wanted))}
    made.run_job(wanted)
    (info,) = made.submitted
    assert (info.external_jobid, info.aux["submitted"].id) == ("5", "5")
    assert info.aux["submitted"].result_file == str(made.folder / "train" / "5_0_result.pkl")
    assert made.result_folders == {str(made.folder / "train")}


@pytest.mark.parametrize(
    ("settings", "resources", "words"),
    [
        ({"cluster": "local"}, {"nodes": 2}, "rule train requests nodes=2; one machine is one node."),
        ({"cluster": "local", "local_gpus": 1}, {"gpus_per_node": 2}, "requests gpus_per_node=2; this machine has 1."),
        ({"cluster": "local"}, {"mem_mb": "much"}, "resource mem_mb: 'much'; allowed: whole numbers from 0."),
        ({"cluster": "slurm"}, {"slurm_extra": "--time=3"}, "--time is set by the executor itself"),
    ],
)
def test_what_cannot_be_submitted_is_that_jobs_error_and_the_workflow_goes_on(tmp_path, settings, resources, words):
    made, wanted = make(tmp_path, **settings), a_job(**resources)
    made.run_job(wanted)
    assert made.failed == [wanted] and not made.submitted_jobs and not made.submitted
    assert f"could not be submitted: {words}" in made.messages[-1] or words in made.messages[-1]
    assert made.messages[-1].startswith("rule train (v=iha, seed=1) failed: ")


# ---- GPUs of one machine ---------------------------------------------------------------------------------------------


def test_local_jobs_never_share_a_gpu_and_wait_for_one(tmp_path):
    made = make(tmp_path, cluster="local", local_gpus=3)
    jobs = [live(made, a_job(gpus_per_node=n)) for n in (2, 1, 2, 1, 0)]
    assert [made.take_gpus(one) for one in jobs] == [True, True, False, False, True]
    assert [one.gpus for one in jobs] == [(0, 1), (2,), (), (), ()]
    made.submitted_jobs.pop(id(jobs[0]))
    assert made.take_gpus(jobs[2]) and jobs[2].gpus == (0, 1)
    assert not made.take_gpus(jobs[3])


def test_a_machine_without_gpus_runs_jobs_that_ask_for_them(tmp_path):
    made = make(tmp_path, cluster="local", local_gpus=0)
    assert made.take_gpus(live(made, a_job(gpus_per_node=8)))


def test_ctrl_c_lets_local_jobs_save_and_stops_the_one_in_this_process(tmp_path):
    made = make(tmp_path, cluster="local")
    one, sleeper = live(made, a_job()), subprocess.Popen(["sleep", "60"])
    one.handle = types.SimpleNamespace(job_id=str(sleeper.pid))
    live(made, a_job())  # it still waits for a GPU: there is nothing to cancel
    made.cancel_jobs([])
    assert sleeper.wait(30) == -signal.SIGTERM
    made.settings.cluster, one.task = "debug", task.JobTask("true", "debug")
    made.cancel_jobs([])
    assert one.task.stop_reason == "the workflow was interrupted"


# ---- what becomes of watched jobs ------------------------------------------------------------------------------------


@pytest.fixture
def watched(tmp_path):
    """A made-up Slurm job, number 7, with a result file to write."""
    made, wanted = make(tmp_path, grace=0.0), a_job(mem_mb=100, runtime=10)
    paths = types.SimpleNamespace(
        stdout=tmp_path / "7_0_log.out", result_pickle=tmp_path / "7.pkl", submitted_pickle=tmp_path / "s"
    )
    one = live(made, wanted)
    one.handle = types.SimpleNamespace(job_id="7", paths=paths, state="RUNNING")
    one.info = types.SimpleNamespace(job=wanted, external_jobid="7", aux={"submitted": one})
    made.done = []
    made.report_job_success = made.done.append
    return made, one, paths


def test_a_saved_job_that_cannot_requeue_itself_is_submitted_again(watched, monkeypatch):
    made, one, paths = watched
    started = []
    monkeypatch.setattr(made, "submit", started.append)
    paths.result_pickle.write_bytes(pickle.dumps(("success", {"code": 1, "again": True, "resumable": True})))
    paths.stdout.write_text("log")
    assert made.poll(one) is True
    assert started == [one] and not paths.result_pickle.exists() and paths.stdout.exists()
    assert not made.failed and "saved its state; submitting it again" in made.messages[-1]


def test_changed_files_are_reported_also_if_the_job_succeeded(watched):
    made, one, paths = watched
    paths.result_pickle.write_bytes(pickle.dumps(("success", {"code": 0, "drift": ["a.py", "b.py"]})))
    assert made.poll(one) is False
    assert "ran with files changed since it was submitted: a.py, b.py" in made.messages[-1]
    assert made.done == [one.info] and not paths.result_pickle.exists() and not made.submitted_jobs


def test_half_a_result_is_read_again(watched):
    made, one, paths = watched
    whole = pickle.dumps(("success", {"code": 0}))
    paths.result_pickle.write_bytes(whole[:-4])
    assert made.is_running(one.info) and one.errors == 1 and not made.failed
    paths.result_pickle.write_bytes(whole)
    assert not made.is_running(one.info) and made.done == [one.info]


@pytest.mark.parametrize(("state", "patience"), [("PREEMPTED", PASSING_SECONDS), ("FAILED", 20.0)])
def test_a_state_that_passes_gets_time_to_pass(watched, monkeypatch, state, patience):
    made, one, _ = watched
    made.settings.grace, made.queue, made.queue_time = 20.0, {"7": slurm.QueueEntry(state, "", None)}, 2e9
    monkeypatch.setattr(slurm, "post_mortem", lambda _: slurm.JobEnd(state, "", ""))
    one.since, one.suspect, now = 0.0, 1e9, [1e9 + patience - 1]
    monkeypatch.setattr(monitor, "time", types.SimpleNamespace(time=lambda: now[0], monotonic=lambda: 0.0))
    assert made.poll(one) is True and not made.failed
    now[0] += 1
    assert made.poll(one) is False
    assert made.failed == [one.info.job] and f"Slurm reports {state}, and there is no result" in made.messages[-1]


def test_a_queue_read_before_the_submission_does_not_count(watched):
    made, one, _ = watched
    made.queue, made.queue_time, one.since = {}, 10.0, 11.0
    assert made.poll(one) is True and one.suspect is None
    made.queue_time = 12.0
    made.settings.grace = 60.0
    assert made.poll(one) is True and one.suspect is not None


def test_a_local_process_that_is_gone_without_a_result_is_a_failure_with_its_last_lines(watched):
    made, one, paths = watched
    made.settings.cluster = "local"
    assert made.poll(one) is True
    paths.stdout.write_text("last words\n")
    one.handle.state = "FAILED"
    one.since = 0.0
    assert made.poll(one) is False
    assert "its process ended without a result (killed, or out of memory)" in made.messages[-1]
    assert "last words" in made.messages[-1]


@pytest.mark.parametrize(
    ("log", "note", "words"),
    [
        ("ok\n", {"note": "code changed since submission"}, "failed: code changed since submission, on n1 [job 7]"),
        ("ok\n", {"stop": "SIGTERM received"}, "failed: SIGTERM received, on n1 [job 7]"),
        ("ok\n", {}, "failed: its command failed, on n1 [job 7]"),
        (
            "<Signals.SIGKILL: 9>\n",
            {},
            "its process was killed, most often for lack of memory: it requested mem_mb=100",
        ),
    ],
)
def test_a_failed_command_is_reported_with_what_is_known(watched, log, note, words):
    made, one, paths = watched
    made.settings.cluster = "local"
    paths.stdout.write_text(log)
    paths.result_pickle.write_bytes(pickle.dumps(("success", {"code": 1, "node": "n1", **note})))
    assert made.poll(one) is False
    assert words in made.messages[-1] and made.failed == [one.info.job]


def test_a_result_folder_that_may_have_changed_is_searched(watched, tmp_path):
    made, _, _ = watched
    made.result_folders = {str(tmp_path / "none")}
    assert made.quiet_state(1) is None
    made.result_folders = {str(tmp_path)}
    assert made.quiet_state(1) is None, "it changed a moment ago"
    os.utime(tmp_path, (1, 1))
    assert made.quiet_state(1) == made.quiet_state(1) is not None
    assert made.quiet_state(1) != made.quiet_state(2)
    made.settings.cluster = "local"
    assert made.quiet_state(1) is None
