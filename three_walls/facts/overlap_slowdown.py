"""How much concurrent communication slows GEMMs: both share multiprocessors and memory bandwidth.

The same GEMM runs many times a step: some calls run alone, others concurrent with communication for at least half of
their time. The difference of the medians is the price of a hidden exchange.

Kernel and grid do not identify a GEMM: persistent kernels launch as many blocks as the GPU has multiprocessors,
whatever the size. So the kernels right before and after on the stream must be the same too, and the calls that ran
alone must agree among themselves.
"""

from __future__ import annotations

import polars as pl

from three_walls.facts.fact_rows import OverlapSlowdown
from three_walls.lib.declare import artifact, duration
from three_walls.lib.measurement import Measurement, known, missing
from three_walls.step.intervals import DURATION, intersect, merge_overlapping
from three_walls.step.step_tables import Operations
from three_walls.step.step_view import StepView
from three_walls.tables.buckets import COMMUNICATION_CATEGORIES, GEMM_CATEGORIES

MINIMUM_OVERLAP_CALLS = 3
"""Calls of a GEMM, of those that ran alone and of those concurrent with communication, needed to compare their
medians."""
MINIMUM_CONCURRENT_FRACTION = 0.5
"""Of a GEMM's time: concurrent communication from which on the call counts as concurrent. A call that ran alone had
none at all."""
MAXIMUM_ALONE_SPREAD_RATIO = 1.25
"""Ninth over first decile of the durations of GEMM calls that ran alone: above it they are taken to be of several
sizes. Expert GEMMs vary by a few percent with routing, GEMMs of different sizes by half and more."""

GEMM_KIND = ("name_id", "grid_x", "grid_y", "grid_z", "stream", "name_before", "name_after")
"""The same GEMM in the same place of a layer."""


@artifact
def compared_gemms(step: StepView) -> Operations:
    """Calls of GEMMs that ran both alone and concurrent with communication, with ``is_alone``.

    GEMMs whose grid is not recorded are left out, and so are calls that were concurrent for less than half.
    """
    kernels = step.operations.filter(pl.col("kind") == "kernel")
    communication = kernels.filter(pl.col("category").is_in(list(COMMUNICATION_CATEGORIES)))
    return _choose_comparable(_with_communication(_gemms_in_place(kernels, step.window), communication))


@artifact
def overlap_slowdown(step: StepView, compared_gemms: Operations) -> tuple[OverlapSlowdown, ...]:
    """GEMMs of the step that ran both alone and concurrent with communication, the most costly first.

    A kernel has one row for each place in a layer where it is compared.
    """
    rows = [
        OverlapSlowdown(
            kernel=step.names.get(name_id, ""),
            grid=f"{x}x{y}x{z}",
            calls_alone=calls_alone,
            concurrent_calls=concurrent_calls,
            alone_ns=alone_ns,
            concurrent_ns=concurrent_ns,
            slowdown_ns=max(concurrent_ns - alone_ns, 0) * concurrent_calls,
        )
        for name_id, x, y, z, calls_alone, concurrent_calls, alone_ns, concurrent_ns in _compare(compared_gemms).rows()
    ]
    return tuple(sorted(rows, key=_order))


@duration(
    "GEMM time lost to concurrent communication",
    share="GEMM slowdown from overlapping communication",
)
def overlap_slowdown_ns(overlap_slowdown: tuple[OverlapSlowdown, ...]) -> Measurement[int]:
    """Time per step that GEMMs lose to concurrent communication: the median duration of calls with communication less
    that of the same GEMM's calls without, times the calls with communication.

    Not the same as: A loss to avoid: it is the price of hiding communication, to be compared with what is hidden.
    """
    if overlap_slowdown:
        return known(sum(row.slowdown_ns for row in overlap_slowdown))
    fewest = MINIMUM_OVERLAP_CALLS
    return missing(f"no GEMM ran {fewest} times alone and {fewest} times concurrent with communication in the step")


def _order(row: OverlapSlowdown) -> tuple[int, str, str, int, int, int, int]:
    """Largest slowdown first. The order is total, for a kernel at several places of a layer has several rows."""
    return (
        -row.slowdown_ns,
        row.kernel,
        row.grid,
        -row.concurrent_calls,
        -row.calls_alone,
        row.alone_ns,
        row.concurrent_ns,
    )


def _gemms_in_place(kernels: Operations, window: tuple[int, int]) -> Operations:
    """GEMMs with the names of their neighbours on the stream; -1 at either end of the step."""
    ordered = kernels.sort("stream", "start_ns", "end_ns").with_columns(
        name_before=pl.col("name_id").shift(1).over("stream").fill_null(-1),
        name_after=pl.col("name_id").shift(-1).over("stream").fill_null(-1),
    )
    return ordered.filter(
        pl.col("category").is_in(list(GEMM_CATEGORIES))
        & pl.col("start_ns").is_between(*window, closed="left")
        & pl.all_horizontal(pl.col(GEMM_KIND).is_not_null())
    ).with_row_index("call")


def _with_communication(gemms: Operations, communication: Operations) -> Operations:
    """``gemms`` with duration_ns and concurrent_ns: how long any communication ran concurrently."""
    busy = merge_overlapping(communication, ["rank_index"])
    concurrent = (
        intersect(gemms.select("call", "rank_index", "start_ns", "end_ns"), busy, ["rank_index"])
        .group_by("call")
        .agg(concurrent_ns=DURATION.sum())
    )
    return gemms.join(concurrent, on="call", how="left").with_columns(
        duration_ns=DURATION, concurrent_ns=pl.col("concurrent_ns").fill_null(0)
    )


def _choose_comparable(gemms: Operations) -> Operations:
    """The calls of ``gemms`` that can be compared, with ``is_alone``."""
    fewest = MINIMUM_OVERLAP_CALLS
    is_alone = pl.col("concurrent_ns") == 0
    is_concurrent = pl.col("concurrent_ns") >= MINIMUM_CONCURRENT_FRACTION * pl.col("duration_ns")
    calls = gemms.with_columns(is_alone=is_alone).filter(is_alone | is_concurrent)
    shortest, longest = (_take_quantile(pl.col("is_alone"), fraction) for fraction in (0.1, 0.9))
    return calls.filter(
        (pl.col("is_alone").sum().over(GEMM_KIND) >= fewest)
        & ((~pl.col("is_alone")).sum().over(GEMM_KIND) >= fewest)
        & (longest.over(GEMM_KIND) <= MAXIMUM_ALONE_SPREAD_RATIO * shortest.over(GEMM_KIND))
    )


def _compare(gemms: Operations) -> pl.DataFrame:
    """name_id, grid_x, grid_y, grid_z, calls_alone, concurrent_calls and their median durations (the lower of two)."""
    is_alone = pl.col("is_alone")
    return (
        gemms.group_by(GEMM_KIND)
        .agg(
            calls_alone=is_alone.sum().cast(pl.Int64),
            concurrent_calls=(~is_alone).sum().cast(pl.Int64),
            alone_median_ns=_take_quantile(is_alone, 0.5),
            concurrent_median_ns=_take_quantile(~is_alone, 0.5),
        )
        .drop("stream", "name_before", "name_after")
    )


def _take_quantile(calls: pl.Expr, fraction: float) -> pl.Expr:
    """Of the durations of ``calls`` the one that ``fraction`` of them do not exceed."""
    return pl.col("duration_ns").filter(calls).quantile(fraction, interpolation="lower").cast(pl.Int64)
