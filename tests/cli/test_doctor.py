"""`iha doctor` on this machine; as a Slurm job it runs in test_slurm_jobs.py."""

import fcntl
import http.server
import json
import threading
from pathlib import Path

import pytest
import torch
from dag import ROOT

from iha import cli
from iha.config.load import load_config
from iha.config.schema import Config
from iha.doctor import command, kernels, machine, services, site, storage
from iha.doctor.outcome import Outcome, line, perform
from iha.model.attention.kernels import dispatch
from iha.model.attention.masks import Mask

MICRO = ROOT / "tests/configs/micro.yaml"


def by_name(outcomes):
    return {o.check: o for o in outcomes}


def test_doctor_prints_json_and_fails_only_if_something_fails(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SNAKEMAKE_SUBMITIT_CLUSTER", "local")
    profile = str(ROOT / "slurm")
    with pytest.raises(SystemExit) as done:
        cli.main(["doctor", "--config", str(MICRO), "--profile", profile, "--json"])
    found = {row["check"]: row for row in json.loads(capsys.readouterr().out)}
    assert done.value.code == any(row["status"] == "fail" for row in found.values())
    for name in ("python", "torch", "kernel sdpa", "files runtime.state_dir", "mlflow", "disk", "data pretrain"):
        assert found[name]["status"] == "ok", found[name]
    assert found["job"]["status"] == "skipped" and "slurm" not in found


def test_doctor_without_a_profile_is_one_message(capsys):
    with pytest.raises(SystemExit) as done:
        cli.main(["doctor", "--profile", "/nowhere"])
    assert done.value.code == 2 and "--profile: '/nowhere' has no config.yaml" in capsys.readouterr().err


def test_a_check_that_breaks_does_not_end_the_others():
    found = list(perform([("first", lambda: 1 / 0), ("second", lambda: [Outcome("second", "ok", "fine")])], "here"))
    assert [(o.check, o.status, o.where) for o in found] == [("first", "fail", "here"), ("second", "ok", "here")]
    assert "ZeroDivisionError" in found[0].found


def test_only_what_is_not_well_comes_with_advice():
    assert "->" not in line(Outcome("disk", "ok", "room", "buy a disk"))
    assert line(Outcome("disk", "fail", "full", "buy a disk")).endswith("-> buy a disk")


def test_wrong_kernel_is_caught(monkeypatch):
    """A kernel that ignores the window is within rounding for causal attention and far off for the others."""

    def blind(q, k, v, mask, scale):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)

    monkeypatch.setitem(dispatch.KERNELS, "banded", blind)
    found = by_name(kernels.check("cpu"))
    assert found["kernel sdpa"].status == "ok"
    assert (
        found["kernel banded (auto)"].status == "fail"
        and "engine.backend: reference" in found["kernel banded (auto)"].advice
    )
    assert kernels.worst_error("banded", Mask(384, 384), torch.device("cpu")) < 1e-5
    assert {o.status for o in found.values()} == {"ok", "fail", "skipped"}


def test_missing_gpus_fail_where_gpus_were_asked_for():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert by_name(machine.torch_and_gpus(0, "auto"))["gpu"].status == "skipped"
    for wanted, device in ((8, "auto"), (0, "cuda")):
        assert by_name(machine.torch_and_gpus(wanted, device))["gpu"].status == "fail"


def test_sub_03_fewer_cpus_than_asked_for_are_reported():
    assert next(machine.affinity(1)).status == "ok"
    assert next(machine.affinity(10_000)).status == "fail"


def test_files_are_tried_and_no_trace_stays(tmp_path, monkeypatch):
    assert next(storage.check("state", tmp_path / "not" / "yet", False)).status == "ok"
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(storage, "SLOW_MS", 0.0)
    assert next(storage.check("state", tmp_path, False)).status == "warn"
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    broken = next(storage.check("state", tmp_path, False))
    assert broken.status == "fail" and "given to two holders" in broken.found


def test_folder_that_cannot_be_written_is_named():
    assert next(storage.check("state", Path("/proc/self"), False)).status == "fail"


def test_disk_is_compared_with_what_the_run_will_write(tmp_path):
    small = next(command.disk(load_config(MICRO)))
    assert small.status == "ok" and "checkpoints and weights" in small.found
    assert "TB planned" in next(command.disk(Config())).found
    free = storage.free_bytes(tmp_path)
    states = [next(storage.room(tmp_path, int(free * share), "x")).status for share in (0.1, 0.9, 1.1)]
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
    assert next(services.tracking(Config(), True)).status == "ok"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    away = next(services.tracking(Config(), True))
    assert away.status == "warn" and "iha.tracking.sync" in away.advice


def test_data_that_is_not_there_is_named(tmp_path):
    raw = {"data": {"pretrain": {"sources": [{"kind": "files", "paths": [str(tmp_path / "*.jsonl")]}]}}}
    raw |= {"tokenizer": {"kind": "hub", "name": str(tmp_path), "vocab_size": 300}}
    config = Config.model_validate_json(json.dumps(raw))
    found = next(services.data(config))
    assert found.status == "fail" and "nothing matches" in found.found and found.advice
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "words"}) + "\n")
    assert next(services.data(config)).status == "ok"


def test_profile_is_read_as_snakemake_reads_it(monkeypatch):
    monkeypatch.setenv("SNAKEMAKE_SUBMITIT_PARTITION", "gpu")
    paper, smoke = (site.read_profile(ROOT / "slurm", scale) for scale in ("paper", "smoke"))
    assert paper.resources("pretrain")["nodes"] == 16 and smoke.resources("pretrain")["nodes"] == 2
    assert smoke.resources("items")["runtime"] == 60
    wanted = site.request_of(paper, "pretrain", 8)
    assert (wanted.gpus, wanted.tasks_per_node, wanted.threads, wanted.site["partition"]) == (8, 8, 8, "gpu")
    assert paper.settings.lead == 300 and site.value("gpu", "paper") == "gpu"


def test_without_slurm_commands_it_is_said_what_to_do(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    assert [next(site.commands(needed)).status for needed in (True, False)] == ["fail", "warn"]
