"""The tables that are read of an export, with a comment for each column. A table may have more columns than its schema
states, and text may be a category.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import numpy.typing as npt
import polars as pl

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Float64Array = npt.NDArray[np.float64]

ROWS_AT_ONCE = 1 << 18
"""Of millions of rows, where what is worked out of all at once would take several times their memory."""

AnyTable = pl.DataFrame
"""Rows of any table, of a function that needs the columns which its docstring names."""

KINDS = pl.Enum(["kernel", "memcpy", "memset", "graph"])

OPERATIONS = pl.Schema(
    {
        "rank_index": pl.Int64(),  # index of the rank (one GPU of one process of one capture) in Trace.ranks
        "kind": KINDS,  # what sort of device operation
        "start_ns": pl.Int64(),  # session clock, inclusive
        "end_ns": pl.Int64(),  # session clock, exclusive: intervals are half-open
        "stream": pl.Int64(),  # CUDA stream within the process
        "correlation": pl.Int64(),  # joins the API call that launched it, within the process; null if unknown
        "name_id": pl.Int64(),  # kernel's demangled name (StringIds of its capture); null for other kinds
        "short_name_id": pl.Int64(),  # kernel's short name; null for other kinds
        "copy_kind": pl.Int8(),  # ENUM_CUDA_MEMCPY_OPER; null unless a copy
        "source_kind": pl.Int8(),  # ENUM_CUDA_MEM_KIND of the source; null unless a copy or not recorded
        "target_kind": pl.Int8(),  # ENUM_CUDA_MEM_KIND of the target; null unless a copy or not recorded
        "bytes": pl.Int64(),  # size of a copy or memset; null otherwise
        "graph_node": pl.Int64(),  # CUDA graph node; null outside graphs or not recorded
        "grid_x": pl.Int32(),  # kernel's grid; null for other kinds or not recorded
        "grid_y": pl.Int32(),
        "grid_z": pl.Int32(),
        "block_x": pl.Int32(),  # threads of a block of the kernel; null for other kinds or not recorded
        "block_y": pl.Int32(),
        "block_z": pl.Int32(),
    }
)

API_CALLS = pl.Schema(
    {
        "process": pl.Int64(),  # globalPid
        "thread": pl.Int64(),  # globalTid
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "correlation": pl.Int64(),  # joins the device operations it launched, within the process
        "name": pl.Categorical(),  # as in Trace.names, empty where it is unknown; null if not recorded
    }
)

STREAM_WAITS = pl.Schema(
    {
        "process": pl.Int64,  # globalPid
        "stream": pl.Int64,  # the stream that waits for an event
        "correlation": pl.Int64,  # of the call that made it wait; null if not recorded
        "event": pl.Int64,  # event id within the process; reused by later records
        "event_sync": pl.Int64,  # pairs this wait with one record; null where the schema has none
    }
)

EVENT_RECORDS = pl.Schema(
    {
        "process": pl.Int64,  # globalPid
        "stream": pl.Int64,  # the stream on which the event was recorded
        "correlation": pl.Int64,  # of the recording call; null if not recorded
        "event": pl.Int64,
        "event_sync": pl.Int64,  # as in STREAM_WAITS
    }
)

HOST_RANGES = pl.Schema(
    {
        "process": pl.Int64,  # globalPid
        "thread": pl.Int64,  # globalTid
        "start_ns": pl.Int64,
        "end_ns": pl.Int64,  # null: the range was still open when the capture ended
        "text": pl.String,
    }
)

NCCL_CALLS = pl.Schema(
    {
        "process": pl.Int64,  # globalPid
        "thread": pl.Int64,  # globalTid
        "start_ns": pl.Int64,
        "end_ns": pl.Int64,
        "call_name": pl.String,  # ncclSend, ncclAllReduce, ...; ncclGroupStart and ncclGroupEnd have nothing below
        "communicator": pl.UInt64,  # NCCL's hash of it: the same in all members
        "message_bytes": pl.Int64,  # as NCCL states it: what this rank contributes
        "peer": pl.Int64,  # rank within the communicator; null but for sends and receives
    }
)

MEMORY_EVENTS = pl.Schema(
    {
        "process": pl.Int64,  # globalPid
        "device": pl.Int64,
        "start_ns": pl.Int64,  # 0: allocated before the capture began
        "bytes": pl.Int64,
        "memory_kind": pl.Int64,  # ENUM_CUDA_MEM_KIND
        "operation": pl.Int64,  # ENUM_CUDA_DEV_MEM_EVENT_OPER: 0 allocation, 1 deallocation
    }
)

GPU_SAMPLES = pl.Schema(
    {
        "gpu": pl.Int64(),  # number of the GPU on its host, as nsys counts them
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        # Fractions of the peak, from 0 to 1; null where not recorded.
        "tensor_active": pl.Float64(),
        "sm_active": pl.Float64(),
        "memory_read": pl.Float64(),
        "memory_write": pl.Float64(),
        "nvlink_receive": pl.Float64(),
        "nvlink_send": pl.Float64(),
        "pcie_receive": pl.Float64(),
        "pcie_send": pl.Float64(),
    }
)

NIC_SAMPLES = pl.Schema(
    {
        "adapter": pl.Int64(),
        "port": pl.Int64(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "send_bytes_per_s": pl.Int64(),
    }
)

OVERHEAD = pl.Schema(
    {
        "thread": pl.Int64,  # globalTid that the profiler held up
        "start_ns": pl.Int64,
        "end_ns": pl.Int64,
    }
)


_CAPTURE = pl.Schema({"capture_id": pl.Int64()})
"""Processes and threads have their numbers within a capture."""

TraceOperations = Annotated[pl.DataFrame, OPERATIONS]
"""What ran on the devices: a row per operation, sorted by rank and start."""

ExportRanges = Annotated[pl.DataFrame, HOST_RANGES]
HostRanges = Annotated[ExportRanges, _CAPTURE]
"""NVTX ranges of host threads."""

ExportOverhead = Annotated[pl.DataFrame, OVERHEAD]
ProfilerOverhead = Annotated[ExportOverhead, _CAPTURE]
"""When the profiler delayed a thread."""

ExportWaits = Annotated[pl.DataFrame, STREAM_WAITS]
StreamWaits = Annotated[ExportWaits, _CAPTURE]
"""Waits of a stream for an event."""

ExportRecords = Annotated[pl.DataFrame, EVENT_RECORDS]
EventRecords = Annotated[ExportRecords, _CAPTURE]
"""Records of an event on a stream, as far as the export lists them."""

ExportNcclCalls = Annotated[pl.DataFrame, NCCL_CALLS]
NcclCalls = Annotated[ExportNcclCalls, _CAPTURE]
"""NCCL's own ranges, which state communicators and sizes."""

