"""No tensor of a training step grows with the square of the context, documents or not."""

from __future__ import annotations

import pytest
import torch
from attention_lab import VARIANTS, spec_of, tokens
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from iha.config.schema import ModelConfig
from iha.model.transformer import build_model

LENGTH = 4096


class Largest(TorchDispatchMode):
    """Remembers the largest storage any operator returned."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.numbers = max(self.numbers, leaf.untyped_storage().nbytes() // leaf.element_size())
        return out


@pytest.mark.parametrize(
    ("variant", "documents"),
    [
        ("global", True), ("global_local", False), ("global_local", True),
        ("talking_heads", True), ("diff", True), ("iha", False), ("iha", True), ("iha_token", False),
    ],
)  # fmt: skip
def test_no_tensor_is_quadratic_in_the_context(variant, documents):
    """Forward and backward of one layer with two heads: no tensor has more than 1/16 of N^2 numbers."""
    fields = {name: value for name, value in VARIANTS[variant].items() if name not in ("window", "pseudo_heads")}
    config = ModelConfig(hidden_dim=16, n_layers=1, n_heads=2, ffn_dim=16)
    net = build_model(config, spec_of(**fields), 50, LENGTH, seed=1)
    ids = tokens(1, LENGTH)
    doc_ids = (torch.arange(LENGTH)[None] // 3000) if documents else None
    with Largest() as largest:
        net.hidden(ids, doc_ids=doc_ids).sum().backward()
    assert largest.numbers <= LENGTH**2 // 16


def test_the_measure_sees_a_materialised_mask():
    config = ModelConfig(hidden_dim=16, n_layers=1, n_heads=2, ffn_dim=16)
    net = build_model(config, spec_of("global_local"), 50, 1024, seed=1, backend="sdpa")
    with Largest() as largest:
        net.hidden(tokens(1, 1024)).sum().backward()
    assert largest.numbers >= 1024**2
