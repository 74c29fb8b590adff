"""One line of a log -> where it came from, what it says. Decides by ``tables/log-lines.yaml`` alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from three_walls.model.units import NS_PER_MS, NS_PER_S
from three_walls.tables.log_lines import LineRow, LogGrammar, Prefix

Value = int | float | str

_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?([eE][-+]?\d+)?")
_BYTES_OF = {"MiB": 2**20, "GB": 10**9}
_BYTES_OF_SIZE = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "bytes": 1}


class SourceLine(NamedTuple):
    """A line's text without its prefixes. ``origin``: those that name the process that wrote it."""

    origin: str
    text: str
    stamped: str
    """The text with everything but the origin: time stamps stay."""
    is_ended: bool = True
    """Whether the file goes on behind it: else it may be cut anywhere."""


class Statement(NamedTuple):
    """What one row of the grammar read in a line. ``text`` is the part that its pattern matched."""

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
    """What ``line`` says, and the kinds of which it begins a line without being a whole one (torn)."""
    said: list[Statement] = []
    torn: list[str] = []
    for row in [row for row in grammar.lines if row.anchor in raw]:
        match = row.pattern.search(line.stamped)
        if not match:
            continue
        values = _values(row, match, line.stamped)
        if row.required <= values.keys() and (line.is_ended or not row.ends_line):
            said.append(Statement(row.kind, values, match[0]))
        else:
            torn.append(row.kind)
    return said, torn


def _values(row: LineRow, match: re.Match[str], text: str) -> dict[str, Value]:
    groups = match.groupdict()
    texts: dict[str, tuple[str | None, str]] = {name: (groups.get(name), unit) for name, unit in row.values.items()}
    if row.fields:
        listed_fields = (groups.get("fields") or "").split("|")
        for listed in listed_fields[:-1] if row.is_closed else listed_fields:
            label, _, said = listed.partition(":")
            if label.strip() in row.names_by_label:
                name, unit = row.names_by_label[label.strip()]
                texts[name] = (said.strip(), unit)
    for name, part in row.parts.items():
        found = part.pattern.search(text)
        texts[name] = (next((group for group in found.groups() if group), None) if found else None, part.unit)
    read = {name: read_value(said, unit) for name, (said, unit) in texts.items() if said}
    return {name: value for name, value in read.items() if value is not None}


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
