"""Which step stands for the run."""

from __future__ import annotations

import polars as pl

from three_walls.step.find_steps import STEPS, median_steps


def test_the_median_step_is_the_lower_of_two_and_dropped_ones_do_not_count() -> None:
    rows = [
        (0, 0, 0, 900, False, ""),
        (0, 1, 900, 1000, True, ""),
        (0, 2, 1000, 1120, True, ""),
        (1, 0, 0, 300, True, ""),
        (1, 1, 300, 500, True, ""),
        (1, 2, 500, 900, True, ""),
    ]
    assert median_steps(pl.DataFrame(rows, schema=STEPS, orient="row")) == {0: 1, 1: 0}
