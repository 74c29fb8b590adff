"""Report -> the terminal: one screen with verdict, warnings, budget and plan; with ``--full`` every section."""

from __future__ import annotations

import io
import os
import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text as Line

from three_walls.lib.text import shorten, show_control_characters
from three_walls.report.report import Report
from three_walls.report.section import (
    Amounts,
    Bar,
    Block,
    Card,
    Cell,
    Column,
    Copyable,
    Fold,
    Hero,
    Items,
    Note,
    Section,
    Table,
    Terminal,
    pieces_of,
    plain_text,
)
from three_walls.report.sections import make_sections
from three_walls.report.sections.brief import LEAST_OVERRIDES, MOST_PLAN_LINES, MOST_WARNINGS, make_screen

WIDTH = 100
"""Columns of the report where the output is no terminal and COLUMNS is not set."""
NARROWEST, WIDEST = 60, 200
"""Bounds of the columns, whatever the terminal has."""
SCREEN_LINES = 38
"""So many lines at most has the short report of :data:`WIDTH` columns, without the two on where the rest is."""
_FEWEST_PLAN_LINES = 5
_BAR_COLUMNS = 30
"""Length of the longest bar."""
_MOST_AMOUNTS = 2
"""Lines of a cell that are shown; the page shows all."""
_WIDEST_CODE = 36
"""Columns of a name in a table; the middle of a longer one is cut out."""

MORE = "--full prints every section."


def open_console() -> Console:
    """Standard output as a rich console. FORCE_COLOR and NO_COLOR count as usual; else a terminal has colours.

    It has as many columns as COLUMNS states, else the terminal, else :data:`WIDTH`.
    """
    if sys.stdout is None:  # the shell closed it
        return Console(file=io.StringIO())
    variable = os.environ.get("COLUMNS", "")
    columns = WIDTH
    if variable.isdecimal():
        columns = int(variable)
    elif sys.stdout.isatty():
        columns = Console().width
    return Console(width=min(max(columns, NARROWEST), WIDEST), highlight=False)


@dataclass(frozen=True, slots=True)
class _Screen:
    """What is shown, and how."""

    bar_mark: str
    """The character that bars are made of."""
    is_full: bool


def print_report(report: Report, console: Console, *, is_full: bool = False) -> None:
    """Print ``report`` on ``console``, as plain text when that is not a terminal.

    ``is_full``: every section, not only what fits on one screen.
    """
    if is_full:
        print_sections(make_sections(report), console, is_full=True)
        return
    screen = _make_screen(console, is_full=False)
    _print([*_lay_sections(_fit(report, screen, console.width), screen), _plain(MORE, "dim")], console)


def print_sections(sections: Iterable[Section], console: Console, *, is_full: bool, more: str = "") -> None:
    """Print ``sections``, without ``is_full`` those that are always shown; then ``more`` is the last line."""
    screen = _make_screen(console, is_full)
    shown = [
        section
        for section in sections
        if section.terminal is Terminal.ALWAYS or (is_full and section.terminal is Terminal.FULL and section.blocks)
    ]
    last = [_plain(f"\n{more}", "dim")] if more and not is_full else []
    _print([*_lay_sections(shown, screen), *last], console)


def _make_screen(console: Console, is_full: bool) -> _Screen:
    return _Screen("\u2588" if console.is_terminal and console.encoding == "utf-8" else "#", is_full)


def _lay_sections(sections: Iterable[Section], screen: _Screen) -> Iterator[RenderableType]:
    return (part for section in sections for part in _show_section(section, screen))


def _print(parts: Sequence[RenderableType], console: Console) -> None:
    if console.is_terminal:
        console.print(Group(*parts), width=console.width)
        return
    lines = _lay_out(parts, console.width)
    console.print("\n".join(lines), soft_wrap=True, markup=False, highlight=False, emoji=False)


