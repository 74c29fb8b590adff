"""The part of a run that conclusions about some of its steps rest on: their operations, those next to them, and calls.

What was launched shortly before a step can delay it, and what was launched shortly after it can end its last gap: twice
as many operations count as the streams of a rank can hold.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace

import numpy as np
import polars as pl

from three_walls.step.build_timeline import Timeline, find_between
from three_walls.step.intervals import DURATION
from three_walls.tables.buckets import COMPUTE_CATEGORIES
from three_walls.trace.read_trace import Trace
from three_walls.trace.schemas import OPERATIONS, Int64Array, share_constants

FULL_QUEUE_OPERATIONS = 900
"""Operations that wait to run while the launch queue is full, at least. Launches that waited for 20 ms or more had
1,004 to 1,021 operations before them on their stream that had not ended (H200, driver 580)."""

LARGEST_MARGIN = 20_000
"""Operations before and after some steps, however many streams there are."""


class RankRows:
    """Finds among the operations of one rank those that conclusions about steps rest on."""

    def __init__(self, operations: pl.DataFrame) -> None:
        """``operations``: those of a rank among Timeline.operations."""
        self._start_ns, self._end_ns = operations["start_ns"], operations["end_ns"]
        most_queued = FULL_QUEUE_OPERATIONS * operations["stream"].n_unique()
        self._margin = min(LARGEST_MARGIN, 2 * most_queued)
        ends_gap = pl.col("category").is_in(list(COMPUTE_CATEGORIES)) & (DURATION > 0)
        computes = operations.select("category", "start_ns", "end_ns").select(ends_gap.arg_true())
        self._computing = computes.to_series().to_numpy()

    def count_before(self, times_ns: pl.Series) -> Int64Array:
        """How many operations start before each of ``times_ns``."""
        return self._start_ns.search_sorted(times_ns, "left").to_numpy()

    def find(self, begin_ns: int, until_ns: int) -> tuple[Int64Array, int, int]:
        """Rows for the steps from ``begin_ns`` to ``until_ns``: single ones, and those from a first to before a last.

        The single ones are earlier operations that still run at ``begin_ns``. The others are the operations of the
        steps and those next to them; among these is the compute operation that ends the last gap, with those that start
        together with it.
        """
        first, after = self.count_before(pl.Series([begin_ns, until_ns], dtype=pl.Int64)).tolist()
        begin, end = max(0, first - self._margin), min(len(self._start_ns), after + self._margin)
        following = int(np.searchsorted(self._computing, after, "left"))
        if following < len(self._computing):
            next_start_ns = self._start_ns[int(self._computing[following])]
            end = max(end, self._start_ns.search_sorted(next_start_ns, "right"))
        return (self._end_ns[:begin] > begin_ns).arg_true().to_numpy(), begin, end


def select_steps(timeline: Timeline, numbers: Collection[int]) -> Timeline:
    """``timeline`` with the steps of ``numbers`` alone, and with what conclusions about these rest on.

    Its operations are copies: the memory of all is free when nothing else refers to them.
    """
    steps = timeline.steps.with_columns(wanted=pl.col("step").is_in(sorted(numbers)))
    are_needed = np.zeros(timeline.operations.height, dtype=bool)
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    first = 0
    for count, rank_index in timeline.operations.select(pl.col("rank_index").rle()).unnest("rank_index").rows():
        operations = timeline.operations[first : first + count]
        rank_rows = RankRows(operations)
        for begin_ns, until_ns in _list_stretches(steps.filter(pl.col("rank_index") == rank_index)):
            single, begin, end = rank_rows.find(begin_ns, until_ns)
            are_needed[first + single] = True
            are_needed[first + begin : first + end] = True
            launched = operations["launch_start_ns"][begin:end]
            hosts_ns = [ns for ns in (begin_ns, until_ns, launched.min(), launched.max()) if isinstance(ns, int)]
            spans[operations["capture_id"][0]].append((min(hosts_ns), max(hosts_ns) + 1))
        first += count
    return replace(
        timeline,
        steps=steps.filter("wanted").drop("wanted"),
        operations=share_constants(timeline.operations.filter(are_needed)),
        api_calls=timeline.api_calls.during(spans),
    )


def select_from_trace(trace: Trace, timeline: Timeline) -> Trace:
    """``trace`` with its operations and calls in ``timeline`` alone, with which it shares their memory."""
    operations = find_between(timeline.operations, "capture_id", trace.capture_id, trace.capture_id + 1)
    return replace(
        trace,
        operations=operations.select(OPERATIONS.names()),
        api_calls=timeline.api_calls.of_captures([trace.capture_id]),
    )


def _list_stretches(steps: pl.DataFrame) -> list[tuple[int, int]]:
    """Begin and end of each run of ``wanted`` steps among those of a rank."""
    runs = steps.sort("start_ns").with_columns(run=pl.col("wanted").rle_id()).filter("wanted")
    bounds = runs.group_by("run", maintain_order=True).agg(pl.col("start_ns").first(), pl.col("end_ns").last())
    return bounds.select("start_ns", "end_ns").rows()
