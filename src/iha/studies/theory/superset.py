"""Theorem 2: MHA is a subset of IHA, a strict one for P >= 2, at 4 H^2 P parameters (paper B.1; spec 7.2, D1, D2)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from iha.model.attention.iha import InterleavedHeadAttention
from iha.model.attention.mha import MultiHeadAttention
from iha.studies.theory.layers import (
    Layer,
    Positions,
    frame,
    gap,
    identity_mix,
    iha,
    mha,
    project,
    randomise,
    same_weights,
    shown,
)
from iha.studies.theory.statement import Counterexample, Statement, judge
from iha.variants.base import Geometry
from iha.variants.iha import IhaSpec

HEADS, HEAD_DIM, LENGTH = 4, 8, 12
PSEUDO_HEADS = (1, 2, 3, 4)


def statements() -> list[Statement]:
    """Inclusion in four settings, the parameter count, the printed example of strictness, strictness."""
    return [_open(), _flat(), _virtual(), _parameters(), _example(), _strict()]


def one_hot(pseudo_heads: int, index: int) -> list[float]:
    """R that takes one pseudo-output."""
    return [float(p == index % pseudo_heads) for p in range(pseudo_heads)]


def inclusion_gap(pseudo_heads: int, own: list[float], positions: Positions, *, masked: bool) -> float:
    """Largest difference between MHA and IHA with the weights of the proof and R = `own` on random input."""
    module = iha(HEADS, HEAD_DIM, pseudo_heads)
    randomise(module, seed=pseudo_heads)
    identity_mix(module, own)
    x = torch.randn(2, LENGTH, HEADS * HEAD_DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    seen = frame(LENGTH, HEAD_DIM, pseudo_heads, positions, masked=masked)
    return gap(module(x, seen), same_weights(module)(x, seen))


def _open() -> Statement:
    rs = [(p, own) for p in PSEUDO_HEADS for own in (one_hot(p, 0), one_hot(p, -1), [1 / p] * p)]
    return judge(
        "superset-unmasked",
        "Every MHA layer is an IHA layer, for every P >= 1 (no mask, no positions).",
        kind="theorem",
        source="Theorem 2, B.1",
        tried=f"P = 1..4; R = first, last, mean; H = {HEADS}, d = {HEAD_DIM}, N = {LENGTH}",
        reason="Copies of a head see P equal copies of every key, so each softmax weight is split into P equal parts "
        "that add up again. Any R whose weights on its own head sum to 1 returns MHA.",
        printed=max(inclusion_gap(p, own, "none", masked=False) for p, own in rs),
    )


def _flat() -> Statement:
    first = max(inclusion_gap(p, one_hot(p, 0), "shared", masked=True) for p in PSEUDO_HEADS)
    last = max(inclusion_gap(p, one_hot(p, -1), "shared", masked=True) for p in PSEUDO_HEADS)
    two = _two_tokens(one_hot(2, 0), "none")
    return judge(
        "superset-flat-causal",
        "The inclusion's weights (R takes the first pseudo-output) also serve the causal layer.",
        kind="reading",
        source="Theorem 2, B.1",
        tried=f"P = 1..4, one position per token; H = {HEADS}, d = {HEAD_DIM}, N = {LENGTH}",
        reason="In the interleaved causal order the first pseudo-query of a token sees its own token once and every "
        "older one P times. Only the last sees all of them P times.",
        printed=first,
        corrected=last,
        correction="R takes the last pseudo-output.",
        corrects="index",
        counterexample=Counterexample(
            "H = 1, P = 2, two tokens with values 0 and 1, all scores 0: output at the second token", *two
        ),
    )


def _two_tokens(own: list[float], positions: Positions) -> tuple[float, float]:
    """(MHA, IHA) at the second of two tokens with values 0 and 1 in one head, all scores 0."""
    module = iha(1, 2, len(own))
    project(module, 2, 0, torch.tensor([[1.0], [0.0]], dtype=torch.float64))
    module.out.weight.copy_(torch.eye(2))
    identity_mix(module, own)
    x = torch.tensor([[[0.0, 1.0], [1.0, 1.0]]], dtype=torch.float64)
    seen = frame(2, 2, len(own), positions)
    return shown(same_weights(module)(x, seen)[0, 1, :1])[0], shown(module(x, seen)[0, 1, :1])[0]


def echo(pseudo_heads: int, longest: int = 1000) -> int:
    """Distance up to `longest` after which the angles repeat at P positions per token, but not at one.

    P times it is the closest to a multiple of 2 pi among those that are a third of a turn away from one themselves.
    """

    def off(angle: float) -> float:
        return abs(math.remainder(angle, 2 * math.pi))

    far = (q for q in range(1, longest + 1) if off(q) > 1)
    return min(far, key=lambda q: off(pseudo_heads * q))


def moved(module: Layer, pseudo_heads: int, distance: int) -> tuple[float, float]:
    """Output at the last token while a marked one is 6 tokens before it, and `distance` tokens farther away.

    One head of width 2; queries, keys and values of the other tokens are 0.
    """
    length = distance + 7
    outputs = []
    for place in (distance, 0):
        x = torch.zeros(1, length, 2, dtype=torch.float64)
        x[0, place], x[0, -1, 0] = 1.0, 1.0
        seen = frame(length, 2, pseudo_heads, "virtual")
        outputs.append(module(x, seen)[0, -1])
    return float(outputs[0].norm()), gap(outputs[0], outputs[1])


def rope_mha(turn: float = 10.0) -> MultiHeadAttention:
    """One head of width 2: queries and keys are the first input times sqrt(turn sqrt 2), values the second."""
    module = mha(1, 2)
    for part in (0, 1):
        project(module, part, 0, torch.tensor([[(turn * 2**0.5) ** 0.5], [0.0]], dtype=torch.float64))
    project(module, 2, 0, torch.tensor([[0.0], [1.0]], dtype=torch.float64))
    module.out.weight.copy_(torch.eye(2))
    return module


def drawn_iha(pseudo_heads: int, seed: int, scale: float = 1.0) -> InterleavedHeadAttention:
    """One head of width 2, every weight drawn from N(0, scale^2)."""
    module = iha(1, 2, pseudo_heads)
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.copy_(scale * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return module


def _virtual() -> Statement:
    places = {p: echo(p) for p in PSEUDO_HEADS[1:]}
    wanted = {p: moved(rope_mha(), 1, q)[1] for p, q in places.items()}
    found = {p: max(moved(drawn_iha(p, seed), p, q)[1] for seed in range(4)) for p, q in places.items()}
    return judge(
        "superset-virtual-rope",
        "The layer that is trained, with RoPE at virtual positions n P + p, contains RoPE-MHA.",
        kind="reading",
        source="Theorem 2 against section 4.2",
        tried=f"one head, d = 2, P = 2, 3, 4; a token is moved by {', '.join(map(str, places.values()))} places: the "
        f"output of RoPE-MHA changes by {min(wanted.values()):.2f} or more, that of 12 random IHA layers by "
        f"{max(found.values()):.0e} or less. The argument is for all weights, without a window, at any length; the "
        "numbers show its step",
        reason="An IHA layer knows distances only by the angles P theta q. At some distance q all of them are "
        "arbitrarily close to whole turns while the angles theta q of MHA stay a P-th of a turn away (for d > 2 by "
        "Kronecker's theorem: the frequencies, powers of 500,000^(-2/d), and pi are independent over the rationals). "
        "Moving a token by q then changes the output of any IHA layer by an arbitrarily small share of its "
        "effect in RoPE-MHA. Had the P pseudo-tokens of a token one position, inclusion would be exact, but that is "
        "another layer.",
        printed=min((wanted[p] - found[p]) / 2 for p in places),
        measure="error on one of the two inputs, at least",
        counterexample=Counterexample(
            f"H = 1, d = 2, P = 2, a token moved by {places[2]} places: change of the last output, in MHA and in IHA",
            round(wanted[2], 4),
            round(found[2], 4),
        ),
    )


def _parameters() -> Statement:
    pairs = [(h, p) for h in (1, 2, 3, 4) for p in PSEUDO_HEADS]
    counted = {hp: _numel(iha(hp[0], 4, hp[1])) - _numel(mha(hp[0], 4)) for hp in pairs}
    ledger = IhaSpec(kind="iha", pseudo_heads=2, period=1, global_layers="iha").params(Geometry(2560, 1, 20, 8192), 0)
    return judge(
        "superset-parameters",
        "IHA has 4 H^2 P parameters more than MHA.",
        kind="lemma or count",
        source="Theorem 2",
        tried="layers counted for H = 1..4, P = 1..4; the ledger at H = 20, P = 2",
        reason="Three mixes of H x H x P numbers and the collapse, H x HP.",
        printed=max(
            *(abs(extra - 4 * h * h * p) for (h, p), extra in counted.items()), abs(ledger - 4 * 2560**2 - 3200)
        ),
        measure="parameters",
    )


def _numel(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def sign_flip(
    value_sign: float, *, scale: float = 1.0, dim: int = 4, pseudo_heads: int = 2
) -> tuple[Tensor, Tensor, Tensor]:
    """One head, two pseudo-heads of opposite sign, equal tokens, no mask: (output, value v, score s) of one token.

    Further pseudo-heads have keys and values 0. At `dim` 2: the smallest case, value (1, 0) and score 1 at scale 1.
    """
    module = iha(1, dim, pseudo_heads)
    if dim == 2:
        token = torch.tensor([1.0, 0.0], dtype=torch.float64)
        for part, width in enumerate((2**0.25, 2**0.25, 1.0)):
            project(module, part, 0, torch.tensor([[width]], dtype=torch.float64))
    else:
        token = torch.randn(dim, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        randomise(module, seed=1)
    module.out.weight.copy_(torch.eye(dim))
    identity_mix(module, one_hot(pseudo_heads, 0))
    for alpha, sign in ((module.alpha_q, -1.0), (module.alpha_k, -1.0), (module.alpha_v, value_sign)):
        alpha[1] *= sign
        alpha[2:] = 0
    q, k, v = (module.qkv.weight @ (scale * token)).chunk(3)
    out = module(scale * token.expand(1, 6, dim), frame(6, dim, pseudo_heads, "none", masked=False))[0, 0]
    return out, v, (q @ k) / dim**0.5


def _nonlinearity(value_sign: float) -> float:
    """|f(2 x) - 2 f(x)| on repeated tokens; 0 for every MHA layer."""
    return gap(sign_flip(value_sign, scale=2.0)[0], 2 * sign_flip(value_sign)[0])


def _example() -> Statement:
    out, v, score = sign_flip(1.0)
    wanted = v * torch.tanh(score)
    return judge(
        "strictness-example",
        "B.1's pair of pseudo-heads (queries and keys of opposite sign, values +v and +v) computes what no MHA can.",
        kind="example",
        source="B.1",
        tried=f"H = 1, P = 2, d = 4, six equal tokens; |f(2x) - 2 f(x)| = {_nonlinearity(1.0):.0e} as printed, "
        f"{_nonlinearity(-1.0):.2f} as corrected (every MHA layer: 0)",
        reason="Both keys carry the same value, so the softmax weights sum to 1 in front of it: the output is v for "
        "any scores and any R, as in MHA. With values +v and -v the weights subtract.",
        printed=gap(out, wanted),
        corrected=gap(sign_flip(-1.0)[0], wanted),
        correction="The second pseudo-value is -v (alpha_v = -1), not +v.",
        corrects="sign",
        measure="difference from the nonlinear function v tanh(s)",
        counterexample=_smallest(),
    )


def _smallest() -> Counterexample:
    out, v, score = sign_flip(1.0, dim=2)
    return Counterexample(
        "H = 1, P = 2, equal tokens with value v = 1 and score s = 1, values +v and +v: v tanh(s) against the output",
        shown(v * torch.tanh(score))[0],
        shown(out)[0],
    )


def deployed_nonlinearity() -> float:
    """|f(2 x) - 2 f(x)| on repeated tokens of a random causal IHA layer with RoPE at virtual positions."""
    module = iha(HEADS, HEAD_DIM, 2)
    randomise(module, seed=3)
    identity_mix(module, [0.5, 0.5])
    _flip(module)
    x = torch.randn(HEADS * HEAD_DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(4)).expand(1, 6, -1)
    seen = frame(6, HEAD_DIM, 2, "virtual")
    return gap(module(2 * x, seen), 2 * module(x, seen))


def _flip(module: InterleavedHeadAttention) -> None:
    for alpha in (module.alpha_q, module.alpha_k, module.alpha_v):
        alpha[1] *= -1


def _strict() -> Statement:
    pairs = {p: sign_flip(-1.0, pseudo_heads=p) for p in PSEUDO_HEADS[1:]}
    return judge(
        "strictness",
        "For P >= 2 some IHA layer is no MHA layer: what MHA computes on repeated tokens is linear.",
        kind="theorem",
        source="Theorem 2, B.1",
        tried=f"P = 2, 3, 4, six equal tokens; |f(2x) - 2 f(x)| = {_nonlinearity(-1.0):.2f} at P = 2, and "
        f"{deployed_nonlinearity():.2f} in a causal layer with virtual RoPE (every MHA layer: 0)",
        reason="With values +v and -v (not B.1's +v and +v) the weights e^s and e^-s subtract: v tanh(s) at P = 2, and "
        "v (e^s - e^-s) / (e^s + e^-s + P - 2) where the other pseudo-heads are 0.",
        printed=max(gap(out, v * 2 * torch.sinh(s) / (2 * torch.cosh(s) + p - 2)) for p, (out, v, s) in pairs.items()),
        measure="difference from that nonlinear function",
    )
