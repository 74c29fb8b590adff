"""Launches that waited for a place in the launch queue: the host was as far ahead of the device as it can be.

The driver queues about a thousand launches per channel; the next one returns when the oldest of them has run. Such a
launch takes milliseconds, and none of them is the host's own work. The queue often holds the end of the step before, so
the launch then waited for an operation of that step: for the one at the same place of its stream.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

import numpy as np
import polars as pl

from three_walls.replay import replay_thresholds
from three_walls.replay.step_graph import NONE, HostCalls
from three_walls.step import timeline_thresholds
from three_walls.step.step_tables import Operations
from three_walls.trace.schemas import BoolArray, Int64Array


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
    found: list[tuple[int, int, bool, int]] = []
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
            if queued < timeline_thresholds.FULL_QUEUE_OPERATIONS or ended == 0 or awaited < -len(places):
                continue
            found.append((call, int(places[awaited]), awaited < 0, int(end[call] - ended_ns[ended - 1])))
    by_call = {wait[0]: wait for wait in reversed(found)}  # a graph has several operations; its first one counts
    columns = np.array(sorted(by_call.values()), dtype=np.int64).reshape(-1, 4).T
    return QueueWaits(columns[0], columns[1], columns[2].astype(bool), columns[3])
