"""Slurm's commands and their answers."""

import os

import pytest

from snakemake_executor_plugin_submitit import slurm, task
from snakemake_executor_plugin_submitit.request import JobKey

KEY = "smk-0123456789ab-0123456789ab-01234567"


def test_key_is_found_in_a_comment_and_in_a_name():
    rows = slurm.parse_queue(
        f"12|RUNNING|None|train.iha|{KEY}\n13|PENDING|Resources|train-{KEY}|(null)\n14|FAILED|x|y|z"
    )
    assert [str(rows[i].key) for i in ("12", "13")] == [KEY, KEY] and rows["14"].key is None
    assert rows["13"].state == "PENDING"
    assert JobKey.find("smk-xyz") is None


def test_submission_does_not_see_an_enclosing_allocation(monkeypatch):
    monkeypatch.setenv("SLURM_CONF", "/x")
    for name in (
        "SLURM_JOB_ID",
        "SLURM_CPU_BIND",
        "PMIX_RANK",
        "SBATCH_MEM_BIND",
        "CUDA_VISIBLE_DEVICES",
        "SUBMITIT_FOLDER",
    ):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("SBATCH_ACCOUNT", "lab")
    with slurm.outside_of_job():
        inside = set(os.environ)
    assert {n for n in inside if n.startswith(("SLURM", "PMI", "SUBMITIT"))} == {"SLURM_CONF"}
    assert "SBATCH_ACCOUNT" in inside and not {"SBATCH_MEM_BIND", "CUDA_VISIBLE_DEVICES"} & inside
    assert os.environ["SLURM_CPU_BIND"] == "1"


def program(folder, name, body, monkeypatch):
    """A command of that name, first on PATH; it notes its arguments."""
    path = folder / name
    path.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$*\" >> {folder}/{name}.calls\n{body}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return lambda: (folder / f"{name}.calls").read_text().splitlines()


def test_ids_are_cancelled_in_chunks_and_a_refused_chunk_does_not_save_the_others(tmp_path, monkeypatch):
    calls = program(tmp_path, "scancel", '[ "$1" != 0 ]', monkeypatch)
    assert slurm.cancel([]) and not list(tmp_path.glob("*.calls"))
    assert slurm.cancel([str(i) for i in range(1, 501)])
    assert not slurm.cancel([str(i) for i in range(1001)])
    assert [len(call.split()) for call in calls()] == [500, 500, 500, 1]


@pytest.mark.parametrize("command", [["false"], ["/nowhere/x"], ["sleep", "60"]])
def test_a_command_that_fails_hangs_or_is_missing_has_no_output(command):
    assert task.output(command, 0.2) is None


def test_output_that_is_not_utf_8_is_read():
    assert task.output(["printf", r"a\377b"]) == r"a\xffb"


SHOWN = (
    "JobId=9 JobName=train UserId=me(1) JobState=%s Reason=%s Dependency=(null) StartTime=2026-01-01T10:00:00 "
    "ReqNodeList=(null) ExcNodeList=n7 NodeList=%s BatchHost=%s NumNodes=2"
)


@pytest.mark.parametrize(
    ("fields", "death"),
    [
        (("FAILED", "NonZeroExitCode", "n[1-2]", "n1"), slurm.JobEnd("FAILED", "NonZeroExitCode", "n1")),
        (("NODE_FAIL", "None", "n[1-2]", "(null)"), slurm.JobEnd("NODE_FAIL", "", "n[1-2]")),
        (("PENDING", "Resources", "(null)", ""), slurm.JobEnd("PENDING", "Resources", "")),
    ],
)
def test_the_controllers_record_of_a_job_is_read(tmp_path, monkeypatch, fields, death):
    program(tmp_path, "scontrol", f"echo '{SHOWN % fields}'", monkeypatch)
    assert slurm.post_mortem("9") == death


def test_accounting_is_asked_for_a_job_that_the_controller_has_forgotten(tmp_path, monkeypatch):
    program(tmp_path, "scontrol", "exit 1", monkeypatch)
    calls = program(tmp_path, "sacct", "echo '9|TIMEOUT|None|n3'", monkeypatch)
    assert slurm.post_mortem("9") == slurm.JobEnd("TIMEOUT", "", "n3")
    assert calls() == ["-n -P -j 9 -o JobID,State,Reason,NodeList"]


@pytest.mark.parametrize("text", ["", "\n\n", "slurm_load_jobs error: x\n"])
def test_a_queue_without_jobs_is_empty(text):
    assert slurm.parse_queue(text) == {}


def test_only_this_users_jobs_are_asked_for_in_one_call(tmp_path, monkeypatch):
    key = JobKey("0" * 12, "1" * 12, "2" * 8)
    calls = program(tmp_path, "squeue", f"echo '5|RUNNING|None|a|b|{key}'", monkeypatch)
    assert slurm.queue() == {"5": slurm.QueueEntry("RUNNING", "None", key)}
    assert calls() == [f"-h -t all -u {os.getuid()} -o %i|%T|%r|%j|%k"]
    program(tmp_path, "squeue", "exit 1", monkeypatch)
    assert slurm.queue() is None


#: Rows of `sacct -n -P -o JobID,State,Reason,NodeList` (Slurm 22.05 with slurmdbd).
ACCOUNTING = {
    "COMPLETED": "9|COMPLETED|None|n1\n9.batch|COMPLETED||n1\n",
    "CANCELLED": "9|CANCELLED by 0|None|n1\n9.batch|CANCELLED||n1\n",
    "TIMEOUT": "9|TIMEOUT|None|n[1-2]\n9.batch|CANCELLED||n1\n9.0|CANCELLED by 0||n[1-2]\n",
    "OUT_OF_MEMORY": "9|FAILED|None|n1\n9.batch|FAILED||n1\n9.0|OUT_OF_MEMORY||n1\n",
    "NODE_FAIL": "9|NODE_FAIL|NodeDown|n2\n",
    "GONE": "Slurm accounting storage is disabled\n",
}


@pytest.mark.parametrize("state", ACCOUNTING)
def test_accounting_is_read(state):
    found = slurm.parse_accounting(ACCOUNTING[state])
    assert found.state == state
    assert found.node == {"TIMEOUT": "n[1-2]", "NODE_FAIL": "n2", "GONE": ""}.get(state, "n1")
    assert found.reason == {"NODE_FAIL": "NodeDown"}.get(state, "")


def test_without_accounting_and_controller_a_job_is_gone(monkeypatch):
    monkeypatch.setattr(slurm, "output", lambda *_: None)
    assert slurm.post_mortem("7") == slurm.JobEnd("GONE")


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("30:00", 30), ("2:00:00", 120), ("7-00:00:00", 10_080), ("1-02:03:04", 1563), ("infinite", None), ("n/a", None)],
)
def test_times_of_slurm_are_minutes(text, minutes):
    assert slurm.parse_minutes(text) == minutes
