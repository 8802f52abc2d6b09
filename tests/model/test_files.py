"""A model folder in the wrong hands, and promises of the forward pass that no variant may break."""

from __future__ import annotations

import json

import pytest
import torch
from attention_lab import VARIANTS, model, spec_of, tokens
from safetensors.torch import load_file, save_file

from iha.config.schema import ModelConfig
from iha.errors import CheckpointError
from iha.model.files import load_model, read_header, save_model
from iha.model.transformer import build_model


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Header and weights of a small model."""
    folder = tmp_path_factory.mktemp("saved")
    save_model(model("iha", layers=2, dtype=torch.float32), folder, {"größe": "ü"})
    return json.loads((folder / "model.json").read_text()), load_file(folder / "model.safetensors")


def write(folder, header, weights):
    save_file(weights, folder / "model.safetensors")
    (folder / "model.json").write_text(header if isinstance(header, str) else json.dumps(header))


HEADERS = {
    "a list": lambda h: [h],
    "text": lambda h: '"model"',
    "no json": lambda h: "{" * 9,
    "no model": lambda h: {k: v for k, v in h.items() if k != "model"},
    "no attention": lambda h: {k: v for k, v in h.items() if k != "attention"},
    "unknown kind": lambda h: {**h, "attention": {"kind": "nobody"}},
    "a kind that is not there": lambda h: {**h, "attention": {"kind": "no_such_module:Spec"}},
    "unknown field": lambda h: {**h, "model": {**h["model"], "depth": 3}},
    "vocabulary of text": lambda h: {**h, "vocab_size": "50"},
    "no vocabulary": lambda h: {**h, "vocab_size": None},
    "another vocabulary": lambda h: {**h, "vocab_size": 51},
    "more layers": lambda h: {**h, "model": {**h["model"], "n_layers": 3}},
    "fewer layers": lambda h: {**h, "model": {**h["model"], "n_layers": 1}},
    "another width": lambda h: {**h, "model": {**h["model"], "hidden_dim": 64}},
    "an impossible window": lambda h: {**h, "attention": {"kind": "iha", "pseudo_heads": 3}},
    "length of text": lambda h: {**h, "pretrain_len": "64", "attention": {"kind": "iha"}},
    "another variant": lambda h: {**h, "attention": {"kind": "diff"}},
}


@pytest.mark.parametrize("how", HEADERS)
def test_a_header_that_does_not_fit_is_one_message_with_the_folder(tmp_path, saved, how):
    header, weights = saved
    write(tmp_path, HEADERS[how](header), weights)
    with pytest.raises(CheckpointError, match=rf"(?s)^{tmp_path}.*Rerun the stage that writes it\.$"):
        load_model(tmp_path)


@pytest.mark.parametrize("how", ["more", "shape", "gone", "text"])
def test_weights_that_do_not_fit_are_refused(tmp_path, saved, how):
    header, weights = saved
    changed = dict(weights)
    if how == "more":
        changed["ghost"] = torch.zeros(1)
    elif how == "shape":
        changed["norm.weight"] = torch.ones(31)
    write(tmp_path, header, changed)
    if how == "gone":
        (tmp_path / "model.safetensors").unlink()
    elif how == "text":
        (tmp_path / "model.safetensors").write_text("weights")
    with pytest.raises(CheckpointError, match="not a complete model"):
        load_model(tmp_path)


def test_a_folder_is_the_same_bytes_every_time_and_keeps_what_is_added(tmp_path, saved):
    net = model("iha", layers=2, dtype=torch.float32)
    for name in ("a", "b", "b"):
        save_model(net, tmp_path / name, {"größe": "ü", "a": [1]})
    contents = [{p.name: p.read_bytes() for p in (tmp_path / n).iterdir()} for n in "ab"]
    assert contents[0] == contents[1] and set(contents[0]) == {"model.safetensors", "model.json"}
    assert read_header(tmp_path / "a")["extra"] == {"größe": "ü", "a": [1]}
    header = read_header(tmp_path / "a")
    assert (header["vocab_size"], header["pretrain_len"], header["model"]["n_layers"]) == (50, 64, 2)


def test_a_save_that_breaks_off_leaves_no_header_to_believe(tmp_path):
    with pytest.raises(TypeError):
        save_model(model("global"), tmp_path, {"x": object()})
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]
    with pytest.raises(CheckpointError, match=r"no readable model\.json"):
        read_header(tmp_path)


def test_an_untied_head_is_kept_and_comes_back(tmp_path):
    config = ModelConfig(hidden_dim=32, n_layers=1, n_heads=4, ffn_dim=16, tie_embeddings=False)
    net = build_model(config, spec_of("global"), 50, 64, seed=1)
    save_model(net, tmp_path, {})
    again, ids = load_model(tmp_path), tokens(1, 9)
    assert torch.equal(again.lm_head.weight, net.lm_head.weight) and torch.equal(again(ids), net(ids))
    assert not torch.equal(again.lm_head.weight, again.embed.weight)


def test_a_model_is_loaded_in_the_type_and_with_the_kernel_asked_for(tmp_path, saved):
    write(tmp_path, *saved)
    net = load_model(tmp_path, dtype=torch.float64, backend="reference")
    assert {p.dtype for p in net.parameters()} == {torch.float64} and net.backend == "reference"
    assert all(attention.backend == "reference" for attention in net.attentions)
    torch.testing.assert_close(net(tokens(1, 9)), load_model(tmp_path)(tokens(1, 9)), rtol=0, atol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_last_logits_alone_are_the_last_of_all_and_in_fp32(variant):
    net, ids = model(variant, dtype=torch.float32), tokens(2, 11)
    whole, last = net(ids), net(ids, last_only=True)
    assert last.shape == (2, 1, 50)
    torch.testing.assert_close(last, whole[:, -1:], rtol=1e-5, atol=1e-5)
    low = net.bfloat16()(ids)
    assert (whole.dtype, low.dtype) == (torch.float32, torch.float32) and low.isfinite().all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_of_a_batch_do_not_know_each_other(variant):
    net, ids = model(variant), tokens(3, 17)
    for row in range(3):
        torch.testing.assert_close(net(ids[row : row + 1]), net(ids)[row : row + 1], rtol=0, atol=1e-5)
    torch.testing.assert_close(net(ids.flip(0)), net(ids).flip(0), rtol=0, atol=1e-5)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_document_number_that_comes_back_is_another_document(variant, backend):
    """Equal ids see each other where they are neighbours; the last three tokens once saw the first three."""
    net, ids = model(variant, backend=backend), tokens(1, 9)
    again = torch.tensor([[0, 0, 0, 1, 1, 1, 0, 0, 0]])
    want = torch.cat([net(part, doc_ids=None) for part in ids.split(3, dim=1)], dim=1)
    found = net(ids, doc_ids=again)
    torch.testing.assert_close(found[:, :3], want[:, :3], rtol=0, atol=1e-5)
    for numbers in ([0, 0, 0, 1, 1, 1, 2, 2, 2], [7, 7, 7, -4, -4, -4, 60_000, 60_000, 60_000]):
        assert torch.equal(net(ids, doc_ids=torch.tensor([numbers])), found)
    changed = ids.clone()
    changed[0, :6] = (changed[0, :6] + 1) % 50
    assert torch.equal(net(changed, doc_ids=again)[:, 6:], found[:, 6:])


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_document_or_no_padding_is_nothing_special(variant):
    net, ids = model(variant), tokens(2, 9)
    torch.testing.assert_close(net(ids, doc_ids=torch.full((2, 9), 3)), net(ids), rtol=0, atol=1e-6)
    torch.testing.assert_close(net(ids, pad=torch.zeros(2, dtype=torch.long)), net(ids), rtol=0, atol=1e-6)
    assert net(ids[:, :1]).shape == (2, 1, 50)


def test_a_seed_gives_the_start_values_of_the_specification_to_a_variants_own_parameters():
    config = ModelConfig(hidden_dim=512, n_layers=2, n_heads=2, ffn_dim=16)
    diff = build_model(config, spec_of("diff"), 8, 64, seed=2).attentions[1]
    drawn = torch.cat([diff.lambda_q1, diff.lambda_k1, diff.lambda_q2, diff.lambda_k2]).detach()
    assert drawn.std().item() == pytest.approx(0.1, rel=0.08) and abs(drawn.mean().item()) < 0.01
    assert torch.equal(diff.head_norm, torch.ones(512))
    first, second = (diff.lambda_q1 @ diff.lambda_k1).exp(), (diff.lambda_q2 @ diff.lambda_k2).exp()
    torch.testing.assert_close(diff.weight(), first - second + 0.3555091, rtol=1e-5, atol=1e-6)
    many = ModelConfig(hidden_dim=128, n_layers=1, n_heads=64, ffn_dim=8)
    heads = build_model(many, spec_of("iha", collapse="per_head"), 8, 64, seed=2).attentions[0]
    noise = heads.alpha_k - torch.eye(64)
    assert noise.std().item() == pytest.approx(0.02, rel=0.03) and abs(noise.mean().item()) < 1e-3
    assert heads.collapse.shape == (2, 64) and (heads.collapse - 0.5).std().item() == pytest.approx(0.01, rel=0.25)
    talking = build_model(config, spec_of("talking_heads"), 8, 64, seed=2).attentions[0]
    assert torch.equal(talking.pre_mix, torch.eye(2)) and torch.equal(talking.post_mix, torch.eye(2))


def test_without_noise_all_pseudo_heads_start_as_their_own_head():
    config = ModelConfig(hidden_dim=32, n_layers=1, n_heads=4, ffn_dim=16)
    layer = build_model(config, spec_of("iha", noise_std=0.0), 8, 64, seed=2).attentions[0]
    assert all(torch.equal(a, torch.eye(4).expand(2, 4, 4)) for a in (layer.alpha_q, layer.alpha_k, layer.alpha_v))
    assert torch.equal(layer.collapse, (torch.eye(4) / 2)[:, None].expand(4, 2, 4))
