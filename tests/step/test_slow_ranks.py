"""How much kernels that repeat vary: on a shared GPU, on a healthy one, with tokens routed unevenly."""

from __future__ import annotations

import polars as pl
import pytest

from three_walls.step.find_steps import STEPS
from three_walls.step.slow_ranks import measure_kernel_spread, measure_step_spreads

US = 1_000
STEP_OF_RANK_0 = pl.DataFrame([(0, 0, 0, 10_000 * US, True, "")], schema=STEPS, orient="row")


def spread(durations: list[tuple[str, int]]) -> float | None:
    """Of rank 0, with kernels (category, duration in us) one after the other: kernels of a category have one name."""
    rows, now = [], 0
    names = {category: name_id for name_id, category in enumerate(sorted({category for category, _ in durations}))}
    for category, duration_us in durations:
        rows.append((0, "kernel", category, names[category], 1, 1, 1, 7, now, now + duration_us * US))
        now += duration_us * US
    columns = ["rank_index", "kind", "category", "name_id", "grid_x", "grid_y", "grid_z", "stream"]
    operations = pl.DataFrame(rows, schema=[*columns, "start_ns", "end_ns"], orient="row")
    return measure_kernel_spread(measure_step_spreads(operations, STEP_OF_RANK_0)).get(0)


def test_kernels_that_take_turns_with_another_process_spread() -> None:
    found = spread([("attention", 100), ("norm", 100), ("attention", 300), ("norm", 300)] * 8)
    assert found == pytest.approx(2.0, rel=0.05)


def test_kernels_on_a_gpu_of_their_own_do_not() -> None:
    assert spread([("attention", 100), ("norm", 50)] * 8) == 1.0


def test_a_slower_clock_slows_every_call_alike() -> None:
    assert spread([("attention", 140), ("norm", 70)] * 8) == 1.0


def test_grouped_gemms_of_uneven_tokens_do_not_count() -> None:
    layers = [
        call for tokens in (100, 900, 200, 700, 100, 800) for call in (("attention", 400), ("grouped_gemm", tokens))
    ]
    assert spread(layers) == 1.0


def test_the_same_kernel_between_other_kernels_is_another_one() -> None:
    step = [("norm", 20), ("gemm", 100), ("attention", 50), ("gemm", 400)] * 5
    assert spread(step) == 1.0


def test_kernels_that_hardly_repeat_show_nothing() -> None:
    assert spread([("attention", 100), ("norm", 50), ("attention", 300)]) is None


def test_kernels_of_a_few_microseconds_show_nothing() -> None:
    assert spread([("attention", 2), ("attention", 6)] * 8) is None


def test_a_kernel_is_looked_up_in_its_own_step_alone_however_many_there_are() -> None:
    # Every kernel with every step would be 800 million rows.
    count = 20_000
    starts = pl.int_range(0, 2 * count, eager=True) * 100 * US
    operations = pl.DataFrame({"start_ns": starts, "end_ns": starts + 100 * US}).with_columns(
        *(pl.lit(0, dtype=pl.Int64).alias(name) for name in ("rank_index", "name_id", "stream")),
        *(pl.lit(1, dtype=pl.Int64).alias(name) for name in ("grid_x", "grid_y", "grid_z")),
        kind=pl.lit("kernel"),
        category=pl.lit("gemm"),
    )
    begins = pl.int_range(0, count, eager=True) * 200 * US
    steps = pl.DataFrame({"step": pl.int_range(0, count, eager=True), "start_ns": begins, "end_ns": begins + 200 * US})
    whole = steps.with_columns(rank_index=pl.lit(0, dtype=pl.Int64), kept=True, reason=pl.lit("")).select(STEPS.names())
    assert measure_kernel_spread(measure_step_spreads(operations, whole)) == {}
