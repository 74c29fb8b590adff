"""Where the time of a replayed step goes: the same attribution as of a captured step, on the times of the replay.

The operations take the starts and ends of the replay, and their launches and the synchronizing calls the times of their
host points. Idle time is then the host's up to the launch of the operation that ends it, as in a captured step. The
profiler owns nothing in a replayed step: what delayed a host thread is part of its segments.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from three_walls.replay.step_graph import NONE, StepGraph, Times, Work
from three_walls.step.find_steps import STEP
from three_walls.step.host_activity import THREAD
from three_walls.step.ownership import label_idle, measure_budget, slice_steps
from three_walls.tables.buckets import BUCKETS
from three_walls.trace.schemas import Int64Array

_SYNCHRONIZE = "synchronize"


def measure_replayed_budget(graph: StepGraph, work: Work, times: Times, rank: int) -> dict[str, int]:
    """Bucket to its time in the replayed step of ``rank`` (a place in the graph), in the order of precedence.

    ``times``: ``replay(graph, work)``. The buckets sum to ``times.step_ns[rank]``; raises ConservationError otherwise.
    """
    points_ns = find_point_times(graph, work, times)
    operations = _replay_operations(graph, times, points_ns, rank)
    calls = graph.calls.with_columns(start_ns=pl.Series(points_ns[0::2]), end_ns=pl.Series(points_ns[1::2]))
    capture = operations["capture_id"].first() if operations.height else 0
    synchronizing = calls.filter(
        (pl.col("rank") == rank) & (pl.col("kind") == _SYNCHRONIZE) & (pl.col("end_ns") > pl.col("start_ns"))
    ).select(pl.lit(capture, dtype=pl.Int64).alias("capture_id"), "thread", "start_ns", "end_ns")
    start_ns = int(graph.rank_start_ns[rank])
    steps = pl.DataFrame(
        [(graph.ranks[rank], 0, start_ns, start_ns + int(times.step_ns[rank]))],
        schema={**dict.fromkeys(STEP, pl.Int64), "start_ns": pl.Int64, "end_ns": pl.Int64},
        orient="row",
    )
    overhead = synchronizing.clear().select(*THREAD, "start_ns", "end_ns")
    causes = label_idle(operations, steps, synchronizing, overhead)
    budget = measure_budget(slice_steps(operations, causes, steps), steps)
    owned_ns = dict(budget.select("bucket", "ns").iter_rows())
    return {bucket.name: int(owned_ns[bucket.name]) for bucket in BUCKETS if bucket.name in owned_ns}


def find_point_times(graph: StepGraph, work: Work, times: Times) -> Int64Array:
    """When every host point is reached: 2i is the start of call i, 2i + 1 its end."""
    offsets_ns = graph.points.offsets_ns(work.host_segment_ns)
    return np.asarray(times.node_ns[graph.points.last_sync_node()] + offsets_ns, dtype=np.int64)


def _replay_operations(graph: StepGraph, times: Times, points_ns: Int64Array, rank: int) -> pl.DataFrame:
    """The operations of ``rank`` at the times of the replay; those that take no time any more are left out."""
    call_of = graph.call_of
    has_call = call_of != NONE
    launch_ns = np.where(has_call, points_ns[2 * np.maximum(call_of, 0)] if len(points_ns) else NONE, NONE)
    return (
        graph.operations.with_columns(
            start_ns=pl.Series(times.start_ns),
            end_ns=pl.Series(times.end_ns),
            launch_start_ns=pl.Series(launch_ns),
            has_call=pl.Series(has_call),
        )
        .filter((pl.col("rank") == rank) & (pl.col("end_ns") > pl.col("start_ns")))
        .with_columns(pl.when("has_call").then("launch_start_ns").alias("launch_start_ns"))
        .sort("start_ns", "end_ns", "stream", "correlation")
    )
