"""Everything that is measured of the steps, in one place: the attribution of one timeline."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from three_walls.attribution.compute_gaps import explain_compute_gaps
from three_walls.attribution.idle import explain_idle
from three_walls.attribution.ownership import measure_exposure, own_time, slice_steps
from three_walls.attribution.transfer import split_transfer
from three_walls.timeline.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Attribution:
    """``slices``: the cut steps; the rest is per track and step (see the makers)."""

    steps: pl.DataFrame
    slices: pl.DataFrame
    budget: pl.DataFrame
    exposure: pl.DataFrame
    transfer: pl.DataFrame
    compute_gaps: pl.DataFrame


def attribute(timeline: Timeline) -> Attribution:
    """Measures every step of every rank."""
    gap_causes = explain_idle(timeline.operations, timeline.steps, timeline.synchronizing, timeline.overhead)
    slices = slice_steps(timeline.operations, gap_causes, timeline.steps)
    return Attribution(
        steps=timeline.steps,
        slices=slices,
        budget=own_time(slices, timeline.steps),
        exposure=measure_exposure(slices),
        transfer=split_transfer(timeline.operations, timeline.steps, slices),
        compute_gaps=explain_compute_gaps(timeline, slices, timeline.steps),
    )
