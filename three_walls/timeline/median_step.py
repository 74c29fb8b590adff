"""Which step stands for a rank."""

from __future__ import annotations

import polars as pl


def median_steps(steps: pl.DataFrame) -> dict[int, int]:
    """Per track the step of median length among its kept ones (the lower of two; ties: the earlier)."""
    kept = steps.filter("kept").with_columns(length_ns=pl.col("end_ns") - pl.col("start_ns"))
    middle = (
        kept.sort("rank_index", "length_ns", "start_ns")
        .group_by("rank_index", maintain_order=True)
        .agg(pl.col("step").get((pl.len() - 1) // 2))
    )
    return {int(rank_index): int(step) for rank_index, step in middle.rows()}
