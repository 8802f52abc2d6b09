"""Local data that a configuration names and that is not there is found before any job starts."""

import pytest

from iha.config.load import parse_config
from iha.errors import ConfigError
from iha.planning import bubblewrap
from iha.planning.preflight import check

GSM8K = {"suites": [{"name": "w", "model": "base", "tasks": ["gsm8k"]}], "items": {"gsm8k": "files"}}


def corpus(**source):
    return {"data": {"pretrain": {"sources": [{"kind": "book"}, source]}}}


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (corpus(kind="files", paths=["nowhere/*.jsonl"]), "data.pretrain.sources.1.paths is ['nowhere/*.jsonl'], which"),
        (corpus(kind="docstrings", packages=["numpy", "nump"]), "data.pretrain.sources.1.packages: 'nump' is not instal"),
        (corpus(kind="docstrings", packages=["a.b"]), "data.pretrain.sources.1.packages: 'a.b' is not installed"),
        ({"evals": {**GSM8K, "items_dir": "/nowhere"}}, "evals.items_dir is '/nowhere'; allowed: a folder that exists"),
        ({"evals": {"haystack": {"kind": "files", "paths": ["x.txt"]}}}, "evals.haystack.paths is ['x.txt'], which"),
        ({"runtime": {"tracking_uri": "./mlruns"}}, "runtime.tracking_uri: './mlruns' is not a store; allowed: sqlite:///"),
        ({"tokenizer": {"name": "/nowhere/llama"}}, "tokenizer.name is '/nowhere/llama'; allowed: a folder that exists"),
    ],
)  # fmt: skip
def test_what_is_missing_is_one_line(raw, words, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ConfigError) as caught:
        check(parse_config(raw), "mine.yaml")
    assert str(caught.value).startswith(f"mine.yaml: {words}")
    assert len(str(caught.value).splitlines()) == 1


def test_what_is_there_passes(tmp_path):
    (tmp_path / "a.jsonl").write_text("{}")
    check(parse_config(corpus(kind="files", paths=[f"{tmp_path}/*.jsonl"])), "mine.yaml")
    check(parse_config({"evals": {**GSM8K, "items_dir": str(tmp_path)}}), "mine.yaml")
    check(parse_config({}), "mine.yaml")


def test_a_folder_that_cannot_be_written_to_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".snakemake").symlink_to("/proc/1")  # where nobody makes files, not even root
    with pytest.raises(ConfigError) as caught:
        check(parse_config({}), "mine.yaml")
    assert str(caught.value).startswith(f"{tmp_path} cannot be written to")


def test_blank_cells_are_announced_at_the_start_with_the_reason(monkeypatch, capsys):
    monkeypatch.setattr(bubblewrap, "unavailable", lambda: "no namespaces. Allow them.")
    suite = {"name": "w", "model": "base", "tasks": ["gsm8k", "mbpp"]}
    check(parse_config({"evals": {"suites": [suite]}}), "mine.yaml")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("mbpp: ") and line.endswith("no namespaces. Allow them.")
    check(parse_config({"evals": {"suites": [{**suite, "tasks": ["gsm8k"]}]}}), "mine.yaml")
    assert capsys.readouterr().err == ""
