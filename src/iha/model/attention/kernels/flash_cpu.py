"""torch's CPU flash kernel with its log-sum-exp, which the public call does not return.

The two operators are private to ATen, so their signatures are checked once; where they differ, callers use masked SDPA.
With the *merged* output and log-sum-exp of several calls, the backward operator gives each call's exact share of the
gradient: its weights are exp(score - lse) and its row term is rowsum(grad x out), whoever computed them.
"""

from __future__ import annotations

import torch
from torch import Tensor

_FORWARD = ("query", "key", "value", "dropout_p", "is_causal", "attn_mask", "scale")
_BACKWARD = ("grad_out", "query", "key", "value", "out", "logsumexp", "dropout_p", "is_causal", "attn_mask", "scale")


def _names(operator: torch._ops.OpOverload) -> tuple[str, ...]:
    return tuple(argument.name for argument in operator._schema.arguments)


def _available() -> bool:
    """Whether this torch has both operators with the signatures used here."""
    try:
        forward_op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
        backward_op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    except AttributeError:
        return False
    return (_names(forward_op), _names(backward_op)) == (_FORWARD, _BACKWARD)


#: Settled at import, so that compiled graphs see a constant.
AVAILABLE = _available()


def forward(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool = False, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Output (B, H, Q, d) and log-sum-exp (B, H, Q) of q (B, H, Q, d) on k, v (B, H, K, d).

    `causal` aligns top left, so it means what it says only for Q = K. `mask` is additive, in the type of q.
    """
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, attn_mask=mask, scale=scale
    )
    return out, lse


def backward(
    grad: Tensor,
    operands: tuple[Tensor, Tensor, Tensor],
    results: tuple[Tensor, Tensor],
    *,
    scale: float,
    causal: bool = False,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of (q, k, v) given those of the output; `results` are the merged output and log-sum-exp."""
    dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, *operands, *results, 0.0, causal, attn_mask=mask, scale=scale
    )
    return dq, dk, dv
