"""Reads the bulk tables of an export into the schemas of ``schemas.py``, without rows that CUPTI could not time."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

import numpy as np
import polars as pl

from three_walls.lib import limits
from three_walls.lib.errors import InputError
from three_walls.trace.nsys_export import NsysExport
from three_walls.trace.schemas import (
    EVENT_RECORDS,
    HOST_RANGES,
    MEMORY_EVENTS,
    OPERATIONS,
    OVERHEAD,
    STREAM_WAITS,
    AnyTable,
    ExportOverhead,
    ExportRanges,
    ExportRecords,
    ExportWaits,
    Int64Array,
    MemoryEvents,
    conform,
    share_constants,
)
from three_walls.trace.spans import Span, are_within
from three_walls.trace.trace_files import plain_sqlite

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSETS = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
API = "CUPTI_ACTIVITY_KIND_RUNTIME"
NVTX = "NVTX_EVENTS"
SYNCHRONIZATIONS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
EVENTS = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
MEMORY_USAGE = "CUDA_GPU_MEMORY_USAGE_EVENTS"
OS_CALLS = "OSRT_API"
THREAD_NAMES = "ThreadNames"
OVERHEAD_TABLES = ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD")

# syncType of cudaStreamWaitEvent. Exports up to schema 3.11 number the types differently from their own enum table: in
# them 2 is an event query and 3 both cudaStreamWaitEvent and cudaStreamSynchronize. The API call distinguishes them.
STREAM_WAIT_TYPES = (2, 3)
NO_STREAM = 2**32 - 1
NVTX_RANGE_TYPES = (59, 60)  # push/pop and start/end
PUSH_POP = 59
"""eventType of ranges that a thread pushes and pops. These nest; ranges that it starts and ends may overlap."""

_MOST_LISTED_IDS = 5_000

_WITH_SIZES = "aten::*, sizes = *"
"""How ``emit_nvtx(record_shapes=True)`` writes an operator, as SQLite's GLOB."""

_STARTED = pl.col("start_ns").is_between(-limits.LATEST_TIME_NS, limits.LATEST_TIME_NS)
HAS_ENDED = _STARTED & pl.col("end_ns").is_between(pl.col("start_ns"), limits.LATEST_TIME_NS)
"""Start and end of an event are known, in order and in ``limits``."""
_IS_TIMED = _STARTED & (pl.col("end_ns").is_null() | HAS_ENDED)
"""The times of an event are in order and in ``limits``, so differences of them are no overflow. A range may be open."""

# globalTid is <hw:8><vm:8><pid:24><tid:24>; its process's globalPid has the last field zero.
THREADS_PER_PROCESS = 1 << 24

_COMMON = {
    "start_ns": "start",
    "end_ns": "end",
    "device": "deviceId",
    "stream": "streamId",
    "correlation": "correlationId",
    "process": "globalPid",
}

_READ = pl.Schema({**OPERATIONS, "process": pl.Int64(), "device": pl.Int64()})
del _READ["rank_index"]

ExportOperations = Annotated[pl.DataFrame, _READ]
"""What ran on the devices, before ranks have an index."""

_TIED = ("start_ns", "end_ns", "stream", "correlation", "kind", "name_id")
"""By these, operations of a device are in order."""

_ENUMS = ("copy_kind", "source_kind", "target_kind")
"""Numbers of few kinds: one that none of them can have is as unknown as none."""

_SIDES = tuple(f"{what}_{side}" for what in ("grid", "block") for side in "xyz")

