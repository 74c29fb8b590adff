"""The parts of a report: sections, made of blocks.

A section decides what is shown and how it is worded, and knows no medium. A renderer (terminal, HTML, Markdown, CSV)
lays blocks out, and knows no section. All text here is plain text: renderers escape it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import Any

from three_walls.export.step_detail_rows import StepTimeline
from three_walls.lib.text import UNITS, UNKNOWN, format_text
from three_walls.report.charts import Plot

ROW = ""
"""As the value of a column: the whole row."""

PAGE_ROWS = 600
"""Rows of a table that the page shows at most; report.json and the CSV files have all."""

FEW_ROWS, MANY_ROWS = 8, 40
"""Rows of a table that the terminal shows: of one that is looked up in part, and of one that is read as a whole."""


class Terminal(Enum):
    """When the terminal shows a section."""

    ALWAYS = "always"
    FULL = "with --full"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Text:
    """Text with a role: ``code``, ``strong``, ``muted``, ``source``, ``from``, ``to``, or ``badge`` with a colour."""

    text: str
    role: str = ""
    title: str = ""
    """A longer text that the page shows on hover."""
    link: str = ""
    """Anchor in the page that it links to; empty: no link."""


@dataclass(frozen=True, slots=True)
class Swatch:
    """A small square in a colour of the charts."""

    colour: str


@dataclass(frozen=True, slots=True)
class Bar:
    """Segments of a bar, end to end: each a fraction of the full length, and its colour."""

    parts: tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True)
class Amounts:
    """Lines within a cell: a name and its amount."""

    lines: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Shade:
    """Text and its exposed part on a shaded background: ``depth`` is 0 to 1, ``hue`` a class of the style sheet."""

    text: str
    aside: str
    depth: float
    hue: str


Inline = str | Text | Swatch
Cell = Inline | Bar | Amounts | Shade | tuple[Inline, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: which value of a row, and how it is written.

    ``value`` is an attribute of the row (``ns``, ``step.index``), :data:`ROW` for the row itself, or a function of the
    row. ``format`` makes a cell of that value.
    """

    head: str
    value: str | Callable[[Any], Any]
    format: Callable[[Any], Cell] = format_text
    role: str = ""
    """Role of the text: see :class:`Text`."""
    width: str = ""
    """``wide``, ``third`` or ``shape`` (for bars); empty: as wide as its text."""
    sums: bool = False
    """Whether the terminal sums this column over the rows that it leaves out."""
    groups: bool = False
    """Whether equal cells below each other are written once."""
    unit: str = ""
    """Unit of the values (``ns``, ``bytes``, ...); empty: that of ``format``, if it writes numbers."""
    is_right: bool = False
    """Whether it is aligned right, as numbers are."""
    in_terminal: bool = True
    in_page: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "unit", self.unit or UNITS.get(self.format, ""))
        object.__setattr__(self, "is_right", self.is_right or bool(self.unit))

    def raw(self, row: Any) -> Any:
        """The value of ``row``, not formatted."""
        if isinstance(self.value, str):
            return attrgetter(self.value)(row) if self.value else row
        return self.value(row)

    def cell(self, row: Any) -> Cell:
        """The value of ``row`` as it is shown."""
        return self.show(self.raw(row))

    def show(self, value: Any) -> Cell:
        """``value``, which is not formatted, as it is shown."""
        cell = self.format(value)
        return Text(cell, self.role) if self.role and isinstance(cell, str) and cell not in ("", UNKNOWN) else cell


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns. ``name`` is the name of its CSV file."""

    name: str
    columns: tuple[Column, ...]
    rows: Sequence[Any]
    title: str = ""
    lead: str = ""
    terminal_rows: int = FEW_ROWS
    """The terminal shows this many rows and counts the rest; 0: it does not show the table."""
    is_compact: bool = False
    emphasis: Callable[[Any], bool] | None = None
    """Whether a row is set in bold."""
    anchor: Callable[[Any], str] | None = None
    """The anchor of a row in the page."""
    is_default: Callable[[Any], bool] | None = None
    """Whether a row holds a default only: the page can hide such rows."""
    has_head: bool = True
    """Whether the terminal names its columns."""


@dataclass(frozen=True, slots=True)
class Note:
    """A paragraph. ``role``: ``lead``, ``muted``, ``strong``, ``warning``, ``empty``; ``label`` stands before it."""

    content: Inline | tuple[Inline, ...]
    label: str = ""
    role: str = ""


@dataclass(frozen=True, slots=True)
class Items:
    """A list. ``role``: ``checklist``, ``evidence``, ``list``, ``plain`` or empty; with ``aside`` it is left out
    on paper. An item may have several pieces."""

    items: tuple[Inline | tuple[Inline, ...], ...]
    title: str = ""
    role: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart, drawn in the page only. Every number in it is in a table too."""

    name: str
    plot: Plot
    label: str
    """Its heading, which states what is drawn."""


@dataclass(frozen=True, slots=True)
class Legend:
    """What colours and badges mean: (swatch or badge, name, meaning)."""

    entries: tuple[tuple[Text | Swatch, str, str], ...]


@dataclass(frozen=True, slots=True)
class Metric:
    label: str
    value: str
    note: str = ""
    role: str = ""


@dataclass(frozen=True, slots=True)
class Range:
    """Low, likely and high as fractions of a scale that several cards share."""

    low: float
    high: float
    likely: float | None
    title: str


