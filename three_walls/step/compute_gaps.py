"""Gaps without compute: why no compute kernel ran, for every nanosecond of a step in which none did.

A *gap* is a stretch of a step in which no compute operation runs on the rank's device, whatever else runs. It ends with
the next compute operation n. The first cause in this list that applies to an instant owns it:

blocking             Something that n had to wait for was running: what its stream ran before it, or the producer of an
                     event. Launching n earlier would not have helped, so this comes before starvation.
profiler             n was not launched yet, and the profiler delayed the thread that launched it.
paused               n was not launched yet, and the threads that launch did nothing for far longer than usual
                     (``host_pauses.py``).
starved_...          n was not launched yet, and its thread was ``synchronizing``, ``allocating`` (or loading modules),
                     ``copying``, ``launching`` other work, or in no CUDA call: ``nothing_visible`` (Python, the data
                     loader, the interpreter's lock).
dependency_stalled   n was launched. It, or something before it, waits for an event whose producer is not known, or for
                     another part of its CUDA graph.
launch_latency       n was launched, and nothing that it waits for was running: the launch call itself, and a short time
                     after whatever delayed n.
unexplained          The rest: no launch is recorded, no compute follows, or nothing visible delayed n.

A producer is never compute: where a compute operation runs there is no gap. ``stream_edges.py`` finds what n had to
wait for, ``host_activity.py`` what its thread was doing.

Each gap is covered by *base* intervals first: its causes as far as n's launch alone shows them. Where more is known,
labelled intervals take precedence over the base. Only those gaps are swept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import polars as pl

from three_walls.step.build_timeline import Timeline
from three_walls.step.find_steps import STEP, list_steps
from three_walls.step.host_activity import THREAD, name_activities
from three_walls.step.intervals import DURATION, find_next, intersect, sweep
from three_walls.step.ownership import COMPUTE_MASK, ConservationError, find_time_without_compute
from three_walls.step.parts_of_run import Part
from three_walls.step.step_rows import GapCause
from three_walls.step.step_tables import GapCauses, GapCauseSums, LateLaunches, Operations, Pauses, Slices, Steps
from three_walls.step.stream_edges import EventCalls, find_blocking, find_edges
from three_walls.tables.buckets import COMPUTE_CATEGORIES

MAXIMUM_LAUNCH_LATENCY_NS = 50_000
"""From the end of a launch call to the start of an operation that nothing delays. A launched operation that nothing
delays begins within a few microseconds; what exceeds this is something else."""


class Cause(StrEnum):
    """Why no compute ran, in order of precedence (see the module)."""

    BLOCKING = "blocking"
    PROFILER = "profiler"
    PAUSED = "paused"
    SYNCHRONIZING = "starved_synchronizing"
    ALLOCATING = "starved_allocating"
    COPYING = "starved_copying"
    LAUNCHING = "starved_launching"
    NOTHING_VISIBLE = "starved_nothing_visible"
    STALLED = "dependency_stalled"
    LATENCY = "launch_latency"
    UNEXPLAINED = "unexplained"


MOST_DETAILS = 43
"""Pairs of cause and detail that are distinguished per rank of a part. Of the others, those with least time, only the
cause is kept."""

OTHER = "other"

LABELLED = ("gap", "start_ns", "end_ns", "cause", "detail")
"""Columns of intervals whose cause is known better than by the base."""

_PRECEDENCE = {str(cause): place for place, cause in enumerate(Cause)}
_FIRST_BASE = MOST_DETAILS + len(Cause)

# A sweep knows causes by number. These are the same on all ranks; the numbers of labelled causes precede them.
_NOTHING_VISIBLE, _IN_CALL, _LATENCY, _GRAPH_LATENCY, _NOT_RECORDED, _NO_NEXT, _NOT_DELAYED, _GRAPH_EDGE = range(
    _FIRST_BASE, _FIRST_BASE + 8
)
_BASES = [
    (_NOTHING_VISIBLE, Cause.NOTHING_VISIBLE, ""),
    (_IN_CALL, Cause.LATENCY, ""),
    (_LATENCY, Cause.LATENCY, ""),
    (_GRAPH_LATENCY, Cause.LATENCY, ""),
    (_NOT_RECORDED, Cause.UNEXPLAINED, "launch not recorded"),
    (_NO_NEXT, Cause.UNEXPLAINED, "no compute follows"),
    (_NOT_DELAYED, Cause.UNEXPLAINED, "launched, nothing visible held it"),
    (_GRAPH_EDGE, Cause.STALLED, "another part of its CUDA graph"),
]


@dataclass(frozen=True, slots=True)
class ComputeGaps:
    """The time without compute of every step, by cause."""

    sums: GapCauseSums
    stretches: GapCauses
    """What ``sums`` sums, of the steps that are shown, sorted by rank, step and start."""


def explain_compute_gaps(part: Part, slices: Slices, is_shown: pl.Expr, pauses: Pauses) -> ComputeGaps:
    """The time without compute by cause.

    ``slices``: of the steps of ``part``. ``is_shown``: whether the stretches of a step are kept.
    Raises ConservationError unless the causes sum to each step's time without compute.
    """
    split, names = _split_gaps(part, slices, pauses)
    sums = split.group_by(*STEP, "number").agg(ns=DURATION.sum())
    causes = (
        _name_causes(sums, names)
        .group_by(*STEP, "cause", "detail")
        .agg(pl.col("ns").sum())
        .sort(*STEP, "cause", "detail")
    )
    _check_sums(causes, slices, part.timeline.steps)
    stretches = _name_causes(split.filter(is_shown), names).sort(*STEP, "start_ns", "end_ns")
    return ComputeGaps(causes, stretches.select(*STEP, "start_ns", "end_ns", "cause", "detail"))


def summarize_gap_causes(gaps: ComputeGaps, step_of: Mapping[int, int]) -> dict[int, tuple[GapCause, ...]]:
    """The causes of a step of each rank, longest first, by rank index. ``step_of``: the steps, by rank index."""
    rows = (
        gaps.sums.join(list_steps(step_of), on=STEP, how="semi")
        .sort("rank_index", "ns", "cause", "detail", descending=[False, True, False, False])
        .select("rank_index", "cause", "ns", "detail")
        .rows()
    )
    causes_of: dict[int, list[GapCause]] = defaultdict(list)
    for rank_index, cause, ns, detail in rows:
        causes_of[rank_index].append(GapCause(cause, ns, detail))
    return {rank_index: tuple(causes) for rank_index, causes in causes_of.items()}


def _find_gaps(slices: Slices, operations: Operations) -> LateLaunches:
    """The gaps, each with the compute operation that ends it: rank_index, step, gap, start_ns, end_ns, ...

    Of that operation: op, capture_id, stream, thread, launch_ns and launched_ns (start and end of its launch call) and
    in_graph; null where no compute follows. It begins at the end of the gap, or later where the step's end cuts the
    gap.
    """
    computing = operations.select(
        "rank_index",
        "category",
        "start_ns",
        "end_ns",
        "op",
        "capture_id",
        "stream",
        next_start_ns="start_ns",
        thread="launch_thread",
        launch_ns="launch_start_ns",
        launched_ns="launch_end_ns",
        in_graph=pl.col("graph_node").is_not_null(),
    ).filter(pl.col("category").is_in(list(COMPUTE_CATEGORIES)) & (DURATION > 0))
    gaps = find_time_without_compute(slices)
    # Of several that begin together, the one launched first ended the gap.
    next_row = find_next(computing, gaps, ["rank_index"], ["launch_ns", "op"])
    next_operations = computing.drop("rank_index", "category", "start_ns", "end_ns").select(pl.all().gather(next_row))
    return pl.concat([gaps, next_operations], how="horizontal").with_row_index("gap")


def _label_blocked(gaps: LateLaunches, operations: Operations, event_calls: EventCalls) -> pl.DataFrame:
    """The causes ``blocking`` and ``dependency_stalled`` (LABELLED)."""
    edges = find_edges(operations, event_calls)
    others = operations.select("op", "rank_index", "stream", "category", "start_ns", "end_ns").filter(
        ~pl.col("category").is_in(list(COMPUTE_CATEGORIES))
    )
    blocking, stalled = find_blocking(gaps.drop_nulls("op"), others, edges)
    # An event cannot delay an operation that is not launched yet.
    stalled_launches = stalled.join(gaps.select("gap", "launch_ns"), on="gap").with_columns(
        start_ns=pl.max_horizontal("start_ns", "launch_ns")
    )
    return pl.concat([_label(blocking, Cause.BLOCKING), _label(stalled_launches, Cause.STALLED)])


def _label_starved(gaps: LateLaunches, operations: Operations, timeline: Timeline, pauses: Pauses) -> pl.DataFrame:
    """The causes ``profiler``, ``paused`` and ``starved_...`` (LABELLED): what the launching threads did before."""
    late = (
        gaps.drop_nulls("launch_ns")
        .with_columns(end_ns=pl.min_horizontal("end_ns", "launch_ns"))
        .filter(DURATION > 0)
        .select("rank_index", *THREAD, "gap", "start_ns", "end_ns")
    )
    threads = late.select("rank_index", *THREAD).unique()
    overhead = timeline.overhead.select(*THREAD, "start_ns", "end_ns").join(threads, on=THREAD)
    delays = intersect(overhead, late, ["rank_index", *THREAD], carry=["gap"])
    paused = intersect(late, pauses, ["rank_index"])
    activities = name_activities(late, timeline.api_calls, operations)
    no_detail = pl.lit("").alias("detail")
    return pl.concat(
        [
            _label(delays.with_columns(no_detail), Cause.PROFILER),
            _label(paused.with_columns(no_detail), Cause.PAUSED),
            activities,
        ]
    )


def _label(intervals: pl.DataFrame, cause: Cause) -> pl.DataFrame:
    """``intervals`` (gap, start_ns, end_ns, detail) as LABELLED rows, without empty ones."""
    return intervals.filter(DURATION > 0).with_columns(cause=pl.lit(str(cause))).select(*LABELLED)


def _check_sums(causes: GapCauseSums, slices: Slices, steps: Steps) -> None:
    """Raises ConservationError unless the causes of each step sum to its time without compute."""
    without_compute = pl.when((pl.col("active") & COMPUTE_MASK) == 0).then(DURATION).otherwise(0)
    expected = slices.group_by(*STEP).agg(gaps_ns=without_compute.sum())
    sums = causes.group_by(*STEP).agg(explained_ns=pl.col("ns").sum())
    both = steps.select(*STEP).join(expected, on=STEP, how="left").join(sums, on=STEP, how="left")
    wrong = both.filter(pl.col("explained_ns").fill_null(0) != pl.col("gaps_ns").fill_null(0))
    if wrong.height:
        raise ConservationError(f"causes do not sum to the time without compute: {wrong.row(0, named=True)}")


def _split_gaps(part: Part, slices: Slices, pauses: Pauses) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The time without compute cut by cause (rank_index, step, start_ns, end_ns, number), and names for the numbers.

    The names are those of _number_details. Labelled causes take precedence over the base of each gap.
    """
    timeline = part.timeline
    operations = timeline.operations.with_row_index("op")
    gaps = _find_gaps(slices, operations)
    starved = _label_starved(gaps, operations, timeline, pauses)
    labels = pl.concat([_label_blocked(gaps, operations, part.event_calls), starved])
    in_steps = labels.join(gaps.select("gap", *STEP), on="gap")
    names = _number_details(in_steps)
    bases = _lay_bases(gaps)
    with_labels = in_steps.select("gap").unique()
    numbered_labels = in_steps.join(names, on=["rank_index", "cause", "detail"]).select(bases.columns)
    mixed = pl.concat([numbered_labels, bases.join(with_labels, on="gap", how="semi")])
    swept = (
        sweep(mixed, timeline.steps, "number", range(_NOT_DELAYED), ["rank_index"], carry=["step"])
        .filter(pl.col("active") != 0)
        .select(*STEP, "start_ns", "end_ns", number=pl.col("active").bitwise_trailing_zeros().cast(pl.Int64))
    )
    unswept = bases.join(with_labels, on="gap", how="anti").select(*STEP, "start_ns", "end_ns", "number")
    return _cap_latency(pl.concat([swept, unswept])), names


