"""A capture of thousands of steps: finding and numbering them takes time with their number, not with its square."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import polars as pl
import pytest

from tests.linear_work import assert_linear, cpu_seconds
from three_walls.inputs.nsys.schemas import HOST_RANGES
from three_walls.ranks.capture_start import number_steps
from three_walls.timeline.categories import CATEGORY
from three_walls.timeline.steps import STEPS, StepSource, find_steps

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


def test_two_thousand_steps_are_found_in_less_than_a_second() -> None:
    operations, ranges = make_steps(2_000)
    steps, sources = find_steps(operations, ranges, None)
    assert (steps.height, int(steps["kept"].sum()), sources[0]) == (2_000, 1_998, StepSource.TRAINING_STEP)
    assert cpu_seconds(lambda: find_steps(operations, ranges, None), runs=2) < 1


def test_the_time_grows_with_the_steps_and_not_with_their_square() -> None:
    assert_linear(make_steps, lambda made: find_steps(*made, None), 2_000, 16_000)


def two_captures(count: int, late_by: int) -> tuple[Any, Any]:
    """A timeline of two ranks, of which the second began ``late_by`` steps later, and their traces."""
    rows = [
        (rank_index, step, STEP_NS * (step + first), STEP_NS * (step + first + 1), True, "")
        for rank_index, first in enumerate((0, late_by))
        for step in range(count - first)
    ]
    timeline = SimpleNamespace(
        steps=pl.DataFrame(rows, schema=STEPS, orient="row"),
        sources=dict.fromkeys((0, 1), StepSource.OPTIMIZER),
    )
    ranks = [SimpleNamespace(rank_index=rank_index, host="node", rank=rank_index) for rank_index in range(2)]
    return timeline, [SimpleNamespace(ranks=ranks, session_start_ns=0)]


@pytest.mark.parametrize("late_by", [0, 3, 1_000])
def test_steps_that_ran_at_the_same_time_have_one_number_however_many_there_are(late_by: int) -> None:
    timeline, traces = two_captures(2_000, late_by)
    numbered = number_steps(timeline, traces)
    assert numbered.filter(rank_index=1)["step"][0] == late_by


def test_numbering_takes_time_with_the_steps_and_not_with_their_square() -> None:
    assert_linear(lambda count: two_captures(count, count // 2), lambda made: number_steps(*made), 1_000, 64_000)


def test_steps_that_end_at_other_times_keep_their_numbers() -> None:
    timeline, traces = two_captures(2_000, 3)
    is_second = pl.col("rank_index") == 1
    shifted = timeline.steps.with_columns(end_ns=pl.col("end_ns") + pl.when(is_second).then(STEP_NS // 2).otherwise(0))
    timeline = cast("Any", SimpleNamespace(steps=shifted, sources=timeline.sources))
    assert number_steps(timeline, traces).filter(rank_index=1)["step"][0] == 0
