"""Gaps without compute: every nanosecond of a step in which no compute kernel runs, split by time into causes.

A *gap* is a stretch of a step in which no compute operation runs on the rank's device, whatever else does. It is
ended by the next compute operation n. The first cause in this list that applies to an instant owns it:

blocking             something that n had to wait for was running: what its stream ran before it, or the producer
                     of an event. Launching n earlier would not have helped, so it comes before starvation.
profiler             n not launched yet, the profiler delayed the thread that launched it
starved_...          n not launched yet, and what the thread was doing: ``synchronizing``, ``allocating`` (also loading
                     modules), ``copying`` and ``launching`` (giving the device other work), ``nothing_visible``
                     (no CUDA call: Python, the data loader, the interpreter's lock)
dependency_stalled   n launched; it or something before it waits for an event whose producer is not known, or
                     for another part of its CUDA graph
launch_latency       n launched, nothing that it waits for running: the launch call itself and a short time after
                     each thing that delayed it
unexplained          the rest: no launch recorded, no operation follows, or nothing visible delayed it

A producer is never compute: where some compute operation runs there is no gap. Every gap has a *base*: what it is where
nothing more exact is known. Only gaps of which more is known are swept.
"""

from __future__ import annotations

from enum import StrEnum

import polars as pl

from three_walls.attribution.host_activity import THREAD, name_activities
from three_walls.attribution.ownership import COMPUTE_MASK, ConservationError, not_computing
from three_walls.attribution.stream_edges import find_blocking, find_edges
from three_walls.model.buckets import COMPUTE_CATEGORIES
from three_walls.model.report import GapCause
from three_walls.tables.thresholds import attribution_thresholds
from three_walls.timeline.intervals import DURATION, intersect, sweep
from three_walls.timeline.steps import STEP
from three_walls.timeline.timeline import Timeline


class Cause(StrEnum):
    """Why no compute ran, in order of precedence."""

    BLOCKING = "blocking"
    PROFILER = "profiler"
    SYNCHRONIZING = "starved_synchronizing"
    ALLOCATING = "starved_allocating"
    COPYING = "starved_copying"
    LAUNCHING = "starved_launching"
    NOTHING_VISIBLE = "starved_nothing_visible"
    STALLED = "dependency_stalled"
    LATENCY = "launch_latency"
    UNEXPLAINED = "unexplained"


MOST_DETAILS = 44
"""Pairs of cause and detail that are distinguished per rank; of those with least time only the cause is kept."""

OTHER = "other"

LABELLED = ("gap", "start_ns", "end_ns", "cause", "detail")
"""Columns of what is known about parts of gaps."""

_PLACE = {str(cause): place for place, cause in enumerate(Cause)}
_FIRST_BASE = MOST_DETAILS + len(Cause)

# Numbers that all ranks share; those of the details come before them.
_NOTHING_VISIBLE, _IN_CALL, _LATENCY, _GRAPH_LATENCY, _NOT_RECORDED, _NO_NEXT, _UNHELD, _GRAPH_EDGE = range(
    _FIRST_BASE, _FIRST_BASE + 8
)
_BASES = [
    (_NOTHING_VISIBLE, Cause.NOTHING_VISIBLE, ""),
    (_IN_CALL, Cause.LATENCY, ""),
    (_LATENCY, Cause.LATENCY, ""),
    (_GRAPH_LATENCY, Cause.LATENCY, ""),
    (_NOT_RECORDED, Cause.UNEXPLAINED, "launch not recorded"),
    (_NO_NEXT, Cause.UNEXPLAINED, "no compute follows"),
    (_UNHELD, Cause.UNEXPLAINED, "launched, nothing visible held it"),
    (_GRAPH_EDGE, Cause.STALLED, "another part of its CUDA graph"),
]


def explain_compute_gaps(timeline: Timeline, slices: pl.DataFrame) -> pl.DataFrame:
    """Time without compute by cause: rank_index, step, cause, detail, ns (positive), sorted.

    ``slices``: see slice_steps. Raises ConservationError unless the causes of each step sum to the time in which no
    slice of it computes.
    """
    operations = timeline.operations.with_row_index("op")
    gaps = _find_gaps(slices, operations)
    labelled = pl.concat([_label_blocked(gaps, operations, timeline), _label_starved(gaps, operations, timeline)])
    explained = _split_gaps(gaps, labelled, timeline.steps)
    _check_sums(explained, slices, timeline.steps)
    return explained


