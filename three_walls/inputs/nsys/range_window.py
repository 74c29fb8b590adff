"""Every NVTX range that was open during one stretch of time: what an analysis of a single step looks closer at.

An export of a long capture holds millions of ranges, most of them PyTorch's operators; the first reading takes only the
few that all steps need. Once a step is chosen, its own are read from the file again.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from three_walls.inputs.nsys.export import NsysExport
from three_walls.inputs.nsys.schemas import HOST_RANGES, conform
from three_walls.inputs.nsys.source import plain_sqlite
from three_walls.inputs.nsys.tables import NVTX, process_of

PUSH_POP = 59
"""eventType of ranges that a thread pushes and pops, which nest; those it starts and ends may cross each other."""

_WITH_SIZES = "aten::*, sizes = *"
"""How ``emit_nvtx(record_shapes=True)`` writes an operator, as SQLite's GLOB."""


def has_operator_sizes(export: NsysExport) -> bool:
    """Whether some range is an operator of PyTorch that says the sizes of its arguments."""
    places = (("StringIds", "value"), (NVTX, "text"))
    return any(
        export.has(table, column)
        and bool(export.rows(f'SELECT 1 FROM "{table}" WHERE "{column}" GLOB ? LIMIT 1', (_WITH_SIZES,)))
        for table, column in places
    )


def read_ranges_between(path: Path, process: int, begin_ns: int, until_ns: int) -> pl.DataFrame:
    """Nested ranges (schemas.HOST_RANGES) of ``process`` that were open at some time from ``begin_ns`` to ``until_ns``.

    Sorted by thread, start, and the outer before the inner. Raises InputError where the file cannot be read any more.
    """
    with plain_sqlite(path) as plain, NsysExport(plain, path) as export:
        if not export.has(NVTX, "start", "end", "eventType", "globalTid"):
            return pl.DataFrame(schema=HOST_RANGES)
        where = f"WHERE eventType = {PUSH_POP} AND start <= {until_ns:d} AND (end >= {begin_ns:d} OR end IS NULL)"
        columns = {"start_ns": "start", "end_ns": "end", "thread": "globalTid", "text_id": "textId", "text": "text"}
        frame = export.frame(NVTX, columns, where, text=("text",)).with_columns(process=process_of("thread"))
        mine = frame.filter(pl.col("process") == process)
        texts = export.strings(mine.filter(pl.col("text").is_null())["text_id"])
    named = mine.with_columns(
        text=pl.coalesce("text", pl.col("text_id").replace_strict(texts, default=None, return_dtype=pl.String))
    )
    timed = conform(named, HOST_RANGES).drop_nulls(["text", "start_ns"])
    return timed.sort(
        "thread", "start_ns", pl.col("end_ns").fill_null(2**62), "text", descending=[False, False, True, False]
    )
