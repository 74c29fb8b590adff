"""What was made of the program's own documents, for the next process: reading and checking them takes a tenth of a run.

Each object is pickled under a digest of all that it may depend on: every file of the program, of its rules and of its
tables by path, size and time of change, and the versions of Python and pydantic. The pickles lie where Python keeps its
compiled modules, and are trusted as these are. Nothing is kept where Python would keep nothing (``-B``, a directory
that cannot be written), and nothing of documents from elsewhere, as those of ``--rules``.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from threading import RLock
from typing import TypeVar

from three_walls.lib.resources import CHECKED_DIR, RULES_DIR, TABLES_DIR

T = TypeVar("T")
_PACKAGE = Path(__file__).resolve().parent.parent
_MAKING = RLock()
"""Traces are read in threads, and pydantic builds the model of a document in the thread that first uses it."""


def recall(name: str, content: bytes, make: Callable[[], T]) -> T:
    """What ``make`` gives, or gave an earlier process. ``name`` and ``content`` (of a file) stand for what is made."""
    path = CHECKED_DIR / f"{name}.pickle"
    digest = sha256(_program_digest() + content).digest()
    try:
        kept = path.read_bytes()
        if kept.startswith(digest):
            found: T = pickle.loads(memoryview(kept)[len(digest) :])
            return found
    except Exception:  # there is none, or a damaged one, which may raise anything
        pass
    with _MAKING:
        made = make()
        if not sys.dont_write_bytecode:
            with suppress(OSError):
                _write(path, digest + pickle.dumps(made, protocol=pickle.HIGHEST_PROTOCOL))
    return made


@cache
def _program_digest() -> bytes:
    files = sorted({file for folder in (_PACKAGE, RULES_DIR, TABLES_DIR) for file in _list_files(str(folder))})
    pydantic = find_spec("pydantic")  # not imported: most runs need it for nothing else
    assert pydantic is not None and pydantic.origin is not None
    version = Path(pydantic.origin).with_name("version.py").stat()
    return sha256(repr((sys.version, version.st_size, version.st_mtime_ns, files)).encode()).digest()


def _list_files(folder: str) -> Iterator[tuple[str, int, int]]:
    """Path, size and time of change of the code and the documents below ``folder``."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith((".py", ".yaml")):
                status = entry.stat()
                yield entry.path, status.st_size, status.st_mtime_ns
            elif entry.is_dir() and entry.name != "__pycache__":
                yield from _list_files(entry.path)


def _write(path: Path, content: bytes) -> None:
    """Writes the file as a whole or not at all, as several processes may do at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        part.write_bytes(content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