_COLUMNS_OF_KIND: dict[str, tuple[str, dict[str, str]]] = {
    "kernel": (
        KERNELS,
        {
            "name_id": "demangledName",
            "short_name_id": "shortName",
            "graph_node": "graphNodeId",
            **{side: f"{side[:-2]}{side[-1].upper()}" for side in _SIDES},  # gridX, ...
        },
    ),
    "memcpy": (
        COPIES,
        {
            "copy_kind": "copyKind",
            "source_kind": "srcKind",
            "target_kind": "dstKind",
            "bytes": "bytes",
            "graph_node": "graphNodeId",
        },
    ),
    "memset": (MEMSETS, {"bytes": "bytes", "graph_node": "graphNodeId"}),
    "graph": (GRAPHS, {}),
}
_ONLY_SOME_HAVE = tuple(dict.fromkeys(name for _, columns in _COLUMNS_OF_KIND.values() for name in columns))


def read_operations(export: NsysExport, only_process: Callable[[], int] = lambda: 0) -> tuple[ExportOperations, int]:
    """Every device operation of the export, sorted, and how many rows had no usable time.

    The columns are those of schemas.OPERATIONS without ``rank_index``, and ``process`` (globalPid) and ``device``.
    ``only_process`` gives what is filled in where an export does not record the process of an operation.

    CUPTI writes start = end = 0 (or end < start) for an operation that it could not time, and a graph that starts on
    the host has an impossible device. Such rows are dropped and counted, and with them those whose times are out of
    ``limits``. The exporter guarantees no order of rows, so it is made total here. Raises InputError where so many
    operations are so long that their lengths cannot be summed.
    """
    kinds, untimed = zip(*(_read_kind(export, kind, only_process) for kind in _COLUMNS_OF_KIND), strict=True)
    timed = pl.concat(kinds)
    del kinds
    together_ns = (timed["end_ns"] - timed["start_ns"]).cast(pl.Float64).sum()
    if together_ns > limits.LATEST_TIME_NS:
        raise InputError(
            f"{export.shown_as}: expected device operations of plausible lengths, found {timed.height:,} that take "
            f"{together_ns / 1e9 / 86400:,.0f} days together"
        )
    columns = {column.name: column for column in timed.get_columns()}
    order = pl.Series(_order(timed)).cast(pl.get_index_type())
    del timed
    # Column by column, so that few are in memory both sorted and unsorted. To gather from many pieces takes thrice as
    # long as from one.
    for name in columns:
        columns[name] = columns[name].rechunk().gather(order)
    return share_constants(pl.DataFrame(columns)), sum(untimed)


def _order(operations: pl.DataFrame) -> Int64Array:
    """The rows of ``operations`` by device and start."""
    if not operations.height:
        return np.zeros(0, dtype=np.int64)
    device = ["process", "device"]
    if all(operations[name].min() == operations[name].max() for name in device):
        return _order_by_start(operations)
    parts = operations.with_row_index("row").partition_by(device, as_dict=True)
    return np.concatenate([parts[key]["row"].to_numpy()[_order_by_start(parts[key])] for key in sorted(parts)])


def _order_by_start(operations: pl.DataFrame) -> Int64Array:
    """The rows of ``operations`` by start, and where several start together by the other columns.

    A sort by one number takes a fifth of the time of one by seven columns, and few operations start together. The rows
    of a kind nearly come in order, which numpy's stable sort makes use of.
    """
    start_ns = operations["start_ns"].to_numpy()
    order = np.argsort(start_ns, kind="stable")
    start_ns = start_ns[order]
    is_next_equal = np.append(start_ns[1:] == start_ns[:-1], np.zeros(min(1, len(start_ns)), dtype=bool))
    is_tied = is_next_equal | np.roll(is_next_equal, 1)
    # Column by column: a query of the frame would first make one piece of each of its columns.
    rows = pl.Series("row", order[is_tied])
    tied = pl.DataFrame([operations[name].gather(rows) for name in _TIED]).with_columns(
        rows, pl.col("kind").cast(pl.String)
    )
    order[is_tied] = tied.sort(*_TIED, "row")["row"]
    return order


