"""Which communicator an NCCL kernel ran on, where NCCL's own ranges state it.

A kernel is launched inside the range of its call, or, where calls are grouped, inside the end of the outermost group.
Calls of several communicators in one group launch several kernels, and nothing distinguishes them: those stay unknown.
"""

from __future__ import annotations

import polars as pl

from three_walls.inputs.nsys.nccl_payload import GROUP_END, GROUP_START
from three_walls.model.buckets import COMMUNICATION_CATEGORIES, SEND_RECV

_NCCL_CATEGORIES = [*COMMUNICATION_CATEGORIES, SEND_RECV]
_IS_MARK = pl.col("call_name").is_in([GROUP_START, GROUP_END])


def join_communicators(operations: pl.DataFrame, nccl_calls: pl.DataFrame) -> pl.DataFrame:
    """``operations`` of one capture with ``communicator`` and ``message_bytes``; null where the call is not known.

    ``nccl_calls``: NCCL_CALLS of the same capture. The message of a group is what it sends (all of it, if
    it sends nothing), and known only where one kernel carries it.
    """
    if nccl_calls.is_empty():
        return operations.with_columns(
            communicator=pl.lit(None, dtype=pl.UInt64), message_bytes=pl.lit(None, dtype=pl.Int64)
        )
    numbered = operations.with_row_index("row")
    launches = (
        numbered.filter(pl.col("category").cast(pl.String).is_in(_NCCL_CATEGORIES))
        .select("row", "launch_start_ns", thread="launch_thread")
        .drop_nulls()
        .sort("launch_start_ns")
    )
    calls = _number_groups(nccl_calls)
    ungrouped = calls.filter(~_IS_MARK & (pl.col("depth") == 0))
    outside_groups = _inside(launches, ungrouped, ["communicator", "message_bytes"]).drop("thread")
    found = pl.concat([outside_groups, _inside_groups(launches, calls)])
    return numbered.join(found, on="row", how="left", maintain_order="left").drop("row")


def _number_groups(calls: pl.DataFrame) -> pl.DataFrame:
    """``calls`` with ``depth``, the groups open after their start, and ``group``, the number of the outermost one.

    The end that closes the outermost group has depth 0. A capture can begin inside a group: an end without its start
    closes nothing.
    """
    opens = (pl.col("call_name") == GROUP_START).cast(pl.Int64)
    closes = (pl.col("call_name") == GROUP_END).cast(pl.Int64)
    level = (opens - closes).cum_sum().over("thread")
    lowest = pl.min_horizontal(level.cum_min().over("thread"), pl.lit(0))
    ordered = calls.sort("thread", "start_ns", "end_ns").with_columns(depth=level - lowest)
    begins = (pl.col("call_name") == GROUP_START) & (pl.col("depth") == 1)
    return ordered.with_columns(group=begins.cast(pl.Int64).cum_sum().over("thread"))


def _inside_groups(launches: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Launches inside the end of an outermost group: row, communicator, message_bytes."""
    key = ["thread", "group"]
    sends = pl.col("call_name") == "ncclSend"
    size = pl.col("message_bytes")
    groups = (
        calls.filter(~_IS_MARK & (pl.col("depth") > 0))
        .group_by(key)
        .agg(
            communicator=pl.when(pl.col("communicator").n_unique() == 1).then(pl.col("communicator").first()),
            message_bytes=pl.when(sends.any()).then(size.filter(sends).sum()).otherwise(size.sum()),
        )
    )
    ends = calls.filter((pl.col("call_name") == GROUP_END) & (pl.col("depth") == 0))
    inside = _inside(launches, ends, ["group"]).join(groups, on=key)
    is_alone = pl.len().over(key) == 1
    return inside.select("row", "communicator", message_bytes=pl.when(is_alone).then("message_bytes"))


def _inside(launches: pl.DataFrame, ranges: pl.DataFrame, carry: list[str]) -> pl.DataFrame:
    """Launches that lie in one of ``ranges`` of their thread (which do not overlap there): row, thread, ``carry``."""
    return (
        launches.join_asof(
            ranges.select("thread", "start_ns", "end_ns", *carry).sort("start_ns"),
            left_on="launch_start_ns",
            right_on="start_ns",
            by="thread",
            strategy="backward",
            check_sortedness=False,
        )
        .filter(pl.col("launch_start_ns") < pl.col("end_ns"))
        .select("row", "thread", *carry)
    )
