"""The logger plugin `status` on real runs of Snakemake."""

import subprocess

import pytest
from dag import BIN, ROOT

SNAKEFILE = """
rule all:
    input: "a.txt", "b.txt", "c.txt"
rule one:
    output: "{x}.txt"
    log: "{x}.log"
    message: "Make {wildcards.x}"
    shell: "echo loss 3.5 > {log}; [ {wildcards.x} != {config[bad]} ] && touch {output}"
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))

    def _run(bad="none", *options):
        words = [BIN / "snakemake", "--cores", "1", "--keep-going", *options, "--config", f"bad={bad}",
                 "--logger", "status"]  # fmt: skip
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.returncode, (done.stdout + done.stderr).splitlines()

    return _run


def test_a_finished_job_is_one_line_and_nothing_else_is_printed(run):
    code, lines = run()
    assert code == 0
    assert sorted(line.split("] ")[1].split(" (")[0] for line in lines)[:3] == ["Make a", "Make b", "Make c"]
    assert lines[0].startswith("[1/4] ") and len(lines) == 4


def test_a_failed_job_is_named_last_with_the_end_of_its_log(run):
    code, lines = run("b")
    assert code == 1
    assert "Failed: Make b" in lines and "  loss 3.5" in lines
    assert lines[-1] == "Stopped: Make b failed: loss 3.5 (log: b.log)"
    assert not any("touch" in line for line in lines), "the command of a failed job is not repeated"


def test_a_dry_run_lists_the_jobs(run):
    code, lines = run("none", "--dry-run")
    assert code == 0 and [line for line in lines if line.startswith("would run: Make ")]


def test_an_error_of_snakemake_itself_is_shown(run, tmp_path):
    (tmp_path / "Snakefile").write_text("rule all:\n    input: 'missing'\n")
    code, lines = run()
    assert code == 1 and any("missing" in line for line in lines)
