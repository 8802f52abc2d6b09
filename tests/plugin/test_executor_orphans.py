"""Jobs that an earlier workflow left in the queue, GPUs shared out on one machine, and failures to submit."""

import os
import pickle
import signal
import subprocess
import threading
import types

import pytest
from slurmlab import job
from snakemake_interface_common.exceptions import WorkflowError

from snakemake_executor_plugin_submitit import ExecutorSettings, backend, executor, slurm, task, watching
from snakemake_executor_plugin_submitit.executor import Executor
from snakemake_executor_plugin_submitit.keys import key_of
from snakemake_executor_plugin_submitit.request import request
from snakemake_executor_plugin_submitit.watching import PASSING_SECONDS


def make(tmp_path, **settings):
    """An executor without Snakemake around it; what it says is in `said`, jobs that failed in `failed`."""
    made = object.__new__(Executor)
    made._begin_watching(ExecutorSettings(**settings))
    made._orphans, made._code, made._copy, made._sharing = None, {}, None, threading.Lock()
    made.folder, made.said, made.failed, made.submitted = tmp_path / "submitit", [], [], []
    made.logger = types.SimpleNamespace(**dict.fromkeys(("info", "warning", "error"), made.said.append))
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
    one = backend.Live(types.SimpleNamespace(job=found), request(found, made.own), key_of(found))
    made._live[id(one)] = one
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
    "waits with older resources": ("PENDING", {"needs": "f" * 8}, None, ["5"], "waits with older resources: cancel"),
    "was made otherwise": ("RUNNING", {"how": "f" * 12}, None, ["5"], "from an older definition: cancelling it."),
    "is just ending": ("COMPLETING", {}, None, [], "is just ending: waiting for it."),
    "writes something else": ("RUNNING", {"what": "f" * 12}, None, [], ""),
    "has ended": ("FAILED", {}, None, [], ""),
}


@pytest.mark.parametrize("case", CASES)
def test_a_job_in_the_queue_that_makes_the_same_output(tmp_path, queue, case):
    state, parts, found, cancelled, words = CASES[case]
    made, wanted = make(tmp_path), a_job()
    key = with_other(key_of(wanted), **parts)
    queue.rows = {"5": slurm.Row(state, "", key), "6": slurm.Row("RUNNING", "", None)}
    assert made._find_orphan(live(made, wanted)) == found
    assert queue.cancelled == cancelled
    assert words in " ".join(made.said) and bool(words) == bool(made.said)


def test_one_job_is_taken_over_once_and_the_queue_is_asked_once(tmp_path, queue):
    made, wanted = make(tmp_path), a_job()
    queue.rows = {"5": slurm.Row("RUNNING", "", key_of(wanted))}
    assert [made._find_orphan(live(made, wanted)) for _ in range(3)] == ["5", None, None]
    assert queue.asked == 1


def test_a_silent_queue_submits_nothing_since_the_job_may_be_there(tmp_path, queue):
    made, wanted = make(tmp_path), a_job()
    queue.rows = None
    made.run_job(wanted)
    assert made.failed == [wanted] and not made._live and not made.submitted
    assert "could not be submitted: squeue does not answer" in made.said[-1]


def test_a_job_that_does_not_end_stops_the_second_writer(tmp_path, queue, monkeypatch):
    made, wanted = make(tmp_path), a_job()
    queue.rows = {"5": slurm.Row("RUNNING", "", with_other(key_of(wanted), how="f" * 12))}
    monkeypatch.setattr(slurm, "cancel", lambda ids: True)  # taken, and nothing happens
    with pytest.raises(WorkflowError, match="Slurm job 5 writes the same output and does not end; see `scontrol show"):
        made._find_orphan(live(made, wanted))
    assert queue.asked == 121


