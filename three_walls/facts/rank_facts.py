"""Facts of ranks beside each other: the one that is latest, and captures that began apart."""

from __future__ import annotations

import polars as pl

from three_walls.attribution.attribution import Attribution
from three_walls.model.fact import FactValue
from three_walls.ranks.matched_ranks import MatchedRanks
from three_walls.timeline.timeline import Timeline

Known = tuple[FactValue, str | None]

_ONE_RANK = "needs the traces of several ranks"
_NOT_MATCHED = "no call of several ranks could be put together in a kept step"


def rank_facts(matched_ranks: MatchedRanks, attribution: Attribution, timeline: Timeline) -> dict[str, Known]:
    """``straggler_*`` and ``capture_start_*`` of the glossary. ``timeline``: with the skewed steps dropped."""
    ranks_count = len(matched_ranks.ranks)
    return {**_straggler(matched_ranks, attribution), **_capture_start(matched_ranks, timeline, ranks_count)}


def _straggler(matched_ranks: MatchedRanks, attribution: Attribution) -> dict[str, Known]:
    """Of the latest straggler; nobody late is 0 ns, and that only where calls were compared."""
    if attribution.stragglers:
        latest = attribution.stragglers[0]
        return {"straggler_late_ns": (latest.late_ns, None), "straggler_cause": (latest.cause, None)}
    if matched_ranks.arrivals.filter(pl.col("kept") & pl.col("resolved")).is_empty():
        missing = (None, _ONE_RANK if len(matched_ranks.ranks) < 2 else _NOT_MATCHED)
        return {"straggler_late_ns": missing, "straggler_cause": missing}
    return {"straggler_late_ns": (0, None), "straggler_cause": (None, "no rank was late")}


def _capture_start(matched_ranks: MatchedRanks, timeline: Timeline, ranks_count: int) -> dict[str, Known]:
    names = ("capture_start_skew_ns", "capture_start_skewed_steps_count")
    if matched_ranks.start_skew_ns is None or ranks_count < 2:
        reason = _ONE_RANK if ranks_count < 2 else "the ranks' clocks could not be put together"
        return dict.fromkeys(names, (None, reason))
    kept = timeline.steps.filter("kept").join(matched_ranks.skewed, on=["rank_index", "step"], how="semi")
    return dict(zip(names, ((matched_ranks.start_skew_ns, None), (kept.height, None)), strict=True))
