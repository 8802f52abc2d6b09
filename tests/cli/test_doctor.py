"""`iha doctor` on this machine; as a Slurm job it runs in test_slurm_jobs.py."""

import argparse
import fcntl
import http.server
import io
import json
import os
import shutil
import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest
import torch
from dag import ROOT
from rich.console import Console
from slurmlab import wait_for

from iha import cli, doctor
from iha.config.load import load_config, parse_config
from iha.config.schema import Config
from iha.doctor import Check, host_name, perform, summary
from iha.errors import ConfigError, DataError
from iha.model.attention.kernels import dispatch
from iha.model.attention.masks import Mask

MICRO = ROOT / "tests/configs/micro.yaml"


def by_name(outcomes):
    return {o.name: o for o in outcomes}


def test_doctor_prints_json_and_fails_only_if_something_fails(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SNAKEMAKE_SUBMITIT_CLUSTER", "local")
    profile = str(ROOT / "slurm")
    with pytest.raises(SystemExit) as done:
        cli.main(["doctor", "--config", str(MICRO), "--profile", profile, "--json"])
    found = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert done.value.code == any(row["status"] == "fail" for row in found.values())
    for name in ("python", "torch", "sdpa", "runtime.state_dir", "mlflow", "disk", "pretrain"):
        assert found[name]["status"] == "ok", found[name]
    assert "job" not in found and "slurm" not in found


def test_doctor_without_a_profile_is_one_message(capsys):
    with pytest.raises(SystemExit) as done:
        cli.main(["doctor", "--profile", "/nowhere"])
    assert done.value.code == 2 and "--profile: '/nowhere' has no config.yaml" in capsys.readouterr().err


def test_a_check_that_breaks_does_not_end_the_others():
    found = list(
        perform([("g", "first", lambda: 1 / 0), ("g", "second", lambda: [Check("g", "second", "ok", "fine")])], "here")
    )
    assert [(o.name, o.status, o.where) for o in found] == [("first", "fail", "here"), ("second", "ok", "here")]
    assert "ZeroDivisionError" in found[0].result


def shown(*checks):
    console = Console(width=100, file=io.StringIO())
    doctor.show(console, "files", checks)
    return console.file.getvalue()


def test_advice_is_shown_for_failures_only_and_once_for_one_cause():
    assert "buy" not in shown(Check("files", "disk", "ok", "room", "buy a disk"))
    text = shown(Check("files", "a", "fail", "full", "buy a disk"), Check("files", "b", "fail", "full", "buy a disk"))
    assert text.count("-> buy a disk") == 1 and text.index(" b ") < text.index("->")
    assert max(map(len, text.splitlines())) <= 100


def test_wrong_kernel_is_caught(monkeypatch):
    """A kernel that ignores the window is within rounding for causal attention and far off for the others."""

    def blind(q, k, v, mask, scale):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)

    monkeypatch.setitem(dispatch.KERNELS, "banded", blind)
    found = by_name(doctor.attention_kernels("cpu"))
    assert found["sdpa"].status == "ok"
    assert found["banded (auto)"].status == "fail" and "engine.backend: reference" in found["banded (auto)"].advice
    assert doctor.kernel_error("banded", Mask(384, 384), torch.device("cpu")) < 1e-5
    assert {o.status for o in found.values()} == {"ok", "fail", "skipped"}


def test_missing_gpus_fail_where_gpus_were_asked_for():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert by_name(doctor.torch_and_gpus(0, "auto"))["gpu"].status == "skipped"
    for wanted, device in ((8, "auto"), (0, "cuda")):
        assert by_name(doctor.torch_and_gpus(wanted, device))["gpu"].status == "fail"


def test_sub_03_fewer_cpus_than_asked_for_are_reported():
    assert next(doctor.cpu_affinity(1)).status == "ok"
    assert next(doctor.cpu_affinity(10_000)).status == "fail"


def test_files_are_tried_and_no_trace_stays(tmp_path, monkeypatch):
    assert next(doctor.file_system("state", tmp_path / "not" / "yet", False)).status == "ok"
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(doctor, "SLOW_MS", 0.0)
    assert next(doctor.file_system("state", tmp_path, False)).status == "warn"
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    broken = next(doctor.file_system("state", tmp_path, False))
    assert broken.status == "fail" and "two holders" in broken.result


def test_folder_that_cannot_be_written_is_named():
    assert next(doctor.file_system("state", Path("/proc/self"), False)).status == "fail"


