"""Which calls of different ranks are one collective: the n-th of their class and stream in the same step.

Calls are matched by order, and only where every captured rank of the group made equally many in that step. Where
NCCL's own ranges name the communicator, it replaces group and role in :data:`KEY`; everything later uses ``instance``
alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from three_walls.model.buckets import COMMUNICATION_CATEGORIES, COMPUTE_CATEGORIES
from three_walls.timeline.intervals import DURATION
from three_walls.timeline.steps import STEP
from three_walls.timeline.timeline import Timeline

CLASS = (*STEP, "class")
"""What identifies the calls of one class in a step of a rank."""

KEY = ("class", "group", "role")
"""What distinguishes sequences of calls within one step."""


@dataclass(frozen=True, slots=True)
class Matched:
    """``everything``: all communication of all steps: call, rank_index, stream, communicator, class, step, kept,
    start_ns, end_ns.

    ``calls``: one row per rank and collective: the above, and instance, group, role, captured, size, sure, complete;
    ``kept`` here means that the step is kept in all members. ``abstained``: sequences that could not be matched: class,
    group, role, step, kept, reason. Times are on each rank's own clock.
    """

    everything: pl.DataFrame
    calls: pl.DataFrame
    abstained: pl.DataFrame


def match_calls(timeline: Timeline, members: pl.DataFrame, *, all_captured: bool = False) -> Matched:
    """Matches the communication of all ranks. ``members``: see groups.MEMBERS.

    ``all_captured``: whether every rank of the run was captured; then so was every member of a communicator.
    """
    everything = _list_communication(timeline)
    numbered = _number(everything, _roles(timeline.operations), members, all_captured=all_captured)
    counts = numbered.group_by(*KEY, "step", "rank_index").agg(pl.len(), pl.col("captured", "kept").first())
    sequences = counts.group_by(*KEY, "step").agg(
        captured=pl.col("captured").first(),
        seen=pl.len(),
        fewest=pl.col("len").min(),
        most=pl.col("len").max(),
        kept_in_all=pl.col("kept").all(),
    )
    fits = (pl.col("seen") == pl.col("captured")) & (pl.col("fewest") == pl.col("most")) & (pl.col("captured") > 1)
    calls = (
        numbered.drop("kept")
        .join(sequences.filter(fits).select(*KEY, "step", kept="kept_in_all"), on=[*KEY, "step"])
        .sort(*KEY, "step", "order", "rank_index")
        .with_columns(instance=pl.struct(*KEY, "step", "order").rle_id().cast(pl.Int64))
        .drop("order")
    )
    return Matched(everything, calls, _explain(sequences.filter(~fits)))


def _explain(sequences: pl.DataFrame) -> pl.DataFrame:
    reason = (
        pl.when(pl.col("captured") == 1)
        .then(pl.lit("no other rank of its group was captured"))
        .when(pl.col("seen") < pl.col("captured"))
        .then(pl.format("{} of {} captured ranks made no such call", pl.col("captured") - pl.col("seen"), "captured"))
        .otherwise(pl.format("the ranks made {} to {} calls of it", "fewest", "most"))
    )
    return sequences.select(*KEY, "step", kept="kept_in_all", reason=reason).sort(*KEY, "step")


def _list_communication(timeline: Timeline) -> pl.DataFrame:
    """Communication of all ranks with the step in which it began."""
    windows = timeline.steps.select(*STEP, "kept", opened_ns="start_ns", closed_ns="end_ns").sort("opened_ns")
    return (
        timeline.operations.filter(pl.col("category").is_in(list(COMMUNICATION_CATEGORIES)))
        .select(
            "rank_index",
            "stream",
            "communicator",
            "start_ns",
            "end_ns",
            pl.col("category").cast(pl.String).alias("class"),
        )
        .sort("start_ns")
        .join_asof(windows, left_on="start_ns", right_on="opened_ns", by="rank_index", check_sortedness=False)
        .filter(pl.col("start_ns") < pl.col("closed_ns"))
        .drop("opened_ns", "closed_ns")
        .sort("rank_index", "start_ns", "end_ns", "stream")
        .with_row_index("call")
    )


def _roles(operations: pl.DataFrame) -> pl.DataFrame:
    """What a stream is for, comparable across ranks: rank_index, class, stream, role.

    Stream numbers differ between processes; their order is that of creation, which is the same in all ranks of
    one program. Role 0 is the stream that computes, if the class runs there.
    """
    computing = (
        operations.filter(pl.col("category").is_in(list(COMPUTE_CATEGORIES)))
        .group_by("rank_index", "stream")
        .agg(work_ns=DURATION.sum())
        .sort(["rank_index", "work_ns", "stream"], descending=[False, True, False])
        .unique("rank_index", keep="first", maintain_order=True)
        .select("rank_index", main="stream")
    )
    streams = (
        operations.filter(pl.col("category").is_in(list(COMMUNICATION_CATEGORIES)))
        .select("rank_index", "stream", pl.col("category").cast(pl.String).alias("class"))
        .unique()
        .join(computing, on="rank_index", how="left")
        .with_columns(is_main=(pl.col("stream") == pl.col("main")).fill_null(value=False))
    )
    by_creation = pl.col("stream").rank("dense").over("rank_index", "class", "is_main").cast(pl.Int64)
    return streams.select("rank_index", "class", "stream", role=pl.when("is_main").then(0).otherwise(by_creation))


def _number(calls: pl.DataFrame, roles: pl.DataFrame, members: pl.DataFrame, *, all_captured: bool) -> pl.DataFrame:
    """Calls with their group and their order within sequence and step; pairwise classes drop out."""
    by_class = calls.join(roles, on=["rank_index", "class", "stream"], how="left").join(
        members, on=["rank_index", "class"]
    )
    named = pl.col("communicator").is_not_null()
    seen = pl.col("rank_index").n_unique().over("communicator").cast(pl.Int64)
    size = pl.when("sure").then("size").when(pl.lit(all_captured)).then(seen)
    return (
        by_class.with_columns(
            # The sign distinguishes groups of communicators from the others.
            group=pl.when(named).then(-pl.col("communicator").rank("dense").cast(pl.Int64)).otherwise("group"),
            role=pl.when(named).then(0).otherwise("role"),
            captured=pl.when(named).then(seen).otherwise("captured"),
            size=pl.when(named).then(size).otherwise("size"),
            sure=pl.col("sure") | named,
        )
        .with_columns(complete=(pl.col("captured") == pl.col("size")).fill_null(value=False))
        .sort("rank_index", "start_ns", "end_ns", "call")
        .with_columns(order=pl.col("start_ns").cum_count().over(*KEY, "step", "rank_index").cast(pl.Int64))
    )
