"""Variants at the edges of what is allowed, and as prices: what must hold whatever the numbers."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from iha.config.load import parse_config
from iha.config.schema import Variant
from iha.errors import ConfigError
from iha.variants import Geometry, layer_type, live_pairs, spec_class
from iha.variants.base import AttentionSpec, resolve

PAPER = Geometry(hidden_dim=2560, n_layers=26, n_heads=20, pretrain_len=8192)
QUICK = settings(max_examples=60, deadline=None, derandomize=True)


def spec(kind, **fields):
    return spec_class(kind).model_validate({"kind": kind, **fields})


@QUICK
@given(st.integers(0, 60), st.none() | st.integers(1, 80))
def test_live_pairs_are_counted_one_by_one(seq_len, window):
    pairs = sum(1 for u in range(seq_len) for v in range(u + 1) if window is None or u - v < window)
    assert live_pairs(seq_len, window) == pairs


@QUICK
@given(st.integers(1, 400))
def test_the_pseudo_heads_that_a_refusal_offers_are_those_that_can_be_built(length):
    geometry = Geometry(32, 5, 4, length)
    fine = {p for p in range(1, length + 1) if not spec("iha", pseudo_heads=p).problems(geometry)}
    assert fine == {p for p in range(1, length + 1) if length % (2 * p * p) == 0}
    for p in fine:
        window = spec("iha", pseudo_heads=p).window_at(geometry, 0)
        assert window >= 1 and window * 2 * p * p == length
    (problem,) = spec("iha", pseudo_heads=length + 1).problems(geometry)
    offered = ", ".join(map(str, sorted(fine))) or "none"
    assert f"pseudo_heads is {length + 1}" in problem
    assert f"allowed at pretrain.seq_len {length}: {offered} (or 1 and more with a window of your own)" in problem


@pytest.mark.parametrize(
    ("attention", "length"),
    [
        (spec("global_local", window=1, period=1), 8192),
        (spec("global_local", window=8192), 8192),
        (spec("global_local"), 16),
        (spec("iha", pseudo_heads=64), 8192),
        (spec("iha", window=1, period=1, noise_std=0.0), 7),
        (spec("iha", pseudo_heads=999, window=7), 7),
    ],
)
def test_the_last_allowed_value_is_allowed(attention, length):
    assert attention.problems(Geometry(2560, 26, 20, length)) == []
    for layer in range(26):
        window = attention.window_at(Geometry(2560, 26, 20, length), layer)
        assert window is None or 1 <= window <= length


def test_all_problems_are_told_at_once():
    found = spec("iha", period=0, noise_std=-1.0, window=9999, pseudo_heads=0).problems(PAPER)
    assert [text.split()[0] for text in found] == ["period", "noise_std", "window", "pseudo_heads"]
    assert len(spec("global_local", period=-1, window=0).problems(PAPER)) == 2
    assert (
        "which means pretrain.seq_len / 16, but that is 15" in spec("global_local").problems(Geometry(32, 5, 4, 15))[0]
    )


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_of_a_variant_are_finite(value):
    """A noise of NaN once passed the check and gave weights of NaN at the first step."""
    with pytest.raises(ValidationError, match="finite number"):
        spec("iha", noise_std=value)
    lines = [{"name": "global", "attention": {"kind": "global"}}, {"name": "iha", "attention": {"kind": "iha"}}]
    parse_config({"variants": lines})
    lines[1]["attention"]["noise_std"] = value
    with pytest.raises(ConfigError, match="noise_std"):
        parse_config({"variants": lines})


ANY = st.one_of(
    st.builds(lambda w, p: spec("global_local", window=w, period=p), st.integers(1, 64), st.integers(1, 6)),
    st.builds(
        lambda p, w, m, c, g, n: spec("iha", pseudo_heads=p, window=w, mask=m, collapse=c, global_layers=g, period=n),
        st.integers(1, 5), st.integers(1, 64), st.sampled_from(["flat", "token"]),
        st.sampled_from(["global", "per_head"]), st.sampled_from(["mha", "iha"]), st.integers(1, 6),
    ),
    st.sampled_from([spec(kind) for kind in ("global", "talking_heads", "diff")]),
)  # fmt: skip
GEOMETRY = Geometry(48, 6, 4, 64)


@QUICK
@given(ANY, st.integers(1, 200), st.integers(0, 5))
def test_prices_are_whole_grow_with_the_length_and_agree_with_the_cache(attention, length, layer):
    one, more = (attention.forward_flops(GEOMETRY, layer, n) for n in (length, length + 1))
    for part in ("projections", "mixing", "attention"):
        now, then = getattr(one, part), getattr(more, part)
        assert type(now) is int and now <= then
    assert one.projections == 8 * 48 * 48 * length and one.attention < more.attention
    assert more.mixing - one.mixing == one.mixing // length, "paid per token"
    held, next_ = (attention.cache_values(GEOMETRY, layer, n) for n in (length, length + 1))
    window, per_token = attention.window_at(GEOMETRY, layer), getattr(attention, "pseudo_heads", 1)
    interleaved = attention.kind == "iha" and attention.interleaves(layer)
    assert held == 2 * 48 * min(length, window or length) * (per_token if interleaved else 1)
    assert (held == next_) == (window is not None and window <= length)


@QUICK
@given(ANY, st.integers(1, 64), st.integers(0, 5))
def test_the_papers_pairs_are_never_fewer_than_the_live_ones(attention, length, layer):
    """It counts full windows for every query, no causal half; one query of a window of one is the same in both."""
    if attention.kind in ("talking_heads", "diff"):
        return
    live = attention.forward_flops(GEOMETRY, layer, length).attention / (4 * 48)
    assert attention.asymptotic_pairs(GEOMETRY, layer, length) >= live


def test_one_pseudo_head_costs_what_a_window_costs_plus_its_mixing():
    iha, local = spec("iha", pseudo_heads=1, window=9), spec("global_local", window=9)
    for layer in range(6):
        ours, theirs = iha.forward_flops(GEOMETRY, layer, 40), local.forward_flops(GEOMETRY, layer, 40)
        assert (ours.projections, ours.attention) == (theirs.projections, theirs.attention)
        assert (ours.mixing > theirs.mixing == 0) == (layer_type(layer, 5) == "local")


def test_a_schedule_of_global_layers_only_is_mha():
    iha, mha = spec("iha", period=1), spec("global")
    for layer in range(6):
        assert iha.forward_flops(GEOMETRY, layer, 40) == mha.forward_flops(GEOMETRY, layer, 40)
        assert iha.params(GEOMETRY, layer) == mha.params(GEOMETRY, layer)
        assert iha.cache_values(GEOMETRY, layer, 40) == mha.cache_values(GEOMETRY, layer, 40)


@pytest.mark.parametrize("kind", ["global", "global_local", "talking_heads", "diff", "iha"])
def test_a_spec_names_the_module_that_computes_it(kind):
    module = spec(kind).load_module()
    assert f"{module.__module__}:{module.__name__}" == type(spec(kind)).module
    assert resolve(type(spec(kind)).module) is module


def test_a_spec_that_forgets_its_price_is_seen_at_once_and_not_counted_as_free():
    class Silent(AttentionSpec):
        kind: str
        module = "nowhere:Nothing"

    with pytest.raises(TypeError, match=r"abstract method '?forward_flops"):
        Silent(kind="x")


def test_variants_survive_a_round_through_json():
    for attention in (spec("iha", pseudo_heads=4, mask="token"), spec("global_local", window=3)):
        variant = Variant(name="x", attention=attention)
        again = Variant.model_validate_json(variant.model_dump_json())
        assert again == variant and type(again.attention) is type(attention)
