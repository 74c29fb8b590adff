"""Looks through the bytes of the finished file for what must not be in it."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from three_walls.scrub.secrets import Secrets
from three_walls.scrub.traits import FEW_BYTES


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
    wanted = sorted(secrets.strict) + sorted(value for value in loose if value not in by_chance)
    if not wanted or path.stat().st_size == 0:
        return Scan(len(wanted), 0)
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        leaked = sum(any(data.find(form) >= 0 for form in _forms(value)) for value in wanted)
    return Scan(len(wanted), leaked)


def _forms(value: str) -> tuple[bytes, ...]:
    utf8 = value.encode("utf-8", "replace")
    return (utf8, *(value.encode(code, "replace") for code in ("utf-16-le", "utf-16-be")))
