"""The directory lock that a killed Snakemake leaves behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

from iha.locks import claim, release_stale_lock


def _locked(folder):
    (folder / "locks").mkdir(parents=True)
    (folder / "locks" / "0.input.lock").write_text("a\n")
    return folder / "locks"


def test_snk_12_lock_of_a_live_controller_stays(tmp_path):
    locks = _locked(tmp_path)
    claim(tmp_path)
    assert not release_stale_lock(tmp_path)
    assert locks.exists()


def test_snk_12_lock_of_a_dead_controller_is_removed(tmp_path, capsys):
    locks = _locked(tmp_path)
    code = f"from pathlib import Path; from iha.locks import claim; claim(Path({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert release_stale_lock(tmp_path)
    assert not locks.exists()
    assert "which is gone" in capsys.readouterr().err


def test_snk_06_an_output_finished_in_the_last_moment_is_made_again(tmp_path, monkeypatch):
    """With Snakemake itself: killed between a job's end and its own note of it."""
    monkeypatch.chdir(tmp_path)
    long = "/".join(["long" * 30] * 3)
    (tmp_path / "Snakefile").write_text(f"""
from pathlib import Path
from iha.locks import claim, release_stale_lock
if workflow.is_main_process:
    release_stale_lock(Path(".snakemake"))
onstart:
    claim(Path(".snakemake"))
rule a:
    output: "{long}/a.json"
    shell: "echo made >> {{output}}; echo ran >> runs; [ -e quiet ] || kill -9 $PPID"
""")
    command = [Path(sys.executable).parent / "snakemake", "--cores", "1"]
    assert subprocess.run(command, check=False, capture_output=True, timeout=120).returncode != 0
    assert (tmp_path / long / "a.json").exists()
    (tmp_path / "quiet").touch()
    again = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    assert "will be made again" in again.stderr
    assert (tmp_path / "runs").read_text() == "ran\nran\n"
    assert (
        "Nothing to be done" in subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stderr
    )


def test_snk_12_lock_of_another_machine_or_unknown_owner_stays(tmp_path):
    locks = _locked(tmp_path)
    assert not release_stale_lock(tmp_path)
    claim(tmp_path)
    owner = json.loads((tmp_path / "controller.json").read_text())
    for change in ({"host": "elsewhere"}, {"boot": "another"}):
        (tmp_path / "controller.json").write_text(json.dumps({**owner, "pid": 2**22 + 1, **change}))
        assert not release_stale_lock(tmp_path)
    assert locks.exists()


def test_a_reused_pid_is_not_the_owner(tmp_path):
    _locked(tmp_path)
    claim(tmp_path)
    owner = json.loads((tmp_path / "controller.json").read_text())
    assert owner["pid"] == os.getpid()
    (tmp_path / "controller.json").write_text(json.dumps({**owner, "started": "1"}))
    assert release_stale_lock(tmp_path)
