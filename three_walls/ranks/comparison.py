"""Everything that is said of ranks beside each other, in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from three_walls.attribution.attribution import Attribution
from three_walls.inputs.nsys.identity import Rank
from three_walls.inputs.nsys.reader import Trace
from three_walls.model.config import RunConfig
from three_walls.model.report import Alignment, ReportWarning, Straggler, Wait
from three_walls.ranks.alignment import CommonClock, align, sources_of
from three_walls.ranks.arrivals import measure_arrivals
from three_walls.ranks.capture_start import find_capture_start_skew
from three_walls.ranks.end_time_matching import match_by_end_time
from three_walls.ranks.exposed_transfer import refine_transfer
from three_walls.ranks.groups import Pipeline, captures_everyone, find_members, find_pipeline, list_groups
from three_walls.ranks.matching import Matched, match_calls
from three_walls.ranks.pipeline_pairs import pair_by_order, pair_by_time
from three_walls.ranks.stragglers import find_stragglers
from three_walls.ranks.waits import list_waits, split_classes
from three_walls.tables.thresholds import default_rank_thresholds
from three_walls.timeline.median_step import median_steps
from three_walls.timeline.timeline import Timeline


@dataclass(frozen=True, slots=True)
class MatchedRanks:
    """Calls of several ranks put together, before anything is attributed to anyone.

    ``arrivals``: see measure_arrivals; ``skewed``: steps (track, step) that hold the profilers' different starts;
    ``start_skew_ns``: how far apart those lie, None where the clocks do not tell.
    """

    matched: Matched
    clock: CommonClock
    arrivals: pl.DataFrame
    skewed: pl.DataFrame
    warnings: tuple[ReportWarning, ...]
    pipeline: Pipeline | None
    start_skew_ns: int | None = None


@dataclass(frozen=True, slots=True)
class RankComparison:
    """``wait_ns``: waiting per (track, step), all classes, where every class is resolved. ``transfer``: as
    Attribution.transfer, measured where it could be. ``arrivals``: those that no skewed step touches."""

    alignment: Alignment | None
    waits: tuple[Wait, ...]
    stragglers: tuple[Straggler, ...]
    warnings: tuple[ReportWarning, ...]
    wait_ns: Mapping[tuple[int, int], int]
    transfer: pl.DataFrame
    arrivals: pl.DataFrame


def match_ranks(traces: Sequence[Trace], timeline: Timeline, ranks: Sequence[Rank], config: RunConfig) -> MatchedRanks:
    """Matches the ranks' calls and puts them on one clock."""
    thresholds = default_rank_thresholds()
    pipeline = find_pipeline(ranks, config)
    matched = match_calls(
        timeline.operations,
        timeline.steps,
        find_members(ranks, config),
        all_captured=captures_everyone(ranks, config),
    )
    matched = pair_by_order(matched, pipeline)
    capture_of = {rank.rank_index: trace.capture_id for trace in traces for rank in trace.ranks}
    sources = sources_of(ranks, capture_of, {trace.capture_id: trace.session_start_ns for trace in traces})
    clock = align(sources, matched)
    matched = pair_by_time(matched, pipeline, clock, thresholds)
    matched = match_by_end_time(matched, list_groups(ranks, config), clock, thresholds)
    arrivals = measure_arrivals(matched, clock, thresholds)
    start = find_capture_start_skew(timeline.operations, timeline.steps, arrivals, clock, thresholds)
    return MatchedRanks(matched, clock, arrivals, start.affected, start.warnings, pipeline, start.skew_ns)


def compare_ranks(
    traces: Sequence[Trace],
    timeline: Timeline,
    attribution: Attribution,
    ranks: Sequence[Rank],
    matched_ranks: MatchedRanks,
) -> RankComparison:
    """Who waited, for whom and why. ``timeline`` and ``attribution`` without the steps that are skewed."""
    thresholds = default_rank_thresholds()
    rank_of = {rank.rank_index: rank.rank for rank in ranks}
    matched, clock = matched_ranks.matched, matched_ranks.clock
    # A call that one member made in a skewed step says nothing of any member.
    touched = (
        matched_ranks.arrivals.join(matched_ranks.skewed, on=["rank_index", "step"], how="semi")
        .select("instance")
        .unique()
    )
    arrivals = matched_ranks.arrivals.join(touched, on="instance", how="anti")
    classes = split_classes(matched, arrivals, thresholds)
    return RankComparison(
        alignment=clock.alignment,
        waits=list_waits(
            matched,
            classes,
            arrivals,
            attribution,
            median_steps(timeline.steps),
            rank_of,
            clock.is_resolved,
            thresholds,
        ),
        stragglers=find_stragglers(
            arrivals, timeline, attribution, traces, rank_of, matched_ranks.pipeline, thresholds
        ),
        warnings=matched_ranks.warnings,
        wait_ns=_resolved_waits(classes),
        transfer=refine_transfer(attribution, matched, arrivals, classes),
        arrivals=arrivals,
    )


def _resolved_waits(classes: pl.DataFrame) -> dict[tuple[int, int], int]:
    per_step = classes.group_by("rank_index", "step", maintain_order=True).agg(
        pl.col("resolved").all(), pl.col("wait_ns").sum()
    )
    rows = per_step.filter("resolved").select("rank_index", "step", "wait_ns").rows()
    return {(int(rank_index), int(step)): int(wait) for rank_index, step, wait in rows}
