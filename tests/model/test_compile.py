"""Blocks are traced whole: a graph break per layer would undo what compilation gains."""

from __future__ import annotations

import pytest
import torch
from attention_lab import model, tokens


def test_layers_that_are_alike_share_a_graph():
    """Ten layers, local and global: two graphs."""
    torch._dynamo.reset()
    net, graphs = model("iha", layers=10, dtype=torch.float32), []

    def keep(graph, _):
        graphs.append(graph)
        return graph.forward

    for block in net.blocks:
        block.compile(backend=keep, dynamic=False)
    net(tokens(2, 40)).sum().backward()
    assert len(graphs) == 2


@pytest.mark.parametrize(
    ("variant", "documents"),
    [("global", False), ("talking_heads", False), ("diff", False), ("iha", False), ("iha", True), ("iha_token", False)],
)
def test_a_block_is_one_graph(variant, documents):
    """Traced with fullgraph, run by the eager backend: same loss, same gradients."""
    torch._dynamo.reset()
    plain, traced = (model(variant, layers=1, dtype=torch.float32) for _ in range(2))
    traced.blocks[0].compile(backend="eager", fullgraph=True, dynamic=False)
    ids = tokens(2, 40)
    doc_ids = (torch.arange(40) // 25).expand(2, -1) if documents else None
    for net in (plain, traced):
        net(ids, doc_ids=doc_ids).logsumexp(-1).sum().backward()
    for (name, ours), (_, theirs) in zip(traced.named_parameters(), plain.named_parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-6, msg=name)
