"""Interval algebra on frames: merge, complement, intersect and sweep. All times are compared with these functions.

An interval is a row with ``start_ns`` (inclusive) and ``end_ns`` (exclusive), both Int64. ``by`` names the columns
within which intervals are compared (a rank, a step, a thread). Empty intervals (start = end) are dropped.

Group and time become one number, a *place*: the groups lie one after another on a single line. So every function needs
one pass over sorted places, whatever the number of groups, and intervals that come in order are never sorted again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from three_walls.step.step_tables import Intervals
from three_walls.trace.schemas import Int64Array

DURATION = pl.col("end_ns") - pl.col("start_ns")
"""Length of an interval, in ns."""

_LONGEST_LINE = 2**62
_FEW_NUMBERS = 1024
"""So many values in a row are numbered without looking for those that there are, which takes most of the time."""


@dataclass(frozen=True, slots=True)
class _Line:
    """The groups one after another, each as long as the time from the earliest start to the latest end of all."""

    first_ns: int
    length: int
    """Of each group on the line."""
    times_ns: Int64Array | None
    """Where the line would be too long: all times in order. A time then stands for its place among them."""

    def place(self, group: Int64Array, at_ns: Int64Array) -> Int64Array:
        """The places of the times ``at_ns`` of groups."""
        within = at_ns - self.first_ns if self.times_ns is None else np.searchsorted(self.times_ns, at_ns)
        return np.asarray(group * self.length + within, dtype=np.int64)

    def read(self, place: Int64Array) -> Int64Array:
        """The times of places."""
        within = place % self.length
        return within + self.first_ns if self.times_ns is None else self.times_ns[within]


@dataclass(frozen=True, slots=True)
class _Placed:
    """Intervals of a frame as places, in the order of its rows."""

    start: Int64Array
    end: Int64Array

    def in_order(self) -> Int64Array:
        """The rows that are not empty, by start."""
        rows = np.flatnonzero(self.end > self.start)
        start = self.start[rows]
        return rows if np.all(start[1:] >= start[:-1]) else rows[np.argsort(start, kind="stable")]

    def take(self, rows: Int64Array) -> _Placed:
        return _Placed(self.start[rows], self.end[rows])


def merge_overlapping(intervals: Intervals, by: Sequence[str]) -> Intervals:
    """The union of ``intervals`` within each group: disjoint, sorted; touching intervals become one.

    Columns: ``by``, start_ns, end_ns.
    """
    line, (placed,) = _place([intervals], by)
    rows = placed.in_order()
    merged, first = _merge(placed.take(rows))
    return intervals.select(by)[rows[first]].with_columns(
        start_ns=_as_column(line.read(merged.start)), end_ns=_as_column(line.read(merged.end))
    )


def gaps_within(busy: Intervals, windows: Intervals, by: Sequence[str]) -> Intervals:
    """The parts of ``windows`` that no interval of ``busy`` covers: disjoint, sorted.

    The windows of a group are disjoint; ``busy`` may reach beyond them. Columns: those of ``windows``.
    """
    line, (placed, bounds) = _place([busy, windows], by)
    merged, _ = _merge(placed.take(placed.in_order()))
    # What is free on the whole line, and then in each window.
    free = _Placed(np.append(-_LONGEST_LINE, merged.end), np.append(merged.start, _LONGEST_LINE))
    window_rows = bounds.in_order()
    window, row = _find_overlaps(bounds.take(window_rows), free)
    window = window_rows[window]
    start, end = np.maximum(bounds.start[window], free.start[row]), np.minimum(bounds.end[window], free.end[row])
    return windows[window].with_columns(start_ns=_as_column(line.read(start)), end_ns=_as_column(line.read(end)))


def intersect(left: Intervals, disjoint: Intervals, by: Sequence[str], carry: Sequence[str] = ()) -> Intervals:
    """Every overlap of an interval of ``left`` with one of ``disjoint``.

    ``disjoint`` must be free of overlaps within each group (steps, or the result of merge_overlapping).
    Columns: all of ``left`` with start_ns and end_ns clipped, plus the ``carry`` columns of ``disjoint``.
    """
    right, pieces = (_drop_nulls(frame, by) for frame in (disjoint, left))
    line, (bounds, placed) = _place([right, pieces], by)
    right_rows, rows = bounds.in_order(), np.flatnonzero(placed.end > placed.start)
    bounds, placed = bounds.take(right_rows), placed.take(rows)
    row, place = _find_overlaps(placed, bounds)
    return pieces[rows[row]].with_columns(
        *(right[name].gather(right_rows[place]) for name in carry),
        start_ns=_as_column(line.read(np.maximum(placed.start[row], bounds.start[place]))),
        end_ns=_as_column(line.read(np.minimum(placed.end[row], bounds.end[place]))),
    )


def find_next(intervals: Intervals, points: Intervals, by: Sequence[str], first: Sequence[str]) -> pl.Series:
    """Per row of ``points`` the row of the first interval that starts at its ``end_ns`` or later; null where none does.

    Of several that start together the first in the order of the columns ``first`` is found; nulls come last.
    """
    line, (placed, ends) = _place([intervals, points], by)
    order = np.argsort(placed.start, kind="stable")
    start = placed.start[order]
    is_tied = np.zeros(len(start) + 1, dtype=bool)
    is_tied[1:-1] = start[1:] == start[:-1]
    tied = np.flatnonzero(is_tied[:-1] | is_tied[1:])
    by_first = intervals.select(first)[order[tied]].with_columns(start=_as_column(start[tied]), row=order[tied])
    order[tied] = by_first.sort("start", *first, "row", nulls_last=True)["row"].to_numpy()
    place = np.searchsorted(start, ends.end, "left")
    row = np.append(order, -1)[place]
    in_group = np.append(start, -1)[place] // line.length == ends.end // line.length
    return pl.Series(row, dtype=pl.Int64).set(pl.Series(~in_group), None)


def find_window(intervals: Intervals, windows: Intervals, by: Sequence[str]) -> pl.Series:
    """Per row of ``intervals`` the row of the window of its group in which it starts; null where it starts in none.

    The windows of a group are disjoint.
    """
    _, (placed, bounds) = _place([intervals, windows], by)
    rows = bounds.in_order()
    bounds = bounds.take(rows)
    place = np.searchsorted(bounds.start, placed.start, "right") - 1
    is_inside = placed.start < np.append(bounds.end, -1)[place]
    return pl.Series(np.append(rows, -1)[place], dtype=pl.Int64).set(pl.Series(~is_inside), None)


def sweep(
    intervals: Intervals,
    windows: Intervals,
    label: str,
    labels: Sequence[str] | range,
    by: Sequence[str],
    carry: Sequence[str] = (),
) -> Intervals:
    """Cuts ``windows`` into slices wherever an interval starts or ends, with the labels that are active in each slice.

    ``intervals`` have a column ``label`` with one of ``labels`` (texts, or numbers from 0), and may reach beyond the
    windows, which are disjoint within each group. In the result ``active`` is a bit set: bit i stands for
    ``labels[i]``, so the lowest set bit is the active label of highest precedence. The slices of a window cover it
    exactly.
    Columns: ``by``, the ``carry`` columns of ``windows``, start_ns, end_ns, active; sorted by group and start.
    Raises ValueError for more than 62 labels.
    """
    if len(labels) > 62:
        raise ValueError("a bit set in an Int64 holds at most 62 labels")
    line, (placed, bounds) = _place([intervals, windows], by)
    window_rows = bounds.in_order()
    bounds = bounds.take(window_rows)
    # The intervals of each label are merged first, so that a bit is set and cleared, never counted.
    rows = placed.in_order()
    code = intervals[label]
    if not isinstance(labels, range):
        code = code.cast(pl.Enum(labels)).to_physical()
    of_row = code.to_numpy()[rows]
    placed = placed.take(rows)
    at, change = [bounds.start, bounds.end], [np.zeros(2 * len(window_rows), dtype=np.int64)]
    for number in np.unique(of_row).tolist():
        merged, _ = _merge(placed.take(np.flatnonzero(of_row == number)))
        at += [merged.start, merged.end]
        change += [np.full(len(merged.start), bit, dtype=np.int64) for bit in (1 << number, -1 << number)]
    edges = np.concatenate(at)
    order = np.argsort(edges, kind="stable")  # what comes in sorted parts, this one merges
    edges, active = edges[order], np.cumsum(np.concatenate(change)[order])
    # Where several edges share a place the sum is incomplete until the last of them, and the slice is empty.
    cuts = np.flatnonzero(edges[1:] > edges[:-1])
    window = np.searchsorted(bounds.start, edges[cuts], "right") - 1
    inside = edges[cuts] < np.append(bounds.end, -1)[window]
    cuts, window = cuts[inside], window_rows[window[inside]]
    return windows.select(*by, *carry)[window].with_columns(
        start_ns=_as_column(line.read(edges[cuts])),
        end_ns=_as_column(line.read(edges[cuts + 1])),
        active=_as_column(active[cuts]),
    )


def mask_of(names: Sequence[str], labels: Sequence[str]) -> int:
    """Bit set of ``names`` in the numbering that :func:`sweep` uses for ``labels``."""
    return sum(1 << labels.index(name) for name in names)


def _place(frames: Sequence[pl.DataFrame], by: Sequence[str]) -> tuple[_Line, list[_Placed]]:
    """The line of the groups of all ``frames``, in the order of ``by``, and the intervals of each frame on it."""
    group = [np.zeros(frame.height, dtype=np.int64) for frame in frames]
    groups_count = 1
    for name in by:
        count, numbers = _number_values([frame[name] for frame in frames])
        if count < 2:
            continue
        group = [before * count + number for before, number in zip(group, numbers, strict=True)]
        groups_count *= count
        if groups_count > 2**31:  # far more than there are: number those that exist
            exist = np.unique(np.concatenate(group))
            group, groups_count = [np.searchsorted(exist, number) for number in group], len(exist)
    times = [_read_times(frame) for frame in frames]
    starts, ends = [start for start, _ in times], [end for _, end in times]
    filled = [place for place, frame in enumerate(frames) if frame.height]
    first_ns = min((int(starts[place].min()) for place in filled), default=0)
    last_ns = max((max(int(starts[place].max()), int(ends[place].max())) for place in filled), default=0)
    line = _Line(min(first_ns, last_ns), last_ns - first_ns + 1, None)
    if groups_count * line.length >= _LONGEST_LINE:
        times_ns = np.unique(np.concatenate([*starts, *ends]))
        line = _Line(0, len(times_ns), times_ns)
    placed = [
        _Placed(line.place(number, start), line.place(number, end))
        for number, start, end in zip(group, starts, ends, strict=True)
    ]
    return line, placed


def _read_times(intervals: pl.DataFrame) -> tuple[Int64Array, Int64Array]:
    """Starts and ends; an interval of which either is unknown is empty."""
    start, end = intervals["start_ns"], intervals["end_ns"]
    if start.null_count() or end.null_count():
        either = start.fill_null(end).fill_null(0)
        start, end = either, end.fill_null(either).zip_with(start.is_not_null(), either)
    return start.to_numpy(), end.to_numpy()


def _number_values(columns: Sequence[pl.Series]) -> tuple[int, list[Int64Array]]:
    """Numbers of the values of ``columns``, from 0 in their order, and how many there may be."""
    if all(column.dtype == pl.Int64 and not column.null_count() for column in columns):
        arrays = [column.to_numpy() for column in columns]
        filled = [array for array in arrays if len(array)]
        first = min((int(array.min()) for array in filled), default=0)
        count = max((int(array.max()) for array in filled), default=first) - first + 1
        if count <= _FEW_NUMBERS:  # as of ranks and steps
            return count, [array - first for array in arrays]
    values = pl.concat([column.unique() for column in columns]).unique().sort(nulls_last=False)
    return len(values), [_find_numbers(column, values) for column in columns]


def _drop_nulls(frame: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    return frame.drop_nulls(list(by)) if any(frame[name].null_count() for name in by) else frame


def _find_numbers(column: pl.Series, values: pl.Series) -> Int64Array:
    """Per row of ``column`` the place of its value among the sorted ``values``."""
    if column.dtype == pl.Int64 and not values.null_count():
        return np.searchsorted(values.to_numpy(), column.to_numpy())
    return column.replace_strict(values, pl.int_range(len(values), eager=True), return_dtype=pl.Int64).to_numpy()


def _merge(placed: _Placed) -> tuple[_Placed, Int64Array]:
    """The union of intervals sorted by start, and the row that each interval of it begins with."""
    latest = np.maximum.accumulate(placed.end)
    opens = np.ones(len(latest), dtype=bool)
    opens[1:] = placed.start[1:] > latest[:-1]
    first = np.flatnonzero(opens)
    closes = np.append(opens[1:], np.ones(1, dtype=bool))[: len(opens)]
    return _Placed(placed.start[first], latest[closes]), first


def _find_overlaps(left: _Placed, disjoint: _Placed) -> tuple[Int64Array, Int64Array]:
    """Pairs of rows that overlap. ``disjoint`` is sorted.

    The intervals of ``disjoint`` that overlap one of ``left`` are consecutive: from the first that ends after its start
    to before the first that starts at its end or later.
    """
    first = np.searchsorted(disjoint.end, left.start, "right")
    beyond = np.searchsorted(disjoint.start, left.end, "left")
    counts = np.maximum(beyond - first, 0)
    row = np.repeat(np.arange(len(counts)), counts)
    return row, np.arange(len(row)) + np.repeat(first - np.cumsum(counts) + counts, counts)


def _as_column(numbers: Int64Array) -> pl.Series:
    return pl.Series(numbers, dtype=pl.Int64)
