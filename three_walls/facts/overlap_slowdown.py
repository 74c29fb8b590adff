"""What GEMMs pay for communication beside them: they share multiprocessors and memory with it.

The same product runs many times a step; some calls run wholly alone, others beside communication for at least half of
their time. The difference of the medians is the price of a hidden exchange.

Kernel and grid do not say that two calls are the same product: persistent kernels launch as many blocks as the GPU
has multiprocessors, whatever the size. So the kernels right before and after on the stream must be the same too, and
the calls that ran alone must agree among themselves.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from three_walls.model.buckets import COMMUNICATION_CATEGORIES, GEMM_CATEGORIES
from three_walls.model.fact import FactValue
from three_walls.model.report import OverlapSlowdown
from three_walls.timeline.intervals import intersect, merge_overlapping

FEWEST_CALLS = 3
"""Calls of each sort below which their medians are not compared."""

BESIDE_FRACTION = 0.5
"""Share of a call's time with communication beside it from which it counts as beside; alone means none at all."""

WIDEST_SPREAD_RATIO = 1.25
"""Ninth over first tenth of the calls alone; wider, and they are not one size. Experts' products vary by a few
percent with routing, products of different sizes by half and more."""

NO_PAIRS = f"no GEMM ran {FEWEST_CALLS} times alone and {FEWEST_CALLS} times beside communication in the step"

_KIND = ("name_id", "grid_x", "grid_y", "grid_z", "stream", "name_before", "name_after")


def overlap_slowdown_fact(taxes: tuple[OverlapSlowdown, ...]) -> tuple[FactValue, str | None]:
    """Value of the fact ``overlap_slowdown_ns``, or why it is missing."""
    return (sum(one.slowdown_ns for one in taxes), None) if taxes else (None, NO_PAIRS)


def measure_overlap_slowdown(
    operations: pl.DataFrame, step: tuple[int, int], names: Mapping[int, str]
) -> tuple[OverlapSlowdown, ...]:
    """Products of a step [start, end) that ran alone and beside communication, the dearest first.

    ``operations``: one rank's. ``names``: texts by ``name_id``. Products whose grid is not recorded are left out. One
    kernel may have several rows: one for each place in a layer.
    """
    mine = operations.filter(
        (pl.col("kind") == "kernel") & (pl.col("start_ns") < step[1]) & (pl.col("end_ns") > step[0])
    )
    compared = _compare(
        _with_beside(_gemms(mine, step), mine.filter(pl.col("category").is_in(list(COMMUNICATION_CATEGORIES))))
    )
    rows = [
        OverlapSlowdown(
            kernel=names.get(name_id, ""),
            grid=f"{x}x{y}x{z}",
            calls_alone=alone,
            concurrent_calls=beside,
            alone_ns=alone_ns,
            concurrent_ns=concurrent_ns,
            slowdown_ns=max(concurrent_ns - alone_ns, 0) * beside,
        )
        for name_id, x, y, z, alone, beside, alone_ns, concurrent_ns in compared.rows()
    ]
    return tuple(sorted(rows, key=_order))


def _order(tax: OverlapSlowdown) -> tuple[int, str, str, int, int, int, int]:
    """Total: one kernel at several places of a layer has several rows."""
    return (
        -tax.slowdown_ns,
        tax.kernel,
        tax.grid,
        -tax.concurrent_calls,
        -tax.calls_alone,
        tax.alone_ns,
        tax.concurrent_ns,
    )


def _gemms(kernels: pl.DataFrame, step: tuple[int, int]) -> pl.DataFrame:
    """Products with the names of their neighbours on the stream; -1 at either end of the step."""
    ordered = kernels.sort("stream", "start_ns", "end_ns").with_columns(
        name_before=pl.col("name_id").shift(1).over("stream").fill_null(-1),
        name_after=pl.col("name_id").shift(-1).over("stream").fill_null(-1),
    )
    return ordered.filter(
        pl.col("category").is_in(list(GEMM_CATEGORIES))
        & pl.col("start_ns").is_between(step[0], step[1], closed="left")
        & pl.all_horizontal(pl.col(_KIND).is_not_null())
    ).with_row_index("call")


def _with_beside(products: pl.DataFrame, communication: pl.DataFrame) -> pl.DataFrame:
    """``products`` with duration_ns and concurrent_ns: how long any communication ran beside each."""
    busy = merge_overlapping(communication, ["rank_index"])
    beside = (
        intersect(products.select("call", "rank_index", "start_ns", "end_ns"), busy, ["rank_index"])
        .group_by("call")
        .agg(concurrent_ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
    )
    return products.join(beside, on="call", how="left").with_columns(
        duration_ns=pl.col("end_ns") - pl.col("start_ns"), concurrent_ns=pl.col("concurrent_ns").fill_null(0)
    )


def _compare(products: pl.DataFrame) -> pl.DataFrame:
    """name_id, grid_x, grid_y, grid_z, calls_alone, concurrent_calls and their median durations (the lower of two)."""
    alone = pl.col("concurrent_ns") == 0
    beside = (pl.col("concurrent_ns") > 0) & (pl.col("concurrent_ns") >= BESIDE_FRACTION * pl.col("duration_ns"))

    def quantile(calls: pl.Expr, share: float) -> pl.Expr:
        return pl.col("duration_ns").filter(calls).quantile(share, interpolation="lower").cast(pl.Int64)

    return (
        products.group_by(_KIND)
        .agg(
            calls_alone=alone.sum().cast(pl.Int64),
            concurrent_calls=beside.sum().cast(pl.Int64),
            alone_median_ns=quantile(alone, 0.5),
            beside_median_ns=quantile(beside, 0.5),
            shortest_ns=quantile(alone, 0.1),
            longest_ns=quantile(alone, 0.9),
        )
        .filter(
            (pl.col("calls_alone") >= FEWEST_CALLS)
            & (pl.col("concurrent_calls") >= FEWEST_CALLS)
            & (pl.col("longest_ns") <= WIDEST_SPREAD_RATIO * pl.col("shortest_ns"))
        )
        .drop("stream", "name_before", "name_after", "shortest_ns", "longest_ns")
    )
