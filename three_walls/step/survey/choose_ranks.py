"""Which ranks of a surveyed run are read in full: those that represent it, and those that differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import polars as pl

from three_walls.step.attribute_steps import Attribution
from three_walls.step.find_steps import STEP, median_steps
from three_walls.step.ranks.matched_ranks import MatchedRanks
from three_walls.step.step_rows import Straggler
from three_walls.step.step_view import choose_rank
from three_walls.step.stragglers import LateRank, StragglerCause

MOST_LATE_RANKS_IN_FULL = 4
"""Late ranks of a surveyed run that are read in full, the latest first: ranks are repaired one by one. The others are
listed with how late they are."""
PEERS_OF_LATE_RANK = 2
"""Ranks that are read in full with each of them, to find the cause by comparison. The cause is what the late rank did
longer than the median of its peers, which two of them give."""
MOST_STAGES_IN_FULL = 8
"""Pipeline stages of a surveyed run of which one rank each is read in full. The first, the last and the stages evenly
between them show how a pipeline is balanced."""

REPRESENTATIVE, LATE, PEER, SLOW, LEAST, MOST, STAGE, ASKED = (
    "represents the run",
    "late",
    "peer of a late rank",
    "slow at the same kernels",
    "least compute",
    "most compute",
    "of its pipeline stage",
    "asked for",
)


def choose_ranks(
    attribution: Attribution,
    matched_ranks: MatchedRanks,
    late_ranks: Sequence[LateRank],
    rank_numbers: Collection[int],
) -> dict[int, str]:
    """The indices of the ranks to read in full, each with the reason; none without a kept step.

    ``attribution``: see attribute_survey. ``late_ranks``: the latest first. ``rank_numbers``: of ranks that
    the user wants to see.
    """
    medians = median_steps(attribution.steps)
    if not medians:
        return {}
    rank_of = matched_ranks.rank_of
    index_of = {rank.rank: rank.rank_index for rank in matched_ranks.ranks}
    reasons: dict[int, str] = {}
    # Which of the late ranks are late for a reason of their own is not known yet: none of them, or all.
    suspects = [Straggler(rank_of[late.rank_index], late.late_ns, StragglerCause.UNKNOWN, "") for late in late_ranks]
    late_indices = {late.rank_index for late in late_ranks}
    for sick in (suspects, ()):
        index = choose_rank(medians, attribution, matched_ranks, sick)[0]
        reasons.setdefault(index, LATE if index in late_indices else REPRESENTATIVE)
    representative = next(iter(reasons))
    slow = sorted(attribution.slow_ranks, key=lambda index: (-attribution.slow_ranks[index], rank_of[index]))
    unusual = late_indices | set(slow)
    for late in late_ranks[:MOST_LATE_RANKS_IN_FULL]:
        reasons.setdefault(late.rank_index, LATE)
    for late in late_ranks[:MOST_LATE_RANKS_IN_FULL]:
        for peer in _find_peers(late, matched_ranks, unusual):
            reasons.setdefault(peer, PEER)
    for index in slow[:MOST_LATE_RANKS_IN_FULL]:
        reasons.setdefault(index, SLOW)
    compute_ns = {
        index: ns
        for index, step, ns in attribution.compute.select(*STEP, "ns").sort("ns", *STEP).rows()
        if medians.get(index) == step
    }
    if compute_ns:
        reasons.setdefault(next(iter(compute_ns)), LEAST)
        reasons.setdefault(next(reversed(compute_ns)), MOST)
    for index in _list_stages(matched_ranks, representative, medians):
        reasons.setdefault(index, STAGE)
    for number in rank_numbers:
        if number in index_of:
            reasons.setdefault(index_of[number], ASKED)
    return reasons


def _find_peers(late: LateRank, matched_ranks: MatchedRanks, unusual: Collection[int]) -> list[int]:
    """Ranks that are not ``unusual`` and that take part in most of the calls at which ``late`` arrived last."""
    arrivals = matched_ranks.arrivals.filter(pl.col("kept") & pl.col("resolved"))
    own = arrivals.filter(pl.col("rank_index") == late.rank_index)
    last_at = own.filter(pl.col("last") == late.rank_index)
    instances = (last_at if last_at.height else own)["instance"].unique().implode()
    members = arrivals.filter(pl.col("instance").is_in(instances))["rank_index"]
    calls = Counter(index for index in members.to_list() if index != late.rank_index and index not in unusual)
    return sorted(calls, key=lambda index: (-calls[index], index))[:PEERS_OF_LATE_RANK]


def _list_stages(matched_ranks: MatchedRanks, representative: int, medians: Collection[int]) -> list[int]:
    """A rank of each stage of the pipeline, or of stages evenly apart: those in the lane of the representative."""
    if matched_ranks.pipeline is None or representative not in matched_ranks.pipeline.places:
        return []
    _, lane = matched_ranks.pipeline.places[representative]
    in_lane = sorted(
        (stage, index)
        for index, (stage, other) in matched_ranks.pipeline.places.items()
        if other == lane and index in medians
    )
    most = MOST_STAGES_IN_FULL
    if len(in_lane) > most:
        in_lane = [in_lane[round(place * (len(in_lane) - 1) / (most - 1))] for place in range(most)]
    return [index for _, index in in_lane]
