"""The payloads of NCCL's NVTX ranges are read by the schemas in the export, and not otherwise."""

from __future__ import annotations

import struct
from pathlib import Path

import polars as pl
import pytest
from trace_builder import TraceBuilder

from three_walls import analyze
from three_walls.step.communication_owners import join_communicators
from three_walls.trace.nccl_payload import read_nccl_calls
from three_walls.trace.nsys_export import NsysExport
from three_walls.trace.schemas import NCCL_CALLS

pytestmark = pytest.mark.slow

INT, UINT64, SIZE = 5, 18, 22
COMMUNICATOR, MESSAGE, PEER = "NCCL communicator ID", "Message size [bytes]", "Peer rank"
GATHER, SEND, FINALIZE = 20, 25, 30
Row = dict[str, object]
LARGE = 0xF000_0000_0000_0007  # beyond the signed 64 bits of SQLite's integers


def builder_with_schemas() -> TraceBuilder:
    builder = TraceBuilder()
    builder.nccl_schema(GATHER, 16, (UINT64, COMMUNICATOR, None), (SIZE, MESSAGE, 8))
    builder.nccl_schema(SEND, 24, (UINT64, COMMUNICATOR, None), (SIZE, MESSAGE, 8), (INT, PEER, 16))
    return builder.nccl_schema(FINALIZE, 8, (UINT64, COMMUNICATOR, None))


def gather(communicator: int, message: int) -> bytes:
    return struct.pack("<QQ", communicator, message)


def send(communicator: int, message: int, peer: int) -> bytes:
    return struct.pack("<QQi4x", communicator, message, peer)


def read(path: Path, builder: TraceBuilder) -> tuple[list[dict[str, object]], int]:
    path.mkdir(exist_ok=True)
    written = builder.write(path / "trace.sqlite")
    with NsysExport(written, written) as export:
        calls, refused = read_nccl_calls(export)
    return calls.select("call_name", "communicator", "message_bytes", "peer").rows(named=True), refused


def test_fields_are_read_where_the_schema_puts_them(tmp_path: Path) -> None:
    builder = builder_with_schemas()
    builder.nccl_schema(99, 24, (SIZE, MESSAGE, None), (INT, PEER, 8), (UINT64, COMMUNICATOR, 16))
    builder.nccl_call("ncclAllGather", 10, 20, GATHER, gather(LARGE, 4096))
    builder.nccl_call("ncclSend", 30, 40, 99, struct.pack("<Qi4xQ", 512, 3, 5))
    rows, refused = read(tmp_path, builder)
    assert refused == 0
    assert rows == [
        {"call_name": "ncclAllGather", "communicator": LARGE, "message_bytes": 4096, "peer": None},
        {"call_name": "ncclSend", "communicator": 5, "message_bytes": 512, "peer": 3},
    ]


def test_a_payload_may_be_written_as_hexadecimal_text(tmp_path: Path) -> None:
    builder = builder_with_schemas().nccl_call("ncclAllGather", 10, 20, GATHER, gather(7, 1))
    row = builder.rows["NVTX_EVENTS"][0]
    row["binaryData"] = row["binaryData"].hex().upper()
    rows, _ = read(tmp_path, builder)
    assert [(row["communicator"], row["message_bytes"]) for row in rows] == [(7, 1)]
    row["binaryData"] = "no payload"
    assert read(tmp_path / "again", builder) == ([], 0)


def test_a_payload_of_a_schema_that_the_export_does_not_hold_is_not_read(tmp_path: Path) -> None:
    builder = builder_with_schemas().nccl_call("ncclAllGather", 10, 20, 77, gather(7, 1))
    builder.nccl_call("ncclAllGather", 30, 40, GATHER, gather(7, 1), domain=2)
    assert read(tmp_path, builder) == ([], 0)


def test_calls_without_a_message_are_no_communication(tmp_path: Path) -> None:
    builder = builder_with_schemas().nccl_call("ncclCommFinalize", 10, 20, FINALIZE, struct.pack("<Q", 7))
    assert read(tmp_path, builder) == ([], 0)


@pytest.mark.parametrize("payload", [gather(7, 1)[:-1], gather(7, 1) + b"\0", b""])
def test_a_payload_of_another_size_than_its_schema_is_refused(tmp_path: Path, payload: bytes) -> None:
    builder = builder_with_schemas().nccl_call("ncclAllGather", 10, 20, GATHER, payload)
    assert read(tmp_path, builder) == ([], 1)
    builder.steps(4)
    report = analyze(builder.write(tmp_path / "again.sqlite"))
    messages = [warning.message for warning in report.warnings if warning.code == "nccl-payload"]
    assert len(messages) == 1
    assert "payloads of 1 NCCL calls" in messages[0]


