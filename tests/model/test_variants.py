"""Variants as data: windows, live pairs, parameters, caches, and kinds from outside the package."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from iha.config.load import parse_config
from iha.config.schema import Variant
from iha.errors import ConfigError
from iha.variants import Geometry, known_kinds, layer_type, live_pairs, spec_class
from iha.variants.base import AttentionSpec, resolve
from iha.variants.diff import DiffSpec
from iha.variants.global_ import GlobalSpec
from iha.variants.global_local import GlobalLocalSpec
from iha.variants.iha import IhaSpec
from iha.variants.talking_heads import TalkingHeadsSpec

PAPER = Geometry(hidden_dim=2560, n_layers=26, n_heads=20, pretrain_len=8192)
SMALL = Geometry(hidden_dim=32, n_layers=5, n_heads=4, pretrain_len=64)
LOCAL, GLOBAL = 0, 4


def mask(seq_len: int, p: int, window: int | None, kind: str) -> np.ndarray:
    """The NP x NP mask as its definition reads: rows are queries, True is seen."""
    u, v = np.arange(seq_len * p)[:, None], np.arange(seq_len * p)[None, :]
    if kind == "token":
        u, v = u // p, v // p
        reach = window
    else:
        reach = window and window * p
    return (v <= u) & (u - v < (reach or seq_len * p))


def test_window_and_mask_of_iha():
    spec = IhaSpec(kind="iha", pseudo_heads=2)
    assert spec.window_at(Geometry(32, 5, 4, 16), LOCAL) == 2
    assert mask(16, 2, 2, "flat").sum() == 122
    assert spec.forward_flops(Geometry(32, 5, 4, 16), LOCAL, 16).attention == 4 * 32 * 122
    assert mask(16, 2, 2, "flat").sum(axis=1).tolist() == [min(u + 1, 4) for u in range(32)]
    assert mask(2, 2, None, "flat").sum(axis=1).tolist() == [1, 2, 3, 4]
    assert mask(2, 2, None, "token").sum(axis=1).tolist() == [2, 2, 4, 4]
    assert spec.window_at(PAPER, LOCAL) == 1024


@pytest.mark.parametrize(("p", "window"), [(1, 4096), (2, 1024), (4, 256), (8, 64), (16, 16)])
def test_the_iha_window_is_the_papers(p, window):
    assert IhaSpec(kind="iha", pseudo_heads=p).window_at(PAPER, LOCAL) == window
    assert IhaSpec(kind="iha", pseudo_heads=p).window_at(PAPER, GLOBAL) is None


@pytest.mark.parametrize("kind", ["flat", "token"])
@pytest.mark.parametrize("global_layers", ["mha", "iha"])
@pytest.mark.parametrize(("p", "window", "seq_len"), [(1, 3, 9), (2, 2, 16), (3, 1, 7), (4, 5, 12), (2, 16, 8)])
def test_iha_is_priced_by_the_pairs_its_mask_leaves(kind, global_layers, p, window, seq_len):
    spec = IhaSpec(kind="iha", pseudo_heads=p, window=window, mask=kind, global_layers=global_layers)
    local = mask(seq_len, p, window, kind).sum()
    everywhere = mask(seq_len, p if global_layers == "iha" else 1, None, kind).sum()
    assert spec.forward_flops(SMALL, LOCAL, seq_len).attention == 4 * SMALL.hidden_dim * local
    assert spec.forward_flops(SMALL, GLOBAL, seq_len).attention == 4 * SMALL.hidden_dim * everywhere


@pytest.mark.parametrize(("seq_len", "window"), [(1, None), (7, None), (7, 1), (7, 3), (7, 7), (7, 99)])
def test_live_pairs_counts_a_causal_mask(seq_len, window):
    assert live_pairs(seq_len, window) == mask(seq_len, 1, window, "flat").sum()


def test_the_schedule_of_26_layers_is_21_local_and_5_global():
    types = [layer_type(layer, 5) for layer in range(26)]
    assert [i for i, t in enumerate(types) if t == "global"] == [4, 9, 14, 19, 24]
    assert all(layer_type(layer, 1) == "global" for layer in range(26))
    assert all(layer_type(layer, 27) == "local" for layer in range(26))


def extra(spec, layer: int = LOCAL) -> int:
    return spec.params(PAPER, layer) - GlobalSpec(kind="global").params(PAPER, layer)


def test_parameters_beyond_mha():
    assert [extra(IhaSpec(kind="iha", pseudo_heads=p)) for p in (2, 4, 20)] == [3200, 6400, 32_000]
    assert extra(IhaSpec(kind="iha", pseudo_heads=2, collapse="per_head")) == 3 * 400 * 2 + 20 * 2
    assert extra(IhaSpec(kind="iha", pseudo_heads=2), GLOBAL) == 0
    assert extra(IhaSpec(kind="iha", pseudo_heads=2, global_layers="iha"), GLOBAL) == 3200
    assert extra(TalkingHeadsSpec(kind="talking_heads")) == 2 * 400
    assert extra(DiffSpec(kind="diff")) == 768
    assert extra(GlobalLocalSpec(kind="global_local")) == 0


def test_mixing_costs_what_the_specification_says():
    for p, share in ((2, 0.016), (4, 0.031), (8, 0.0625), (20, 0.15625)):
        price = IhaSpec(kind="iha", pseudo_heads=p, window=1).forward_flops(PAPER, LOCAL, 8192)
        assert price.mixing == 8 * 8192 * 20**2 * p * 128
        assert price.mixing / price.projections == pytest.approx(share, abs=5e-4)
    per_head = IhaSpec(kind="iha", pseudo_heads=2, collapse="per_head").forward_flops(PAPER, LOCAL, 8192)
    assert per_head.mixing == 8192 * (6 * 20**2 * 2 * 128 + 2 * 2 * 20 * 128)


def test_cache_values_per_length():
    values = {
        "global": [2 * 2560 * n for n in (100, 8192, 65_536)],
        "global_local": [2 * 2560 * n for n in (100, 512, 512)],
        "iha": [2 * 2560 * 2 * n for n in (100, 1024, 1024)],
    }
    for kind, expected in values.items():
        spec = spec_class(kind).model_validate({"kind": kind})
        assert [spec.cache_values(PAPER, LOCAL, n) for n in (100, 8192, 65_536)] == expected
        assert spec.cache_values(PAPER, GLOBAL, 65_536) == 2 * 2560 * 65_536
    whole = IhaSpec(kind="iha", global_layers="iha")
    assert whole.cache_values(PAPER, GLOBAL, 100) == 2 * 2560 * 200


def test_windows_stay_absolute_when_the_context_grows():
    for spec in (IhaSpec(kind="iha"), GlobalLocalSpec(kind="global_local")):
        short, long = (
            spec.forward_flops(PAPER, LOCAL, 32_768).attention,
            spec.forward_flops(PAPER, LOCAL, 65_536).attention,
        )
        assert long / short == pytest.approx(2, abs=0.04)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (GlobalLocalSpec(kind="global_local", window=0), ["window is 0", "1 to pretrain.seq_len, 8192"]),
        (GlobalLocalSpec(kind="global_local", window=8193), ["window is 8193", "8192"]),
        (GlobalLocalSpec(kind="global_local", period=0), ["period is 0", "1 or more"]),
        (IhaSpec(kind="iha", pseudo_heads=0), ["pseudo_heads is 0", "1, 2, 4, 8, 16, 32, 64"]),
        (IhaSpec(kind="iha", pseudo_heads=20), ["pseudo_heads is 20", "10.24", "1, 2, 4, 8, 16, 32, 64"]),
        (IhaSpec(kind="iha", window=-1), ["window is -1", "8192"]),
        (IhaSpec(kind="iha", period=-5), ["period is -5", "1 or more"]),
        (IhaSpec(kind="iha", noise_std=-0.1), ["noise_std is -0.1", "0 or more"]),
    ],
)
def test_a_spec_that_cannot_be_built_says_why(spec, words):
    (problem,) = spec.problems(PAPER)
    for word in words:
        assert word in problem


def test_problems_depend_on_the_geometry():
    assert IhaSpec(kind="iha", pseudo_heads=20, window=10).problems(PAPER) == []
    assert "model.n_heads is 3" in DiffSpec(kind="diff").problems(Geometry(48, 2, 3, 64))[0]
    assert DiffSpec(kind="diff").problems(PAPER) == []
    assert "seq_len / 16" in GlobalLocalSpec(kind="global_local").problems(Geometry(32, 2, 4, 8))[0]
    assert "none" in IhaSpec(kind="iha").problems(Geometry(32, 2, 4, 7))[0]


def test_specs_are_strict_and_frozen():
    with pytest.raises(ValidationError):
        IhaSpec.model_validate({"kind": "iha", "pseudo_heads": "2"})
    with pytest.raises(ValidationError):
        IhaSpec.model_validate({"kind": "iha", "heads": 2})
    spec = IhaSpec(kind="iha")
    with pytest.raises(ValidationError):
        spec.pseudo_heads = 4
    assert IhaSpec.model_validate_json(spec.model_dump_json()) == spec


def test_the_built_in_kinds_are_found_by_name():
    assert {"global", "global_local", "talking_heads", "diff", "iha"} <= set(known_kinds())
    with pytest.raises(KeyError):
        spec_class("mha")
    with pytest.raises(KeyError):
        spec_class("iha.config.schema:Config")


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
