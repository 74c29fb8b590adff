"""The causes of compute-absent time in order of precedence, and the split: one owner for each instant of each gap.

Every gap has a *base*: what it is where nothing more exact is known. Only gaps of which more is known are swept.
"""

from __future__ import annotations

from enum import StrEnum

import polars as pl

from three_walls.attribution.ownership import STEP
from three_walls.timeline.intervals import sweep


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


LATENCY_NS = 50_000
"""A launched operation that nothing holds begins within some microseconds; what exceeds this is something else."""

MOST_DETAILS = 44
"""Pairs of cause and detail told apart per rank; of the rest, those with least time, only the cause is kept."""

OTHER = "other"

LABELLED = ("gap", "start_ns", "end_ns", "cause", "detail")

_PLACE = {str(cause): place for place, cause in enumerate(Cause)}
_FIRST_BASE = MOST_DETAILS + len(Cause)

# Numbers that every rank has in common; those of the details come before them.
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

_DURATION = pl.col("end_ns") - pl.col("start_ns")


def label(intervals: pl.DataFrame, cause: Cause) -> pl.DataFrame:
    """``intervals`` (gap, start_ns, end_ns, detail) as rows of LABELLED; empty ones are left out."""
    return intervals.filter(_DURATION > 0).with_columns(cause=pl.lit(str(cause))).select(*LABELLED)


def split_gaps(gaps: pl.DataFrame, labelled: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The time of ``gaps`` by cause: rank_index, step, cause, detail, ns (positive), sorted.

    ``gaps``: rank_index, step, gap, start_ns, end_ns, op, launch_ns, launched_ns, in_graph (see compute_gaps.py).
    ``labelled``: what is known of parts of them (LABELLED).
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
        .select(*STEP, ns=_DURATION, number=pl.col("active").bitwise_trailing_zeros().cast(pl.Int64))
    )
    alone = bases.join(touched, on="gap", how="anti").select(*STEP, ns=_DURATION, number="number")
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
    return pl.concat(laid).filter(_DURATION > 0)


def _number_details(known: pl.DataFrame) -> pl.DataFrame:
    """A number for each pair of cause and detail of a track: rank_index, cause, detail, number, shown.

    In order of precedence of the cause, then the detail with more time first. A sweep tells few labels apart, so
    the details with least time share one number and are shown as ``other``.
    """
    by_time = (
        known.group_by("rank_index", "cause", "detail")
        .agg(ns=_DURATION.sum())
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
    excess = (pl.col("ns") > LATENCY_NS) & pl.col("number").is_in([_LATENCY, _GRAPH_LATENCY])
    beyond = owned.filter(excess).with_columns(
        ns=pl.col("ns") - LATENCY_NS,
        number=pl.col("number").replace_strict({_LATENCY: _UNHELD, _GRAPH_LATENCY: _GRAPH_EDGE}, return_dtype=pl.Int64),
    )
    return pl.concat([owned.with_columns(ns=pl.when(excess).then(LATENCY_NS).otherwise("ns")), beyond])


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
