"""How much of exposed communication is transfer, and how much is waiting for peers.

Where the calls of several ranks are matched this is measured: a call transfers from the arrival of its last member to
its end (``step/ranks/matched_ranks.py``).

Elsewhere it is estimated from one rank. The duration of a collective includes waiting until its peers arrive. Calls of
a kind repeat many times a step with similar sizes, so the calls that found their peers ready show how long the transfer
takes: the fastest tenth of the kind's calls, of token exchanges the fastest one. They have one size under balanced
routing, and hosts that keep each other waiting delay nearly all of them: on eight H200s (128 experts, EP 8) the fastest
of 60 exchanges of 117 MB took 0.33 to 0.39 ms, as over NVLink elsewhere, the fastest tenth 0.6 to 0.8 ms, half of it
waiting. Of each call at most this much counts as transfer; the rest is waiting.

That holds for messages of one size. Where NCCL's own ranges state the size of each exchange, a call transfers as long
as its bytes take at the pace of the fastest one. Where neither the sizes are recorded nor the routing is balanced, the
transfer is a lower bound, and ``is_least`` marks it.

Calls that carry next to nothing (``ep_control``: counts, notifications, barriers) transfer it in microseconds. Of these
the shortest call of the kind is the transfer of each, up to the threshold ``maximum_control_ns``.

Besides the measured transfer there is what its calls would take at the pace of the fastest of their kind.
It matters where a GPU of the group is shared with another process: its collectives take many times as long, and no
faster link cures that.

The estimate is low where message sizes vary a lot, and high where even the fastest calls waited. With only a few calls
per step nothing is known, and all of their time counts as transfer.
"""

from __future__ import annotations

import polars as pl

from three_walls.step.build_timeline import Timeline
from three_walls.step.find_steps import STEP
from three_walls.step.intervals import DURATION, intersect, merge_overlapping
from three_walls.step.ranks.match_calls import STEP_AND_CLASS
from three_walls.step.ranks.matched_ranks import MatchedRanks
from three_walls.step.step_tables import ExposureRows, Operations, ReadyDurations, Slices, TransferRows
from three_walls.tables.buckets import COMMUNICATION_CATEGORIES, TOKEN_EXCHANGES

READY_QUANTILE = 0.1
"""Of the durations of a kind of call, other than token exchanges: the quantile that counts as its transfer, because so
many calls are taken to have found all peers ready. Calls of one kind may have several sizes, so the shortest alone says
little; a quartile would have called waiting transfer. Of exchanges of tokens, which have one size, the shortest
counts."""
MINIMUM_CALLS = 8
"""Calls of a kind per rank that are needed for that quantile. With fewer it means nothing."""
MAXIMUM_CONTROL_NS = 50_000
"""Transfer of a call that carries next to nothing. Kilobytes arrive within this time on any link of a cluster; over
NVLink they took 6 us where all ranks were captured."""
MINIMUM_SMALL_EXCHANGE_RATIO = 3.0
"""Jump in the sorted durations that separates exchanges of counts and probabilities (kilobytes) from exchanges of
tokens (megabytes) on one stream. They take 0.08 to 0.3 ms over NVLink, 0.14 to 3.7 ms through host memory, in the
bundled traces."""
MAXIMUM_SMALL_EXCHANGE_NS = 500_000
"""An exchange of counts takes longer than this only if it waits."""

_KIND = ("rank_index", "category", "stream", "name_id", "small")
"""Identifies calls that are comparable in size. ``small``: see _mark_small."""

_EXCHANGES = ("ep_all_to_all", "send_recv_ambiguous")

_IS_TOKEN_EXCHANGE = pl.col("category").is_in(list(TOKEN_EXCHANGES))
_SIZED_NS = pl.when(_IS_TOKEN_EXCHANGE).then(
    (pl.col("message_bytes") * pl.col("fastest_ns_per_byte")).round().cast(pl.Int64)
)
"""What the bytes of an exchange of tokens take at the pace of the fastest one."""


