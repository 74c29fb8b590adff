"""Looks through the bytes of the finished file for what must not be in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from three_walls.captures.scrub.secrets import Secrets
from three_walls.captures.scrub.traits import FEW_BYTES

_PIECE_BYTES = 1 << 18
_PIECES = 32
_CODES = ("utf-8", "utf-16-le", "utf-16-be")


@dataclass(frozen=True, slots=True)
class Scan:
    """``searched``: how many values were looked for; ``leaked``: how many of them are in the file."""

    searched: int
    leaked: int


def scan_for_leaks(path: Path, secrets: Secrets, kept: Iterable[str]) -> Scan:
    """Searches ``path`` (not compressed) for every value of ``secrets``, in UTF-8 and UTF-16 as SQLite may store it.

    A loose value that one of the ``kept`` texts holds is there by chance, not left over.
    """
    by_chance = "\n".join(sorted(kept))
    loose = (secrets.loose | {name for name in secrets.identities if len(name) >= FEW_BYTES}) - secrets.strict
    wanted = secrets.strict | {value for value in loose if value not in by_chance}
    return Scan(len(wanted), len(_found(path, wanted)))


def _found(path: Path, wanted: set[str]) -> set[str]:
    """Which of ``wanted`` are in the file. One pass for all: there can be tens of thousands."""
    forms = {value.encode(code, "replace").decode("latin-1"): value for value in sorted(wanted) for code in _CODES}
    if not forms:
        return set()
    found: set[str] = set()
    for slices in _read(path, overlap=max(map(len, forms)) - 1):
        texts = pl.Series(slices)
        hits = texts.filter(texts.str.contains_any(list(forms)))
        for matches in hits.str.extract_many(list(forms), overlapping=True).to_list():
            found |= {forms[match] for match in matches}
    return found


def _read(path: Path, overlap: int) -> Iterator[list[str]]:
    """The file's bytes as texts, a character per byte, some pieces at a time; pieces overlap by ``overlap`` bytes."""
    slices: list[str] = []
    tail = b""
    with path.open("rb") as stream:
        while block := stream.read(_PIECE_BYTES):
            slices.append((tail + block).decode("latin-1"))
            tail = (tail + block)[-overlap:] if overlap else b""
            if len(slices) == _PIECES:
                yield slices
                slices = []
    if slices:
        yield slices
