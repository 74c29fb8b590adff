"""What an operation on the device had to wait for besides its launch: its stream, events, and multiprocessors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from three_walls.replay import replay_thresholds
from three_walls.replay.step_graph import NONE
from three_walls.step.step_tables import Operations
from three_walls.step.stream_edges import EventCalls, find_edges
from three_walls.trace.schemas import BoolArray, Int64Array


def follow_streams(operations: Operations) -> Int64Array:
    """Per operation the one before it on its stream, or NONE. ``operations``: of one rank in the order of starts."""
    stream = operations["stream"].to_numpy()
    previous = np.full(len(stream), NONE, dtype=np.int64)
    for number in np.unique(stream):
        places = np.flatnonzero(stream == number)
        previous[places[1:]] = places[:-1]
    return previous


def find_producers(event_calls: EventCalls, parts: Sequence[Operations]) -> list[tuple[Int64Array, Int64Array]]:
    """Pairs (operation, producer): operations that waited for the event of a producer that started before them.

    ``parts``: operations of one step of one rank each. Each counts as a capture of its own, so that one search finds
    the pairs of all: searching nine parts one by one took twice as long.
    """
    number = [pl.lit(place, dtype=pl.Int64).alias("capture_id") for place in range(len(parts))]
    calls = [_list_calls_around(event_calls, operations) for operations in parts]
    waits, records, unlisted = (
        pl.concat([getattr(own, kind).with_columns(number[place]) for place, own in enumerate(calls)])
        for kind in ("waits", "records", "unlisted")
    )
    columns = ("process", "stream", "launch_start_ns", "start_ns", "end_ns")
    operations = pl.concat(
        [part.select(number[place], number[place].alias("rank_index"), *columns) for place, part in enumerate(parts)]
    ).with_columns(op=pl.int_range(pl.len()))
    edges = (
        find_edges(operations, EventCalls(waits.drop("row").with_row_index("row"), records, unlisted))
        .filter("resolved")
        .drop_nulls("producer")
        .select("op", "producer")
        .unique()
        .sort("op", "producer")
    )
    op, producer = (edges[name].cast(pl.Int64).to_numpy() for name in ("op", "producer"))
    start = operations["start_ns"].to_numpy()
    in_order = start[producer] < start[op]
    op, producer = op[in_order], producer[in_order]
    first = np.cumsum([0, *(part.height for part in parts)])
    cuts = np.searchsorted(op, first)
    return [
        (op[cuts[place] : cuts[place + 1]] - first[place], producer[cuts[place] : cuts[place + 1]] - first[place])
        for place in range(len(parts))
    ]


def _list_calls_around(event_calls: EventCalls, operations: Operations) -> EventCalls:
    capture, process = operations.select("capture_id", "process").row(0)
    of_process = (pl.col("capture_id") == capture) & (pl.col("process") == process)
    return event_calls.filter(of_process).around(operations["launch_start_ns"])


def find_resource_waits(
    operations: Operations, launch_ns: Int64Array, previous: Int64Array, events: tuple[Int64Array, Int64Array]
) -> Int64Array:
    """Per operation the one of another stream whose multiprocessors it waited for, or NONE.

    An operation that was launched, and had neither stream nor event to wait for, started late because others filled the
    device. What it waited for is the operation that ended nearest to its start, or was in its last wave then.
    ``launch_ns``: start of its launch call, NONE where unknown. ``previous``: follow_streams. ``events``:
    find_producers.
    """
    start, end = operations["start_ns"].to_numpy(), operations["end_ns"].to_numpy()
    stream = operations["stream"].to_numpy()
    ready = launch_ns + replay_thresholds.LATE_AFTER_LAUNCH_NS
    has_previous = previous != NONE
    ready[has_previous] = np.maximum(
        ready[has_previous], end[previous[has_previous]] + replay_thresholds.LATE_AFTER_STREAM_NS
    )
    np.maximum.at(ready, events[0], end[events[1]] + replay_thresholds.LATE_AFTER_EVENT_NS)
    late = np.flatnonzero((launch_ns != NONE) & (start > ready))
    holder = np.full(len(start), NONE, dtype=np.int64)
    nearest = np.full(len(start), np.iinfo(np.int64).max, dtype=np.int64)
    for number in np.unique(stream):
        places = np.flatnonzero(stream == number)
        last_started = np.searchsorted(start[places], start[late], side="right") - 1
        other = places[np.maximum(last_started, 0)]
        until_end = end[other] - start[late]
        last_wave_ns = replay_thresholds.RESOURCE_LAST_WAVE_FRACTION * (end[other] - start[other])
        reach = last_wave_ns + replay_thresholds.RESOURCE_LAST_WAVE_NS
        fits: BoolArray = (
            (last_started >= 0)
            & (stream[late] != number)
            & (other < late)
            & (end[other] > ready[late])
            & (until_end <= np.maximum(replay_thresholds.LATE_AFTER_EVENT_NS, reach))
            & (until_end > -replay_thresholds.RESOURCE_REACH_NS)
            & (np.abs(until_end) < nearest[late])
        )
        holder[late[fits]] = other[fits]
        nearest[late[fits]] = np.abs(until_end[fits])
    return holder
