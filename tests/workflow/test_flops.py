"""The ledger against hand counts, the specification's table and torch's own counter; the solver."""

from fractions import Fraction

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from iha.config.load import parse_config
from iha.config.schema import Config, ModelConfig, Variant
from iha.planning.dag import ledger_slice
from iha.planning.flops import PricedModel, ledger, matched_steps, solve_steps
from iha.variants import Geometry, live_pairs, spec_class
from iha.variants.iha import IhaSpec

PAPER = Config()
TINY = ModelConfig(hidden_dim=32, n_layers=5, n_heads=4, ffn_dim=48)


def spec(kind: str, **fields):
    return spec_class(kind).model_validate({"kind": kind, **fields})


def priced(attention, model: ModelConfig = PAPER.model, vocab_size: int = 128_256, pretrain_len: int = 8192):
    return PricedModel(model, attention, vocab_size, pretrain_len)


def attention_ratio(attention, n_layers: int) -> float:
    """Attention FLOPs of a schedule over as many layers of causal MHA, at 8,192 tokens."""
    geometry = Geometry(2560, n_layers, 20, 8192)
    mha = spec("global")
    ours = sum(attention.forward_flops(geometry, layer, 8192).attention for layer in range(n_layers))
    return ours / sum(mha.forward_flops(geometry, layer, 8192).attention for layer in range(n_layers))


def test_trn_12_parameters_and_flops():
    one = priced(spec("global"), ModelConfig(hidden_dim=1024, n_layers=1, n_heads=8, ffn_dim=1024), 32_000)
    assert one.params()["embedding"] == 32_768_000
    assert one.params()["head"] == 0
    assert one.forward(100).head == 100 * 2 * 32_000 * 1024
    untied = priced(
        spec("global"), ModelConfig(hidden_dim=1024, n_layers=1, n_heads=8, ffn_dim=1024, tie_embeddings=False), 32_000
    )
    assert untied.params()["total"] - one.params()["total"] == 32_768_000
    assert untied.forward(100) == one.forward(100)
    assert live_pairs(65_536) == 2_147_516_416
    assert live_pairs(65_536, 1024) == 66_585_088
    heads20 = Geometry(2560, 26, 20, 8192)
    assert spec("iha", pseudo_heads=2).params(heads20, 0) - spec("global").params(heads20, 0) == 3200


def test_sizes_of_the_papers_model():
    params = priced(spec("global")).params()
    norms = (2 * 26 + 1) * 2560
    assert params["norms"] == norms
    assert params["non_embedding"] - norms == 2_061_762_560
    assert params["total"] - norms == 2_390_097_920


@pytest.mark.parametrize(
    ("attention", "n_layers", "ratio"),
    [
        (spec("iha", pseudo_heads=1), 5, 0.800),
        (spec("iha", pseudo_heads=2), 5, 0.950),
        (spec("iha", pseudo_heads=2), 26, 0.950),
        (spec("iha", pseudo_heads=4), 5, 0.987),
        (spec("iha", pseudo_heads=4), 26, 0.987),
        (spec("iha", pseudo_heads=8), 5, 0.997),
        (spec("iha", pseudo_heads=16), 5, 0.999),
        (spec("iha", pseudo_heads=1, global_layers="iha"), 5, 0.80),
        (spec("iha", pseudo_heads=2, global_layers="iha"), 5, 1.55),
        (spec("iha", pseudo_heads=4, global_layers="iha"), 5, 3.99),
        (spec("iha", pseudo_heads=8, global_layers="iha"), 5, 13.6),
        (spec("iha", pseudo_heads=16, global_layers="iha"), 5, 52.0),
        (spec("global_local"), 5, 0.297),
        (spec("global_local"), 26, 0.290),
        (spec("talking_heads"), 26, 1.156),
        (spec("diff"), 26, 1.5),
    ],
)
def test_attention_ratios_of_the_specification(attention, n_layers, ratio):
    assert attention_ratio(attention, n_layers) == pytest.approx(ratio, rel=1.2e-3)


