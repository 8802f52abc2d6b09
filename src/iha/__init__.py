"""Interleaved Head Attention (arXiv 2602.21371), reproduced: five attention variants at equal compute."""

__version__ = "0.1.0"
