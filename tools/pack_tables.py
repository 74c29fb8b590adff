"""Writes an export as a directory of packed tables, which takes half of the bytes of a packed SQLite file.

In a table, a column is in one piece: starts of eight bytes, one after the other, differ in their last two or three.
"""

from __future__ import annotations

import io
import lzma
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import polars as pl
import polars.selectors as cs

from three_walls.trace.nsys_export import decode_text
from three_walls.trace.table_directory import ARROW
from three_walls.trace.trace_files import plain_sqlite

_BEST = lzma.PRESET_EXTREME | 9
_FILTERS: Sequence[Sequence[Mapping[str, int]]] = (
    [{"id": lzma.FILTER_LZMA2, "preset": _BEST}],
    [{"id": lzma.FILTER_DELTA, "dist": 8}, {"id": lzma.FILTER_LZMA2, "preset": _BEST, "lc": 0, "lp": 3, "pb": 3}],
)
"""Of texts the first takes less, of numbers of eight bytes the second: what each differs by from the one before it."""
_LANES = ("globalTid", "streamId")
"""What runs one thing after the other: in its order, a time differs least from the one before."""


def pack_tables(export: Path, directory: Path) -> None:
    """Writes the tables of ``export`` into the new ``directory``; rows with a start are in order of lane and time."""
    directory.mkdir()
    with plain_sqlite(export) as plain, closing(sqlite3.connect(plain)) as database:
        database.text_factory = decode_text
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in tables:
            cursor = database.execute(f'SELECT * FROM "{table}" ORDER BY rowid')
            names = [column[0] for column in cursor.description]
            rows = pl.DataFrame(cursor.fetchall(), schema=names, orient="row", infer_schema_length=None, strict=False)
            if "start" in names:
                rows = rows.sort([*(lane for lane in _LANES if lane in names), "start"], maintain_order=True)
            texts = cs.string() & cs.by_name("text", require_all=False)  # few, and many rows
            rows = rows.with_columns(pl.col(pl.Null).cast(pl.Int64), texts.cast(pl.Categorical))
            (directory / f"{table}{ARROW}.xz").write_bytes(_pack(rows))


def _pack(rows: pl.DataFrame) -> bytes:
    stream = io.BytesIO()
    rows.write_ipc_stream(stream, compression="uncompressed", compat_level=pl.CompatLevel.oldest())
    return min((lzma.compress(stream.getvalue(), filters=filters) for filters in _FILTERS), key=len)