def test_forward_flops_of_the_papers_model():
    whole = ledger(ledger_slice(PAPER))["variants"]["global"]
    row = whole["flops_per_token"]
    assert whole["train_flops"]["pretrain"] == pytest.approx(240_000 * 128 * 8192 * row["train"])
    assert row["attention"] / 1e9 == pytest.approx(1.09, abs=0.005)
    assert row["head"] / 1e9 == pytest.approx(0.66, abs=0.005)
    assert row["projections"] + row["mlp"] == 2 * 2_061_762_560
    assert row["train"] == 3 * row["forward"]
    matmul = 2_061_762_560 + 128_256 * 2560
    assert row["train_12lds"] == 6 * matmul + 12 * 26 * 2560 * 8192


def test_the_papers_own_convention_gives_three_fifths():
    five = parse_config({"model": {"n_layers": 5}})
    rows = ledger(ledger_slice(five))["variants"]
    assert rows["iha"]["asymptotic_ratio"] == pytest.approx(3 / 5)
    assert rows["global_local"]["asymptotic_ratio"] == pytest.approx((4 * 512 / 8192 + 1) / 5)
    assert rows["diff"]["asymptotic_ratio"] == rows["talking_heads"]["asymptotic_ratio"] == 1


def dense_forward(model: PricedModel, seq_len: int) -> Fraction:
    """The ledger's forward FLOPs with every mask materialised: all pairs computed instead of the live ones."""
    total, attention = Fraction(model.forward(seq_len).total), model.attention
    for layer in range(model.model.n_layers):
        window = attention.window_at(model.geometry, layer)
        p = attention.pseudo_heads if isinstance(attention, IhaSpec) and attention.interleaves(layer) else 1
        live = live_pairs(seq_len * p, window and window * p)
        if isinstance(attention, IhaSpec) and attention.mask == "token":
            live = p * p * live_pairs(seq_len, window)
        per_pair = Fraction(attention.forward_flops(model.geometry, layer, seq_len).attention, live)
        total += per_pair * ((seq_len * p) ** 2 - live)
    return total


CHECKED = [
    spec("global"),
    spec("global_local", window=3),
    spec("talking_heads"),
    spec("diff"),
    spec("iha", pseudo_heads=1),
    spec("iha", pseudo_heads=2),
    spec("iha", pseudo_heads=3, window=5),
    spec("iha", pseudo_heads=2, mask="token", global_layers="iha"),
]


@pytest.mark.parametrize("attention", CHECKED, ids=lambda s: "-".join(map(str, s.model_dump().values())))
@pytest.mark.parametrize("tie", [True, False])
def test_trn_12_the_ledger_equals_torchs_counter(attention, tie):
    from iha.model.transformer import build_model

    sizes = TINY.model_copy(update={"tie_embeddings": tie})
    model = build_model(sizes, attention, 96, 32, seed=0, backend="reference")
    ours = priced(attention, sizes, 96, 32)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 16, dtype=torch.long))
    assert counter.get_total_flops() == dense_forward(ours, 16)
    assert sum(p.numel() for p in model.parameters()) == ours.params()["total"]


def test_training_costs_three_forwards():
    from iha.model.transformer import build_model

    model = build_model(TINY, spec("iha"), 96, 32, seed=0, backend="reference")
    with FlopCounterMode(display=False) as forward:
        logits = model(torch.zeros(1, 16, dtype=torch.long))
    with FlopCounterMode(display=False) as backward:
        logits.sum().backward()
    assert backward.get_total_flops() == 2 * forward.get_total_flops()


@pytest.mark.parametrize(
    ("budget", "cost", "steps"), [(100, 10, 10), (104, 10, 10), (105, 10, 11), (1, 10, 1), (0, 9, 1)]
)
def test_the_solver_takes_the_nearest_whole_step(budget, cost, steps):
    assert solve_steps(budget, cost) == steps


@pytest.mark.parametrize("steps", [3, 150, 24_000])
def test_matched_flops_within_a_thousandth_or_half_a_step(steps):
    sizes = {stage: {"steps": steps, "warmup_steps": 0} for stage in ("pretrain", "extend", "sft")}
    config = parse_config({**sizes, "match": "flops"})
    facts = ledger(ledger_slice(config))
    for name, row in facts["variants"].items():
        for stage in ("pretrain", "extend", "sft"):
            flops, budget = row["train_flops"][stage], facts["variants"]["global"]["train_flops"][stage]
            half_step = 0.5 * flops / row["steps"][stage]
            assert abs(flops - budget) <= max(1e-3 * budget, 1.000001 * half_step), (name, stage)
            assert flops / budget == pytest.approx(1 + row["stage_mismatch"][stage])
            assert row["steps"][stage] == matched_steps(ledger_slice(config), stage, name)
    assert facts["variants"]["global"]["steps"] == {"pretrain": steps, "extend": steps, "sft": steps}


