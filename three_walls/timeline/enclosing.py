"""Which device operations were launched inside which host ranges."""

from __future__ import annotations

import polars as pl


def launched_inside(operations: pl.DataFrame, ranges: pl.DataFrame) -> pl.Series:
    """Per operation: whether its launch lies in one of ``ranges`` (HOST_RANGES of one report) on its thread."""
    if ranges.is_empty():
        return pl.repeat(value=False, n=operations.height, eager=True)
    # Ranges of one thread nest, so the one that opened last before the launch may have closed while an outer
    # one is still open: the latest end so far decides.
    open_until = (
        ranges.with_columns(end_ns=pl.col("end_ns").fill_null(2**62))
        .sort("start_ns")
        .with_columns(open_until_ns=pl.col("end_ns").cum_max().over("thread"))
        .select("thread", "start_ns", "open_until_ns")
    )
    launches = operations.with_row_index("row").select("row", "launch_start_ns", thread="launch_thread")
    found = (
        launches.drop_nulls()
        .sort("launch_start_ns")
        .join_asof(
            open_until,
            left_on="launch_start_ns",
            right_on="start_ns",
            by="thread",
            strategy="backward",
            check_sortedness=False,
        )
        .select("row", inside=(pl.col("open_until_ns") > pl.col("launch_start_ns")).fill_null(value=False))
    )
    return launches.join(found, on="row", how="left", maintain_order="left")["inside"].fill_null(value=False)
