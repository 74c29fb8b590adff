"""Exports as directories of tables: the same trace as from the SQLite export of the same report.

No report with kernels is at hand, so the tables are written from SQLite exports, in the layout and with the types that
``nsys export`` of 2023.4 and 2024.2 gave for a report without any: the ids of processes and threads are unsigned.
"""

from __future__ import annotations

import json
import lzma
import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
import zstandard
from trace_builder import GEMM, MEGATRON, TraceBuilder

from tests.analyzed_samples import analyze_sample, reads_sample
from tests.paths import SAMPLES
from three_walls.capture.scrub.scrub_export import scrub
from three_walls.lib.errors import InputError
from three_walls.pipeline import analyze
from three_walls.report.json_report import render_json
from three_walls.step.build_timeline import wanted_ranges
from three_walls.tables.kernel_names import load_api_patterns, union_of
from three_walls.trace import tables_to_sqlite
from three_walls.trace.nsys_export import decode_text
from three_walls.trace.read_trace import read_trace
from three_walls.trace.table_directory import list_tables
from three_walls.trace.tables_to_sqlite import write_sqlite
from three_walls.trace.trace_files import find_traces, plain_sqlite

UNSIGNED = {"globalPid", "globalTid", "globalVid", "nameId"}


def write_tables(export: Path, directory: Path, suffix: str = ".parquet") -> Path:
    """``export`` in the layout of ``nsys export --type parquetdir`` (or ``arrowdir``)."""
    directory.mkdir()
    with plain_sqlite(export) as plain, closing(sqlite3.connect(plain)) as database:
        database.text_factory = decode_text
        for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            cursor = database.execute(f'SELECT * FROM "{table}"')
            names = [column[0] for column in cursor.description]
            rows = cursor.fetchall()
            frame = pl.DataFrame(
                {name: pl.Series([row[at] for row in rows], strict=False) for at, name in enumerate(names)}
            ).with_columns(pl.col(pl.Null).cast(pl.Int64))
            integers = [name for name in UNSIGNED & set(names) if frame[name].dtype == pl.Int64]
            frame = frame.with_columns(pl.col(integers).reinterpret(signed=False)) if integers else frame
            path = directory / f"{table}{suffix}"
            frame.write_parquet(path) if suffix == ".parquet" else frame.write_ipc_stream(path)
    return directory


def built(path: Path) -> Path:
    builder = TraceBuilder().steps(4).launched_as(MEGATRON, RANK="0", WORLD_SIZE="1")
    return builder.kernel(GEMM, 4100, 4200, launched=4090).nvtx("training_step_3", 3000, 3990).write(path)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_every_table_of_the_reader_is_the_same(tmp_path: Path, suffix: str) -> None:
    export = built(tmp_path / "rank0.sqlite")
    tables = write_tables(export, tmp_path / "rank0_pqtdir", suffix)
    graph_launch = union_of(load_api_patterns(), "graph_launch")
    plain, other = (read_trace(path, 0, 0, wanted_ranges(None), graph_launch) for path in (export, tables))
    assert plain.api_calls.frame().equals(other.api_calls.frame())
    for name in ("operations", "ranges", "overhead", "stream_waits", "event_records", "nccl_calls"):
        assert getattr(plain, name).equals(getattr(other, name)), name
    assert (plain.names, plain.capabilities, plain.launch) == (other.names, other.capabilities, other.launch)
    assert plain.ranks[0].process == other.ranks[0].process


def test_a_negative_id_is_the_same_as_the_unsigned_one(tmp_path: Path) -> None:
    (tmp_path / "x_pqtdir").mkdir()
    ids = pl.DataFrame({"id": [1], "globalPid": pl.Series([2**64 - 2**57], dtype=pl.UInt64), "is": [True]})
    ids.write_parquet(tmp_path / "x_pqtdir" / "StringIds.parquet")
    write_sqlite(tmp_path / "x_pqtdir", tmp_path / "x.sqlite")
    with closing(sqlite3.connect(tmp_path / "x.sqlite")) as database:
        assert database.execute("SELECT * FROM StringIds").fetchall() == [(1, -(2**57), 1)]


def test_a_directory_of_tables_is_one_trace_and_among_others_the_plain_export_counts(tmp_path: Path) -> None:
    export = built(tmp_path / "rank0.sqlite")
    first, second = (write_tables(export, tmp_path / f"rank{rank}_pqtdir") for rank in (0, 1))
    assert find_traces([first]) == [first]
    assert find_traces([tmp_path]) == [export, second]


def pack(table: Path) -> None:
    """Replaces the file of a table by a compressed one."""
    is_xz = table.stem != "StringIds"
    packed = lzma.compress(table.read_bytes()) if is_xz else zstandard.compress(table.read_bytes())
    table.with_name(f"{table.name}{'.xz' if is_xz else '.zst'}").write_bytes(packed)
    table.unlink()


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_packed_tables_hold_what_the_plain_ones_do(tmp_path: Path, suffix: str) -> None:
    tables = write_tables(built(tmp_path / "rank0.sqlite"), tmp_path / "rank0_arwdir", suffix)
    write_sqlite(tables, tmp_path / "plain.sqlite")
    for table in list(tables.iterdir()):
        pack(table)
    (tmp_path / "rank0.sqlite").unlink()
    assert find_traces([tmp_path / "rank0_arwdir"]) == [tables]
    (tmp_path / "out").mkdir()
    write_sqlite(tables, tmp_path / "out" / "packed.sqlite")
    dumps = []
    for path in (tmp_path / "plain.sqlite", tmp_path / "out" / "packed.sqlite"):
        with closing(sqlite3.connect(path)) as database:
            dumps.append(list(database.iterdump()))
    assert dumps[0] == dumps[1]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["packed.sqlite"]


