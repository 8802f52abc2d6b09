"""Boundaries of the configuration, options on the command line, and text that looks like something else."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import Field

from iha.cli import main
from iha.config import load as configcheck
from iha.config.load import load_config, parse_config
from iha.config.schema import Config, RuntimeConfig
from iha.config.yaml import dump_yaml, load_yaml, parse_value
from iha.errors import ConfigError
from iha.variants.base import AttentionSpec, Geometry, LayerFlops


@pytest.fixture
def mine(tmp_path):
    """Writes a config file; its path."""

    def _mine(text: str):
        path = tmp_path / "mine.yaml"
        path.write_bytes(text.encode())
        return path

    return _mine


def problems(raw: dict) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(raw, "x.yaml")
    return [line.removeprefix("x.yaml: ") for line in str(caught.value).splitlines()]


def test_every_override_of_a_section_counts_and_the_last_of_a_key_wins(mine):
    path = mine("pretrain: {steps: 10, warmup_steps: 5}\n")
    recipe = load_config(path, ["pretrain={warmup_steps: 2}", "pretrain={steps: 20}", "pretrain={steps: 30}"]).pretrain
    assert (recipe.steps, recipe.warmup_steps) == (30, 2)


def test_an_override_replaces_lists_and_null_and_keeps_the_equals_signs_of_its_value(mine):
    path = mine("seeds: [1, 2]\nseparation: null\n")
    config = load_config(path, ["seeds=[3]", "separation={seeds: 2}", "runtime={results_dir: a=b}"])
    assert (config.seeds, config.separation.seeds, config.runtime.results_dir) == ((3,), 2, "a=b")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("pretrain={", "--config: '{' is not YAML"),
        ("pretrain", "pretrain is null; allowed: a mapping of keys to values"),
        ("pretrain.step=5", "pretrain.step: unknown key"),
        ("seeds=[1, 1]", "seeds is [1, 1]; allowed: each seed once"),
    ],
)
def test_a_wrong_override_is_named(mine, override, words):
    with pytest.raises(ConfigError) as caught:
        load_config(mine("experiment: x\n"), [override])
    assert words in str(caught.value)


def test_a_file_from_windows_reads_like_any_other(mine):
    config = load_config(mine('\ufeffexperiment: a\r\nplan:\r\n  device: "GPU é"\r\nseeds: [1,\r\n  2]\r\n'))
    assert (config.experiment, config.plan.device, config.seeds) == ("a", "GPU é", (1, 2))


def test_two_documents_in_a_file_are_refused(mine):
    with pytest.raises(ConfigError, match=r"mine\.yaml: not valid YAML.*single document"):
        load_yaml(mine("seeds: [1]\n---\nseeds: [2]\n"))


#: Value of a key on the legal side of its bound, and on the other, with what is then said.
BOUNDS = {
    "seeds": ([2**32 - 1], [2**32], "seeds.0 is 4294967296; allowed: less than 4294967296"),
    "experiment": ("a" * 64, "a" * 65, f"experiment is '{'a' * 65}'; allowed: at most 64 characters"),
    "pretrain.warmup_steps": (240_000, 240_001, "pretrain.warmup_steps is 240001; allowed: 0 to steps, 240000"),
    "pretrain.min_lr": (8e-4, 8.1e-4, "pretrain.min_lr is 0.00081; allowed: 0 to lr, 0.0008"),
    "pretrain.lr": (0.999, 1.0, "pretrain.lr is 1.0; allowed: less than 1"),
    "pretrain.max_skipped": (0, -1, "pretrain.max_skipped is -1; allowed: 0 or more"),
    "extend.seq_len": (8192, 8191, "extend.seq_len is 8191; allowed: from pretrain.seq_len, 8192"),
    "plan.network_efficiency": (1.0, 1.01, "plan.network_efficiency is 1.01; allowed: 1.0 or less"),
    "plan.total_gpus": (0, -1, "plan.total_gpus is -1; allowed: 0 or more"),
    "plan.gpus.sft": (0, -1, "plan.gpus.sft is -1; allowed: 0 or more"),
    "model.rope_theta": (1.5, 1, "model.rope_theta is 1; allowed: more than 1"),
    "separation.filters.nodes": (9, 8, "separation.filters.nodes is 8; allowed: from the largest of sizes and free"),
    "separation.cpm.group": (8, 6, "separation.cpm.group is 6; allowed: more than 2 x modulus, 6, and neither 0 nor"),
    "synthetic.hidden_dim": (136, 132, "synthetic.hidden_dim is 132; allowed: a multiple of n_heads, 8"),
    "synthetic.seeds": ([0], [-1], "synthetic.seeds.0 is -1; allowed: 0 or more"),
    "data.sft.max_document_tokens": (None, 2, "data.sft.max_document_tokens is 2; allowed: more than 2"),
}


@pytest.mark.parametrize("field", BOUNDS)
def test_the_last_legal_value_passes_and_the_next_is_named(field, tmp_path):
    def raw(value):
        *path, last = field.split(".")
        tree = {"data": {"sft": {"sources": [{"kind": "book"}]}}, "evals": {"suites": []}}
        section = tree
        for key in path:
            section = section.setdefault(key, {})
        section[last] = value
        return tree

    legal, other, words = BOUNDS[field]
    config = parse_config(raw(legal))
    assert config is not None
    (line,) = problems(raw(other))
    assert line.startswith(words)


@pytest.mark.parametrize("group", [7, 9, 10, 12, 13])
def test_a_group_that_would_not_tell_its_two_terms_apart_is_refused(group):
    """Of x_i + G x_j1 + x_j2 modulo 3: G = 0 or 1 modulo 3 loses a term or joins both (spec 7.3)."""
    (line,) = problems({"separation": {"cpm": {"group": group}}})
    assert line.startswith(f"separation.cpm.group is {group}; allowed: more than 2 x modulus, 6, and neither 0 nor 1")
    parse_config({"separation": {"cpm": {"group": 8}}})


def wsd(decay: int) -> dict:
    return {"pretrain": {"steps": 10, "warmup_steps": 4, "schedule": "wsd", "decay_steps": decay}}


def test_a_decay_needs_its_schedule_and_room_after_the_warm_up():
    assert parse_config(wsd(6)).pretrain.decay_steps == 6
    assert problems(wsd(7)) == ["pretrain.decay_steps is 7; allowed: up to steps less warmup_steps, 6"]
    assert problems(wsd(0)) == [
        "pretrain.decay_steps is 0 with schedule wsd; allowed: 1 or more with wsd, 0 with cosine"
    ]
    assert problems({"sft": {"decay_steps": 5}}) == [
        "sft.decay_steps is 5 with schedule cosine; allowed: 1 or more with wsd, 0 with cosine"
    ]


@pytest.mark.parametrize(
    ("limit", "shortest", "longest"), [(None, 10**9, None), (100, 50, 50), (50, 50, 100), (50, 50, None)]
)
def test_documents_may_be_as_long_as_they_are_cut(limit, shortest, longest):
    split = {"sources": [{"kind": "book"}], "max_tokens": limit, "max_document_tokens": longest}
    whole = {"data": {"extend": {**split, "min_document_tokens": shortest}}, "extend": {"seq_len": 16, "steps": 50}}
    whole |= {"pretrain": {"seq_len": 16}, "evals": {"suites": []}, "variants": [{"name": "global", "attention": {"kind": "global"}}]}  # fmt: skip
    assert parse_config(whole).data.extend.min_document_tokens == shortest
    if limit is not None:
        whole["data"]["extend"]["min_document_tokens"] = 51
        (line,) = problems(whole)
        assert line.startswith("data.extend.min_document_tokens is 51; allowed: 0 to 50, the longest document")


def test_a_store_must_hold_one_sequence_and_its_next_token():
    def sized(tokens):
        return {"data": {"pretrain": {"sources": [{"kind": "book"}], "max_tokens": tokens}}}

    parse_config(sized(8193))
    assert problems(sized(8192)) == [
        "pretrain.seq_len is 8192; allowed: less than the store's tokens, data.pretrain.max_tokens 8192"
    ]


@pytest.mark.parametrize("goal", ["synthetic", "separation"])
def test_a_goal_needs_its_section(goal):
    (line,) = problems({"goal": goal})
    assert line.startswith(f"{goal} is null with goal '{goal}'; allowed: a section, {{}} for")
    assert getattr(parse_config({"goal": goal, goal: {}}), goal) is not None


def relation(**fields) -> dict:
    return {"name": "m", "attention": "mha", **fields}


@pytest.mark.parametrize(
    ("synthetic", "words"),
    [
        ({"tasks": []}, "synthetic.tasks is []; allowed: at least 1 in the list"),
        ({"lrs": [1e-3, 0.001]}, "synthetic.lrs is [0.001, 0.001]; allowed: each value once"),
        ({"models": [relation(), relation()]}, "synthetic.models: duplicate name 'm'"),
        ({"models": [relation(matches="m")]}, "synthetic.models.m.matches is 'm'; allowed: a model that matches none"),
        ({"models": [relation(matches="b")]}, "synthetic.models.m.matches is 'b'; allowed: a model that matches none"),
        ({"models": [relation(attention="iah")]}, "synthetic.models.0.attention is 'iah'; allowed: 'mha', 'iha' or 'simplicial' (did you mean iha?)"),
        ({"tasks": [{"name": "t", "hops": 4, "min_size": 1, "max_size": 1, "density": 0.5}]}, "synthetic.tasks.0.hops is 4; allowed: 2 or 3"),
        ({"tasks": [{"name": "t", "hops": 2, "min_size": 3, "max_size": 2, "density": 0.5}]}, "synthetic.tasks.0.min_size is 3; allowed: 1 to max_size, 2"),
    ],
)  # fmt: skip
def test_a_wrong_grid_of_relations_is_one_line(synthetic, words):
    (line,) = problems({"synthetic": synthetic})
    assert line.startswith(words)


def test_a_relation_of_one_size_has_that_size_only():
    task = {"name": "t", "hops": 2, "min_size": 3, "max_size": 3, "density": 0.5}
    found = parse_config({"synthetic": {"tasks": [task]}}).synthetic.task("t")
    assert (list(found.sizes), found.max_len) == ([3], 9)


@pytest.mark.parametrize("folder", ["a", "/scratch/me/iha", "../x", "a=b", "a@b+c.d_e-f", "ä/日本"])
def test_paths_that_a_shell_takes_as_they_are_pass(folder):
    assert RuntimeConfig(state_dir=folder).state_dir == folder


@pytest.mark.parametrize("folder", ["-a", "a b", "a{b}", "~/x", "a;b", "a\nb", "a'b", "a*b", ""])
def test_paths_that_mean_something_to_a_shell_or_to_snakemake_are_refused(folder):
    (line,) = problems({"runtime": {"state_dir": folder}})
    assert line.startswith(f"runtime.state_dir is {folder!r}; allowed: a path of letters, digits and _ . / + = @ -")


class Odd(AttentionSpec):
    """A variant from outside with limits of its own."""

    kind: str
    module = f"{__name__}:Odd"
    gain: int = Field(4, multiple_of=4)
    label: str = Field("ab", min_length=2)

    def forward_flops(self, geometry: Geometry, layer: int, seq_len: int) -> LayerFlops:
        return LayerFlops(0, 0, 0)


@pytest.mark.parametrize(
    ("fields", "words"), [({"gain": 6}, "gain is 6; allowed: "), ({"label": "x"}, "label is 'x'; allowed: ")]
)
def test_limits_that_only_a_variant_from_outside_has_are_said(fields, words):
    """In pydantic's own words, where there are none of ours."""
    attention = {"kind": f"{__name__}:Odd", **fields}
    (line,) = problems({"variants": [{"name": "global", "attention": attention}]})
    assert line.startswith(f"variants.global.attention.{words}") and line.partition("allowed: ")[2]


