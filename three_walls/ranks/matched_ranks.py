"""Everything about several ranks that needs only their timelines: it finishes the timeline before attribution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from three_walls.inputs.nsys.identity import Rank
from three_walls.inputs.nsys.reader import Trace
from three_walls.model.config import RunConfig
from three_walls.model.report import ReportWarning
from three_walls.ranks.arrivals import measure_arrivals, split_classes
from three_walls.ranks.capture_start import drop_skewed_steps, find_capture_start_skew, number_steps
from three_walls.ranks.clock import CommonClock, align, list_clock_sources
from three_walls.ranks.end_time_matching import match_by_end_time
from three_walls.ranks.groups import Pipeline, captures_everyone, find_members, find_pipeline, list_groups
from three_walls.ranks.matching import Matched, match_calls
from three_walls.ranks.pipeline_pairs import pair_by_order, pair_by_time
from three_walls.timeline.timeline import Timeline


@dataclass(frozen=True, slots=True)
class MatchedRanks:
    """The ranks of a run with their calls matched and on one clock."""

    ranks: tuple[Rank, ...]
    matched: Matched
    clock: CommonClock
    pipeline: Pipeline | None
    arrivals: pl.DataFrame
    """See measure_arrivals; without the calls that one of their members made in a skewed step."""
    class_splits: pl.DataFrame
    """Waiting and transfer per rank, step and class: see split_classes."""
    skewed: pl.DataFrame
    """Steps (rank_index, step) during which the profiler of some rank had not started yet."""
    start_skew_ns: int | None
    """From the start of the first rank's profiler to that of the last; None where the clocks do not show it."""
    warnings: tuple[ReportWarning, ...]

    @property
    def rank_of(self) -> Mapping[int, int]:
        """Rank number by rank index."""
        return {rank.rank_index: rank.rank for rank in self.ranks}


def match_ranks(timeline: Timeline, traces: Sequence[Trace], config: RunConfig) -> tuple[Timeline, MatchedRanks]:
    """The finished timeline, and its ranks with their calls matched.

    In the finished timeline steps of one moment have one number on all ranks, and steps that began before the profiler
    of the last rank started are not kept.
    """
    ranks = tuple(rank for trace in traces for rank in trace.ranks)
    numbered = timeline.with_steps(number_steps(timeline, traces))
    pipeline = find_pipeline(ranks, config)
    by_order = match_calls(numbered, find_members(ranks, config), all_captured=captures_everyone(ranks, config))
    paired = pair_by_order(by_order, pipeline)
    clock = align(list_clock_sources(traces), paired)
    matched = match_by_end_time(pair_by_time(paired, pipeline, clock), list_groups(ranks, config), clock)
    arrivals = measure_arrivals(matched, clock)
    skew = find_capture_start_skew(numbered, arrivals, clock)
    # A call that one member made in a skewed step shows nothing about any member.
    touched = arrivals.join(skew.steps, on=["rank_index", "step"], how="semi").select("instance").unique()
    untouched = arrivals.join(touched, on="instance", how="anti")
    matched_ranks = MatchedRanks(
        ranks=ranks,
        matched=matched,
        clock=clock,
        pipeline=pipeline,
        arrivals=untouched,
        class_splits=split_classes(matched, untouched),
        skewed=skew.steps,
        start_skew_ns=skew.skew_ns,
        warnings=skew.warnings,
    )
    return numbered.with_steps(drop_skewed_steps(numbered.steps, skew.steps)), matched_ranks
