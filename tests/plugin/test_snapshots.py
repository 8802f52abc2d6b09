"""Copies of the code: what is copied, which copy a job runs, and when copies are deleted."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from slurmlab import Toy

from iha.artifacts.fingerprint import git_state
from snakemake_executor_plugin_submitit import snapshots

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path):
    """A checkout with one commit."""
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    files = {"Snakefile": "", "src/a.py": "x = 1", ".gitignore": "data", "big.bin": "0" * (1 << 21), "data": "much"}
    for name, text in files.items():
        (root / name).write_text(text)
    for command in ("init -q", "add -A", "-c user.name=x -c user.email=x commit -q -m x"):
        subprocess.run(["git", *command.split()], cwd=root, check=True)
    return root


def test_a_copy_has_tracked_changed_and_new_code_and_is_written_once_per_content(project, tmp_path):
    (project / ".snakemake").mkdir()
    (project / "src/a.py").write_text("x = 2")
    for name in ("new.py", "results.json", ".snakemake/x.py"):
        (project / name).write_text("1")
    copy = snapshots.take(project, tmp_path / "code")
    assert copy == snapshots.take(project, tmp_path / "code")
    names = {p.name for p in copy.rglob("*") if p.is_file()}
    assert names == {"Snakefile", "a.py", ".gitignore", ".git-state", "new.py"}
    assert (copy / "src/a.py").read_text() == "x = 2"
    assert git_state(copy / "src") == git_state(project)
    changed = {}
    for number, name in enumerate(("src/a.py", "new.py")):
        (project / name).write_text(f"x = {3 + number}")
        changed[name] = snapshots.take(project, tmp_path / "code")
    assert len({copy, *changed.values()}) == 3
    assert (copy / "src/a.py").read_text() == "x = 2"


def test_without_git_there_is_no_copy(tmp_path):
    (tmp_path / "a.py").write_text("1")
    assert snapshots.take(tmp_path, tmp_path / "code") is None


def test_a_copy_that_was_not_completed_is_not_used(project, tmp_path, monkeypatch):
    def full(*_):
        raise OSError("No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(snapshots.shutil, "copy2", full)
        with pytest.raises(OSError, match="No space left"):
            snapshots.take(project, tmp_path / "code")
    assert not list((tmp_path / "code").iterdir())
    copy = snapshots.take(project, tmp_path / "code")
    (copy / snapshots.STATE).unlink()
    assert not snapshots.use(copy) and not snapshots.use(tmp_path / "code" / "absent")
    assert sorted((tmp_path / "code").iterdir()) == [copy]


def test_a_command_runs_the_copys_files_and_modules(project, tmp_path, monkeypatch):
    copy = snapshots.take(project, tmp_path / "code")
    monkeypatch.setattr(sys, "path", ["", str(project / "src"), str(project / "data"), "/usr/lib"])
    others = f"{project}/Snakefile2 /mirror{project}/Snakefile"  # paths that begin or end like the named one
    command = snapshots.command_in(
        copy, project, f"run --snakefile '{project}/Snakefile' {others}", [project / "Snakefile"]
    )
    assert command.endswith(f"; run --snakefile '{copy}/Snakefile' {others}")
    assert command.startswith(f"export PYTHONPATH={copy}/src")


def test_a_copy_is_deleted_a_day_after_its_last_use_unless_a_queued_job_names_it(tmp_path):
    folder, rule = tmp_path / "code", tmp_path / "train"
    rule.mkdir()
    for name in ("queued", "ended", "fresh", ".part"):
        (folder / name).mkdir(parents=True)
        if name != "fresh":
            os.utime(folder / name, (time.time() - 2 * snapshots.KEEP_SECONDS,) * 2)
    (rule / "7_submitted.pkl").write_bytes(b"cd /x/code/queued; run")
    (rule / "8_submitted.pkl").write_bytes(b"cd /x/code/ended; run")

    def left(*queued):
        snapshots.remove_unused(folder, tmp_path, queued)
        return {path.name for path in folder.iterdir()}

    assert left("7", "8") == {"queued", "ended", "fresh"}
    assert left("7") == {"queued", "fresh"}
    (folder / "queued" / snapshots.STATE).touch()
    assert snapshots.use(folder / "queued")
    assert left() == {"queued", "fresh"}, "a workflow between two jobs"


SAY = """
rule all:
    input: "out.txt"
rule say:
    output: "out.txt"
    shell: "%s -m constant > {output}"
"""


def test_a_workflow_deletes_old_copies_and_runs_the_present_code(tmp_path):
    toy = Toy(tmp_path, SAY % sys.executable)
    (tmp_path / "src").mkdir()
    toy.env["PYTHONPATH"] = f"{ROOT / 'src'}:{tmp_path / 'src'}"
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    old = tmp_path / ".snakemake/submitit/code/0123456789abcdef"
    old.mkdir(parents=True)
    os.utime(old, (0, 0))
    toy.write("src/constant.py", "print(1)")
    toy.run("--submitit-on-drift", "snapshot", cluster="local")
    assert toy.read("out.txt") == "1\n"
    (copy,) = old.parent.iterdir()
    assert copy != old and (copy / "src/constant.py").read_text() == "print(1)"
