"""Launch-starved time between the optimizer's kernels."""

from __future__ import annotations

import polars as pl

from three_walls.attribution.ownership import LABELS
from three_walls.facts.optimizer_starved import measure_optimizer_starved
from three_walls.timeline.intervals import mask_of

STARVED = mask_of(["launch_starved"], LABELS)


def operations(*rows: tuple[str, int, int]) -> pl.DataFrame:
    schema = {"category": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def slices(*rows: tuple[int, int, int]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"start_ns": pl.Int64, "end_ns": pl.Int64, "active": pl.Int64}, orient="row")


def test_only_starved_time_between_the_first_and_the_last_optimizer_kernel_counts() -> None:
    kernels = operations(("gemm", 0, 100), ("optimizer", 200, 210), ("optimizer", 260, 270))
    cut = slices((100, 200, STARVED), (210, 250, STARVED), (250, 260, 0), (270, 300, STARVED))
    assert measure_optimizer_starved(kernels, cut) == (40, None)


def test_an_optimizer_kernel_before_the_backward_pass_opens_no_phase() -> None:
    kernels = operations(("optimizer", 10, 20), ("gemm", 50, 100), ("optimizer", 200, 210), ("optimizer", 220, 230))
    cut = slices((20, 50, STARVED), (100, 200, STARVED), (210, 220, STARVED))
    assert measure_optimizer_starved(kernels, cut) == (10, None)


def test_a_step_without_optimizer_kernels_has_no_such_time_and_says_so() -> None:
    found, reason = measure_optimizer_starved(operations(("gemm", 0, 100)), slices((100, 200, STARVED)))
    assert found is None
    assert reason == "no optimizer kernel follows the step's last GEMM"