def _read_kind(export: NsysExport, kind: str, only_process: Callable[[], int]) -> tuple[pl.DataFrame, int]:
    """The operations of a ``kind`` that have a usable time, and how many have none."""
    table, own_columns = _COLUMNS_OF_KIND[kind]
    untimed = 0

    def keep_timed(rows: AnyTable) -> AnyTable:
        nonlocal untimed
        process = pl.col("process").fill_null(only_process() if rows["process"].null_count() else 0)
        whole = rows.with_columns(*_complete(kind), process)
        timed = whole.filter(_has_usable_time())
        untimed += whole.height - timed.height
        return timed.select(_kept_columns())

    return export.frame(table, _COMMON | own_columns, reduce=keep_timed), untimed


# Expressions are made once: of many ranks, to make them for each takes as long as what they work out.


@cache
def _complete(kind: str) -> list[pl.Expr]:
    """The columns that the table of a ``kind`` lacks, or in which a null has a meaning."""
    _, own_columns = _COLUMNS_OF_KIND[kind]
    absent = [pl.lit(None, dtype=pl.Int64).alias(name) for name in _ONLY_SOME_HAVE if name not in own_columns]
    return [*absent, pl.col("device", "stream").fill_null(0), pl.lit(kind).alias("kind")]


@cache
def _has_usable_time() -> pl.Expr:
    length_ns = pl.col("end_ns") - pl.col("start_ns")
    is_on_device = (pl.col("start_ns") > 0) & (pl.col("device") < 2**31 - 1)
    return HAS_ENDED & is_on_device & (length_ns <= limits.LONGEST_OPERATION_NS)


@cache
def _kept_columns() -> list[pl.Expr]:
    """The columns of _READ, without sizes that no operation can have: sums and products of the others stay in range."""
    most = {"bytes": limits.MOST_COPY_BYTES, **dict.fromkeys(_SIDES, limits.MOST_BLOCKS)}

    def keep(name: str) -> pl.Expr:
        column = pl.col(name)
        return pl.when(column.is_between(0, most[name], closed="left")).then(column) if name in most else column

    return [keep(name).cast(dtype, strict=name not in _ENUMS) for name, dtype in _READ.items()]


_EVENT_COLUMNS = {
    "process": "globalPid",
    "stream": "streamId",
    "correlation": "correlationId",
    "event": "eventId",
    "event_sync": "eventSyncId",
}


def count_operations(export: NsysExport) -> int:
    """How many device operations the export holds, at most."""
    return sum(export.count_rows(table) for table, _ in _COLUMNS_OF_KIND.values())


def read_stream_waits(export: NsysExport) -> ExportWaits:
    """Waits of streams for events (schemas.STREAM_WAITS), in no order; empty if not recorded.

    They include threads that wait for a stream, which only the name of the API call distinguishes.
    """
    if not export.has(SYNCHRONIZATIONS, "syncType", "eventId"):
        return pl.DataFrame(schema=STREAM_WAITS)
    where = f"WHERE syncType IN {STREAM_WAIT_TYPES} AND streamId < {NO_STREAM}"
    return share_constants(conform(export.frame(SYNCHRONIZATIONS, _EVENT_COLUMNS, where), STREAM_WAITS))


def read_event_records(export: NsysExport, called: Sequence[Span] | None = None) -> ExportRecords:
    """Events recorded on streams (schemas.EVENT_RECORDS), in no order; empty if not recorded.

    ``called``: from which correlation id to before which, where not all calls were read. A record has no time itself.
    """

    def keep_called(rows: AnyTable) -> AnyTable:
        return rows if called is None else rows.filter(are_within(called, rows["correlation"]))

    return share_constants(conform(export.frame(EVENTS, _EVENT_COLUMNS, reduce=keep_called), EVENT_RECORDS))


