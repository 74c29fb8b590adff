"""A capture of thousands of steps: finding and numbering them takes time with their number, not with its square."""

from __future__ import annotations

import polars as pl
import pytest

from tests.linear_work import assert_linear, cpu_seconds
from three_walls.step.categories import CATEGORY
from three_walls.step.find_steps import STEPS, find_steps
from three_walls.step.ranks.align_clocks import ClockSource
from three_walls.step.ranks.capture_start import number_steps
from three_walls.step.step_rows import StepSource
from three_walls.trace.schemas import HOST_RANGES

KERNELS_PER_STEP = 20
STEP_NS = 1000


def make_steps(count: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The operations and the ranges of ``count`` steps of one rank."""
    start_ns = pl.int_range(count * KERNELS_PER_STEP, eager=True, dtype=pl.Int64) * (STEP_NS // KERNELS_PER_STEP)
    operations = pl.DataFrame({"start_ns": start_ns}).select(
        pl.lit(0, dtype=pl.Int64).alias("rank_index"),
        pl.lit(0, dtype=pl.Int64).alias("capture_id"),
        pl.lit(7, dtype=pl.Int64).alias("process"),
        pl.lit("kernel").alias("kind"),
        "start_ns",
        end_ns=pl.col("start_ns") + 10,
        launch_start_ns=pl.col("start_ns"),
        anchor=pl.lit(value=False),
        category=pl.lit("gemm", dtype=CATEGORY),
    )
    begins_ns = [STEP_NS * step for step in range(count)]
    ranges = pl.DataFrame(
        {
            "process": [7] * count,
            "thread": [8] * count,
            "start_ns": begins_ns,
            "end_ns": [begin_ns + STEP_NS - 1 for begin_ns in begins_ns],
            "text": [f"training_step_{step}" for step in range(count)],
        },
        schema=HOST_RANGES,
    )
    return operations, ranges.with_columns(capture_id=pl.lit(0, dtype=pl.Int64))


@pytest.mark.slow
def test_two_thousand_steps_are_found_in_less_than_a_second() -> None:
    operations, ranges = make_steps(2_000)
    steps, sources = find_steps(operations, ranges, None)
    assert (steps.height, int(steps["kept"].sum()), sources[0]) == (2_000, 1_998, StepSource.TRAINING_STEP)
    assert cpu_seconds(lambda: find_steps(operations, ranges, None), runs=2) < 1


@pytest.mark.slow
def test_the_time_grows_with_the_steps_and_not_with_their_square() -> None:
    assert_linear(make_steps, lambda made: find_steps(*made, None), 2_000, 16_000)


def two_captures(count: int, late_by: int) -> tuple[pl.DataFrame, dict[int, StepSource], list[ClockSource]]:
    """The steps of two ranks, of which the second began ``late_by`` steps later, their sources and clocks."""
    rows = [
        (rank_index, step, STEP_NS * (step + first), STEP_NS * (step + first + 1), True, "")
        for rank_index, first in enumerate((0, late_by))
        for step in range(count - first)
    ]
    clocks = [ClockSource(rank_index, rank_index, rank_index, "node", 0) for rank_index in range(2)]
    return pl.DataFrame(rows, schema=STEPS, orient="row"), dict.fromkeys((0, 1), StepSource.OPTIMIZER), clocks


@pytest.mark.parametrize("late_by", [0, 3, 1_000])
def test_steps_that_ran_at_the_same_time_have_one_number_however_many_there_are(late_by: int) -> None:
    numbered = number_steps(*two_captures(2_000, late_by))
    assert numbered.filter(rank_index=1)["step"][0] == late_by


@pytest.mark.parametrize(("shares_capture", "expected"), [(True, 3), (False, 0)])
def test_ranks_of_one_capture_have_one_clock_even_if_it_does_not_state_when_it_began(
    shares_capture: bool, expected: int
) -> None:
    steps, sources, _ = two_captures(2_000, 3)
    clocks = [ClockSource(rank, rank, 0 if shares_capture else rank, None, None) for rank in range(2)]
    assert number_steps(steps, sources, clocks).filter(rank_index=1)["step"][0] == expected


def test_numbering_takes_time_with_the_steps_and_not_with_their_square() -> None:
    assert_linear(lambda count: two_captures(count, count // 2), lambda made: number_steps(*made), 1_000, 64_000)


def test_steps_that_end_at_other_times_keep_their_numbers() -> None:
    steps, sources, clocks = two_captures(2_000, 3)
    is_second = pl.col("rank_index") == 1
    shifted = steps.with_columns(end_ns=pl.col("end_ns") + pl.when(is_second).then(STEP_NS // 2).otherwise(0))
    assert number_steps(shifted, sources, clocks).filter(rank_index=1)["step"][0] == 0
