"""The lines of a log that are worth parsing, where each came from, and its values. tables/log-lines.yaml decides."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import polars as pl

from three_walls.inputs import limits
from three_walls.model.units import NS_PER_MS, NS_PER_S
from three_walls.tables.log_lines import LineRow, LogGrammar, Prefix

Value = int | float | str

_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?([eE][-+]?\d+)?")
_BYTES_OF = {"MiB": 2**20, "GB": 10**9}
_BYTES_OF_SIZE = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "bytes": 1}
_TERMINAL_CODE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_AS_ASCII = bytes(code if code < 128 else ord("?") for code in range(256))


class FoundLine(NamedTuple):
    """A line without its end. ``is_ended``: it has one, the file does not stop within it."""

    text: bytes
    is_anchored: bool
    is_ended: bool


def scan_lines(
    chunks: Iterable[bytes], anchors: Sequence[bytes], wants_every_line: Callable[[], bool]
) -> Iterator[FoundLine]:
    """Lines that hold one of ``anchors``, in order, without their ends (LF, CRLF or CR, as progress bars write).

    While ``wants_every_line`` returns True, every line. Colours and other terminal codes are removed. Memory is that of
    one chunk, whatever the length of a line.
    """
    rest = b""
    is_overlong = False  # inside a line whose beginning was thrown away
    for chunk in chunks:
        text = rest + (chunk.replace(b"\r", b"\n") if b"\r" in chunk else chunk)
        if is_overlong:
            _, found, text = text.partition(b"\n")
            is_overlong = not found
        whole = text.rfind(b"\n") + 1
        rest = text[whole:]
        yield from _lines_of(text[:whole], anchors, wants_every_line)
        if len(rest) > limits.MOST_LINE_BYTES:
            rest, is_overlong = b"", True
    yield from _lines_of(rest, anchors, wants_every_line)


def _lines_of(text: bytes, anchors: Sequence[bytes], wants_every_line: Callable[[], bool]) -> Iterator[FoundLine]:
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
        found = text.find(b"\n", position)
        end = len(text) if found < 0 else found
        if position < end <= position + limits.MOST_LINE_BYTES:
            is_anchored = place < len(starts) and starts[place] == position
            yield FoundLine(text[position:end], is_anchored, is_ended=found >= 0)
        position = end + 1


def _find_anchored(text: bytes, anchors: Sequence[bytes]) -> list[int]:
    """Where the lines that hold an anchor begin, in order."""
    # One pass for all anchors is three times as fast as one search for each. It takes text, in which each byte must be
    # a character: what is not ASCII is in no anchor.
    ascii_text = text if text.isascii() else text.translate(_AS_ASCII)
    hits = pl.Series([ascii_text.decode("ascii")]).str.find_many([anchor.decode("ascii") for anchor in anchors])
    return sorted({text.rfind(b"\n", 0, hit) + 1 for hit in hits[0]})


class SourceLine(NamedTuple):
    """A line's text without its prefixes. ``origin``: the prefixes that name the process that wrote it."""

    origin: str
    text: str
    stamped: str
    """The text with everything but the origin: time stamps stay."""
    is_ended: bool = True
    """Whether the file goes on after it; otherwise it may be cut anywhere."""


class Statement(NamedTuple):
    """The values that one row of the grammar read in a line. ``text`` is the part that its pattern matched."""

    kind: str
    values: Mapping[str, Value]
    text: str


def strip_prefixes(line: str, grammar: LogGrammar, is_ended: bool = True) -> SourceLine:
    """``line`` without what launchers and loggers put before it."""
    origin, text, stamped = "", line, line
    is_stamped = False
    while grammar.any_prefix.match(text):
        prefix, length = _first_prefix(text, grammar.prefixes)
        if not length:
            break
        if prefix.origin:
            origin += text[:length].strip()
        else:
            is_stamped = True
        text = text[length:]
        if not is_stamped:
            stamped = text
    return SourceLine(origin, text, stamped, is_ended)


def _first_prefix(text: str, prefixes: tuple[Prefix, ...]) -> tuple[Prefix, int]:
    """The first of ``prefixes`` that ``text`` begins with, and its length there; 0 where there is none."""
    for prefix in prefixes:
        match = prefix.pattern.match(text)
        if match and match.end():
            return prefix, match.end()
    return prefixes[0], 0


def read_line(line: SourceLine, raw: bytes, grammar: LogGrammar) -> tuple[list[Statement], list[str]]:
    """The statements in ``line``, and the kinds of which it begins a line without completing it (torn)."""
    statements: list[Statement] = []
    torn: list[str] = []
    for row in [row for row in grammar.lines if row.anchor in raw]:
        match = row.pattern.search(line.stamped)
        if not match:
            continue
        values = _values(row, match, line.stamped)
        if row.required <= values.keys() and (line.is_ended or not row.ends_line):
            statements.append(Statement(row.kind, values, match[0]))
        else:
            torn.append(row.kind)
    return statements, torn


def _values(row: LineRow, match: re.Match[str], text: str) -> dict[str, Value]:
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
        found = part.pattern.search(text)
        texts[name] = (next((group for group in found.groups() if group), None) if found else None, part.unit)
    values = {name: read_value(value, unit) for name, (value, unit) in texts.items() if value}
    return {name: value for name, value in values.items() if value is not None}


def read_value(text: str, unit: str) -> Value | None:
    """``text`` in ns, bytes or as it is; None where it is no such value."""
    if unit == "text":
        return text.strip()
    if unit == "size":
        amount, _, name = text.strip().partition(" ")
        scale = _BYTES_OF_SIZE.get(name)
        return round(float(amount) * scale) if scale and _NUMBER.fullmatch(amount) else None
    if len(text) > 32 or not _NUMBER.fullmatch(text):
        return None
    number = float(text)
    if unit == "number":
        return number
    scale = {"ms": NS_PER_MS, "s": NS_PER_S, "billions": 10**9, "count": 1, **_BYTES_OF}[unit]
    return round(number * scale) if abs(number) < 1e15 else None
