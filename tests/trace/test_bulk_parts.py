"""Bulk tables are read in parts; what a table holds does not depend on their size."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from tests.trace_builder import TraceBuilder
from three_walls.trace import nsys_export
from three_walls.trace.nsys_export import NsysExport
from three_walls.trace.read_tables import NVTX, WantedRanges
from three_walls.trace.read_trace import Trace, read_trace

pytestmark = pytest.mark.slow

WANTED = WantedRanges(("training_step_",))


def write_trace(tmp_path: Path) -> Path:
    builder = TraceBuilder().steps(4)
    for order in range(4):
        builder.nvtx(f"training_step_{order}", max(0, 1000 * order - 10), 1000 * order + 900, inline=bool(order % 2))
        builder.nvtx(f"aten::mm, seq = {order}", 1000 * order, 1000 * order + 5, inline=True)
    return builder.write(tmp_path / "trace.sqlite")


def read(path: Path) -> Trace:
    return read_trace(path, 0, 0, WANTED, re.compile("GraphLaunch"))


@pytest.mark.parametrize("rows_at_once", [1, 2, 7])
def test_a_trace_read_in_small_parts_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_at_once: int
) -> None:
    path = write_trace(tmp_path)
    whole = read(path)
    monkeypatch.setattr(nsys_export, "_ROWS_AT_ONCE", rows_at_once)
    in_parts = read(path)
    assert whole.ranges.height == 4
    assert in_parts.api_calls.frame().equals(whole.api_calls.frame())
    for name in ("operations", "ranges"):
        assert getattr(in_parts, name).equals(getattr(whole, name)), name


def test_parts_without_a_wanted_row_are_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.sqlite"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE numbers (value INTEGER, other INTEGER)")
        database.executemany("INSERT INTO numbers VALUES (?, ?)", [(value, -value) for value in range(10)])
    monkeypatch.setattr(nsys_export, "_ROWS_AT_ONCE", 2)
    with NsysExport(path, path) as opened:
        columns = {"v": "value"}
        assert [rows["v"].to_list() for rows in opened.parts("numbers", columns, "WHERE value IN (3, 8)")] == [[3], [8]]
        either = [rows["v"].to_list() for rows in opened.parts("numbers", columns, "WHERE value = 1 OR other < -8")]
        assert either == [[1], [9]]
        assert opened.frame("numbers", columns, "WHERE value > 10").schema == {"v": pl.Int64}
        assert opened.frame("numbers", columns).height == 10


class InterruptError(Exception):
    """What a handler of signals raises."""


@pytest.mark.parametrize("query", [NsysExport._fetch, NsysExport.rows])
def test_an_interrupt_during_a_query_is_neither_lost_nor_taken_for_damage(
    tmp_path: Path, query: Callable[[NsysExport, str], object]
) -> None:
    def interrupt(*_: object) -> None:
        raise InterruptError

    path = write_trace(tmp_path)
    count = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 1000000) SELECT max(x) FROM c"
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with NsysExport(path, path) as opened, pytest.raises(InterruptError):
            opened._most_checks = 1_000_000  # the file is small
            sender = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
            sender.start()
            while sender.is_alive():
                query(opened, count)
            sender.join()
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("first, step", [(-5, 1), (10**12, 1), (1, 10**14)])
def test_rows_may_have_any_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, step: int) -> None:
    path = write_trace(tmp_path)
    whole = read(path).ranges
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"CREATE TEMP TABLE numbered AS SELECT * FROM {NVTX} ORDER BY rowid")
        database.execute(f"DELETE FROM {NVTX}")
        columns = [row[1] for row in database.execute(f"PRAGMA table_info({NVTX})")]
        names = ", ".join(f'"{column}"' for column in columns)
        number = f"{first} + (rowid - 1) * {step}"
        database.execute(f"INSERT INTO {NVTX} (rowid, {names}) SELECT {number}, {names} FROM numbered")
    monkeypatch.setattr(nsys_export, "_ROWS_AT_ONCE", 3)
    assert read(path).ranges.equals(whole)


def test_a_table_without_row_numbers_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.sqlite"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE unnumbered (id INTEGER PRIMARY KEY, value INTEGER) WITHOUT ROWID")
        database.execute("CREATE TABLE renumbered (rowid INTEGER, value INTEGER)")
        for table in ("unnumbered", "renumbered"):
            database.executemany(
                f"INSERT INTO {table} VALUES (?, ?)",
                [(1, number) if table == "renumbered" else (number, number) for number in range(5)],
            )
    monkeypatch.setattr(nsys_export, "_ROWS_AT_ONCE", 2)
    with NsysExport(path, path) as opened:
        for table in ("unnumbered", "renumbered"):
            assert opened.frame(table, {"value": "value"})["value"].to_list() == [0, 1, 2, 3, 4]


def test_a_table_whose_last_row_number_is_below_its_first_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    # Pages of a damaged file may be out of order.
    damaged = NsysExport.__new__(NsysExport)
    damaged.columns, damaged._most_rows = {NVTX: ["start"]}, 100
    monkeypatch.setattr(NsysExport, "rows", lambda _, sql: [(9,)] if "min" in sql else [(2,)])
    assert damaged._list_parts(NVTX) == [""]
    monkeypatch.setattr(NsysExport, "rows", lambda _, sql: [(2,)] if "min" in sql else [(9,)])
    assert damaged._list_parts(NVTX) != [""]


@pytest.mark.parametrize("rows_of_batch", [1, 3, 100])
def test_a_value_that_is_no_integer_is_cast_wherever_in_a_column_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_of_batch: int
) -> None:
    # The driver takes a column's type from its first batch: it refuses some of these, and gives others as texts.
    monkeypatch.setattr(nsys_export, "_ROWS_OF_BATCH", rows_of_batch)
    path = tmp_path / "trace.sqlite"
    columns: dict[str, tuple[list[object], list[int | None]]] = {
        "integers": ([1, None, 3, 4], [1, None, 3, 4]),
        "texts": ([1, 2, 3, "4x"], [1, 2, 3, 4]),
        "reals": ([1, 2, None, 4.5], [1, 2, None, 4]),
        "bytes": ([b"x", 2, 3, 4], [0, 2, 3, 4]),
    }
    with closing(sqlite3.connect(path)) as database, database:
        for table, (stored, _) in columns.items():
            database.execute(f"CREATE TABLE {table} (value INTEGER)")
            database.executemany(f"INSERT INTO {table} VALUES (?)", [(value,) for value in stored])
    with NsysExport(path, path) as opened:
        read = {table: opened.frame(table, {"value": "value"})["value"].to_list() for table in columns}
    assert read == {table: expected for table, (_, expected) in columns.items()}
