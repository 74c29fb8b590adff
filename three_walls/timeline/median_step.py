"""Which step stands for a rank."""

from __future__ import annotations

import polars as pl


def median_steps(steps: pl.DataFrame) -> dict[int, int]:
    """Per track the step of median length among its kept ones (the lower of two; ties: the earlier)."""
    kept = steps.filter("kept").with_columns(length_ns=pl.col("end_ns") - pl.col("start_ns"))
    middle = (
        kept.sort("track", "length_ns", "start_ns")
        .group_by("track", maintain_order=True)
        .agg(pl.col("step").get((pl.len() - 1) // 2))
    )
    return {int(track): int(step) for track, step in middle.rows()}