def _lay_bases(gaps: LateLaunches) -> pl.DataFrame:
    """Every gap covered by its base causes: gap, rank_index, step, start_ns, end_ns, number.

    Before the launch nothing is visible; then come the launch call and latency.
    """
    start, end = pl.col("start_ns"), pl.col("end_ns")
    launch = pl.col("launch_ns").clip(start, end)
    launch_end = pl.max_horizontal("launched_ns", "launch_ns").clip(start, end)
    after = pl.when("in_graph").then(_GRAPH_LATENCY).otherwise(_LATENCY)
    unknown = pl.when(pl.col("op").is_null()).then(_NO_NEXT).otherwise(_NOT_RECORDED)
    has_launch = pl.col("launch_ns").is_not_null()
    with_launch, without_launch = gaps.filter(has_launch), gaps.filter(~has_launch)
    parts = [
        (with_launch, start, launch, pl.lit(_NOTHING_VISIBLE)),
        (with_launch, launch, launch_end, pl.lit(_IN_CALL)),
        (with_launch, launch_end, end, after),
        (without_launch, start, end, unknown),
    ]
    bases = [
        frame.select("gap", *STEP, start_ns=begin, end_ns=until, number=number.cast(pl.Int64))
        for frame, begin, until, number in parts
    ]
    return pl.concat(bases).filter(DURATION > 0)


