"""Ranks that made the others wait: how much later than the last but one they arrived, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from three_walls.attribution.attribution import Attribution
from three_walls.inputs.nsys.reader import Trace
from three_walls.model.report import Straggler
from three_walls.model.units import ns_to_ms
from three_walls.ranks.causes import find_cause
from three_walls.ranks.groups import PAIRWISE, Pipeline
from three_walls.ranks.pipeline_pairs import find_pipeline_waits
from three_walls.ranks.segments import find_segments
from three_walls.tables.thresholds import RankThresholds
from three_walls.timeline.intervals import merge_overlapping
from three_walls.timeline.timeline import Timeline


def measure_lateness(arrivals: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Per rank: rank_index, late_ns (median over its kept steps), step_ns (median), steps (number of kept ones).

    A rank is late from the arrival of the last but one to its own. Calls of several streams can wait for the same
    delay, so a step's lateness is the union of these stretches.
    """
    delays = arrivals.filter(pl.col("kept") & (pl.col("last") == pl.col("rank_index"))).select(
        "rank_index", "step", start_ns="second_ns", end_ns="latest_ns"
    )
    per_step = (
        merge_overlapping(delays, ["rank_index", "step"])
        .group_by("rank_index", "step")
        .agg(late_ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
    )
    return (
        steps.filter("kept")
        .with_columns(step_ns=pl.col("end_ns") - pl.col("start_ns"))
        .join(per_step, on=["rank_index", "step"], how="left")
        .group_by("rank_index", maintain_order=True)
        .agg(pl.col("late_ns").fill_null(0).median(), pl.col("step_ns").median(), steps=pl.len())
        .sort("rank_index")
    )


def find_stragglers(
    arrivals: pl.DataFrame,
    timeline: Timeline,
    attribution: Attribution,
    traces: Sequence[Trace],
    rank_of: Mapping[int, int],
    pipeline: Pipeline | None,
    thresholds: RankThresholds,
) -> tuple[Straggler, ...]:
    """Stragglers, latest first. ``arrivals``: resolved calls tell, of kept steps that no capture start touches.

    Calls between pipeline stages make nobody late: stages do different work by design, and under 1F1B the first is
    the last to finish. Exchanges say whom a late rank had waited for itself.
    """
    kept = arrivals.filter("kept")
    told = _within_a_stage(kept, pipeline)
    exchanges = find_pipeline_waits(kept, rank_of)
    lateness = measure_lateness(told, timeline.steps)
    segments = find_segments(told, timeline.steps)
    found = []
    for rank_index, late_ns, peers_ns, steps in _beyond_peers(lateness, thresholds):
        mine = told.filter((pl.col("last") == rank_index) & pl.col("resolved"))
        before = segments.join(mine.select("instance").unique(), on="instance", how="semi")
        cause = find_cause(
            rank_index, before, exchanges, attribution.slices, timeline, traces, late_ns, steps, thresholds
        )
        calls = mine.filter(pl.col("rank_index") == rank_index).height
        evidence = (
            f"rank {rank_of[rank_index]} arrived last at {calls / steps:.0f} matched calls per step, in all "
            f"{ns_to_ms(late_ns):.1f} ms after the last but one (its peers: {ns_to_ms(peers_ns):.1f} ms); before them "
            f"{cause.evidence}"
        )
        found.append(Straggler(rank_of[rank_index], late_ns, cause.name, evidence))
    return tuple(sorted(found, key=lambda one: (-one.late_ns, one.rank)))


def _within_a_stage(arrivals: pl.DataFrame, pipeline: Pipeline | None) -> pl.DataFrame:
    """The calls whose members are all of one pipeline stage."""
    told = arrivals.filter(~pl.col("class").is_in(list(PAIRWISE)))
    if pipeline is None:
        return told
    stage_of = {rank_index: stage for rank_index, (stage, _) in pipeline.places.items()}
    stage = pl.col("rank_index").replace_strict(stage_of, return_dtype=pl.Int64)
    return told.filter(stage.n_unique().over("instance") == 1)


def _beyond_peers(lateness: pl.DataFrame, thresholds: RankThresholds) -> list[tuple[int, int, int, int]]:
    """Tracks that are late beyond what their peers are (median): rank_index, late_ns, peers' late_ns, kept steps.

    Whoever comes last by chance is late by as much as any other; only what exceeds that has a cause in the rank.
    """
    rows = [(int(t), float(late), float(step), int(n)) for t, late, step, n in lateness.rows()]
    found = []
    for rank_index, late_ns, step_ns, steps in rows:
        others = sorted(late for other, late, _, _ in rows if other != rank_index)
        if not others:
            continue
        peers_ns = (others[(len(others) - 1) // 2] + others[len(others) // 2]) / 2
        if late_ns - peers_ns >= thresholds.minimum_late_fraction * step_ns:
            found.append((rank_index, round(late_ns), round(peers_ns), steps))
    return found