def measure_transfer(
    timeline: Timeline, matched_ranks: MatchedRanks, exposed_slices: Slices, exposure: ExposureRows
) -> TransferRows:
    """Exposed transfer, at most the exposed time of the class.

    It is measured where the calls of a class are resolved (split_classes), else estimated from the rank alone.
    ``exposed_slices``: those with exposed communication (ownership.IS_EXPOSED).
    """
    exposed_stretches = merge_overlapping(exposed_slices, STEP)
    resolved = matched_ranks.class_splits.filter("resolved").select(STEP_AND_CLASS)
    transfers = _list_transfers(timeline, matched_ranks, resolved)
    exposed_transfers = _expose(transfers, exposed_stretches, "measured_ns")
    repeated_transfers = transfers.filter(pl.col("ready_ns").is_not_null())
    at_pace = repeated_transfers.with_columns(
        start_ns=pl.max_horizontal("start_ns", pl.col("end_ns") - pl.col("ready_ns"))
    )
    return (
        _estimate(timeline, exposed_stretches)
        .join(exposure.select(*STEP_AND_CLASS, "exposed_ns"), on=STEP_AND_CLASS, how="full", coalesce=True)
        .join(resolved.with_columns(is_resolved=pl.lit(value=True)), on=STEP_AND_CLASS, how="left")
        .join(exposed_transfers, on=STEP_AND_CLASS, how="left")
        .join(_expose(repeated_transfers, exposed_stretches, "repeated_exposed_ns"), on=STEP_AND_CLASS, how="left")
        .join(_expose(at_pace, exposed_stretches, "fastest_exposed_ns"), on=STEP_AND_CLASS, how="left")
        .select(
            *STEP_AND_CLASS,
            transfer_exposed_ns=pl.when("is_resolved")
            .then(pl.min_horizontal(pl.col("measured_ns").fill_null(0), "exposed_ns"))
            .otherwise("estimated_ns"),
            repeated_exposed_ns=pl.when("is_resolved").then(pl.col("repeated_exposed_ns").fill_null(0)),
            fastest_exposed_ns=pl.when("is_resolved").then(pl.col("fastest_exposed_ns").fill_null(0)),
            is_least=pl.col("is_least").fill_null(value=False) & pl.col("is_resolved").is_null(),
        )
        .drop_nulls("transfer_exposed_ns")
        .sort(STEP_AND_CLASS)
    )


def estimate_ready_durations(timeline: Timeline) -> ReadyDurations:
    """How long each call of communication takes when its peers are ready.

    By the bytes of the call where they are recorded, else by the fastest calls of its kind.
    """
    calls = _list_calls(timeline.operations)
    inside = intersect(calls, timeline.steps, ["rank_index"], carry=["step", "kept"])
    return calls.join(_ready_durations(inside), on=_KIND, how="left", nulls_equal=True).select(
        "rank_index",
        "stream",
        "start_ns",
        "end_ns",
        ready_ns=pl.when(pl.col("ready_ns").is_not_null()).then(
            pl.min_horizontal("duration_ns", pl.coalesce(_SIZED_NS, "ready_ns"))
        ),
    )


def _list_transfers(timeline: Timeline, matched_ranks: MatchedRanks, resolved: pl.DataFrame) -> pl.DataFrame:
    """When the calls of ``resolved`` classes transfer: rank_index, class, start_ns, end_ns, ready_ns.

    A matched call transfers from the latest arrival to its end, an unmatched call throughout. ready_ns: how long the
    fastest tenth of its kind transfers; null where the kind has too few calls.
    """
    columns = ("rank_index", "stream", "start_ns", "end_ns", "name_id", "message_bytes")
    kernels = (
        timeline.operations.select(*columns, "category")
        .filter(pl.col("category").is_in(list(COMMUNICATION_CATEGORIES)))
        .select(columns)
        .unique(["rank_index", "stream", "start_ns", "end_ns"], keep="first", maintain_order=True)
    )
    transfers = (
        matched_ranks.matched.communication.join(resolved, on=STEP_AND_CLASS, how="semi")
        .join(matched_ranks.arrivals.select("call", "wait_ns"), on="call", how="left")
        .join(kernels, on=["rank_index", "stream", "start_ns", "end_ns"], how="left", maintain_order="left")
        .with_columns(category="class", duration_ns=DURATION - pl.col("wait_ns").fill_null(0))
        .pipe(_mark_small)
    )
    return transfers.join(_ready_durations(transfers), on=_KIND, how="left", nulls_equal=True).select(
        "rank_index", "class", "end_ns", "ready_ns", start_ns=pl.col("end_ns") - pl.col("duration_ns")
    )


def _expose(transferring: pl.DataFrame, exposed_stretches: pl.DataFrame, name: str) -> pl.DataFrame:
    """The exposed transfer: rank_index, step, class, and the time as ``name``.

    It is the part of the union of the calls in which no compute kernel runs, so it never exceeds the exposed time.
    """
    united = merge_overlapping(transferring, ["rank_index", "class"])
    exposed = intersect(united, exposed_stretches, ["rank_index"], carry=["step"])
    return exposed.group_by(STEP_AND_CLASS).agg(DURATION.sum().alias(name))


