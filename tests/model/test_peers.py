"""Our models against implementations no one here wrote, with the same weights: fp32 logits within 1e-5."""

from __future__ import annotations

import pytest
import torch
from attention_lab import spec_of, tokens

from iha.config.schema import ModelConfig
from iha.model.transformer import build_model

VOCAB, HEADS, HIDDEN, FFN, LAYERS, WINDOW = 80, 4, 32, 48, 4, 7
CONFIG = ModelConfig(hidden_dim=HIDDEN, n_layers=LAYERS, n_heads=HEADS, ffn_dim=FFN)


def ours(kind, **fields):
    """Our model, its weights enlarged so that logits are of order one."""
    net = build_model(CONFIG, spec_of(kind, **fields), VOCAB, 64, seed=3)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name.endswith("weight") and parameter.dim() == 2:
                parameter.mul_(4)
            elif "norm" in name:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    return net


def halves_first(weight, blocks):
    """Reorder sub-heads from pairs adjacent (0,1 | 2,3 ..) to first members, then second members."""
    heads = weight.view(blocks, 2, -1, weight.shape[-1])
    return torch.cat((heads[:, 0], heads[:, 1])).reshape(weight.shape)


def peer_weights(net, reorder=lambda w: w):
    """Our weights under the names of the transformers Llama family."""
    out = {"model.embed_tokens.weight": net.embed.weight, "lm_head.weight": net.embed.weight}
    out["model.norm.weight"] = net.norm.weight
    for i, block in enumerate(net.blocks):
        at = f"model.layers.{i}."
        parts = block.attention.qkv.weight.chunk(3)
        for name, weight in zip("qkv", parts, strict=True):
            out[f"{at}self_attn.{name}_proj.weight"] = reorder(weight)
        gate, up = block.ffn.gate_up.weight.chunk(2)
        out[f"{at}self_attn.o_proj.weight"] = block.attention.out.weight
        out[f"{at}mlp.gate_proj.weight"], out[f"{at}mlp.up_proj.weight"] = gate, up
        out[f"{at}mlp.down_proj.weight"] = block.ffn.down.weight
        out[f"{at}input_layernorm.weight"] = block.attention_norm.weight
        out[f"{at}post_attention_layernorm.weight"] = block.ffn_norm.weight
    return out


def peer(name, weights, **extra):
    """A transformers model with those weights, every one of them used."""
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{name}Config")(
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=FFN, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=HEADS, rms_norm_eps=CONFIG.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": CONFIG.rope_theta},
        tie_word_embeddings=True, attn_implementation="eager", **extra,
    )  # fmt: skip
    net = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    net.load_state_dict(weights, strict=True)
    return net


@torch.no_grad()
def agree(net, other, length=40):
    ids = tokens(2, length, VOCAB)
    mine, theirs = net(ids), other(ids).logits
    assert mine.std() > 0.3
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5)


def test_global_is_llama():
    net = ours("global")
    agree(net, peer("Llama", peer_weights(net)))


def test_local_layers_are_mistrals_sliding_window():
    net = ours("global_local", window=WINDOW, period=99)
    agree(net, peer("Mistral", peer_weights(net), sliding_window=WINDOW))


def test_diff_is_diffllama():
    """Differences mapped: DiffLlama's sub-heads are halves of the heads, ours adjacent; its head norm has no weight."""
    net = ours("diff")
    lambdas = {}
    with torch.no_grad():
        for i, block in enumerate(net.blocks):
            block.attention.head_norm.fill_(1.0)
            for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
                lambdas[f"model.layers.{i}.self_attn.{name}"] = getattr(block.attention, name)
        weights = peer_weights(net, lambda w: halves_first(w, HEADS // 2))
    agree(net, peer("DiffLlama", weights | lambdas))


def test_talking_heads_are_x_transformers():
    """Its pre-mix is a residual (logits + W logits), ours the whole mix: W = pre_mix - identity."""
    attend = pytest.importorskip("x_transformers.attend")
    from iha.model.attention.masks import Mask

    module = ours("talking_heads").blocks[0].attention
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, HEADS, 33, HIDDEN // HEADS) for _ in range(3))
    other = attend.Attend(
        causal=True, heads=HEADS, pre_talking_heads=True, post_talking_heads=True, scale=module.scale, dropout=0.0
    )
    with torch.no_grad():
        for mix in (module.pre_mix, module.post_mix):
            mix.add_(0.4 * torch.randn(HEADS, HEADS))
        other.pre_softmax_talking_heads.weight.copy_((module.pre_mix - torch.eye(HEADS))[..., None, None])
        other.post_softmax_talking_heads.weight.copy_(module.post_mix[..., None, None])
        theirs, _ = other(q, k, v)
        mine = module.mix_and_attend(q, k, v, Mask(33, 33))
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5)
