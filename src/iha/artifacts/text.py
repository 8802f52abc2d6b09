"""Numbers with their units, and columns for a terminal."""

from __future__ import annotations


def aligned(rows: list[tuple[str, ...]]) -> str:
    """Columns two spaces apart, the first to the left, numbers to the right."""
    first, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
    return "\n".join(
        "  ".join([row[0].ljust(first), *(cell.rjust(w) for cell, w in zip(row[1:], widths, strict=True))])
        for row in rows
    )


def size(count: float) -> str:
    """Bytes in decimal units; a dash for none."""
    if not count:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:  # three digits would print 1e+03 from here on
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{amount(count)} TB"


def amount(value: float) -> str:
    """Three significant digits; from 100 on, rounded to an integer."""
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def hours(value: float) -> str:
    """Hours as days, hours, minutes or seconds."""
    for unit, length, above in (("days", 24.0, 48.0), ("h", 1.0, 1.0), ("min", 1 / 60, 1 / 60)):
        if value >= above:
            return f"{value / length:.1f} {unit}"
    return f"{3600 * value:.0f} s"
