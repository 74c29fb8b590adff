"""Exports promise no order of their rows: a real export gives the same report whatever their order is."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.paths import SAMPLES
from three_walls import analyze
from three_walls.report.json_report import render_json
from three_walls.trace.trace_files import plain_sqlite

pytestmark = pytest.mark.slow

ORDERS = ("-rowid", "(rowid * 7919) % 10007, rowid")


def write_reordered(source: Path, target: Path, order: str) -> Path:
    """A copy of the export ``source`` with the rows of its large tables in another order."""
    with plain_sqlite(source) as plain:
        target.write_bytes(plain.read_bytes())
    with closing(sqlite3.connect(target)) as database, database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            if table.startswith("CUPTI_ACTIVITY") or table == "NVTX_EVENTS":
                database.execute(f'CREATE TEMP TABLE reordered AS SELECT * FROM "{table}" ORDER BY {order}')
                database.execute(f'DELETE FROM "{table}"')
                database.execute(f'INSERT INTO "{table}" SELECT * FROM reordered ORDER BY rowid')
                database.execute("DROP TABLE reordered")
    return target


@pytest.mark.parametrize(
    "name", ["two-processes-one-report", pytest.param("mixtral-shape", marks=pytest.mark.exhaustive)]
)
def test_a_real_export_with_its_rows_in_another_order_gives_the_same(tmp_path: Path, name: str) -> None:
    (tmp_path / "own").mkdir()
    own = write_reordered(SAMPLES / f"{name}.sqlite.xz", tmp_path / "own" / "trace.sqlite", "rowid")
    expected = analyze(own)
    for number, order in enumerate(ORDERS):
        (tmp_path / str(number)).mkdir()
        found = analyze(write_reordered(own, tmp_path / str(number) / "trace.sqlite", order))
        assert found.inputs[0].sha256 != expected.inputs[0].sha256
        assert render_json(found).replace(found.inputs[0].sha256, expected.inputs[0].sha256) == render_json(expected)
