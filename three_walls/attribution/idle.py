"""Why the device was idle: the host late (starved or blocked), the profiler, or something else.

An idle gap is a stretch of a step in which nothing runs on the device. It ends with some operation; until the launch
call of that operation began, the device could not have run it, so that part of the gap is the host's. It is *blocked*
where the launching thread was in a synchronizing call, *profiler* where the profiler delayed that thread, and *starved*
in between (Python, launches of other streams, allocation, nothing visible). After the call began, or where no call is
recorded, the gap is ``idle_other``.

A long time from launch to start is no starvation: it means that the host is ahead.
"""

from __future__ import annotations

import polars as pl

from three_walls.attribution.host_activity import THREAD
from three_walls.timeline.intervals import DURATION, gaps_within, intersect, merge_overlapping
from three_walls.timeline.steps import STEP
from three_walls.timeline.timeline import Timeline


def explain_idle(timeline: Timeline) -> pl.DataFrame:
    """Causes of idle time as labelled intervals: rank_index, step, start_ns, end_ns, label.

    Labels are ``launch_starved`` (all time until the launch), ``host_blocked`` and ``profiler`` (parts of it); the
    precedence of the buckets decides which one owns an instant. Idle time under no label is ``idle_other``.
    """
    late = _find_late_launches(timeline.operations, timeline.steps)
    blocked = intersect(late, merge_overlapping(timeline.synchronizing, THREAD), THREAD)
    delayed = intersect(late, merge_overlapping(timeline.overhead, THREAD), THREAD)
    labelled = [
        part.select(*STEP, "start_ns", "end_ns", label=pl.lit(label))
        for part, label in ((late, "launch_starved"), (blocked, "host_blocked"), (delayed, "profiler"))
    ]
    return pl.concat(labelled)


def _find_late_launches(operations: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The part of each idle gap before the launch of the operation that ends it, with the launching thread.

    Columns: rank_index, step, capture_id, thread, start_ns, end_ns.
    """
    busy = intersect(operations.select("rank_index", "start_ns", "end_ns"), steps, ["rank_index"], carry=["step"])
    gaps = gaps_within(busy, steps, STEP)
    # Of several operations that start together the one launched first ended the gap.
    starters = (
        operations.sort("rank_index", "start_ns", pl.col("launch_start_ns").fill_null(2**62), "launch_thread")
        .unique(["rank_index", "start_ns"], keep="first", maintain_order=True)
        .select(
            "rank_index",
            "capture_id",
            next_start_ns="start_ns",
            launch_start_ns="launch_start_ns",
            thread="launch_thread",
        )
        .sort("next_start_ns")
    )
    ended_by = gaps.sort("end_ns").join_asof(
        starters,
        left_on="end_ns",
        right_on="next_start_ns",
        by="rank_index",
        strategy="forward",
        check_sortedness=False,
    )
    return (
        ended_by.drop_nulls("launch_start_ns")
        .with_columns(end_ns=pl.min_horizontal("end_ns", "launch_start_ns"))
        .filter(DURATION > 0)
        .select(*STEP, *THREAD, "start_ns", "end_ns")
        .sort(*STEP, "start_ns")
    )
