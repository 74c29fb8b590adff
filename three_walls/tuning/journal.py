"""The journal of a tuning, one JSON object a line: all that page, results and ``--resume`` are made from."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from three_walls.lib.errors import InputError, UsageError

NAME = "journal.jsonl"
_ANY = frozenset({"kind"})
_FIELDS = {
    "run": frozenset(
        {
            *("run", "changed", "name", "why", "words", "environment", "set", "predicted"),
            *("step_s", "error", "failure", "steps_ms", "wall_s", "quiet_s"),
        }
    ),
    "profile": frozenset({"trace", "wall_s"}),
}
"""What a line of a kind has at least."""
_WAIT_S = 120.0
"""How long the ranks of a killed tuning may take to end: its supervisor holds the lock until then."""


@contextmanager
def locked(out: Path, say: Callable[[str], None] = lambda _: None) -> Iterator[int]:
    """The lock of the directory as a descriptor. ``say``: called with a line if that takes a while.

    Raises UsageError where another process tunes there and does not end.
    """
    out.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(out / "lock", os.O_CREAT | os.O_RDWR, 0o644)
    try:
        until_s = time.monotonic() + _WAIT_S
        for tries in itertools.count():
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > until_s:
                    raise UsageError(f"{out}: another tuning runs there; give another --out") from error
                if not tries:
                    say(f"another tuning runs in {out}, or its ranks still end: waiting for {_WAIT_S:.0f} s at most")
                time.sleep(0.2)
        yield descriptor
    finally:
        os.close(descriptor)


def append(out: Path, line: Mapping[str, Any]) -> None:
    """Adds a line. It is on the disk when this returns, whole or not at all."""
    path = out / NAME
    end = len(_whole(path))
    try:
        with path.open("ab") as file:
            file.truncate(end)  # what a killed process left of a line
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = error.filename or str(path)  # which a full disk does not name
        raise


def read(out: Path) -> list[dict[str, Any]]:
    """The lines. Raises InputError for a file that is no journal, or one that another version wrote."""
    try:
        lines = [json.loads(line) for line in _whole(out / NAME).splitlines()]
    except ValueError:
        lines = [None]
    if not all(isinstance(line, dict) and _FIELDS.get(str(line.get("kind")), _ANY) <= line.keys() for line in lines):
        raise InputError(f"{out / NAME}: expected a journal of this version's three-walls tune, found something else")
    return lines


def _whole(path: Path) -> bytes:
    content = path.read_bytes() if path.exists() else b""
    return content[: content.rfind(b"\n") + 1]
