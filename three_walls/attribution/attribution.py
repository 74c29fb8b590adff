"""Everything that is measured of the steps, in one place: the attribution of one timeline."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from three_walls.attribution.compute_gaps import explain_absence
from three_walls.attribution.idle import explain_idle
from three_walls.attribution.ownership import cut_steps, measure_exposure, own_time
from three_walls.attribution.transfer import split_transfer
from three_walls.timeline.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Attribution:
    """``pieces``: the cut steps; the rest is per track and step (see the makers)."""

    steps: pl.DataFrame
    pieces: pl.DataFrame
    budget: pl.DataFrame
    exposure: pl.DataFrame
    transfer: pl.DataFrame
    absence: pl.DataFrame


def attribute(timeline: Timeline) -> Attribution:
    """Measures every step of every rank."""
    idle_causes = explain_idle(timeline.operations, timeline.steps, timeline.synchronizing, timeline.overhead)
    pieces = cut_steps(timeline.operations, idle_causes, timeline.steps)
    return Attribution(
        steps=timeline.steps,
        pieces=pieces,
        budget=own_time(pieces, timeline.steps),
        exposure=measure_exposure(pieces),
        transfer=split_transfer(timeline.operations, timeline.steps, pieces),
        absence=explain_absence(timeline, pieces, timeline.steps),
    )