def read_memory_events(export: NsysExport) -> MemoryEvents:
    """Allocations and deallocations by the driver (schemas.MEMORY_EVENTS), in no order; empty if not recorded."""
    columns = {
        "process": "globalPid",
        "device": "deviceId",
        "start_ns": "start",
        "bytes": "bytes",
        "memory_kind": "memKind",
        "operation": "memoryOperationType",
    }
    frame = export.frame(MEMORY_USAGE, columns, of_all_time=True)  # what was allocated before counts as well
    is_sane = pl.col("start_ns").is_between(0, limits.LATEST_TIME_NS) & (pl.col("bytes") < limits.MOST_COPY_BYTES)
    return conform(frame.filter(is_sane & (pl.col("bytes") >= 0)), MEMORY_EVENTS)


@dataclass(frozen=True, slots=True)
class WantedRanges:
    """Which NVTX ranges to read: texts that contain one of ``needles``, or in which ``expression`` is found.

    The expression is a user's: polars searches for it in linear time, whatever it is.
    """

    needles: tuple[str, ...]
    expression: str | None = None
    numbered: str | None = None
    """Where this is in a text, the numbers in it matter; where an expression is given, those of any text do."""

    def select(self, texts: pl.Series) -> pl.Series:
        """Whether each of ``texts`` is wanted."""
        # Not with contains_any, whose automaton takes three times as long for so many needles.
        are_wanted = texts.str.contains("|".join(map(re.escape, self.needles)))
        return are_wanted if self.expression is None else are_wanted | texts.str.contains(self.expression)

    def shorten(self, texts: pl.Series) -> pl.Series:
        """``texts`` without the numbers of operators, as in ``_AllToAll, op_id``: so millions share few texts."""
        if self.expression is not None:
            return texts
        matters = (
            pl.lit(value=False) if self.numbered is None else pl.col("text").str.contains(self.numbered, literal=True)
        )
        short = pl.when(matters).then("text").otherwise(pl.col("text").str.replace(_NUMBERS_OF_OPERATOR, ", op_id"))
        return texts.alias("text").to_frame().select(short).to_series()


_IS_OPERATOR = re.compile(r"^(aten|autograd)::|, (seq|op_id|sizes) = ")
"""Texts of emit_nvtx: an operator, forward or backward, with its numbers and sizes."""
_NUMBERS_OF_OPERATOR = r"(?:, (?:seq = \d+|op_id = \d+|sizes = \[[\[\]0-9, ]*|input_op_ids = \[[\[\]()0-9, -]*))+$"
"""What emit_nvtx writes after the name of an operator: nothing but numbers."""
_OPERATORS = "aten::"
"""Begins the operators of PyTorch: four in five ranges of emit_nvtx, and none that communicates or marks a step."""


def read_ranges(export: NsysExport, wanted: WantedRanges) -> ExportRanges:
    """NVTX ranges (schemas.HOST_RANGES) that are ``wanted``, sorted.

    The table is the largest of an export (millions of rows), so it is read once. A text is in the row itself or in
    StringIds. Without an expression, SQLite skips the rows that cannot match.
    """
    has_text, has_text_id = (column in export.columns.get(NVTX, ()) for column in ("text", "textId"))
    if not export.has(NVTX, "start", "end", "eventType", "globalTid") or not (has_text or has_text_id):
        return pl.DataFrame(schema=HOST_RANGES)
    texts = export.strings_where(wanted.select) if has_text_id else {}
    text_of_id = pl.DataFrame([*texts.items()], {"text_id": pl.Int64, "text": pl.String}, orient="row")

    def keep_wanted(rows: AnyTable) -> AnyTable:
        # polars searches a text for all needles in one pass; SQLite would need one pass per needle.
        inline = rows.filter(wanted.select(rows["text"]))
        by_id = rows.filter(pl.col("text").is_null()).drop("text").join(text_of_id, on="text_id").select(inline.columns)
        both = pl.concat([inline, by_id])
        # Written anew: filtered texts would keep the memory of all that they were read with.
        return both.with_columns(text=_share_texts(wanted.shorten(both["text"] + "")))

    frame = export.frame(
        NVTX,
        {"start_ns": "start", "end_ns": "end", "thread": "globalTid", "text": "text", "text_id": "textId"},
        f"WHERE eventType IN {NVTX_RANGE_TYPES} AND start IS NOT NULL AND "
        f"{_where_wanted(wanted, texts, has_text=has_text, has_text_id=has_text_id)}",
        text=("text",),
        reduce=keep_wanted,
    )
    ranges = conform(frame.with_columns(process=process_of("thread")), HOST_RANGES)
    in_order = ranges.filter(_IS_TIMED).sort("process", "thread", "start_ns", "end_ns", "text")
    return share_constants(in_order.with_columns(text=_share_texts(in_order["text"])))