def test_a_field_beyond_the_payload_is_refused(tmp_path: Path) -> None:
    builder = TraceBuilder().nccl_schema(GATHER, 8, (UINT64, COMMUNICATOR, None), (SIZE, MESSAGE, 8))
    builder.nccl_call("ncclAllGather", 10, 20, GATHER, struct.pack("<Q", 7))
    assert read(tmp_path, builder) == ([], 1)


def test_a_schema_that_two_processes_define_differently_is_not_used(tmp_path: Path) -> None:
    builder = builder_with_schemas()
    builder.nccl_schema(GATHER, 16, (SIZE, MESSAGE, None), (UINT64, COMMUNICATOR, 8))
    builder.nccl_call("ncclAllGather", 10, 20, GATHER, gather(7, 1))
    assert read(tmp_path, builder) == ([], 0)


def test_an_export_without_payload_has_a_reason(tmp_path: Path) -> None:
    plain = TraceBuilder().steps(4).nvtx("user", 1, 2)
    without = plain.write(tmp_path / "without.sqlite", without=("NVTX_EVENTS.binaryData",))
    assert analyze(without).capabilities["nccl_payload"].startswith("no column NVTX_EVENTS.binaryData")
    empty = builder_with_schemas().steps(4).nvtx("user", 1, 2).write(tmp_path / "empty.sqlite")
    assert analyze(empty).capabilities["nccl_payload"] == "none recorded"
    builder = builder_with_schemas().steps(4).nccl_call("ncclAllGather", 10, 20, GATHER, gather(7, 1))
    assert analyze(builder.write(tmp_path / "with.sqlite")).capabilities["nccl_payload"] == "yes"


def call(operation: str, start: int, end: int, communicator: int | None = None, message: int | None = None) -> Row:
    return {
        "process": 1,
        "thread": 1,
        "start_ns": start,
        "end_ns": end,
        "call_name": operation,
        "communicator": communicator,
        "message_bytes": message,
    }


def joined(calls: list[Row], *launches: int | None) -> list[tuple[int | None, int | None]]:
    schema = {"category": pl.String, "launch_thread": pl.Int64, "launch_start_ns": pl.Int64}
    operations = pl.DataFrame([("all_reduce", 1, launch) for launch in launches], schema=schema, orient="row")
    found = join_communicators(operations, pl.DataFrame(calls, schema=NCCL_CALLS))
    return found.select("communicator", "message_bytes").rows()


def test_a_launch_belongs_to_the_call_around_it() -> None:
    calls = [call("ncclAllGather", 10, 20, 7, 64), call("ncclAllReduce", 30, 40, 8, 4)]
    assert joined(calls, 15, 35, 25, None) == [(7, 64), (8, 4), (None, None), (None, None)]


def test_the_end_of_a_group_launches_for_all_calls_in_it() -> None:
    calls = [
        call("ncclBroadcast", 1, 2, 9, 8),  # of a communicator with one rank: no kernel, and in no group
        call("ncclGroupStart", 10, 11),
        call("ncclSend", 12, 13, 7, 100),
        call("ncclRecv", 14, 15, 7, 300),
        call("ncclSend", 16, 17, 7, 20),
        call("ncclGroupEnd", 20, 30),
    ]
    assert joined(calls, 25) == [(7, 300)]  # it sends 120 bytes and receives 300 at the same time
    assert joined(calls, 25, 26) == [(7, None), (7, None)]  # two kernels: neither carries all of it


def test_a_nested_group_launches_at_the_end_of_the_outer_one() -> None:
    calls = [
        call("ncclGroupStart", 10, 11),
        call("ncclGroupStart", 12, 13),
        call("ncclSend", 14, 15, 7, 100),
        call("ncclGroupEnd", 16, 17),
        call("ncclGroupEnd", 20, 30),
    ]
    assert joined(calls, 25) == [(7, 100)]


def test_a_group_of_two_communicators_has_no_single_one() -> None:
    calls = [
        call("ncclGroupStart", 10, 11),
        call("ncclAllReduce", 12, 13, 7, 100),
        call("ncclAllReduce", 14, 15, 8, 100),
        call("ncclGroupEnd", 20, 30),
    ]
    assert joined(calls, 25, 26) == [(None, None), (None, None)]


def test_a_capture_that_begins_inside_a_group_reads_the_next_one() -> None:
    calls = [
        call("ncclGroupEnd", 5, 6),
        call("ncclGroupStart", 10, 11),
        call("ncclAllReduce", 12, 13, 7, 100),
        call("ncclGroupEnd", 20, 30),
    ]
    assert joined(calls, 25) == [(7, 100)]
