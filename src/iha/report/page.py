"""The one self-contained page: story, tables, figures inline, provenance. No network, no script."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Template

from iha.report.collect import Results
from iha.report.format import SCALE_LABELS
from iha.report.records import Grid
from iha.report.render import html_table
from iha.report.section import Section


def page(results: Results, sections: Sequence[Section], story: Iterable[str]) -> str:
    """Fill `page.html`: the story first, then the sections in order."""
    template = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=html.escape(f"Interleaved Head Attention: experiment {results.part.experiment}"),
        label=html.escape(SCALE_LABELS[results.part.scale]),
        story="".join(f"<p>{html.escape(text)}</p>\n" for text in story),
        links=" ".join(f'<a href="#{s.anchor}">{html.escape(s.title)}</a>' for s in sections),
        sections="".join(map(_section, sections)),
    )


def _section(section: Section) -> str:
    heading = f'<h2 id="{section.anchor}">{html.escape(section.title)}</h2>'
    return f'<section aria-labelledby="{section.anchor}">\n{heading}\n{section.body}</section>\n'


def definitions(facts: Mapping[str, str]) -> str:
    """Name and text pairs."""
    pairs = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>" for name, text in facts.items())
    return f"<dl>{pairs}</dl>"


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
