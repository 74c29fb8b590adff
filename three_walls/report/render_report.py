"""Report -> text in one of the formats that the commands offer."""

from __future__ import annotations

import io
from difflib import get_close_matches
from typing import TYPE_CHECKING

from three_walls.lib.errors import UsageError

if TYPE_CHECKING:
    from three_walls.report.report import Report

FORMATS = ("text", "json", "md", "csv", "html")
"""Each is also the suffix of a file of that format, but for text (txt)."""
REPORT_NAME = "report.json"


def render(report: Report, form: str, *, table: str | None = None, is_full: bool = False) -> str:
    """``report`` as one of :data:`FORMATS`; ends with a newline. Of CSV the table of that name.

    ``is_full`` counts for text and Markdown: every section, not only verdict, warnings, budget and plan. Raises
    UsageError for a table that the report does not have. What makes one format is imported for that format only.
    """
    if form == "json":
        from three_walls.report.json_report import render_json

        return render_json(report)
    if form == "html":
        from three_walls.report.html_report import render_html

        return render_html(report)
    if form == "md":
        from three_walls.report.markdown_report import render_markdown

        return render_markdown(report, is_full=is_full)
    if form == "csv":
        return _pick_table(report, table)
    from rich.console import Console

    from three_walls.report.terminal_report import WIDTH, print_report

    page = io.StringIO()
    print_report(report, Console(file=page, width=WIDTH, force_terminal=False), is_full=is_full)
    return page.getvalue()


def _pick_table(report: Report, name: str | None) -> str:
    from three_walls.report.csv_report import render_csv

    tables = render_csv(report)
    if name in tables:
        return tables[name]
    close = get_close_matches(name or "", tables, n=1)
    found = f"found {name!r}" + (f" (did you mean {close[0]}?)" if close else "") if name else "found none"
    raise UsageError(f"--format csv: expected --table with the name of a table, {found}; there are {', '.join(tables)}")
