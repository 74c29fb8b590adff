"""Report -> Markdown: short for a ticket, a chat or the summary of a CI job, or every section with all rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from three_walls.lib.text import show_control_characters
from three_walls.report.report import Report
from three_walls.report.section import (
    Block,
    Card,
    Cell,
    Copyable,
    Definitions,
    Fold,
    Hero,
    Items,
    Note,
    PageOnly,
    Section,
    Table,
    plain_text,
)
from three_walls.report.sections import make_sections
from three_walls.report.sections.brief import make_ticket

_MARK = re.compile(r"[\\`*\[\]#~<|]|^>|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
"""What Markdown interprets; ``>`` only where a line begins, ``_`` only at the edge of a word."""


def render_markdown(report: Report, *, is_full: bool = True) -> str:
    """``report`` as Markdown; ends with a newline. Without ``is_full`` verdict, plan, budget and warnings alone."""
    return write_markdown(make_sections(report) if is_full else make_ticket(report))


def write_markdown(sections: Iterable[Section]) -> str:
    """``sections`` as Markdown; ends with a newline."""
    lines: list[str] = []
    for section in sections:
        lines += [f"## {_escape(section.title)}", ""] if section.title else []
        lines += [_escape(section.lead), ""] if section.lead else []
        lines += [] if section.blocks else [_escape(section.empty), ""]
        for block in section.blocks:
            lines += _write(block, 3)
    return "\n".join(lines).rstrip() + "\n"


def _write(block: Block, level: int) -> Iterator[str]:
    """Lines of ``block``, with an empty one at the end; no lines for charts and legends."""
    if isinstance(block, Hero):
        yield from (f"# {_escape(block.title)}", "", _escape(block.text), "", _escape(block.step_line), "")
        for note in block.notes:
            yield from (_escape(note), "")
        if block.edits:  # without links: not every place that shows Markdown has anchors
            yield from (f"**{_escape(block.edits_title)}**", "")
            yield from (f"{edit.marker}. {_escape(f'{edit.title}: {edit.gain}')}" for edit in block.edits)
            yield ""
    elif isinstance(block, Note):
        text = _escape(f"{block.label} {plain_text(block.content)}".strip())
        yield from (f"{'#' * level} {text}" if block.role == "heading" else text, "")
    elif isinstance(block, Items):
        yield from (f"**{_escape(block.title)}**", "") if block.title else ()
        box = "[ ] " if block.role == "checklist" else ""
        yield from (f"- {box}{_escape(plain_text(item))}" for item in block.items)
        yield ""
    elif isinstance(block, Copyable):
        yield from (f"**{_escape(block.title)}**", "", "```")
        # Nothing ends the block of code or steers a terminal.
        yield from (show_control_characters(line).replace("```", "` ` `") for line in block.lines)
        yield from ("```", "")
    elif isinstance(block, Definitions):
        yield from (f"- **{_escape(name)}**: {_escape(meaning)}" for name, meaning in block.entries)
        yield ""
    elif isinstance(block, Table):
        yield from _write_table(block, level)
    elif isinstance(block, Card):
        yield from _write_card(block, level)
    elif isinstance(block, Fold | PageOnly):
        if isinstance(block, Fold):
            yield from (f"{'#' * level} {_escape(plain_text(block.summary))}", "")
        for inner in block.blocks:
            yield from _write(inner, level + isinstance(block, Fold))


def _write_card(card: Card, level: int) -> Iterator[str]:
    marker = f"{card.marker}. " if card.marker else ""
    tag = f" ({card.tag})" if card.tag else ""
    yield from (f"{'#' * level} {marker}{_escape(plain_text(card.title) + tag)}", "")
    if card.subtitle:
        yield from (_escape("; ".join(map(plain_text, card.subtitle))), "")
    if card.metrics:
        yield from ("; ".join(f"{_escape(m.label)}: **{_escape(m.value)}**" for m in card.metrics), "")
    for block in card.blocks:
        yield from _write(block, level + 1)


def _write_table(table: Table, level: int) -> Iterator[str]:
    columns = [column for column in table.columns if column.in_page and column.width != "shape"]
    yield from (f"{'#' * level} {_escape(table.title)}", "") if table.title else ()
    yield from (_escape(table.lead), "") if table.lead else ()
    if table.rows:
        yield _row(column.head for column in columns)
        yield f"|{'|'.join('---:' if column.is_right else '---' for column in columns)}|"
        yield from (_row(column.cell(row) for column in columns) for row in table.rows)
        yield ""


def _row(cells: Iterator[Cell]) -> str:
    return f"| {' | '.join(_escape(plain_text(cell)) for cell in cells)} |"


def _escape(text: str) -> str:
    """``text`` on one line, with everything escaped that Markdown or HTML would interpret."""
    line = show_control_characters(" ".join(text.split()))
    return _MARK.sub(lambda mark: f"&#{ord(mark[0])};" if mark[0] in "<>|" else f"\\{mark[0]}", line)
