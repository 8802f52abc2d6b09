"""`iha config` and `iha flops`: what a user sees, and one line where something is wrong."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from iha.cli import main
from iha.config.load import load_config, parse_config
from iha.planning.dag import ledger_slice
from iha.planning.flops import ledger

SMOKE = str(Path(__file__).parents[2] / "configs" / "smoke.yaml")


def test_flops_prints_one_line_per_variant(capsys):
    main(["flops", "--config", SMOKE])
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].split()[:4] == ["variant", "params", "M", "GFLOP/token"]
    assert [line.split()[0] for line in lines[1:6]] == ["global", "global_local", "talking_heads", "diff", "iha"]
    assert len({len(line) for line in lines[:6]}) == 1
    assert "match: flops" in out
    steps = load_config(Path(SMOKE)).pretrain.steps
    assert re.search(rf"^global .* {steps} .* \+0\.000% ", out, re.M)


def test_flops_json_is_the_ledger(capsys):
    main(["flops", "--json"])
    assert json.loads(capsys.readouterr().out) == ledger(ledger_slice(load_config(Path(SMOKE))))


def test_config_prints_what_reads_back_as_the_same_config(capsys):
    main(["config", "--config", SMOKE])
    text = capsys.readouterr().out
    main(["config", "--config", SMOKE, "--json"])
    as_json = json.loads(capsys.readouterr().out)
    assert parse_config(as_json) == load_config(Path(SMOKE))
    assert yaml.safe_load(text) == as_json


def test_what_config_prints_can_be_run(tmp_path, capsys):
    main(["config"])
    path = tmp_path / "resolved.yaml"
    path.write_text(capsys.readouterr().out)
    assert load_config(path) == load_config(Path(SMOKE))


def test_schema_is_json(capsys):
    main(["config", "--schema"])
    assert json.loads(capsys.readouterr().out)["properties"]["pretrain"]


@pytest.mark.parametrize("command", ["flops", "config"])
def test_a_wrong_file_is_one_line_and_status_2(tmp_path, capsys, command):
    path = tmp_path / "wrong.yaml"
    path.write_text("pretrain: {lr: 3e-4x}\n")
    with pytest.raises(SystemExit) as caught:
        main([command, "--config", str(path)])
    assert caught.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"iha: {path}: pretrain.lr is '3e-4x'; allowed: a number, such as 3e-4\n"


@pytest.mark.parametrize("args", [[], ["config"], ["flops"], ["trace"], ["diff"], ["theory"], ["sample"], ["export"]])
def test_help_has_an_example(capsys, args):
    with pytest.raises(SystemExit) as caught:
        main([*args, "--help"])
    assert caught.value.code == 0
    assert re.search(r"examples?:\n  iha \w+", capsys.readouterr().out)


def test_no_command_is_an_error(capsys):
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_the_ledger_and_the_config_are_read_without_torch():
    code = "import sys; from iha.cli import main; main(['flops']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
