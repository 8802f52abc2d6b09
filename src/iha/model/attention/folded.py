"""A decode step of an interleaved layer on MHA's own cache: the mixes are folded into queries and outputs.

A pseudo-key is a mix of base keys, rotated by its virtual position n P + p. The mix commutes with the rotation by n P,
which is stored, so each query is turned back by p and mixed instead: q . k_(n,p) = sum_m alpha[p,h,m] (R(-p) q) . k_m.
P times less memory than caching pseudo-keys, for H P times the multiply-adds of a step that memory bounds anyway; the
C++ kernel mixes the keys while they are in the processor's first cache, for H of them per key of a query.
"""

from __future__ import annotations

import torch
from torch import Tensor

from iha.model.attention.kernels import decode
from iha.model.attention.masks import Mask
from iha.model.rope import Rotation, rotate


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha_k: Tensor,
    alpha_v: Tensor,
    within: Rotation,
    mask: Mask,
    scale: float,
    backend: str = "auto",
) -> Tensor:
    """Attention of virtual queries on the pseudo-keys and values that the mixes make of base ones.

    Args:
        q: (B, Q, H, d), mixed and rotated by virtual position.
        k: (B, T, H d) base keys, token n's rotated by n P.
        v: (B, T, H d) base values.
        alpha_k: (P, H, H) mix of the keys; `alpha_v` of the values.
        within: rotation of positions 0 .. P - 1, each (P, d).
        mask: over the T P virtual keys.
        scale: of the logits.
        backend: auto takes the C++ kernel where it can, which mixes keys instead of queries.

    Returns:
        (B, Q, H, d).
    """
    batch, queries, heads, d = q.shape
    p, tokens = alpha_k.shape[0], k.shape[1]
    back = (within[0], -within[1])
    turned = rotate(q[:, :, None].expand(-1, -1, p, -1, -1), back)
    if backend == "auto" and decode.usable_folded(q, k, v, mask):
        return decode.attend_folded(turned.permute(0, 2, 3, 1, 4), k, v, alpha_k, alpha_v, mask, scale)
    seen = mask.seen(k.device)
    wide = torch.einsum("bqphd,phm->bqhpmd", turned, alpha_k.to(q.dtype)).reshape(batch, queries * heads * p, heads * d)
    logits = (wide * scale).matmul(k.mT).view(batch, queries, heads, p * tokens)
    if seen is not None:
        by_pseudo = seen.view(-1, 1, queries, tokens, p).permute(0, 2, 1, 4, 3).reshape(-1, queries, 1, p * tokens)
        logits = logits.masked_fill(~by_pseudo, float("-inf"))
    weights = logits.softmax(dim=-1).view(batch, queries * heads * p, tokens)
    sums = weights.matmul(v).view(batch, queries, heads, p, heads, d)
    return torch.einsum("bqhpmd,phm->bqhd", sums, alpha_v.to(q.dtype))
