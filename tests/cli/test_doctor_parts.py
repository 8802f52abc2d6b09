"""Each check of `iha doctor`: what it lets pass, what it refuses, and what it advises."""

import argparse
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
from dag import ROOT
from slurmlab import wait_for

from iha.config.load import parse_config
from iha.doctor import command, job, machine, node, services, site, storage
from iha.doctor.outcome import Outcome, here, line, perform, summary
from iha.errors import ConfigError, DataError

WORDS = [{"name": "w", "model": "base", "tasks": ["gsm8k", "math500", "mbpp", "humaneval"]}]


def only(outcomes) -> Outcome:
    (found,) = outcomes
    return found


# ---- outcomes --------------------------------------------------------------------------------------------------------


def test_what_was_found_before_a_check_broke_is_kept():
    def check():
        yield Outcome("a", "ok", "fine", where="n7")
        raise DataError("shard 3 is cut short.")

    found = list(perform([("a", check), ("b", lambda: [])], "here"))
    assert [(o.status, o.found, o.where) for o in found] == [
        ("ok", "fine", "n7"),
        ("fail", "shard 3 is cut short.", "here"),
    ]
    assert found[1].advice == "", "a message to the user says itself what to do"


def test_a_long_error_is_one_short_line():
    def check():
        raise OSError("a\nb  " + "x" * 5000)

    found = only(perform([("a", check)]))
    assert found.found.startswith("OSError: a b xxx") and len(found.found) < 520
    assert len(line(found).splitlines()) == 2, "the error, and the advice"


def test_a_line_has_status_place_and_check_in_columns():
    text = line(Outcome("disk", "warn", "two\nlines", "buy", "n1"), 6)
    assert text.splitlines() == ["warn    n1      disk: two lines", "                -> buy"]
    assert line(Outcome("disk", "skipped", "x", "buy")) == "skipped   disk: x"


def test_a_summary_counts_what_there_is():
    found = [Outcome("a", status, "") for status in ("fail", "ok", "ok", "skipped")]
    assert summary(found) == "2 ok, 1 fail, 1 skipped"
    assert summary([]) == ""


def test_a_place_is_slurms_name_of_the_node_if_there_is_one(monkeypatch):
    monkeypatch.setenv("SLURMD_NODENAME", "n12")
    assert here() == "n12"
    monkeypatch.delenv("SLURMD_NODENAME")
    assert here() == os.uname().nodename.partition(".")[0]


def test_an_outcome_comes_back_from_a_job_as_it_was():
    one = Outcome("a", "warn", "é", "do", "n1")
    assert Outcome(**json.loads(json.dumps(one.as_json()))) == one


# ---- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("below", ["", "sub", "sub/deep"])
def test_a_file_where_a_folder_should_be_is_a_failure(tmp_path, below):
    (tmp_path / "state").write_text("")
    found = only(storage.check("runtime.state_dir", tmp_path / "state" / below, False))
    assert (found.check, found.status) == ("files runtime.state_dir", "fail")
    assert "Not a directory" in found.found and "name another in the config" in found.advice


def test_a_file_system_of_one_machine_is_a_warning_only_where_several_share_it(monkeypatch, tmp_path):
    for kind, statuses in {"tmpfs": ("warn", "ok"), "overlay": ("warn", "ok"), "nfs4": ("ok", "ok")}.items():
        monkeypatch.setattr(storage, "mount_of", lambda _, kind=kind: ("/", kind))
        assert tuple(only(storage.check("x", tmp_path, several)).status for several in (True, False)) == statuses


@pytest.mark.parametrize(("free", "status"), [(99, "fail"), (100, "warn"), (149, "warn"), (150, "ok"), (10**15, "ok")])
def test_room_is_tight_up_to_half_as_much_again(monkeypatch, tmp_path, free, status):
    monkeypatch.setattr(storage, "free_bytes", lambda _: free)
    found = only(storage.room(tmp_path / "not" / "yet", 100, "data 100 B"))
    assert found.status == status and f"free at {tmp_path}, about 100 B planned (data 100 B)" in found.found
    assert bool(found.advice) == (status != "ok")