def _estimate(timeline: Timeline, exposed_stretches: pl.DataFrame) -> pl.DataFrame:
    """Exposed transfer estimated from each rank alone: rank_index, step, class, estimated_ns, is_least.

    Only calls of kept steps count for the fastest ones.
    """
    calls = _list_calls(timeline.operations)
    inside = intersect(calls, timeline.steps, ["rank_index"], carry=["step", "kept"])
    exposed = (
        intersect(inside.select("call", *STEP, "start_ns", "end_ns"), exposed_stretches, STEP)
        .group_by("call", *STEP)
        .agg(exposed_ns=DURATION.sum())
    )
    return (
        inside.select("call", *STEP, "message_bytes", *(name for name in _KIND if name != "rank_index"))
        .join(exposed, on=["call", *STEP])
        .join(_ready_durations(inside), on=_KIND, how="left", nulls_equal=True)
        .with_columns(sized_ns=pl.when(pl.col("ready_ns").is_not_null()).then(_SIZED_NS))
        .with_columns(
            transfer_ns=pl.min_horizontal("exposed_ns", pl.coalesce("sized_ns", "ready_ns").fill_null(2**62)),
            is_least=_IS_TOKEN_EXCHANGE & pl.col("ready_ns").is_not_null() & pl.col("sized_ns").is_null(),
        )
        .group_by(*STEP, pl.col("category").cast(pl.String).alias("class"))
        .agg(estimated_ns=pl.col("transfer_ns").sum(), is_least=pl.col("is_least").any())
    )


def _ready_durations(calls: pl.DataFrame) -> pl.DataFrame:
    """How long each kind of call takes when its peers are ready: the columns of _KIND, ready_ns (null if not known).

    fastest_ns_per_byte: of the call that moves its bytes fastest; null where no sizes were recorded.
    """
    per_byte = pl.col("duration_ns") / pl.when(pl.col("message_bytes") > 0).then("message_bytes")
    lowest = pl.col("duration_ns").quantile(READY_QUANTILE, interpolation="lower")
    quantile = lowest.cast(pl.Int64)
    return (
        calls.filter("kept")
        .group_by(_KIND)
        .agg(
            quantile_ns=quantile,
            shortest_ns=pl.col("duration_ns").min(),
            calls=pl.col("call").n_unique(),
            fastest_ns_per_byte=per_byte.min(),
        )
        .select(
            *_KIND,
            "fastest_ns_per_byte",
            ready_ns=pl.when(pl.col("category") == "ep_control")
            .then(pl.min_horizontal("shortest_ns", pl.lit(MAXIMUM_CONTROL_NS)))
            .when(pl.col("calls") >= MINIMUM_CALLS)
            .then(pl.when(_IS_TOKEN_EXCHANGE).then("shortest_ns").otherwise("quantile_ns")),
        )
    )


def _list_calls(operations: Operations) -> pl.DataFrame:
    """The communication among ``operations``: call (its number), duration_ns, small, and what identifies its kind."""
    return (
        operations.select(*(name for name in _KIND if name != "small"), "start_ns", "end_ns", "message_bytes")
        .filter(pl.col("category").is_in(list(COMMUNICATION_CATEGORIES)))
        .with_columns(duration_ns=DURATION)
        .with_row_index("call")
        .pipe(_mark_small)
    )


def _mark_small(calls: pl.DataFrame) -> pl.DataFrame:
    """Adds ``small`` to ``calls``: exchanges that carry counts, on a stream that also carries tokens.

    These are the calls below the largest jump in duration within the shorter half of the stream's exchanges.
    """
    stream = ["rank_index", "category", "stream", "name_id"]
    before = pl.col("duration_ns").shift(1).over(stream)
    in_shorter_half = pl.int_range(pl.len()).over(stream) <= pl.len().over(stream) // 2
    may_be_small = in_shorter_half & (before <= MAXIMUM_SMALL_EXCHANGE_NS)
    jump = pl.when(may_be_small).then(pl.col("duration_ns") / before.clip(1))
    largest = (
        calls.filter(pl.col("category").is_in(list(_EXCHANGES)))
        .sort(*stream, "duration_ns")
        .with_columns(jump=jump)
        .filter(pl.col("jump") >= MINIMUM_SMALL_EXCHANGE_RATIO)
        .sort(*stream, "jump", "duration_ns")
        .group_by(stream, maintain_order=True)
        .agg(carries_tokens_ns=pl.col("duration_ns").last())
    )
    return calls.join(largest, on=stream, how="left", nulls_equal=True, maintain_order="left").with_columns(
        small=(pl.col("duration_ns") < pl.col("carries_tokens_ns")).fill_null(value=False)
    )
