"""Facts that compare ranks: the latest rank, and captures that did not start together."""

from __future__ import annotations

import polars as pl

from three_walls.attribution.attribution import Attribution
from three_walls.model.fact import FactGroup, Measurements, Pool, known, missing
from three_walls.ranks.matched_ranks import MatchedRanks
from three_walls.timeline.timeline import Timeline

_ONE_RANK = "one rank alone was captured (give the traces of several ranks)"
_NOT_MATCHED = "no call of one rank could be matched with another rank's in a kept step"

facts = FactGroup()

RANKS_CAPTURED = facts.fact(
    "ranks_captured_count",
    "count",
    "the number of captured ranks",
    "Ranks (GPUs) whose kernels are in the traces given.",
)
STRAGGLER_LATE = facts.duration(
    "straggler_late_ns",
    "the latest rank's delay per step",
    "Time per step by which the latest rank arrives after the last but one, beyond the spread of its other peers; 0 "
    "where no rank is late.",
    "The waiting of the others: several of them wait at once.",
    share="the delay of the latest rank",
    # A time of the latest rank: no time of the representative step contains it.
    pool=Pool(part_of=("straggler_late_recoverable_ns",), is_device_busy=False),
)
STRAGGLER_CAUSE = facts.fact(
    "straggler_cause",
    "text",
    "the cause of the latest rank's delay",
    "Why the latest rank is late: slow_compute, expert_imbalance, launch_starved, host_blocked, late_stage or unknown.",
)
CAPTURE_START_SKEW = facts.duration(
    "capture_start_skew_ns",
    "the skew of capture starts",
    "Time from the first recorded operation of the rank captured first to that of the rank captured last.",
)
CAPTURE_START_SKEWED_STEPS = facts.fact(
    "capture_start_skewed_steps_count",
    "count",
    "the number of steps begun before full capture",
    "Kept steps, of all ranks, that began before every rank was captured: nothing is compared in them.",
)


def measure_ranks(matched_ranks: MatchedRanks, attribution: Attribution, timeline: Timeline) -> Measurements:
    """Every fact of this group. ``timeline``: with the skewed steps dropped."""
    return {
        RANKS_CAPTURED: known(len(matched_ranks.ranks)),
        **_measure_straggler(matched_ranks, attribution),
        **_measure_capture_start(matched_ranks, timeline),
    }


def _measure_straggler(matched_ranks: MatchedRanks, attribution: Attribution) -> Measurements:
    """The latest rank; 0 ns where calls were compared and no rank was late."""
    if attribution.stragglers:
        latest = attribution.stragglers[0]
        return {STRAGGLER_LATE: known(latest.late_ns), STRAGGLER_CAUSE: known(latest.cause)}
    if matched_ranks.arrivals.filter(pl.col("kept") & pl.col("resolved")).is_empty():
        reason = _ONE_RANK if len(matched_ranks.ranks) < 2 else _NOT_MATCHED
        return dict.fromkeys((STRAGGLER_LATE, STRAGGLER_CAUSE), missing(reason))
    return {STRAGGLER_LATE: known(0), STRAGGLER_CAUSE: missing("no rank was late")}


def _measure_capture_start(matched_ranks: MatchedRanks, timeline: Timeline) -> Measurements:
    is_one_rank = len(matched_ranks.ranks) < 2
    if matched_ranks.start_skew_ns is None or is_one_rank:
        reason = _ONE_RANK if is_one_rank else "the ranks' clocks could not be aligned"
        return dict.fromkeys((CAPTURE_START_SKEW, CAPTURE_START_SKEWED_STEPS), missing(reason))
    skewed = timeline.steps.filter("kept").join(matched_ranks.skewed, on=["rank_index", "step"], how="semi")
    return {
        CAPTURE_START_SKEW: known(matched_ranks.start_skew_ns),
        CAPTURE_START_SKEWED_STEPS: known(skewed.height),
    }
