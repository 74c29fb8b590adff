"""One Nsight Systems export, opened read-only: which tables and columns it has, and their rows.

Tables and columns are probed, never assumed from a version: the format changes without notice, and a table without
events does not exist.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, repeat
from pathlib import Path
from types import TracebackType
from typing import Any

import adbc_driver_manager
import adbc_driver_sqlite.dbapi as adbc
import polars as pl
from adbc_driver_sqlite import StatementOptions

from three_walls.lib import limits
from three_walls.lib.errors import InputError
from three_walls.lib.threads import check_is_wanted
from three_walls.trace.schemas import AnyTable
from three_walls.trace.spans import Span, are_within, condition_of

_BROKEN = "expected a complete SQLite export of Nsight Systems, found a damaged database"
_LEAST_ROW_BYTES = 6
"""Of a row in an SQLite file: a pointer to its cell, and a cell of four bytes."""
_STEPS_BETWEEN_CHECKS = 100_000
_TEXTS_AT_ONCE = 10_000
_ROWS_AT_ONCE = 1 << 16
_ROWS_OF_BATCH = 1 << 14
"""Rows that the driver hands over together. By default these are 1,024, and columns in 64 pieces take polars a third
longer; where a part is one piece, polars keeps the driver's blocks instead of a copy, which takes 50 MB more."""
_START = "start"
"""The column with the time of a row's event."""
_ROW_NUMBER = "rowid"
"""SQLite's number of a row, unless a column has this name."""
_WORD = re.compile(r"\w+")

EXPORT_METADATA = ("META_DATA_EXPORT", "EXPORT_META_DATA")
"""Tables of what exported the report, and when: the second name is that of Nsight Systems before 2023."""


