"""What an attention variant is and what it costs. Free of torch, so that the DAG is planned without starting it.

A variant is a frozen `AttentionSpec`: its settings, its parameters and FLOPs, and (by import string) the module.
Kinds register themselves by subclassing; a kind of the form ``package.module:Class`` is imported on demand, which is
how a variant outside this package is named in a config.
"""

from __future__ import annotations

import importlib
import traceback
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from pydantic import BaseModel, ConfigDict

#: Modules that define the built-in kinds; each has the kind's name.
BUILTIN: tuple[str, ...] = ("global_", "global_local", "talking_heads", "diff", "iha", "paired_heads")

_KINDS: dict[str, type[AttentionSpec]] = {}

LayerType = Literal["global", "local"]

#: RoPE position of token n's p-th virtual token: virtual n P + p, scaled n + p / P, shared n.
PositionKind = Literal["virtual", "scaled", "shared"]


@dataclass(frozen=True)
class Geometry:
    """The sizes a variant is built for and counted at.

    `pretrain_len` is the pretraining context in tokens: windows are derived from it and stay absolute when the
    context is extended (spec 4.3, U16).
    """

    hidden_dim: int
    n_layers: int
    n_heads: int
    pretrain_len: int

    @property
    def head_dim(self) -> int:
        """Width of one head, D / H."""
        return self.hidden_dim // self.n_heads


@dataclass(frozen=True)
class LayerFlops:
    """Forward FLOPs of one attention layer over one sequence (2 per multiply-add), by purpose.

    `projections`: Q, K, V, O. `mixing`: what else is paid per token (pseudo-head mixing and collapse). `attention`:
    everything paid per live (query, key) pair (scores, value products, talking-heads mixes). Elementwise work (norms,
    RoPE, softmax, lambda) is not counted, as nowhere in the ledger.
    """

    projections: int
    mixing: int
    attention: int


def live_pairs(seq_len: int, window: int | None = None) -> int:
    """Number of (query, key) pairs a causal mask leaves, query u seeing the last min(u + 1, window) keys."""
    if window is None or window >= seq_len:
        return seq_len * (seq_len + 1) // 2
    return window * (window + 1) // 2 + (seq_len - window) * window


def layer_type(layer: int, period: int) -> LayerType:
    """LLLLG schedule: every `period`-th layer is global, counted from 1 (spec 2.5; 26 layers: 21 local, 5 global)."""
    return "global" if (layer + 1) % period == 0 else "local"


class AttentionSpec(BaseModel):
    """Settings, parameters and FLOPs of one attention variant; subclass it once per kind."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    kind: str
    #: ``module:Class`` of the torch implementation, imported only when a model is built.
    module: ClassVar[str]

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        for kind in get_args(cls.model_fields["kind"].annotation):
            _KINDS[kind] = cls

    def problems(self, geometry: Geometry) -> list[str]:
        """Reasons why this spec cannot be built at `geometry`; each names the field, the value and what is allowed."""
        return []

    def window_at(self, geometry: Geometry, layer: int) -> int | None:
        """Window of `layer` in original tokens, the current one included; None: the layer is global."""
        return None

    def params(self, geometry: Geometry, layer: int) -> int:
        """Learned parameters of this layer's attention, projections included."""
        return 4 * geometry.hidden_dim**2

    @abstractmethod
    def forward_flops(self, geometry: Geometry, layer: int, seq_len: int) -> LayerFlops:
        """Forward FLOPs of this layer's attention over one sequence of `seq_len` tokens."""

    def asymptotic_pairs(self, geometry: Geometry, layer: int, seq_len: int) -> int:
        """(query, key) pairs as the paper counts them: queries times window, no causal half, no edge (spec 3, D11)."""
        return seq_len * min(seq_len, self.window_at(geometry, layer) or seq_len)

    def cache_values(self, geometry: Geometry, layer: int, seq_len: int) -> int:
        """Numbers the KV cache of this layer holds after `seq_len` tokens (times bytes per number for bytes)."""
        kept = min(seq_len, self.window_at(geometry, layer) or seq_len)
        return 2 * kept * geometry.hidden_dim

    def load_module(self) -> Callable[..., Any]:
        """Import and return the torch module class (imports torch)."""
        module: Callable[..., Any] = resolve(self.module)
        return module


