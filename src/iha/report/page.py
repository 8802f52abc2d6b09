"""The one self-contained page: story, tables, figures inline, provenance. No network, no script."""

from __future__ import annotations

import base64
import html
from pathlib import Path
from string import Template

from iha.report.collect import Results
from iha.report.format import SCALE_LABELS
from iha.report.records import Grid
from iha.report.render import html_table


def page(results: Results, sections: dict[str, str], story: list[str], provenance: dict[str, str]) -> str:
    """Fill `page.html`. `sections`: table1, table2, figure2, flops, training as HTML; the rest is plain text."""
    template = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    facts = "".join(f"<dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd>" for k, v in provenance.items())
    return template.substitute(
        sections,
        title=html.escape(f"Interleaved Head Attention: experiment {results.part.experiment}"),
        label=html.escape(SCALE_LABELS[results.part.scale]),
        story="".join(f"<p>{html.escape(text)}</p>\n" for text in story),
        provenance=f"<dl>{facts}</dl>",
    )


def tables(*grids: Grid) -> str:
    """Grids one below the other."""
    return "\n".join(html_table(grid) for grid in grids)


def image(path: Path, caption: str, description: str) -> str:
    """A PNG inside the page; `description` says in words what it shows."""
    data = base64.b64encode(path.read_bytes()).decode()
    return (
        f'<figure><img alt="{html.escape(description)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )
