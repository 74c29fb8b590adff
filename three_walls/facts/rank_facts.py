"""Facts that compare ranks: the latest rank, and captures that did not start together."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from three_walls.lib.declare import artifact, duration, fact
from three_walls.lib.measurement import Measurement, known, known_or_missing, missing
from three_walls.step.attribute_steps import Attribution
from three_walls.step.ranks.matched_ranks import MatchedRanks
from three_walls.step.step_rows import Straggler
from three_walls.step.step_view import StepView, find_sick
from three_walls.step.stragglers import MINIMUM_LATE_FRACTION, SICK_CAUSES, StragglerCause

_ONE_RANK = "one rank alone was captured (give the traces of several ranks)"
_NOT_MATCHED = "no call of one rank could be matched with another rank's in a kept step"

_NOBODY_LATE = "no rank was late"
_NO_CULPRIT = "no rank is late for a reason of its own"


@dataclass(frozen=True, slots=True)
class RootCauseRank:
    """The rank to fix first."""

    rank: int
    cause: str
    cost_ns: int


@artifact
def latest_rank(
    matched_ranks: MatchedRanks,
    attribution: Attribution,
    sick_ranks: tuple[Straggler, ...],
    world_size: Measurement[int],
) -> Measurement[Straggler | None]:
    """The latest rank; None where calls were compared and no rank was late, or there is no other.

    Of those first that are late for a reason of their own, and of these those that may not represent the run: the
    others' delay may be the profiler's.
    """
    if attribution.stragglers:
        of_the_rank = [straggler for straggler in attribution.stragglers if straggler.cause in SICK_CAUSES]
        return known((*sick_ranks, *of_the_rank, *attribution.stragglers)[0])
    if world_size.value == 1:
        return known(None)
    if matched_ranks.arrivals.filter(pl.col("kept") & pl.col("resolved")).is_empty():
        return missing(_ONE_RANK if len(matched_ranks.ranks) < 2 else _NOT_MATCHED)
    return known(None)


@artifact
def culprit(
    step: StepView,
    attribution: Attribution,
    latest_rank: Measurement[Straggler | None],
    wait_exposed_ns: int,
    profiler_excess_ns: Measurement[int],
    data_loader_sets_pace: Measurement[bool],
) -> Measurement[RootCauseRank | None]:
    """The rank to fix first; None where none is late for a reason of its own.

    Where all wait for their data loaders, a host that launches late is one that waits longer.
    """
    if latest_rank.missing_reason:
        return missing(latest_rank.missing_reason)
    waiting_ns = max(0, wait_exposed_ns - step.contended_ns)
    for straggler, late_ns in find_sick(attribution.stragglers, step.unpaused_ns, profiler_excess_ns.value):
        if data_loader_sets_pace.value and straggler.cause == StragglerCause.LAUNCH_STARVED:
            continue
        cost_ns = min(late_ns, waiting_ns)
        if cost_ns >= MINIMUM_LATE_FRACTION * step.unpaused_ns:
            return known(RootCauseRank(straggler.rank, straggler.cause, cost_ns))
    return known(None)


@artifact
def widest_spread(matched_ranks: MatchedRanks, attribution: Attribution) -> Measurement[int]:
    """The index of the rank on which repeated kernels spread most."""
    spreads = attribution.kernel_spread
    if not spreads:
        return missing("too few kernels repeat in the kept steps")
    return known(min(spreads, key=lambda index: (-spreads[index], matched_ranks.rank_of[index])))


@fact("count", "the number of captured ranks")
def ranks_captured_count(matched_ranks: MatchedRanks) -> int:
    """Ranks (GPUs) whose kernels are in the traces given."""
    return len(matched_ranks.ranks)


@duration(
    "the latest rank's delay per step",
    share="the delay of the latest rank",
)
def straggler_late_ns(latest_rank: Straggler | None) -> int:
    """Time per step by which the latest rank arrives after the last but one, beyond the spread of its other peers; 0
    where no rank is late.

    Not the same as: The waiting of the others: several of them wait at once.
    """
    return latest_rank.late_ns if latest_rank else 0


@fact("text", "the cause of the latest rank's delay")
def straggler_cause(latest_rank: Straggler | None) -> Measurement[str]:
    """Why the latest rank is late: slow_compute, expert_imbalance, launch_starved, host_blocked, late_stage or
    unknown."""
    return known(latest_rank.cause) if latest_rank else missing(_NOBODY_LATE)


@fact("text", "the likely state of the latest rank's GPU")
def straggler_likely_reason(latest_rank: Straggler | None) -> Measurement[str]:
    """What repeated kernels suggest about the GPU of a latest rank that computes slowly: shared_gpu, lower_clocks, or
    none."""
    return known(latest_rank.likely_reason or "none") if latest_rank else missing(_NOBODY_LATE)


@fact("count", "the number of the rank to fix first")
def culprit_rank(culprit: RootCauseRank | None) -> Measurement[int]:
    """Number of the rank that costs the others most time for a reason of its own: a slow GPU or a slow host.

    Not the same as: The latest rank: that one may have more work, or wait for an earlier stage itself.
    """
    return known(culprit.rank) if culprit else missing(_NO_CULPRIT)


@fact("text", "the cause of the slow rank's delay")
def culprit_cause(culprit: RootCauseRank | None) -> Measurement[str]:
    """Why the rank to fix first is late: slow_compute, launch_starved, host_blocked or unknown."""
    return known(str(culprit.cause)) if culprit else missing(_NO_CULPRIT)


@duration("the delay per step by a slow rank", share="the delay by a slow rank")
def culprit_cost_ns(culprit: RootCauseRank | None) -> int:
    """Time per step that is lost to the rank to fix first: by how much it is late beyond its peers, without what the
    profiler added to launches by the log, and at most the waiting of the representative rank. 0 where none is late for
    a reason of its own.

    Not the same as: Collectives that crawl because its GPU is shared: that time is not in it.
    """
    return culprit.cost_ns if culprit else 0


@duration("the transfer time slowed by a shared GPU")
def crawling_transfer_ns(step: StepView) -> int:
    """Time per step of exposed transfer beyond the pace of the fastest calls, in collectives with a rank whose GPU is
    shared with another process. Counted as waiting for that rank."""
    return step.contended_ns


@fact("ratio", "the spread of repeated kernels")
def kernel_spread_ratio(attribution: Attribution, widest_spread: int) -> float:
    """Mean over fastest call of kernels that repeat with one name, grid and place in a layer, on the captured rank on
    which that is most. 1.0 on a GPU that runs nothing else.

    Not the same as: Imbalance: kernels whose work follows the routing of tokens are left out.
    """
    return attribution.kernel_spread[widest_spread]


@fact("count", "the rank with the largest kernel spread")
def kernel_spread_rank(matched_ranks: MatchedRanks, widest_spread: int) -> int:
    """Number of the captured rank on which repeated kernels spread most."""
    return matched_ranks.rank_of[widest_spread]


@duration("the skew of capture starts")
def capture_start_skew_ns(matched_ranks: MatchedRanks) -> Measurement[int]:
    """Time from the first recorded operation of the rank captured first to that of the rank captured last."""
    if len(matched_ranks.ranks) < 2:
        return missing(_ONE_RANK)
    return known_or_missing(matched_ranks.start_skew_ns, "the ranks' clocks could not be aligned")


@fact("count", "the number of steps begun before full capture")
def capture_start_skewed_steps_count(
    matched_ranks: MatchedRanks, attribution: Attribution, capture_start_skew_ns: Measurement[int]
) -> Measurement[int]:
    """Kept steps, of all ranks, that began before every rank was captured: nothing is compared in them."""
    skewed = attribution.steps.filter("kept").join(matched_ranks.skewed, on=["rank_index", "step"], how="semi")
    return capture_start_skew_ns.map(lambda _: skewed.height)
