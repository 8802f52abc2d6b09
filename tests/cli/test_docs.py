"""The documentation builds without a warning, fetches nothing, and what it shows works."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from chromium import BINARY
from dag import checkout
from docslab import ROOT, Requests, blocks, commands, pages

from iha import cli
from iha.artifacts.manifest import Manifest, write_manifest
from iha.config.load import load_config
from iha.planning.dag import ledger_slice
from iha.planning.flops import ledger

#: Commands of the reader's system that stand in the pages and need no check here.
SYSTEM = {"git", "cd", ".", "export", "tail", "sinfo", "sacctmgr", "squeue", "scontrol", "srun", "sbatch", "tmux"}
#: Run as they stand.
FILES = {"cp", "sed"}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site; a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.chromium
@pytest.mark.skipif(BINARY is None, reason="no Chromium here")
def test_the_search_answers_in_a_page_opened_from_a_file(site, tmp_path):
    command = [BINARY, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=15000", "--dump-dom",
               f"--user-data-dir={tmp_path}", f"file://{site}/index.html?q=pseudo"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert re.search(r"[1-9]\d* matching document", done.stdout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkout whose ledger has been made."""
    folder = checkout(tmp_path_factory.mktemp("reader"))
    shutil.copytree(ROOT / "slurm", folder / "slurm")
    shutil.copy(ROOT / "Makefile", folder)
    facts = ledger(ledger_slice(load_config(ROOT / "configs" / "smoke.yaml")))
    write_manifest(folder / "results/smoke/flops.json", Manifest(stage="flops", slice={}, code="c", metadata=facts))
    toy = (ROOT / "configs" / "smoke.yaml").read_text()
    (folder / "configs" / "toy.yaml").write_text(toy + variant_lines())
    shutil.copy(ROOT / "tests" / "toy_variant.py", folder)
    return folder


def variant_lines() -> str:
    """The config lines of the page on variants."""
    (block,) = (b for b in blocks("yaml") if b.page == "docs/howto/variant.md")
    return block.text


def test_no_page_of_the_site_fetches_anything(site):
    seen = 0
    for page in site.rglob("*.html"):
        parser = Requests()
        parser.feed(page.read_text())
        assert [url for url in parser.urls if re.match(r"(\w+:)?//", url)] == [], page
        seen += len(parser.urls)
    assert seen > 50
    for sheet in site.rglob("*.css"):
        assert not re.search(r"@import|url\(\s*[\"']?(https?:)?//", sheet.read_text()), sheet


def test_every_section_of_the_config_and_every_command_has_its_entry(site):
    config = (site / "reference" / "config.html").read_text()
    for key in ("pretrain.sources", "global_batch", "keep_checkpoints", "state_dir", "pseudo_heads", "ruler_samples"):
        assert key in config, key
    text = (site / "reference" / "cli.html").read_text()
    for command in ("iha config", "iha flops", "make demo", "python -m iha.stages"):
        assert command in text, command


@pytest.mark.parametrize("page", pages())
def test_links_between_files_of_the_project_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if not re.match(r"\w+:", target):
            assert ((ROOT / page).parent / target).exists(), (page, target)


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_python_examples_run(block, folder, monkeypatch):
    monkeypatch.chdir(folder)
    exec(compile(block.text, block.page, "exec"), {"__name__": "example"})


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_configuration_examples_are_valid(block, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests"))
    path = tmp_path / "example.yaml"
    path.write_text(block.text)
    load_config(path)


@pytest.mark.parametrize("block", blocks("sh", "bash", "console"), ids=str)
def test_commands_exist_and_take_the_options_shown(block, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    for command in commands(block.text):
        check(command, folder)


def test_commands_of_unlabelled_blocks_too(folder, monkeypatch):
    monkeypatch.chdir(folder)
    found = [c for b in blocks("") for c in commands(b.text) if Path(c[0]).name in ("iha", "snakemake", "make")]
    assert found
    for command in found:
        check(command, folder)


def check(command: list[str], folder: Path) -> None:
    """Run what is cheap, parse what is not, and refuse what is unknown."""
    name, args = command[0].rpartition("/")[2] or command[0], command[1:]
    if name == "iha" and args[0] in ("config", "flops"):
        cli.main(args[: args.index(">")] if ">" in args else args)
    elif name == "iha":
        parse_iha(args)
    elif name == "snakemake":
        parse_snakemake(args)
    elif name == "make":
        targets = re.findall(r"^([a-z-]+):", (folder / "Makefile").read_text(), re.M)
        assert {a for a in args if "=" not in a} <= set(targets), command
    elif name.startswith("python"):
        assert args[0] == "-m"
        assert importlib.util.find_spec(args[1]), command
    elif name in FILES:
        before = (folder / args[-1]).read_bytes() if name == "sed" else b""
        subprocess.run(command, cwd=folder, check=True)
        assert (folder / args[-1]).read_bytes() != before, f"{command} changed nothing"
    else:
        assert name in SYSTEM or "=" in name, f"{command}: neither run nor known"


def test_tutorial_tells_the_numbers_of_the_small_run():
    text, config = (ROOT / "docs/tutorial.md").read_text(), load_config(ROOT / "configs" / "smoke.yaml")
    priced = ledger(ledger_slice(config))["variants"]
    diff, reference, local = (priced[name]["steps"]["pretrain"] for name in ("diff", "global", "global_local"))
    assert f"fewer steps ({diff} instead of {reference})" in text
    assert f"gets more ({local})" in text
    assert config.evals.limit == 6 and "a benchmark has six items" in text


def parse_iha(args: list[str]) -> None:
    """The command line takes the options."""
    try:
        cli.parser().parse_args(args)
    except SystemExit as end:
        assert end.code == 0, args


def parse_snakemake(args: list[str]) -> None:
    """Snakemake's own parser takes the options; the config files named are valid."""
    from snakemake.cli import parse_args

    _, parsed = parse_args(args)
    for path in parsed.configfile or ():
        load_config(Path(path))


def test_pictures_are_small_and_on_a_page():
    text = "".join((ROOT / page).read_text() for page in pages())
    for path in (ROOT / "docs" / "img").iterdir():
        assert path.stat().st_size < 150_000, path.name
        assert f"img/{path.name}" in text, f"{path.name} is on no page"


def test_every_command_shows_an_example_and_speaks_json():
    (group,) = (a for a in cli.parser()._actions if isinstance(a, argparse._SubParsersAction))
    assert len(group.choices) >= 8
    for name, command in group.choices.items():
        text = command.format_help()
        assert f"\n  iha {name}" in text.partition("example")[2], name
        assert name in ("export", "sample", "lm-eval") or "--json" in text, f"{name}: a machine would read it"