def _fit(report: Report, screen: _Screen, width: int) -> Sequence[Section]:
    """The short report, with as many warnings and lines of the plan as a screen has room for."""
    entries = min(len(report.plan), MOST_PLAN_LINES // 2)
    least = max(_FEWEST_PLAN_LINES, min(MOST_PLAN_LINES, entries + min(entries, LEAST_OVERRIDES)))
    sizes = [[(lines, most) for lines in range(MOST_PLAN_LINES, least - 1, -1)] for most in range(MOST_WARNINGS, 0, -1)]
    sizes.append([(lines, 1) for lines in range(least - 1, _FEWEST_PLAN_LINES - 1, -1)])

    def fits(size: tuple[int, int]) -> bool:
        sections = _lay_sections(make_screen(report, *size), screen)
        return len(_lay_out(list(sections), width)) <= SCREEN_LINES

    for smaller in sizes:  # fewer lines never take more room; laying out a screen takes a hundredth of an analysis
        if smaller and fits(smaller[-1]):
            return make_screen(report, *smaller[bisect_left(smaller, True, key=fits)])
    return make_screen(report, _FEWEST_PLAN_LINES, 1)


def _lay_out(parts: Sequence[RenderableType], width: int) -> list[str]:
    """``parts`` as plain lines of at most ``width`` columns."""
    page = io.StringIO()
    Console(file=page, width=width, force_terminal=False, color_system=None, legacy_windows=False).print(Group(*parts))
    return [line.rstrip() for line in page.getvalue().splitlines()]


def _show_section(section: Section, screen: _Screen) -> Iterator[RenderableType]:
    if section.title:
        words, bracket, amount = section.title.partition(" (")
        yield _plain(f"\n{words.upper()}{bracket}{amount}", "bold")
    if section.lead:
        yield _indent(_plain(section.lead, "dim"))
    for block in section.blocks:
        yield from _show_block(block, screen, 2)
    if not section.blocks:
        yield _indent(_plain(section.empty))


def _show_block(block: Block, screen: _Screen, columns: int) -> Iterator[RenderableType]:
    """What the terminal shows of ``block``; nothing for blocks that only a page shows."""
    if isinstance(block, Hero):
        yield from _show_hero(block)
    elif isinstance(block, Note) and block.role != "heading":
        label = _plain(f"{block.label} " if block.label else "", "bold")
        yield _indent(label.append(_plain(plain_text(block.content), "not bold")), columns)
    elif isinstance(block, Items):
        if block.title:
            yield _indent(_plain(f"{block.title}:", "bold"), columns)
        items = Grid.grid(padding=(0, 1, 0, 0))
        for item in block.items:
            # The source of an item is in the page and in report.json.
            words = plain_text(tuple(piece for piece in pieces_of(item) if getattr(piece, "role", "") != "source"))
            items.add_row(*(["-"] if block.title or block.role == "list" else []), _plain(words))
        yield _indent(items, columns)
    elif isinstance(block, Fold) and block.in_full_terminal and screen.is_full:
        yield _indent(_plain(f"{plain_text(block.summary)}:", "bold"), columns)
        for inner in block.blocks:
            yield from _show_block(inner, screen, columns + 2)
    elif isinstance(block, Copyable) and block.in_terminal:
        yield _indent(_plain(block.title, "dim"), columns)
        yield from (_indent(_plain(line), columns + 2) for line in block.lines)
    elif isinstance(block, Card):
        yield from _show_card(block, screen, columns)
    elif isinstance(block, Table) and block.terminal_rows and block.rows:
        yield from _show_table(block, screen, columns)


def _show_hero(hero: Hero) -> Iterator[RenderableType]:
    if hero.run:
        yield _plain(hero.run, "dim")
    if hero.role == "abstained":
        yield _plain("ABSTAINED: no wall is named", "bold yellow")
    else:
        yield _plain(hero.title, "bold red")
    yield _plain(hero.text)
    yield _plain(hero.step_line)
    yield from (_plain(note, "dim") for note in hero.notes)


def _show_card(card: Card, screen: _Screen, columns: int) -> Iterator[RenderableType]:
    title = _plain(f"{card.marker}. " if card.marker else "", "bold").append(
        _plain(": ".join(map(plain_text, pieces_of(card.title))), "bold")
    )
    if card.tag:
        title.append(_plain(f"  [{card.tag}]", "dim not bold"))
    yield _indent(title, columns)
    if card.metrics:
        metrics = "; ".join(f"{metric.label.lower()} {metric.value}" for metric in card.metrics)
        yield _indent(_plain(metrics, "green"), columns + 3)
    for block in card.blocks:
        yield from _show_block(block, screen, columns + 3)


def _show_table(table: Table, screen: _Screen, indent: int) -> Iterator[RenderableType]:
    """The first rows, then one row that counts the others and sums the columns that can be summed."""
    shown = [column for column in table.columns if column.in_terminal]
    if table.title:
        yield _indent(_plain(table.title, "bold"), indent)
    if table.lead:
        yield _indent(_plain(table.lead, "dim"), indent)
    grid = Grid(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False, show_header=table.has_head)
    for column in shown:
        grid.add_column(column.head, justify="right" if column.is_right else "left", overflow="fold")
    previous: list[Cell] = [""] * len(shown)
    for row in table.rows[: table.terminal_rows]:
        cells = [column.cell(row) for column in shown]
        grid.add_row(
            *(
                "" if column.groups and cell == above else _show_cell(column, cell, screen)
                for column, cell, above in zip(shown, cells, previous, strict=True)
            ),
            style="bold" if table.emphasis and table.emphasis(row) else "",
        )
        previous = cells
    rest = table.rows[table.terminal_rows :]
    if rest:
        sums = (_sum(column, rest) for column in shown[1:])
        grid.add_row(f"{len(rest)} more", *sums, style="dim")
    yield _indent(grid, indent)


def _sum(column: Column, rows: object) -> RenderableType:
    values = [column.raw(row) for row in rows] if column.sums else []  # type: ignore[attr-defined]
    known = [value for value in values if value is not None]
    return _plain(plain_text(column.format(sum(known)))) if known else ""


def _show_cell(column: Column, cell: Cell, screen: _Screen) -> RenderableType:
    if isinstance(cell, Bar):
        line = Line()
        for fraction, colour in cell.parts:
            line.append(screen.bar_mark * max(1, round(fraction * _BAR_COLUMNS)), style=colour)
        return line
    if isinstance(cell, Amounts):
        cell = Amounts(cell.lines[:_MOST_AMOUNTS])
    text = plain_text(cell)
    return _plain(shorten(text, _WIDEST_CODE) if "code" in column.role else text)


def _plain(text: str, style: str = "") -> Line:
    """Text as it is: markup in it has no effect."""
    return Line(show_control_characters(text), style=style)


def _indent(content: RenderableType, columns: int = 2) -> Padding:
    return Padding(content, (0, 0, 0, columns))
