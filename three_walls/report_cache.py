"""Reports of earlier runs of ``analyze``, kept beside the files of the report, so that none is made twice.

They are in ``.three-walls-cache/`` within the output directory, a file each, which holds what report.json holds. The
name of the file is a digest of all that the report depends on: the contents of the traces, logs, configuration,
snapshot and own rules, the other options, and the program with its tables and rules. What cannot be read is analyzed
again.

Hashing a trace takes a second per 250 MB, so the digest of a file is remembered together with what the file system
states of it, as git's index does. A file that was changed shortly before it was hashed is hashed again next time: a
second change within the resolution of the times would not show.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from three_walls.inputs.nsys.source import find_traces, find_unread, hash_file
from three_walls.inputs.nsys.table_directory import list_tables
from three_walls.model.errors import ThreeWallsError
from three_walls.model.report import Report
from three_walls.report.json_report import parse_report
from three_walls.resources import RULES_DIR, TABLES_DIR
from three_walls.version import VERSION, find_version

if TYPE_CHECKING:
    from three_walls.inputs.read_inputs import Progress

FOLDER = ".three-walls-cache"
_FORMAT = 1
_MOST_REPORTS = 8
_MOST_BYTES = 64 << 20
_MOST_REPORT_BYTES = 512 << 20
"""Of one report, unpacked; those of real runs have up to 20 MiB."""
_MOST_REMEMBERED = 4096
_RESOLUTION_NS = 2_000_000_000
"""Of the times of files, on the coarsest file systems."""
_LEFTOVER_AFTER_NS = 3600 * 10**9
_CHANGES = ("-wal", "-journal")
"""Suffixes of the files next to a database that hold changes of it: with some it is no finished export."""


@dataclass(frozen=True, slots=True)
class AnalysisRequest:
    """What ``pipeline.analyze`` is given, apart from what does not change its report."""

    traces: tuple[Path, ...]
    logs: tuple[Path, ...]
    config: Path | None
    settings: tuple[str, ...]
    memory_snapshot: Path | None
    step_range: str | None
    bridge_version: str | None
    rules: Path | None
    allowed: tuple[str, ...]
    exports: Path


@dataclass(frozen=True, slots=True)
class _State:
    """What the file system states of a file or of a directory of tables."""

    identity: str
    bytes: int
    changed_ns: int


def open_cache(request: AnalysisRequest, out_dir: Path, progress: Progress) -> CachedReport | None:
    """The place of the analysis in the cache of ``out_dir``; None where an input cannot be read, as analyzing shows."""
    try:
        return CachedReport(request, out_dir, progress)
    except (ThreeWallsError, OSError):
        return None


class CachedReport:
    """The report that one analysis has in the cache of its output directory, or will have."""

    def __init__(self, request: AnalysisRequest, out_dir: Path, progress: Progress) -> None:
        """Finds the inputs and hashes all but the traces. Raises the errors of reading them, and OSError."""
        self._folder = out_dir / FOLDER
        self.json_text = ""
        """What report.json holds of the report, once it was found."""
        self._remembered = _read_remembered(self._folder)
        self._began_ns = time.time_ns()
        self._traces = find_traces(list(request.traces), request.exports, progress)
        logs = _find_logs(request.logs) if request.logs else {}
        named = [path for path in (request.config, request.memory_snapshot) if path is not None]
        rules = sorted([*request.rules.glob("*.yaml"), *request.rules.glob("*/*.yaml")]) if request.rules else []
        self._states = {path: _look_at(path) for path in (*self._traces, *logs, *named, *rules)}
        self._outline = _digest(
            [
                *(_FORMAT, _describe_program()),
                # No report has the directory of a file, so one that was moved is the same file.
                [(path.name, self._states[path].bytes, _list_changes(path)) for path in self._traces],
                [(path.name, reason) for path, reason in find_unread(list(request.traces))],
                [(path.name, is_named, self._hash(path)) for path, is_named in logs.items()],
                [path and (path.name, self._hash(path)) for path in (request.config, request.memory_snapshot)],
                [str(request.rules), *((str(path), self._hash(path)) for path in rules)],
                [request.settings, request.step_range, request.bridge_version, sorted(request.allowed)],
            ]
        )

    def find(self) -> Report | None:
        """The report, or None. Traces are hashed only where there is a report of their names, sizes and the options."""
        candidates = {path.name: path for path in self._folder.glob(f"{self._outline}-*")}
        if not candidates or self._folder.is_symlink():
            return None
        try:
            entry = candidates.get(self._name_entry([self._hash(trace) for trace in self._traces]))
            if entry is None:
                return None
            unpacker = zlib.decompressobj()
            text = unpacker.decompress(entry.read_bytes(), _MOST_REPORT_BYTES).decode()
            if not unpacker.eof:
                return None
            report = parse_report(text, entry)
        except (OSError, ValueError, zlib.error, ThreeWallsError):  # it is written again
            return None
        self.json_text = text
        return report

    def keep(self, report: Report, json_text: str) -> None:
        """Writes ``report`` as the newest, unless an input changed meanwhile or the directory cannot be written.

        ``json_text``: what report.json holds of it.
        """
        names = [trace.path_name for trace in report.inputs]
        digests = [trace.sha256 for trace in report.inputs]
        with suppress(OSError):
            is_unchanged = all(_look_at(path) == state for path, state in self._states.items())
            if not is_unchanged or names != [path.name for path in self._traces] or self._folder.is_symlink():
                return
            for path, digest in zip(self._traces, digests, strict=True):
                self._remember(path, digest)
            self._folder.mkdir(exist_ok=True)
            entry = self._folder / self._name_entry(digests)
            if self.json_text:
                os.utime(entry)
            else:
                _write(entry, zlib.compress(json_text.encode("utf-8", errors="backslashreplace"), 1))
            newest = dict([*self._remembered.items()][-_MOST_REMEMBERED:])
            _write(self._folder / "files.json", json.dumps(newest).encode())
            self._remove_old()

    def _name_entry(self, digests: list[str]) -> str:
        return f"{self._outline}-{_digest(digests)}.report"

    def _hash(self, path: Path) -> str:
        state = self._states[path]
        identity, digest = self._remembered.get(_digest(str(path.resolve())), ("", ""))
        if identity != state.identity:
            digest = hash_file(path)
            if _look_at(path) == state:
                self._remember(path, digest)
        return digest

    def _remember(self, path: Path, digest: str) -> None:
        state = self._states[path]
        if state.changed_ns + _RESOLUTION_NS < self._began_ns:
            # By a digest of its path: no directory leaves the machine with the report.
            self._remembered[_digest(str(path.resolve()))] = (state.identity, digest)

    def _remove_old(self) -> None:
        """Removes all but the newest reports, and what a run that was killed left of one."""
        entries = {path: path.stat() for path in self._folder.glob("*.report")}
        bytes_so_far = 0
        for order, path in enumerate(sorted(entries, key=lambda path: (-entries[path].st_mtime_ns, path.name))):
            bytes_so_far += entries[path].st_size
            if order >= _MOST_REPORTS or (order and bytes_so_far > _MOST_BYTES):
                path.unlink(missing_ok=True)
        for path in self._folder.glob("*.part"):
            if path.stat().st_mtime_ns < self._began_ns - _LEFTOVER_AFTER_NS:
                path.unlink(missing_ok=True)


def _find_logs(paths: tuple[Path, ...]) -> dict[Path, bool]:
    """The logs, and whether each was named itself."""
    from three_walls.inputs.log.reader import find_logs  # imports polars, and most runs with a report have no log

    return {log.path: log.is_named for log in find_logs(paths)}


def _read_remembered(folder: Path) -> dict[str, tuple[str, str]]:
    """Digest of a path -> what the file system stated of the file, and its digest; empty where nothing can be read."""
    try:
        found = json.loads((folder / "files.json").read_text(encoding="utf-8"))
        return {str(path): (str(identity), str(digest)) for path, (identity, digest) in found.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _look_at(path: Path) -> _State:
    """The state of a file, or of the tables of a directory. Raises OSError."""
    files = list_tables(path) if path.is_dir() else [path]
    stats = [(file.name, file.stat()) for file in files]
    lines = [
        f"{name} {stat.st_dev} {stat.st_ino} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}"
        for name, stat in stats
    ]
    return _State(
        identity="\n".join(lines),
        bytes=sum(stat.st_size for _, stat in stats),
        changed_ns=max((max(stat.st_mtime_ns, stat.st_ctime_ns) for _, stat in stats), default=0),
    )


def _list_changes(trace: Path) -> list[int]:
    """Sizes of the files with changes next to ``trace``."""
    paths = [trace.with_name(trace.name + suffix) for suffix in _CHANGES]
    return [path.stat().st_size if path.is_file() else 0 for path in paths]


def _describe_program() -> list[object]:
    """The version of the program, and its files as they are: a checkout may have been edited since."""
    found: list[object] = [VERSION, platform.python_version(), find_version("polars")]
    for directory in (Path(__file__).parent, RULES_DIR, TABLES_DIR):
        found.extend(sorted(_list_sources(directory)))
    return found


def _list_sources(directory: Path) -> Iterator[tuple[str, int, int]]:
    for folder, folders, names in os.walk(directory):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            stat = os.stat(os.path.join(folder, name))  # noqa: PTH116, PTH118 - Path takes three times as long
            yield f"{folder}/{name}", stat.st_size, stat.st_mtime_ns


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode("utf-8", errors="backslashreplace")).hexdigest()[:32]


def _write(path: Path, content: bytes) -> None:
    """Writes the file whole or not at all, whatever other runs write at the same time. Raises OSError."""
    part = path.with_name(f"{path.name}.{os.urandom(8).hex()}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
