"""Local data that a configuration names and that is not there is found before any job starts."""

import pytest

from iha.config.load import parse_config
from iha.errors import ConfigError
from iha.planning import bubblewrap
from iha.planning.preflight import check, check_profiles

GSM8K = {"suites": [{"name": "w", "model": "base", "tasks": ["gsm8k"]}], "items": {"gsm8k": "files"}}


def corpus(**source):
    return {"data": {"pretrain": {"sources": [{"kind": "book"}, source]}}}


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (corpus(kind="files", paths=["nowhere/*.jsonl"]), "data.pretrain.sources.1.paths: 'nowhere/*.jsonl' matches no file; allowed:"),
        (corpus(kind="docstrings", packages=["numpy", "nump"]), "data.pretrain.sources.1.packages: 'nump' is not instal"),
        (corpus(kind="docstrings", packages=["a.b"]), "data.pretrain.sources.1.packages: 'a.b' is not installed"),
        ({"evals": {**GSM8K, "items_dir": "/nowhere"}}, "evals.items_dir is '/nowhere'; allowed: a folder that exists"),
        ({"evals": {"haystack": {"kind": "files", "paths": ["x.txt"]}}}, "evals.haystack.paths: 'x.txt' matches no file; allowed:"),
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


@pytest.mark.parametrize("field", ["state_dir", "results_dir"])
def test_a_file_in_place_of_a_folder_is_named(tmp_path, monkeypatch, field):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("")
    for value in ("taken", "taken/below"):
        with pytest.raises(ConfigError) as caught:
            check(parse_config({"runtime": {field: value}}), "mine.yaml")
        assert str(caught.value).startswith(f"mine.yaml: runtime.{field} is '{value}', but taken is a file")


@pytest.mark.parametrize(
    "uri", ["sqlite:///x{y}.db", "sqlite:///", "sqlite://", "sqlite:///:memory:", "http://a b", "x'y"]
)
def test_an_address_that_no_store_can_have_is_refused(uri):
    with pytest.raises(ConfigError) as caught:
        parse_config({"runtime": {"tracking_uri": uri}})
    assert "runtime.tracking_uri" in str(caught.value)


@pytest.mark.parametrize(
    "raw",
    [
        {"model": {"hidden_dim": 2**40, "n_heads": 2}},
        {"model": {"n_layers": 10**6}},
        {"tokenizer": {"vocab_size": 2**40}},
    ],
)
def test_a_model_that_no_machine_holds_is_refused(raw):
    ((section, fields),) = raw.items()
    with pytest.raises(ConfigError) as caught:
        parse_config(raw)
    assert f"{section}.{next(iter(fields))} is {next(iter(fields.values()))}" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("default-resources: {runtime: 72:00:00}", "default-resources.runtime is 72:00:00"),
        ("set-resources: {pretrain: {runtime: 1:30}}", "set-resources.pretrain.runtime is 1:30"),
        ("default-resources: ['runtime=12:00']", "default-resources.runtime is 12:00"),
        ("default-resources: {runtime: 4320}\nset-resources: {sft: {runtime: 3d}}", None),
        ("submitit-extra: '--begin=12:00:00'", None),
    ],
)
def test_times_with_colons_in_a_profile_are_refused(tmp_path, monkeypatch, text, refused):
    """YAML 1.1 reads 72:00:00 as 259200, which as minutes is half a year."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.yaml").write_text(text)
    for arguments, environ in (
        (["snakemake", "--profile", "mine"], {}),
        (["snakemake", f"--profile={tmp_path}/mine"], {}),
        ([], {"SNAKEMAKE_PROFILE": "mine"}),
    ):
        if refused is None:
            check_profiles(arguments, environ)
        else:
            with pytest.raises(ConfigError) as caught:
                check_profiles(arguments, environ)
            assert f"{'mine/config.yaml'}: {refused}" in str(caught.value)
    check_profiles(["snakemake", "--profile", "elsewhere"], {})
