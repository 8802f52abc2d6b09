"""A wrong configuration is one line per problem: file, field, value, what is allowed. A right one is the paper's."""

import json
from pathlib import Path

import jsonschema
import pytest
from pydantic import ValidationError

from iha.config.load import config_schema, load_config, parse_config
from iha.config.schema import Config, Recipe, Variant
from iha.config.yaml import load_yaml
from iha.errors import ConfigError

CONFIGS = Path(__file__).parents[2] / "configs"
GLOBAL = "{name: global, attention: {kind: global}}"


def second(attention: str) -> str:
    return f"variants: [{GLOBAL}, {{name: mine, attention: {attention}}}]"


def suite(fields: str) -> str:
    return f"evals: {{suites: [{{name: mine, {fields}}}]}}"


def items(fields: str) -> str:
    return f"evals: {{items: {{{fields}}}}}"


BAD = {
    "modle: {n_layers: 5}": 'modle: unknown key (did you mean model?)',
    "model: {n_layer: 5}": 'model.n_layer: unknown key (did you mean n_layers?)',
    "pretrain: {warmup: 5}": 'pretrain.warmup: unknown key (did you mean warmup_steps?)',
    "zzz: 1": 'zzz: unknown key',
    "1: 2": '1: unknown key',
    "model: {n_layers: five}": "model.n_layers is 'five'",
    "model: {n_layers: 5.5}": 'model.n_layers is 5.5',
    "model: {n_layers: 0}": 'model.n_layers is 0',
    "model: {n_layers: true}": 'model.n_layers is true',
    "model: [1]": 'model is [1]',
    "model:": 'model is null',
    "model: {hidden_dim: 100, n_heads: 3}": 'model.hidden_dim is 100 with n_heads 3',
    "model: {hidden_dim: 15, n_heads: 5}": 'model.hidden_dim is 15 with n_heads 5',
    "pretrain: {lr: 3e-4x}": "pretrain.lr is '3e-4x'",
    "pretrain: {lr: '3e-4'}": "pretrain.lr is '3e-4'",
    "pretrain: {lr: 1.5}": 'pretrain.lr is 1.5',
    "pretrain: {lr: .nan}": 'pretrain.lr is nan',
    "pretrain: {clip_norm: .inf}": 'pretrain.clip_norm is inf',
    "pretrain: {min_lr: 0.1}": 'pretrain.min_lr is 0.1',
    "pretrain: {steps: 9, warmup_steps: 10}": 'pretrain.warmup_steps is 10',
    "tokenizer: {kind: bpe, vocab_size: 261}": 'tokenizer.vocab_size is 261',
    "pretrain: {global_batch: 10, micro_batch: 3}": 'pretrain.global_batch is 10',
    "pretrain: {betas: [0.9]}": 'pretrain.betas.1: required',
    "engine: {compile: yes}": "engine.compile is 'yes'",
    "variants: [{name: a, kind: iha, pseudo_heads: 4}]": 'variants.a.kind is next to name',
    "match: flop": "match is 'flop'; allowed: 'tokens' or 'flops' (did you mean flops?)",
    "experiment: My-Run": "experiment is 'My-Run'",
    "experiment: 7": 'experiment is 7',
    "seeds: [010]": "seeds.0 is '010'",
    "seeds: 1": 'seeds is 1',
    "seeds: [-1]": 'seeds.0 is -1',
    "seeds: []": 'seeds is []',
    "seeds: [9223372036854775808]": 'seeds.0 is 9223372036854775808',
    f"experiment: {'a' * 65}": "experiment is 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'",
    "runtime: {state_dir: my scratch}": "runtime.state_dir is 'my scratch'",
    "runtime: {results_dir: $HOME/results}": "runtime.results_dir is '$HOME/results'",
    "runtime: {results_dir: ''}": "runtime.results_dir is ''",
    "runtime: {tracking_uri: 'sqlite:///my runs.db'}": "runtime.tracking_uri is 'sqlite:///my runs.db'",
    "data: {sft: {sources: [{kind: book}], min_document_tokens: 9, max_document_tokens: 5}}": 'data.sft.min_document_tokens is 9',
    "seeds: [1, 1]": 'seeds is [1, 1]',
    "reference: mha": "reference is 'mha', not a variant",
    "variants: global": "variants is 'global'",
    "variants: [global]": "variants.0 is 'global'",
    "variants: [{name: global, attention: global}]": "variants.global.attention is 'global'",
    "variants: [{name: global}]": 'variants.global.attention: required',
    f"variants: [{GLOBAL}, {GLOBAL}]": "variants: duplicate name 'global'",
    second("{kind: ihaa}"): "variants.mine.attention.kind is 'ihaa' (did you mean iha?)",
    second("{}"): 'variants.mine.attention.kind is None',
    second("{kind: 'nowhere.x:Y'}"): "variants.mine.attention.kind is 'nowhere.x:Y'",
    second("{kind: 'iha.config:None_'}"): "variants.mine.attention.kind is 'iha.config:None_'",
    second("{kind: 'iha.config.schema:Config'}"): "variants.mine.attention.kind is 'iha.config.schema:Config'",
    second("{kind: '..x:Y'}"): "variants.mine.attention.kind is '..x:Y'",
    second("{kind: ':'}"): "variants.mine.attention.kind is ':'",
    second("{kind: 'iha.variants.base:AttentionSpec'}"): "variants.mine.attention.kind is 'iha.variants.base:AttentionSpec'",
    second("{kind: global_local, window: 0}"): 'variants.mine.attention.window is 0',
    second("{kind: iha, pseudo_heads: 0}"): 'variants.mine.attention.pseudo_heads is 0',
    second("{kind: iha, pseudo_heads: 20}"): 'variants.mine.attention.pseudo_heads is 20, whose window 8192 / (2 P^2) = 10.24 is not whole',
    second("{kind: iha, pseudo_heads: two}"): "variants.mine.attention.pseudo_heads is 'two'",
    second("{kind: iha, pseudo_head: 2}"): 'variants.mine.attention.pseudo_head: unknown key (did you mean pseudo_heads?)',
    second("{kind: iha, mask: flatt}"): "variants.mine.attention.mask is 'flatt'; allowed: 'flat' or 'token' (did you mean flat?)",
    second("{kind: diff}") + "\nmodel: {hidden_dim: 384, n_heads: 3}": 'variants.mine.attention.kind diff halves the heads, but model.n_heads is 3',
    "data: {pretrain: {sources: [{kind: book}], max_tokens: 5000}}": 'pretrain.seq_len is 8192',
    "data: {sft: {sources: [{kind: book}], max_document_tokens: 500}}": 'data.sft.max_document_tokens is 500',
    "data: {pretrain: {sources: []}}": 'data.pretrain.sources is []',
    "data: {pretrain: {sources: [{kind: hubb, name: x}]}}": "data.pretrain.sources.0 is {'kind': 'hubb', 'name': 'x'}",
    "data: {pretrain: {sources: [{name: x}]}}": "data.pretrain.sources.0 is {'name': 'x'}",
    "data: {pretrain: {sources: [{kind: hub, name: x, nme: y}]}}": 'data.pretrain.sources.0.nme: unknown key (did you mean name?)',
    "extend: {seq_len: 4096}\nevals: {suites: []}": 'extend.seq_len is 4096',
    suite("model: base, tasks: [gsm8q]"): "evals.suites.mine.tasks: 'gsm8q' is not a task of a suite without lengths (did you mean gsm8k?)",
    suite("model: long, tasks: [vtt], lengths: [512]"): "evals.suites.mine.tasks: 'vtt' is not a RULER task (did you mean vt?)",
    suite("model: long, tasks: [vt], lengths: [100000]"): 'evals.suites.mine.lengths: 100000 is beyond the context',
    suite("model: pretrain, tasks: [vt]"): "evals.suites.mine.model is 'pretrain'",
    suite("model: base, tasks: [gsm8k], taks: []"): 'evals.suites.mine.taks: unknown key (did you mean tasks?)',
    items("gsm8k: hubs"): "evals.items.gsm8k is 'hubs'; allowed: 'hub', 'files', 'templates' or 'package' (did you mean hub?)",
    items("gsm8: hub, gsm8k: hub, math500: hub, mbpp: hub, humaneval: hub"): "evals.items: 'gsm8' is not a benchmark with items",
    items("gsm8k: hub, math500: hub, mbpp: hub"): 'evals.items.humaneval is missing, but suite humaneval needs it',
    items("gsm8k: package, math500: hub, mbpp: hub, humaneval: hub"): "evals.items.gsm8k is 'package'",
    items("gsm8k: files, math500: hub, mbpp: hub, humaneval: hub"): "evals.items_dir is not set, but items names the source 'files'",
    "evals: {temperature: 0}": 'evals.temperature is 0',
    "match: {pretrain: flop}": "match.pretrain is 'flop'; allowed: 'tokens' or 'flops' (did you mean flops?)",
    "match: {base: flops}": "match.base: unknown key",
    "rehearse: false": "rehearse: removed; ",
    "evals: {kv_cache: pseudo}": "evals.kv_cache: removed; ",
}  # fmt: skip


