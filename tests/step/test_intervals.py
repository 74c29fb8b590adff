"""Interval algebra, against brute force on single nanoseconds."""

from __future__ import annotations

from itertools import pairwise

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from three_walls.step.intervals import gaps_within, intersect, mask_of, merge_overlapping, sweep

pytestmark = pytest.mark.slow

LABELS = ("first", "second", "third")
WINDOWS = [(0, 0, 0, 40), (0, 1, 40, 70), (1, 0, 10, 60)]  # rank_index, step, start, end

interval = st.tuples(st.integers(0, 1), st.sampled_from(LABELS), st.integers(-5, 80), st.integers(0, 40)).map(
    lambda row: (row[0], row[1], row[2], row[2] + row[3])
)
intervals = st.lists(interval, max_size=25)


def frame(rows: list[tuple[int, str, int, int]]) -> pl.DataFrame:
    schema = {"rank_index": pl.Int64, "label": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def windows() -> pl.DataFrame:
    return pl.DataFrame(WINDOWS, schema=["rank_index", "step", "start_ns", "end_ns"], orient="row")


def nanoseconds(rows: list[tuple[int, str, int, int]], rank_index: int, label: str | None = None) -> set[int]:
    return {at for t, name, a, b in rows if t == rank_index and label in (None, name) for at in range(a, b)}


@given(intervals)
def test_merging_keeps_every_nanosecond_once(rows: list[tuple[int, str, int, int]]) -> None:
    merged = merge_overlapping(frame(rows), ["rank_index"]).rows()
    for rank_index in (0, 1):
        union = [(a, b) for t, a, b in merged if t == rank_index]
        covered = [at for a, b in union for at in range(a, b)]
        assert sorted(covered) == sorted(nanoseconds(rows, rank_index))
        assert all(b < c for (_, b), (c, _) in pairwise(union))  # disjoint, and none touch


@given(intervals)
def test_intersecting_with_windows_clips_to_them(rows: list[tuple[int, str, int, int]]) -> None:
    found = intersect(frame(rows), windows(), ["rank_index"], carry=["step"])
    assert found.columns == ["rank_index", "label", "start_ns", "end_ns", "step"]
    for rank_index, step, start, end in WINDOWS:
        for label in LABELS:
            clipped = sum(b - a for t, name, a, b, s in found.rows() if (t, s, name) == (rank_index, step, label))
            assert clipped == sum(
                max(0, min(b, end) - max(a, start)) for t, name, a, b in rows if (t, name) == (rank_index, label)
            )


@given(intervals)
def test_gaps_are_what_is_left_of_a_window(rows: list[tuple[int, str, int, int]]) -> None:
    busy = intersect(frame(rows), windows(), ["rank_index"], carry=["step"])
    gaps = gaps_within(busy, windows(), ["rank_index", "step"]).rows()
    for rank_index, step, start, end in WINDOWS:
        idle = [at for t, s, a, b in gaps if (t, s) == (rank_index, step) for at in range(a, b)]
        assert sorted(idle) == sorted(set(range(start, end)) - nanoseconds(rows, rank_index))


@given(intervals)
def test_the_sweep_covers_each_window_and_knows_what_is_active(rows: list[tuple[int, str, int, int]]) -> None:
    inside = intersect(frame(rows), windows(), ["rank_index"], carry=["step"])
    slices = sweep(inside, windows(), "label", LABELS, ["rank_index", "step"]).rows()
    for rank_index, step, start, end in WINDOWS:
        of_step = [(a, b, active) for t, s, a, b, active in slices if (t, s) == (rank_index, step)]
        assert [a for a, _, _ in of_step] == [start, *[b for _, b, _ in of_step[:-1]]]
        assert of_step[-1][1] == end
        for a, b, active in of_step:
            for at in range(a, b):
                expected = [label for label in LABELS if at in nanoseconds(rows, rank_index, label)]
                assert active == mask_of(expected, LABELS)


def test_of_windows_without_length_nothing_is_cut() -> None:
    empty = windows().with_columns(end_ns="start_ns")
    busy = frame([(0, "first", -5, 60)])
    assert sweep(busy, empty, "label", LABELS, ["rank_index"]).is_empty()
    assert sweep(busy, windows().clear(), "label", LABELS, ["rank_index"]).is_empty()


def test_touching_intervals_become_one() -> None:
    rows = [(0, "first", 0, 10), (0, "first", 10, 20), (0, "first", 25, 30)]
    assert merge_overlapping(frame(rows), ["rank_index"]).rows() == [(0, 0, 20), (0, 25, 30)]


@pytest.mark.parametrize("other", [1, 5_000, 1 << 60], ids=["next", "far", "beyond any line"])
def test_groups_stay_apart_however_far_their_numbers_lie_and_what_has_none_overlaps_nothing(other: int) -> None:
    rows = [(0, "first", 0, 10), (other, "first", 5, 20), (None, "first", 0, 30)]
    left = frame(rows)  # type: ignore[arg-type]
    right = frame([(other, "second", 8, 12), (None, "second", 0, 30)])  # type: ignore[list-item]
    assert intersect(left, right, ["rank_index"]).rows() == [(other, "first", 8, 12)]
    assert merge_overlapping(left, ["rank_index"]).rows() == [(None, 0, 30), (0, 0, 10), (other, 5, 20)]
    assert merge_overlapping(left.drop_nulls(), ["rank_index"]).rows() == [(0, 0, 10), (other, 5, 20)]