class NsysExport:
    """Read-only view of an export. Use as a context manager.

    Small tables are read with :mod:`sqlite3`, bulk tables with ADBC, which hands whole columns to polars
    (docs/decisions/0002 has the measurement). Both open the file with ``mode=ro&immutable=1``: they take no lock, write
    no journal and no index, and work on a read-only file system.

    SQLite checks neither that a TEXT is UTF-8 nor that a column holds what its declaration states, so texts are read as
    bytes. Nor does it notice a damaged tree of pages that leads to the same page again and again, level upon level: so
    no query takes more rows or steps than a file of this size explains.
    """

    def __init__(self, plain: Path, shown_as: Path, spans: Sequence[Span] = ()) -> None:
        """``spans``: bulk tables then hold what starts in one of them alone, unless asked for all time."""
        self.shown_as = shown_as
        self._spans = spans
        file_bytes = plain.stat().st_size
        self._most_rows = file_bytes // _LEAST_ROW_BYTES
        self._most_checks = max(file_bytes * limits.MOST_SQLITE_STEPS_PER_BYTE // _STEPS_BETWEEN_CHECKS, 1)
        # A percent sign or question mark in a path must not be read as part of the URI.
        self._uri = f"{plain.resolve().as_uri()}?mode=ro&immutable=1"
        self.columns: dict[str, tuple[str, ...]] = {}
        self._bulk: adbc.Connection | None = None  # opened with the first bulk table
        with self._errors_explained():
            self._small = sqlite3.connect(self._uri, uri=True)
            # TEXT columns hold bytes that are no UTF-8: GpuInfo of Nsight 2022.4 is a serialized message, and
            # environments of other processes are in any encoding.
            self._small.text_factory = decode_text
        try:
            encoding = str(self.rows("PRAGMA encoding")[0][0])
            if encoding != "UTF-8":  # texts are read as bytes
                raise InputError(f"{shown_as}: expected texts in UTF-8, as nsys writes them, found {encoding}")
            self.columns = self._probe()
        except BaseException:  # an interrupt as well: the caller has nothing to close yet
            self._small.close()
            raise

    def __enter__(self) -> NsysExport:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._small.close()
        if self._bulk is not None:
            with suppress(adbc_driver_manager.Error):  # nothing is lost: it was only read from
                self._bulk.close()

    @contextmanager
    def _errors_explained(self) -> Iterator[None]:
        try:
            yield
        # polars raises errors of its own for damage that shows only while rows are fetched. sqlite3 decodes its error
        # messages strictly, and these quote the schema.
        except (sqlite3.Error, adbc_driver_manager.Error, pl.exceptions.PolarsError, UnicodeError) as error:
            raise InputError(f"{self.shown_as}: {_BROKEN} ({_first_line(error)})") from error

    def _probe(self) -> dict[str, tuple[str, ...]]:
        # SQLite itself joins the names, which may be no UTF-8 and hold any quotes.
        names = (
            "SELECT m.name, c.name FROM sqlite_master m JOIN pragma_table_info(m.name) c "
            "WHERE m.type = 'table' ORDER BY m.rowid, c.cid"
        )
        columns: dict[str, tuple[str, ...]] = {}
        for table, column in self.rows(names):
            columns[table] = (*columns.get(table, ()), column)
        return columns

    def has(self, table: str, *columns: str) -> bool:
        """Whether ``table`` exists and has all of ``columns``."""
        return table in self.columns and set(columns) <= set(self.columns[table])

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows of a small query. Raises InputError if the database is damaged."""
        with self._errors_explained():
            return self._execute(sql, parameters).fetchall()

    def _execute(self, sql: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Begins a small query, which SQLite interrupts after more steps than the size of the file explains."""
        # A function in C: sqlite3 takes an error in one of Python, as Ctrl-C raises it there, for a mere interruption.
        is_stuck = chain(repeat(0, self._most_checks), repeat(1)).__next__
        self._small.set_progress_handler(is_stuck, _STEPS_BETWEEN_CHECKS)
        return self._small.execute(sql, parameters)

    def pairs(self, table: str, key: str = "name", value: str = "value") -> list[tuple[str, str]]:
        """The rows of a name/value table as texts, in stored order; empty where the table is missing."""
        if not self.has(table, key, value):
            return []
        rows = self.rows(f'SELECT CAST("{key}" AS TEXT), CAST("{value}" AS TEXT) FROM "{table}"')
        return [(name or "", text) for name, text in rows if text is not None]

    def text_of(self, table: str) -> tuple[str, str]:
        """For queries of ``table`` as e: the text of a row, and the join that it takes.

        A text is in the row itself or in StringIds.
        """
        text = "e.text" if "text" in self.columns[table] else "NULL"
        if "textId" not in self.columns[table] or not self.has("StringIds", "id", "value"):
            return text, ""
        return f"coalesce({text}, s.value)", "LEFT JOIN StringIds s ON s.id = e.textId"

    def frame(
        self,
        table: str,
        columns: Mapping[str, str],
        where: str = "",
        text: tuple[str, ...] = (),
        reduce: Callable[[AnyTable], AnyTable] = lambda rows: rows,
        *,
        of_all_time: bool = False,
    ) -> AnyTable:
        """Columns of a bulk table. ``columns``: name in the frame -> name in the export.

        Columns are Int64, those in ``text`` String; an empty text is null. A column that the table lacks is null, and a
        missing table gives an empty frame, so that callers see what is missing. Rows are read in parts; ``reduce``
        takes what is not needed from each, so that the whole table need not fit into memory. ``of_all_time``: also what
        starts outside of the spans.
        """
        parts = self.parts(table, columns, where, text, of_all_time=of_all_time)
        reduced = [reduce(rows).rechunk() for rows in parts]
        return pl.concat(reduced) if reduced else reduce(pl.DataFrame(schema=_types(columns, text)))

    def parts(
        self,
        table: str,
        columns: Mapping[str, str],
        where: str = "",
        text: tuple[str, ...] = (),
        *,
        of_all_time: bool = False,
    ) -> Iterator[AnyTable]:
        """The parts that :meth:`frame` reads, without those in which no row is wanted; none of a missing table.

        The driver's blocks are kept by the C library when they are free: 750 MB for 15 million calls. Where what is
        kept of a part is a copy, the blocks of one part serve for the next.
        """
        if table not in self.columns:
            return
        types = _types(columns, text)
        stored, cast = (self._select(table, columns, text, number) for number in ("{}", "CAST({} AS INTEGER)"))
        # Without the columns that nothing asks for: SQLite copies those of a limited SELECT * one by one, for each row.
        asked = {*columns.values(), *_WORD.findall(where)}
        needed = ", ".join(f'"{column}"' for column in self.columns[table] if column in asked) or "NULL"
        spans = () if of_all_time or _START not in self.columns[table] else self._spans
        started = next((name for name, column in columns.items() if column == _START), None)
        during = condition_of(spans) if spans else ""
        wanted = " AND ".join(f"({condition})" for condition in (during, where.removeprefix("WHERE ")) if condition)
        for part in self._list_parts(table):
            check_is_wanted()
            if wanted and not self._holds_any(table, part, wanted):
                continue
            rows = f'"{table}" {part} LIMIT {self._most_rows + 1}'
            if where:
                rows = f"(SELECT {needed} FROM {rows}) {where}"  # rows that it leaves out count as well
            frame = self._fetch_integers(f"{stored} FROM {rows}", types)
            if frame is None:
                frame = self._fetch(f"{cast} FROM {rows}")
            if frame.height > self._most_rows:
                raise InputError(f"{self.shown_as}: {_BROKEN} ({table} holds more rows than the file has room for)")
            read = frame.select(
                _read_texts(frame[name]) if name in text else pl.col(name).cast(pl.Int64) for name in types
            )
            # Not by SQLite: nearly all rows of a part lie in a span, if one does, and a condition takes twice as long.
            yield read.filter(are_within(spans, read[started])) if spans and started is not None else read

    def _holds_any(self, table: str, part: str, wanted: str) -> bool:
        """Whether the first row that is wanted is found, which takes half the time of fetching where none is."""
        condition = f"{part} AND ({wanted})" if part else f"WHERE {wanted}"
        return bool(self.rows(f'SELECT 1 FROM "{table}" {condition} LIMIT 1'))

    def _select(self, table: str, columns: Mapping[str, str], text: tuple[str, ...], number: str) -> str:
        """The part of a query that names ``columns``; ``number``: how one that holds numbers is selected."""
        values = []
        for name, column in columns.items():
            value = "coalesce(CAST({} AS BLOB), x'')" if name in text else number  # no text is null
            stored = f'"{column}"' if column in self.columns[table] else "NULL"
            values.append(f'{value.format(stored)} AS "{name}"')
        return f"SELECT {', '.join(values)}"

    def _fetch_integers(self, sql: str, types: Mapping[str, type[pl.DataType]]) -> pl.DataFrame | None:
        """What ``sql`` gives, if the numbers in it are integers; to cast all takes a twentieth of reading.

        The driver takes a column's type from its first rows, and refuses others that it does not fit.
        """
        try:
            frame = self._fetch(sql)
        except InputError:
            return None
        are_integers = all(frame.schema[name] == pl.Int64 for name, dtype in types.items() if dtype == pl.Int64)
        return frame if are_integers else None

    def _fetch(self, sql: str) -> pl.DataFrame:
        with self._errors_explained():
            if self._bulk is None:
                self._bulk = adbc.connect(self._uri)
            with self._bulk.cursor() as cursor:
                # The statement itself: in the main thread, a cursor takes Ctrl-C while it executes and fetches, and
                # where the query ends nonetheless, the interrupt is lost.
                statement = cursor.adbc_statement
                statement.set_options(**{StatementOptions.BATCH_ROWS.value: str(_ROWS_OF_BATCH)})
                statement.set_sql_query(sql)
                stream, _ = statement.execute_query()
                return pl.DataFrame(stream)

    def _list_parts(self, table: str) -> list[str]:
        """Conditions that split the rows of ``table`` by their numbers; one without bounds where they have none."""
        if _ROW_NUMBER in map(str.lower, self.columns[table]):
            return [""]
        bounds = self._find_row_numbers(table)
        if bounds is None:
            return [""]
        first, last = bounds
        starts = range(first, last + 1, _ROWS_AT_ONCE)
        return [f"WHERE {_ROW_NUMBER} BETWEEN {start} AND {start + _ROWS_AT_ONCE - 1}" for start in starts]

    def _find_row_numbers(self, table: str) -> tuple[int, int] | None:
        """The first and the last number of a row of ``table``; None where they have none, or none that can be."""
        try:
            # Together, min and max would visit every row; alone, each is looked up.
            first, last = (self.rows(f'SELECT {end}({_ROW_NUMBER}) FROM "{table}"')[0][0] for end in ("min", "max"))
        except InputError:  # a table without row numbers, or a damaged one: reading it whole tells which
            return None
        # Last before first: the pages are damaged.
        return (first, last) if first is not None and 0 <= last - first <= self._most_rows else None

    def count_rows(self, table: str) -> int:
        """How many rows ``table`` has, at most: a look at the first and the last one. 0 where they have no numbers."""
        if table not in self.columns or _ROW_NUMBER in map(str.lower, self.columns[table]):
            return 0
        bounds = self._find_row_numbers(table)
        return 0 if bounds is None else bounds[1] - bounds[0] + 1

    def strings(self, ids: Collection[int]) -> dict[int, str]:
        """The texts of ``ids``, each read once. A value that is no text (a damaged export) is left out.

        No other texts are read, because StringIds also holds the environment of every process on the machine.
        """
        numbers = sorted(set(ids))
        if not numbers or not self.has("StringIds", "id", "value"):
            return {}
        texts: dict[int, str] = {}
        for first in range(0, len(numbers), 500):  # SQLite's oldest limit on parameters is 999
            batch = numbers[first : first + 500]
            marks = ",".join("?" * len(batch))
            rows = self.rows(f"SELECT CAST(id AS INTEGER), value FROM StringIds WHERE id IN ({marks})", batch)
            texts.update((number, text) for number, text in rows if isinstance(text, str))
        return texts

    def strings_where(self, select: Callable[[pl.Series], pl.Series]) -> dict[int, str]:
        """The texts of StringIds that are wanted, by id. ``select``: from some texts to whether each is wanted."""
        if not self.has("StringIds", "id", "value"):
            return {}
        texts: dict[int, str] = {}
        with self._errors_explained():
            cursor = self._execute("SELECT CAST(id AS INTEGER), value FROM StringIds")
            while rows := cursor.fetchmany(_TEXTS_AT_ONCE):
                batch = [row for row in rows if isinstance(row[0], int) and isinstance(row[1], str)]
                are_wanted = select(pl.Series([text for _, text in batch], dtype=pl.String))
                texts.update(row for row, is_wanted in zip(batch, are_wanted, strict=True) if is_wanted)
        return texts


def _types(columns: Mapping[str, str], text: tuple[str, ...]) -> dict[str, type[pl.DataType]]:
    return {name: pl.String if name in text else pl.Int64 for name in columns}


def decode_text(text: bytes) -> str:
    """``text`` as UTF-8; each byte that is none is replaced by U+FFFD."""
    return text.decode("utf-8", errors="replace")


def _read_texts(column: pl.Series) -> pl.Series:
    """A Binary column as texts; null where it is empty. polars panics at texts that it did not check itself."""
    try:
        texts = column.cast(pl.String)
    except pl.exceptions.PolarsError:  # some text is no UTF-8
        texts = pl.Series(column.name, [decode_text(text) for text in column], dtype=pl.String)
    return texts.set(texts.str.len_bytes() == 0, None)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:120] if str(error) else type(error).__name__