class GroupedSpec(AttentionSpec):
    """A variant whose keys and values may have fewer heads than its queries (grouped-query attention).

    `n_kv_heads`: a divisor of the model's heads H; H / n_kv_heads consecutive query heads share one. None: H.
    """

    n_kv_heads: int | None = None

    def problems(self, geometry: Geometry) -> list[str]:
        """A number of key heads that does not divide the query heads."""
        h = geometry.n_heads
        if self.kv_heads(geometry) < 1 or h % self.kv_heads(geometry):
            return [f"n_kv_heads is {self.n_kv_heads}; allowed: a divisor of model.n_heads, {h}"]
        return []

    def kv_heads(self, geometry: Geometry) -> int:
        """Heads of keys and values."""
        return geometry.n_heads if self.n_kv_heads is None else self.n_kv_heads

    def params(self, geometry: Geometry, layer: int) -> int:
        """Q and O are D x D, K and V are D wide and n_kv_heads d high."""
        return 2 * geometry.hidden_dim * (geometry.hidden_dim + self.kv_heads(geometry) * geometry.head_dim)

    def projection_flops(self, geometry: Geometry, seq_len: int) -> int:
        """Forward FLOPs of the four projections over one sequence."""
        return 2 * GroupedSpec.params(self, geometry, 0) * seq_len

    def cache_values(self, geometry: Geometry, layer: int, seq_len: int) -> int:
        """Keys and values of n_kv_heads heads per kept token."""
        return super().cache_values(geometry, layer, seq_len) * self.kv_heads(geometry) // geometry.n_heads


def check_variant(spec: AttentionSpec, geometry: Geometry, lengths: Iterable[int]) -> list[str]:
    """Why a variant cannot be built or counted at `geometry`; empty: it can. Free of torch.

    First what the spec itself reports. Then its numbers: windows, parameters and FLOPs of every layer at sequences of
    `lengths` tokens must be integers, not too small; one line for each member, for the first layer it is wrong in.
    `iha.model.transformer.check_shapes` runs the layers.
    """
    if problems := spec.problems(geometry):
        return problems
    wrong: dict[str, str] = {}
    try:
        for member, at, value, least in _numbers(spec, geometry, sorted(set(lengths))):
            if type(value) is not int or value < least:
                wrong.setdefault(member, f"{member}{at} is {value!r}; allowed: a whole number, {least} or more.")
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        wrong["raised"] = f"raised {type(error).__name__}: {error} ({last.filename}, line {last.lineno})."
    where = f"Change it in class {type(spec).__module__}:{type(spec).__qualname__}"
    return [f"{text} {where}" for text in wrong.values()]


def _numbers(spec: AttentionSpec, geometry: Geometry, lengths: list[int]) -> Iterator[tuple[str, str, Any, int]]:
    """Member, its arguments, its value and the least allowed, for every layer and length."""
    for layer in range(geometry.n_layers):
        if (window := spec.window_at(geometry, layer)) is not None:
            yield "window_at", f"(layer {layer})", window, 1
        yield "params", f"(layer {layer})", spec.params(geometry, layer), 0
        for length in lengths:
            at = f"(layer {layer}, {length} tokens)"
            flops = spec.forward_flops(geometry, layer, length)
            if not isinstance(flops, LayerFlops):
                raise TypeError(f"forward_flops{at} is {flops!r}, not a LayerFlops")
            yield from ((f"forward_flops.{name}", at, value, 0) for name, value in vars(flops).items())
            yield "asymptotic_pairs", at, spec.asymptotic_pairs(geometry, layer, length), 0
            yield "cache_values", at, spec.cache_values(geometry, layer, length), 0


def resolve(path: str) -> Any:
    """Import ``module:attribute``."""
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)


def known_kinds() -> dict[str, type[AttentionSpec]]:
    """Every registered kind; imports the built-in ones."""
    for name in BUILTIN:
        importlib.import_module(f"iha.variants.{name}")
    return dict(_KINDS)


def spec_class(kind: str) -> type[AttentionSpec]:
    """The spec class of a kind; a kind with a colon is an import path.

    Raises:
        KeyError: no such kind is registered.
    """
    if ":" in kind:
        cls = resolve(kind)
        if not (isinstance(cls, type) and issubclass(cls, AttentionSpec)):
            raise KeyError(kind)
        return cls
    return known_kinds()[kind]
