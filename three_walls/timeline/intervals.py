"""Interval algebra on frames: merge, complement, intersect and sweep; used wherever time is compared.

An interval is a row with ``start_ns`` (inclusive) and ``end_ns`` (exclusive), both Int64. ``by`` names the
columns within which intervals are compared (a rank, a step, a thread). Empty intervals (start = end) own no
time and are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

DURATION = pl.col("end_ns") - pl.col("start_ns")
"""Length of an interval, in ns."""


def merge_overlapping(intervals: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """The union of ``intervals`` within each group: disjoint, sorted; touching intervals become one.

    Columns: ``by``, start_ns, end_ns.
    """
    latest_end_before = pl.col("end_ns").cum_max().shift(1).over(by)
    opens_new_run = (pl.col("start_ns") > latest_end_before).fill_null(True)
    return (
        _not_empty(intervals)
        .select(*by, "start_ns", "end_ns")
        .sort(*by, "start_ns", "end_ns")
        .with_columns(run=opens_new_run.cast(pl.Int64).cum_sum())
        .group_by("run", maintain_order=True)
        .agg(*[pl.col(name).first() for name in by], pl.col("start_ns").min(), pl.col("end_ns").max())
        .select(*by, "start_ns", "end_ns")
    )


def gaps_within(busy: pl.DataFrame, windows: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """What ``windows`` hold that ``busy`` does not: disjoint, sorted.

    ``by`` must identify each window (rank and step); ``busy`` has the same columns.
    Columns: ``by``, start_ns, end_ns.
    """
    clipped = merge_overlapping(busy, by)
    bounds = pl.concat(
        [
            windows.select(*by, start_ns="start_ns", end_ns="start_ns"),
            clipped.select(*by, "start_ns", "end_ns"),
            windows.select(*by, start_ns="end_ns", end_ns="end_ns"),
        ]
    ).sort(*by, "start_ns", "end_ns")
    return _not_empty(
        bounds.with_columns(next_start_ns=pl.col("start_ns").shift(-1).over(by))
        .drop_nulls("next_start_ns")
        .select(*by, start_ns="end_ns", end_ns="next_start_ns")
    )


def intersect(left: pl.DataFrame, disjoint: pl.DataFrame, by: Sequence[str], carry: Sequence[str] = ()) -> pl.DataFrame:
    """Every overlap of an interval of ``left`` with one of ``disjoint``.

    ``disjoint`` must be free of overlaps within each group (steps, or the result of merge_overlapping).
    Columns: all of ``left`` with start_ns and end_ns clipped, plus the ``carry`` columns of ``disjoint``.
    """
    right = disjoint.sort(*by, "start_ns").with_row_index("row")
    starts = right.select(*by, "row", at="start_ns")
    ends = right.select(*by, "row", at="end_ns")
    indexed = _not_empty(left).with_row_index("left_row")
    # The overlapping ones are consecutive: from the first that ends after the interval's start to the last that
    # starts before its end.
    first = (
        indexed.sort("start_ns")
        .join_asof(
            ends.sort("at").rename({"row": "first"}),
            left_on="start_ns",
            right_on="at",
            by=list(by),
            strategy="forward",
            allow_exact_matches=False,
            check_sortedness=False,
        )
        .select("left_row", "first")
    )
    last = (
        indexed.sort("end_ns")
        .join_asof(
            starts.sort("at").rename({"row": "last"}),
            left_on="end_ns",
            right_on="at",
            by=list(by),
            strategy="backward",
            allow_exact_matches=False,
            check_sortedness=False,
        )
        .select("left_row", "last")
    )
    pairs = (
        first.join(last, on="left_row")
        .drop_nulls()
        .filter(pl.col("first") <= pl.col("last"))
        .select("left_row", row=pl.int_ranges("first", pl.col("last") + 1, dtype=pl.UInt32))
        .explode("row")
    )
    clip = right.select("row", *carry, clip_start_ns="start_ns", clip_end_ns="end_ns")
    overlaps = (
        indexed.join(pairs, on="left_row")
        .join(clip, on="row")
        .with_columns(
            start_ns=pl.max_horizontal("start_ns", "clip_start_ns"), end_ns=pl.min_horizontal("end_ns", "clip_end_ns")
        )
    )
    return _not_empty(overlaps).sort("left_row", "row").select(*left.columns, *carry)


def sweep(
    intervals: pl.DataFrame, windows: pl.DataFrame, label: str, labels: Sequence[str], by: Sequence[str]
) -> pl.DataFrame:
    """Cuts ``windows`` where any interval starts or ends; each slice states which labels are active in it.

    ``intervals`` lie within the windows and carry ``label``, one of ``labels``. In the result, ``active`` is
    a bit set: bit i is ``labels[i]``, so the lowest set bit is the first active label in their order.
    The slices of a window cover it exactly. Columns: ``by``, start_ns, end_ns, active.
    """
    if len(labels) > 62:
        raise ValueError("a bit set in an Int64 holds at most 62 labels")
    bit = (
        pl.col(label)
        .cast(pl.String)
        .replace_strict({name: 1 << i for i, name in enumerate(labels)}, return_dtype=pl.Int64)
    )
    # Within one label intervals are merged first: then each bit is set and cleared, never counted.
    merged = merge_overlapping(intervals, [*by, label]).with_columns(bit=bit)
    edges = pl.concat(
        [
            merged.select(*by, at_ns="start_ns", change="bit"),
            merged.select(*by, at_ns="end_ns", change=-pl.col("bit")),
            windows.select(*by, at_ns="start_ns", change=pl.lit(0, dtype=pl.Int64)),
            windows.select(*by, at_ns="end_ns", change=pl.lit(0, dtype=pl.Int64)),
        ]
    )
    # Every window's changes sum to zero, so one running sum serves all; slices of no length, where several edges
    # share an instant and the sum is not complete yet, drop out.
    same_window = pl.all_horizontal(pl.col(name).shift(-1) == pl.col(name) for name in by)
    return _not_empty(
        edges.sort(*by, "at_ns")
        .with_columns(active=pl.col("change").cum_sum(), end_ns=pl.when(same_window).then(pl.col("at_ns").shift(-1)))
        .drop_nulls("end_ns")
        .select(*by, start_ns="at_ns", end_ns="end_ns", active="active")
    )


def mask_of(chosen: Sequence[str], labels: Sequence[str]) -> int:
    """Bit set of ``chosen`` in the numbering that :func:`sweep` uses for ``labels``."""
    return sum(1 << labels.index(name) for name in chosen)


def _not_empty(intervals: pl.DataFrame) -> pl.DataFrame:
    return intervals.filter(pl.col("end_ns") > pl.col("start_ns"))
