"""Why no compute operation ran: every compute-absent nanosecond of a step, split by time into causes.

A *gap* is a stretch of a step in which no compute operation runs on the rank's device, whatever else does. It is
ended by the next compute operation n. Its time is split so, the first that applies to an instant owning it:

blocking             something that n had to wait for was running: what its stream ran before it, or the producer
                     of an event. Launching n earlier would not have helped, so it comes before starvation.
profiler             n not launched yet, the profiler held up the thread that launched it
starved_...          n not launched yet, and what the thread was doing: ``synchronizing``, ``allocating`` (also loading
                     modules), ``copying`` and ``launching`` (giving the device other work), ``nothing_visible``
                     (no CUDA call: Python, the data loader, the interpreter's lock)
dependency_stalled   n launched, it or something before it waits for an event whose producer cannot be told, or
                     for another part of its CUDA graph
launch_latency       n launched, nothing that it waits for running: the launch call itself and a short time after
                     each thing that held it
unexplained          what is left: no launch recorded, no operation follows, or nothing visible held it

A producer is never compute: where some compute operation runs there is no gap.
"""

from __future__ import annotations

import polars as pl

from three_walls.attribution.blocking import find_blocking
from three_walls.attribution.gap_causes import Cause, label, split_gaps
from three_walls.attribution.host_activity import THREAD, name_activities
from three_walls.attribution.ownership import COMPUTE_MASK, STEP, ConservationError
from three_walls.attribution.stream_edges import find_edges
from three_walls.model.buckets import COMPUTE_CATEGORIES
from three_walls.model.report import GapCause
from three_walls.timeline.intervals import intersect, merge_overlapping
from three_walls.timeline.timeline import Timeline

_DURATION = pl.col("end_ns") - pl.col("start_ns")


def explain_compute_gaps(timeline: Timeline, slices: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Compute-absent time by cause: rank_index, step, cause, detail, ns (positive), sorted.

    ``slices``: the cut steps. Raises ConservationError unless the causes of each step sum to the time in which
    none of its pieces computes.
    """
    operations = timeline.operations.with_row_index("op")
    gaps = _find_gaps(slices, operations)
    late = _late_parts(gaps)
    labelled = pl.concat([_blocked(gaps, operations, timeline), _starved(late, operations, timeline)])
    explained = split_gaps(gaps, labelled, steps)
    _check_sums(explained, slices, steps)
    return explained


def summarize_gap_causes(frame: pl.DataFrame, rank_index: int, step: int) -> tuple[GapCause, ...]:
    """The rows of one step, longest first."""
    mine = frame.filter((pl.col("rank_index") == rank_index) & (pl.col("step") == step))
    rows = mine.sort("ns", "cause", "detail", descending=[True, False, False]).select("cause", "ns", "detail").rows()
    return tuple(GapCause(cause, ns, detail) for cause, ns, detail in rows)


def _find_gaps(slices: pl.DataFrame, operations: pl.DataFrame) -> pl.DataFrame:
    """Where nothing computes: rank_index, step, gap, start_ns, end_ns, and the next compute operation.

    Of that: op, report, stream, thread, launch_ns (start of its launch call), launched_ns (end), in_graph; null where
    none follows. It begins at the end of the gap, or later where the step's end cuts the gap.
    """
    absent = merge_overlapping(slices.filter((pl.col("active") & COMPUTE_MASK) == 0), STEP)
    computing = operations.filter(pl.col("category").is_in(list(COMPUTE_CATEGORIES)) & (_DURATION > 0)).select(
        "rank_index",
        "op",
        "capture_id",
        "stream",
        next_start_ns="start_ns",
        thread="launch_thread",
        launch_ns="launch_start_ns",
        launched_ns="launch_end_ns",
        in_graph=pl.col("graph_node").is_not_null(),
    )
    # Of several that begin together the one launched first ended the gap.
    in_order = computing.sort("next_start_ns", pl.col("launch_ns").fill_null(2**62), "op")
    return (
        absent.sort("end_ns")
        .join_asof(
            in_order,
            left_on="end_ns",
            right_on="next_start_ns",
            by="rank_index",
            strategy="forward",
            coalesce=False,
            check_sortedness=False,
        )
        .sort("rank_index", "start_ns")
        .with_row_index("gap")
    )


def _late_parts(gaps: pl.DataFrame) -> pl.DataFrame:
    """The part of each gap before n's launch call: rank_index, capture_id, thread, gap, start_ns, end_ns."""
    return (
        gaps.drop_nulls("launch_ns")
        .with_columns(end_ns=pl.min_horizontal("end_ns", "launch_ns"))
        .filter(_DURATION > 0)
        .select("rank_index", *THREAD, "gap", "start_ns", "end_ns")
    )


def _blocked(gaps: pl.DataFrame, operations: pl.DataFrame, timeline: Timeline) -> pl.DataFrame:
    """Blocking and dependency_stalled, as labelled intervals (gap_causes.LABELLED)."""
    edges = find_edges(operations, timeline.api_calls, timeline.stream_waits, timeline.event_records)
    others = operations.filter(~pl.col("category").is_in(list(COMPUTE_CATEGORIES)))
    blocking, stalled = find_blocking(gaps.drop_nulls("op"), others, edges)
    # An operation that is not launched cannot be held up by an event yet.
    launched = stalled.join(gaps.select("gap", "launch_ns"), on="gap").with_columns(
        start_ns=pl.max_horizontal("start_ns", "launch_ns")
    )
    return pl.concat([label(blocking, Cause.BLOCKING), label(launched, Cause.STALLED)])


def _starved(late: pl.DataFrame, operations: pl.DataFrame, timeline: Timeline) -> pl.DataFrame:
    """What the launching threads did before the launch, where it can be seen (gap_causes.LABELLED)."""
    threads = late.select("rank_index", *THREAD).unique()
    overhead = timeline.overhead.select(*THREAD, "start_ns", "end_ns").join(threads, on=THREAD)
    held_up = intersect(overhead, late, ["rank_index", *THREAD], carry=["gap"])
    doing = name_activities(late, timeline.api_calls, operations)
    return pl.concat([label(held_up.with_columns(detail=pl.lit("")), Cause.PROFILER), doing])


def _check_sums(explained: pl.DataFrame, slices: pl.DataFrame, steps: pl.DataFrame) -> None:
    absent = pl.when((pl.col("active") & COMPUTE_MASK) == 0).then(_DURATION).otherwise(0)
    expected = slices.group_by(*STEP).agg(absent_ns=absent.sum())
    found = explained.group_by(*STEP).agg(found_ns=pl.col("ns").sum())
    both = steps.select(*STEP).join(expected, on=STEP, how="left").join(found, on=STEP, how="left")
    wrong = both.filter(pl.col("found_ns").fill_null(0) != pl.col("absent_ns").fill_null(0))
    if wrong.height:
        raise ConservationError(f"causes do not sum to the time without compute: {wrong.row(0, named=True)}")
