"""What a user reads when a job fails: its name, what helps, and the lines of the log that tells most."""

import os
import pickle
import time
import types

import pytest
from slurmlab import job
from snakemake_interface_common.exceptions import WorkflowError

from snakemake_executor_plugin_submitit import ExecutorSettings, backend, failure, slurm, task
from snakemake_executor_plugin_submitit.keys import Key
from snakemake_executor_plugin_submitit.request import request


def group(*jobs):
    return types.SimpleNamespace(jobs=jobs, is_group=lambda: True, groupid="g1")


def test_a_message_names_rule_wildcards_end_help_and_log(tmp_path):
    log = tmp_path / "a.log"
    log.write_text("one\ntwo\n")
    text = failure.describe(job(), "job 7", "it broke", "mend it", log)
    assert text.splitlines() == [
        "rule train (v=iha, seed=1) failed: it broke [job 7]",
        "  what helps: mend it",
        f"  last lines of {log}:",
        "    one",
        "    two",
    ]
    assert failure.describe(job(), "job 7", "it broke", "", None) == text.splitlines()[0]


def test_a_group_is_named_with_each_of_its_rules_once():
    a, b = job(), job()
    b.rule.name, b.wildcards_dict = "evaluate", {}
    assert failure.name(group(a, a, b)) == "group g1 (evaluate, train)"
    assert failure.name(b) == "rule evaluate"


def test_every_state_that_helps_can_be_told_with_the_jobs_own_numbers():
    asked = job(mem_mb=1234, runtime=56)
    for state in failure.ADVICE:
        text = failure.advice_for(state, asked, 300)
        assert text and "{" not in text
    assert "mem_mb=1234" in failure.advice_for("KILLED", asked, 300)
    timeout = failure.advice_for("TIMEOUT", asked, 300)
    assert "runtime=56 minutes" in timeout and "300 s before" in timeout
    assert failure.advice_for("SPECIAL_EXIT", asked, 300) == ""


@pytest.mark.parametrize(
    ("words", "helps"),
    [
        ("sbatch: error: Invalid qos specification", "submitit-qos"),
        ("Requested node configuration is not available", "lower threads, mem_mb"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "lower runtime"),
        ("More processors requested than permitted", "lower threads, nodes"),
        ("Invalid wckey specification", "submitit-wckey"),
        ("Node count specification invalid", ""),
    ],
)
def test_what_helps_against_a_refusal_whatever_its_case(words, helps):
    for text in (words, words.upper()):
        assert helps in failure.refusal(text)
        assert bool(helps) == bool(failure.refusal(text))


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\n\n", []),
        (b"one", ["one"]),
        (b"one\r\ntwo\r\n\n\n", ["one", "two"]),
        (b"10%\r20%\r30%", ["10%", "20%", "30%"]),
        ("é日本\n".encode(), ["é日本"]),
        (b"a\xffb", ["a�b"]),
        (b"\n".join(b"%d" % i for i in range(100)), [str(i) for i in range(85, 100)]),
        (b"x" * 5000, ["x" * 300]),
        (b"\n".join([b"y" * 1000] * 40), ["y" * 300] * 15),
    ],
)
def test_the_end_of_a_log_is_short_and_readable_whatever_is_in_it(tmp_path, content, lines):
    log = tmp_path / "log"
    log.write_bytes(content)
    assert failure.tail(log) == lines


def test_a_huge_log_is_not_read_whole(tmp_path):
    log = tmp_path / "log"
    with log.open("wb") as out:
        out.truncate(1 << 40)  # a hole of a terabyte
        out.seek(0, 2)
        out.write(b"\nlast words\n")
    assert failure.tail(log)[-1] == "last words"


def test_a_log_that_cannot_be_read_says_so(tmp_path):
    (line,) = failure.tail(tmp_path / "none")
    assert line.startswith("(not readable: ") and "No such file" in line


@pytest.mark.parametrize(
    ("text", "killed"),
    [
        ("subprocess died with <Signals.SIGKILL: 9>.", True),
        ("returned non-zero exit status 137.", True),
        ("slurmstepd: error: Detected 1 oom_kill event", True),
        ("slurmstepd: error: Detected 1 oom-kill event", True),
        ("returned non-zero exit status 1372.", False),
        ("returned non-zero exit status 1.", False),
        ("killed\n" + "later\n" * 100, False),
        ("oom-kill\n" + "later\n" * 100, False),
    ],
)
def test_a_killed_process_is_known_by_the_end_of_its_log(tmp_path, text, killed):
    log = tmp_path / "log"
    log.write_text(text)
    assert failure.was_killed(log) is killed
    assert not failure.was_killed(None)


