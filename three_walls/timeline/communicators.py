"""Which communicator an NCCL kernel ran on, where NCCL's own ranges say so.

A kernel is launched by the last call of its group (or by its only one), so it belongs to the calls that its thread
made since the previous launch of an NCCL kernel. Calls of several communicators in one group launch several kernels,
and nothing says which is whose: those stay unknown.
"""

from __future__ import annotations

import polars as pl

from three_walls.vocabulary.categories import COMMUNICATION_CATEGORIES, SEND_RECV

_OF_NCCL = [*COMMUNICATION_CATEGORIES, SEND_RECV]


def join_communicators(operations: pl.DataFrame, nccl_calls: pl.DataFrame) -> pl.DataFrame:
    """``operations`` of one report with ``communicator`` and ``message_bytes`` (sum of its calls'); null if not known.

    ``nccl_calls``: trace.schemas.NCCL_CALLS of the same report.
    """
    if nccl_calls.is_empty():
        return operations.with_columns(
            communicator=pl.lit(None, dtype=pl.UInt64), message_bytes=pl.lit(None, dtype=pl.Int64)
        )
    numbered = operations.with_row_index("row")
    launches = numbered.filter(pl.col("category").cast(pl.String).is_in(_OF_NCCL)).select(
        "row", "launch_start_ns", thread="launch_thread"
    )
    found = (
        nccl_calls.select("thread", "start_ns", "communicator", "message_bytes")
        .sort("start_ns")
        .join_asof(
            launches.drop_nulls().sort("launch_start_ns"),
            left_on="start_ns",
            right_on="launch_start_ns",
            by="thread",
            strategy="forward",
            check_sortedness=False,
        )
        .drop_nulls("row")
        .group_by("row")
        .agg(
            communicators=pl.col("communicator").n_unique(),
            communicator=pl.col("communicator").first(),
            message_bytes=pl.col("message_bytes").sum(),
        )
        .filter(pl.col("communicators") == 1)
        .drop("communicators")
    )
    return numbered.join(found, on="row", how="left", maintain_order="left").drop("row")
