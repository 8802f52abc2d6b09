"""Decoding with a cache equals the full forward: windows, chunks, padding, shared prefixes."""

from __future__ import annotations

import pytest
import torch
from attention_lab import VARIANTS, model, tokens

from iha.model.cache import LayerCache
from iha.variants.base import Geometry


def run(net, cache, *pieces):
    """Logits of consecutive pieces through the cache."""
    return torch.cat([net(piece, cache=cache) for piece in pieces], dim=1)


@pytest.mark.parametrize("prompt", [3, 4, 5, 7])
@pytest.mark.parametrize("variant", VARIANTS)
def test_prefill_and_decode_equal_the_full_forward(variant, prompt):
    net, ids = model(variant, layers=5, dtype=torch.float32), tokens(2, 10)
    got = run(net, net.new_cache(2), ids[:, :prompt], *ids[:, prompt:].split(1, dim=1))
    torch.testing.assert_close(got, net(ids), rtol=0, atol=1e-5)


@pytest.mark.parametrize("sizes", [(3, 4, 1, 1, 1), (3, 30, 40, 1, 1), (25, 25, 1, 24)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_chunked_prefill(variant, sizes):
    net, ids = model(variant, layers=3), tokens(1, sum(sizes))
    got = run(net, net.new_cache(1), *ids.split(list(sizes), dim=1))
    torch.testing.assert_close(got, net(ids), rtol=0, atol=1e-6)


@pytest.mark.parametrize("variant", VARIANTS)
def test_local_layers_keep_their_window_and_global_layers_all(variant):
    net = model(variant, layers=5)
    cache = net.new_cache(1)
    run(net, cache, tokens(1, 7), *tokens(1, 40, seed=1).split(1, dim=1))
    geometry = Geometry(32, 5, 4, 64)
    for index, layer in enumerate(cache.layers):
        assert layer.nbytes == 8 * net.spec.cache_values(geometry, index, 47)


@pytest.mark.parametrize("backend", ["auto", "sdpa", "reference"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_left_padded_rows_equal_the_rows_alone(variant, backend):
    """Prompts of 3 and 7 tokens, 8 greedy tokens: same tokens, logits within 1e-4, in fp32."""
    net = model(variant, layers=5, backend=backend, dtype=torch.float32)
    prompts = [tokens(1, 3, seed=2), tokens(1, 7, seed=3)]
    pad = torch.tensor([4, 0])
    batch = torch.cat([torch.nn.functional.pad(prompts[0], (4, 0)), prompts[1]])
    together, logits = greedy(net, batch, pad)
    for row, prompt in enumerate(prompts):
        alone, alone_logits = greedy(net, prompt, None)
        assert torch.equal(together[row : row + 1], alone)
        torch.testing.assert_close(logits[row : row + 1], alone_logits, rtol=0, atol=1e-4)
        assert logits.isfinite().all()


@torch.inference_mode()
def greedy(net, ids, pad, steps=8):
    """Greedy tokens and their logits."""
    cache = net.new_cache(ids.shape[0])
    logits = [net(ids, cache=cache, pad=pad, last_only=True)]
    out = []
    for _ in range(steps):
        out.append(logits[-1].argmax(-1))
        logits.append(net(out[-1], cache=cache))
    return torch.cat(out, 1), torch.cat(logits, 1)


@pytest.mark.parametrize("variant", VARIANTS)
def test_padding_without_a_cache_changes_nothing(variant):
    net, ids = model(variant), tokens(2, 40)
    padded = net(ids, pad=torch.tensor([0, 23]))
    torch.testing.assert_close(padded[1:, 23:], net(ids[1:, 23:]), rtol=0, atol=1e-6)
    torch.testing.assert_close(padded[:1], net(ids[:1]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("variant", ["global", "diff", "iha"])
def test_selected_rows_share_a_prefill(variant):
    net, ids = model(variant), tokens(2, 12)
    pad = torch.tensor([5, 0])
    cache = net.new_cache(2)
    net(ids, cache=cache, pad=pad)
    many = cache.select(torch.tensor([1, 0, 0, 1]))
    nexts = tokens(4, 3, seed=5)
    got = run(net, many, *nexts.split(1, dim=1))
    for row, source in enumerate([1, 0, 0, 1]):
        whole = torch.cat((ids[source], nexts[row]))[None, pad[source] :]
        torch.testing.assert_close(got[row : row + 1], net(whole)[:, -3:], rtol=0, atol=1e-6)
    assert cache.length == 12
    assert many.length == 15


def test_cache_in_bf16_halves_its_bytes_and_stays_close():
    net, ids = model("global", dtype=torch.float32), tokens(1, 20)
    exact, half = net.new_cache(1), net.new_cache(1, torch.bfloat16)
    want, got = (run(net, cache, ids[:, :10], ids[:, 10:]) for cache in (exact, half))
    assert half.nbytes * 2 == exact.nbytes
    assert (want - got).abs().max() < 0.05 * want.abs().max()


def test_misuse_is_refused():
    net, ids = model("global"), tokens(2, 4)
    cache = net.new_cache(2)
    net(ids, cache=cache, pad=torch.tensor([1, 0]))
    with pytest.raises(ValueError, match="pad is given once"):
        net(ids, cache=cache, pad=torch.tensor([1, 0]))
    with pytest.raises(ValueError, match="2 rows, got 1"):
        net(ids[:1], cache=cache)
    with pytest.raises(ValueError, match="exclude each other"):
        net(ids, cache=cache, doc_ids=ids)


def test_a_window_is_compacted_without_losing_entries():
    """A thousand steps: bounded memory, and always the last `keep` entries plus the new one."""
    cache = LayerCache(keep=10)
    for step in range(1000):
        x = torch.full((1, 1, 1, 1), float(step))
        k, v = cache.append(x, -x)
        assert k.flatten().tolist() == list(range(max(0, step - 10), step + 1))
        assert torch.equal(v, -k)
    assert cache.capacity <= 10 + 32