@dataclass(frozen=True, slots=True)
class Card:
    """A titled box: an entry of the plan, a finding, a rank that is late."""

    title: Inline | tuple[Inline, ...]
    blocks: tuple[Block, ...] = ()
    marker: str = ""
    """A number before the title."""
    tag: str = ""
    """The stable name of what the card is about, such as the id of a rule."""
    subtitle: tuple[Inline, ...] = ()
    metrics: tuple[Metric, ...] = ()
    scale: Range | None = None
    role: str = "finding"
    """``plan-step``, ``finding`` or ``callout``."""
    anchor: str = ""
    """Its anchor in the page; empty: none."""


@dataclass(frozen=True, slots=True)
class TopEdit:
    """One of the first entries of the plan, in a line of the head."""

    marker: str
    title: str
    link: str
    """Anchor of the entry."""
    gain: str
    note: str = ""
    """Why it has nothing to copy, or what else must be set."""
    copies: tuple[tuple[str, str], ...] = ()
    """What a button copies, and the name of the :class:`Copyable` that holds it."""


@dataclass(frozen=True, slots=True)
class Hero:
    """The head of the report."""

    eyebrow: str
    title: str
    text: str
    notes: tuple[str, ...]
    metrics: tuple[Metric, ...]
    shares: tuple[tuple[str, float, str], ...]
    """Name, fraction of the step, colour."""
    role: str
    step_line: str
    """The metrics in a sentence, for renderers that draw no figures."""
    run: str = ""
    """Which run it is: traces, GPUs, launcher."""
    remark: str = ""
    """What the page shows below ``text``, smaller."""
    shares_of: str = "the step"
    """What ``shares`` are shares of."""
    edits: tuple[TopEdit, ...] = ()
    edits_title: str = ""
    more_edits: tuple[Inline, ...] = ()
    """Where the other entries are."""
    limits: tuple[Inline, ...] = ()
    """What the capture cannot state, in one line."""


@dataclass(frozen=True, slots=True)
class Fold:
    """Blocks that the page shows when they are unfolded. The terminal leaves them out, unless stated otherwise."""

    summary: Inline | tuple[Inline, ...]
    blocks: tuple[Block, ...]
    is_open: bool = False
    role: str = ""
    in_full_terminal: bool = False
    """Whether the terminal shows it with ``--full``."""


@dataclass(frozen=True, slots=True)
class PageOnly:
    """Blocks that the terminal leaves out."""

    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Copyable:
    """Lines to copy into a shell or a file."""

    name: str
    title: str
    lines: tuple[str, ...]
    in_terminal: bool = True


@dataclass(frozen=True, slots=True)
class TimelineBlock:
    """The timeline of the step, in the page only."""

    timeline: StepTimeline
    colours: Mapping[str, str]
    """Bucket or cause of a gap to its colour."""
    titles: Mapping[str, str]
    """Bucket or cause of a gap to what a reader calls it."""
    lane_names: Mapping[str, str]
    """Kind of a lane without a name of its own to what it is called."""
    label: str
    targets: tuple[str, ...]
    """Anchors of stretches that are linked to."""


@dataclass(frozen=True, slots=True)
class Definitions:
    entries: tuple[tuple[str, str], ...]


Block = Table | Note | Items | Chart | Legend | Card | Hero | Fold | PageOnly | Copyable | TimelineBlock | Definitions


@dataclass(frozen=True, slots=True)
class Section:
    """One section of the report. Without blocks it shows its ``empty`` sentence; without that it is left out."""

    name: str
    """Anchor in the page."""
    title: str
    blocks: tuple[Block, ...]
    lead: str = ""
    """What the section means, in one or two sentences."""
    link: str = ""
    """Its name in the navigation; empty: no link."""
    empty: str = ""
    terminal: Terminal = Terminal.FULL
    role: str = ""
    is_folded: bool = False
    """Whether the page shows its title alone, until it is unfolded. Its link is then in the menu."""
    on_paper: bool = False
    """Whether it is printed with the page; the others are where all is printed."""
    in_menu: bool = False
    """Whether its link is in the menu of the navigation, not in its line."""


def nested_blocks(blocks: Sequence[Block]) -> Iterator[Block]:
    """``blocks`` and all blocks inside them, in order."""
    for block in blocks:
        yield block
        if isinstance(block, Card | Fold | PageOnly):
            yield from nested_blocks(block.blocks)


def pieces_of(content: Cell) -> tuple[Any, ...]:
    """``content`` as a tuple of pieces."""
    return content if isinstance(content, tuple) else (content,)


def plain_text(content: Cell) -> str:
    """The text of ``content`` without colours and shapes. Next to other text, badges and sources are in brackets."""
    if isinstance(content, str):
        return content
    words = []
    pieces = pieces_of(content)
    for piece in pieces:
        if isinstance(piece, Amounts):
            words.append("; ".join(f"{what}: {amount}" for what, amount in piece.lines))
        elif isinstance(piece, Shade):
            words.append(f"{piece.text} ({piece.aside} exposed)" if piece.aside else piece.text)
        elif isinstance(piece, str):
            words.append(piece)
        elif isinstance(piece, Text) and piece.text:
            is_alone = len(pieces) == 1
            if piece.role.startswith("badge") and not is_alone:
                words.append(f"[{piece.text}]")
            else:
                words.append(f"({piece.text})" if piece.role == "source" and not is_alone else piece.text)
    return " ".join(word for word in words if word)
