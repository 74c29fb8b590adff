"""Report -> CSV: one text per table. Numbers are those of report.json, and the head of a column names their unit."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

from three_walls.lib.text import show_control_characters
from three_walls.report.report import Report
from three_walls.report.section import Column, Section, Table, nested_blocks, plain_text
from three_walls.report.sections import make_sections

_FORMULA_SIGNS = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What a formula begins with; the last four are the same signs in full width, which spreadsheets take for them."""


def render_csv(report: Report) -> dict[str, str]:
    """Name of each table -> its CSV text. What is unknown is an empty field."""
    return write_tables(make_sections(report))


def write_tables(sections: Iterable[Section]) -> dict[str, str]:
    """Name of each table in ``sections`` -> its CSV text. What is unknown is an empty field."""
    blocks = [block for section in sections for block in nested_blocks(section.blocks)]
    return {block.name: _write(block) for block in blocks if isinstance(block, Table)}


def _write(table: Table) -> str:
    columns = [column for column in table.columns if column.in_page and column.width != "shape"]
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(_text(f"{column.head} [{column.unit}]" if column.unit else column.head) for column in columns)
    for row in table.rows:
        writer.writerow(_field(column, row) for column in columns)
    return page.getvalue()


def _field(column: Column, row: Any) -> Any:
    """The number itself, or text as it is shown."""
    value = column.raw(row)
    if column.unit and (value is None or isinstance(value, int | float)):
        return value
    return _text(plain_text(column.cell(row)))


def _text(text: str) -> str:
    """``text`` without control characters. An apostrophe keeps a spreadsheet from running it as a formula."""
    text = show_control_characters(text)
    return f"'{text}" if text.lstrip().startswith(_FORMULA_SIGNS) and text != "-" else text
