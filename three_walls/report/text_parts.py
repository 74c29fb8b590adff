"""Pieces of the terminal report: text taken as it stands, headings, indents, tables without borders."""

from __future__ import annotations

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from three_walls.report.formats import show_control_characters


def plain(text: str, style: str = "") -> Text:
    """Text as it stands: no markup in it is obeyed."""
    return Text(show_control_characters(text), style=style)


def heading(title: str, aside: str = "") -> Text:
    line = plain(f"\n{title.upper()}", "bold")
    return line.append(f"  {show_control_characters(aside)}", "dim") if aside else line


def indent(text: str | Text, columns: int = 2) -> Padding:
    return Padding(plain(text) if isinstance(text, str) else text, (0, 0, 0, columns))


def make_table(*columns: str) -> Table:
    """A borderless table; a column whose title starts with ``>`` holds numbers."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left")
    return table


def indent_table(table: Table) -> Padding:
    return Padding(table, (0, 0, 0, 2))
