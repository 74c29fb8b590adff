"""Reads what an analysis must at least read of a trace, and does nothing with it: nothing that reads a trace is faster.

    python benchmarks/floor.py TRACE.sqlite

These are the columns of device operations, API calls, synchronizations and of the NVTX ranges that are no operators of
PyTorch, by ADBC into polars. The list is this file's own: a faster program does not lower its floor.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import adbc_driver_sqlite.dbapi as adbc

_OPERATION = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "graphNodeId")
COLUMNS = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        *_OPERATION, "demangledName", "shortName", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ",
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (*_OPERATION, "copyKind", "srcKind", "dstKind", "bytes"),
    "CUPTI_ACTIVITY_KIND_MEMSET": (*_OPERATION, "bytes"),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": _OPERATION,
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start", "end", "globalTid", "correlationId", "nameId"),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": ("globalPid", "streamId", "correlationId", "eventId", "eventSyncId"),
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": ("globalPid", "streamId", "correlationId", "eventId", "eventSyncId"),
    "CUDA_GPU_MEMORY_USAGE_EVENTS": ("start", "globalPid", "deviceId", "bytes", "memKind", "memoryOperationType"),
    "NVTX_EVENTS": ("start", "end", "globalTid", "textId", "text"),
    "StringIds": ("id", "value"),
}  # fmt: skip
_ONLY = {"NVTX_EVENTS": "WHERE text IS NULL OR text NOT GLOB 'aten::*'"}


def read_floor(trace: Path) -> int:
    """The number of rows of ``trace`` that were read."""
    uri = f"{trace.resolve().as_uri()}?mode=ro&immutable=1"
    rows = 0
    with closing(sqlite3.connect(uri, uri=True)) as small, closing(adbc.connect(uri)) as bulk, bulk.cursor() as cursor:
        for table, wanted in COLUMNS.items():
            recorded = {row[1] for row in small.execute(f"PRAGMA table_info({table})")}
            columns = ", ".join(f'"{column}"' for column in wanted if column in recorded)
            if columns:
                cursor.execute(f"SELECT {columns} FROM {table} {_ONLY.get(table, '')}")
                rows += cursor.fetch_polars().height
    return rows


if __name__ == "__main__":
    sys.stdout.write(f"{read_floor(Path(sys.argv[1])):,} rows\n")
