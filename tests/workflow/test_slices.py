"""Slices: a key reaches the stages that use it and no others, and dumps are stable (SNK-02, SNK-04)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from iha.config.load import parse_config
from iha.config.schema import Config
from iha.planning import dag
from iha.planning.slices import SPLITS, LedgerSlice, TrainSlice

SMALL = {
    "experiment": "small",
    "scale": "smoke",
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
        "theory": dag.theory_slice(),
        "separation": dag.separation_slice(config),
        **{f"tokenise.{split}": dag.tokenise_slice(config, split) for split in SPLITS},
        **{f"ruler.{length}": dag.ruler_slice(config, length) for length in dag.ruler_lengths(config)},
        **{f"evaluate.{s.name}.{s.model}": dag.eval_slice(config, s.name, s.model) for s in config.evals.suites},
    }
    for variant in config.variants:
        for seed in config.seeds:
            for stage in SPLITS:
                out[f"{stage}.{variant.name}.{seed}"] = dag.train_slice(config, stage, variant.name, seed)
    return {name: dag.dump(part) for name, part in out.items() if part is not None}


BASE = slices(parse_config(SMALL))
KINDS = ("global", "global_local", "talking_heads", "diff", "iha")
TRAINED = {f"{stage}.{kind}.1" for stage in SPLITS for kind in KINDS}
EVALUATED = {"evaluate.ruler.long", "evaluate.words.base", "evaluate.words.sft"}
WORDS = {"evaluate.words.base", "evaluate.words.sft"}
MODEL = TRAINED | {"flops"}

REACHES = {
    "experiment": ("other", {"report", "tracking"}),
    "scale": ("ladder", {"report", "separation"}),
    "separation__seeds": (1, {"separation"}),
    "separation__cpm": ({"sizes": [4]}, {"separation"}),
    "model__ffn_dim": (64, MODEL),
    "model__rope_theta": (10_000.0, MODEL),
    "tokenizer__train_bytes": (2000, {"tokenizer"}),
    "tokenizer__vocab_size": (600, MODEL | {"tokenizer"}),
    "data__pretrain__max_tokens": (90_000, {"tokenizer", "tokenise.pretrain"}),
    "data__extend__min_document_tokens": (9, {"tokenise.extend"}),
    "data__sft__max_tokens": (9000, {"tokenise.sft"}),
    "data__shard_tokens": (5000, {f"tokenise.{s}" for s in SPLITS}),
    "pretrain__lr": (1e-3, {f"pretrain.{k}.1" for k in KINDS}),
    "pretrain__steps": (3000, {f"pretrain.{k}.1" for k in KINDS} | {"flops"}),
    "extend__lr": (1e-3, {f"extend.{k}.1" for k in KINDS}),
    "sft__betas": ([0.9, 0.99], {f"sft.{k}.1" for k in KINDS}),
    "sft__seq_len": (256, {f"sft.{k}.1" for k in KINDS} | {"flops", "tokenise.sft"}),
    "engine__precision": ("fp32", TRAINED),
    "match": ("tokens", {n for n in TRAINED if ".global." not in n} | {"flops", "report"}),
    "evals__limit": (2, WORDS | {"items"}),
    "evals__samples": (3, {"evaluate.words.sft"}),
    "evals__base_samples": (3, {"evaluate.words.base"}),
    "evals__temperature": (0.7, WORDS),
    "evals__ruler_samples": (7, {"ruler.128", "ruler.256"}),
    "evals__haystack": ({"kind": "book"}, {"items"}),
    "evals__items": ({"gsm8k": "hub"}, {"items"}),
    "runtime__state_dir": ("elsewhere", set()),
    "runtime__results_dir": ("elsewhere", set()),
    "runtime__workers": (7, set()),
    "runtime__threads": (7, set()),
    "runtime__device": ("cpu", set()),
    "runtime__tracking_uri": ("http://host", set()),
    "plan__price_per_gpu_hour": (1.0, set()),
}


@pytest.mark.parametrize("key", REACHES)
def test_snk_02_a_key_reaches_its_stages_only(key):
    value, stages = REACHES[key]
    now = slices(parse_config(changed(**{key: value})))
    assert now.keys() == BASE.keys()
    differ = {name for name in now if now[name] != BASE[name]}
    if key in ("tokenizer__vocab_size", "match", "sft__seq_len"):
        assert differ <= stages
        assert differ >= {"flops"}
    else:
        assert differ == stages


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
sys.path.insert(0, sys.argv[1])
from test_slices import SMALL, slices
from iha.config.load import parse_config
from iha.planning.dag import entry_modules
from iha.artifacts.fingerprint import code_fingerprint
config = parse_config(SMALL)
code = code_fingerprint(*entry_modules("flops", config.variants, torch=False))
print(json.dumps([slices(config), code]))
"""


def test_snk_04_slices_and_fingerprints_do_not_depend_on_the_hash_seed():
    def output(seed: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(Path(__file__).parent)],
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