def test_a_job_that_was_taken_over_is_watched_under_its_number(tmp_path, queue):
    made, wanted = make(tmp_path), a_job()
    queue.rows = {"5": slurm.Row("RUNNING", "", key_of(wanted))}
    made.run_job(wanted)
    (info,) = made.submitted
    assert (info.external_jobid, info.aux["live"].id) == ("5", "5")
    assert info.aux["live"].result_file == str(made.folder / "train" / "5_0_result.pkl")
    assert made._folders == {str(made.folder / "train")}


@pytest.mark.parametrize(
    ("settings", "resources", "words"),
    [
        ({"cluster": "local"}, {"nodes": 2}, "rule train asks for nodes=2; one machine is one node."),
        ({"cluster": "local", "local_gpus": 1}, {"gpus_per_node": 2}, "asks for gpus_per_node=2; this machine has 1."),
        ({"cluster": "local"}, {"mem_mb": "much"}, "resource mem_mb: 'much'; allowed: whole numbers from 0."),
        ({"cluster": "slurm"}, {"slurm_extra": "--time=3"}, "--time is set by the executor itself"),
    ],
)
def test_what_cannot_be_submitted_is_that_jobs_error_and_the_workflow_goes_on(tmp_path, settings, resources, words):
    made, wanted = make(tmp_path, **settings), a_job(**resources)
    made.run_job(wanted)
    assert made.failed == [wanted] and not made._live and not made.submitted
    assert f"could not be submitted: {words}" in made.said[-1] or words in made.said[-1]
    assert made.said[-1].startswith("rule train (v=iha, seed=1) failed: ")


# ---- GPUs of one machine ---------------------------------------------------------------------------------------------


def test_local_jobs_never_share_a_gpu_and_wait_for_one(tmp_path):
    made = make(tmp_path, cluster="local", local_gpus=3)
    jobs = [live(made, a_job(gpus_per_node=n)) for n in (2, 1, 2, 1, 0)]
    assert [made._take_gpus(one) for one in jobs] == [True, True, False, False, True]
    assert [one.gpus for one in jobs] == [(0, 1), (2,), (), (), ()]
    made._live.pop(id(jobs[0]))
    assert made._take_gpus(jobs[2]) and jobs[2].gpus == (0, 1)
    assert not made._take_gpus(jobs[3])


def test_a_machine_without_gpus_runs_jobs_that_ask_for_them(tmp_path):
    made = make(tmp_path, cluster="local", local_gpus=0)
    assert made._take_gpus(live(made, a_job(gpus_per_node=8)))


def test_ctrl_c_tells_local_jobs_to_save_and_the_one_inside_this_process_to_stop(tmp_path):
    made = make(tmp_path, cluster="local")
    one, sleeper = live(made, a_job()), subprocess.Popen(["sleep", "60"])
    one.handle = types.SimpleNamespace(job_id=str(sleeper.pid))
    live(made, a_job())  # it still waits for a GPU: there is nothing to cancel
    made.cancel_jobs([])
    assert sleeper.wait(30) == -signal.SIGTERM
    made.own.cluster, one.work = "debug", task.Task("true", "debug")
    made.cancel_jobs([])
    assert one.work._stop == "the workflow was interrupted"


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
    one.info = types.SimpleNamespace(job=wanted, external_jobid="7", aux={"live": one})
    made.done = []
    made.report_job_success = made.done.append
    return made, one, paths


def test_a_saved_job_that_cannot_requeue_itself_is_submitted_again(watched, monkeypatch):
    made, one, paths = watched
    started = []
    monkeypatch.setattr(made, "_start", started.append)
    paths.result_pickle.write_bytes(pickle.dumps(("success", {"code": 1, "again": True, "resumable": True})))
    paths.stdout.write_text("log")
    assert made._look(one) is True
    assert started == [one] and not paths.result_pickle.exists() and paths.stdout.exists()
    assert not made.failed and "saved its state; submitting it again" in made.said[-1]


