"""One numbering of steps for ranks whose captures began in different steps.

Steps without a number of their own are counted from each capture's beginning. Captures that ``cudaProfilerStart``
opens begin in the same step; those opened by time or by hand need not, and then equal numbers are different steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import polars as pl

from three_walls.inputs.nsys.reader import Trace
from three_walls.timeline.steps import StepSource
from three_walls.timeline.timeline import Timeline

FEWEST_ENDS = 2
"""Ends of steps in common below which a coincidence proves nothing."""

TOGETHER_FRACTION = 0.1
"""Ranks finish a step within this share of its length: before the update all wait for the gradients' norm."""

APART_FRACTION = 0.5
"""Steps that end further apart than this share of their length are not taken to be the same step."""


def number_alike(timeline: Timeline, traces: Sequence[Trace]) -> pl.DataFrame:
    """``timeline.steps`` with steps of one moment numbered alike, after the capture that began first.

    Only ranks of one host whose reports say when they began have comparable times before their clocks are aligned;
    a rank is renumbered only if its steps end apart from those of its number and together with those of another.
    """
    opened = {rank.rank_index: trace.session_start_ns for trace in traces for rank in trace.ranks}
    hosts = {rank.host for trace in traces for rank in trace.ranks}
    counted = {rank_index for rank_index, source in timeline.sources.items() if source is StepSource.OPTIMIZER}
    if len(hosts) != 1 or None in hosts or counted != set(opened) or None in opened.values():
        return timeline.steps
    ends = {
        int(rank_index): [end + (opened[int(rank_index)] or 0) for end in mine["end_ns"].to_list()]
        for (rank_index,), mine in timeline.steps.sort("rank_index", "start_ns").group_by(
            ["rank_index"], maintain_order=True
        )
    }
    first = min(ends, key=lambda rank_index: (ends[rank_index][0], rank_index))
    shifts = {rank_index: _shift(mine, ends[first]) for rank_index, mine in ends.items()}
    return timeline.steps.with_columns(
        step=pl.col("step") + pl.col("rank_index").replace_strict(shifts, return_dtype=pl.Int64)
    )


def _shift(mine: list[int], first: list[int]) -> int:
    """By how many steps ``mine`` (ends of steps) began after ``first``; 0 where it is not clear."""
    apart = [_median_distance(mine, first[shift:]) for shift in range(len(first) - FEWEST_ENDS + 1)]
    lengths = sorted(end - start for start, end in pairwise(first))
    if len(mine) < FEWEST_ENDS or len(apart) < 2:
        return 0
    step_ns = lengths[len(lengths) // 2]
    best = min(range(len(apart)), key=lambda shift: apart[shift])
    is_clear = apart[0] > APART_FRACTION * step_ns and apart[best] <= TOGETHER_FRACTION * step_ns
    return best if is_clear else 0


def _median_distance(mine: list[int], others: list[int]) -> int:
    distances = sorted(abs(one - other) for one, other in zip(mine, others, strict=False))
    return distances[len(distances) // 2]
