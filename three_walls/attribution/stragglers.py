"""Ranks that made the others wait: how much later than the second-to-last rank they arrived, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import polars as pl

from three_walls.attribution.straggler_causes import (
    LateRank,
    StragglerCause,
    find_cause,
    find_pipeline_waits,
    find_segments,
)
from three_walls.inputs.nsys.reader import Trace
from three_walls.model.report import Straggler
from three_walls.model.units import ns_to_ms
from three_walls.ranks.groups import PAIRWISE, Pipeline
from three_walls.ranks.matched_ranks import MatchedRanks
from three_walls.tables.thresholds import default_rank_thresholds
from three_walls.timeline.intervals import DURATION, merge_overlapping
from three_walls.timeline.steps import STEP
from three_walls.timeline.timeline import Timeline


def find_stragglers(
    timeline: Timeline,
    matched_ranks: MatchedRanks,
    slices: pl.DataFrame,
    traces: Sequence[Trace],
    kernel_spread: Mapping[int, float],
) -> tuple[Straggler, ...]:
    """Stragglers, latest first, from resolved calls of kept steps that no capture start touches.

    Calls between pipeline stages make nobody late: stages do different work by design, and under 1F1B the first is
    the last to finish. Exchanges show for whom a late rank had waited itself. ``kernel_spread``: by rank index
    (measure_kernel_spread).
    """
    rank_of = matched_ranks.rank_of
    kept = matched_ranks.arrivals.filter("kept")
    arrivals = _within_a_stage(kept, matched_ranks.pipeline)
    exchanges = find_pipeline_waits(kept, rank_of)
    segments = find_segments(arrivals, timeline.steps)
    stragglers = []
    for late in _find_late_ranks(arrivals, timeline.steps, kernel_spread):
        last_at = arrivals.filter((pl.col("last") == late.rank_index) & pl.col("resolved"))
        before = segments.join(last_at.select("instance").unique(), on="instance", how="semi")
        cause, explanation = find_cause(late, before, exchanges, timeline, slices, traces)
        calls = last_at.filter(pl.col("rank_index") == late.rank_index).height
        evidence = (
            f"rank {rank_of[late.rank_index]} arrived last at {calls / late.steps:.0f} matched calls per step, in all "
            f"{ns_to_ms(late.late_ns):.1f} ms after the second-to-last rank (its peers: {ns_to_ms(late.peers_ns):.1f} "
            f"ms); before them {explanation}"
        )
        stragglers.append(
            Straggler(
                rank=rank_of[late.rank_index],
                late_ns=late.late_ns,
                cause=cause,
                evidence=evidence,
                beyond_peers_ns=late.late_ns - late.peers_ns,
                likely_reason=late.gpu_suspicion if cause is StragglerCause.SLOW_COMPUTE else "",
            )
        )
    return tuple(sorted(stragglers, key=lambda straggler: (-straggler.late_ns, straggler.rank)))


def _within_a_stage(arrivals: pl.DataFrame, pipeline: Pipeline | None) -> pl.DataFrame:
    """The calls whose members are all of one pipeline stage."""
    collectives = arrivals.filter(~pl.col("class").is_in(list(PAIRWISE)))
    if pipeline is None:
        return collectives
    stage_of = {rank_index: stage for rank_index, (stage, _) in pipeline.places.items()}
    stage = pl.col("rank_index").replace_strict(stage_of, return_dtype=pl.Int64)
    return collectives.filter(stage.n_unique().over("instance") == 1)


def _find_late_ranks(arrivals: pl.DataFrame, steps: pl.DataFrame, kernel_spread: Mapping[int, float]) -> list[LateRank]:
    """Ranks that are late beyond their peers (median).

    A rank that arrives last by chance is late by as much as any other; only what exceeds that has a cause in the rank.
    """
    rows = _measure_lateness(arrivals, steps).rows()
    late_ranks = []
    for rank_index, late_ns, step_ns, count in rows:
        others = sorted(other_ns for other, other_ns, _, _ in rows if other != rank_index)
        if not others:
            continue
        peers_ns = (others[(len(others) - 1) // 2] + others[len(others) // 2]) / 2
        if late_ns - peers_ns >= default_rank_thresholds().minimum_late_fraction * step_ns:
            spreads = [spread for other, spread in kernel_spread.items() if other != rank_index]
            peers_spread = median(spreads) if spreads else None
            spread = kernel_spread.get(rank_index)
            late_ranks.append(LateRank(rank_index, round(late_ns), round(peers_ns), count, spread, peers_spread))
    return late_ranks


def _measure_lateness(arrivals: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Per rank: rank_index, late_ns (median over its kept steps), step_ns (median), steps (number of kept ones).

    A rank is late from the arrival of the second-to-last member to its own. Calls of several streams can wait for the
    same delay, so the lateness of a step is the union of these stretches.
    """
    delays = arrivals.filter(pl.col("kept") & (pl.col("last") == pl.col("rank_index"))).select(
        *STEP, start_ns="second_ns", end_ns="latest_ns"
    )
    per_step = merge_overlapping(delays, STEP).group_by(STEP).agg(late_ns=DURATION.sum())
    return (
        steps.filter("kept")
        .with_columns(step_ns=DURATION)
        .join(per_step, on=STEP, how="left")
        .group_by("rank_index", maintain_order=True)
        .agg(pl.col("late_ns").fill_null(0).median(), pl.col("step_ns").median(), steps=pl.len())
        .sort("rank_index")
    )
