"""Exports whose pages or values are damaged: read as far as they can be, or refused in one line."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from trace_builder import ADAM, GEMM, PROCESS, SEND_RECV, TraceBuilder, merge

from three_walls import analyze
from three_walls.capture.judge_capture import examine
from three_walls.lib import limits
from three_walls.lib.errors import InputError
from three_walls.trace.launch_record import environment_blocks, launch_words
from three_walls.trace.nsys_export import NsysExport
from three_walls.trace.read_tables import read_operations, read_ranges_between

pytestmark = [pytest.mark.slow, pytest.mark.attack]


def _damaged(path: Path, *statements: str) -> Path:
    builder = TraceBuilder(session_start_ns=1_700_000_000_000_000_000).launched_as("pretrain_gpt.py", RANK="0")
    builder.steps(5).nvtx("training_step_1", 1001, 2000).write(path)
    with closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)
    return path


@pytest.mark.parametrize("value", ["NULL", "5", "1.5", "x'ff00'"])
def test_a_name_that_is_no_text_is_an_unknown_kernel_not_a_crash(tmp_path: Path, value: str) -> None:
    path = _damaged(tmp_path / "rank0.sqlite", f"UPDATE StringIds SET value = {value}")
    assert analyze(path).step.source == "one window"
    assert examine([path]).ranks


@pytest.mark.parametrize("number", ["'x y'", "x'ff00'", "9e999"])
def test_ids_of_strings_that_are_no_numbers_are_left_out_of_every_query(tmp_path: Path, number: str) -> None:
    path = _damaged(tmp_path / "rank0.sqlite", f"UPDATE StringIds SET id = {number} WHERE value = 'training_step_1'")
    assert analyze(path).step.kept == 3


@pytest.mark.parametrize("value", ["'x y'", "x'ff00'", "9e999"])
def test_a_size_or_a_clock_that_is_no_number_is_unknown(tmp_path: Path, value: str) -> None:
    path = _damaged(
        tmp_path / "rank0.sqlite",
        f"UPDATE TARGET_INFO_GPU SET totalMemory = {value}",
        f"UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = {value}",
    )
    assert analyze(path).step.source == "nvtx training_step"
    assert examine([path]).ranks


def test_a_range_without_a_start_marks_no_step(tmp_path: Path) -> None:
    path = _damaged(tmp_path / "rank0.sqlite", "UPDATE NVTX_EVENTS SET start = NULL")
    assert analyze(path).step.kept == 3
    assert examine([path]).ranks


@pytest.mark.parametrize("rank", ["\u00b2", "-1", "9" * 5000])
def test_a_rank_that_is_no_number_is_not_the_launchers(tmp_path: Path, rank: str) -> None:
    builder = TraceBuilder().launched_as("pretrain_gpt.py", RANK=rank, WORLD_SIZE=rank)
    path = builder.steps(5).write(tmp_path / "rank0.sqlite")
    assert [rank.rank for rank in analyze(path).ranks] == [0]
    assert examine([path]).ranks


def test_a_damaged_page_in_the_middle_is_refused_in_one_line(tmp_path: Path) -> None:
    path = TraceBuilder().steps(3000).write(tmp_path / "rank0.sqlite")
    content = bytearray(path.read_bytes())
    middle = len(content) // 4096 // 2 * 4096
    for page in range(4096 * 8, middle, 4096 * 8):
        content[page : page + 4096] = b"\xa5" * 4096
    path.write_bytes(bytes(content))
    with pytest.raises(InputError, match="found a damaged database") as caught:
        analyze(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("inline", [True, False])
def test_a_text_that_is_no_utf8_is_read_with_its_damaged_bytes_replaced(tmp_path: Path, inline: bool) -> None:
    builder = TraceBuilder().steps(5)
    for order in range(5):
        builder.nvtx(f"training_step_{order}", max(0, 1000 * order - 10), 1000 * order + 900, inline=inline)
    path = builder.nvtx("aten::mm", 1000, 1900, inline=True).write(tmp_path / "rank0.sqlite")
    table, column = ("NVTX_EVENTS", "text") if inline else ("StringIds", "value")
    damage = f"UPDATE {table} SET {column} = CAST(CAST({column} AS BLOB) || x'ff' AS TEXT) WHERE {column} NOT NULL"
    with closing(sqlite3.connect(path)) as database:
        database.execute(damage)
        database.commit()
    report = analyze(path)
    assert (report.step.source, report.step.kept) == ("nvtx training_step", 3)
    assert [step.index for step in report.ranks[0].steps] == [0, 1, 2, 3, 4]
    assert examine([path]).ranks
    texts = read_ranges_between(path, PROCESS, 1000, 1900)["text"].to_list()
    assert ("aten::mm\ufffd" in texts) == inline


def test_text_in_the_row_may_follow_a_thousand_rows_without(tmp_path: Path) -> None:
    # The driver guesses the type of a column from its first 1,024 rows.
    builder = TraceBuilder().steps(1)
    for order in range(2000):
        builder.nvtx("aten::add", order + 1, order + 2)
    path = builder.nvtx("aten::mm", 5000, 5001, inline=True).write(tmp_path / "rank0.sqlite")
    ranges = read_ranges_between(path, PROCESS, 0, 6000)
    assert ranges["text"].value_counts().sort("text").rows() == [("aten::add", 2000), ("aten::mm", 1)]


def _whole_export(path: Path) -> Path:
    """An export with every table that is read."""
    builder = TraceBuilder(session_start_ns=1_700_000_000_000_000_000).launched_as("pretrain_gpt.py", RANK="0")
    builder.nccl_schema(1, 24, (18, "NCCL communicator ID", 0), (22, "Message size [bytes]", 8), (15, "Peer rank", 16))
    for order in range(3):
        at = 1000 + 10_000 * order
        builder.nvtx(f"training_step_{order}", at - 10, at + 9000).nvtx("aten::mm, seq = 1", at - 6, at, inline=True)
        builder.kernel(GEMM, at, at + 5000, launched=at - 5).copy(8, at + 5000, at + 5100, launched=at + 10)
        builder.nccl_call("ncclSend", at + 20, at + 40, 1, struct.pack("<QQii", 5, 1 << 20, 1, 0))
        builder.kernel(SEND_RECV, at + 4000, at + 7000, stream=9, launched=at + 25)
        builder.record_event(order, 7, at + 44, sync=order).wait_event(order, 9, at + 45, sync=order)
        builder.overhead(at + 7000, at + 7050).allocation(at + 100, 1 << 20).graph(at + 7500, at + 7800, launched=at)
        builder.kernel(ADAM, at + 8000, at + 9500, launched=at + 50)
    return builder.write(path)


def _columns(path: Path) -> Iterator[tuple[str, str]]:
    with NsysExport(path, path) as export:
        for table, columns in export.columns.items():
            for column in columns:
                yield table, column


@pytest.mark.parametrize(
    "value",
    ["NULL", "'x y'", "x'ff00'", "1.5", "-1", "9223372036854775807", "-9223372036854775808", "CAST(x'ff80' AS TEXT)"],
)
def test_any_value_in_any_column_is_read_or_refused_in_one_line(tmp_path: Path, value: str) -> None:
    whole = _whole_export(tmp_path / "whole.sqlite").read_bytes()
    path = tmp_path / "rank0.sqlite"
    path.write_bytes(whole)
    for order, (table, column) in enumerate(list(_columns(path))):
        path.write_bytes(whole)
        with closing(sqlite3.connect(path)) as database:
            rows = "" if order % 2 else "WHERE rowid % 2 = 0"
            database.execute(f'UPDATE "{table}" SET "{column}" = {value} {rows}')
            database.commit()
        try:
            examine([path])
        except InputError as error:
            assert "\n" not in str(error), (table, column)


def test_an_argument_with_an_absurd_number_is_no_word_of_the_command(tmp_path: Path) -> None:
    builder = TraceBuilder().launched_as("pretrain_gpt.py --bf16").steps(2)
    builder.metadata.append((f"PROCESS_0:ARGUMENT_{'9' * 5000}", "--fp8"))
    path = builder.write(tmp_path / "rank0.sqlite")
    with NsysExport(path, path) as export:
        assert launch_words(export) == ["pretrain_gpt.py", "--bf16"]


@pytest.mark.parametrize("number", ["NULL", "'abc'", "x'00'"])
def test_an_environment_whose_id_is_no_number_is_left_out(tmp_path: Path, number: str) -> None:
    builder = TraceBuilder().steps(2)
    kept, dropped = builder.string("A=1\0B=2"), builder.string("C=3\0D=4")
    path = builder.write(tmp_path / "rank0.sqlite")
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"UPDATE StringIds SET id = {number} WHERE id = {dropped}")
        database.commit()
    with NsysExport(path, path) as export:
        assert environment_blocks(export) == {kept: "A=1\0B=2"}


def test_two_ranks_with_an_impossible_clock_are_compared_without_it(tmp_path: Path) -> None:
    for rank, start_ns in enumerate((-(2**63), 2**63 - 1)):
        builder = TraceBuilder(session_start_ns=start_ns).launched_as("pretrain_gpt.py", RANK=str(rank)).steps(4)
        builder.write(tmp_path / f"rank{rank}.sqlite")
    assert [rank.rank for rank in analyze(tmp_path).ranks] == [0, 1]
    assert examine([tmp_path]).ranks == 2


def test_a_capture_of_one_kernel_of_0_ns_is_a_step_of_1_ns(tmp_path: Path) -> None:
    report = analyze(TraceBuilder().kernel(GEMM, 100, 100).write(tmp_path / "rank0.sqlite"))
    assert [(step.start_ns, step.end_ns) for step in report.ranks[0].steps] == [(100, 101)]


def test_operations_that_end_out_of_range_are_left_out_and_counted(tmp_path: Path) -> None:
    builder = TraceBuilder().steps(4)
    for end_ns in (2**63 - 1, limits.LATEST_TIME_NS + 1, limits.LONGEST_OPERATION_NS + 2):
        builder.kernel(GEMM, 1, end_ns)
    report = analyze(builder.write(tmp_path / "rank0.sqlite"))
    assert [warning.message for warning in report.warnings if warning.code == "untimed-operations"] == [
        "rank0.sqlite: 3 device operations are left out: the profiler could not time them"
    ]
    assert max(step.end_ns for step in report.ranks[0].steps) == 4001


def test_lengths_that_cannot_be_summed_are_refused(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for _ in range(limits.LATEST_TIME_NS // limits.LONGEST_OPERATION_NS + 2):
        builder.kernel(GEMM, 1, limits.LONGEST_OPERATION_NS)
    path = builder.write(tmp_path / "rank0.sqlite")
    with NsysExport(path, path) as export, pytest.raises(InputError, match="plausible lengths") as caught:
        read_operations(export)
    assert "\n" not in str(caught.value)


def test_a_table_with_a_quote_in_its_name_is_a_table_like_others(tmp_path: Path) -> None:
    path = _damaged(tmp_path / "rank0.sqlite", 'CREATE TABLE "a""b" ("c""d")')
    assert analyze(path).step.kept == 1
    with NsysExport(path, path) as export:
        assert export.columns['a"b'] == ('c"d',)


def test_a_schema_that_is_no_utf8_is_refused_in_one_line(tmp_path: Path) -> None:
    path = _damaged(tmp_path / "rank0.sqlite")
    content = path.read_bytes()
    damaged = content.replace(b"CREATE TABLE", b"CREATE T\xc7BLE").replace(b"StringIds", b"String\xc7ds")
    path.write_bytes(damaged)
    assert damaged != content
    for read in (analyze, lambda path: examine([path])):
        with pytest.raises(InputError, match="damaged database") as caught:
            read(path)
        assert "\n" not in str(caught.value)


def test_pages_that_lead_to_the_same_page_level_upon_level_are_no_endless_table(tmp_path: Path) -> None:
    # 18 levels of 200 pointers to the next level each would be 200 ** 18 rows in 80 kB.
    path = tmp_path / "rank0.sqlite"
    builder = TraceBuilder().steps(4)
    builder.write(path)
    with closing(sqlite3.connect(path)) as database:
        table = "CUPTI_ACTIVITY_KIND_KERNEL"
        root = database.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()[0]
    content = bytearray(path.read_bytes())
    page_bytes = struct.unpack_from(">H", content, 16)[0]
    leaf = bytes(content[(root - 1) * page_bytes : root * page_bytes])
    levels = 18
    first_new = len(content) // page_bytes + 1
    for level in range(levels):
        next_page = first_new + level
        cell = struct.pack(">IB", next_page, 1)
        cells = 200
        page = bytearray(page_bytes)
        begin = page_bytes - cells * len(cell)
        struct.pack_into(">BHHHBI", page, 0, 5, 0, cells, begin, 0, next_page)
        for order in range(cells):
            place = begin + order * len(cell)
            struct.pack_into(">H", page, 12 + 2 * order, place)
            page[place : place + len(cell)] = cell
        number = root if level == 0 else first_new + level - 1
        if number <= len(content) // page_bytes:
            content[(number - 1) * page_bytes : number * page_bytes] = page
        else:
            content += page
    content += leaf
    struct.pack_into(">I", content, 28, len(content) // page_bytes)
    path.write_bytes(bytes(content))
    with pytest.raises(InputError, match="damaged database"):
        examine([path])


def test_two_processes_with_repeated_ids_stay_two_ranks(tmp_path: Path) -> None:
    first = TraceBuilder().steps(4)
    second = TraceBuilder(process=PROCESS + (1 << 24), strings=first.strings).steps(4)
    path = merge(tmp_path / "both.sqlite", first, second)
    with closing(sqlite3.connect(path)) as database:
        database.execute("INSERT INTO StringIds SELECT * FROM StringIds")
        database.execute("UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET correlationId = 1")
        database.commit()
    assert len(analyze(path).ranks) == 2


def _with_texts_as(path: Path, declaration: str) -> Path:
    """A trace whose StringIds has other columns; of none the table is missing."""
    statements = ["DROP TABLE StringIds"]
    if declaration:
        statements = [
            "ALTER TABLE StringIds RENAME TO old",
            f"CREATE TABLE StringIds {declaration}",
            "INSERT INTO StringIds SELECT id, value FROM old",
            "DROP TABLE old",
        ]
    return _damaged(path, *statements)


def test_ids_that_are_declared_as_text_are_the_same_numbers(tmp_path: Path) -> None:
    whole = analyze(_damaged(tmp_path / "rank0.sqlite"))
    text = analyze(_with_texts_as(tmp_path / "rank1.sqlite", "(id TEXT, value TEXT)"))
    assert [row.name for row in text.kernels] == [row.name for row in whole.kernels]
    assert text.budget == whole.budget
    assert "names-lost" not in {warning.code for warning in text.warnings}


def test_lost_names_of_kernels_are_blamed_on_their_table(tmp_path: Path) -> None:
    for name, statement in (("a", "DROP TABLE StringIds"), ("b", "DELETE FROM StringIds WHERE value LIKE 'nvjet%'")):
        report = analyze(_damaged(tmp_path / f"{name}.sqlite", statement))
        messages = {warning.code: warning.message for warning in report.warnings}
        assert "table StringIds is damaged or incomplete" in messages["names-lost"]


@pytest.mark.parametrize("encoding", ["UTF-16le", "UTF-16be"])
def test_a_database_in_utf_16_is_refused_rather_than_misread(tmp_path: Path, encoding: str) -> None:
    with closing(sqlite3.connect(tmp_path / "rank0.sqlite")) as database, database:
        database.execute(f"PRAGMA encoding = '{encoding}'")
        database.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
    with pytest.raises(InputError, match=f"expected texts in UTF-8, as nsys writes them, found {encoding}"):
        analyze(tmp_path / "rank0.sqlite")


def test_more_ranks_than_a_host_can_have_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = TraceBuilder()
    for start in range(1000, 4000, 1000):
        builder.kernel(GEMM, start, start + 500)
    path = builder.write(tmp_path / "rank0.sqlite")
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = rowid")
    monkeypatch.setattr(limits, "MOST_RANKS_OF_EXPORT", 2)
    with pytest.raises(InputError, match="at most 2 processes on GPUs, found 3"):
        analyze(path)


def test_one_capture_under_two_names_is_warned_of(tmp_path: Path) -> None:
    """Where it states its rank, two are refused as captures of two runs."""
    path = TraceBuilder().steps(4).write(tmp_path / "rank0.sqlite")
    (tmp_path / "copy.sqlite").write_bytes(path.read_bytes())
    codes = [warning.code for warning in analyze([path, tmp_path / "copy.sqlite"]).warnings]
    assert "same-capture" in codes
    assert "same-capture" not in {warning.code for warning in analyze(path).warnings}
