"""The decoder shared by all variants: pre-RMSNorm, RoPE, SwiGLU, tied embeddings, no biases (spec 4.1).

Read from top to bottom: norm, feed-forward, block, model, `build_model`. Only the attention module differs between
variants; parameters of equal names get equal start values from equal seeds, so two variants of one seed start from the
same embeddings, projections and feed-forward weights.
"""

from __future__ import annotations

import hashlib

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from iha.config.schema import ModelConfig
from iha.errors import ConfigError
from iha.model.attention import Attention, ForwardContext, build_attention
from iha.model.attention.context import document_runs
from iha.model.attention.kernels import announce
from iha.model.cache import KVCache, LayerCache
from iha.model.rope import Rope
from iha.variants.base import AttentionSpec, Geometry


class RMSNorm(nn.RMSNorm):
    """RMSNorm whose weight stays fp32: a 16-bit input is normalised in fp32 and returned in its own type."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) to (..., D)."""
        if x.dtype == self.weight.dtype:
            return super().forward(x)
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


class SwiGLU(nn.Module):
    """down(silu(gate x) * up x); gate and up in one product."""

    def __init__(self, hidden_dim: int, ffn_dim: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(hidden_dim, 2 * ffn_dim, bias=False)
        self.down = nn.Linear(ffn_dim, hidden_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) to (B, N, D)."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        out: Tensor = self.down(F.silu(gate) * up)
        return out


class Block(nn.Module):
    """x + attention(norm x), then x + ffn(norm x)."""

    def __init__(self, model: ModelConfig, attention: Attention) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(model.hidden_dim, eps=model.norm_eps)
        self.attention = attention
        self.ffn_norm = RMSNorm(model.hidden_dim, eps=model.norm_eps)
        self.ffn = SwiGLU(model.hidden_dim, model.ffn_dim)

    def forward(self, x: Tensor, context: ForwardContext, cache: LayerCache | None = None) -> Tensor:
        """(B, N, D) to (B, N, D)."""
        x = x + self.attention(self.attention_norm(x), context, cache)
        out: Tensor = x + self.ffn(self.ffn_norm(x))
        return out


class Transformer(nn.Module):
    """The language model; `build_model` creates one.

    Raises:
        ConfigError: the variant cannot be built at this size, or has other parameters than its spec counts.
    """

    def __init__(
        self, config: ModelConfig, spec: AttentionSpec, vocab_size: int, pretrain_len: int, backend: str = "auto"
    ) -> None:
        super().__init__()
        self.config, self.spec = config, spec
        self.vocab_size, self.pretrain_len, self.backend = vocab_size, pretrain_len, backend
        geometry = Geometry(config.hidden_dim, config.n_layers, config.n_heads, pretrain_len)
        if problems := spec.problems(geometry):
            raise ConfigError(
                f"attention {spec.kind}: " + "; ".join(problems) + ". Change it in the config's variants."
            )
        # Given its weight, the module does not draw one: on the meta device that would import torch's compiler (2.5 s).
        self.embed = nn.Embedding(vocab_size, config.hidden_dim, _weight=torch.empty(vocab_size, config.hidden_dim))
        self.attentions = [
            build_attention(spec, geometry, layer, rope_theta=config.rope_theta, backend=backend)
            for layer in range(config.n_layers)
        ]
        self.blocks = nn.ModuleList(Block(config, attention) for attention in self.attentions)
        self.norm = RMSNorm(config.hidden_dim, eps=config.norm_eps)
        self.lm_head = None if config.tie_embeddings else nn.Linear(config.hidden_dim, vocab_size, bias=False)
        self.rope = Rope(geometry.head_dim, config.rope_theta)
        self._check_params(geometry)
        self._common_kernels = any(type(attention).attend is Attention.attend for attention in self.attentions)
        self._layouts = sorted({(attention.n_pseudo, attention.positions) for attention in self.attentions})

    def _check_params(self, geometry: Geometry) -> None:
        """The ledger counts the parameters that the model has."""
        for layer, attention in enumerate(self.attentions):
            actual, counted = sum(p.numel() for p in attention.parameters()), self.spec.params(geometry, layer)
            if actual != counted:
                raise ConfigError(
                    f"attention {self.spec.kind}: params(layer {layer}) is {counted}; allowed: the number of "
                    f"parameters of its {type(attention).__name__}, {actual}. "
                    f"Change it in class {type(self.spec).__qualname__}."
                )

    @property
    def head_weight(self) -> Tensor:
        """Output matrix (V, D); the embedding itself when tied."""
        return self.embed.weight if self.lm_head is None else self.lm_head.weight

    def forward(
        self,
        tokens: Tensor,
        *,
        doc_ids: Tensor | None = None,
        cache: KVCache | None = None,
        pad: Tensor | None = None,
        last_only: bool = False,
    ) -> Tensor:
        """Next-token logits.

        Args:
            tokens: (B, N) int64.
            doc_ids: (B, N); attention stays within equal ids that are next to each other.
            cache: from `new_cache`; the tokens follow what it holds, and are added to it.
            pad: (B,) left-pad tokens of each row, given with the first tokens of a cache or without one.
            last_only: logits of the last position only.

        Returns:
            fp32 logits (B, N, V), or (B, 1, V).

        Raises:
            ValueError: doc_ids with a cache, a cache of another batch size, or pad after the first tokens of a cache.
        """
        x = self.hidden(tokens, doc_ids=doc_ids, cache=cache, pad=pad)
        return F.linear(x[:, -1:] if last_only else x, self.head_weight).float()

    def hidden(
        self,
        tokens: Tensor,
        *,
        doc_ids: Tensor | None = None,
        cache: KVCache | None = None,
        pad: Tensor | None = None,
    ) -> Tensor:
        """Hidden states (B, N, D) after the final norm; arguments as in `forward`."""
        if self._common_kernels:
            announce(tokens.device.type, self.backend)
        context = self._context(tokens, doc_ids, cache, pad)
        x = self.embed(tokens)
        for index, block in enumerate(self.blocks):
            x = block(x, context, None if cache is None else cache.layers[index])
        if cache is not None:
            cache.length += tokens.shape[1]
        out: Tensor = self.norm(x)
        return out

    def _context(
        self, tokens: Tensor, doc_ids: Tensor | None, cache: KVCache | None, pad: Tensor | None
    ) -> ForwardContext:
        """What the layers share in this pass; `pad` is stored in the cache."""
        start = 0 if cache is None else self._start(cache, tokens, doc_ids, pad)
        context = ForwardContext(
            tokens.shape[1],
            self.rope,
            tokens.device,
            start=start,
            pad=pad if cache is None else cache.pad,
            longest_pad=None if cache is None else cache.longest_pad,
            documents=None if doc_ids is None else document_runs(doc_ids),
            layouts=self._layouts,
        )
        if cache is None:  # ahead of compiled blocks: each change of the context within one would be another graph
            for attention in self.attentions:
                attention.mask(context, context.length * attention.n_pseudo)
        return context

    @staticmethod
    def _start(cache: KVCache, tokens: Tensor, doc_ids: Tensor | None, pad: Tensor | None) -> int:
        """Tokens before these, after a check that the arguments go together."""
        if doc_ids is not None:
            raise ValueError("doc_ids and cache exclude each other: packed documents are trained, not decoded")
        if tokens.shape[0] != cache.batch:
            raise ValueError(f"the cache holds {cache.batch} rows, got {tokens.shape[0]}")
        if pad is not None:
            if cache.length:
                raise ValueError("pad is given once, with the first tokens; the cache keeps it")
            cache.set_pad(pad)
        return cache.length

    def new_cache(self, batch: int, dtype: torch.dtype | None = None) -> KVCache:
        """An empty cache for `batch` rows; keys and values are kept in `dtype`, None: the type they come in."""
        return KVCache([attention.new_cache(dtype) for attention in self.attentions], batch)

    def no_decay_names(self) -> set[str]:
        """Full names of the parameters that weight decay leaves alone: all but the weights of linear layers."""
        linear = {f"{name}.weight" for name, module in self.named_modules() if isinstance(module, nn.Linear)}
        return {name for name, _ in self.named_parameters()} - linear

    def lr_multipliers(self) -> dict[str, float]:
        """Full names of the parameters whose learning rate is multiplied, and by how much."""
        return {
            f"blocks.{i}.attention.{name}": value
            for i, attention in enumerate(self.attentions)
            for name, value in attention.lr_multipliers().items()
        }

    def init_weights(self, seed: int) -> None:
        """Draw every parameter from its own stream, keyed by (seed, name): N(0, init_std), residual outputs scaled.

        Norms start at one; a variant's own parameters as its module defines. Drawn on the CPU: equal on every device.
        """
        owners = {f"blocks.{i}.attention": attention for i, attention in enumerate(self.attentions)}
        for name, parameter in self.named_parameters():
            owner, _, last = name.rpartition(".")
            generator = torch.Generator().manual_seed(_stream(seed, name))
            value = owners[owner].init_parameter(last, generator) if owner in owners else None
            if value is None:
                value = self._init_weight(name, parameter, generator)
            with torch.no_grad():
                parameter.copy_(value)

    def _init_weight(self, name: str, parameter: Tensor, generator: torch.Generator) -> Tensor:
        if parameter.dim() == 1:
            return torch.ones(parameter.shape)
        residual = name.endswith(("attention.out.weight", "ffn.down.weight"))
        std = self.config.init_std * ((2 * self.config.n_layers) ** -0.5 if residual else 1.0)
        return torch.randn(parameter.shape, generator=generator) * std


def _stream(seed: int, name: str) -> int:
    """A 63-bit seed for one named parameter."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def build_model(
    model: ModelConfig,
    attention: AttentionSpec,
    vocab_size: int,
    pretrain_len: int,
    *,
    seed: int | None,
    device: str | torch.device = "cpu",
    backend: str = "auto",
) -> Transformer:
    """A model on `device`, initialised from `seed`; with seed None its weights are to be loaded.

    Raises:
        ConfigError: the variant cannot be built at this size, has other parameters than its spec counts, or returns
            another shape than its input has.
    """
    with torch.device(device):
        transformer = Transformer(model, attention, vocab_size, pretrain_len, backend)
    if seed is not None:
        transformer.init_weights(seed)
        check_shapes(transformer)
    return transformer


@torch.no_grad()
def check_shapes(model: Transformer, tokens: int = 2) -> None:
    """Run every attention layer of a model once on a few tokens: its output must have the shape of its input.

    A wrong shape would otherwise be broadcast into the residual sum without an error. Costs milliseconds on the model's
    own device; a model on the meta device is checked without memory, but importing torch's meta kernels takes seconds.
    `iha.variants.check_variant` checks the numbers of the spec.

    Raises:
        ConfigError: a layer returns another shape.
    """
    for layer, attention in enumerate(model.attentions):
        weight = next(attention.parameters())
        x = torch.zeros(1, tokens, model.config.hidden_dim, dtype=weight.dtype, device=weight.device)
        backend, attention.backend = attention.backend, "sdpa"  # no compilation for a shape that occurs once
        shape = tuple(attention(x).shape)
        attention.backend = backend
        if shape != tuple(x.shape):
            raise ConfigError(
                f"attention {model.spec.kind}: {type(attention).__name__} of layer {layer} returned {shape}; "
                f"allowed: the shape of its input (batch, tokens, hidden_dim), here {tuple(x.shape)}"
            )
