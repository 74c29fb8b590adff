"""Facts that compare ranks: the latest rank, and captures that did not start together."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from three_walls.facts.communication_facts import WAIT_EXPOSED
from three_walls.facts.log_facts import PROFILER_EXCESS
from three_walls.lib.fact import FactGroup, Measurements, Pool
from three_walls.lib.measurement import known, missing
from three_walls.step import attribution_thresholds
from three_walls.step.attribute_steps import Attribution
from three_walls.step.ranks.matched_ranks import MatchedRanks
from three_walls.step.step_rows import Straggler
from three_walls.step.step_view import StepView, find_sick
from three_walls.step.stragglers import SICK_CAUSES

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
STRAGGLER_REASON = facts.fact(
    "straggler_likely_reason",
    "text",
    "the likely state of the latest rank's GPU",
    "What repeated kernels suggest about the GPU of a latest rank that computes slowly: shared_gpu, lower_clocks, or "
    "none.",
)
CULPRIT_RANK = facts.fact(
    "culprit_rank",
    "count",
    "the number of the rank to fix first",
    "Number of the rank that costs the others most time for a reason of its own: a slow GPU or a slow host.",
    "The latest rank: that one may have more work, or wait for an earlier stage itself.",
)
CULPRIT_CAUSE = facts.fact(
    "culprit_cause",
    "text",
    "the cause of the slow rank's delay",
    "Why the rank to fix first is late: slow_compute, launch_starved, host_blocked or unknown.",
)
CULPRIT_COST = facts.duration(
    "culprit_cost_ns",
    "the delay per step by a slow rank",
    "Time per step that is lost to the rank to fix first: by how much it is late beyond its peers, without what the "
    "profiler added to launches by the log, and at most the waiting of the representative rank. 0 where none is late "
    "for a reason of its own.",
    "Collectives that crawl because its GPU is shared: that time is not in it.",
    share="the delay by a slow rank",
    pool=Pool(part_of=("wait_exposed_ns",)),
)
CRAWLING_TRANSFER = facts.duration(
    "crawling_transfer_ns",
    "the transfer time slowed by a shared GPU",
    "Time per step of exposed transfer beyond the pace of the fastest calls, in collectives with a rank whose GPU is "
    "shared with another process. Counted as waiting for that rank.",
)
KERNEL_SPREAD = facts.fact(
    "kernel_spread_ratio",
    "ratio",
    "the spread of repeated kernels",
    "Mean over fastest call of kernels that repeat with one name, grid and place in a layer, on the captured rank on "
    "which that is most. 1.0 on a GPU that runs nothing else.",
    "Imbalance: kernels whose work follows the routing of tokens are left out.",
)
KERNEL_SPREAD_RANK = facts.fact(
    "kernel_spread_rank",
    "count",
    "the rank with the largest kernel spread",
    "Number of the captured rank on which repeated kernels spread most.",
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


def measure_ranks(matched_ranks: MatchedRanks, attribution: Attribution, sick: Sequence[Straggler]) -> Measurements:
    """Every fact of this group but the culprit's. ``sick``: see find_sick."""
    return {
        RANKS_CAPTURED: known(len(matched_ranks.ranks)),
        **_measure_straggler(matched_ranks, attribution, sick),
        **_measure_kernel_spread(matched_ranks, attribution),
        **_measure_capture_start(matched_ranks, attribution.steps),
    }


def measure_culprit(stragglers: Sequence[Straggler], step: StepView, measured: Measurements) -> Measurements:
    """Facts of the rank to fix first, of those ``measured`` so far; ``stragglers``: the latest first."""
    crawling = known(step.crawl_ns)
    if measured[STRAGGLER_LATE].is_missing:
        reason = measured[STRAGGLER_LATE].missing_reason or _NOT_MATCHED
        lacking = dict.fromkeys((CULPRIT_RANK, CULPRIT_CAUSE, CULPRIT_COST), missing(reason))
        return {**lacking, CRAWLING_TRANSFER: crawling}
    waiting_ns = max(0, (measured[WAIT_EXPOSED].whole or 0) - step.crawl_ns)
    for straggler, late_ns in find_sick(stragglers, step.step_ns, measured[PROFILER_EXCESS].whole):
        cost_ns = min(late_ns, waiting_ns)
        if cost_ns >= attribution_thresholds.MINIMUM_LATE_FRACTION * step.step_ns:
            return {
                CULPRIT_RANK: known(straggler.rank),
                CULPRIT_CAUSE: known(str(straggler.cause)),
                CULPRIT_COST: known(cost_ns),
                CRAWLING_TRANSFER: crawling,
            }
    reason = "no rank is late for a reason of its own"
    return {
        **dict.fromkeys((CULPRIT_RANK, CULPRIT_CAUSE), missing(reason)),
        CULPRIT_COST: known(0),
        CRAWLING_TRANSFER: crawling,
    }


def _measure_kernel_spread(matched_ranks: MatchedRanks, attribution: Attribution) -> Measurements:
    spreads = attribution.kernel_spread
    if not spreads:
        reason = "too few kernels repeat in the kept steps"
        return dict.fromkeys((KERNEL_SPREAD, KERNEL_SPREAD_RANK), missing(reason))
    widest = min(spreads, key=lambda index: (-spreads[index], matched_ranks.rank_of[index]))
    return {KERNEL_SPREAD: known(spreads[widest]), KERNEL_SPREAD_RANK: known(matched_ranks.rank_of[widest])}


def _measure_straggler(
    matched_ranks: MatchedRanks, attribution: Attribution, sick: Sequence[Straggler]
) -> Measurements:
    """The latest rank; 0 ns where calls were compared and no rank was late.

    Of those first that are late for a reason of their own, and of these the ``sick`` ones: the others' delay may be the
    profiler's.
    """
    if attribution.stragglers:
        of_the_rank = [straggler for straggler in attribution.stragglers if straggler.cause in SICK_CAUSES]
        latest = (*sick, *of_the_rank, *attribution.stragglers)[0]
        return {
            STRAGGLER_LATE: known(latest.late_ns),
            STRAGGLER_CAUSE: known(latest.cause),
            STRAGGLER_REASON: known(latest.likely_reason or "none"),
        }
    if matched_ranks.arrivals.filter(pl.col("kept") & pl.col("resolved")).is_empty():
        reason = _ONE_RANK if len(matched_ranks.ranks) < 2 else _NOT_MATCHED
        return dict.fromkeys((STRAGGLER_LATE, STRAGGLER_CAUSE, STRAGGLER_REASON), missing(reason))
    nobody = missing("no rank was late")
    return {STRAGGLER_LATE: known(0), STRAGGLER_CAUSE: nobody, STRAGGLER_REASON: nobody}


def _measure_capture_start(matched_ranks: MatchedRanks, steps: pl.DataFrame) -> Measurements:
    is_one_rank = len(matched_ranks.ranks) < 2
    if matched_ranks.start_skew_ns is None or is_one_rank:
        reason = _ONE_RANK if is_one_rank else "the ranks' clocks could not be aligned"
        return dict.fromkeys((CAPTURE_START_SKEW, CAPTURE_START_SKEWED_STEPS), missing(reason))
    skewed = steps.filter("kept").join(matched_ranks.skewed, on=["rank_index", "step"], how="semi")
    return {
        CAPTURE_START_SKEW: known(matched_ranks.start_skew_ns),
        CAPTURE_START_SKEWED_STEPS: known(skewed.height),
    }