def test_disk_is_compared_with_what_the_run_will_write(tmp_path):
    small = next(doctor.disk_space(load_config(MICRO)))
    assert small.status == "ok" and "checkpoints" in small.result
    assert "TB planned" in next(doctor.disk_space(Config())).result
    free = shutil.disk_usage(tmp_path).free
    states = [doctor.free_space(tmp_path, int(free * share), "x").status for share in (0.1, 0.9, 1.1)]
    assert states == ["ok", "warn", "fail"]


@pytest.fixture
def server():
    class Health(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Health) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{made.server_port}"
        made.shutdown()


def test_tracking_server_that_is_away_is_a_warning(server, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    assert next(doctor.tracking_store(Config(), True)).status == "ok"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    away = next(doctor.tracking_store(Config(), True))
    assert away.status == "warn" and "make ui" in away.advice


def test_data_that_is_not_there_is_named(tmp_path):
    raw = {"data": {"pretrain": {"sources": [{"kind": "files", "paths": [str(tmp_path / "*.jsonl")]}]}}}
    raw |= {"tokenizer": {"kind": "hub", "name": str(tmp_path), "vocab_size": 300}}
    config = Config.model_validate_json(json.dumps(raw))
    found = next(doctor.corpora(config))
    assert found.status == "fail" and "nothing matches" in found.result and found.advice
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "words"}) + "\n")
    assert next(doctor.corpora(config)).status == "ok"


def test_profile_is_read_as_snakemake_reads_it(monkeypatch):
    monkeypatch.setenv("SNAKEMAKE_SUBMITIT_PARTITION", "gpu")
    paper, smoke = (doctor.read_profile(ROOT / "slurm", scale) for scale in ("paper", "smoke"))
    assert paper.resources("pretrain")["nodes"] == 16 and smoke.resources("pretrain")["nodes"] == 2
    assert smoke.resources("items")["runtime"] == 60
    wanted = doctor.job_request(paper, load_config(ROOT / "configs/paper.yaml"), "pretrain")
    assert (wanted.gpus, wanted.tasks_per_node, wanted.threads, wanted.site["partition"]) == (8, 8, 8, "gpu")
    assert paper.settings.lead == 300 and doctor.resource("gpu", "paper") == "gpu"


def test_without_slurm_commands_it_is_said_what_to_do(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    assert [next(doctor.slurm_commands(needed)).status for needed in (True, False)] == ["fail", "warn"]


WORDS = [{"name": "w", "model": "base", "tasks": ["gsm8k", "math500", "mbpp", "humaneval"]}]


def only(checks) -> Check:
    (check,) = checks
    return check


# ---- outcomes --------------------------------------------------------------------------------------------------------


def test_what_was_found_before_a_check_broke_is_kept():
    def check():
        yield Check("g", "a", "ok", "fine", where="n7")
        raise DataError("shard 3 is cut short.")

    found = list(perform([("g", "a", check), ("g", "b", lambda: [])], "here"))
    assert [(o.status, o.result, o.where) for o in found] == [
        ("ok", "fine", "n7"),
        ("fail", "shard 3 is cut short.", "here"),
    ]
    assert found[1].advice == "", "a message to the user says itself what to do"


def test_a_long_error_is_one_short_line():
    def check():
        raise OSError("a\nb  " + "x" * 5000)

    result = only(perform([("g", "a", check)])).result
    assert result.startswith("OSError: a b xxx") and len(result) < 520


def test_a_summary_counts_what_there_is():
    found = [Check("g", "a", status, "") for status in ("fail", "ok", "ok", "skipped")]
    assert summary(found) == "2 ok, 1 fail, 1 skipped"
    assert summary([]) == ""


def test_a_place_is_slurms_name_of_the_node_if_there_is_one(monkeypatch):
    monkeypatch.setenv("SLURMD_NODENAME", "n12")
    assert host_name() == "n12"
    monkeypatch.delenv("SLURMD_NODENAME")
    assert host_name() == os.uname().nodename.partition(".")[0]


# ---- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("below", ["", "sub", "sub/deep"])
def test_a_file_where_a_folder_should_be_is_a_failure(tmp_path, below):
    (tmp_path / "state").write_text("")
    found = only(doctor.file_system("runtime.state_dir", tmp_path / "state" / below, False))
    assert (found.name, found.status) == ("runtime.state_dir", "fail")
    assert "Not a directory" in found.result and "another folder in the config" in found.advice


def test_a_file_system_of_one_machine_is_a_warning_only_where_several_share_it(monkeypatch, tmp_path):
    for kind, statuses in {"tmpfs": ("warn", "ok"), "overlay": ("warn", "ok"), "nfs4": ("ok", "ok")}.items():
        monkeypatch.setattr(doctor, "mount_of", lambda _, kind=kind: ("/", kind))
        assert tuple(only(doctor.file_system("x", tmp_path, several)).status for several in (True, False)) == statuses


@pytest.mark.parametrize(("free", "status"), [(99, "fail"), (100, "warn"), (149, "warn"), (150, "ok"), (10**15, "ok")])
def test_room_is_tight_up_to_half_as_much_again(monkeypatch, tmp_path, free, status):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: types.SimpleNamespace(free=free))
    found = doctor.free_space(tmp_path / "not" / "yet", 100, "data 100 B")
    assert found.status == status and f"free at {tmp_path}, about 100 B planned (data 100 B)" in found.result
    assert bool(found.advice) == (status != "ok")


