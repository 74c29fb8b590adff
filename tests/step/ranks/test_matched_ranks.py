"""Matching the ranks finishes the timeline: what follows takes its steps as they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl
from lockstep import MS, Behaviour, Run, simulate

from three_walls.step.attribute_steps import attribute
from three_walls.step.build_timeline import Timeline, build_timeline, wanted_ranges
from three_walls.step.ranks.matched_ranks import MatchedRanks, match_ranks
from three_walls.tables.kernel_names import load_api_patterns, union_of
from three_walls.trace.read_trace import Trace, read_trace

USUAL = Behaviour()


def read(run: Run, folder: Path) -> list[Trace]:
    graph_launch = union_of(load_api_patterns(), "graph_launch")
    paths = run.write(folder)
    return [read_trace(path, order, order, wanted_ranges(None), graph_launch) for order, path in enumerate(paths)]


def match(traces: Sequence[Trace]) -> tuple[Timeline, Timeline, MatchedRanks]:
    """The timeline before and after its ranks are matched, and the matched ranks."""
    captured = build_timeline(traces, traces[0].config, None)
    return captured, *match_ranks(captured, traces, traces[0].config)


def kept_steps(timeline: Timeline) -> dict[int, list[int]]:
    kept = timeline.steps.filter("kept").group_by("rank_index", maintain_order=True).agg("step")
    return dict(kept.rows())


def test_steps_that_began_before_the_last_profiler_are_not_kept(tmp_path: Path) -> None:
    late = Behaviour(capture_delay_ns=3000 * MS)
    run = simulate([USUAL, late], steps=3)
    # Something ran before the first step, so that no step starts where the capture starts.
    for builder in run.builders:
        builder.kernel("void at::native::vectorized_elementwise_kernel<4>", 100, 200, launched=50)
    captured, timeline, matched_ranks = match(read(run, tmp_path))
    assert matched_ranks.start_skew_ns == 3000 * MS
    assert [warning.code for warning in matched_ranks.warnings] == ["capture-start-skew"]
    skewed = captured.steps.join(matched_ranks.skewed, on=["rank_index", "step"], how="semi")
    assert skewed["rank_index"].unique().to_list() == [0]
    assert timeline.steps.filter("kept").join(matched_ranks.skewed, on=["rank_index", "step"], how="semi").is_empty()
    assert kept_steps(timeline) == {0: [1], 1: [1]}


def test_captures_that_begin_together_leave_the_timeline_as_it_is(tmp_path: Path) -> None:
    captured, timeline, matched_ranks = match(read(simulate([USUAL, Behaviour(slow=1.2)]), tmp_path))
    assert timeline.steps.equals(captured.steps)
    assert matched_ranks.skewed.is_empty()
    assert matched_ranks.warnings == ()


def test_one_rank_matches_nothing_and_keeps_its_steps(tmp_path: Path) -> None:
    captured, timeline, matched_ranks = match(read(simulate([USUAL]), tmp_path))
    assert timeline.steps.equals(captured.steps)
    assert matched_ranks.arrivals.is_empty()
    assert not matched_ranks.class_splits["resolved"].any()


def test_transfer_is_measured_where_ranks_are_matched_and_estimated_elsewhere(tmp_path: Path) -> None:
    run = simulate([USUAL, Behaviour(slow=1.5)])
    traces = read(run, tmp_path)
    _, timeline, matched_ranks = match(traces)
    exchanges = (pl.col("class") == "ep_all_to_all") & (pl.col("step") == 2)
    measured = attribute(timeline, matched_ranks, traces).transfer.filter(exchanges)
    assert measured["transfer_exposed_ns"].to_list() == [6 * run.transfer_ns] * 2
    _, alone, unmatched = match(traces[:1])
    estimated = attribute(alone, unmatched, traces[:1]).transfer.filter(exchanges)
    assert estimated["transfer_exposed_ns"].item() > 6 * run.transfer_ns
