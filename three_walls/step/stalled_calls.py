"""CUDA calls that stall: the device waits for the host, and the host is in a single call for far longer than usual.

A call that waits for the device returns when that has caught up. What a call takes while the device is idle is its own,
and that is microseconds. Where it is milliseconds (the driver holds a lock, the process does not run), the host pauses.
"""

from __future__ import annotations

from typing import Annotated

import polars as pl

from three_walls.step.host_activity import API_VERSION, kind_of
from three_walls.step.intervals import DURATION, intersect
from three_walls.step.step_tables import Operations
from three_walls.trace.api_calls import ApiCalls

LEAST_STALL_NS = 5_000_000
"""Of idle time of the device in a call. In 140 captures no call that launches, copies or allocates has 1 ms of it; in
five of them one that synchronizes has 3 to 134 ms."""
LEAST_STALL_RATIO = 10
"""Of what calls of its kind take in the median, stalls aside: an allocator that is full is slow again and again."""
_TAKES_LONG = "module_load"
"""Code is loaded once, which takes up to 30 ms of a large library."""

Stalls = Annotated[
    pl.DataFrame,
    {
        "rank_index": pl.Int64,
        "thread": pl.Int64,
        "called_ns": pl.Int64,  # when the call begins
        "start_ns": pl.Int64,  # from here to the end the device is idle
        "end_ns": pl.Int64,
        "call": pl.String,  # its name without suffixes
    },
]


def find_stalls(operations: Operations, api_calls: ApiCalls) -> Stalls:
    """The stalls of all threads that launch ``operations``, by rank and time. ``operations`` are, too."""
    idle = operations.select(
        "rank_index",
        launched_ns="launch_start_ns",
        start_ns=pl.col("end_ns").cum_max().shift(1).over("rank_index"),
        end_ns="start_ns",
    ).filter(DURATION >= LEAST_STALL_NS)
    threads = operations.select("rank_index", "capture_id", thread="launch_thread").drop_nulls().unique()
    calls = (
        api_calls.lasting(LEAST_STALL_NS)
        .frame("capture_id", "thread", "start_ns", "end_ns", "name")
        .join(threads, on=["capture_id", "thread"])
        .with_columns(pl.col("name").cast(pl.String).fill_null(""), called_ns="start_ns")
    )
    # Where the next operation was launched before, the device waits for something else, and the call for the device.
    inside = intersect(calls, idle, ["rank_index"], carry=["launched_ns"]).filter(
        DURATION >= LEAST_STALL_NS, pl.col("launched_ns") >= pl.col("called_ns")
    )
    stalling = inside["name"].unique().to_list()
    least_ns = pl.DataFrame(
        {"name": stalling, "least_ns": [_find_least(name, api_calls) for name in stalling]},
        schema={"name": pl.String, "least_ns": pl.Int64},
    )
    return (
        inside.join(least_ns, on="name")
        .filter(pl.col("least_ns") <= DURATION)
        .sort("rank_index", "start_ns")
        .select(
            "rank_index", "thread", "called_ns", "start_ns", "end_ns", call=pl.col("name").str.replace(API_VERSION, "")
        )
    )


def _find_least(name: str, api_calls: ApiCalls) -> int | None:
    """From which length on a call ``name`` stalls; None where none does."""
    kind = kind_of(name) or name
    if kind == _TAKES_LONG:
        return None
    like = api_calls.named(lambda other: (kind_of(other) or other) == kind).frame("start_ns", "end_ns")
    usual_ns = like.select(DURATION.filter(DURATION < LEAST_STALL_NS).median()).item() or 0
    return round(LEAST_STALL_RATIO * usual_ns)


def begin_late(operations: Operations, stalls: Stalls) -> Operations:
    """``operations`` whose launches begin when they stall no more."""
    if stalls.is_empty():
        return operations
    latest = stalls.group_by("rank_index", "thread", "called_ns").agg(stalled_until_ns=pl.col("end_ns").max())
    key = ["rank_index", "launch_thread", "launch_start_ns"]
    until_ns = operations.select(key).join(
        latest, left_on=key, right_on=["rank_index", "thread", "called_ns"], how="left", maintain_order="left"
    )["stalled_until_ns"]
    is_launched_after = until_ns <= operations["start_ns"]  # a copy may be done before its call stalls
    return operations.with_columns(
        launch_start_ns=pl.when(is_launched_after).then(until_ns).otherwise("launch_start_ns")
    )
