"""Mask matrices, number by number."""

from __future__ import annotations

import pytest
import torch
from attention_lab import context as exact_context
from attention_oracle import rope, rows_apart, visible
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from iha.model.attention import ForwardContext
from iha.model.attention.kernels import attend, cpu, flash, flex
from iha.model.attention.masks import Mask, additive
from iha.model.rope import Rope, rotate
from iha.variants.base import Geometry, live_pairs, spec_class

CPU = torch.device("cpu")


def dense(*args, **kwargs):
    return Mask(*args, **kwargs).dense(CPU)[0, 0]


def test_a_window_counts_the_token_itself():
    seen = dense(8, 8, window=4)
    assert seen.sum(1).tolist() == [1, 2, 3, 4, 4, 4, 4, 4]
    assert seen.sum() == 26
    assert seen[7].nonzero().flatten().tolist() == [4, 5, 6, 7]
    assert live_pairs(65_536, 1024) == 66_585_088


@pytest.mark.parametrize("backend", ["reference", "sdpa", "banded", "auto"])
def test_every_backend_attends_to_exactly_the_window(backend):
    """Equal scores make the output the mean of the visible values: it reads the mask off the kernel."""
    length, window = 8, 4
    values = torch.eye(length, dtype=torch.float64)[None, None]
    zeros = torch.zeros(1, 1, length, length, dtype=torch.float64)
    weights = attend(zeros, zeros, values, Mask(length, length, window=window), 1.0, backend)[0, 0]
    assert (weights > 0).sum(1).tolist() == [1, 2, 3, 4, 4, 4, 4, 4]
    torch.testing.assert_close(weights.sum(1), torch.ones(length, dtype=torch.float64))


def test_the_window_of_iha_is_in_virtual_tokens():
    spec = spec_class("iha")(kind="iha", pseudo_heads=2)
    assert spec.window_at(Geometry(32, 5, 4, 16), 0) == 2
    mask = ForwardContext(16, Rope(8, 1e4), CPU).mask(32, n_pseudo=2, window=2)
    assert mask.window == 4
    seen = mask.dense(CPU)[0, 0]
    assert seen.sum() == 122
    assert seen.sum(1).tolist() == [min(u + 1, 4) for u in range(32)]
    assert spec.window_at(Geometry(32, 5, 4, 8192), 0) == 1024
    long = ForwardContext(8192, Rope(8, 1e4), CPU).mask(16_384, n_pseudo=2, window=1024)
    assert (long.window - 1, 0) == (2047, 0)


def test_flat_and_token_causal_rows():
    assert dense(4, 4, n_pseudo=2).sum(1).tolist() == [1, 2, 3, 4]
    assert dense(4, 4, group=2, n_pseudo=2).sum(1).tolist() == [2, 2, 4, 4]


def test_documents_are_block_diagonal():
    documents = torch.tensor([[0, 0, 0, 0, 0, 1, 1, 1]])
    seen = dense(8, 8, documents=documents)
    assert seen.sum(1).tolist() == [1, 2, 3, 4, 5, 1, 2, 3]
    assert seen.sum() == 21
    assert dense(8, 8).sum() == 36


@pytest.mark.parametrize("token_causal", [False, True])
@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("n_pseudo", [1, 2, 3])
def test_dense_equals_the_definition(n_pseudo, window, token_causal):
    tokens, pad, documents = 9, torch.tensor([0, 4]), torch.tensor([[0] * 9, [0] * 5 + [1] * 4])
    ctx = ForwardContext(tokens, Rope(8, 1e4), CPU, pad=pad, documents=documents)
    mask = ctx.mask(tokens * n_pseudo, n_pseudo=n_pseudo, window=window, token_causal=token_causal)
    want = rows_apart(visible(tokens, n_pseudo, window, token_causal), [0, 4], documents, n_pseudo)
    assert torch.equal(mask.dense(CPU), want)
    for start, stop in ((0, n_pseudo), (n_pseudo, 6 * n_pseudo), (6 * n_pseudo, 9 * n_pseudo)):
        low, high = mask.keys_of(start, stop)
        assert torch.equal(mask.dense(CPU, (start, stop)), want[:, :, start:stop, low:high])
        outside = want[:, :, start:stop].clone()
        outside[..., low:high] = False
        assert not outside.any()


CPU = torch.device("cpu")
QUICK = settings(max_examples=40, deadline=None, derandomize=True)
STEPS = st.fixed_dictionaries(
    {
        "tokens": st.integers(1, 9),
        "new": st.integers(1, 9),
        "n_pseudo": st.sampled_from([1, 2, 3]),
        "window": st.sampled_from([None, 1, 2, 5, 20]),
        "token_causal": st.booleans(),
        "pad": st.lists(st.integers(0, 8), min_size=2, max_size=2) | st.none(),
        "documents": st.booleans(),
    }
)


