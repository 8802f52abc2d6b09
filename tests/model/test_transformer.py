"""The decoder: start values, tying, isolation of documents, positions, saved folders."""

from __future__ import annotations

import json

import pytest
import torch
from attention_lab import VARIANTS, model, spec_of, tokens
from safetensors.torch import load_file, save_file

from iha.config.schema import ModelConfig
from iha.errors import CheckpointError, ConfigError
from iha.model.attention.diff import lambda_init
from iha.model.files import load_model, read_header, save_model
from iha.model.rope import Rope
from iha.model.transformer import build_model


@pytest.mark.parametrize("backend", ["auto", "sdpa", "banded", "reference"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_causality_is_exact(variant, backend):
    net, ids = model(variant, layers=5, backend=backend, dtype=torch.float32), tokens(1, 24)
    changed = ids.clone()
    changed[:, 13:] = (changed[:, 13:] + 1) % 50
    before, after = net(ids), net(changed)
    assert (before - after)[:, :13].abs().max() == 0
    assert (before - after)[:, 13:].abs().min(dim=-1).values.max() > 0


@pytest.mark.parametrize("backend", ["auto", "sdpa", "banded", "reference"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_documents_are_isolated(variant, backend):
    """Row of documents of 5 and 3 tokens: a change in the first changes the second by exactly 0."""
    net, ids = model(variant, backend=backend, dtype=torch.float32), tokens(1, 8)
    documents = torch.tensor([[0, 0, 0, 0, 0, 1, 1, 1]])
    changed = ids.clone()
    changed[0, 2] = (changed[0, 2] + 1) % 50
    assert (net(ids, doc_ids=documents) - net(changed, doc_ids=documents))[:, 5:].abs().max() == 0
    assert (net(ids) - net(changed))[:, 5:].abs().max() > 0
    alone = net(ids[:, 5:])
    torch.testing.assert_close(net(ids, doc_ids=documents)[:, 5:], alone, rtol=0, atol=1e-4)


def test_tied_weights_stay_tied_through_the_meta_device(tmp_path):
    net = model("iha")
    save_model(net, tmp_path, {})
    loaded = load_model(tmp_path)
    assert loaded.head_weight is loaded.embed.weight
    assert not any(p.is_meta for p in loaded.parameters())
    stored = load_file(tmp_path / "model.safetensors")
    assert sum(value.numel() for value in stored.values()) == sum(p.numel() for p in net.parameters())


def test_untied_head_is_its_own_matrix():
    config = ModelConfig(hidden_dim=32, n_layers=1, n_heads=4, ffn_dim=16, tie_embeddings=False)
    net = build_model(config, spec_of("global"), 50, 64, seed=1)
    assert net.head_weight is not net.embed.weight
    assert net.head_weight.shape == (50, 32)


def test_inverse_frequencies_and_table_length():
    rope = Rope(128, 500_000.0)
    assert rope.inv_freq[1].item() == pytest.approx(0.81462, abs=1e-5)
    cpu = torch.device("cpu")
    cos, _ = rope.span(0, 131_072, cpu)
    assert cos.shape == (131_072, 128)
    exact = 131_071 * 500_000.0 ** (-2 / 128)
    assert cos[-1, 1].item() == pytest.approx(torch.tensor(exact, dtype=torch.float64).cos().item(), abs=1e-7)
    with pytest.raises(IndexError):
        Rope(8, 1e4).gather(torch.tensor([[0, 64]]), 64)


def test_theta_of_the_header_is_the_theta_in_use(tmp_path):
    """A checkpoint continued at another theta: other logits, the new table, and identical after a reload."""
    net, ids = model("iha", dtype=torch.float32), tokens(1, 30)
    save_model(net, tmp_path / "short", {})
    header = json.loads((tmp_path / "short" / "model.json").read_text())
    header["model"]["rope_theta"] = 4e6
    (tmp_path / "short" / "model.json").write_text(json.dumps(header))
    longer = load_model(tmp_path / "short")
    assert longer.rope.inv_freq[1].item() == pytest.approx(4e6 ** (-2 / 8))
    want = longer(ids)
    assert (want - net(ids)).abs().max() > 1e-4
    save_model(longer, tmp_path / "long", {})
    assert torch.equal(load_model(tmp_path / "long")(ids), want)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_model_that_was_evaluated_can_be_trained_on(variant):
    """What is kept between calls (rotations, biases) is no tensor of inference mode, which autograd refuses."""
    net = model(variant, layers=5, dtype=torch.float32)
    with torch.inference_mode():
        evaluated = net(tokens(1, 24))
    trained = net(tokens(1, 24))
    trained.sum().backward()
    torch.testing.assert_close(trained.detach(), evaluated.clone(), rtol=0, atol=0)
    assert all(p.grad is not None for p in net.parameters())


def test_rotary_tables_survive_a_cast():
    net = model("global", dtype=torch.float32).bfloat16()
    net(tokens(1, 5))
    assert all(table.dtype == torch.float32 for table in net.rope.span(0, 5, torch.device("cpu")))


def test_diff_shapes_and_lambda_init():
    net = build_model(ModelConfig(hidden_dim=128, n_layers=24, n_heads=8, ffn_dim=16), spec_of("diff"), 50, 64, seed=1)
    attention = net.blocks[0].attention
    assert attention.qkv.weight.shape == (3 * 128, 128)
    assert attention.head_norm.shape == (32,)
    got = [net.blocks[i].attention.lambda_init for i in (0, 1, 11, 23)]
    assert got == pytest.approx([0.200000, 0.355509, 0.777870, 0.799395], abs=1e-6)
    assert got[1] == lambda_init(1)


def test_start_values_depend_on_name_and_seed_only():
    nets = {variant: model(variant, seed=7) for variant in ("global", "iha", "diff")}
    again = model("iha", seed=7)
    for name, value in nets["iha"].named_parameters():
        assert torch.equal(value, again.get_parameter(name))
    for name, value in nets["global"].named_parameters():
        assert torch.equal(value, nets["iha"].get_parameter(name)), name
        assert torch.equal(value, nets["diff"].get_parameter(name)), name
    assert not torch.equal(nets["iha"].embed.weight, model("iha", seed=8).embed.weight)


def test_start_values_have_the_stated_spread():
    config = ModelConfig(hidden_dim=128, n_layers=8, n_heads=4, ffn_dim=256)
    net = build_model(config, spec_of("global"), 500, 64, seed=1)
    block = net.blocks[3]
    assert net.embed.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert block.attention.qkv.weight.std().item() == pytest.approx(0.02, rel=0.05)
    for residual in (block.attention.out.weight, block.ffn.down.weight):
        assert residual.std().item() == pytest.approx(0.02 / 4, rel=0.05)
    assert torch.equal(block.ffn_norm.weight, torch.ones(128))


#: Matrices of the variants' own, which decay would pull to zero (spec 2.7).
OWN = ("alpha_q", "alpha_k", "alpha_v", "collapse", "pre_mix", "post_mix")


@pytest.mark.parametrize("variant", VARIANTS)
def test_only_linear_weights_decay(variant):
    net = model(variant)
    spared = net.no_decay_names()
    for name, parameter in net.named_parameters():
        linear = name.endswith(("qkv.weight", "out.weight", "gate_up.weight", "down.weight"))
        assert (name in spared) == (not linear), name
        assert linear or parameter.dim() == 1 or name == "embed.weight" or name.split(".")[-1] in OWN


@pytest.mark.parametrize("variant", VARIANTS)
def test_parameters_are_those_of_the_ledger(variant):
    from iha.variants.base import Geometry

    net = model(variant, layers=5)
    for index, block in enumerate(net.blocks):
        count = sum(p.numel() for p in block.attention.parameters())
        assert count == net.spec.params(Geometry(32, 5, 4, 64), index)


@pytest.mark.parametrize("variant", VARIANTS)
def test_saved_models_give_identical_logits(tmp_path, variant):
    net, ids = model(variant, dtype=torch.float32), tokens(2, 20)
    save_model(net, tmp_path, {"steps": 3})
    assert torch.equal(load_model(tmp_path)(ids), net(ids))
    assert read_header(tmp_path)["extra"] == {"steps": 3}
    assert load_model(tmp_path, dtype=torch.bfloat16).embed.weight.dtype == torch.bfloat16


@pytest.mark.parametrize("damage", ["drop", "truncate", "header", "gone"])
def test_a_damaged_folder_is_refused(tmp_path, damage):
    save_model(model("global"), tmp_path, {})
    weights = tmp_path / "model.safetensors"
    if damage == "drop":
        kept = load_file(weights)
        kept.pop("norm.weight")
        save_file(kept, weights)
    elif damage == "truncate":
        weights.write_bytes(weights.read_bytes()[:-1])
    elif damage == "header":
        (tmp_path / "model.json").write_text("{")
    else:
        (tmp_path / "model.json").unlink()
    with pytest.raises(CheckpointError, match="Rerun the stage"):
        load_model(tmp_path)


def test_an_impossible_variant_is_refused():
    with pytest.raises(ConfigError, match="pseudo_heads is 3"):
        build_model(ModelConfig(hidden_dim=32, n_heads=4, n_layers=2), spec_of("iha", pseudo_heads=3), 50, 64, seed=1)
