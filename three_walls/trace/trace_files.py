"""Finds traces, and gives each as a plain SQLite file: unpacked, exported or put together from tables.

The given files are only read.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from three_walls.lib import limits
from three_walls.lib.errors import InputError
from three_walls.lib.files import is_directory, working_directory
from three_walls.lib.shell import quote_file
from three_walls.lib.threads import check_is_wanted, work_meanwhile
from three_walls.trace.report_export import REPORT_SUFFIX, describe_export, export_once, find_nsys
from three_walls.trace.run_request import EXPORTS
from three_walls.trace.table_directory import SUFFIXES, hash_tables, is_table_directory
from three_walls.trace.unpack import COMPRESSED_SUFFIXES, unpack

SQLITE_MAGIC = b"SQLite format 3\x00"
_MOST_NAMED = 3
"""Reports that a message names."""
_CHUNK_BYTES = 1 << 20
_UNPACKING_PREFIX = "three-walls-unpacked-"
_CHANGES = (("-wal", 32, "'PRAGMA wal_checkpoint(TRUNCATE)'"), ("-journal", 28, "'PRAGMA quick_check'"))
"""Suffix of a file with changes of a database, length of its header, and what writes them into it or undoes them."""


def find_traces(
    paths: list[Path], exports: Path = Path(EXPORTS), progress: Callable[[str], None] = lambda _: None
) -> list[Path]:
    """The traces that ``paths`` name, in that order; those in a directory are sorted by name.

    A trace is a file, or a directory of tables (``rank0_pqtdir``). A report (``rank0.nsys-rep``) is exported into
    ``exports``; ``progress`` is called with a few words then. What a directory holds of one capture in several forms is
    read once, see :func:`_traces_in`. Raises InputError for a path that does not exist, for a directory without traces,
    and for reports where there is no nsys.
    """
    found: list[Path] = []
    for path in paths:
        if is_directory(path):
            found.extend([path] if is_table_directory(path) else _traces_in(path, exports, progress))
        else:
            found.append(export_once(path, exports, progress) if _is_report(path) else path)
    return list(dict.fromkeys(found))


def holds_traces(directory: Path) -> bool:
    """Whether ``directory`` holds captures in any form, or is one itself."""
    return is_table_directory(directory) or bool(_captures_in(directory))


def find_unread(paths: list[Path]) -> list[tuple[Path, str]]:
    """Reports in the directories ``paths`` that :func:`find_traces` cannot take into account, and why.

    There is no nsys to export them, so an older export is read instead, or nothing.
    """
    unread = []
    for directory in paths:
        if not is_directory(directory) or is_table_directory(directory):
            continue
        reported = [(capture.report, capture) for capture in _captures_in(directory).values() if capture.report]
        for report, capture in reported if reported and find_nsys() is None else ():
            if capture.export is None:
                unread.append((report, "it was not exported and is left out"))
            elif capture.is_stale():
                unread.append((report, "it is newer than its export, which is read instead"))
    return unread


@dataclass(slots=True)
class _Capture:
    """What a directory holds of one capture."""

    export: Path | None = None
    report: Path | None = None

    def is_stale(self) -> bool:
        """Whether the report was written after its export."""
        if self.export is None or self.report is None:
            return self.export is None
        return self.export.stat().st_mtime_ns < self.report.stat().st_mtime_ns


def _is_report(path: Path) -> bool:
    if path.suffix != REPORT_SUFFIX:
        return False
    with suppress(OSError), path.open("rb") as stream:
        return stream.read(len(SQLITE_MAGIC)) != SQLITE_MAGIC
    return False


def _traces_in(directory: Path, exports: Path, progress: Callable[[str], None]) -> list[Path]:
    """The captures in ``directory``, each in one form, sorted by name.

    Of a capture, the plain export is read, else the compressed one, else the directory of tables, else its report. A
    report that is newer than its export is exported again; without an nsys the export is read as it is. Raises
    InputError where there is nothing to read.
    """
    captures = _captures_in(directory)
    has_nsys = any(capture.report is not None for capture in captures.values()) and find_nsys() is not None
    traces = []
    for name in sorted(captures):
        capture = captures[name]
        if capture.report is not None and has_nsys and capture.is_stale():
            traces.append(export_once(capture.report, exports, progress))
        elif capture.export is not None:
            traces.append(capture.export)
    if traces:
        return traces
    reports = [capture.report for _, capture in sorted(captures.items()) if capture.report is not None]
    if reports:
        raise InputError(
            f"{directory}: expected exports, found {len(reports)} reports that were not exported ({_name(reports)}), "
            f"and no nsys on PATH to export them; {describe_export(reports)}"
        )
    within = sorted(path for path in directory.iterdir() if path.is_dir())
    raise InputError(
        f"{directory}: expected exports (*.sqlite, *.sqlite.xz, *.sqlite.zst, *_pqtdir) or reports (*{REPORT_SUFFIX}) "
        f"in this directory, found none{f', and these directories: {_name(within)}' if within else ''}"
    )


def _name(paths: Sequence[Path]) -> str:
    return ", ".join(path.name for path in paths[:_MOST_NAMED]) + (", ..." if paths[_MOST_NAMED:] else "")


def _captures_in(directory: Path) -> dict[str, _Capture]:
    """What ``directory`` holds, by the name that a plain export has or would have."""
    captures: dict[str, _Capture] = {}
    for path in sorted(directory.iterdir()):
        plain = path.with_suffix("") if path.suffix in COMPRESSED_SUFFIXES else path
        if plain.suffix == ".sqlite" and path.is_file():
            capture = captures.setdefault(plain.name, _Capture())
            if capture.export is None or path == plain or capture.export.is_dir():
                capture.export = path
        elif path.suffix == REPORT_SUFFIX and path.is_file():
            captures.setdefault(path.with_suffix(".sqlite").name, _Capture()).report = path
        elif path.name.endswith(SUFFIXES) and path.is_dir() and is_table_directory(path):
            capture = captures.setdefault(plain_name(path), _Capture())
            capture.export = capture.export or path
    return captures


def plain_name(path: Path) -> str:
    """The name of the plain export of a trace: without the suffix of its compression, or of a directory of tables."""
    if path.suffix in COMPRESSED_SUFFIXES:
        return path.with_suffix("").name
    for suffix in SUFFIXES:
        if path.name.endswith(suffix):
            return f"{path.name.removesuffix(suffix)}.sqlite"
    return path.name


def hash_file(path: Path) -> str:
    """SHA-256 of the trace as given (compressed if it is), in hex. Raises InputError if it cannot be read."""
    digest = hashlib.sha256()
    try:
        if path.is_dir():
            return hash_tables(path)
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                check_is_wanted()
                digest.update(chunk)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class _KeptCopies:
    """Temporary copies that are used again, by the threads that read traces."""

    until: ExitStack
    """Removes them."""
    copies: dict[Path, Path]
    """By the path of the trace."""
    lock: threading.Lock

    def keep(self, path: Path, copy: Path, in_use: ExitStack) -> None:
        """Keeps ``copy`` of the trace at ``path``, which ``in_use`` would remove, if there is room."""
        with self.lock:
            if self._has_room_for(copy):
                self.until.push(in_use.pop_all())
                self.copies[path] = copy

    def _has_room_for(self, copy: Path) -> bool:
        """Whether ``copy`` fits among the others, and another one as large onto the disk while it is kept."""
        copy_bytes = copy.stat().st_size
        kept_bytes = sum(other.stat().st_size for other in self.copies.values())
        free_bytes = shutil.disk_usage(copy.parent).free * limits.MOST_UNPACKED_SHARE_OF_FREE_DISK
        is_little = not self.copies or kept_bytes + copy_bytes <= limits.MOST_KEPT_BYTES
        return is_little and copy_bytes <= free_bytes


_kept: ContextVar[_KeptCopies | None] = ContextVar("_kept", default=None)


@contextmanager
def keep_unpacked() -> Iterator[None]:
    """Keeps the temporary copies of traces until the end of the block, so that each is unpacked once."""
    with ExitStack() as until:
        before = _kept.set(_KeptCopies(until, {}, threading.Lock()))
        try:
            yield
        finally:
            _kept.reset(before)


@contextmanager
def plain_sqlite(path: Path) -> Iterator[Path]:
    """A path to the plain database. If ``path`` is compressed or a directory of tables, this is a temporary copy.

    Where copies are kept (:func:`keep_unpacked`), it is made once.

    Raises InputError if the file cannot be read, is not SQLite or not finished, or if its compression is damaged.
    """
    is_tables = path.is_dir()
    if path.suffix not in COMPRESSED_SUFFIXES and not is_tables:
        _check_magic(path, path)
        _check_is_finished(path)
        yield path
        return
    unpacked = _kept.get()
    if unpacked is not None and path in unpacked.copies:
        yield unpacked.copies[path]
        return
    with ExitStack() as in_use:
        directory = in_use.enter_context(working_directory(_UNPACKING_PREFIX, Path(tempfile.gettempdir())))
        plain = directory / plain_name(path)
        if is_tables:
            from three_walls.trace.tables_to_sqlite import write_sqlite  # imports polars, finding traces does not

            # Not in the main thread, in which ADBC takes Ctrl-C itself and may lose it.
            with work_meanwhile(partial(write_sqlite, path, plain)) as wait:
                wait()
        else:
            unpack_sqlite(path, plain)
        if unpacked is not None:
            unpacked.keep(path, plain, in_use)
        yield plain


def unpack_sqlite(path: Path, plain: Path) -> None:
    """Unpacks the compressed export ``path`` into the file ``plain``, within ``limits``.

    Raises InputError if it cannot be read, is damaged, or is not SQLite.
    """
    unpack(path, plain)
    _check_magic(plain, path)


def _check_is_finished(path: Path) -> None:
    """Raises InputError if SQLite keeps changes of the database in a file next to it, which are never read here."""
    for suffix, header_bytes, remedy in _CHANGES:
        other = path.with_name(path.name + suffix)
        if os.path.isfile(other):  # noqa: PTH113 - Path.is_file raises where no file can have so long a name
            with other.open("rb") as stream:
                head = stream.read(header_bytes + 1)
            if len(head) > header_bytes and any(head):
                raise InputError(
                    f"{path}: expected a finished export, found {other.name} next to it with changes that are not in "
                    f"it; export again, or copy both files and run: sqlite3 COPY.sqlite {remedy}"
                )


def _check_magic(plain: Path, path: Path) -> None:
    try:
        with plain.open("rb") as stream:
            head = stream.read(len(SQLITE_MAGIC))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    if head == SQLITE_MAGIC:
        return
    if path.suffix == ".nsys-rep":
        raise InputError(
            f"{path}: expected a SQLite export, found an Nsight report; "
            f"run: nsys export --type sqlite {quote_file(path.name)}"
        )
    content = "an empty file" if not head else "something else"
    raise InputError(f"{path}: expected a SQLite export of Nsight Systems (nsys export --type sqlite), found {content}")
