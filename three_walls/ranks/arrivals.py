"""Who arrived when at each matched call, and what of it was waiting.

A call moves data from the moment its last member arrives (its kernel starts) to its end; before that its
kernels wait. So wait = latest arrival - own arrival and transfer = own end - latest arrival, per call and rank
(OSDI'25, arXiv 2505.05713); they sum to the call's duration exactly. Without one clock, or with members missing,
the shortest participant of a call stands for its transfer: too high if the last to arrive was not captured, too low
for an all-to-all whose shortest participant received least.
"""

from __future__ import annotations

import polars as pl

from three_walls.ranks.alignment import CommonClock
from three_walls.ranks.matching import Matched
from three_walls.tables.thresholds import RankThresholds

_DURATION = pl.col("end_ns") - pl.col("start_ns")


def measure_arrivals(matched: Matched, clock: CommonClock, thresholds: RankThresholds) -> pl.DataFrame:
    """``matched.calls`` with common_start_ns, common_end_ns and, per call of one rank:

    resolved    all members on one clock, and their times fit one collective
    latest_ns   arrival of the last member, second_ns: of the last but one (common clock)
    last        track that arrived last; null where it cannot be told from the last but one
    wait_ns, transfer_ns   the split; by latest arrival if resolved, else by shortest participant
    """
    calls = clock.put(matched.calls)
    arrival = pl.col("common_start_ns")
    per_instance = calls.group_by("instance").agg(
        latest_ns=arrival.max(),
        second_ns=arrival.bottom_k(pl.len() - 1).max(),
        last=pl.col("rank_index").get(arrival.fill_null(0).arg_max()),
        first_end_ns=pl.col("common_end_ns").min(),
        end_spread_ns=pl.col("common_end_ns").max() - pl.col("common_end_ns").min(),
        shortest_ns=_DURATION.min(),
        has_clock=arrival.is_not_null().all(),
    )
    # Nobody leaves a collective before the last has come. Where the class can run in several groups calls of
    # different ones may have been put together: only leaving at once shows that they are one.
    most = thresholds.maximum_end_spread_ns
    overlaps = pl.col("first_end_ns") + min(clock.error_ns, most) >= pl.col("latest_ns")
    leave_together = pl.col("end_spread_ns") <= most
    fits = overlaps & (pl.col("sure") | leave_together)
    resolved = pl.lit(clock.is_resolved) & pl.col("complete") & pl.col("has_clock") & fits
    by_arrival = (pl.col("latest_ns") - arrival).clip(lower_bound=0)
    told_apart = pl.col("latest_ns") - pl.col("second_ns") > clock.error_ns
    return (
        calls.join(per_instance, on="instance", maintain_order="left")
        .with_columns(resolved=resolved.fill_null(value=False))
        .with_columns(
            wait_ns=pl.when("resolved")
            .then(pl.min_horizontal(by_arrival, _DURATION))
            .otherwise(_DURATION - pl.col("shortest_ns")),
            last=pl.when(pl.col("resolved") & told_apart).then("last"),
        )
        .with_columns(transfer_ns=_DURATION - pl.col("wait_ns"))
        .drop("first_end_ns", "end_spread_ns", "shortest_ns", "has_clock")
    )
