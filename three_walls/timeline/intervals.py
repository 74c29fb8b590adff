"""Interval algebra on frames: merge, complement, intersect and sweep. All times are compared with these functions.

An interval is a row with ``start_ns`` (inclusive) and ``end_ns`` (exclusive), both Int64. ``by`` names the columns
within which intervals are compared (a rank, a step, a thread). Empty intervals (start = end) are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

Numbers = npt.NDArray[np.int64]

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
    right = disjoint.drop_nulls(list(by)).sort(*by, "start_ns")
    pieces = _not_empty(left).drop_nulls(list(by))
    group = pl.concat([right.select(by), pieces.select(by)]).select(pl.struct(by).rank("dense")).to_series().to_numpy()
    right_group, group = group[: right.height].astype(np.int64), group[right.height :].astype(np.int64)
    right_start_ns, right_end_ns = (right[name].to_numpy() for name in ("start_ns", "end_ns"))
    start_ns, end_ns = (pieces[name].to_numpy() for name in ("start_ns", "end_ns"))
    # The intervals of ``disjoint`` that overlap one of ``left`` are consecutive: from the first that ends after its
    # start to before the first that starts at its end or later.
    first = _find_in_groups(right_group, right_end_ns, group, start_ns, "right")
    beyond = _find_in_groups(right_group, right_start_ns, group, end_ns, "left")
    counts = np.maximum(beyond - first, 0)
    left_row = np.repeat(np.arange(pieces.height), counts)
    row = np.arange(len(left_row)) + np.repeat(first - np.cumsum(counts) + counts, counts)
    clipped = pieces[left_row].with_columns(
        start_ns=pl.Series(np.maximum(start_ns[left_row], right_start_ns[row]), dtype=pl.Int64),
        end_ns=pl.Series(np.minimum(end_ns[left_row], right_end_ns[row]), dtype=pl.Int64),
    )
    return _not_empty(clipped.with_columns(right[name].gather(row) for name in carry)).select(*left.columns, *carry)


def _find_in_groups(
    groups: Numbers, times_ns: Numbers, group: Numbers, at_ns: Numbers, side: Literal["left", "right"]
) -> Numbers:
    """Where ``at_ns`` belongs among the ascending ``times_ns`` of its ``group``, as ``np.searchsorted`` finds it.

    ``groups`` ascend. Group and time make one key: a time counts by its place among all times, so that both fit.
    """
    ordered = np.sort(times_ns)
    size = len(ordered) + 1
    keys = groups * size + np.searchsorted(ordered, times_ns, "left")
    return np.searchsorted(keys, group * size + np.searchsorted(ordered, at_ns, side), "left")


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