GpuSamples = Annotated[pl.DataFrame, GPU_SAMPLES]
"""Hardware counters of GPUs: what ran on a GPU from start to end used its parts that much."""

NicSamples = Annotated[pl.DataFrame, NIC_SAMPLES]
"""What ports of network adapters sent."""

MemoryEvents = Annotated[pl.DataFrame, MEMORY_EVENTS]
"""Allocations by the driver."""


def conform(frame: AnyTable, schema: pl.Schema) -> AnyTable:
    """``frame`` with exactly the columns and types of ``schema``; raises if a column is missing."""
    return frame.select(pl.col(name).cast(dtype) for name, dtype in schema.items())


def share_constants(frame: AnyTable) -> AnyTable:
    """``frame``, where a column that has the same value in all rows (or none in any) takes no memory."""
    if not frame.height:
        return frame
    may_be_same = [
        pl.lit(first, dtype=dtype).alias(name)
        for (name, dtype), first, last in zip(frame.schema.items(), frame.row(0), frame.row(-1), strict=True)
        if first == last
    ]
    is_same = frame.select(pl.col(value.meta.output_name()).eq_missing(value).all() for value in may_be_same)
    return frame.with_columns(value for value, column in zip(may_be_same, is_same, strict=True) if column[0])


def distinct_rows(frame: AnyTable) -> AnyTable:
    """The different rows of ``frame`` in no order. Found part by part: few differ, and a part takes little memory."""
    if frame.height <= ROWS_AT_ONCE:
        return frame.unique()
    return pl.concat([rows.unique() for rows in frame.iter_slices(ROWS_AT_ONCE)]).unique()