def test_files_that_changed_under_a_job_are_told_also_if_it_succeeded(watched):
    made, one, paths = watched
    paths.result_pickle.write_bytes(pickle.dumps(("success", {"code": 0, "drift": ["a.py", "b.py"]})))
    assert made._look(one) is False
    assert "ran with files changed since it was submitted: a.py, b.py" in made.said[-1]
    assert made.done == [one.info] and not paths.result_pickle.exists() and not made._live


def test_half_a_result_is_looked_at_again(watched):
    made, one, paths = watched
    whole = pickle.dumps(("success", {"code": 0}))
    paths.result_pickle.write_bytes(whole[:-4])
    assert made._goes_on(one.info) and one.errors == 1 and not made.failed
    paths.result_pickle.write_bytes(whole)
    assert not made._goes_on(one.info) and made.done == [one.info]


@pytest.mark.parametrize(("state", "patience"), [("PREEMPTED", PASSING_SECONDS), ("FAILED", 20.0)])
def test_a_state_that_passes_gets_time_to_pass(watched, monkeypatch, state, patience):
    made, one, _ = watched
    made.own.grace, made._rows, made._rows_at = 20.0, {"7": slurm.Row(state, "", None)}, 2e9
    monkeypatch.setattr(slurm, "post_mortem", lambda _: slurm.Death(state, "", ""))
    one.since, one.suspect, now = 0.0, 1e9, [1e9 + patience - 1]
    monkeypatch.setattr(watching, "time", types.SimpleNamespace(time=lambda: now[0], monotonic=lambda: 0.0))
    assert made._look(one) is True and not made.failed
    now[0] += 1
    assert made._look(one) is False
    assert made.failed == [one.info.job] and f"Slurm says {state}, and there is no result" in made.said[-1]


def test_a_queue_that_was_asked_before_the_submission_says_nothing_of_the_job(watched):
    made, one, _ = watched
    made._rows, made._rows_at, one.since = {}, 10.0, 11.0
    assert made._look(one) is True and one.suspect is None
    made._rows_at = 12.0
    made.own.grace = 60.0
    assert made._look(one) is True and one.suspect is not None


def test_a_local_process_that_is_gone_without_a_result_is_a_failure_with_its_last_lines(watched):
    made, one, paths = watched
    made.own.cluster = "local"
    assert made._look(one) is True
    paths.stdout.write_text("last words\n")
    one.handle.state = "FAILED"
    one.since = 0.0
    assert made._look(one) is False
    assert "its process ended without a result (killed, or out of memory)" in made.said[-1]
    assert "last words" in made.said[-1]


@pytest.mark.parametrize(
    ("log", "note", "words"),
    [
        ("ok\n", {"note": "code changed since submission"}, "failed: code changed since submission, on n1 [job 7]"),
        ("ok\n", {"stop": "SIGTERM received"}, "failed: SIGTERM received, on n1 [job 7]"),
        ("ok\n", {}, "failed: its command failed, on n1 [job 7]"),
        (
            "<Signals.SIGKILL: 9>\n",
            {},
            "its process was killed, most often for want of memory: it asked for mem_mb=100",
        ),
    ],
)
def test_a_failed_command_is_told_with_what_is_known_of_it(watched, log, note, words):
    made, one, paths = watched
    made.own.cluster = "local"
    paths.stdout.write_text(log)
    paths.result_pickle.write_bytes(pickle.dumps(("success", {"code": 1, "node": "n1", **note})))
    assert made._look(one) is False
    assert words in made.said[-1] and made.failed == [one.info.job]


def test_a_folder_of_results_that_cannot_be_told_quiet_is_searched(watched, tmp_path):
    made, _, _ = watched
    made._folders = {str(tmp_path / "none")}
    assert made._still(1) is None
    made._folders = {str(tmp_path)}
    assert made._still(1) is None, "it changed a moment ago"
    os.utime(tmp_path, (1, 1))
    assert made._still(1) == made._still(1) is not None
    assert made._still(1) != made._still(2)
    made.own.cluster = "local"
    assert made._still(1) is None
