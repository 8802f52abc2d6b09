"""What `make install`, and with it every command, does on a machine that lacks something; Python is played by a script."""

import shutil
import subprocess

import pytest
from dag import ROOT

#: Answers the version question with $1, makes an environment of scripts that print their arguments, or fails to ($2).
PYTHON = """#!/bin/sh
[ "$1" = -c ] && exit {old}
echo "python $@"
[ {novenv} = 1 ] && mkdir -p .venv && exit 1
mkdir -p .venv/bin
printf '#!/bin/sh\\necho pip "$@"\\n' > .venv/bin/pip
chmod +x .venv/bin/pip
"""


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "a project"
    made.mkdir()
    shutil.copy(ROOT / "Makefile", made)
    (made / "requirements.lock").write_text("torch==1\n")
    (made / "pyproject.toml").touch()
    python(made)
    return made


def python(folder, old=0, novenv=0):
    (folder / "python").write_text(PYTHON.format(old=old, novenv=novenv))
    (folder / "python").chmod(0o755)


def install(folder, python="./python"):
    done = subprocess.run(
        ["make", f"PYTHON={python}", "install"], cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stdout + done.stderr


def test_install_is_done_once(folder):
    code, said = install(folder)
    assert code == 0
    assert "python -m venv .venv" in said
    assert "pip install" in said
    assert "Nothing to be done" in install(folder)[1]


def test_the_environment_of_a_moved_folder_is_made_anew(folder):
    install(folder)
    moved = folder.rename(folder.with_name("moved"))
    assert "python -m venv --clear .venv" in install(moved)[1]
    assert "Nothing to be done" in install(moved)[1]


@pytest.mark.parametrize("command", ["./python", "./nowhere"])
def test_a_python_that_is_old_or_missing_is_said(folder, command):
    python(folder, old=1)
    code, said = install(folder, command)
    assert code != 0
    assert f"{command} is missing or older than 3.11; name a newer one: make PYTHON=" in said
    assert not (folder / ".venv").exists()


def test_a_python_without_venv_is_said_and_leaves_nothing(folder):
    python(folder, novenv=1)
    code, said = install(folder)
    assert code != 0
    assert "apt install python3-venv" in said
    assert not (folder / ".venv").exists()