def test_the_log_that_tells_most_is_the_rules_own_if_this_job_wrote_it(tmp_path):
    own, one, two = (tmp_path / name for name in ("own.out", "one.log", "two.log"))
    for path, when in ((own, 500), (one, 400), (two, 300)):
        path.write_text(path.name)
        os.utime(path, (when, when))
    asked = job()
    asked.log = [one, two, tmp_path / "none.log", tmp_path]
    assert failure.telling_log(asked, own, 350.0) == one
    assert failure.telling_log(asked, own, 401.0) == one, "clocks of two machines may differ by a second"
    assert failure.telling_log(asked, own, 402.0) == own, "an earlier job wrote it"
    one.write_text("")
    assert failure.telling_log(asked, own, 299.0) == two
    assert failure.telling_log(group(asked, job()), None, 299.0) == two
    asked.log = []
    own.write_text("")
    assert failure.telling_log(asked, own, 0.0) is None
    assert failure.telling_log(asked, None, 0.0) is None


# ---- results and submission ------------------------------------------------------------------------------------------


def live(tmp_path, **resources):
    wanted = request(job(**resources), ExecutorSettings())
    paths = types.SimpleNamespace(
        result_pickle=tmp_path / "7_result.pkl", submitted_pickle=tmp_path / "7.pkl", stdout=tmp_path / "7.out"
    )
    handle = types.SimpleNamespace(job_id="7", paths=paths)
    return backend.Live(None, wanted, Key("0" * 12, "1" * 12, "2" * 8), handle)


def test_an_exception_inside_a_job_becomes_a_failure_with_its_last_line(tmp_path):
    found = live(tmp_path)
    found.handle.paths.result_pickle.write_bytes(pickle.dumps(("error", "Traceback ...\n  x\nOSError: disk\n\n")))
    assert backend.result(found) == {"code": 1, "note": "OSError: disk"}
    found.handle.paths.result_pickle.write_bytes(pickle.dumps(("success", {"code": 0})))
    assert backend.result(found) == {"code": 0}


def test_what_only_a_running_job_needs_goes_and_its_log_stays(tmp_path):
    found = live(tmp_path)
    for path in vars(found.handle.paths).values():
        path.write_text("x")
    backend.forget(found)
    backend.forget(found)
    assert [path.name for path in tmp_path.iterdir()] == ["7.out"]


def test_a_job_that_waits_for_a_gpu_has_neither_number_nor_log():
    waiting = backend.Live(None, None, None)
    assert (waiting.id, waiting.log) == ("waiting", None)


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Slurm's commands as scripts: a real controller does not lose its answers when asked to."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    slept = []
    monkeypatch.setattr(backend, "time", types.SimpleNamespace(time=time.time, sleep=slept.append))

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
    backend.start(found, task.Task("true", "slurm"), tmp_path / "rule", ExecutorSettings())
    return found


@pytest.mark.parametrize("words", ["Batch job submission failed: Socket timed out on send/recv operation",
                                   "Unable to contact slurm controller (connect failure)"])  # fmt: skip
def test_a_submission_whose_answer_got_lost_is_cancelled_before_it_is_tried_again(tmp_path, commands, words):
    """Else two jobs would write the same files: the controller may have taken the first."""
    make, calls, slept = commands
    key = Key("0" * 12, "1" * 12, "2" * 8)
    other = Key("3" * 12, "1" * 12, "2" * 8)
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


def test_a_controller_that_stays_away_is_asked_five_times(tmp_path, commands):
    make, calls, slept = commands
    make(sbatch='echo "sbatch: error: Unable to contact slurm controller" >&2; exit 1', squeue="exit 1", scancel="")
    with pytest.raises(WorkflowError, match="Unable to contact slurm controller"):
        submit(tmp_path)
    assert (len(calls("sbatch")), slept, calls("scancel")) == (5, [5, 15, 30, 60], [])


def test_slurm_reads_what_was_asked_for_in_the_submission_file(tmp_path, commands):
    make, _, _ = commands
    make(sbatch=f'cp "$1" {tmp_path}/seen; echo "Submitted batch job 12"')
    found = submit(tmp_path)
    text = (tmp_path / "seen").read_text()
    for line in ("--time=10", "--nodes=1", "--cpus-per-task=4", f"--comment={found.key}", "--signal=B:USR2@120"):
        assert f"#SBATCH {line}\n" in text
    assert "\nexec " in text, "Slurm signals the batch process, which must be Python itself"
    assert not list((tmp_path / "rule").glob(".submission_file_*"))


def test_states_are_alive_or_ended_but_never_both():
    assert not slurm.ALIVE & slurm.PASSING
    assert not slurm.ALIVE & failure.ADVICE.keys()
