"""Which operation the host waited for in each call that blocks, so that the call returns after it in a replay too.

A call blocks that synchronizes, and so does a launch while the launch queue is full. The driver queues about a thousand
launches per channel; the next one returns when the oldest of them has run. Such a launch takes milliseconds, and none
of them is the host's own work. The queue often holds the end of the step before, so the launch then waited for an
operation of that step: for the one at the same place of its stream.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

import numpy as np
import polars as pl

from three_walls.replay import replay_thresholds
from three_walls.replay.step_graph import NONE, HostCalls
from three_walls.step.selected_steps import FULL_QUEUE_OPERATIONS
from three_walls.step.step_tables import Operations
from three_walls.trace.schemas import BoolArray, Int64Array, StreamWaits

_STREAM, _EVENT, _COPY, _DEVICE = "Stream", "Event", "Mem", "device"
"""What calls wait for: a stream, an event, their own copy, by parts of their names; else the device."""

_PAGEABLE = ("copy_h2d_pageable", "copy_d2h_pageable")
"""Copies that the call stages itself."""


def find_awaited(
    calls: HostCalls, operations: Operations, waits: StreamWaits, call_of: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Pairs (call, operation that it waited for), in the order of calls.

    ``calls``: CALLS of one rank. ``operations``: of that rank's step in the order of their starts. ``waits``:
    Timeline.stream_waits of its process, which give the stream of a cudaStreamSynchronize. ``call_of``: per operation
    the call that launched it, or NONE.

    - A stream: the last operation launched on it before.
    - An event: PyTorch's records are mostly not listed, so it is the last operation to end before the return, among
      those after which some event was recorded.
    - A copy from or to the host that ends before its call returns: the copy.
    - The device, or a long allocation (cudaFree synchronizes): the last operation to end before the return.
    """
    longest_tail_ns = replay_thresholds.LONGEST_ALLOCATION_TAIL_NS
    took_long = pl.col("end_ns") - pl.col("start_ns") > replay_thresholds.LONG_ALLOCATION_NS
    allocates, name = pl.col("kind") == "allocate", pl.col("name").cast(pl.String)
    waited_on = waits.drop_nulls("correlation").unique("correlation", keep="last", maintain_order=True)
    blocking = (
        calls.with_row_index("call")
        .filter((pl.col("kind") == "synchronize") | (allocates & took_long))
        .join(waited_on.select("correlation", "stream", has_stream=pl.lit(value=True)), on="correlation", how="left")
        .with_columns(
            waits_for=pl.when(allocates)
            .then(pl.lit(_DEVICE))
            .when(name.str.contains(_STREAM, literal=True) & pl.col("has_stream"))
            .then(pl.lit(_STREAM))
            .when(name.str.contains(_EVENT, literal=True))
            .then(pl.lit(_EVENT))
            .when(name.str.contains(_COPY, literal=True))
            .then(pl.lit(_COPY))
            .otherwise(pl.lit(_DEVICE)),
            from_ns=pl.when(allocates)
            .then(pl.max_horizontal("start_ns", pl.col("end_ns") - longest_tail_ns))
            .otherwise("start_ns"),
        )
    )
    launched = _Launched(operations, calls, call_of)
    recorded = launched.before_a_record(calls.filter(pl.col("kind") == "event_record")["start_ns"].to_numpy())
    awaited = np.full(calls.height, NONE, dtype=np.int64)
    for (stream,), part in blocking.filter(pl.col("waits_for") == _STREAM).group_by("stream"):
        awaited[part["call"]] = launched.last_on(stream, part["start_ns"].to_numpy())
    for waits_for, among in ((_EVENT, recorded), (_DEVICE, launched.by_end)):
        part = blocking.filter(pl.col("waits_for") == waits_for)
        awaited[part["call"]] = launched.last_to_end(part, among)
    own = _find_own_waits(calls, operations, call_of)
    awaited[call_of[own]] = own
    waiting = np.flatnonzero(awaited != NONE)
    return waiting, awaited[waiting]


def _find_own_waits(calls: pl.DataFrame, operations: Operations, call_of: Int64Array) -> Int64Array:
    """The operations that the calls that launched them waited for: those that ended before the call returned.

    Copies from and to pageable memory are waited for. On a slow host any short operation ends while its call is still
    open, which looks the same; but launches block with CUDA_LAUNCH_BLOCKING alone, and then most of them are over.
    """
    has_call = np.flatnonzero(call_of != NONE)
    call = call_of[has_call]
    kind = calls["kind"].cast(pl.String).fill_null("")  # a call without a name has no kind
    is_launch = (kind == "launch").to_numpy()[call]
    is_over = operations["end_ns"].to_numpy()[has_call] <= calls["end_ns"].to_numpy()[call]
    is_blocking = is_launch.any() and is_over[is_launch].mean() > replay_thresholds.BLOCKING_LAUNCHES_FRACTION
    copies = operations["category"].cast(pl.String).is_in(_PAGEABLE).to_numpy()[has_call]
    waits = copies | (kind == "synchronize").to_numpy()[call] | (is_launch & is_blocking)
    return np.asarray(has_call[is_over & waits])


