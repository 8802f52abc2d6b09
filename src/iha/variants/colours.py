"""Colours of the variants, the same in the report's figures and in MLflow."""

from __future__ import annotations

from collections.abc import Sequence

#: Colours that readers with colour-vision deficiency can distinguish (Okabe and Ito), in the order of the config.
COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#D55E00", "#0072B2", "#CC79A7", "#999999")


def variant_colours(names: Sequence[str]) -> dict[str, str]:
    """Colour of each variant by its place in the config; the colours repeat after the eighth."""
    return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