def summarize_gap_causes(frame: pl.DataFrame, rank_index: int, step: int) -> tuple[GapCause, ...]:
    """The rows of one step, longest first."""
    of_step = frame.filter((pl.col("rank_index") == rank_index) & (pl.col("step") == step))
    rows = of_step.sort("ns", "cause", "detail", descending=[True, False, False]).select("cause", "ns", "detail").rows()
    return tuple(GapCause(cause, ns, detail) for cause, ns, detail in rows)


def _find_gaps(slices: pl.DataFrame, operations: pl.DataFrame) -> pl.DataFrame:
    """Where nothing computes: rank_index, step, gap, start_ns, end_ns, and the next compute operation.

    Of that: op, capture_id, stream, thread, launch_ns (start of its launch call), launched_ns (end), in_graph; null
    where none follows. It begins at the end of the gap, or later where the step's end cuts the gap.
    """
    computing = operations.filter(pl.col("category").is_in(list(COMPUTE_CATEGORIES)) & (DURATION > 0)).select(
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
        not_computing(slices)
        .sort("end_ns")
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


def _label_blocked(gaps: pl.DataFrame, operations: pl.DataFrame, timeline: Timeline) -> pl.DataFrame:
    """Blocking and dependency_stalled (LABELLED)."""
    edges = find_edges(operations, timeline.api_calls, timeline.stream_waits, timeline.event_records)
    others = operations.filter(~pl.col("category").is_in(list(COMPUTE_CATEGORIES)))
    blocking, stalled = find_blocking(gaps.drop_nulls("op"), others, edges)
    # An operation that is not launched cannot be delayed by an event yet.
    launched = stalled.join(gaps.select("gap", "launch_ns"), on="gap").with_columns(
        start_ns=pl.max_horizontal("start_ns", "launch_ns")
    )
    return pl.concat([_label(blocking, Cause.BLOCKING), _label(launched, Cause.STALLED)])


def _label_starved(gaps: pl.DataFrame, operations: pl.DataFrame, timeline: Timeline) -> pl.DataFrame:
    """What the launching threads did before the launch, where it is visible (LABELLED)."""
    late = (
        gaps.drop_nulls("launch_ns")
        .with_columns(end_ns=pl.min_horizontal("end_ns", "launch_ns"))
        .filter(DURATION > 0)
        .select("rank_index", *THREAD, "gap", "start_ns", "end_ns")
    )
    threads = late.select("rank_index", *THREAD).unique()
    overhead = timeline.overhead.select(*THREAD, "start_ns", "end_ns").join(threads, on=THREAD)
    delayed = intersect(overhead, late, ["rank_index", *THREAD], carry=["gap"])
    activities = name_activities(late, timeline.api_calls, operations)
    return pl.concat([_label(delayed.with_columns(detail=pl.lit("")), Cause.PROFILER), activities])


def _label(intervals: pl.DataFrame, cause: Cause) -> pl.DataFrame:
    """``intervals`` (gap, start_ns, end_ns, detail) as rows of LABELLED; empty ones are left out."""
    return intervals.filter(DURATION > 0).with_columns(cause=pl.lit(str(cause))).select(*LABELLED)


def _check_sums(explained: pl.DataFrame, slices: pl.DataFrame, steps: pl.DataFrame) -> None:
    absent = pl.when((pl.col("active") & COMPUTE_MASK) == 0).then(DURATION).otherwise(0)
    expected = slices.group_by(*STEP).agg(absent_ns=absent.sum())
    found = explained.group_by(*STEP).agg(found_ns=pl.col("ns").sum())
    both = steps.select(*STEP).join(expected, on=STEP, how="left").join(found, on=STEP, how="left")
    wrong = both.filter(pl.col("found_ns").fill_null(0) != pl.col("absent_ns").fill_null(0))
    if wrong.height:
        raise ConservationError(f"causes do not sum to the time without compute: {wrong.row(0, named=True)}")


def _split_gaps(gaps: pl.DataFrame, labelled: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The time of ``gaps`` by cause: rank_index, step, cause, detail, ns (positive), sorted.

    ``gaps``: see _find_gaps. ``labelled``: what is known about parts of them (LABELLED).
    """
    known = labelled.join(gaps.select("gap", *STEP), on="gap")
    names = _number_details(known)
    bases = _lay_bases(gaps)
    touched = known.select("gap").unique()
    numbered = known.join(names, on=["rank_index", "cause", "detail"]).select(bases.columns)
    mixed = pl.concat([numbered, bases.join(touched, on="gap", how="semi")])
    labels = [str(number) for number in range(_UNHELD)]
    swept = (
        sweep(mixed.drop("gap"), steps.select(*STEP, "start_ns", "end_ns"), "number", labels, STEP)
        .filter(pl.col("active") != 0)
        .select(*STEP, ns=DURATION, number=pl.col("active").bitwise_trailing_zeros().cast(pl.Int64))
    )
    alone = bases.join(touched, on="gap", how="anti").select(*STEP, ns=DURATION, number="number")
    sums = _cap_latency(pl.concat([swept, alone])).group_by(*STEP, "number").agg(pl.col("ns").sum())
    return _with_names(sums, names)


def _lay_bases(gaps: pl.DataFrame) -> pl.DataFrame:
    """Every gap, covered by what it is where nothing more is known: gap, rank_index, step, start_ns, end_ns, number.

    Before the launch nothing is visible; then comes the launch call, then latency.
    """
    start, end = pl.col("start_ns"), pl.col("end_ns")
    launch = pl.col("launch_ns").clip(start, end)
    launched = pl.max_horizontal("launched_ns", "launch_ns").clip(start, end)
    after = pl.when("in_graph").then(_GRAPH_LATENCY).otherwise(_LATENCY)
    unknown = pl.when(pl.col("op").is_null()).then(_NO_NEXT).otherwise(_NOT_RECORDED)
    with_launch, without = (
        gaps.filter(pl.col("launch_ns").is_not_null()),
        gaps.filter(pl.col("launch_ns").is_null()),
    )
    parts = [
        (with_launch, start, launch, pl.lit(_NOTHING_VISIBLE)),
        (with_launch, launch, launched, pl.lit(_IN_CALL)),
        (with_launch, launched, end, after),
        (without, start, end, unknown),
    ]
    laid = [
        frame.select("gap", *STEP, start_ns=begin, end_ns=until, number=number.cast(pl.Int64))
        for frame, begin, until, number in parts
    ]
    return pl.concat(laid).filter(DURATION > 0)


def _number_details(known: pl.DataFrame) -> pl.DataFrame:
    """A number for each pair of cause and detail of a rank: rank_index, cause, detail, number, shown.

    In order of precedence of the cause, then the detail with more time first. A sweep distinguishes few labels, so
    the details with least time share one number and are shown as ``other``.
    """
    by_time = (
        known.group_by("rank_index", "cause", "detail")
        .agg(ns=DURATION.sum())
        .sort("rank_index", "ns", "cause", "detail", descending=[False, True, False, False])
    )
    small = pl.int_range(pl.len()).over("rank_index") >= MOST_DETAILS
    shown = by_time.with_columns(shown=pl.when(small).then(pl.lit(OTHER)).otherwise("detail"))
    numbers = (
        shown.group_by("rank_index", "cause", "shown")
        .agg(pl.col("ns").sum())
        .with_columns(place=pl.col("cause").replace_strict(_PLACE, return_dtype=pl.Int64))
        .sort("rank_index", "place", "ns", "shown", descending=[False, False, True, False])
        .with_columns(number=pl.int_range(pl.len(), dtype=pl.Int64).over("rank_index"))
    )
    return shown.drop("ns").join(numbers.drop("ns", "place"), on=["rank_index", "cause", "shown"])


def _cap_latency(owned: pl.DataFrame) -> pl.DataFrame:
    """``owned`` with what exceeds the latency of a launch moved to what it is then.

    The launch call itself is latency whatever its length: it blocks while the launch queue is full.
    """
    latency_ns = attribution_thresholds().maximum_launch_latency_ns
    excess = (pl.col("ns") > latency_ns) & pl.col("number").is_in([_LATENCY, _GRAPH_LATENCY])
    beyond = owned.filter(excess).with_columns(
        ns=pl.col("ns") - latency_ns,
        number=pl.col("number").replace_strict({_LATENCY: _UNHELD, _GRAPH_LATENCY: _GRAPH_EDGE}, return_dtype=pl.Int64),
    )
    return pl.concat([owned.with_columns(ns=pl.when(excess).then(latency_ns).otherwise("ns")), beyond])


def _with_names(sums: pl.DataFrame, names: pl.DataFrame) -> pl.DataFrame:
    rows = [(number, str(cause), detail) for number, cause, detail in _BASES]
    bases = pl.DataFrame(rows, schema={"number": pl.Int64, "cause": pl.String, "detail": pl.String}, orient="row")
    detailed = names.select("rank_index", "number", "cause", detail="shown").unique()
    return (
        pl.concat(
            [
                sums.join(detailed, on=["rank_index", "number"]).select(*STEP, "cause", "detail", "ns"),
                sums.join(bases, on="number").select(*STEP, "cause", "detail", "ns"),
            ]
        )
        .group_by(*STEP, "cause", "detail")
        .agg(pl.col("ns").sum())
        .sort(*STEP, "cause", "detail")
    )