MOUNT = """
mkdir -p "{0}/a b/deep" && mount -t tmpfs tmpfs "{0}/a b" && mkdir "{0}/a b/deep" && exec "{1}" -c '
import sys
from pathlib import Path
from iha.doctor import mount_of
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
    kinds = [doctor.mount_of(tmp_path / name)[1] for name in ("in/x", "inner", "other", "../..")]
    assert kinds == ["beegfs", "gpfs", "nfs4", "ext4"], "of two at one place the later hides the first"


# ---- services --------------------------------------------------------------------------------------------------------


def store(uri, several=False):
    return only(doctor.tracking_store(parse_config({"runtime": {"tracking_uri": uri}}), several))


def test_a_store_that_will_be_made_is_well_also_in_a_folder_that_will_be_made(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    new = tmp_path / "not" / "yet" / "m.db"
    assert store(f"sqlite:///{new}") == Check("services", "mlflow", "ok", f"{new} (will be created)")
    (tmp_path / "m.db").write_text("")
    assert store(f"sqlite:///{tmp_path}/m.db").result == f"{tmp_path}/m.db (found)"
    there = store("sqlite:////proc/1/none/m.db")
    assert there.status == "warn" and "is not writable" in there.result


def test_sqlite_on_a_shared_file_system_is_a_warning_for_several_nodes(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(doctor, "mount_of", lambda _: ("/", "lustre"))
    assert [store(f"sqlite:///{tmp_path}/m.db", several).status for several in (True, False)] == ["warn", "ok"]
    assert "mlflow server" in store(f"sqlite:///{tmp_path}/m.db", True).advice


def test_other_stores_are_not_tried_and_no_stores_are_refused(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert store("postgresql://u:secret@host/db") == Check("services", "mlflow", "skipped", "postgresql database: not checked from here")  # fmt: skip
    for uri in ("", "./mlruns"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        with pytest.raises(ConfigError, match="is not a store; allowed: sqlite"):
            store("sqlite:///m.db")


def items(folder, source="files", tasks=WORDS):
    named = {task: source if task != "humaneval" else "package" for task in tasks[0]["tasks"]}
    raw = {"suites": tasks, "items": named, "items_dir": str(folder)}
    return {o.name: o for o in doctor.benchmarks(parse_config({"evals": raw}))}


def test_files_of_items_are_those_that_the_stage_will_read(tmp_path):
    """By writing them: what the check calls whole, the stage `items` takes."""
    from iha.evals.mirror import SETS, write_set

    for name in ("gsm8k_train.jsonl", "math500x.jsonl", "mbpp_train.jsonl", "humaneval_test.jsonl"):
        (tmp_path / name).write_text("")
    found = items(tmp_path)
    assert {name: o.status for name, o in found.items()} == {
        "gsm8k": "fail", "math500": "fail", "mbpp": "fail", "humaneval": "ok",
    }  # fmt: skip
    assert found["math500"].advice == "add math500_test.jsonl to this folder, with the hub's columns"
    for task in ("gsm8k", "math500", "mbpp"):
        with pytest.raises(DataError, match=f"has no {task}_test.jsonl"):
            write_set(tmp_path / "mirror", task, "files", items_dir=tmp_path, limit=None)
        row = json.dumps({**dict.fromkeys(SETS[task].columns, "x"), "task_id": 20, "test_list": ["x"]})
        (tmp_path / ("mbpp.jsonl" if task == "mbpp" else f"{task}_test.jsonl")).write_text(row + "\n")
    (tmp_path / "gsm8k_train.jsonl").unlink()
    assert items(tmp_path)["gsm8k"].advice == "add gsm8k_train.jsonl to this folder, with the hub's columns"
    with pytest.raises(DataError, match=r"has no gsm8k_train\.jsonl"):
        write_set(tmp_path / "mirror", "gsm8k", "files", items_dir=tmp_path, limit=None)
    (tmp_path / "gsm8k_train_4.jsonl").write_text(json.dumps(dict.fromkeys(SETS["gsm8k"].columns, "x")) + "\n")
    assert {o.status for o in items(tmp_path).values()} == {"ok"}
    for task in ("gsm8k", "math500", "mbpp"):
        assert write_set(tmp_path / "mirror", task, "files", items_dir=tmp_path, limit=None).n == 1


def test_items_that_are_made_here_need_no_network_and_those_of_no_suite_are_not_looked_at(tmp_path):
    found = items(tmp_path, "templates", [{**WORDS[0], "tasks": ["gsm8k"]}])
    assert {name: (o.status, o.result) for name, o in found.items()} == {"gsm8k": ("ok", "templates, needs no network")}


def test_each_source_is_looked_at_once_but_conversations_and_text_apart(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "words", "conversations": [{"from": "user", "value": "a"}, {"from": "assistant", "value": "b"}]}\n')  # fmt: skip
    files = {"kind": "files", "paths": [str(tmp_path / "*.jsonl")]}
    data = {
        "pretrain": {"sources": [files, {"kind": "book"}]},
        "extend": {"sources": [{**files, "weight": 2.0}]},
        "sft": {"sources": [{**files, "field": "conversations"}]},
    }
    found = list(doctor.corpora(parse_config({"data": data, "evals": {"haystack": files}})))
    assert [o.name for o in found] == ["pretrain", "pretrain", "sft"]
    assert {o.status for o in found} == {"ok"}
    assert found[0].result == f"files {tmp_path / '*.jsonl'}: read the first document"


def test_packages_that_are_not_installed_are_named():
    docs = {"sources": [{"kind": "docstrings", "packages": ["numpy", "no_such_a", "no_such_b"]}]}
    found = next(doctor.corpora(parse_config({"data": {"pretrain": docs}})))
    assert (found.status, found.advice) == ("fail", "pip install no_such_a no_such_b")
    assert found.result.endswith("not installed: no_such_a, no_such_b")


def test_a_sandbox_is_needed_only_for_suites_that_run_programs(monkeypatch):
    from iha.evals import sandbox

    monkeypatch.setattr(sandbox, "available", lambda: "bwrap is not there. Install bubblewrap. Then start again.")
    words = [{"name": "w", "model": "base", "tasks": ["gsm8k"]}]
    assert only(doctor.sandbox(parse_config({"evals": {"suites": words}}), True)).status == "skipped"
    for here_, status, end in ((True, "fail", "again."), (False, "warn", "again. (on the nodes)")):
        found = only(doctor.sandbox(parse_config({"evals": {"suites": WORDS}}), here_))
        assert (found.status, found.result) == (status, "bwrap is not there")
        assert found.advice.startswith("Install bubblewrap.") and found.advice.endswith(end)


# ---- machine and profile ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mine", "threads", "status", "words"), [(4, 4, "ok", "as requested"), (4, 5, "fail", "5 requested"), (8, 4, "ok", "not bound")])  # fmt: skip
def test_cpus_of_a_job_are_compared_with_what_it_asked_for(monkeypatch, mine, threads, status, words):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(mine)))
    found = only(doctor.cpu_affinity(threads))
    assert found.status == status and words in found.result


def test_a_torch_without_cuda_and_a_node_without_gpus_have_different_reasons(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for cuda, words in (("12.8", "torch sees no GPU"), (None, "built without CUDA")):
        monkeypatch.setattr(torch.version, "cuda", cuda)
        gpu = by_name(doctor.torch_and_gpus(8, "auto"))["gpu"]
        assert gpu.status == "fail" and words in gpu.result


def profile(tmp_path, text):
    (tmp_path / "config.yaml").write_text(text)
    return doctor.read_profile(tmp_path, "smoke")


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
    assert doctor.resource(given, "paper") == value


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
    assert doctor.flags(options) == ("--mem=5M", "--nodes=2", "--requeue")


def test_a_command_that_cannot_be_run_says_why():
    assert doctor.command("/nowhere/x") == (1, "FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/x'")
    assert doctor.command("sh", "-c", "echo out; echo err >&2; exit 3") == (3, "out\nerr")


# ---- the command and its job -----------------------------------------------------------------------------------------


def checks(monkeypatch, tmp_path, cluster, **options):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "config.yaml").write_text(f"submitit-cluster: {cluster}\n")
    monkeypatch.setattr(doctor, "node_checkers", lambda *_, **__: [])
    monkeypatch.setattr(doctor, "disk_space", lambda _: [Check("files", "disk", "ok", "")])
    monkeypatch.setattr(
        doctor, "slurm_commands", lambda needed: [Check("cluster", "slurm", "fail" if needed else "warn", "none")]
    )
    monkeypatch.setattr(doctor, "slurm_requests", lambda *_: pytest.fail("asked a Slurm that is not there"))
    for name in ("tokenizer_source", "corpora", "benchmarks"):
        monkeypatch.setattr(doctor, name, lambda _, name=name: [Check("data", name, "ok", "")])
    args = argparse.Namespace(slurm=False, offline=False, patience=1.0, config=None)
    vars(args).update(options)
    found = doctor.all_checks(parse_config({}), doctor.read_profile(tmp_path / "p", "smoke"), args)
    return [(o.name, o.status) for o in found]


def test_without_a_network_the_hub_is_not_asked(monkeypatch, tmp_path):
    assert checks(monkeypatch, tmp_path, "local", offline=True) == []


def test_a_slurm_that_does_not_answer_is_asked_no_more(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "submit", lambda *_: pytest.fail("submitted to a Slurm that is not there"))
    found = checks(monkeypatch, tmp_path, "slurm", slurm=True)
    assert found[-2:] == [("submitit-folder", "ok"), ("slurm", "fail")]


@pytest.fixture
def process(tmp_path, monkeypatch):
    """A local job of the real plugin, as the doctor starts one."""
    from snakemake_executor_plugin_submitit import ExecutorSettings, jobs
    from snakemake_executor_plugin_submitit.request import JobRequest
    from snakemake_executor_plugin_submitit.task import JobTask

    def _process(line_):
        wanted = JobRequest("pretrain", 1, 0, 0, 1, 1, 0, "")
        live = doctor.new_job(wanted)
        jobs.submit(live, JobTask(line_, "local", requeue=0, grace=5.0), tmp_path / "jobs", ExecutorSettings(cluster="local"))  # fmt: skip
        return live

    monkeypatch.setattr(doctor, "POLL", 0.05)
    return _process


def test_a_job_that_does_not_end_in_time_is_cancelled_and_said_so(process, tmp_path):
    live = process(f"echo $$ > {tmp_path}/pid; exec sleep 300")
    wait_for((tmp_path / "pid").exists, what="the job")
    problem = doctor.wait_for_job(live, True, 0.0)
    assert problem == "not finished after 0 s; cancelled"
    found = doctor.job_check(live, problem, False)
    assert found.status == "fail" and found.result.startswith(f"job {live.id}: not finished after 0 s; cancelled")
    assert found.advice == f"read {live.log}; `squeue --me` shows why a job waits"


def test_a_job_that_ends_without_a_report_shows_its_last_line(process):
    live = process("echo broken; exit 1")
    assert doctor.wait_for_job(live, True, 60.0) == ""
    found = doctor.job_check(live, "", False)
    assert found.status == "fail" and "no report; last line of its log: " in found.result
    good = doctor.job_check(live, "", True)
    assert good.status == "ok" and not Path(live.result_file).exists() and live.log.exists()


def test_what_the_node_is_asked_is_the_request_of_the_profile(tmp_path):
    wanted = types.SimpleNamespace(nodes=2, tasks_per_node=8, threads=4, gpus=8)
    work = doctor.node_task(tmp_path / "a b.json", Path("my.yaml"), wanted, types.SimpleNamespace(cluster="slurm"))
    assert f"--report '{tmp_path}/a b.json' --nodes 2 --tasks 8 --threads 4 --gpus 8" in work.command
    assert work.command.endswith(f"--config {Path('my.yaml').absolute()}") and work.max_requeues == 0
