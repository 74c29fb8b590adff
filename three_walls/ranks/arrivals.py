"""Who arrived when at each matched call, and what part of it was waiting.

A call moves data from the moment its last member arrives (its kernel starts) to its end; before that the kernels of the
others wait. So wait = latest arrival - own arrival and transfer = own end - latest arrival, per call and rank
(OSDI'25, arXiv 2505.05713); they sum to the call's duration exactly. Without one clock, or with members missing, the
shortest participant of a call stands for its transfer: too high if the last to arrive was not captured, too low for an
all-to-all whose shortest participant received least.
"""

from __future__ import annotations

import polars as pl

from three_walls.ranks.clock import CommonClock
from three_walls.ranks.matching import CLASS, Matched
from three_walls.tables.thresholds import default_rank_thresholds
from three_walls.timeline.intervals import DURATION


def measure_arrivals(matched: Matched, clock: CommonClock) -> pl.DataFrame:
    """``matched.calls`` with common_start_ns, common_end_ns and, per call of one rank:

    resolved    all members are on one clock, and their times fit one collective
    latest_ns   arrival of the last member, second_ns: of the second-to-last (common clock)
    last        rank index that arrived last; null where the clock cannot separate it from the second-to-last
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
        shortest_ns=DURATION.min(),
        has_clock=arrival.is_not_null().all(),
    )
    # Nobody leaves a collective before the last member has come. Where the class can run in several groups, calls of
    # different groups may have been matched: only leaving at once shows that they are one call.
    maximum_spread_ns = default_rank_thresholds().maximum_end_spread_ns
    overlaps = pl.col("first_end_ns") + min(clock.error_ns, maximum_spread_ns) >= pl.col("latest_ns")
    leave_together = pl.col("end_spread_ns") <= maximum_spread_ns
    fits = overlaps & (pl.col("sure") | leave_together)
    resolved = pl.lit(clock.is_resolved) & pl.col("complete") & pl.col("has_clock") & fits
    by_arrival = (pl.col("latest_ns") - arrival).clip(lower_bound=0)
    is_distinct = pl.col("latest_ns") - pl.col("second_ns") > clock.error_ns
    return (
        calls.join(per_instance, on="instance", maintain_order="left")
        .with_columns(resolved=resolved.fill_null(value=False))
        .with_columns(
            wait_ns=pl.when("resolved")
            .then(pl.min_horizontal(by_arrival, DURATION))
            .otherwise(DURATION - pl.col("shortest_ns")),
            last=pl.when(pl.col("resolved") & is_distinct).then("last"),
        )
        .with_columns(transfer_ns=DURATION - pl.col("wait_ns"))
        .drop("first_end_ns", "end_spread_ns", "shortest_ns", "has_clock")
    )


def split_classes(matched: Matched, arrivals: pl.DataFrame) -> pl.DataFrame:
    """Per rank, step and class, how its calls were split and into what; durations are summed, not united.

    Columns: rank_index, step, class, total_ns, wait_ns (null if too few of its calls are matched), resolved,
    resolved_ns, captured, size, complete. ``arrivals``: see measure_arrivals.
    """
    total = matched.everything.group_by(CLASS).agg(total_ns=DURATION.sum())
    split = arrivals.group_by(CLASS).agg(
        pl.col("wait_ns").sum(),
        matched_ns=DURATION.sum(),
        resolved_ns=DURATION.filter("resolved").sum(),
        captured=pl.col("captured").first(),
        size=pl.col("size").first(),
        complete=pl.col("complete").first(),
    )
    enough = default_rank_thresholds().minimum_resolved_fraction * pl.col("total_ns")
    return (
        total.join(split, on=CLASS, how="left")
        .with_columns(pl.col("matched_ns", "resolved_ns").fill_null(0))
        .with_columns(
            resolved=(pl.col("resolved_ns") >= enough) & (pl.col("resolved_ns") > 0),
            wait_ns=pl.when((pl.col("matched_ns") >= enough) & (pl.col("matched_ns") > 0)).then("wait_ns"),
        )
        .drop("matched_ns")
        .sort(CLASS)
    )
