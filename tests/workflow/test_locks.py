"""The directory lock that a killed Snakemake leaves behind, and the outputs of jobs whose end it did not see."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from iha.artifacts.locks import claim, release_stale_locks

ROOT = Path(__file__).parents[2]
SNAKEMAKE = Path(sys.executable).parent / "snakemake"
#: Another process that claims the locks in a folder, and ends.
CLAIM = "import os; from pathlib import Path; from iha.artifacts.locks import claim; claim(Path({folder!r})); {end}"


def _lock(folder, *names):
    (folder / "locks").mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / "locks" / name).write_text("a\n")


def _locks(folder):
    return sorted(path.name for path in (folder / "locks").iterdir())


def _claimed_by_another(folder, end="os.kill(os.getpid(), 9)"):
    subprocess.run([sys.executable, "-c", CLAIM.format(folder=str(folder), end=end)], check=False)


@pytest.fixture
def record(tmp_path):
    """The record of this process, which holds a lock."""
    _lock(tmp_path, "0.input.lock")
    claim(tmp_path)
    (path,) = (tmp_path / "controllers").iterdir()
    return path


def test_snk_12_lock_of_a_live_controller_stays(tmp_path, record):
    assert not release_stale_locks(tmp_path)
    assert _locks(tmp_path) == ["0.input.lock"]


def test_snk_12_lock_of_a_dead_controller_is_removed(tmp_path, capsys):
    _lock(tmp_path, "0.input.lock", "0.output.lock")
    _claimed_by_another(tmp_path)
    assert release_stale_locks(tmp_path)
    assert _locks(tmp_path) == []
    assert "snakemake process" in capsys.readouterr().err
    assert not release_stale_locks(tmp_path)


def test_controller_that_ends_by_itself_leaves_no_record(tmp_path):
    _lock(tmp_path, "0.input.lock")
    _claimed_by_another(tmp_path, end="raise SystemExit(1)")
    assert not list((tmp_path / "controllers").iterdir())


def test_dead_controller_beside_a_live_one_loses_its_own_locks_only(tmp_path, record):
    _lock(tmp_path, "1.input.lock", "1.output.lock")
    _claimed_by_another(tmp_path)
    assert release_stale_locks(tmp_path)
    assert _locks(tmp_path) == ["0.input.lock"]
    assert record.exists()


def test_snk_12_lock_of_another_machine_or_unknown_owner_stays(tmp_path, record):
    owner = json.loads(record.read_text())
    for change in ({"host": "elsewhere"}, {"boot": "another"}):
        record.write_text(json.dumps({**owner, "pid": 2**22 + 1, **change}))
        assert not release_stale_locks(tmp_path)
    record.unlink()
    assert not release_stale_locks(tmp_path)
    assert _locks(tmp_path) == ["0.input.lock"]


def test_a_reused_pid_is_not_the_owner(tmp_path, record):
    owner = json.loads(record.read_text())
    assert owner["pid"] == os.getpid()
    record.write_text(json.dumps({**owner, "started": "1"}))
    assert release_stale_locks(tmp_path)


#: Snakemake notes that a job has begun just after it has started it; what is killed before that is not noted at all.
WORKFLOW = """
from pathlib import Path
from iha.artifacts.locks import claim, release_stale_locks
if workflow.is_main_process:
    release_stale_locks(Path(".snakemake"))
onstart:
    claim(Path(".snakemake"))
rule a:
    output: "{target}"
    shell:
        "echo made > {{output}}; echo ran >> runs; "
        "until find .snakemake/incomplete -type f | grep -q .; do sleep 0.05; done; {end}"
"""


def _snakemake(folder, *args):
    command = [SNAKEMAKE, "--cores", "1", *args]
    return subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True, timeout=120)


def _made_again(folder, target):
    assert (folder / target).exists()
    (folder / "quiet").touch()
    again = _snakemake(folder)
    assert again.returncode == 0, again.stderr
    assert (folder / "runs").read_text() == "ran\nran\n"
    assert "Nothing to be done" in _snakemake(folder).stderr


def test_snk_06_an_output_finished_in_the_last_moment_is_made_again(tmp_path):
    """With Snakemake itself: killed between a job's end and its own note of it."""
    target = "/".join(["long" * 30] * 3) + "/a.json"
    shutil.copytree(ROOT / "profiles", tmp_path / "profiles")
    (tmp_path / "Snakefile").write_text(WORKFLOW.format(target=target, end="[ -e quiet ] || kill -9 $PPID"))
    assert _snakemake(tmp_path).returncode == -signal.SIGKILL
    _made_again(tmp_path, target)


def test_snk_06_a_job_that_outlived_an_interrupted_workflow_is_made_again(tmp_path):
    """Ctrl-C to Snakemake alone: it ends in order, without a lock, and does not see the end of the job."""
    shutil.copytree(ROOT / "profiles", tmp_path / "profiles")
    end = "[ -e quiet ] || {{ kill -INT $PPID; sleep 2; echo >> ended; }}"
    (tmp_path / "Snakefile").write_text(WORKFLOW.format(target="a.json", end=end))
    assert _snakemake(tmp_path).returncode != 0
    assert (tmp_path / "ended").exists()
    assert not list((tmp_path / ".snakemake/locks").glob("*"))
    _made_again(tmp_path, "a.json")


@pytest.mark.parametrize("text", ["", "{", "null", "[]", "7", '"x"', "[1, 2]"])
def test_a_record_that_cannot_be_read_is_nobodys(tmp_path, text):
    _lock(tmp_path, "0.input.lock")
    (tmp_path / "controllers").mkdir()
    (tmp_path / "controllers" / "x.json").write_text(text)
    assert not release_stale_locks(tmp_path)
    assert _locks(tmp_path) == ["0.input.lock"]
    claim(tmp_path)
    (mine,) = (path for path in (tmp_path / "controllers").iterdir() if path.name != "x.json")
    assert json.loads(mine.read_text())["locks"] == ["0.input.lock"]


def test_a_claim_takes_no_lock_that_another_live_workflow_holds(tmp_path, record):
    owner = json.loads(record.read_text())
    other = record.with_name("other.json")
    other.write_text(json.dumps({**owner, "locks": ["1.input.lock"]}))
    _lock(tmp_path, "1.input.lock", "2.input.lock")
    record.unlink()
    claim(tmp_path)
    assert json.loads(record.read_text())["locks"] == ["0.input.lock", "2.input.lock"]


def test_without_a_snakemake_folder_there_is_nothing_to_release(tmp_path):
    assert not release_stale_locks(tmp_path / "none")
    assert not list(tmp_path.iterdir())
