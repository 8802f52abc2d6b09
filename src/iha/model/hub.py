"""The model behind transformers' interface: `AutoModelForCausalLM.from_pretrained(..., trust_remote_code=True)`.

`iha.export` copies this file and all that it imports from the project into an exported folder.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import TypeAdapter
from torch import Tensor
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from iha.config.schema import ModelConfig
from iha.model.cache import KVCache
from iha.model.transformer import build_model
from iha.variants.base import spec_class

#: What the cache is called differs between versions of transformers.
_CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"


class IhaConfig(PreTrainedConfig):  # type: ignore[misc]  # transformers is untyped
    """Sizes (`model`), variant (`attention`), vocabulary and pretraining length, as in the project's `model.json`."""

    model_type = "iha"
    has_no_defaults_at_init = True

    def __init__(
        self,
        model: dict[str, Any] | None = None,
        attention: dict[str, Any] | None = None,
        vocab_size: int = 0,
        pretrain_len: int = 0,
        **kwargs: Any,
    ) -> None:
        self.model, self.attention = model or {}, attention or {}
        self.vocab_size, self.pretrain_len = vocab_size, pretrain_len
        self.hidden_size = self.model.get("hidden_dim")
        self.num_hidden_layers = self.model.get("n_layers")
        self.num_attention_heads = self.model.get("n_heads")
        super().__init__(**kwargs)


class IhaCache:
    """Our KV cache as `generate` handles one: passed along, reordered by beam search, never cropped."""

    is_compileable = False
    is_croppable = False

    def __init__(self, kv: KVCache) -> None:
        self.kv = kv

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens held, padding included."""
        return self.kv.length

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Select the rows of the beams that continue."""
        self.kv = self.kv.select(beam_idx)


class IhaForCausalLM(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """The decoder of this project with any of its attention variants."""

    config_class = IhaConfig
    base_model_prefix = "model"
    _no_split_modules: ClassVar[list[str]] = ["Block"]

    def __init__(self, config: IhaConfig) -> None:
        super().__init__(config)
        sizes = TypeAdapter(ModelConfig).validate_python(config.model)
        spec = spec_class(config.attention["kind"]).model_validate(config.attention)
        device = torch.empty(0).device
        self.model = build_model(sizes, spec, config.vocab_size, config.pretrain_len, seed=None, device=device)
        self.post_init()

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def get_input_embeddings(self) -> torch.nn.Module:
        """The token embedding."""
        return self.model.embed

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits of the next tokens.

        Args:
            input_ids: (B, N); with a cache, the tokens that follow what it holds.
            attention_mask: (B, N or more); 0 marks padding, on the left if a cache is used.
            labels: (B, N); -100 is not counted.
            use_cache: also return a cache; also implied by giving one.
            logits_to_keep: logits of the last positions only; 0: all.
            kwargs: `cache` (or `past_key_values`) of an earlier call; positions follow from the mask.

        Raises:
            ValueError: padding that is neither left nor right of the tokens, or right of them with a cache.
        """
        cache: IhaCache | None = kwargs.get("cache") or kwargs.get("past_key_values")
        if cache is None and use_cache:
            cache = IhaCache(self.model.new_cache(input_ids.shape[0]))
        fresh = cache is None or cache.kv.length == 0
        pad = left_padding(attention_mask, right_allowed=cache is None) if fresh else None
        hidden = self.model.hidden(input_ids, cache=None if cache is None else cache.kv, pad=pad)
        logits = F.linear(hidden[:, -logits_to_keep:] if logits_to_keep else hidden, self.model.head_weight).float()
        loss = None if labels is None else self.loss_function(logits, labels, self.config.vocab_size)
        return CausalLMOutputWithPast(loss=loss, logits=logits, **{_CACHE: cache})


def left_padding(mask: Tensor | None, *, right_allowed: bool) -> Tensor | None:
    """Pads on the left of each row (B,), None if there are none anywhere.

    Raises:
        ValueError: padding elsewhere; right of the tokens it does no harm in a causal model, but it would stay in a
            cache.
    """
    if mask is None or bool(mask.all()):
        return None
    left = (mask.cumsum(-1) == 0).sum(-1)
    right = (mask.flip(-1).cumsum(-1) == 0).sum(-1)
    if bool((left + right + mask.sum(-1) != mask.shape[-1]).any()) or (not right_allowed and bool(right.any())):
        raise ValueError(
            "attention_mask: pad on the left (padding_side='left'); other padding cannot be generated from"
        )
    return left if bool(left.any()) else None
