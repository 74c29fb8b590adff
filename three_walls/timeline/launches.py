"""Which API call launched each device operation: joined by process and correlation id, never by id alone."""

from __future__ import annotations

import polars as pl


def join_launches(operations: pl.DataFrame, api_calls: pl.DataFrame, processes: pl.DataFrame) -> pl.DataFrame:
    """``operations`` with their host side: report, process, launch_start_ns, launch_end_ns, launch_thread.

    ``processes`` maps track to report and process. The launch columns are null where the call was not recorded.
    Correlation ids are unique within one process only: two ranks in one report share them.
    """
    launched = operations.join(processes, on="rank_index", how="left", maintain_order="left")
    key = ["process", "correlation"]
    launches = (
        api_calls.join(launched, on=key, how="semi")
        .sort("process", "correlation", "start_ns")
        .unique(key, keep="first", maintain_order=True)
        .select(
            "process",
            "correlation",
            launch_start_ns="start_ns",
            launch_end_ns="end_ns",
            launch_thread="thread",
        )
    )
    return launched.join(launches, on=key, how="left", maintain_order="left")
