"""A report as the terminal shows it, and its sections by name."""

from __future__ import annotations

import io

from rich.console import Console

from three_walls.report.report import Report
from three_walls.report.section import Section, Table, nested_blocks, plain_text
from three_walls.report.sections import make_sections
from three_walls.report.terminal_report import print_report


def print_plain(report: Report, is_full: bool = True, width: int = 100) -> str:
    page = io.StringIO()
    print_report(report, Console(file=page, width=width), is_full=is_full)
    return page.getvalue()


def section_of(report: Report, name: str) -> Section | None:
    return next((section for section in make_sections(report) if section.name == name), None)


def table_of(report: Report, name: str) -> Table:
    """The table whose CSV file has that name."""
    blocks = (block for section in make_sections(report) for block in nested_blocks(section.blocks))
    return next(block for block in blocks if isinstance(block, Table) and block.name == name)


def lines_of(table: Table) -> list[list[str]]:
    """Cells of a table as text."""
    return [[plain_text(column.cell(row)) for column in table.columns] for row in table.rows]
