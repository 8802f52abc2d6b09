"""Copies of the code stay while a workflow or a job uses them, and go afterwards."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from slurmlab import Toy, wait_for

from snakemake_executor_plugin_submitit import keeping

ROOT = Path(__file__).parents[2]
WORKFLOW = """
import sys, time
from pathlib import Path
from snakemake_executor_plugin_submitit import keeping
folder, name = Path(sys.argv[1]), sys.argv[2]
with keeping.alone(folder):
    (folder / name).mkdir(exist_ok=True)
    use = keeping.Use(folder / name)
    if sys.argv[3:] == ["locked"]:
        print("ready", flush=True)
        time.sleep(100)
print("ready", flush=True)
time.sleep(100)
"""


def workflow(folder, name, *more):
    """A process that uses a copy, as a workflow does."""
    command = [sys.executable, "-c", WORKFLOW, folder, name, *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT / "src")})
    assert process.stdout.readline() == b"ready\n"
    return process


def sweep(folder, submitted, ids=frozenset()):
    """Take the copy `own` as a workflow that starts, and remove what nobody uses; the copies that are left."""
    with keeping.alone(folder):
        (folder / "own").mkdir(exist_ok=True)
        use = keeping.Use(folder / "own")
        keeping.delete(keeping.set_apart(folder, submitted, lambda: ids))
    use.end()
    return {path.name for path in folder.iterdir() if path.name != keeping.USERS}


def test_a_copy_goes_when_its_workflow_has_ended_however_it_ended(tmp_path):
    folder = tmp_path / "code"
    heads = [workflow(folder, name) for name in ("a", "b", "b")]
    assert sweep(folder, tmp_path) == {"a", "b", "own"}
    for head, left in zip(heads, ({"b", "own"}, {"b", "own"}, {"own"}), strict=True):
        head.kill()
        head.communicate()
        assert sweep(folder, tmp_path) == left


def test_a_copy_stays_while_a_job_in_the_queue_was_submitted_with_it(tmp_path):
    folder, rule = tmp_path / "code", tmp_path / "train"
    rule.mkdir()
    for name in ("queued", "ended", "moment", "old"):
        (folder / name).mkdir(parents=True)
    (rule / "7_submitted.pkl").write_bytes(b"cd /x/code/queued; run")
    (rule / "8_submitted.pkl").write_bytes(b"cd /x/code/ended; run")
    (rule / "0a1b.pkl").write_bytes(b"cd /x/code/moment; run")
    (rule / "0a1c.pkl").write_bytes(b"cd /x/code/old; run")
    os.utime(rule / "0a1c.pkl", (0, 0))
    everything = {"queued", "ended", "moment", "old", "own"}
    assert sweep(folder, tmp_path, None) == everything, "Slurm did not answer"
    assert sweep(folder, tmp_path, {"7"}) == {"queued", "moment", "own"}
    assert sweep(folder, tmp_path, set()) == {"moment", "own"}


def test_what_is_not_known_keeps_all_copies(tmp_path):
    folder = tmp_path / "code"
    (folder / "a").mkdir(parents=True)
    (folder / keeping.USERS).mkdir()
    note = folder / keeping.USERS / "elsewhere-1"
    note.write_text('{"here": "elsewhere", "pid": 1, "started": "x", "copy": "a"}')
    assert sweep(folder, tmp_path) == {"a", "own"}, "a workflow on another machine"
    note.write_text("{")
    assert sweep(folder, tmp_path) == {"a", "own"}
    note.write_text('{"here": "elsewhere", "pid": 1, "started": "x", "copy": "a"}')
    os.utime(note, (time.time() - 2 * keeping.SILENT_SECONDS,) * 2)
    assert sweep(folder, tmp_path) == {"own"}, "it gave no sign of life for two days"


def test_the_lock_of_a_killed_workflow_is_taken_over_and_that_of_a_live_one_is_not(tmp_path):
    folder = tmp_path / "code"
    head = workflow(folder, "a", "locked")
    with pytest.raises(TimeoutError, match=r"\.lock: held by"), keeping.alone(folder, patience=0.3):
        pass
    head.send_signal(signal.SIGKILL)
    head.communicate()
    assert sweep(folder, tmp_path) == {"own"}
    assert not list(folder.glob(".lock*"))


RIVAL = """
import random, sys, time
from pathlib import Path
from snakemake_executor_plugin_submitit import keeping
folder, rng, lost = Path(sys.argv[1]), random.Random(sys.argv[2]), 0
for _ in range(25):
    copy = folder / rng.choice("abc")
    with keeping.alone(folder):
        if not copy.exists():
            copy.mkdir()
            (copy / "code.py").touch()
        use = keeping.Use(copy)
        apart = keeping.set_apart(folder, folder.parent, lambda: set())
    keeping.delete(apart)
    for _ in range(rng.randrange(5)):
        lost += not (copy / "code.py").exists()
        time.sleep(0.002)
    use.end()
print(lost, flush=True)
"""


def test_rivals_never_lose_the_copy_they_use(tmp_path):
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", RIVAL, tmp_path / "code"]
    rivals = [subprocess.Popen([*command, str(i)], stdout=subprocess.PIPE, env=env) for i in range(3)]
    assert [rival.communicate(timeout=120)[0] for rival in rivals] == [b"0\n"] * 3
    assert sweep(tmp_path / "code", tmp_path) == {"own"}


SAY = """
rule all:
    input: "out.txt"
rule say:
    output: "out.txt"
    shell: "%s -m constant > {output}"
"""


def test_sub_04_a_workflow_removes_the_copies_of_earlier_ones(tmp_path):
    toy = Toy(tmp_path, SAY % sys.executable)
    (tmp_path / "src").mkdir()
    toy.env["PYTHONPATH"] = f"{ROOT / 'src'}:{tmp_path / 'src'}"
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    code, seen = tmp_path / ".snakemake/submitit/code", []
    for number in ("1", "2"):
        toy.write("src/constant.py", f"print({number})")
        head = toy.start("--submitit-on-drift", "snapshot", "--forceall", cluster="local")
        wait_for(lambda head=head: head.poll() is not None, what="the end")
        assert head.returncode == 0, toy.read("head.log")
        assert toy.read("out.txt") == f"{number}\n"
        (copy,) = [path for path in code.iterdir() if not path.name.startswith(".")]
        assert (copy / "src/constant.py").read_text() == f"print({number})"
        assert not [*(code / keeping.USERS).iterdir()]
        seen.append(copy)
    assert seen[0] != seen[1]