def test_cheaper_variants_train_longer():
    rows = ledger(ledger_slice(PAPER))["variants"]
    steps = {name: row["steps"]["pretrain"] for name, row in rows.items()}
    assert steps["global_local"] > steps["iha"] > steps["global"] > steps["talking_heads"] > steps["diff"]


def test_each_stage_has_its_own_rule():
    found = ledger(ledger_slice(PAPER))
    assert found["match"] == {"pretrain": "flops", "extend": "tokens", "sft": "tokens"}
    steps = {name: row["steps"] for name, row in found["variants"].items()}
    assert len({row["pretrain"] for row in steps.values()}) > 1
    assert {row["extend"] for row in steps.values()} == {1200}
    assert {row["sft"] for row in steps.values()} == {5100}
    assert abs(found["variants"]["iha"]["stage_mismatch"]["sft"]) > 1e-3


def test_matched_tokens_states_the_mismatch():
    rows = ledger(ledger_slice(parse_config({"match": "tokens"})))["variants"]
    for row in rows.values():
        assert row["steps"] == {"pretrain": 240_000, "extend": 1200, "sft": 5100}
        assert row["mismatch"] == pytest.approx(row["forward_ratio"] - 1)
    assert rows["global_local"]["mismatch"] == pytest.approx(-0.132, abs=0.001)
    assert rows["diff"]["mismatch"] == pytest.approx(0.093, abs=0.001)
    assert rows["global"]["mismatch"] == 0


def test_another_reference_moves_the_budget():
    rows = ledger(ledger_slice(parse_config({"reference": "iha"})))["variants"]
    assert rows["iha"]["steps"]["pretrain"] == 240_000
    assert rows["iha"]["attention_ratio"] == 1
    assert rows["global"]["steps"]["pretrain"] < 240_000


def test_cache_bytes_per_length():
    rows = ledger(ledger_slice(PAPER))["variants"]
    assert list(rows["global"]["cache_bytes"]) == ["4096", "8192", "16384", "32768", "65536"]
    assert rows["global"]["cache_bytes"]["65536"] == 26 * 2 * 65_536 * 2560 * 2
    assert rows["iha"]["cache_bytes"]["65536"] == (5 * 65_536 + 21 * 1024 * 2) * 2 * 2560 * 2
    assert rows["global_local"]["cache_bytes"]["8192"] == (5 * 8192 + 21 * 512) * 2 * 2560 * 2


def test_the_cache_holds_what_the_ledger_says():
    from iha.model.transformer import build_model

    for attention in CHECKED:
        model = build_model(TINY, attention, 96, 32, seed=0)
        cache = model.new_cache(1, torch.bfloat16)
        with torch.no_grad():
            model(torch.zeros(1, 16, dtype=torch.long), cache=cache)
        assert sum(layer.nbytes for layer in cache.layers) == priced(attention, TINY, 96, 32).cache_bytes(16), attention


TOY = """
from typing import ClassVar
from iha.variants.base import AttentionSpec, LayerFlops

class HalfSpec(AttentionSpec):
    kind: str
    module: ClassVar[str] = "toyattention:Half"
    strength: int = 3

    def forward_flops(self, geometry, layer, seq_len):
        return LayerFlops(projections=8 * geometry.hidden_dim**2 * seq_len, mixing=self.strength, attention=seq_len)

class Unpriced(AttentionSpec):
    kind: str
    module: ClassVar[str] = "toyattention:Half"

class Half:
    pass
"""


def test_a_variant_from_outside_is_configured_and_priced_by_its_import_path(tmp_path, monkeypatch):
    (tmp_path / "toyattention.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path)
    toy = {"name": "toy", "attention": {"kind": "toyattention:HalfSpec", "strength": 5}}
    config = parse_config({"variants": [{"name": "global", "attention": {"kind": "global"}}, toy]})
    assert Variant.model_validate_json(config.variant("toy").model_dump_json()) == config.variant("toy")
    row = ledger(ledger_slice(config))["variants"]["toy"]
    assert row["flops_per_token"]["mixing"] == 26 * 5 / 8192
    assert row["flops_per_token"]["attention"] == 26
    assert row["steps"]["pretrain"] > 240_000
