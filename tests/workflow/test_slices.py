"""Slices: a key reaches the stages that it declares and no others, and dumps are stable."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import settings
import yaml

from iha.config.base import Frozen
from iha.config.load import parse_config
from iha.config.schema import SPLITS, Config
from iha.planning import dag
from iha.planning.slices import LedgerSlice, TrainSlice
from iha.studies.recall import grid as recall
from iha.studies.relations import grid
from iha.studies.separation.grid import SeparationSlice

SMALL = {
    "experiment": "small",
    "scale": "smoke",
    "match": "flops",
    "model": {"hidden_dim": 32, "n_layers": 5, "n_heads": 4, "ffn_dim": 48},
    "tokenizer": {"kind": "bpe", "vocab_size": 512, "train_bytes": 1000},
    "data": {
        "pretrain": {"sources": [{"kind": "docstrings"}], "max_tokens": 100_000},
        "extend": {"sources": [{"kind": "book"}], "max_tokens": 10_000},
        "sft": {"sources": [{"kind": "templates"}]},
    },
    "pretrain": {"seq_len": 64, "steps": 2000, "global_batch": 4},
    "extend": {"seq_len": 512, "steps": 20, "global_batch": 2, "warmup_steps": 2},
    "sft": {"seq_len": 128, "steps": 20, "global_batch": 2, "warmup_steps": 2},
    "evals": {
        "suites": [
            {"name": "ruler", "model": "long", "tasks": ["vt", "cwe"], "lengths": [128, 256]},
            {"name": "words", "model": "base", "tasks": ["gsm8k"]},
            {"name": "words", "model": "sft", "tasks": ["gsm8k"]},
        ],
        "items": {"gsm8k": "templates"},
    },
    "separation": {"seeds": 2},
}


def changed(**changes) -> dict:
    """SMALL with dotted keys (dots as two underscores) replaced."""
    raw = yaml.safe_load(yaml.safe_dump(SMALL))
    for dotted, value in changes.items():
        *path, last = dotted.split("__")
        section = raw
        for key in path:
            section = section.setdefault(key, {})
        section[last] = value
    return raw


def slices(config: Config) -> dict[str, str]:
    """Every slice of a config as its job would receive it."""
    out = {
        "tokenizer": dag.tokenizer_slice(config),
        "flops": dag.ledger_slice(config),
        "items": dag.items_slice(config),
        "report": dag.report_slice(config),
        "tracking": dag.tracking_slice(config),
        **({} if config.synthetic is None else relation_slices(config)),
        "recall": config.recall and recall.RecallReportSlice(scale=config.scale, reference=config.reference),
        **{f"recall_train.{run}": recall.recall_slice(config, *run) for run in recall.runs(config)},
        "separation": config.separation and SeparationSlice(scale=config.scale, separation=config.separation),
        **{f"tokenise.{split}": dag.tokenise_slice(config, split) for split in SPLITS},
        **{f"ruler.{length}": dag.ruler_slice(config, length) for length in dag.ruler_lengths(config)},
        **{f"evaluate.{s.name}.{s.model}": dag.eval_slice(config, s.name, s.model) for s in config.evals.suites},
    }
    for variant in config.variants:
        for seed in config.seeds:
            for stage in SPLITS:
                out[f"{stage}.{variant.name}.{seed}"] = dag.train_slice(config, stage, variant.name, seed)
    return {name: dag.dump(part) for name, part in out.items() if part is not None}


def relation_slices(config: Config) -> dict[str, Frozen]:
    study = config.synthetic
    return {
        "synthetic_report": grid.report_slice(config.scale, study),
        **{f"synthetic_data.{task.name}": grid.data_slice(study, task.name) for task in study.tasks},
        **{f"synthetic_train.{key}": grid.train_slice(study, *key) for key in grid.runs(study)},
    }


BASE = slices(parse_config(SMALL))
KINDS = ("global", "global_local", "talking_heads", "diff", "iha")

#: Keys that have no other legal value in BASE; the values of optional sections that are absent.
FIXED = {"data.sft.max_document_tokens"}
ALL = parse_config(
    {
        **SMALL,
        "recall": {"pairs": 2, "keys": 4},
        "synthetic": {"tasks": [{"name": "b", "hops": 2, "min_size": 2, "max_size": 3, "density": 0.4}]},
    }
)


def stages_of(config: Config) -> dict[str, set[str]]:
    """Slices by stage."""
    found: dict[str, set[str]] = {}
    for name, part in slices(config).items():
        found.setdefault(name.partition(".")[0], set()).add(f"{name} {part}")
    return found


@pytest.mark.parametrize(("key", "value", "declared"), [pytest.param(*k, id=k[0]) for k in settings.keys(ALL)])
def test_a_key_is_in_the_slices_of_the_stages_that_it_declares_and_in_no_others(key, value, declared):
    assert declared is not None, f"{key}: mark it, or its section, with iha.config.base.Reruns"
    changes = settings.other(ALL, key, value)
    if changes is None:
        assert key in FIXED, f"{key}: give it another value in tests/settings.py"
        return
    before, after = stages_of(ALL), stages_of(parse_config(settings.changed(ALL, changes)))
    differ = {stage for stage in before.keys() | after.keys() if before.get(stage) != after.get(stage)}
    if key.startswith("synthetic."):  # a grid: most keys are of some runs only
        assert differ <= declared
    else:
        assert differ == declared


def test_a_tokenizer_that_exists_does_not_depend_on_the_corpus():
    hub = {"kind": "hub", "name": "x", "vocab_size": 512}
    one = parse_config(changed(tokenizer=hub))
    two = parse_config(changed(tokenizer=hub, data__pretrain__max_tokens=90_000))
    assert dag.tokenizer_slice(one) == dag.tokenizer_slice(two)


def test_a_new_variant_or_seed_leaves_the_others_alone():
    variants = [{"name": k, "attention": {"kind": k}} for k in KINDS]
    more = {"name": "iha_p4", "attention": {"kind": "iha", "pseudo_heads": 4}}
    now = slices(parse_config(changed(variants=[*variants, more], seeds=[1, 2])))
    assert {name for name in BASE if now[name] != BASE[name]} == {"flops", "report"}
    assert len(now) == len(BASE) + 3 * (6 * 2 - 5)


def test_a_changed_variant_reruns_itself():
    variants = [{"name": k, "attention": {"kind": k, **({"mask": "token"} if k == "iha" else {})}} for k in KINDS]
    now = slices(parse_config(changed(variants=variants)))
    assert {n for n in BASE if now[n] != BASE[n]} == {"flops", "pretrain.iha.1", "extend.iha.1", "sft.iha.1"}


def test_train_slices_carry_the_matched_steps():
    config = parse_config(SMALL)
    steps = {k: dag.train_slice(config, "pretrain", k, 1).steps for k in KINDS}
    assert steps["global"] == 2000
    assert steps["global_local"] > 2000 > steps["diff"]
    literal = parse_config(changed(match="tokens"))
    assert {dag.train_slice(literal, "pretrain", k, 1).steps for k in KINDS} == {2000}


@pytest.mark.parametrize("kind", KINDS)
def test_a_slice_reads_back_as_it_was(kind):
    part = dag.train_slice(parse_config(SMALL), "extend", kind, 1)
    again = TrainSlice.model_validate_json(dag.dump(part))
    assert dag.dump(again) == dag.dump(part)
    assert again.variant == part.variant
    assert again.recipe.lr == 1e-4
    ledger = dag.ledger_slice(parse_config(SMALL))
    assert LedgerSlice.model_validate_json(dag.dump(ledger)) == ledger


def test_the_order_of_keys_in_the_file_does_not_matter():
    def turned(tree):
        return {k: turned(v) for k, v in reversed(tree.items())} if isinstance(tree, dict) else tree

    items = {"gsm8k": "templates", "humaneval": "package"}
    raw = changed(evals__items=items)
    assert slices(parse_config(turned(raw))) == slices(parse_config(raw))


SCRIPT = """
import sys, json
sys.path[:0] = sys.argv[1:]
from test_slices import SMALL, slices
from iha.config.load import parse_config
from iha.planning.dag import entry_modules
from iha.artifacts.fingerprint import code_fingerprint
config = parse_config(SMALL)
code = code_fingerprint(*entry_modules("flops", config.variants, torch=False))
print(json.dumps([slices(config), code]))
"""


def test_slices_and_fingerprints_do_not_depend_on_the_hash_seed():
    def output(seed: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(Path(__file__).parent), str(Path(__file__).parents[1])],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    first = output("1")
    assert first == output("2")
    for word in ("/tmp", str(Path.cwd()), os.uname().nodename):
        assert word not in first


def test_ruler_lengths_join_the_tasks_of_all_suites():
    suites = [
        {"name": "a", "model": "long", "tasks": ["vt"], "lengths": [128, 256]},
        {"name": "b", "model": "long", "tasks": ["fwe", "cwe"], "lengths": [256]},
    ]
    config = parse_config(changed(evals__suites=suites))
    assert dag.ruler_lengths(config) == {128: ("vt",), 256: ("cwe", "fwe", "vt")}
    assert dag.suite_of(config, "b", "long").tasks == ("fwe", "cwe")
