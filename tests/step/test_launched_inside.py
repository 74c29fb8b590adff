"""Which operations were launched inside of some NVTX ranges: those during one that was open on their thread."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from three_walls.step.communication_owners import launched_inside
from three_walls.trace.schemas import HOST_RANGES

THREADS = st.integers(1, 3)
TIMES = st.integers(0, 12)
Range = tuple[int, int, int | None]
"""Thread, start and end; None: it was still open when the capture ended."""


def find_inside(launches: list[tuple[int | None, int | None]], ranges: list[Range]) -> list[bool]:
    operations = pl.DataFrame(launches, schema={"launch_thread": pl.Int64, "launch_start_ns": pl.Int64}, orient="row")
    schema = {name: HOST_RANGES[name] for name in ("thread", "start_ns", "end_ns")}
    return launched_inside(operations, pl.DataFrame(ranges, schema=schema, orient="row")).to_list()


def test_a_launch_is_inside_an_outer_range_when_the_inner_one_has_closed_and_not_inside_another_threads() -> None:
    ranges: list[Range] = [(1, 0, 10), (1, 2, 4), (2, 5, None)]
    launches = [(1, 3), (1, 6), (1, 10), (2, 4), (2, 5), (2, 99), (3, 3), (None, 3), (1, None)]
    assert find_inside(launches, ranges) == [True, True, False, False, True, True, False, False, False]


def test_no_launch_is_inside_of_no_range() -> None:
    assert find_inside([(1, 3)], []) == [False]
    assert find_inside([], [(1, 0, 10)]) == []


@given(
    launches=st.lists(st.tuples(st.none() | THREADS, st.none() | TIMES), max_size=8),
    ranges=st.lists(st.tuples(THREADS, TIMES, st.none() | TIMES), max_size=8),
)
def test_a_launch_is_inside_if_some_range_of_its_thread_had_opened_and_not_closed(
    launches: list[tuple[int | None, int | None]], ranges: list[Range]
) -> None:
    ended = [(thread, start, None if end is None else max(start, end)) for thread, start, end in ranges]
    assert find_inside(launches, ended) == [
        at is not None and any(on == thread and start <= at < (99 if end is None else end) for on, start, end in ended)
        for thread, at in launches
    ]
