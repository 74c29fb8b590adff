"""Report -> one HTML file that works offline: scripts, styles and data are inside, and it requests nothing.

Every number of the page is in report.json; charts draw the numbers of its tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import groupby
from typing import Protocol

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from three_walls.model.report import Report
from three_walls.report.formats import UNKNOWN, format_css_percent, format_share, show_control_characters
from three_walls.report.section import Cell, Chart, Section, Table, nested_blocks, pieces_of, plain_text
from three_walls.report.sections import make_sections
from three_walls.resources import TEMPLATES_DIR


class Document(Protocol):
    """What the foot of a page states of what it shows."""

    @property
    def tool_version(self) -> str: ...
    @property
    def schema_version(self) -> str: ...


def render_html(report: Report) -> str:
    """``report`` as a page; the same report gives the same text."""
    return render_page(make_sections(report), report, "report.json")


def render_page(sections: Sequence[Section], document: Document, data_name: str) -> str:
    """``sections`` as a page, the first of which is the head. ``data_name``: the file that has every number of it."""
    charts = [block for section in sections for block in nested_blocks(section.blocks) if isinstance(block, Chart)]
    title = next(block.title for block in sections[0].blocks)  # type: ignore[union-attr]  # the head is a Hero
    return (
        _make_environment()
        .get_template("page.html.jinja")
        .render(
            title=title,
            sections=sections,
            report=document,
            data_name=data_name,
            figures={chart.name: chart.figure for chart in charts},
            plotly_script=_load_plotly() if charts else "",
            style=_load_asset("report.css"),
            script=_load_asset("report.js"),
        )
    )


@cache
def _make_environment() -> Environment:
    """An environment that escapes everything, and where a misspelled name is an error, not an empty cell.

    It is made once: compiling the templates takes as long as filling them.
    """
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES_DIR),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_show,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "css_percent": format_css_percent,
        "share": format_share,
        "kind": lambda value: type(value).__name__,
        "pieces": pieces_of,
        "is_unknown": lambda cell: plain_text(cell) == UNKNOWN,
        "page_columns": lambda table: [column for column in table.columns if column.in_page],
        "lines": list_lines,
    }
    return environment


def _show(value: object) -> object:
    """What stands in the page for ``value``: in texts of the run control characters are spelled out."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else show_control_characters(value)


def list_lines(table: Table) -> list[list[Cell]]:
    """Cells of the page's columns, row by row. In a column that groups, equal cells are written once."""
    columns = [column for column in table.columns if column.in_page]
    lines = [[column.cell(row) for column in columns] for row in table.rows]
    for place, column in enumerate(columns):
        for _, equal in groupby(lines if column.groups else (), key=lambda line: line[place]):
            for line in list(equal)[1:]:
                line[place] = ""
    return lines


def _load_asset(name: str) -> Markup:
    """A style sheet or script of this package, which goes into the page unescaped."""
    return Markup((TEMPLATES_DIR / name).read_text(encoding="utf-8"))


def _load_plotly() -> Markup:
    """Plotly's own script, embedded once per page."""
    from plotly.offline import get_plotlyjs  # half a second to import, and only the page needs it

    return Markup(get_plotlyjs())
