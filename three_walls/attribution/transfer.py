"""How much of exposed communication is transfer, how much waiting for peers: a proxy from one rank.

The duration of a collective includes waiting until its peers arrive. Calls of one kind on one rank repeat many
times a step with like sizes, so a call that found its peers ready shows what the transfer takes. Each call
counts as transfer for at most the lowest tenth of its kind's durations; the rest is waiting.

Calls that carry next to nothing (``ep_control``: counts, notices, barriers) move it in microseconds: there the shortest
call is the transfer of each, and no more than :data:`CONTROL_AT_MOST_NS`.

It is a proxy: low where message sizes vary a lot, high where even the fastest tenth waited. With one call or a
few per step nothing can be told, and all of it counts as transfer.
"""

from __future__ import annotations

import polars as pl

from three_walls.attribution.ownership import COMPUTE_MASK, STEP
from three_walls.model.buckets import COMMUNICATION_CATEGORIES
from three_walls.timeline.intervals import intersect, merge_overlapping

SMALL_GAP_RATIO = 3.0
"""Exchanges of one stream carry tokens (megabytes) or counts and probabilities (kilobytes). Sorted by duration there is
a jump between the two: 0.08 to 0.3 ms over NVLink, 0.14 to 3.7 ms through host memory, in the bundled traces."""

SMALL_AT_MOST_NS = 500_000
"""No exchange of counts takes longer than this, unless it waits."""

READY_QUANTILE = 0.1
"""Share of the calls of a kind that are taken to have found all peers ready.

On eight H200s whose hosts kept each other waiting (128 experts, EP 8) nine in ten exchanges took 0.6 to 15 ms, the
lowest tenth the 0.3 to 0.6 ms that NVLink needs; a quartile would have called waiting transfer.
"""

CONTROL_AT_MOST_NS = 50_000
"""Kilobytes arrive within this time on any link of a cluster; over NVLink they took 6 us where all ranks were seen."""

FEWEST_CALLS = 8
"""With fewer calls of a kind per rank a quantile means nothing."""

_DURATION = pl.col("end_ns") - pl.col("start_ns")
_KIND = ("rank_index", "category", "stream", "name_id", "small")
_EXCHANGES = ("ep_all_to_all", "send_recv_ambiguous")


def split_transfer(operations: pl.DataFrame, steps: pl.DataFrame, slices: pl.DataFrame) -> pl.DataFrame:
    """Per step and communication class: rank_index, step, class, transfer_exposed_ns (at most the exposed time).

    Only kept steps of ``steps`` lend their calls to the quantiles.
    """
    calls = (
        operations.filter(pl.col("category").is_in(list(COMMUNICATION_CATEGORIES)))
        .with_columns(duration_ns=_DURATION)
        .with_row_index("call")
        .pipe(_mark_small)
    )
    inside = intersect(calls, steps, ["rank_index"], carry=["step", "kept"])
    floors = (
        inside.filter("kept")
        .group_by(_KIND)
        .agg(
            floor_ns=pl.col("duration_ns").quantile(READY_QUANTILE, interpolation="lower").cast(pl.Int64),
            shortest_ns=pl.col("duration_ns").min(),
            calls=pl.col("call").n_unique(),
        )
        .with_columns(
            floor_ns=pl.when(pl.col("category") == "ep_control")
            .then(pl.min_horizontal("shortest_ns", pl.lit(CONTROL_AT_MOST_NS)))
            .when(pl.col("calls") >= FEWEST_CALLS)
            .then("floor_ns")
        )
    )
    not_computing = merge_overlapping(slices.filter((pl.col("active") & COMPUTE_MASK) == 0), STEP)
    exposed = (
        intersect(inside.select("call", *STEP, "start_ns", "end_ns"), not_computing, STEP)
        .group_by("call", *STEP)
        .agg(exposed_ns=_DURATION.sum())
    )
    return (
        inside.select("call", *STEP, *(name for name in _KIND if name != "rank_index"))
        .join(exposed, on=["call", *STEP])
        .join(floors, on=_KIND, how="left", nulls_equal=True)
        .with_columns(transfer_ns=pl.min_horizontal("exposed_ns", pl.col("floor_ns").fill_null(2**62)))
        .group_by(*STEP, pl.col("category").cast(pl.String).alias("class"))
        .agg(transfer_exposed_ns=pl.col("transfer_ns").sum())
        .sort(*STEP, "class")
    )


def _mark_small(calls: pl.DataFrame) -> pl.DataFrame:
    """``calls`` with ``small``: exchanges below the widest jump in the durations of their stream's shorter half."""
    stream = ["rank_index", "category", "stream", "name_id"]
    before = pl.col("duration_ns").shift(1).over(stream)
    in_shorter_half = pl.int_range(pl.len()).over(stream) <= pl.len().over(stream) // 2
    jump = pl.when(in_shorter_half & (before <= SMALL_AT_MOST_NS)).then(pl.col("duration_ns") / before.clip(1))
    widest = (
        calls.filter(pl.col("category").is_in(list(_EXCHANGES)))
        .sort(*stream, "duration_ns")
        .with_columns(jump=jump)
        .filter(pl.col("jump") >= SMALL_GAP_RATIO)
        .sort(*stream, "jump", "duration_ns")
        .group_by(stream, maintain_order=True)
        .agg(carries_tokens_ns=pl.col("duration_ns").last())
    )
    return calls.join(widest, on=stream, how="left", nulls_equal=True, maintain_order="left").with_columns(
        small=(pl.col("duration_ns") < pl.col("carries_tokens_ns")).fill_null(value=False)
    )