def test_of_a_table_that_is_there_packed_and_plain_the_plain_one_is_read(tmp_path: Path) -> None:
    tables = write_tables(built(tmp_path / "rank0.sqlite"), tmp_path / "rank0_arwdir", ".arrow")
    (tables / "StringIds.arrow.xz").write_bytes(b"damaged")
    assert tables / "StringIds.arrow" in list_tables(tables)
    assert tables / "StringIds.arrow.xz" not in list_tables(tables)


def test_a_damaged_packed_table_is_named_and_no_copy_of_it_is_left(tmp_path: Path) -> None:
    tables = write_tables(built(tmp_path / "rank0.sqlite"), tmp_path / "rank0_arwdir", ".arrow")
    pack(tables / "NVTX_EVENTS.arrow")
    packed = tables / "NVTX_EVENTS.arrow.xz"
    (tmp_path / "out").mkdir()
    for damaged in (packed.read_bytes()[:-20], lzma.compress(b"no table"), b""):
        packed.write_bytes(damaged)
        with pytest.raises(InputError, match=r"NVTX_EVENTS\.arrow\.xz"):
            write_sqlite(tables, tmp_path / "out" / "x.sqlite")
        (tmp_path / "out" / "x.sqlite").unlink()
        assert list((tmp_path / "out").iterdir()) == []


def test_a_damaged_table_is_named_in_one_line(tmp_path: Path) -> None:
    tables = write_tables(built(tmp_path / "rank0.sqlite"), tmp_path / "rank0_pqtdir")
    for name in ("StringIds.parquet", "NVTX_EVENTS.parquet"):
        content = (tables / name).read_bytes()
        for damaged in (content[: len(content) // 2], b"PAR1" + bytes(100) + b"PAR1", b""):
            (tables / name).write_bytes(damaged)
            with pytest.raises(InputError) as caught, plain_sqlite(tables):
                pass
            assert name in str(caught.value)
            assert "\n" not in str(caught.value)
        (tables / name).write_bytes(content)


@pytest.mark.slow
@pytest.mark.attack
def test_tables_that_would_fill_the_disk_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x_pqtdir").mkdir()
    zeros = pl.DataFrame({"id": pl.zeros(12_000_000, dtype=pl.Int64, eager=True)})
    zeros.write_parquet(tmp_path / "x_pqtdir" / "StringIds.parquet")
    with pytest.raises(InputError, match="cannot be unpacked"):
        write_sqlite(tmp_path / "x_pqtdir", tmp_path / "x.sqlite")
    assert (tmp_path / "x.sqlite").stat().st_size <= 70 << 20


@pytest.mark.attack
def test_a_packed_table_that_would_fill_the_disk_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x_arwdir").mkdir()
    (tmp_path / "x_arwdir" / "StringIds.arrow.xz").write_bytes(lzma.compress(bytes(100 << 20)))
    with pytest.raises(
        InputError, match=r"StringIds\.arrow\.xz: expected .* unpacks to more than 1,000 times its size"
    ):
        write_sqlite(tmp_path / "x_arwdir", tmp_path / "x.sqlite")
    assert not (tmp_path / "StringIds.arrow").exists()


@pytest.mark.attack
def test_a_dictionary_that_repeats_a_long_text_is_refused_before_it_takes_memory(tmp_path: Path) -> None:
    """2 KB of parquet that hold a million texts of a megabyte."""
    (tmp_path / "x_pqtdir").mkdir()
    texts = pl.Series("value", ["x" * 1_000_000], dtype=pl.Categorical).new_from_index(0, 100_000)
    texts.to_frame().write_parquet(tmp_path / "x_pqtdir" / "StringIds.parquet")
    assert (tmp_path / "x_pqtdir" / "StringIds.parquet").stat().st_size < 1 << 20
    with pytest.raises(InputError, match="it holds too much text"):
        write_sqlite(tmp_path / "x_pqtdir", tmp_path / "x.sqlite")
    assert (tmp_path / "x.sqlite").stat().st_size <= 1 << 20


def test_texts_in_several_parts_are_all_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x_pqtdir").mkdir()
    texts = pl.DataFrame({"id": range(5_000), "value": [f"text {number}" for number in range(5_000)]})
    texts.write_parquet(tmp_path / "x_pqtdir" / "StringIds.parquet")
    monkeypatch.setattr(tables_to_sqlite, "_TEXT_BYTES_AT_ONCE", 10_000)
    write_sqlite(tmp_path / "x_pqtdir", tmp_path / "x.sqlite")
    with closing(sqlite3.connect(tmp_path / "x.sqlite")) as database:
        assert database.execute("SELECT count(DISTINCT value), sum(id) FROM StringIds").fetchone() == (
            5_000,
            12_497_500,
        )


def test_a_directory_of_tables_can_be_scrubbed(tmp_path: Path) -> None:
    tables = write_tables(built(tmp_path / "rank0.sqlite"), tmp_path / "rank0_pqtdir")
    scrub(tables, tmp_path / "scrubbed.sqlite")
    with closing(sqlite3.connect(tmp_path / "scrubbed.sqlite")) as database:
        assert database.execute("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()[0] > 0


@pytest.mark.slow
@reads_sample("healthy-two-gpus.sqlite.xz")
def test_the_report_of_a_real_capture_is_the_same_from_tables(tmp_path: Path) -> None:
    export = SAMPLES / "healthy-two-gpus.sqlite.xz"
    tables = write_tables(export, tmp_path / "healthy-two-gpus_pqtdir")
    plain, other = (json.loads(render_json(report)) for report in (analyze_sample(export.name), analyze(tables)))
    for report in (plain, other):
        del report["inputs"]
    assert json.loads(json.dumps(other).replace(tables.name, export.name)) == plain
