"""Attention kernels with one interface, `attend`."""

from iha.model.attention.kernels.dispatch import KERNELS, announce, attend, choose, reference_attention

__all__ = ["KERNELS", "announce", "attend", "choose", "reference_attention"]