class _Launched:
    """The operations of one rank's step, searchable by stream and launch, and by end."""

    def __init__(self, operations: Operations, calls: pl.DataFrame, call_of: Int64Array) -> None:
        start = calls["start_ns"].to_numpy()
        self._end = operations["end_ns"].to_numpy()
        self._launch = np.where(call_of != NONE, start[call_of] if len(start) else 0, operations["start_ns"].to_numpy())
        self.by_end = np.argsort(self._end, kind="stable")
        stream = operations["stream"].to_numpy()
        self._of_stream: dict[int, Int64Array] = {}
        for number in np.unique(stream):
            places = np.flatnonzero(stream == number)
            self._of_stream[int(number)] = places[np.argsort(self._launch[places], kind="stable")]

    def before_a_record(self, record_ns: Int64Array) -> Int64Array:
        """By end, the operations after which an event was recorded before the next one on their stream."""
        records = np.sort(record_ns)
        is_recorded = np.zeros(len(self._end), dtype=bool)
        for places in self._of_stream.values():
            launched = np.searchsorted(records, self._launch[places])
            is_recorded[places] = np.append(launched[1:], len(records)) > launched
        return self.by_end[is_recorded[self.by_end]]

    def last_on(self, stream: object, at_ns: Int64Array) -> Int64Array | int:
        """The last operations launched on ``stream`` before each of ``at_ns``, or NONE."""
        places = self._of_stream.get(stream) if isinstance(stream, int) else None
        if places is None:
            return NONE
        before = np.searchsorted(self._launch[places], at_ns) - 1
        return np.where(before >= 0, places[before], NONE)

    def last_to_end(self, calls: HostCalls, among: Int64Array) -> Int64Array:
        """The last operation to end while each of ``calls`` waited, from ``from_ns`` on, launched before it; or NONE.

        ``among``: the operations to look at, by end. Calls of a thread do not overlap, so each looks at operations of
        its own.
        """
        end, launch = self._end[among], self._launch[among]
        last = np.searchsorted(end, calls["end_ns"].to_numpy(), side="right") - 1
        earliest = np.searchsorted(end, calls["from_ns"].to_numpy(), side="left")
        for call, start_ns in enumerate(calls["start_ns"].to_list()):
            while last[call] >= earliest[call] and launch[last[call]] >= start_ns:
                last[call] -= 1
        return np.append(among, NONE)[np.where(last >= earliest, last, -1)]


@dataclass(frozen=True, slots=True)
class QueueWaits:
    """Launches that waited, in the order of calls. All arrays have one entry for each."""

    call: Int64Array
    operation: Int64Array
    """The operation of the step that had to end first, or that stands at its place in the step before."""
    is_carried: BoolArray
    """Whether it was one of the step before."""
    after_ns: Int64Array
    """From the end of that operation to the return of the launch."""

    def take(self, chosen: BoolArray) -> QueueWaits:
        """Those that are ``chosen``."""
        return QueueWaits(*(getattr(self, field.name)[chosen] for field in fields(self)))


EarlierLaunches = Annotated[
    pl.DataFrame,
    {"stream": pl.Int64, "launch_start_ns": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64},
]
"""What is needed of the operations before the step."""


def find_queue_waits(
    calls: HostCalls, operations: Operations, earlier: EarlierLaunches, call_of: Int64Array
) -> QueueWaits:
    """The launches of a step that waited for a place in the queue.

    ``calls``: of one rank. ``operations``: of that rank's step in the order of their starts; ``earlier``: of the
    steps before. ``call_of``: per operation the call that launched it, or NONE.
    """
    start, end = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    launched = np.flatnonzero(call_of != NONE)
    took_long = end[call_of[launched]] - start[call_of[launched]] > replay_thresholds.LONG_LAUNCH_NS
    stream = operations["stream"].to_numpy()
    waits: list[tuple[int, int, bool, int]] = []
    for number in np.unique(stream[launched[took_long]]).tolist():
        places = np.flatnonzero((stream == number) & (call_of != NONE))
        places = places[np.argsort(start[call_of[places]], kind="stable")]
        launched_before = (pl.col("stream") == number) & pl.col("launch_start_ns").is_not_null()
        before = earlier.select(pl.col("launch_start_ns", "end_ns").filter(launched_before))
        if not before["launch_start_ns"].is_sorted():
            before = earlier.filter(launched_before).sort("launch_start_ns", "start_ns")
        ends = np.concatenate([before["end_ns"], operations["end_ns"][places]])
        ended_ns = np.maximum.accumulate(ends)
        for place, call in enumerate(call_of[places].tolist()):
            if end[call] - start[call] <= replay_thresholds.LONG_LAUNCH_NS:
                continue
            ended = int(np.searchsorted(ended_ns, end[call], side="right"))
            queued, awaited = before.height + place - ended, ended - 1 - before.height
            if queued < FULL_QUEUE_OPERATIONS or ended == 0 or awaited < -len(places):
                continue
            waits.append((call, int(places[awaited]), awaited < 0, int(end[call] - ended_ns[ended - 1])))
    by_call = {wait[0]: wait for wait in reversed(waits)}  # a graph has several operations; its first one counts
    columns = np.array(sorted(by_call.values()), dtype=np.int64).reshape(-1, 4).T
    return QueueWaits(columns[0], columns[1], columns[2].astype(bool), columns[3])