def _share_texts(texts: pl.Series) -> pl.Series:
    """``texts``, of which few differ: these are then in memory once."""
    distinct = texts.unique()
    if len(distinct) * 2 > len(texts):
        return texts
    return distinct.gather(texts.cast(pl.Enum(distinct)).to_physical())


def _where_wanted(wanted: WantedRanges, texts: Mapping[int, str], *, has_text: bool, has_text_id: bool) -> str:
    """The condition of SQLite for rows that may be ``wanted``; ``texts``: those of StringIds that are, by id."""
    inline = "text != ''"
    if wanted.expression is None and len(wanted.needles) == 1:
        inline = f"text GLOB '*{wanted.needles[0]}*'"
    elif wanted.expression is None and not any(_OPERATORS in needle for needle in wanted.needles):
        inline = f"text NOT GLOB '{_OPERATORS}*' AND {inline}"  # what leaves out most comes first
    if not has_text_id:
        return inline
    # An expression that matches most texts gives more ids than a statement may list.
    is_listed = len(texts) <= _MOST_LISTED_IDS
    ids = f"IN ({','.join(map(str, sorted(texts)))})" if is_listed else f"BETWEEN {min(texts)} AND {max(texts)}"
    return f"({inline} OR text IS NULL AND textId {ids})" if has_text else f"textId {ids}"


def has_operator_sizes(export: NsysExport) -> bool:
    """Whether some range is an operator of PyTorch that states the sizes of its arguments."""
    places = (("StringIds", "value"), (NVTX, "text"))
    return any(
        export.has(table, column)
        and bool(export.rows(f'SELECT 1 FROM "{table}" WHERE "{column}" GLOB ? LIMIT 1', (_WITH_SIZES,)))
        for table, column in places
    )


def read_ranges_between(path: Path, process: int, begin_ns: int, until_ns: int) -> ExportRanges:
    """Nested ranges (schemas.HOST_RANGES) of ``process`` that were open at some time from ``begin_ns`` to ``until_ns``.

    An export of a long capture holds millions of ranges, most of them PyTorch's operators. :func:`read_ranges` reads
    only the few that all steps need; the others are read for the representative step alone. They are sorted by thread
    and start, the outer before the inner. Raises InputError if the file can no longer be read.
    """
    with plain_sqlite(path) as plain, NsysExport(plain, path) as export:
        if not export.has(NVTX, "start", "end", "eventType", "globalTid"):
            return pl.DataFrame(schema=HOST_RANGES)
        # What leaves out most comes first: of a long capture this visits millions of rows for those of one step.
        where = f"WHERE start <= {until_ns:d} AND (end >= {begin_ns:d} OR end IS NULL) AND eventType = {PUSH_POP}"
        columns = {"start_ns": "start", "end_ns": "end", "thread": "globalTid", "text_id": "textId", "text": "text"}
        frame = export.frame(NVTX, columns, where, text=("text",)).with_columns(process=process_of("thread"))
        of_process = frame.filter(pl.col("process") == process)
        by_id = of_process.filter(pl.col("text").is_null())["text_id"]
        texts = export.strings(by_id.drop_nulls().unique().to_list())
    with_texts = of_process.with_columns(
        text=pl.coalesce("text", pl.col("text_id").replace_strict(texts, default=None, return_dtype=pl.String))
    )
    timed = conform(with_texts, HOST_RANGES).drop_nulls(["text"]).filter(_IS_TIMED)
    return timed.sort(
        "thread", "start_ns", pl.col("end_ns").fill_null(2**62), "text", descending=[False, False, True, False]
    )


