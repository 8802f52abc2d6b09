"""What a user reads when a job fails: its name, what to do, and the last lines of its log."""

import os
import types

import pytest
from slurmlab import job

from snakemake_executor_plugin_submitit import failure, slurm


def group(*jobs):
    return types.SimpleNamespace(jobs=jobs, is_group=lambda: True, groupid="g1")


def test_a_message_has_rule_wildcards_end_advice_and_log(tmp_path):
    log = tmp_path / "a.log"
    log.write_text("one\ntwo\n")
    text = failure.describe(job(), "job 7", "it broke", "fix it", log)
    assert text.splitlines() == [
        "rule train (v=iha, seed=1) failed: it broke [job 7]",
        "  what to do: fix it",
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


def test_advice_has_the_numbers_of_the_job():
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
def test_advice_for_a_refusal_ignores_its_case(words, helps):
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


def test_a_log_that_cannot_be_read_is_reported(tmp_path):
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


def test_the_rules_own_log_is_shown_if_this_job_wrote_it(tmp_path):
    own, one, two = (tmp_path / name for name in ("own.out", "one.log", "two.log"))
    for path, when in ((own, 500), (one, 400), (two, 300)):
        path.write_text(path.name)
        os.utime(path, (when, when))
    asked = job()
    asked.log = [one, two, tmp_path / "none.log", tmp_path]
    assert failure.choose_log(asked, own, 350.0) == one
    assert failure.choose_log(asked, own, 401.0) == one, "clocks of two machines may differ by a second"
    assert failure.choose_log(asked, own, 402.0) == own, "an earlier job wrote it"
    one.write_text("")
    assert failure.choose_log(asked, own, 299.0) == two
    assert failure.choose_log(group(asked, job()), None, 299.0) == two
    asked.log = []
    own.write_text("")
    assert failure.choose_log(asked, own, 0.0) is None
    assert failure.choose_log(asked, None, 0.0) is None


def test_states_are_alive_or_ended_but_never_both():
    assert not slurm.ALIVE & slurm.PASSING
    assert not slurm.ALIVE & failure.ADVICE.keys()
