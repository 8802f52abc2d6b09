"""Interleaved Head Attention (arXiv 2602.21371), reproduced: five attention variants at equal compute.

The layers and the language model can be used without the workflow::

    from iha import InterleavedHeadAttention

    layer = InterleavedHeadAttention(dim=512, n_heads=8, pseudo_heads=2, window=256)
    y = layer(x)  # (B, N, 512), causal

Importing this package does not import torch; the first use of a name below does.
"""

from importlib import import_module as _import_module
from typing import Any as _Any

__version__ = "0.1.0"

#: Public names and the module that defines each.
_PUBLIC = {
    "InterleavedHeadAttention": "iha.model.attention.iha",
    "MultiHeadAttention": "iha.model.attention.mha",
    "SlidingWindowAttention": "iha.model.attention.mha",
    "PairedHeadsAttention": "iha.model.attention.paired_heads",
    "TalkingHeadsAttention": "iha.model.attention.talking_heads",
    "DifferentialAttention": "iha.model.attention.diff",
    "build_model": "iha.model.transformer",
    "load_model": "iha.model.files",
}


def __getattr__(name: str) -> _Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'iha' has no attribute {name!r}")
    return getattr(_import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted((*globals(), *_PUBLIC))