def test_every_error_type_in_users_words_is_one_that_pydantic_has():
    from typing import get_args

    from pydantic_core.core_schema import ErrorType

    assert set(configcheck.ALLOWED) <= set(get_args(ErrorType))


TEXTS = st.text("0179.eE_+-:nofytrus~ \n\t#'\"\\{[&*!|>%@é☃\x85\u2028\ufeff", max_size=8)


@given(st.dictionaries(TEXTS, st.one_of(TEXTS, st.integers(), st.floats(allow_nan=False), st.booleans(), st.none())))
@example({"revision": "7e15432"})
@example({"a": "010", "b": "no", "c": "1:30", "d": "3e-4", "e": "~", "f": ".5", "g": "1_000", "h": "0x1", "i": "true"})
@settings(max_examples=60, deadline=None)
def test_what_is_printed_is_read_back_as_what_it_was(tree):
    """Text that YAML 1.1 or 1.2 takes for a number is put in quotes."""
    again = parse_value(dump_yaml(tree))
    assert again == tree
    assert [type(value) for value in again.values()] == [type(value) for value in tree.values()]


def test_a_revision_that_looks_like_a_number_survives_iha_config(mine, capsys, tmp_path):
    source = {"kind": "hub", "name": "x", "revision": "7e15432"}
    path = mine(json.dumps({"data": {"pretrain": {"sources": [source]}}}))
    main(["config", "--config", str(path)])
    printed = tmp_path / "printed.yaml"
    printed.write_text(capsys.readouterr().out)
    assert load_config(printed) == load_config(path)
    assert load_config(printed).data.pretrain.sources[0].revision == "7e15432"


def test_the_numbers_of_the_papers_recipe_multiply():
    config = Config()
    assert config.extend.tokens == 1200 * 64 * 65_536
    assert 0.02 * config.pretrain.tokens == pytest.approx(config.extend.tokens, rel=0.01)  # 2 % [spec 4.3]
    assert config.geometry.head_dim == 128
    assert config.sft.warmup_steps == pytest.approx(0.1 * config.sft.steps)
