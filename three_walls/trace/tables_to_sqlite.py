"""Directories of tables (``table_directory.py``) as SQLite databases, which is what everything else reads."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import adbc_driver_manager
import adbc_driver_sqlite.dbapi as adbc
import polars as pl
import polars.selectors as cs

from three_walls.lib import limits
from three_walls.lib.errors import InputError
from three_walls.lib.threads import check_is_wanted
from three_walls.trace.table_directory import ARROW, list_tables, name_table
from three_walls.trace.unpack import COMPRESSED_SUFFIXES, unpack

_PAGE_BYTES = 4096
_COPIED_AT_ONCE, _ROWS_AT_FIRST = 1 << 20, 1 << 10
_TEXT_BYTES_AT_ONCE = 256 << 20


def write_sqlite(directory: Path, target: Path) -> None:
    """Writes the tables of ``directory`` into the new SQLite database ``target``, next to which it unpacks them.

    Raises InputError where a table cannot be read, or where they take more space than their size explains or the disk
    has.
    """
    paths = list_tables(directory)
    file_bytes = sum(path.stat().st_size for path in paths)
    free_bytes = int(shutil.disk_usage(target.parent).free * limits.MOST_UNPACKED_SHARE_OF_FREE_DISK)
    most_bytes = min(max(file_bytes * limits.MOST_UNPACKED_RATIO, limits.ALWAYS_UNPACKED_BYTES), free_bytes)
    path, text_bytes = directory, 0
    try:
        with closing(adbc.connect(f"file:{target}")) as connection, connection.cursor() as cursor:
            cursor.execute(f"PRAGMA max_page_count={max(most_bytes // _PAGE_BYTES, 1)}")
            for path in paths:
                with _unpacked(path, target.parent) as plain:
                    for create, frame in enumerate(_read_parts(plain)):
                        check_is_wanted()
                        text_bytes += _count_text_bytes(frame)
                        if text_bytes > most_bytes:  # a dictionary repeats a text in four bytes
                            raise InputError(f"{directory}: {path.name} cannot be unpacked (it holds too much text)")
                        part = _as_sqlite(frame)
                        cursor.adbc_ingest(name_table(path), part, mode="append" if create else "create")
            connection.commit()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise InputError(
            f"{directory}: expected tables of Nsight Systems, found a damaged {path.name} ({reason})"
        ) from error
    except adbc_driver_manager.Error as error:
        reason = str(error).splitlines()[0][:120]
        raise InputError(f"{directory}: {path.name} cannot be unpacked ({reason})") from error


@contextmanager
def _unpacked(path: Path, folder: Path) -> Iterator[Path]:
    """``path``, or of a compressed one a plain copy in ``folder`` until the end of the block."""
    if path.suffix not in COMPRESSED_SUFFIXES:
        yield path
        return
    plain = folder / path.stem
    try:
        unpack(path, plain)
        yield plain
    finally:
        plain.unlink(missing_ok=True)


def _read_parts(path: Path) -> Iterator[pl.DataFrame]:
    """The rows of a table in parts that fit into memory. The first is small, because it shows how long texts are."""
    if path.suffix == ARROW:
        yield pl.read_ipc_stream(path)
        return
    whole = pl.scan_parquet(path, glob=False)
    rows = int(whole.select(pl.len()).collect().item())
    first, count = 0, _ROWS_AT_FIRST
    while first == 0 or first < rows:
        part = whole.slice(first, count).collect()
        yield part
        first += count
        row_bytes = _count_text_bytes(part) // max(part.height, 1) + 1
        count = min(max(_TEXT_BYTES_AT_ONCE // row_bytes, 1), _COPIED_AT_ONCE)


def _count_text_bytes(frame: pl.DataFrame) -> int:
    """What the texts of ``frame`` take where each row has its own."""
    lengths = (
        cs.string().str.len_bytes().sum(),
        cs.binary().bin.size().sum(),
        cs.categorical().cat.len_bytes().sum(),
    )
    return sum(sum(filter(None, row)) for expression in lengths for row in frame.select(expression).rows())


def _as_sqlite(frame: pl.DataFrame) -> pl.DataFrame:
    """``frame`` with the types that SQLite has."""
    whole, wide = cs.integer() | cs.boolean(), cs.by_dtype(pl.UInt64)
    return frame.with_columns(
        wide.reinterpret(signed=True),
        (whole - wide).cast(pl.Int64),
        cs.float().cast(pl.Float64),
        (cs.all() - whole - cs.float() - cs.string() - cs.binary()).cast(pl.String),
    )
