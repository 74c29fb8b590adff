"""The timeline of a run, built from its traces: every device operation with its category and launch, and the steps.

``build_timeline`` is the list of what is worked out, in order:

- ``find_launches``: the API call that launched each operation.
- ``categories.py``: what each operation is, from its name.
- ``communication_owners.py``: which kind of parallelism an NCCL kernel belongs to.
- ``find_steps.py``: where the training steps begin and end, and which of them are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from three_walls.lib.errors import UsageError
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.step.categories import (
    CATEGORY,
    classify,
    mark_attention_copies,
    mark_matrix_optimizer,
    mark_unfused_attention,
)
from three_walls.step.communication_owners import (
    ALL_TO_ALL_TEXTS,
    NCCL_CATEGORIES,
    join_communicators,
    resolve_collectives,
    resolve_send_recv,
    take_ranges,
)
from three_walls.step.find_steps import TRAINING_STEP_TEXT, find_steps
from three_walls.step.stalled_calls import begin_late, find_stalls
from three_walls.step.step_rows import StepSource
from three_walls.step.step_tables import (
    ClassifiedOperations,
    LaunchedOperations,
    Launches,
    Operations,
    Steps,
    ThreadIntervals,
)
from three_walls.tables.buckets import GEMM_CATEGORIES
from three_walls.tables.kernel_names import KernelPack, load_api_patterns, shown_settings, union_of
from three_walls.tables.megatron_signs import megatron_signs
from three_walls.tables.nvtx_ranges import collective_owners
from three_walls.tables.shareable import cut_private
from three_walls.trace.api_calls import ApiCalls
from three_walls.trace.read_tables import WantedRanges, list_range_texts
from three_walls.trace.read_trace import Trace, list_steps_to_read
from three_walls.trace.schemas import (
    ROWS_AT_ONCE,
    AnyTable,
    EventRecords,
    Int64Array,
    ProfilerOverhead,
    StreamWaits,
    share_constants,
)

_REMEDIES = {
    "look-around": r"write the text itself, as in 'iteration \d+$' instead of '(?<=iteration )\d+(?! of)'",
    "backreferences": "write the repeated text again; for a character by its code, write \\x41",
    "unrecognized flag": "of groups there are (...), (?:...), (?P<name>...) and (?i)",
    "unrecognized escape": r"for the end of the text, write $; for a character by its code, write \x41",
    "repetition": r"for the character {, write \{",
    "too large": r"write fewer or smaller repetitions, or [0-9] for \d and [A-Za-z0-9_] for \w",
}
"""Part of what polars (Rust's regex) finds wrong in an expression -> what to write instead."""

_MOST_NAMED, _LONGEST_NAMED, _LONGEST_READ = 6, 60, 1_000
"""Ranges that an error names, the characters that it shows of each, and those that are searched for private parts."""

_OF_COMMUNICATOR = ("communicator", "message_bytes")

_NEVER = 2**62
_OF_LAUNCH = ("start_ns", "end_ns", "thread")


@dataclass(frozen=True, slots=True)
class Timeline:
    """All device operations and steps of a run, with the host activity that explains them.

    Times are those of each capture's own clock.
    """

    operations: Operations
    steps: Steps
    sources: Mapping[int, StepSource]
    """Where the step boundaries of each rank come from, by rank index."""
    synchronizing: ThreadIntervals
    """API calls that wait for the device."""
    overhead: ProfilerOverhead
    api_calls: ApiCalls
    """All CUDA API calls: what host threads were doing."""
    stream_waits: StreamWaits
    event_records: EventRecords

    def with_steps(self, steps: Steps) -> Timeline:
        """This timeline with other ``steps``."""
        return replace(self, steps=steps)


def take_rank(operations: Operations, rank_index: int) -> Operations:
    """The rows of a rank, in place. ``operations`` are sorted by rank, as ``Timeline.operations`` are."""
    return find_between(operations, "rank_index", rank_index, rank_index + 1)


def find_between(rows: AnyTable, column: str, begin: int, end: int) -> AnyTable:
    """The ``rows``, sorted by ``column``, from ``begin`` to before ``end``, in place."""
    bounds = pl.Series([begin, end], dtype=pl.Int64)
    first, after = rows.select(pl.col(column).search_sorted(bounds, "left")).to_series()
    return rows[first:after]


def wanted_ranges(step_range: str | None) -> WantedRanges:
    """The NVTX ranges an analysis reads: steps, the user's own, owners of communication, and those that show a setting
    or Megatron.

    Raises UsageError where ``step_range`` is no regular expression that can be searched in linear time.
    """
    if step_range:
        _check_expression(step_range)
    owners = tuple(text for row in collective_owners().owners for text in row.texts)
    settings = tuple(text for row in shown_settings() for text in row.ranges)
    signs = tuple(text for sign in (*megatron_signs().ranges, *megatron_signs().shared_ranges) for text in sign.texts)
    needles = (TRAINING_STEP_TEXT, *ALL_TO_ALL_TEXTS, *owners, *settings, *signs)
    return WantedRanges(tuple(dict.fromkeys(needles)), step_range or None, numbered=TRAINING_STEP_TEXT)


def _check_expression(step_range: str) -> None:
    try:
        pl.Series([""]).str.contains(step_range)
        return
    except pl.exceptions.ComputeError as error:
        _, _, message = str(error).partition("\nerror: ")
        reason = message.partition("\n")[0] or "too large when it is written out"
    for part, remedy in _REMEDIES.items():
        if part in reason:
            reason = f"{reason}; {remedy}"
            break
    raise UsageError(f"--step-range: expected a regular expression, found {step_range!r} ({reason})")


def build_timeline(
    traces: Sequence[Trace], config: RunConfig, step_range: str | None, own_names: KernelPack | None = None
) -> Timeline:
    """The timeline of the ``traces`` of one run. Each capture keeps its own clock, and each rank its own steps.

    ``step/ranks`` later numbers the steps alike on all ranks and drops those that a rank captured in part.
    """
    synchronize = union_of(load_api_patterns(), "synchronize").search
    # Those of a trace are sorted by rank and start, and ranks are numbered from trace to trace.
    operations = pl.concat([_classify_operations(trace, config, own_names) for trace in traces])
    ranges = pl.concat([trace.ranges for trace in traces])
    api_calls = ApiCalls.join(trace.api_calls for trace in traces)
    waiting = api_calls.named(lambda name: synchronize(name) is not None)
    operations = begin_late(operations, find_stalls(operations, api_calls))
    steps, sources = find_steps(operations, ranges, step_range or None, list_steps_to_read(traces))
    if step_range:
        _check_steps_found(traces, ranges, sources, step_range)
    return Timeline(
        operations=operations,
        steps=steps,
        sources=sources,
        synchronizing=waiting.frame("capture_id", "thread", "start_ns", "end_ns"),
        overhead=pl.concat([trace.overhead for trace in traces]),
        api_calls=api_calls,
        stream_waits=pl.concat([trace.stream_waits for trace in traces]),
        event_records=pl.concat([trace.event_records for trace in traces]),
    )


def _check_steps_found(
    traces: Sequence[Trace], ranges: pl.DataFrame, sources: Mapping[int, StepSource], step_range: str
) -> None:
    """Raises UsageError where ``step_range`` names no range, or only ranges in which nothing was launched."""
    texts = ranges.filter(pl.col("text").str.contains(step_range))["text"]
    if texts.is_empty():
        of_traces = (list_range_texts(trace.path, _MOST_NAMED) for trace in traces)
        examples = ", ".join(map(_quote_range, next(filter(None, of_traces), [])))  # the ranks of a run have the same
        exist = f"there are {examples}" if examples else "the trace has none (capture with -t cuda,nvtx)"
        raise UsageError(f"--step-range: expected an NVTX range in which {step_range!r} is found; {exist}")
    if all(source in (StepSource.OPTIMIZER, StepSource.ONE_WINDOW) for source in sources.values()):
        raise UsageError(
            f"--step-range: expected ranges in which kernels are launched, found none in {_quote_range(texts[0])} and "
            f"the others in which {step_range!r} is found; name ranges around forward and backward passes"
        )


def _quote_range(text: str) -> str:
    """The text of a range as an error names it."""
    text = cut_private(text[:_LONGEST_READ])
    return repr(text if len(text) <= _LONGEST_NAMED else f"{text[: _LONGEST_NAMED - 3]}...")


def _classify_operations(trace: Trace, config: RunConfig, own_names: KernelPack | None) -> Operations:
    """The operations of ``trace`` with their launches, categories and communicators.

    Columns are added to those of the trace, never gathered anew: the two share their memory.
    """
    operations = classify(_add_hosts(trace), trace.names, own_names)
    communication = _resolve_owners(operations, trace, config)
    # Categories have the same numbers with SendRecv among them, which is the last, as without.
    category = (
        operations["category"].to_physical().scatter(communication["place"], communication["category"].to_physical())
    )
    columns = [_spread(communication[name], communication["place"], operations.height) for name in _OF_COMMUNICATOR]
    whole = operations.with_columns(*columns, category=category.cat.to(CATEGORY))
    return share_constants(mark_matrix_optimizer(mark_attention_copies(mark_unfused_attention(whole))))


def _spread(values: pl.Series, places: pl.Series, height: int) -> pl.Series:
    """``values`` at their ``places`` of ``height`` rows, the others of which are null."""
    return pl.repeat(None, height, dtype=values.dtype, eager=True).scatter(places, values).alias(values.name)


def _resolve_owners(operations: ClassifiedOperations, trace: Trace, config: RunConfig) -> Operations:
    """The ``operations`` that communicate, a few in a hundred, with communicators and the categories of their owners.

    Their ``place`` among all is added. An operation of each stream that computes is among them: it shows where an
    exchange blocks compute.
    """
    communicating = operations.select(pl.col("category").is_in(NCCL_CATEGORIES).arg_true()).to_series()
    key = ["rank_index", "stream"]
    computes = pl.col("category").is_in(list(GEMM_CATEGORIES))
    parts = operations.select(*key, "category").with_row_index("place").iter_slices(ROWS_AT_ONCE)
    computing = pl.concat(rows.filter(computes).unique(key) for rows in parts).unique(key)
    few = pl.concat([communicating, computing["place"]]).sort()
    with_communicators = join_communicators(
        operations.select(pl.all().gather(few)).with_columns(place=few), trace.nccl_calls
    )
    all_to_all = take_ranges(trace.ranges, ALL_TO_ALL_TEXTS)
    with_exchanges = resolve_send_recv(with_communicators, all_to_all, config)
    return resolve_collectives(with_exchanges, trace.ranges, collective_owners().owners, config)


def _add_hosts(trace: Trace) -> LaunchedOperations:
    """Adds the host's side to the operations."""
    process_of_rank = {rank.rank_index: rank.process for rank in trace.ranks}
    processes = set(process_of_rank.values())
    process = (
        pl.lit(processes.pop(), dtype=pl.Int64)  # one number for all rows takes no memory
        if len(processes) == 1
        else pl.col("rank_index").replace_strict(process_of_rank, return_dtype=pl.Int64)
    )
    capture_id = pl.lit(trace.capture_id, dtype=pl.Int64)
    operations = trace.operations.with_columns(capture_id=capture_id, process=process)
    return operations.hstack(find_launches(operations.select("process", "correlation"), trace.api_calls))


def find_launches(operations: AnyTable, api_calls: ApiCalls) -> Launches:
    """The API call that launched each of ``operations`` (process, correlation), by the correlation id that both have.

    These ids are unique within a process only: two ranks in one capture share them. All operations of a CUDA graph have
    the id of the call that launched the graph. Of several calls with one id, the first launched; of those that start
    together, the first of the export.
    """
    processes = operations["process"].unique().to_list()
    launched = [_sort_by_call(operations, process) for process in processes]
    launches = {name: np.full(operations.height, _NEVER, dtype=np.int64) for name in _OF_LAUNCH}
    for process, (rows, ids) in zip(processes, launched, strict=True):
        is_first = np.ones(len(ids), dtype=bool)
        is_first[1:] = ids[1:] != ids[:-1]
        if is_first.all():
            _find_first_calls(ids, rows, api_calls, process, launches)
            continue
        _find_first_calls(ids[is_first], rows[is_first], api_calls, process, launches)
        first_row = rows[is_first][np.cumsum(is_first) - 1]
        for values in launches.values():
            values[rows] = values[first_row]
    del launched
    is_missing = pl.Series(launches["start_ns"] == _NEVER)
    # Each is let go as soon as it is copied: there may be millions of operations.
    columns = [pl.Series(f"launch_{name}", launches.pop(name)) for name in _OF_LAUNCH]
    return pl.DataFrame([column.set(is_missing, None) for column in columns] if is_missing.any() else columns)


def _sort_by_call(operations: pl.DataFrame, process: int) -> tuple[Int64Array, Int64Array]:
    """The rows of a ``process`` whose call is known, by its id, and these ids."""
    is_known = operations.select((pl.col("process") == process) & pl.col("correlation").is_not_null()).to_series()
    ids = operations["correlation"].filter(is_known).to_numpy()
    order = np.argsort(ids, kind="stable")
    return is_known.arg_true().to_numpy()[order], ids[order]


def _find_first_calls(
    ids: Int64Array, rows: Int64Array, api_calls: ApiCalls, process: int, launches: dict[str, Int64Array]
) -> None:
    """Notes in the ``rows`` of ``launches`` the first of the calls with each of ``ids``, which are sorted."""
    for calls in api_calls.of_process(process):
        numbered_calls = calls.drop_nulls("correlation")
        if numbered_calls.is_empty():
            continue
        ids_of_calls, start_ns = numbered_calls["correlation"].to_numpy(), numbered_calls["start_ns"].to_numpy()
        # Of calls with one id, the first comes first. Operations are looked for among the calls of a part, and not the
        # other way round: they are fewer, and these calls are small enough for the processor's cache.
        order = np.lexsort((start_ns, ids_of_calls))
        ids_of_calls = ids_of_calls[order]
        near = slice(np.searchsorted(ids, ids_of_calls[0]), np.searchsorted(ids, ids_of_calls[-1], "right"))
        place = np.searchsorted(ids_of_calls, ids[near])
        is_launch = ids_of_calls[place] == ids[near]
        row, call = rows[near][is_launch], order[place[is_launch]]
        is_earlier = start_ns[call] < launches["start_ns"][row]
        for name, values in launches.items():
            values[row[is_earlier]] = numbered_calls[name].to_numpy()[call[is_earlier]]
