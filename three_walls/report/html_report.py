"""Report -> one HTML file that works offline: style, script and charts are inside, and it requests nothing.

It is readable without its script: charts are drawn here as SVG, tables are static, and folds are the browser's own.
Every number of the page is in report.json; charts draw the numbers of its tables.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from three_walls.lib.resources import TEMPLATES_DIR
from three_walls.lib.text import format_count, format_css_percent, format_share, show_control_characters
from three_walls.report.report import Report
from three_walls.report.section import PAGE_ROWS, Column, Section, TimelineBlock, nested_blocks, pieces_of, plain_text
from three_walls.report.sections import make_sections
from three_walls.report.svg import (
    place_bars,
    place_heat_map,
    place_lines,
    place_roofline,
    place_timeline,
    timeline_data,
)

MOST_COLUMNS = 9
"""A table with more columns is set smaller on paper."""


def render_html(report: Report) -> str:
    """``report`` as a page; the same report gives the same text."""
    return render_page(make_sections(report), report, "report.json")


def render_frame(report: Report) -> str:
    """``report`` as a page inside of another page, whose styles it neither takes nor changes."""
    page = Markup.escape(render_html(report))
    return f'<iframe title="three-walls" sandbox="allow-scripts" width="100%" height="900" srcdoc="{page}"></iframe>'


def render_page(sections: Sequence[Section], document: object, data_name: str) -> str:
    """``sections`` as a page, the first of which is the head.

    ``document``: what they show, with its ``tool_version`` and ``schema_version``; ``data_name``: the file that has
    every number of it.
    """
    title = next(block.title for block in sections[0].blocks)  # type: ignore[union-attr]  # the head is a Hero
    blocks = [block for section in sections for block in nested_blocks(section.blocks)]
    has_timeline = any(isinstance(block, TimelineBlock) for block in blocks)
    shown = [section for section in sections if section.blocks or section.name == "plan"]
    template = _make_environment().get_template("page.html.jinja")
    return template.render(
        title=title,
        sections=shown,
        absent=[section for section in sections if section not in shown],
        report=document,
        data_name=data_name,
        style=_load_asset("report.css") + _load_asset("timeline.css"),
        script=_load_asset("report.js") + (_load_asset("timeline.js") if has_timeline else ""),
    )


@cache
def _make_environment() -> Environment:
    """An environment that escapes everything, and where a misspelled name is an error, not an empty cell.

    It is made once: it holds the templates that were loaded.
    """
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES_DIR),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_show,
        trim_blocks=True,
        lstrip_blocks=True,
        optimized=False,  # there are few constants, and looking for them takes an eighth of reading the templates
    )
    environment.filters |= {
        "css_percent": format_css_percent,
        "share": format_share,
        "kind": lambda value: type(value).__name__,
        "pieces": pieces_of,
        "value_of": Column.raw,  # a filter, because a template calls methods slowly, and a page has thousands of cells
        "show": Column.show,
        "plain_text": plain_text,
        "printable": show_control_characters,
        "sort_key": _sort_key,
        "count": format_count,
        "identifier": lambda text: re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:120] or "-",
        "place_bars": place_bars,
        "place_heat_map": place_heat_map,
        "place_lines": place_lines,
        "place_roofline": place_roofline,
        "place_timeline": place_timeline,
        "timeline_data": timeline_data,
    }
    environment.globals |= {"page_rows": PAGE_ROWS, "most_columns": MOST_COLUMNS}
    return environment


def _show(value: object) -> object:
    """What stands in the page for ``value``: in texts of the run control characters are spelled out."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else show_control_characters(value)


def _sort_key(value: object) -> float | None:
    """What a cell is sorted by: its number, whatever its unit; the lower one of a pair of bounds."""
    number = value[0] if isinstance(value, tuple) and value else value
    return number if isinstance(number, int | float) and not isinstance(number, bool) else None


def _load_asset(name: str) -> Markup:
    """A style sheet or script of this package, which goes into the page unescaped."""
    return Markup((TEMPLATES_DIR / name).read_text(encoding="utf-8"))
