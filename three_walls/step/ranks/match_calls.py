"""Which calls of different ranks are the same collective: the n-th of its class and stream in the same step.

Calls are matched by order, and only where every captured rank of the group made equally many of them in that step.
Where NCCL's own ranges state the communicator, it takes the place of group and role in :data:`SEQUENCE`. Later stages
use the column ``instance`` alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from three_walls.step.build_timeline import Timeline
from three_walls.step.find_steps import STEP
from three_walls.step.intervals import DURATION, find_window
from three_walls.step.step_tables import (
    CollectiveCalls,
    CommunicationCalls,
    Members,
    Operations,
    RankIntervals,
    Steps,
    StreamRoles,
    UnmatchedCalls,
)
from three_walls.tables.buckets import COMMUNICATION_CATEGORIES, COMPUTE_CATEGORIES
from three_walls.trace.schemas import ROWS_AT_ONCE

STEP_AND_CLASS = (*STEP, "class")
"""Identifies the calls of a communication class in a step of a rank."""

SEQUENCE = ("class", "group", "role")
"""Distinguishes sequences of calls within a step: the n-th call of a sequence is the same collective on all ranks."""


@dataclass(frozen=True, slots=True)
class MatchedCalls:
    """Calls of all ranks, matched where possible. Times are on each rank's own clock."""

    communication: CommunicationCalls
    """All calls of all steps."""
    calls: CollectiveCalls
    """The matched ones."""
    unmatched: UnmatchedCalls


@dataclass(frozen=True, slots=True)
class RankOutline:
    """What comparing ranks needs of operations that are no communication."""

    roles: StreamRoles
    begins: RankIntervals
    """Per rank its first operation: the earliest start and the earliest end."""
    unread: Steps | None = None
    """Steps whose operations were not read; None where all were. The numbers of all steps are then alike."""


def match_calls(
    timeline: Timeline, members: Members, roles: StreamRoles, *, all_captured: bool = False
) -> MatchedCalls:
    """Matches the communication of all ranks by order. ``roles``: see RankOutline.

    ``all_captured``: whether every rank of the run was captured, and with it every member of a communicator.
    """
    communication = _list_communication(timeline)
    numbered = _number(communication, roles, members, all_captured=all_captured)
    counts = numbered.group_by(*SEQUENCE, "step", "rank_index").agg(pl.len(), pl.col("captured", "kept").first())
    sequences = counts.group_by(*SEQUENCE, "step").agg(
        captured=pl.col("captured").first(),
        seen=pl.len(),
        fewest=pl.col("len").min(),
        most=pl.col("len").max(),
        kept_in_all=pl.col("kept").all(),
    )
    fits = (pl.col("seen") == pl.col("captured")) & (pl.col("fewest") == pl.col("most")) & (pl.col("captured") > 1)
    calls = (
        numbered.drop("kept")
        .join(sequences.filter(fits).select(*SEQUENCE, "step", kept="kept_in_all"), on=[*SEQUENCE, "step"])
        .sort(*SEQUENCE, "step", "order", "rank_index")
        .with_columns(instance=pl.struct(*SEQUENCE, "step", "order").rle_id().cast(pl.Int64))
        .drop("order")
    )
    return MatchedCalls(communication, calls, _explain(sequences.filter(~fits)))


def _explain(sequences: pl.DataFrame) -> pl.DataFrame:
    reason = (
        pl.when(pl.col("captured") == 1)
        .then(pl.lit("no other rank of its group was captured"))
        .when(pl.col("seen") < pl.col("captured"))
        .then(pl.format("{} of {} captured ranks made no such call", pl.col("captured") - pl.col("seen"), "captured"))
        .otherwise(pl.format("the number of calls differs between ranks ({} to {})", "fewest", "most"))
    )
    return sequences.select(*SEQUENCE, "step", kept="kept_in_all", reason=reason).sort(*SEQUENCE, "step")


