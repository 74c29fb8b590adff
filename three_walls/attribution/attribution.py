"""Everything that is measured of the steps, in one place: the attribution of one timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from three_walls.attribution.compute_gaps import explain_compute_gaps
from three_walls.attribution.idle import explain_idle
from three_walls.attribution.kernel_spread import measure_kernel_spread
from three_walls.attribution.ownership import measure_exposure, own_time, slice_steps
from three_walls.attribution.stragglers import find_stragglers
from three_walls.attribution.transfer import measure_transfer
from three_walls.attribution.waits import list_waits
from three_walls.inputs.nsys.reader import Trace
from three_walls.model.report import Straggler, Wait
from three_walls.ranks.matched_ranks import MatchedRanks
from three_walls.timeline.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Attribution:
    """What the time of every step of every rank went to. Frames are per rank and step (see the functions named)."""

    steps: pl.DataFrame
    slices: pl.DataFrame
    """The steps, cut where anything starts or ends: slice_steps."""
    budget: pl.DataFrame
    """own_time."""
    exposure: pl.DataFrame
    """measure_exposure."""
    transfer: pl.DataFrame
    """measure_transfer."""
    compute_gaps: pl.DataFrame
    """explain_compute_gaps."""
    waits: tuple[Wait, ...]
    stragglers: tuple[Straggler, ...]
    kernel_spread: Mapping[int, float]
    """By rank index: measure_kernel_spread."""


def attribute(timeline: Timeline, matched_ranks: MatchedRanks, traces: Sequence[Trace]) -> Attribution:
    """Measures every step of every rank. ``timeline``: finished by match_ranks; ``traces``: for kernel names."""
    slices = slice_steps(timeline.operations, explain_idle(timeline), timeline.steps)
    exposure = measure_exposure(slices)
    transfer = measure_transfer(timeline, matched_ranks, slices, exposure)
    kernel_spread = measure_kernel_spread(timeline.operations, timeline.steps)
    return Attribution(
        steps=timeline.steps,
        slices=slices,
        budget=own_time(slices, timeline.steps),
        exposure=exposure,
        transfer=transfer,
        compute_gaps=explain_compute_gaps(timeline, slices),
        waits=list_waits(matched_ranks, timeline.steps, exposure, transfer),
        stragglers=find_stragglers(timeline, matched_ranks, slices, traces, kernel_spread),
        kernel_spread=kernel_spread,
    )
