"""How variants are named and coloured wherever people see them: tables, figures, MLflow, the terminal."""

from __future__ import annotations

from collections.abc import Iterable

#: Names of the built-in variants; a custom variant is shown by its label, or else by its name.
NAMES = {
    "global": "Global",
    "global_local": "Global+Local",
    "talking_heads": "Talking Heads",
    "diff": "Diff",
    "iha": "IHA",
}
#: Distinguishable for colour-blind readers (after Okabe and Ito), on a white and on a dark background alike.
COLOURS = {
    "global": "#7f7f7f",
    "global_local": "#e69f00",
    "talking_heads": "#56b4e9",
    "diff": "#cc79a7",
    "iha": "#d55e00",
}
OTHERS = ("#009e73", "#8b6fc9", "#b8860b", "#4d9de0", "#a0522d", "#5f9ea0")


def variant_colours(variants: Iterable[str]) -> dict[str, str]:
    """A colour for each variant of an experiment: a built-in one always has the same."""
    names = list(variants)
    custom = [v for v in names if v not in COLOURS]
    return {v: COLOURS.get(v) or OTHERS[custom.index(v) % len(OTHERS)] for v in names}
