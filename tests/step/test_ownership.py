"""The partition: every nanosecond has one owner, and exposed + hidden = busy, against a brute-force oracle."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from three_walls.step.categories import CATEGORY
from three_walls.step.ownership import (
    IDLE_OTHER,
    LABELS,
    ConservationError,
    measure_budget,
    measure_exposure,
    slice_steps,
)
from three_walls.tables.buckets import CATEGORIES, COMMUNICATION_CATEGORIES, COMPUTE_CATEGORIES, IDLE_BUCKETS

pytestmark = pytest.mark.slow

STEPS = [(0, 0, 0, 40), (0, 1, 40, 70), (1, 0, 10, 60)]  # rank_index, step, start, end
SOME = ("gemm", "attention", "elementwise", "ep_all_to_all", "all_gather", "copy_d2h_pinned", "memset", "cuda_graph")

Row = tuple[int, str, int, int]
operation = st.tuples(st.integers(0, 1), st.sampled_from(SOME), st.integers(-5, 80), st.integers(0, 30)).map(
    lambda row: (row[0], row[1], row[2], row[2] + row[3])
)


def operations(rows: list[Row]) -> pl.DataFrame:
    schema = {"rank_index": pl.Int64, "category": CATEGORY, "start_ns": pl.Int64, "end_ns": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def steps() -> pl.DataFrame:
    return pl.DataFrame(STEPS, schema=["rank_index", "step", "start_ns", "end_ns"], orient="row")


def no_causes() -> pl.DataFrame:
    columns = {"rank_index": pl.Int64, "step": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64, "label": pl.String}
    return pl.DataFrame(schema=columns)


def running(rows: list[Row], rank_index: int, at: int) -> set[str]:
    return {name for t, name, start, end in rows if t == rank_index and start <= at < end}


@settings(max_examples=150)
@given(st.lists(operation, max_size=25))
def test_each_nanosecond_goes_to_the_first_running_category(rows: list[Row]) -> None:
    slices = slice_steps(operations(rows), no_causes(), steps())
    budget = {(t, s, bucket): ns for t, s, bucket, ns in measure_budget(slices, steps()).rows()}
    for rank_index, step, start, end in STEPS:
        owners = [
            next((name for name in LABELS if name in running(rows, rank_index, at)), IDLE_OTHER)
            for at in range(start, end)
        ]
        for name in LABELS:
            assert budget.get((rank_index, step, name), 0) == owners.count(name)


@settings(max_examples=150)
@given(st.lists(operation, max_size=25))
def test_communication_is_exposed_where_nothing_computes(rows: list[Row]) -> None:
    exposure = measure_exposure(slice_steps(operations(rows), no_causes(), steps()))
    measured = {(t, s, name): (busy, exposed, hidden) for t, s, name, busy, exposed, hidden in exposure.rows()}
    for rank_index, step, start, end in STEPS:
        for name in COMMUNICATION_CATEGORIES:
            busy = [at for at in range(start, end) if name in running(rows, rank_index, at)]
            exposed = [at for at in busy if not running(rows, rank_index, at) & set(COMPUTE_CATEGORIES)]
            expected = (len(busy), len(exposed), len(busy) - len(exposed))
            assert measured.get((rank_index, step, name), (0, 0, 0)) == expected


@given(st.lists(operation, max_size=25), st.randoms())
def test_the_order_of_rows_does_not_matter(rows: list[Row], random: object) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    first = measure_budget(slice_steps(operations(rows), no_causes(), steps()), steps())
    second = measure_budget(slice_steps(operations(shuffled), no_causes(), steps()), steps())
    assert first.equals(second)


def test_compute_owns_what_it_overlaps_and_communication_the_rest() -> None:
    rows: list[Row] = [(0, "ep_all_to_all", 0, 20), (0, "gemm", 10, 30)]
    slices = slice_steps(operations(rows), no_causes(), steps())
    budget = {bucket: ns for t, s, bucket, ns in measure_budget(slices, steps()).rows() if (t, s) == (0, 0)}
    assert budget == {"ep_all_to_all": 10, "gemm": 20, "idle_other": 10}
    assert measure_exposure(slices).rows() == [(0, 0, "ep_all_to_all", 20, 10, 10)]


def test_an_operation_that_spans_two_steps_counts_in_each_for_its_part() -> None:
    slices = slice_steps(operations([(0, "gemm", 35, 50)]), no_causes(), steps())
    owned = {(s, bucket): ns for t, s, bucket, ns in measure_budget(slices, steps()).rows() if t == 0}
    assert (owned[0, "gemm"], owned[1, "gemm"]) == (5, 10)


def test_a_budget_that_does_not_sum_to_its_step_is_refused() -> None:
    slices = slice_steps(operations([]), no_causes(), steps())
    with pytest.raises(ConservationError):
        measure_budget(slices.head(1), steps())


def test_precedence_is_compute_communication_copies_graph_idle() -> None:
    assert (*CATEGORIES, *IDLE_BUCKETS) == LABELS
    assert LABELS.index("unclassified") < LABELS.index("ep_all_to_all") < LABELS.index("copy_d2d")
    assert LABELS.index("memset") < LABELS.index("cuda_graph") < LABELS.index("profiler")
