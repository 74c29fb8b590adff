"""Interval algebra on frames: merge, complement, intersect and sweep. All times are compared with these functions.

An interval is a row with ``start_ns`` (inclusive) and ``end_ns`` (exclusive), both Int64. ``by`` names the columns
within which intervals are compared (a rank, a step, a thread). Empty intervals (start = end) are dropped.
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
    """The parts of ``windows`` that no interval of ``busy`` covers: disjoint, sorted.

    ``by`` must identify each window (rank and step); ``busy`` has these columns too and lies within the windows.
    Columns: ``by``, start_ns, end_ns.
    """
    merged = merge_overlapping(busy, by)
    bounds = pl.concat(
        [
            windows.select(*by, start_ns="start_ns", end_ns="start_ns"),
            merged.select(*by, "start_ns", "end_ns"),
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
    # The intervals of ``disjoint`` that overlap this one are consecutive: from the first that ends after its start to
    # the last that starts before its end.
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
    """Cuts ``windows`` into slices wherever an interval starts or ends, with the labels that are active in each slice.

    ``intervals`` lie within the windows and have a column ``label`` with one of ``labels``. In the result ``active`` is
    a bit set: bit i stands for ``labels[i]``, so the lowest set bit is the active label of highest precedence.
    The slices of a window cover it exactly. Columns: ``by``, start_ns, end_ns, active.
    Raises ValueError for more than 62 labels.
    """
    if len(labels) > 62:
        raise ValueError("a bit set in an Int64 holds at most 62 labels")
    bit = (
        pl.col(label)
        .cast(pl.String)
        .replace_strict({name: 1 << i for i, name in enumerate(labels)}, return_dtype=pl.Int64)
    )
    # The intervals of each label are merged first, so that a bit is set and cleared, never counted.
    merged = merge_overlapping(intervals, [*by, label]).with_columns(bit=bit)
    edges = pl.concat(
        [
            merged.select(*by, at_ns="start_ns", change="bit"),
            merged.select(*by, at_ns="end_ns", change=-pl.col("bit")),
            windows.select(*by, at_ns="start_ns", change=pl.lit(0, dtype=pl.Int64)),
            windows.select(*by, at_ns="end_ns", change=pl.lit(0, dtype=pl.Int64)),
        ]
    )
    # The changes of each window sum to zero, so a single running sum serves all windows. Where several edges share an
    # instant the sum is incomplete until the last of them; those slices have no length and drop out.
    same_window = pl.all_horizontal(pl.col(name).shift(-1) == pl.col(name) for name in by)
    return _not_empty(
        edges.sort(*by, "at_ns")
        .with_columns(active=pl.col("change").cum_sum(), end_ns=pl.when(same_window).then(pl.col("at_ns").shift(-1)))
        .drop_nulls("end_ns")
        .select(*by, start_ns="at_ns", end_ns="end_ns", active="active")
    )


def mask_of(names: Sequence[str], labels: Sequence[str]) -> int:
    """Bit set of ``names`` in the numbering that :func:`sweep` uses for ``labels``."""
    return sum(1 << labels.index(name) for name in names)


def _not_empty(intervals: pl.DataFrame) -> pl.DataFrame:
    return intervals.filter(pl.col("end_ns") > pl.col("start_ns"))
