"""From a log's text to its lines, their values and blocks of lines, as ``tables/log-lines.yaml`` describes them.

A block is several lines of one process that belong together; other processes may write in between.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import polars as pl

from three_walls.lib import limits
from three_walls.lib.measurement import NS_PER_MS, NS_PER_S
from three_walls.log.log_lines import BlockRow, LineRow, LogGrammar, Prefix
from three_walls.log.training_log import LogIteration

Value = int | float | str

_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?([eE][-+]?\d+)?")
_SCALES = {"ms": NS_PER_MS, "s": NS_PER_S, "billions": 10**9, "count": 1, "MiB": 2**20, "GB": 10**9}
_LARGEST_VALUE = 1e15
"""In the log's own unit. What prints more is no training run."""
_BYTES_OF_SIZE = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "bytes": 1}
_TERMINAL_CODE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_BLOCK_BYTES = 1024
"""Of an open block without its texts: 0.7 KiB on CPython 3.11, and the iteration line before it."""
_ENTRY_BYTES = 72
"""Of an entry without its texts: a tuple of two, and its place in the list."""
_AS_ASCII = bytes(code if code < 128 else ord("?") for code in range(256))


class RawLine(NamedTuple):
    """A line without its line end."""

    text: bytes
    is_anchored: bool
    """Whether it holds one of the anchors."""
    is_ended: bool
    """Whether it has a line end: the file does not stop within it."""


def scan_lines(
    chunks: Iterable[bytes], anchors: Sequence[bytes], wants_every_line: Callable[[], bool]
) -> Iterator[RawLine]:
    """The lines that hold one of ``anchors``, in order; every line while ``wants_every_line`` returns True.

    Lines end with LF, CRLF or CR (as progress bars write). Colours and other terminal codes are removed. Memory is
    bounded by the size of a chunk, whatever the length of a line.
    """
    rest = b""
    is_overlong = False  # inside a line whose beginning was discarded
    for chunk in chunks:
        text = rest + (chunk.replace(b"\r", b"\n") if b"\r" in chunk else chunk)
        if is_overlong:
            _, line_end, text = text.partition(b"\n")
            is_overlong = not line_end
        whole = text.rfind(b"\n") + 1
        rest = text[whole:]
        yield from _lines_of(text[:whole], anchors, wants_every_line)
        if len(rest) > limits.MOST_LINE_BYTES:
            rest, is_overlong = b"", True
    yield from _lines_of(rest, anchors, wants_every_line)


def _lines_of(text: bytes, anchors: Sequence[bytes], wants_every_line: Callable[[], bool]) -> Iterator[RawLine]:
    if b"\x1b" in text:
        text = _TERMINAL_CODE.sub(b"", text)
    starts = _find_anchored(text, anchors)
    place, position = 0, 0
    while position < len(text):
        while place < len(starts) and starts[place] < position:
            place += 1
        if not wants_every_line():
            if place == len(starts):
                return
            position = starts[place]
        line_end = text.find(b"\n", position)
        end = len(text) if line_end < 0 else line_end
        if position < end <= position + limits.MOST_LINE_BYTES:
            is_anchored = place < len(starts) and starts[place] == position
            yield RawLine(text[position:end], is_anchored, is_ended=line_end >= 0)
        position = end + 1


def _find_anchored(text: bytes, anchors: Sequence[bytes]) -> list[int]:
    """Where the lines that hold an anchor begin, in order."""
    # One pass for all anchors is three times as fast as one search for each. It needs text with one character per byte,
    # so bytes that are not ASCII, which are in no anchor, are replaced.
    ascii_text = text if text.isascii() else text.translate(_AS_ASCII)
    hits = pl.Series([ascii_text.decode("ascii")]).str.find_many([anchor.decode("ascii") for anchor in anchors])
    starts: list[int] = []
    next_line = 0
    for hit in sorted(hits[0].to_list()):
        if hit < next_line:
            continue  # in the same line as the hit before
        starts.append(text.rfind(b"\n", next_line, hit) + 1 or next_line)
        end = text.find(b"\n", hit)
        next_line = len(text) if end < 0 else end + 1
    return starts


class SourceLine(NamedTuple):
    """A line split into its prefixes and its text."""

    origin: str
    """The prefixes that identify the process that wrote the line."""
    text: str
    """The line without any prefix."""
    stamped: str
    """The line without the origin; time stamps stay."""
    is_ended: bool = True
    """Whether the file continues after the line; otherwise the line may be truncated."""


class ParsedLine(NamedTuple):
    """The values that one row of the grammar reads in a line."""

    kind: str
    values: Mapping[str, Value]
    text: str
    """The part of the line that the row's pattern matches."""


def strip_prefixes(line: str, grammar: LogGrammar, is_ended: bool = True) -> SourceLine:
    """``line`` without what launchers and loggers put before it."""
    origin, text, stamped = "", line, line
    is_stamped = False
    for _ in range(limits.MOST_PREFIXES):
        prefix, length = _first_prefix(text, grammar)
        if prefix is None:
            break
        if prefix.origin:
            origin += text[:length].strip()
        else:
            is_stamped = True
        text = text[length:]
        if not is_stamped:
            stamped = text
    return SourceLine(origin[-limits.LONGEST_ORIGIN :], text, stamped, is_ended)


