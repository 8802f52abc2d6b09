"""Attention kernels behind one dispatcher; all compute softmax(q k^T scale + mask) v and agree within rounding."""

from iha.attention.kernels.dispatch import announce, attend

__all__ = ["announce", "attend"]