def read_thread_names(path: Path) -> dict[int, str]:
    """What threads call themselves, by their id in the export. Raises InputError if the file can no longer be read."""
    with plain_sqlite(path) as plain, NsysExport(plain, path) as export:
        if not export.has(THREAD_NAMES, "nameId", "globalTid"):
            return {}
        named = export.frame(THREAD_NAMES, {"thread": "globalTid", "name_id": "nameId"}).drop_nulls()
        names = export.strings(named["name_id"].unique().to_list())
    return {thread: names[name] for thread, name in named.select("thread", "name_id").iter_rows() if name in names}


def read_os_calls_between(path: Path, process: int, begin_ns: int, until_ns: int) -> list[str]:
    """Names of the operating system's functions that threads of ``process`` were in, those that took longest first.

    Raises InputError if the file can no longer be read.
    """
    with plain_sqlite(path) as plain, NsysExport(plain, path) as export:
        if not export.has(OS_CALLS, "start", "end", "nameId", "globalTid"):
            return []
        where = f"WHERE start < {until_ns:d} AND end > {begin_ns:d}"
        columns = {"start_ns": "start", "end_ns": "end", "thread": "globalTid", "name_id": "nameId"}
        calls = export.frame(OS_CALLS, columns, where).filter(process_of("thread") == process)
        inside_ns = pl.min_horizontal("end_ns", until_ns) - pl.max_horizontal("start_ns", begin_ns)
        longest = calls.group_by("name_id").agg(ns=inside_ns.sum()).sort("ns", "name_id", descending=[True, False])
        names = export.strings(longest["name_id"].drop_nulls().to_list())
    return [names[name_id] for name_id in longest["name_id"] if name_id in names]


def list_range_texts(path: Path, most: int) -> list[str]:
    """Texts of NVTX ranges in the export at ``path``, those that take most time in all first; no operators of PyTorch.

    Of texts that differ in their numbers only, one is listed: ``iteration 7`` stands for all iterations.
    """
    with plain_sqlite(path) as plain, NsysExport(plain, path) as export:
        if not export.has(NVTX, "start", "end", "eventType"):
            return []
        text, join = export.text_of(NVTX)
        rows = export.rows(
            f"SELECT {text} AS t, SUM(e.end - e.start) AS ns FROM {NVTX} e {join} "
            f"WHERE e.eventType IN {NVTX_RANGE_TYPES} AND e.end IS NOT NULL GROUP BY t ORDER BY ns DESC, t LIMIT 1000"
        )
    texts: dict[str, str] = {}
    for value, _ in rows:
        if isinstance(value, str) and value and not _IS_OPERATOR.search(value):
            texts.setdefault(re.sub(r"\d+", "0", value), value)
    return list(texts.values())[:most]


def read_overhead(export: NsysExport) -> ExportOverhead:
    """Times in which the profiler held up a thread (schemas.OVERHEAD), sorted; empty if not recorded."""
    frames = [
        export.frame(table, {"thread": "globalTid", "start_ns": "start", "end_ns": "end"}) for table in OVERHEAD_TABLES
    ]
    frame = pl.concat(frames).filter(HAS_ENDED & (pl.col("end_ns") > pl.col("start_ns")))
    return conform(frame, OVERHEAD).unique().sort("thread", "start_ns", "end_ns")


def process_of(thread: str) -> pl.Expr:
    """The globalPid of a column of globalTids."""
    return pl.col(thread) - pl.col(thread) % THREADS_PER_PROCESS