def _first_prefix(text: str, grammar: LogGrammar) -> tuple[Prefix | None, int]:
    """The first prefix of ``grammar`` that ``text`` begins with, and its length there."""
    if grammar.any_prefix.match(text):
        for prefix in grammar.prefixes:
            if (match := prefix.pattern.match(text)) and match.end():
                return prefix, match.end()
    return None, 0


def read_line(line: SourceLine, raw: bytes, grammar: LogGrammar) -> tuple[list[ParsedLine], list[str]]:
    """What the rows of the grammar read in ``line``, and the kinds of the rows that match it but miss a value (torn).

    ``raw`` is the line as it stands in the file, in which anchors are searched.
    """
    parsed: list[ParsedLine] = []
    torn: list[str] = []
    for row in grammar.lines:
        match = row.pattern.search(line.stamped) if row.anchor in raw else None
        if match is None:
            continue
        values = _read_values(row, match, line.stamped)
        if row.required <= values.keys() and (line.is_ended or not row.ends_line):
            parsed.append(ParsedLine(row.kind, values, match[0]))
        else:
            torn.append(row.kind)
    return parsed, torn


def _read_values(row: LineRow, match: re.Match[str], text: str) -> dict[str, Value]:
    groups = match.groupdict()
    texts: dict[str, tuple[str | None, str]] = {name: (groups.get(name), unit) for name, unit in row.values.items()}
    if row.fields:
        listed_fields = (groups.get("fields") or "").split("|")
        for listed in listed_fields[:-1] if row.is_closed else listed_fields:
            label, _, value = listed.partition(":")
            if label.strip() in row.names_by_label:
                name, unit = row.names_by_label[label.strip()]
                texts[name] = (value.strip(), unit)
    for name, part in row.parts.items():
        part_match = part.pattern.search(text)
        texts[name] = (next(filter(None, part_match.groups()), None) if part_match else None, part.unit)
    values = {name: read_value(value, unit) for name, (value, unit) in texts.items() if value}
    return {name: value for name, value in values.items() if value is not None}


def read_value(text: str, unit: str) -> Value | None:
    """``text`` as ns, bytes, a count, a number or text, as ``unit`` asks; None where it is no such value."""
    if unit == "text":
        return text.strip()
    amount, _, name = text.strip().partition(" ") if unit == "size" else (text, "", "")
    if len(amount) > limits.LONGEST_LOG_NUMBER or not _NUMBER.fullmatch(amount):
        return None
    number = float(amount)
    if unit == "number":
        return number if math.isfinite(number) else None
    scale = _BYTES_OF_SIZE.get(name) if unit == "size" else _SCALES[unit]
    return round(number * scale) if scale is not None and abs(number) < _LARGEST_VALUE else None


@dataclass(slots=True)
class Block:
    """A block that is being read."""

    row: BlockRow
    origin: str
    """The process that writes it."""
    after: LogIteration | None = None
    """The last iteration line of the same process before the block."""
    entries: list[tuple[str, str]] = field(default_factory=list)
    """(name, value) pairs; the name is empty where lines have none."""
    entries_bytes: int = 0
    """What the entries take of memory."""
    section: str = ""
    number: int = -1
    """The last name of the section, where names count up."""
    unexpected: int = 0
    """Consecutive lines of the same process that do not belong to the block."""
    expires_at: int = 0
    """The number of the line at which it counts as never closed, unless its process writes before."""
    is_closed: bool = False

    @property
    def memory_bytes(self) -> int:
        """What the block takes of memory."""
        return _BLOCK_BYTES + sys.getsizeof(self.origin) + sys.getsizeof(self.section) + self.entries_bytes

    def read(self, line: SourceLine) -> None:
        """Adds ``line``, of the same process, if it belongs to the block; closes the block where it ends."""
        if not line.is_ended:
            return
        if self.row.section and (heading := self.row.section.match(line.text)):
            self.section, self.number, self.unexpected = f"{heading['section']}.", -1, 0
            for name, value in heading.groupdict().items():
                if name != "section" and value:
                    self._add(name, value)
        elif match := self.row.line.match(line.text):
            groups = match.groupdict()
            self._add(groups.get("name") or "", groups["value"])
        elif (self.entries or self.row.repeats) and self.row.closes.search(line.text):
            self.is_closed = True
        elif line.text.strip():
            self.unexpected += 1
            self.is_closed = self.unexpected > self.row.patience

    def _add(self, name: str, value: str) -> None:
        self.unexpected = 0
        if self.row.counts_up:
            if int(name) <= self.number:
                self.section = ""  # the heading of another section was torn
            self.number = int(name)
            if not self.section:
                return
        if self.row.keeps_last:
            self.entries, self.entries_bytes = [], 0
        name = self.section + name
        self.entries.append((name, value))
        self.entries_bytes += _ENTRY_BYTES + sys.getsizeof(name) + sys.getsizeof(value)
        self.is_closed = len(self.entries) >= limits.MOST_BLOCK_ENTRIES


def open_block(line: SourceLine, raw: bytes, grammar: LogGrammar, already_read: Collection[str]) -> Block | None:
    """The block that ``line`` opens, or None. A line that opens a block may also be its first entry.

    ``already_read``: kinds of blocks that were read before; of those, only the ones that repeat are opened again.
    """
    for row in grammar.blocks:
        if row.kind in already_read and not row.repeats:
            continue
        if row.anchor in raw and row.opens.search(line.text):
            block = Block(row, line.origin)
            if row.line.match(line.text):
                block.read(line)
            return block
    return None