def _list_communication(timeline: Timeline) -> CommunicationCalls:
    """The communication of all ranks that begins within a step, with that step."""
    calls = (
        timeline.operations.select("rank_index", "stream", "communicator", "start_ns", "end_ns", "category")
        .filter(pl.col("category").is_in(list(COMMUNICATION_CATEGORIES)))
        .with_columns(pl.col("category").cast(pl.String).alias("class"))
        .drop("category")
    )
    window = find_window(calls, timeline.steps, ["rank_index"])
    return (
        pl.concat([calls, timeline.steps.select(pl.col("step", "kept").gather(window))], how="horizontal")
        .drop_nulls("step")
        .sort("rank_index", "start_ns", "end_ns", "stream")
        .with_row_index("call")
    )


def outline_ranks(operations: Operations) -> RankOutline:
    """The outline of the ranks that ran ``operations`` (as in a Timeline).

    Stream numbers differ between processes, but they follow the order of creation, which is the same on all ranks of a
    program. Role 0 is the stream that computes, if the class runs there.
    """
    columns = ("rank_index", "stream", "category", "start_ns", "end_ns")
    sums = [  # part by part: what is filtered of all would take hundreds of megabytes
        rows.filter(pl.col("category").is_in(list(COMPUTE_CATEGORIES)))
        .group_by("rank_index", "stream")
        .agg(work_ns=DURATION.sum())
        for rows in operations.select(columns).iter_slices(ROWS_AT_ONCE)
    ]
    computing = (
        pl.concat(sums)
        .group_by("rank_index", "stream")
        .agg(pl.col("work_ns").sum())
        .sort(["rank_index", "work_ns", "stream"], descending=[False, True, False])
        .unique("rank_index", keep="first", maintain_order=True)
        .select("rank_index", main="stream")
    )
    streams = (
        operations.select("rank_index", "stream", "category")
        .filter(pl.col("category").is_in(list(COMMUNICATION_CATEGORIES)))
        .select("rank_index", "stream", pl.col("category").cast(pl.String).alias("class"))
        .unique()
        .join(computing, on="rank_index", how="left")
        .with_columns(is_main=(pl.col("stream") == pl.col("main")).fill_null(value=False))
    )
    by_creation = pl.col("stream").rank("dense").over("rank_index", "class", "is_main").cast(pl.Int64)
    roles = streams.select("rank_index", "class", "stream", role=pl.when("is_main").then(0).otherwise(by_creation))
    return RankOutline(roles, operations.group_by("rank_index").agg(pl.col("start_ns").min(), pl.col("end_ns").min()))


def _number(
    calls: CommunicationCalls, roles: StreamRoles, members: Members, *, all_captured: bool
) -> CommunicationCalls:
    """``calls`` with their group and their order within sequence and step. Pairwise classes have no group: left out."""
    by_class = calls.join(roles, on=["rank_index", "class", "stream"], how="left").join(
        members, on=["rank_index", "class"]
    )
    is_known = pl.col("communicator").is_not_null()
    ranks = pl.col("rank_index").n_unique().over("communicator").cast(pl.Int64)
    size = pl.when("sure").then("size").when(pl.lit(all_captured)).then(ranks)
    return (
        by_class.with_columns(
            # The sign distinguishes groups of communicators from the others.
            group=pl.when(is_known).then(-pl.col("communicator").rank("dense").cast(pl.Int64)).otherwise("group"),
            role=pl.when(is_known).then(0).otherwise("role"),
            captured=pl.when(is_known).then(ranks).otherwise("captured"),
            size=pl.when(is_known).then(size).otherwise("size"),
            sure=pl.col("sure") | is_known,
        )
        .with_columns(complete=(pl.col("captured") == pl.col("size")).fill_null(value=False))
        .sort("rank_index", "start_ns", "end_ns", "call")
        .with_columns(order=pl.col("start_ns").cum_count().over(*SEQUENCE, "step", "rank_index").cast(pl.Int64))
    )
