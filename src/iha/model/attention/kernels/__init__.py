"""Attention kernels behind one dispatcher; all compute softmax(q k^T scale + mask) v and agree within rounding."""

from iha.model.attention.kernels.dispatch import FEW_QUERIES, announce, attend

__all__ = ["FEW_QUERIES", "announce", "attend"]
