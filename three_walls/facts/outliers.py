"""Steps that took much longer than the others of their rank, each with the bucket that grew most.

A garbage collection, an evaluation or a checkpoint makes one step long; medians leave it out of every claim, so it is
said on its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median_low

import polars as pl

from three_walls.attribution.attribution import Attribution
from three_walls.model.report import ReportWarning
from three_walls.model.units import ns_to_ms

FEWEST_STEPS = 5
"""With fewer kept steps a median says little of what is usual."""

MOST_DEVIATIONS = 3
"""In median absolute deviations: the usual bound for a robust outlier."""

LEAST_EXCESS_FRACTION = 0.05
"""Steps of one run differ by a few percent; below this an outlier is not worth a line."""


def warn_of_outliers(attribution: Attribution, rank_of: Mapping[int, int]) -> tuple[ReportWarning, ...]:
    """One ``outlier-step`` warning per kept step that is much longer than its rank's median, in order."""
    found = []
    for rank_index in sorted(rank_of, key=lambda one: (rank_of[one], one)):
        steps = attribution.steps.filter((pl.col("rank_index") == rank_index) & pl.col("kept"))
        lengths = {
            int(step): int(end - start) for step, start, end in steps.select("step", "start_ns", "end_ns").rows()
        }
        if len(lengths) < FEWEST_STEPS:
            continue
        usual = median_low(lengths.values())
        deviation = median_low(abs(length - usual) for length in lengths.values())
        bound = usual + max(MOST_DEVIATIONS * deviation, LEAST_EXCESS_FRACTION * usual)
        typical = min(lengths, key=lambda step: (abs(lengths[step] - usual), step))
        for step, length in lengths.items():
            if length > bound:
                grown = _what_grew(attribution, rank_index, step, typical)
                found.append(_warning(rank_of[rank_index], step, length, usual, grown))
    return tuple(found)


def _what_grew(attribution: Attribution, rank_index: int, step: int, typical: int) -> tuple[str, int]:
    """Bucket whose time exceeds that of the typical step most, and by how much."""
    mine = attribution.budget.filter(pl.col("rank_index") == rank_index)
    long, usual = (
        dict(mine.filter(pl.col("step") == which).select("bucket", "ns").rows()) for which in (step, typical)
    )
    growth = {bucket: ns - usual.get(bucket, 0) for bucket, ns in long.items()}
    bucket = min(growth, key=lambda name: (-growth[name], name))
    return bucket, growth[bucket]


def _warning(rank: int, step: int, length_ns: int, usual_ns: int, grown: tuple[str, int]) -> ReportWarning:
    bucket, ns = grown
    message = (
        f"rank {rank}, step {step} took {ns_to_ms(length_ns):.1f} ms where {ns_to_ms(usual_ns):.1f} ms are usual; "
        f"most of it is {bucket}, {ns_to_ms(ns):.1f} ms more than usual (claims rest on medians, without it)"
    )
    return ReportWarning("outlier-step", message)
