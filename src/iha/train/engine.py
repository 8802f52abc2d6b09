"""How one forward and backward pass is computed: precision, recomputation, compilation, sharding."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from iha.config.schema import EngineConfig
from iha.train.distributed import World, shard
from iha.train.loss import token_loss_sum

if TYPE_CHECKING:
    from iha.model.transformer import Transformer


class Objective(nn.Module):
    """The model with its loss, as one module: the root that sharding gathers the embedding and the head for."""

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


def prepare(model: Transformer, engine: EngineConfig, world: World) -> Objective:
    """Wrap a model for training; parameter names and values stay. Order: recompute, compile, shard."""
    objective = Objective(model, engine)
    blocks = list(model.blocks)
    if engine.activation_checkpointing:
        recompute(blocks)
    if engine.compile:
        compile_blocks(blocks)
    shard(objective, blocks, world)
    return objective


def compile_blocks(blocks: list[nn.Module]) -> None:
    """Compile each block in place. Blocks share their code and differ in depth and window, hence the higher limit."""
    import torch._dynamo

    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 4 * len(blocks))
    for block in blocks:
        block.compile()


def recompute(blocks: Iterable[nn.Module]) -> None:
    """Drop each block's activations after the forward pass and compute them again in the backward pass."""
    from torch.utils.checkpoint import checkpoint

    for block in blocks:
        # Replacing the method, not the module, keeps parameter names.
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)


def make_deterministic(seed: int, threads: int) -> None:
    """Same seed, same bits on one machine and world size; operations without a deterministic form only warn."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.manual_seed(seed)
    torch.set_num_threads(threads)
    # Not use_deterministic_algorithms(): that imports the compiler, 3 CPU-s of every start.
    torch.set_deterministic_debug_mode("warn")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