@pytest.mark.parametrize("text", BAD)
def test_a_wrong_config_is_one_line_that_names_field_and_value(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text + "\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}: {BAD[text]}")
    assert len(str(caught.value).splitlines()) == 1


def test_every_problem_is_named_at_once():
    wrong = {"modle": {}, "pretrain": {"lr": "fast", "steps": 0}, "seeds": ["010"]}
    with pytest.raises(ConfigError) as caught:
        parse_config(wrong, "x.yaml")
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    assert all(line.startswith("x.yaml: ") for line in lines)


def test_two_suites_of_one_name_need_two_models():
    one = {"name": "r", "model": "base", "tasks": ["gsm8k"]}
    parse_config({"evals": {"suites": [one, {**one, "model": "sft"}]}})
    with pytest.raises(ConfigError, match=r"evals\.suites: duplicate 'r' on model 'base'"):
        parse_config({"evals": {"suites": [one, one]}})


def test_numbers_never_arrive_as_text(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("pretrain: {lr: 3e-4, clip_norm: 1, eps: 1e-8}\n")
    recipe = load_config(path).pretrain
    assert recipe.lr == 0.0003
    assert all(isinstance(x, float) for x in (recipe.lr, recipe.clip_norm, recipe.eps))


def test_a_rate_a_time_and_a_seed(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("pretrain: {lr: 3e-4}\ntime: 12:30:00\nseeds: [010]\n")
    assert load_yaml(path)["time"] == "12:30:00"
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert [line.removeprefix(f"{path}: ").split("; ")[0] for line in sorted(str(caught.value).splitlines())] == [
        "seeds.0 is '010'",
        "time: unknown key (did you mean runtime?)",
    ]


@pytest.mark.parametrize(("one", "two"), [("0.1", "1e-1"), ("1.0", "1"), (".5", "0.50"), ("3e-4", "0.0003")])
def test_equal_numbers_dump_alike(tmp_path, one, two):
    dumps = []
    for i, number in enumerate((one, two)):
        path = tmp_path / f"{i}.yaml"
        path.write_text(f"pretrain: {{clip_norm: {number}}}\nsft: {{clip_norm: {number}}}\n")
        dumps.append(load_config(path).model_dump_json())
    assert dumps[0] == dumps[1]


def test_overrides_are_merged_into_the_file_and_checked(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("pretrain: {steps: 10, warmup_steps: 5, global_batch: 4}\n")
    assert load_config(path, ["pretrain={steps: 20}"]).pretrain.steps == 20
    assert load_config(path, ["pretrain={steps: 20}"]).pretrain.global_batch == 4
    assert load_config(path, ["pretrain.steps=20", "pretrain.lr=1e-4"]).pretrain.steps == 20
    with pytest.raises(ConfigError, match=r"pretrain\.step: unknown key"):
        load_config(path, ["pretrain={step: 20}"])


def test_one_rule_of_match_is_the_rule_of_every_stage():
    assert parse_config({"match": "tokens"}).match.model_dump() == dict.fromkeys(
        ("pretrain", "extend", "sft"), "tokens"
    )
    assert parse_config({}).match.model_dump() == {"pretrain": "flops", "extend": "tokens", "sft": "tokens"}
    assert parse_config({"match": {"sft": "flops"}}).match.sft == "flops"


def test_a_removed_key_does_not_hide_other_problems():
    with pytest.raises(ConfigError) as caught:
        parse_config({"rehearse": True, "seeds": [], "evals": {"kv_cache": "base"}}, "x.yaml")
    lines = [line.partition(":")[2].split(":")[0].strip() for line in str(caught.value).splitlines()]
    assert sorted(lines) == ["evals.kv_cache", "rehearse", "seeds is []; allowed"]


def test_the_tree_is_frozen():
    config = Config()
    with pytest.raises(ValidationError):
        config.experiment = "other"
    with pytest.raises(ValidationError):
        config.variants[-1].attention.pseudo_heads = 4


def test_defaults_are_the_papers():
    config = Config()
    assert (config.model.hidden_dim, config.model.n_layers, config.model.n_heads) == (2560, 26, 20)
    assert config.model.rope_theta == 500_000
    assert config.tokenizer.vocab_size == 128_256
    p = config.pretrain
    assert (p.steps, p.seq_len, p.lr, p.min_lr, p.warmup_steps) == (240_000, 8192, 8e-4, 8e-6, 1000)
    assert (p.betas, p.weight_decay, p.clip_norm) == ((0.9, 0.95), 0.1, 1.0)
    assert p.tokens == 240_000 * 128 * 8192
    assert config.extend.seq_len == 65_536
    assert config.sft.tokens == pytest.approx(8e9, rel=0.01)
    assert (config.evals.samples, config.evals.temperature, config.evals.shots) == (16, 0.6, 5)
    assert [v.name for v in config.variants] == ["global", "global_local", "talking_heads", "diff", "iha"]


def test_the_paper_preset_is_the_defaults():
    paper = load_config(CONFIGS / "paper.yaml").model_dump(mode="json")
    default = Config().model_dump(mode="json")
    assert {k: v for k, v in paper.items() if k != "runtime"} == {k: v for k, v in default.items() if k != "runtime"}


def flat(tree, path: str = "") -> dict[str, object]:
    """Leaves of a dump by dotted path; a list is a leaf."""
    if not isinstance(tree, dict):
        return {path: tree}
    return {key: leaf for name, sub in tree.items() for key, leaf in flat(sub, f"{path}.{name}".lstrip(".")).items()}


RECIPE_SAME = (
    "schedule", "decay_steps", "lr", "min_lr", "betas", "eps", "weight_decay", "clip_norm", "keep_checkpoints",
    "max_skipped",
)  # fmt: skip
SAME = {
    "variants", "seeds", "reference", "goal",
    "model.rope_theta", "model.norm_eps", "model.init_std", "model.tie_embeddings",
    *(f"{stage}.{field}" for stage in ("pretrain", "extend", "sft") for field in RECIPE_SAME),
    "evals.shots", "evals.samples", "evals.base_samples", "evals.temperature",
    "engine.loss_chunk", "engine.backend",
}  # fmt: skip
SCALE = (
    "experiment", "scale", "match.", "synthetic", "separation", "recall", "tokenizer.", "data.", "runtime.", "plan.",
    "model.hidden_dim", "model.n_layers", "model.n_heads", "model.ffn_dim",
    *(f"{stage}.{field}" for stage in ("pretrain", "extend", "sft")
      for field in ("seq_len", "steps", "global_batch", "micro_batch", "warmup_steps", "checkpoint_every")),
    "engine.precision", "engine.compile", "engine.activation_checkpointing",
    "evals.suites", "evals.items", "evals.items_dir", "evals.limit", "evals.ruler_samples", "evals.max_new_tokens",
    "evals.haystack", "evals.batch_size",
)  # fmt: skip


def test_smoke_differs_from_the_paper_in_scale_only():
    """And in `match`: the smoke run gives every stage equal compute."""
    paper = flat(load_config(CONFIGS / "paper.yaml").model_dump(mode="json"))
    smoke = flat(load_config(CONFIGS / "smoke.yaml").model_dump(mode="json"))
    assert {key: smoke[key] for key in SAME} == {key: paper[key] for key in SAME}
    assert {key for key in smoke.keys() | paper.keys() if not key.startswith(SCALE)} == SAME
    assert smoke["scale"] == "smoke"


def test_every_field_of_a_recipe_is_scale_or_not():
    scale = {name.partition(".")[2] for name in SCALE if name.startswith("pretrain.")}
    assert scale | set(RECIPE_SAME) == set(Recipe.model_fields)
    assert not scale & set(RECIPE_SAME)


def test_a_variant_keeps_its_parameters_through_json():
    variant = Variant.model_validate({"name": "x", "attention": {"kind": "iha", "pseudo_heads": 4, "mask": "token"}})
    assert Variant.model_validate_json(variant.model_dump_json()) == variant
    assert json.loads(variant.model_dump_json())["attention"]["pseudo_heads"] == 4
    assert Variant(name="y", attention=variant.attention).attention is variant.attention


def test_the_schema_accepts_the_presets_and_refuses_what_the_reader_refuses():
    schema = config_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for name in ("paper.yaml", "smoke.yaml"):
        validator.validate(load_yaml(CONFIGS / name))
    assert validator.is_valid({"variants": [{"name": "toy", "attention": {"kind": "a.b:C", "any": 1}}]})
    for wrong in (
        {"modle": {}},
        {"pretrain": {"lr": "3e-4"}},
        {"variants": [{"name": "x", "attention": {"kind": "iha", "pseudo_head": 2}}]},
        {"variants": [{"name": "x", "attention": {"kind": "ihaa"}}]},
    ):
        assert not validator.is_valid(wrong), wrong
