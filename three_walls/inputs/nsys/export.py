"""One Nsight Systems export, opened read-only: which tables and columns it has, and their rows.

Tables and columns are probed, never assumed from a version: the format changes without notice, and a table without
events does not exist.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import adbc_driver_manager
import adbc_driver_sqlite.dbapi as adbc
import polars as pl

from three_walls.model.errors import InputError

_BROKEN = "expected a complete SQLite export of Nsight Systems, found a damaged database"


class NsysExport:
    """Read-only view of an export. Use as a context manager.

    Small tables are read with :mod:`sqlite3`, bulk tables with ADBC, which hands whole columns to polars
    (docs/decisions/0002 has the measurement). Both open the file with ``mode=ro&immutable=1``: they take no lock, write
    no journal and no index, and work on a read-only file system.
    """

    def __init__(self, plain: Path, shown_as: Path) -> None:
        self.shown_as = shown_as
        # A percent sign or question mark in a path must not be read as part of the URI.
        self._uri = f"{plain.resolve().as_uri()}?mode=ro&immutable=1"
        self.columns: dict[str, tuple[str, ...]] = {}
        with self._errors_explained():
            self._small = sqlite3.connect(self._uri, uri=True)
        try:
            self.columns = self._probe()
        except InputError:
            self._small.close()
            raise

    def __enter__(self) -> NsysExport:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._small.close()

    @contextmanager
    def _errors_explained(self) -> Iterator[None]:
        try:
            yield
        # polars raises errors of its own for damage that shows only while rows are fetched.
        except (sqlite3.Error, adbc_driver_manager.Error, pl.exceptions.ComputeError) as error:
            raise InputError(f"{self.shown_as}: {_BROKEN} ({_first_line(error)})") from error

    def _probe(self) -> dict[str, tuple[str, ...]]:
        with self._errors_explained():
            names = [row[0] for row in self._small.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            return {
                name: tuple(row[1] for row in self._small.execute(f'PRAGMA table_info("{name}")')) for name in names
            }

    def has(self, table: str, *columns: str) -> bool:
        """Whether ``table`` exists and has all of ``columns``."""
        return table in self.columns and set(columns) <= set(self.columns[table])

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows of a small query. Raises InputError if the database is damaged."""
        with self._errors_explained():
            return self._small.execute(sql, parameters).fetchall()

    def pairs(self, table: str, key: str = "name", value: str = "value") -> list[tuple[str, str]]:
        """The rows of a name/value table as texts, in stored order; empty where the table is missing."""
        if not self.has(table, key, value):
            return []
        return [(str(k), str(v)) for k, v in self.rows(f'SELECT "{key}", "{value}" FROM "{table}"') if v is not None]

    def frame(
        self, table: str, columns: Mapping[str, str], where: str = "", text: tuple[str, ...] = ()
    ) -> pl.DataFrame:
        """Columns of a bulk table. ``columns``: name in the frame -> name in the export.

        Columns are Int64, those in ``text`` String. A column that the table lacks is null, and a missing table gives an
        empty frame, so that callers see what is missing.
        """
        types = {name: pl.String if name in text else pl.Int64 for name in columns}
        if table not in self.columns:
            return pl.DataFrame(schema=types)
        # The driver takes a column's type from its first rows, so every column is cast.
        wanted = [
            f'CAST("{column}" AS {"TEXT" if name in text else "INTEGER"}) AS "{name}"'
            if column in self.columns[table]
            else f'NULL AS "{name}"'
            for name, column in columns.items()
        ]
        sql = f'SELECT {", ".join(wanted)} FROM "{table}" {where}'
        with self._errors_explained(), closing(adbc.connect(self._uri)) as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            frame = cursor.fetch_polars()
        return frame.select(pl.col(name).cast(dtype) for name, dtype in types.items())

    def strings(self, ids: pl.Series) -> dict[int, str]:
        """The texts of ``ids``, each read once. A value that is no text (a damaged export) is left out.

        No other texts are read, because StringIds also holds the environment of every process on the machine.
        """
        wanted = sorted({int(number) for number in ids.drop_nulls().to_list()})
        if not wanted or not self.has("StringIds", "id", "value"):
            return {}
        found: dict[int, str] = {}
        for first in range(0, len(wanted), 500):  # SQLite's oldest limit on parameters is 999
            batch = wanted[first : first + 500]
            marks = ",".join("?" * len(batch))
            rows = self.rows(f"SELECT id, value FROM StringIds WHERE id IN ({marks})", batch)
            found.update((number, text) for number, text in rows if isinstance(text, str))
        return found

    def strings_where(self, wanted: Callable[[str], bool]) -> dict[int, str]:
        """The texts of StringIds for which ``wanted`` is true, by id."""
        if not self.has("StringIds", "id", "value"):
            return {}
        with self._errors_explained():
            rows = self._small.execute("SELECT id, value FROM StringIds")
            return {
                number: text
                for number, text in rows
                if isinstance(number, int) and isinstance(text, str) and wanted(text)
            }


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:120] if str(error) else type(error).__name__