def _number_details(causes: GapCauses) -> pl.DataFrame:
    """Numbers for the pairs of cause and detail of each rank: rank_index, cause, detail, number, shown.

    Causes of higher precedence come first, then details with more time. A sweep distinguishes few labels, so the
    details with least time share a number and are shown as ``other``.
    """
    by_time = (
        causes.group_by("rank_index", "cause", "detail")
        .agg(ns=DURATION.sum())
        .sort("rank_index", "ns", "cause", "detail", descending=[False, True, False, False])
    )
    small = pl.int_range(pl.len()).over("rank_index") >= MOST_DETAILS
    details = by_time.with_columns(shown=pl.when(small).then(pl.lit(OTHER)).otherwise("detail"))
    numbers = (
        details.group_by("rank_index", "cause", "shown")
        .agg(pl.col("ns").sum())
        .with_columns(place=pl.col("cause").replace_strict(_PRECEDENCE, return_dtype=pl.Int64))
        .sort("rank_index", "place", "ns", "shown", descending=[False, False, True, False])
        .with_columns(number=pl.int_range(pl.len(), dtype=pl.Int64).over("rank_index"))
    )
    return details.drop("ns").join(numbers.drop("ns", "place"), on=["rank_index", "cause", "shown"])


def _cap_latency(split: pl.DataFrame) -> pl.DataFrame:
    """``split``, where ``launch_latency`` longer than the latency of a launch goes on as another cause.

    The launch call itself is latency whatever its length: it blocks while the launch queue is full.
    """
    capped_ns = pl.col("start_ns") + MAXIMUM_LAUNCH_LATENCY_NS
    excess = (pl.col("end_ns") > capped_ns) & pl.col("number").is_in([_LATENCY, _GRAPH_LATENCY])
    beyond = split.filter(excess).with_columns(
        start_ns=capped_ns,
        number=pl.col("number").replace_strict(
            {_LATENCY: _NOT_DELAYED, _GRAPH_LATENCY: _GRAPH_EDGE}, return_dtype=pl.Int64
        ),
    )
    return pl.concat([split.with_columns(end_ns=pl.when(excess).then(capped_ns).otherwise("end_ns")), beyond])


def _name_causes(numbered: pl.DataFrame, names: pl.DataFrame) -> pl.DataFrame:
    """``numbered`` with ``cause`` and ``detail`` in place of ``number``."""
    rows = [(number, str(cause), detail) for number, cause, detail in _BASES]
    bases = pl.DataFrame(rows, schema={"number": pl.Int64, "cause": pl.String, "detail": pl.String}, orient="row")
    detailed = names.select("rank_index", "number", "cause", detail="shown").unique()
    return pl.concat(
        [
            numbered.join(detailed, on=["rank_index", "number"], how="inner").drop("number"),
            numbered.join(bases, on="number", how="inner").drop("number"),
        ]
    )