MOUNT = """
mkdir -p "{0}/a b/deep" && mount -t tmpfs tmpfs "{0}/a b" && mkdir "{0}/a b/deep" && exec "{1}" -c '
import sys
from pathlib import Path
from iha.doctor.storage import mount_of
print(*mount_of(Path(sys.argv[1])), sep="|")' "{0}/a b/deep/not/yet"
"""


def test_the_file_system_of_a_folder_is_found_also_behind_blanks(tmp_path):
    """The kernel writes a blank as \\040 in its list of mounts."""
    script = MOUNT.format(tmp_path, sys.executable)
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr}")
    assert done.stdout == f"{tmp_path}/a b|tmpfs\n"


def test_a_folder_is_on_the_innermost_mount_and_not_on_one_with_a_longer_name(monkeypatch, tmp_path):
    rows = f"a / ext4\nb {tmp_path} nfs4\nc {tmp_path}/in lustre\nd {tmp_path}/inner gpfs\ne {tmp_path}/in beegfs\n"
    (tmp_path / "inner").mkdir()
    (tmp_path / "in").mkdir()
    monkeypatch.setattr(Path, "read_text", lambda _: rows)
    kinds = [storage.mount_of(tmp_path / name)[1] for name in ("in/x", "inner", "other", "../..")]
    assert kinds == ["beegfs", "gpfs", "nfs4", "ext4"], "of two at one place the later hides the first"


# ---- services --------------------------------------------------------------------------------------------------------


def store(uri, several=False):
    return only(services.tracking(parse_config({"runtime": {"tracking_uri": uri}}), several))


