"""Shrinks a failing case: first its files and options, then the list of changes, then rows, lines or bytes."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TypeVar

from tests.fuzz.campaign import Result
from tests.fuzz.case import Case, Change, GivenFile
from tests.fuzz.seeds import literal_seed

T = TypeVar("T")
MOST_SECONDS = 120.0
"""For one failure; a case that hangs takes its whole time limit in every trial."""
_MOST_BYTES_PIECEWISE = 20_000
"""Longer files are shrunk by lines or rows alone."""


def minimize(failure: Result, run: Callable[[Case], Result]) -> Case:
    """The smallest case found that breaks the same law; its files no longer depend on how seeds are made."""
    search = _Search(failure, run)
    case = search.case
    for place in range(len(case.command) - 1, 1, -1):
        search.accept(replace(search.case, command=(*search.case.command[:place], *search.case.command[place + 1 :])))
    for file in case.files:
        search.accept(
            replace(search.case, files=tuple(other for other in search.case.files if other.name != file.name))
        )
    for file in search.case.files:
        search.shrink(file.name, _split_changes(file.changes), _of_changes)
    for file in search.case.files:
        search.make_literal(file.name)
    for file in search.case.files:
        _shrink_content(search, file)
    return replace(search.case, found=search.found)


class _Search:
    def __init__(self, failure: Result, run: Callable[[Case], Result]) -> None:
        self.case, self.found, self.law = failure.case, failure.broken[0], failure.law
        self._run, self._end = run, time.monotonic() + MOST_SECONDS

    def accept(self, smaller: Case) -> bool:
        """Whether ``smaller`` breaks the same law; then it is the case from here on."""
        if time.monotonic() > self._end:
            return False
        result = self._run(smaller)
        if not result.broken or result.law != self.law:
            return False
        self.case, self.found = smaller, result.broken[0]
        return True

    def replace_file(self, file: GivenFile) -> Case:
        """The case with ``file`` in place of the one of its name."""
        files = tuple(file if other.name == file.name else other for other in self.case.files)
        return replace(self.case, files=files)

    def make_literal(self, name: str) -> None:
        """Replaces the seed and changes of a file by what they make."""
        file = next(file for file in self.case.files if file.name == name)
        self.case = self.replace_file(file.as_literal())

    def shrink(self, name: str, parts: Sequence[T], make: Callable[[GivenFile, Sequence[T]], GivenFile]) -> None:
        """Leaves out parts of a file, half of them at first and then fewer, as long as the case fails."""
        file = next(file for file in self.case.files if file.name == name)
        size = len(parts)
        while size >= 1:
            at = 0
            while at < len(parts):
                fewer = [*parts[:at], *parts[at + size :]]
                if self.accept(self.replace_file(make(file, fewer))):
                    parts = fewer
                else:
                    at += size
            size //= 2


def _split_changes(changes: Sequence[Change]) -> list[Change]:
    """Changes one by one: the statements of a list of statements too."""
    return [part for change in changes for part in _statements(change)]


def _statements(change: Change) -> Iterator[Change]:
    if change[0] == "sql":
        yield from (["sql", [statement]] for statement in change[1])
    else:
        yield change


def _of_changes(file: GivenFile, changes: Sequence[Change]) -> GivenFile:
    return replace(file, changes=tuple(changes))


def _shrink_content(search: _Search, file: GivenFile) -> None:
    if file.changes:  # no regular file
        return
    content = file.content()
    if content.startswith(b"SQLite format 3\x00"):
        _shrink_export(search, file)
    else:
        search.shrink(file.name, content.splitlines(keepends=True), lambda of, lines: _of_bytes(of, b"".join(lines)))
        content = next(other for other in search.case.files if other.name == file.name).content()
        if len(content) <= _MOST_BYTES_PIECEWISE:
            pieces = [content[at : at + 1] for at in range(len(content))]
            search.shrink(file.name, pieces, lambda of, parts: _of_bytes(of, b"".join(parts)))


def _of_bytes(file: GivenFile, content: bytes) -> GivenFile:
    return replace(file, seed=literal_seed(content), changes=())


def _shrink_export(search: _Search, file: GivenFile) -> None:
    """Leaves out tables, then rows; an export that SQLite itself cannot read stays as it is."""
    content = file.content()
    with closing(sqlite3.connect(":memory:")) as database:
        try:
            database.deserialize(content)
            tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            last_rows = {table: database.execute(f'SELECT max(rowid) FROM "{table}"').fetchone()[0] for table in tables}
        except (sqlite3.Error, UnicodeDecodeError):
            return

    def without(statements: list[str]) -> bool:
        current = next(other for other in search.case.files if other.name == file.name)
        smaller = replace(current, changes=(["sql", [*statements, "VACUUM"]],)).as_literal()
        return search.accept(search.replace_file(smaller))

    for table in tables:
        if without([f'DROP TABLE "{table}"']):
            continue
        first, last = 1, last_rows[table] or 0
        while first < last:  # halves, from either end, as long as one may go
            middle = (first + last) // 2
            if without([f'DELETE FROM "{table}" WHERE rowid > {middle}']):
                last = middle
            elif without([f'DELETE FROM "{table}" WHERE rowid <= {middle}']):
                first = middle + 1
            else:
                break