def step(case, documents=True):
    """The mask of the last `new` of some tokens, and the same pair by pair."""
    n, p = case["tokens"], case["n_pseudo"]
    new = min(n, case["new"])
    pad = None if case["pad"] is None else [min(x, n - 1) for x in case["pad"]]
    docs = (
        torch.tensor([[i // 3 for i in range(n)], [i // 2 for i in range(n)]])
        if documents and case["documents"]
        else None
    )
    window = None if case["window"] is None else case["window"] * p
    group = p if case["token_causal"] else 1
    mask = Mask(new * p, n * p, window, group, p, 0, None if pad is None else torch.tensor(pad), docs)
    seen = rows_apart(visible(n, p, case["window"], case["token_causal"]), pad, docs, p)
    return mask, seen[:, :, (n - new) * p :]


@QUICK
@given(STEPS)
def test_the_last_queries_of_a_sequence_see_what_they_see_in_the_whole(case):
    mask, seen = step(case)
    assert torch.equal(mask.dense(CPU).expand_as(seen), seen)
    bias = mask.bias(torch.zeros(1, dtype=torch.float64))
    assert bias.dtype == torch.float64
    assert torch.equal(bias == 0, mask.dense(CPU)) and torch.equal(bias.isneginf(), ~mask.dense(CPU))


@QUICK
@given(STEPS)
def test_the_range_of_keys_is_the_smallest_that_holds_all_that_is_seen(case):
    mask, _ = step({**case, "pad": None}, documents=False)
    seen = mask.dense(CPU)[0, 0]
    for start, stop in ((0, mask.n_queries), (0, 1), (mask.n_queries - 1, mask.n_queries)):
        columns = seen[start:stop].any(0).nonzero().flatten().tolist()
        assert mask.keys_of(start, stop) == (columns[0], columns[-1] + 1)


@QUICK
@given(STEPS)
def test_a_step_without_a_bias_hides_nothing_of_its_range(case):
    mask, seen = step(case)
    low, high = mask.keys_of(0, mask.n_queries)
    bias = mask.step_bias(torch.zeros(1))
    want = seen[..., low:high]
    assert want.all() if bias is None else torch.equal((bias == 0).expand_as(want), want)


@QUICK
@given(STEPS)
def test_a_plain_mask_is_the_triangle_and_a_window_that_hides_nothing_is_none(case):
    mask, seen = step(case)
    if mask.plain:
        assert torch.equal(seen[0, 0], torch.ones_like(seen[0, 0]).tril())
    if not mask.windowed and mask.window is not None:
        open_, _ = step({**case, "window": None})
        assert torch.equal(mask.dense(CPU), open_.dense(CPU))


def test_additive_masks_are_zero_and_minus_infinity_in_the_type_asked_for():
    found = additive(torch.tensor([[True, False]]), torch.bfloat16)
    assert found.dtype == torch.bfloat16 and found.tolist() == [[0.0, -torch.inf]]


@pytest.mark.parametrize(
    ("mask", "share"),
    [
        (Mask(16_384, 16_384, window=2048), 1.35),
        (Mask(16_384, 16_384, window=2048, group=2, n_pseudo=2), 1.35),
        (Mask(8192, 8192, window=512), 1.35),
        (Mask(131_072, 131_072, window=2048), 1.35),
        (Mask(5000, 7001, window=300), 2.1),
        (Mask(700, 700, window=64), 2.6),
        (Mask(300, 300), 1.02),
        (Mask(300, 1000, group=3, n_pseudo=3), 1.5),
    ],
)
def test_tiles_take_every_query_once_with_all_its_keys_and_little_more(mask, share):
    """At the sizes of training; `share`: pairs computed, causal calls at half, over pairs that are seen."""
    rows, computed = [], 0.0
    for tile in cpu.tiles(mask):
        computed += tile.rows * tile.cols * tile.repeat * (0.5 if tile.causal else 1.0)
        for i in range(tile.repeat):
            start, low = tile.row + i * tile.rows, tile.col + i * tile.rows
            first, past = mask.keys_of(start, start + tile.rows)
            assert low <= first and past <= low + tile.cols <= mask.n_keys
            rows += range(start, start + tile.rows)
    assert rows == list(range(mask.n_queries))
    reach = mask.window or mask.n_keys
    live = sum(min(mask.offset + u + 1, reach) for u in range(mask.n_queries))
    assert live * 0.98 < computed < live * share


@QUICK
@given(STEPS)
def test_flash_segments_are_the_documents_of_each_row(case):
    n, p = case["tokens"], case["n_pseudo"]
    mask, _ = step({**case, "new": n, "token_causal": False})
    bounds, longest = flash.segments(mask, 2, CPU)
    number = torch.zeros(2 * n * p, dtype=torch.long)
    number[bounds[1:-1].long()] = 1
    number = number.cumsum(0).view(2, n * p)
    same = (number[:, :, None] == number[:, None, :])[:, None]
    open_ = rows_apart(visible(n, p), None if mask.pad is None else mask.pad.tolist(), mask.documents, p)
    real = torch.ones(2, n * p, dtype=torch.bool)
    if mask.pad is not None:
        real = torch.arange(n * p) // p >= mask.pad[:, None]
    assert torch.equal((same & visible(n, p))[real[:, None]], open_.expand(2, -1, -1, -1)[real[:, None]])
    assert bounds.dtype == torch.int32 and (bounds[0], bounds[-1]) == (0, 2 * n * p)
    assert longest == int(bounds.diff().max())


def test_flex_blocks_are_made_once_per_shape_and_once_per_ragged_mask():
    assert flex.block_mask(Mask(200, 200, window=64), CPU) is flex.block_mask(Mask(200, 200, window=64), CPU)
    assert flex.block_mask(Mask(200, 200, window=65), CPU) is not flex.block_mask(Mask(200, 200, window=64), CPU)
    one, two = (Mask(200, 200, documents=torch.arange(200)[None] // k) for k in (50, 70))
    assert flex.block_mask(one, CPU) is flex.block_mask(one, CPU)
    assert flex.block_mask(one, CPU) is not flex.block_mask(two, CPU)


def test_layers_that_see_alike_share_a_mask():
    ctx = ForwardContext(6, Rope(8, 1e4), CPU, start=3)
    first = ctx.mask(18, n_pseudo=2, window=4)
    assert ctx.mask(18, n_pseudo=2, window=4) is first
    others = (
        ctx.mask(16, n_pseudo=2, window=4),
        ctx.mask(18, n_pseudo=2),
        ctx.mask(18, n_pseudo=2, window=4, token_causal=True),
    )
    assert all(other is not first for other in others)
    assert (first.n_queries, first.n_keys, first.window, first.first, first.group) == (12, 18, 8, 0, 1)
    assert [other.first for other in others] == [1, 0, 0] and others[2].group == 2


@pytest.mark.parametrize("longest", [None, 2, 3])
def test_keys_past_all_padding_need_no_pad(longest):
    ctx = ForwardContext(1, Rope(8, 1e4), CPU, start=5, pad=torch.tensor([0, 2]), longest_pad=longest)
    assert (ctx.mask(4).pad is None) == (longest == 2), "keys 2 to 5"
    assert ctx.mask(5).pad is not None, "keys 1 to 5"


@settings(QUICK, max_examples=8)
@given(
    st.integers(0, 40),
    st.integers(1, 5),
    st.sampled_from([1, 2, 3]),
    st.lists(st.integers(0, 6), min_size=2, max_size=2),
)
def test_rotations_are_those_of_virtual_positions_counted_from_the_first_real_token(start, length, p, pad):
    assume(max(pad) <= start)
    x = torch.randn(2, length * p, 3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    plain = exact_context(length, n_pseudo=(p,), start=start)
    torch.testing.assert_close(rotate(x, plain.rotations[p, "virtual"]), rope(x, 500_000.0, start * p))
    padded = exact_context(length, n_pseudo=(p,), start=start, pad=torch.tensor(pad))
    want = torch.cat([rope(x[i : i + 1], 500_000.0, (start - pad[i]) * p) for i in range(2)])
    torch.testing.assert_close(rotate(x, padded.rotations[p, "virtual"]), want)


def test_a_rotation_keeps_lengths_and_scores_depend_on_distances_only():
    q, k = (torch.randn(1, 1, 1, 16, dtype=torch.float64) for _ in range(2))
    turned = [(rope(q, 1e4, i), rope(k, 1e4, i + 5)) for i in (0, 17, 300)]
    ours = [
        tuple(
            rotate(x, exact_context(1, 16, theta=1e4, start=s).rotations[1, "virtual"]) for x, s in ((q, i), (k, i + 5))
        )
        for i in (0, 17, 300)
    ]
    for (a, b), (c, d) in zip(ours, turned, strict=True):
        torch.testing.assert_close((a, b), (c, d))
        torch.testing.assert_close(a.norm(), q.norm())
        torch.testing.assert_close((a * b).sum(), (ours[0][0] * ours[0][1]).sum())
