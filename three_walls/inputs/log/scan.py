"""Finds the few lines of a huge text that are worth parsing: those that hold an anchor."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import polars as pl

MOST_LINE_BYTES = 16 * 1024
"""A longer line is none of ours: it is skipped, whatever it holds."""
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

    While ``wants_every_line`` says so, every line. Colours and other codes for terminals are taken out. Memory is that
    of one chunk, whatever the length of a line.
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
        if len(rest) > MOST_LINE_BYTES:
            rest, is_overlong = b"", True
    yield from _lines_of(rest, anchors, wants_every_line)


def _lines_of(text: bytes, anchors: Sequence[bytes], wants_every_line: Callable[[], bool]) -> Iterator[FoundLine]:
    if b"\x1b" in text:
        text = _TERMINAL_CODE.sub(b"", text)
    starts = _anchored(text, anchors)
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
        if position < end <= position + MOST_LINE_BYTES:
            is_anchored = place < len(starts) and starts[place] == position
            yield FoundLine(text[position:end], is_anchored, is_ended=found >= 0)
        position = end + 1


def _anchored(text: bytes, anchors: Sequence[bytes]) -> list[int]:
    """Where the lines begin that hold an anchor, in order."""
    # One pass for all anchors, three times as fast as one search for each. It takes text, in which a byte must be a
    # character: what is no ASCII is in no anchor.
    plain = text if text.isascii() else text.translate(_AS_ASCII)
    hits = pl.Series([plain.decode("ascii")]).str.find_many([anchor.decode("ascii") for anchor in anchors])
    return sorted({text.rfind(b"\n", 0, hit) + 1 for hit in hits[0]})
