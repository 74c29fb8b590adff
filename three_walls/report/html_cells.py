"""Texts with a role, and the rows of tables, as HTML.

A page has thousands of them. Written here they take a third of the time that a template takes for them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup
from markupsafe import escape as escape_html

from three_walls.lib.text import UNKNOWN, format_css_percent, show_control_characters
from three_walls.report.section import (
    PAGE_ROWS,
    Amounts,
    Bar,
    Cell,
    Column,
    Inline,
    Shade,
    Swatch,
    Table,
    Text,
    pieces_of,
    plain_text,
)

_MARKUP = re.compile("[&<>\"']")


def escape(text: str) -> str:
    """``text`` for an element or a quoted attribute of the page; control characters of the run are spelled out."""
    if text.isprintable() and not _MARKUP.search(text):  # nearly every text
        return text
    return str(escape_html(show_control_characters(text)))


def write_inline(content: Inline | tuple[Inline, ...]) -> Markup:
    """``content`` with a space between its pieces."""
    return Markup(" ".join(map(_write_piece, pieces_of(content))))


def _write_piece(piece: Inline) -> str:
    if isinstance(piece, str):
        return escape(piece)
    if isinstance(piece, Swatch):
        return f'<i class="swatch" style="background:{escape(piece.colour)}"></i>'
    text = _write_text(piece)
    return f'<a href="#{escape(piece.link)}">{text}</a>' if piece.link else text


def _write_text(piece: Text) -> str:
    if not piece.text:
        return ""
    text, role = escape(piece.text), piece.role
    if not role:
        return text.strip()
    title = f' title="{escape(piece.title)}"' if piece.title else ""
    if role.startswith("code") or role in ("source", "from", "to"):
        name = "code"
    else:
        name = "b" if role in ("strong", "for", "against") else "span"
    return f'<{name} class="{escape(role)}"{title}>{text}</{name}>'


def write_rows(table: Table) -> list[Markup]:
    """The cells of the page's columns, row by row. In a column that groups, equal cells are shown once."""
    rows = table.rows[:PAGE_ROWS]
    columns = [_write_column(column, rows) for column in table.columns if column.in_page]
    return [Markup("".join(cells)) for cells in zip(*columns, strict=True)]


def _write_column(column: Column, rows: Sequence[Any]) -> list[str]:
    """The cells of one column. Numbers are sorted by their value, whatever their unit; pairs of bounds by the lower."""
    cells: list[str] = []
    above: Cell | None = None
    for row in rows:
        key = column.raw(row)
        content = column.show(key)
        if isinstance(key, tuple) and key:
            key = key[0]
        is_number = isinstance(key, int | float) and not isinstance(key, bool)
        attribute = f' data-key="{key}"' if is_number else ""
        cells.append(_write_cell(column, content, attribute, column.groups and bool(cells) and content == above))
        above = content
    return cells


def _write_cell(column: Column, content: Cell, key: str, is_repeated: bool) -> str:
    if isinstance(content, Shade):
        aside = f"<small>{escape(content.aside)}</small>" if content.aside else ""
        depth = format_css_percent(content.depth)
        return (
            f'<td class="num heat {escape(content.hue)}" style="--heat:{depth}"{key}>{escape(content.text)}{aside}</td>'
        )
    if isinstance(content, Bar):
        parts = "".join(
            f'<i style="width:{format_css_percent(fraction)};background:{escape(colour)}"></i>'
            for fraction, colour in content.parts
        )
        return f'<td class="shape"{key}><div class="split">{parts}</div></td>'
    if isinstance(content, Amounts):
        lines = "".join(
            f'<li><span>{escape(what)}</span><span class="num muted">{escape(amount)}</span></li>'
            for what, amount in content.lines
        )
        return f'<td><ul class="amounts">{lines}</ul></td>'
    classes = ("num" if column.is_right else "") + (" unknown" if plain_text(content) == UNKNOWN else "")
    text: str = write_inline(content)
    if is_repeated:
        text = f'<span class="repeated">{text}</span>'
    return f'<td class="{classes}"{key}>{text}</td>'
