"""Next-token cross-entropy without ever holding tokens x vocabulary logits in full, and the model with its loss.

Legend: T tokens (batch and sequence flattened), D width, V vocabulary.

One function for every device and precision. torch's own chunked op is no faster (2048 x 8192, D = 256, fp32, one
thread: 947 ms, this 965), returns a bf16 sum for bf16 inputs, which loses three digits, and imports the compiler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from iha.config.schema import EngineConfig
from iha.data.loader import IGNORE_INDEX

if TYPE_CHECKING:
    from iha.model.transformer import Transformer


class ModelWithLoss(nn.Module):
    """The model with its loss, as one module: the root at which sharding gathers the embedding and the head."""

    def __init__(self, model: Transformer, engine: EngineConfig) -> None:
        super().__init__()
        self.model = model
        self._chunk = engine.loss_chunk
        self._low = engine.precision == "bf16"

    def forward(self, tokens: Tensor, targets: Tensor, doc_ids: Tensor | None) -> Tensor:
        """Summed cross-entropy of (b, N) tokens against (b, N) targets (-100: no label), in nats.

        A float32 scalar; float64 for a float64 model.
        """
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=self._low):
            hidden = self.model.hidden(tokens, doc_ids=doc_ids)
        dtype = torch.bfloat16 if self._low else hidden.dtype
        return token_loss_sum(hidden, self.model.head_weight, targets, self._chunk, dtype)


def token_loss_sum(
    hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int, product_dtype: torch.dtype = torch.float32
) -> Tensor:
    """Sum of the cross-entropy over labelled tokens, a float32 scalar (float64 for float64 products); 0 if none is.

    Args:
        hidden: (..., D) final hidden states.
        weight: (V, D) output matrix.
        targets: (...) next-token ids, -100 where there is no loss.
        chunk: tokens per chunk.
        product_dtype: dtype of the matrix products.
    """
    flat, labels = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)
    with torch.autocast(hidden.device.type, enabled=False):
        total: Tensor = _ChunkedLoss.apply(flat, weight, labels, chunk, product_dtype)  # type: ignore[no-untyped-call]
    return total


class _ChunkedLoss(torch.autograd.Function):
    """Computes the gradients in the forward pass, while a chunk's logits exist; backward only scales them."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, flat: Tensor, weight: Tensor, labels: Tensor, chunk: int, product_dtype: torch.dtype
    ) -> Tensor:
        rows, matrix = flat.detach().to(product_dtype), weight.detach().to(product_dtype)
        exact = torch.promote_types(product_dtype, torch.float32)
        total = torch.zeros((), dtype=exact, device=flat.device)
        grad_flat = torch.empty_like(flat)
        grad_weight = torch.zeros(weight.shape, dtype=exact, device=weight.device)
        for start in range(0, len(rows), chunk):
            piece = rows[start : start + chunk]
            loss, grad_logits, scale = _loss_and_grad((piece @ matrix.T).to(exact), labels[start : start + chunk])
            total += loss
            grad_logits = grad_logits.to(product_dtype)
            grad_flat[start : start + chunk] = (grad_logits @ matrix) * scale
            _add_product(grad_weight, grad_logits.T, (piece * scale).to(product_dtype))
        ctx.grads = [grad_flat, grad_weight.to(weight.dtype)]  # type: ignore[attr-defined]
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Scale in place: a copy of a (V, D) matrix would cost a third of the loss's time. Hence once only."""
        if not ctx.grads:
            raise RuntimeError("token_loss_sum can be differentiated once; its gradients are scaled in place")
        grads, ctx.grads = ctx.grads, []
        return *(g.mul_(grad.to(g.dtype)) for g in grads), None, None, None


def _loss_and_grad(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Summed loss of one chunk, and its gradient by the logits (t, V) without the row factors (t, 1), which follow.

    In fp32, or float64 for float64 products; `logits` is overwritten. Rows are divided by their sum, and unlabelled
    ones zeroed, after the products, where rows are D wide and not V.
    """
    live = labels != IGNORE_INDEX
    index = labels.clamp(min=0).unsqueeze(1)
    top = logits.amax(1, keepdim=True)
    right = logits.gather(1, index)
    powers = logits.sub_(top).exp_()
    norm = powers.sum(1, keepdim=True)
    loss = ((norm.log() + top - right).squeeze(1) * live).sum()
    powers.scatter_add_(1, index, -norm)
    return loss, powers, live.unsqueeze(1) / norm


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right, in place where the dtypes agree."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right
