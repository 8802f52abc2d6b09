"""AdamW: torch's numbers, and decay on exactly the weights it is meant for."""

import pytest
import torch
from trainlab import KINDS, MODEL, VOCAB, recipe, variant

from iha.model.transformer import build_model
from iha.train.optimizer import AdamW, decay_split

DECAYED = {"attention.qkv.weight", "attention.out.weight", "ffn.gate_up.weight", "ffn.down.weight"}
NORMS = {"attention_norm.weight", "ffn_norm.weight"}
MIXERS = {
    "global": set(),
    "global_local": set(),
    "talking_heads": {"pre_mix", "post_mix"},
    "diff": {"lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2", "head_norm"},
    "iha": {"alpha_q", "alpha_k", "alpha_v", "collapse"},
}


def model_of(kind):
    return build_model(MODEL, variant(kind).attention, VOCAB, 64, seed=1)


@pytest.mark.parametrize("kind", KINDS)
def test_table_of_groups(kind):
    model = model_of(kind)
    names = [name for name, _ in model.named_parameters()]
    decayed, plain = decay_split(names, model.no_decay_names())
    assert sorted(decayed + plain) == sorted(names)
    assert decayed == [n for n in names if n.split(".", 2)[-1] in DECAYED]
    table = {"embed.weight", "norm.weight"}
    for layer in range(MODEL.n_layers):
        mixers = set() if (kind, layer) == ("iha", 4) else {f"attention.{n}" for n in MIXERS[kind]}
        table |= {f"blocks.{layer}.{n}" for n in NORMS | mixers}
    assert set(plain) == table
    sizes = {n: p.numel() for n, p in model.named_parameters()}
    assert sum(sizes[n] for n in decayed + plain) == sum(p.numel() for p in model.parameters())


def test_a_renamed_parameter_cannot_lose_its_exemption_unseen():
    with pytest.raises(ValueError, match="lambda_q1"):
        decay_split(["a.weight"], {"lambda_q1"})


def test_updates_equal_torchs_bit_for_bit():
    plan = recipe(weight_decay=0.1)
    ours, theirs = model_of("iha"), model_of("iha")
    no_decay = ours.no_decay_names()
    mine = AdamW(dict(ours.named_parameters()), no_decay, plan)
    groups = [
        {"params": [p for n, p in theirs.named_parameters() if n not in no_decay], "weight_decay": 0.1},
        {"params": [p for n, p in theirs.named_parameters() if n in no_decay], "weight_decay": 0.0},
    ]
    reference = torch.optim.AdamW(groups, betas=plan.betas, eps=plan.eps, fused=True)
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            p.grad = torch.randn(p.shape, generator=generator)
            q.grad = p.grad.clone()
        for group in reference.param_groups:
            group["lr"] = 1e-2 / (step + 1)
        mine.step(1e-2 / (step + 1))
        reference.step()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(p, q)


def test_decay_moves_only_the_decayed():
    model = model_of("talking_heads")
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    optimizer = AdamW(dict(model.named_parameters()), model.no_decay_names(), recipe(weight_decay=0.5))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step(0.1)
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert moved == set(optimizer.decayed)