def test_a_store_that_will_be_made_is_well_also_in_a_folder_that_will_be_made(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    new = tmp_path / "not" / "yet" / "m.db"
    assert store(f"sqlite:///{new}") == Outcome("mlflow", "ok", f"{new} (will be made)")
    (tmp_path / "m.db").write_text("")
    assert store(f"sqlite:///{tmp_path}/m.db").found == f"{tmp_path}/m.db (there)"
    there = store("sqlite:////proc/1/none/m.db")
    assert there.status == "warn" and "cannot be written" in there.found


def test_sqlite_on_a_shared_file_system_is_a_warning_for_several_nodes(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(services, "mount_of", lambda _: ("/", "lustre"))
    assert [store(f"sqlite:///{tmp_path}/m.db", several).status for several in (True, False)] == ["warn", "ok"]
    assert "mlflow server" in store(f"sqlite:///{tmp_path}/m.db", True).advice


def test_other_stores_are_not_tried_and_no_stores_are_refused(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert store("postgresql://u:secret@host/db") == Outcome("mlflow", "skipped", "postgresql database: not tried from here")  # fmt: skip
    for uri in ("", "./mlruns"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        with pytest.raises(ConfigError, match="is not a store; allowed: sqlite"):
            store("sqlite:///m.db")


def items(folder, source="files", tasks=WORDS):
    named = {task: source if task != "humaneval" else "package" for task in tasks[0]["tasks"]}
    raw = {"suites": tasks, "items": named, "items_dir": str(folder)}
    return {o.check: o for o in services.items(parse_config({"evals": raw}))}


def test_files_of_items_are_those_that_the_stage_will_read(tmp_path):
    """By writing them: what the check calls whole, the stage `items` takes."""
    from iha.evals.mirror import SETS, write_set

    for name in ("gsm8k_train.jsonl", "math500x.jsonl", "mbpp_train.jsonl", "humaneval_test.jsonl"):
        (tmp_path / name).write_text("")
    found = items(tmp_path)
    assert {name: o.status for name, o in found.items()} == {
        "items gsm8k": "fail", "items math500": "fail", "items mbpp": "fail", "items humaneval": "ok",
    }  # fmt: skip
    assert found["items math500"].advice == "put math500_test.jsonl there, in the hub's columns"
    for task in ("gsm8k", "math500", "mbpp"):
        with pytest.raises(DataError, match=f"has no {task}_test.jsonl"):
            write_set(tmp_path / "mirror", task, "files", items_dir=tmp_path, limit=None)
        row = json.dumps({**dict.fromkeys(SETS[task].columns, "x"), "task_id": 20})
        (tmp_path / ("mbpp.jsonl" if task == "mbpp" else f"{task}_test.jsonl")).write_text(row + "\n")
    (tmp_path / "gsm8k_train.jsonl").unlink()
    assert items(tmp_path)["items gsm8k"].advice == "put gsm8k_train.jsonl there, in the hub's columns"
    with pytest.raises(DataError, match=r"has no gsm8k_train\.jsonl"):
        write_set(tmp_path / "mirror", "gsm8k", "files", items_dir=tmp_path, limit=None)
    (tmp_path / "gsm8k_train_4.jsonl").write_text(json.dumps(dict.fromkeys(SETS["gsm8k"].columns, "x")) + "\n")
    assert {o.status for o in items(tmp_path).values()} == {"ok"}
    for task in ("gsm8k", "math500", "mbpp"):
        assert write_set(tmp_path / "mirror", task, "files", items_dir=tmp_path, limit=None).n == 1


def test_items_that_are_made_here_need_no_network_and_those_of_no_suite_are_not_looked_at(tmp_path):
    found = items(tmp_path, "templates", [{**WORDS[0], "tasks": ["gsm8k"]}])
    assert {name: (o.status, o.found) for name, o in found.items()} == {
        "items gsm8k": ("ok", "templates, no network needed")
    }


def test_each_source_is_looked_at_once_but_conversations_and_text_apart(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "words", "conversations": [{"from": "user", "value": "a"}, {"from": "assistant", "value": "b"}]}\n')  # fmt: skip
    files = {"kind": "files", "paths": [str(tmp_path / "*.jsonl")]}
    data = {
        "pretrain": {"sources": [files, {"kind": "book"}]},
        "extend": {"sources": [{**files, "weight": 2.0}]},
        "sft": {"sources": [{**files, "field": "conversations"}]},
    }
    found = list(services.data(parse_config({"data": data, "evals": {"haystack": files}})))
    assert [o.check for o in found] == ["data pretrain", "data pretrain", "data sft"]
    assert {o.status for o in found} == {"ok"}
    assert found[0].found == f"files {tmp_path / '*.jsonl'}: first document read"


def test_packages_that_are_not_installed_are_named():
    docs = {"sources": [{"kind": "docstrings", "packages": ["numpy", "no_such_a", "no_such_b"]}]}
    found = next(services.data(parse_config({"data": {"pretrain": docs}})))
    assert (found.status, found.advice) == ("fail", "pip install no_such_a no_such_b")
    assert found.found.endswith("not installed: no_such_a, no_such_b")


def test_a_sandbox_is_needed_only_for_suites_that_run_programs(monkeypatch):
    from iha.evals import sandbox

    monkeypatch.setattr(sandbox, "available", lambda: "bwrap is not there. Install bubblewrap. Then start again.")
    words = [{"name": "w", "model": "base", "tasks": ["gsm8k"]}]
    assert only(services.sandbox(parse_config({"evals": {"suites": words}}), True)).status == "skipped"
    for here_, status, end in ((True, "fail", "again."), (False, "warn", "again. (on the nodes)")):
        found = only(services.sandbox(parse_config({"evals": {"suites": WORDS}}), here_))
        assert (found.status, found.found) == (status, "bwrap is not there")
        assert found.advice.startswith("Install bubblewrap.") and found.advice.endswith(end)


# ---- machine and profile ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mine", "threads", "status", "words"), [(4, 4, "ok", "as asked for"), (4, 5, "fail", "5 asked for"), (8, 4, "ok", "does not bind")])  # fmt: skip
def test_cpus_of_a_job_are_compared_with_what_it_asked_for(monkeypatch, mine, threads, status, words):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(mine)))
    found = only(machine.affinity(threads))
    assert found.status == status and words in found.found


def test_a_torch_without_cuda_is_told_apart_from_a_node_without_gpus():
    built, bare = (machine._no_gpu(8, "auto", cuda) for cuda in ("12.8", None))
    assert (built.status, bare.status) == ("fail", "fail")
    assert "torch sees no GPU" in built.found and "built without CUDA" in bare.found


def profile(tmp_path, text):
    (tmp_path / "config.yaml").write_text(text)
    return site.read_profile(tmp_path, "smoke")


def test_resources_of_a_rule_win_over_defaults_and_missing_sections_are_none(tmp_path):
    text = "default-resources: {mem_mb: 5, nodes: \"2 if '$IHA_SCALE' == 'smoke' else 9\"}\nset-resources: {train: {mem_mb: 7}}"
    found = profile(tmp_path, text)
    assert found.resources("train") == {"mem_mb": 7, "nodes": 2}
    assert found.resources("other") == {"mem_mb": 5, "nodes": 2}
    empty = profile(tmp_path, "executor: submitit\ndefault-resources:\nset-resources:\n")
    assert empty.resources("train") == {} and empty.settings.cluster == "slurm"


@pytest.mark.parametrize(
    ("given", "value"),
    [(3, 3), ("gpu", "gpu"), ("1 + 1", 2), ("max(1, 2)", 2), ("mem_mb * 2", "mem_mb * 2"), ("", ""), ("__import__('os')", "__import__('os')"), ("1 if '$IHA_SCALE' == 'paper' else 2", 1)],
)  # fmt: skip
def test_a_resource_is_an_expression_of_numbers_or_a_word(given, value):
    assert site.value(given, "paper") == value


@pytest.mark.parametrize(
    ("name", "value", "kind"), [("LEAD", "5min", "a whole number"), ("REQUEUE", "1.5", "a whole number")]
)
def test_a_setting_of_the_wrong_kind_is_named(tmp_path, monkeypatch, name, value, kind):
    monkeypatch.setenv(f"SNAKEMAKE_SUBMITIT_{name}", value)
    with pytest.raises(ConfigError) as caught:
        profile(tmp_path, "jobs: 3\n")
    assert str(caught.value) == (
        f"submitit-{name.lower()} is {value!r}; allowed: {kind}. Change it in the profile or in SNAKEMAKE_SUBMITIT_{name}."
    )
    monkeypatch.delenv(f"SNAKEMAKE_SUBMITIT_{name}")
    with pytest.raises(ConfigError, match="submitit-poll is 'often'; allowed: a number"):
        profile(tmp_path, "submitit-poll: often\n")


def test_the_environment_beats_the_profile_and_only_for_settings_that_say_so(tmp_path, monkeypatch):
    monkeypatch.setenv("SNAKEMAKE_SUBMITIT_LEAD", "7")
    monkeypatch.setenv("SNAKEMAKE_SUBMITIT_POLL", "99")
    found = profile(tmp_path, "submitit-lead: 5\nsubmitit-poll: 2\n").settings
    assert (found.lead, found.poll, found.requeue) == (7, 2.0, -1)


def test_flags_are_what_a_shell_would_be_given():
    options = {"nodes": 2, "requeue": True, "comment": None, "mem": "5M"}
    assert site._flags(options) == ("--mem=5M", "--nodes=2", "--requeue")


def test_a_command_that_cannot_be_run_says_why():
    assert site.ask("/nowhere/x") == (1, "FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/x'")
    assert site.ask("sh", "-c", "echo out; echo err >&2; exit 3") == (3, "out\nerr")


# ---- the command and its job -----------------------------------------------------------------------------------------


def checks(monkeypatch, tmp_path, cluster, **options):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "config.yaml").write_text(f"submitit-cluster: {cluster}\n")
    monkeypatch.setattr(node, "checks", lambda *_: [])
    monkeypatch.setattr(command, "disk", lambda _: [Outcome("disk", "ok", "")])
    monkeypatch.setattr(site, "commands", lambda needed: [Outcome("slurm", "fail" if needed else "warn", "none")])
    monkeypatch.setattr(site, "requests", lambda *_: pytest.fail("asked a Slurm that is not there"))
    for name in ("tokenizer", "data", "items"):
        monkeypatch.setattr(services, name, lambda _, name=name: [Outcome(name, "ok", "")])
    args = argparse.Namespace(slurm=False, offline=False, patience=1.0, config=None)
    vars(args).update(options)
    found = command.outcomes(parse_config({}), site.read_profile(tmp_path / "p", "smoke"), args)
    return [(o.check, o.status) for o in found]


def test_without_a_network_the_hub_is_not_asked(monkeypatch, tmp_path):
    assert checks(monkeypatch, tmp_path, "local", offline=True) == [("disk", "ok"), ("job", "skipped")]


def test_a_slurm_that_does_not_answer_is_asked_no_more(monkeypatch, tmp_path):
    monkeypatch.setattr(job, "submitted", lambda *_: pytest.fail("submitted to a Slurm that is not there"))
    found = checks(monkeypatch, tmp_path, "slurm", slurm=True)
    assert found[-2:] == [("files submitit-folder", "ok"), ("slurm", "fail")]


@pytest.fixture
def process(tmp_path, monkeypatch):
    """A local job of the real plugin, as the doctor starts one."""
    from snakemake_executor_plugin_submitit import ExecutorSettings, backend
    from snakemake_executor_plugin_submitit.request import Request
    from snakemake_executor_plugin_submitit.task import Task

    def _process(line_):
        wanted = Request("pretrain", 1, 0, 0, 1, 1, 0, "")
        live = job._live(wanted)
        backend.start(live, Task(line_, "local", requeue=0, grace=5.0), tmp_path / "jobs", ExecutorSettings(cluster="local"))  # fmt: skip
        return live

    monkeypatch.setattr(job, "POLL", 0.05)
    return _process


def test_a_job_that_does_not_end_in_time_is_cancelled_and_said_so(process, tmp_path):
    live = process(f"echo $$ > {tmp_path}/pid; exec sleep 300")
    wait_for((tmp_path / "pid").exists, what="the job")
    problem = job._outcome(live, True, 0.0)
    assert problem == "no end after 0 s; cancelled"
    found = job._verdict(live, problem, False)
    assert found.status == "fail" and found.found.startswith(f"job {live.id}: no end after 0 s; cancelled")
    assert found.advice == f"read {live.log}; `squeue --me` shows what waits, and why"


def test_a_job_that_ends_without_a_report_shows_its_last_line(process):
    live = process("echo broken; exit 1")
    assert job._outcome(live, True, 60.0) == ""
    found = job._verdict(live, "", False)
    assert found.status == "fail" and "it left no report; last line: " in found.found
    good = job._verdict(live, "", True)
    assert good.status == "ok" and not Path(live.result_file).exists() and live.log.exists()


def test_what_the_node_is_asked_is_the_request_of_the_profile(tmp_path):
    wanted = types.SimpleNamespace(nodes=2, tasks_per_node=8, threads=4, gpus=8)
    work = job._work(tmp_path / "a b.json", Path("my.yaml"), wanted, types.SimpleNamespace(cluster="slurm"))
    assert f"--report '{tmp_path}/a b.json' --nodes 2 --tasks 8 --threads 4 --gpus 8" in work.command
    assert work.command.endswith(f"--config {Path('my.yaml').absolute()}") and work.max_requeues == 0
