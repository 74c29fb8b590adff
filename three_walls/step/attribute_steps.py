"""Where the time of every step went: the entry of this package, made from the finished timeline and its matched ranks.

``attribute`` is the list of what is measured:

- ``parts_of_run.py``: the parts of a long run, attributed one after the other.
- ``host_pauses.py``: when the host did nothing for far longer than usual.
- ``ownership.py``: the budget (an owner for every nanosecond), and exposed and hidden communication.
- ``transfer.py``: how much of exposed communication is transfer, and how much is waiting for peers.
- ``compute_gaps.py``: why no compute ran, for every nanosecond without compute.
- ``waits_for_peers.py``: how long each rank waited for which rank. ``stragglers.py``: which ranks were late, and why.
- ``slow_ranks.py``: which ranks take longer than the others for the same kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from three_walls.step.build_timeline import Timeline
from three_walls.step.compute_gaps import ComputeGaps, explain_compute_gaps
from three_walls.step.find_steps import STEP, list_median_steps
from three_walls.step.host_pauses import find_pauses
from three_walls.step.ownership import (
    IS_EXPOSED,
    label_idle,
    measure_budget,
    measure_exposure,
    slice_steps,
    union_where,
)
from three_walls.step.parts_of_run import Part, divide_run
from three_walls.step.ranks.match_calls import STEP_AND_CLASS
from three_walls.step.ranks.matched_ranks import MatchedRanks
from three_walls.step.slow_ranks import (
    LEAST_RANKS,
    find_slow_ranks,
    list_paced_calls,
    measure_kernel_spread,
    measure_paces,
    measure_step_spreads,
)
from three_walls.step.step_rows import Straggler, Wait
from three_walls.step.step_tables import (
    BudgetRows,
    ExposureRows,
    Pauses,
    Slices,
    StepKeys,
    Steps,
    StepTimes,
    TransferRows,
)
from three_walls.step.stragglers import explain_stragglers, find_late_ranks
from three_walls.step.stream_edges import EventCalls, list_event_calls
from three_walls.step.survey.survey_rows import Survey
from three_walls.step.transfer import measure_transfer
from three_walls.step.waits_for_peers import list_waits
from three_walls.tables.buckets import COMPUTE_CATEGORIES
from three_walls.trace.read_inputs import Inputs
from three_walls.trace.read_trace import Trace
from three_walls.trace.schemas import AnyTable


@dataclass(frozen=True, slots=True)
class Attribution:
    """What the time of every step of every rank went to. The functions named define the columns."""

    steps: Steps
    """Timeline.steps."""
    medians: StepKeys
    """The step of each rank that stands for it: list_median_steps."""
    compute: StepTimes
    """The time in which any compute kernel runs."""
    slices: Slices
    """The steps that are shown (those of the number of some rank's median step), cut wherever anything starts or ends:
    slice_steps."""
    budget: BudgetRows
    """The time that each bucket owns: measure_budget."""
    exposure: ExposureRows
    """Exposed and hidden communication: measure_exposure."""
    transfer: TransferRows
    """Exposed communication without waiting for peers: measure_transfer."""
    compute_gaps: ComputeGaps
    """Time without compute by cause: explain_compute_gaps."""
    waits: tuple[Wait, ...]
    """Waiting for peers per communication class and rank."""
    stragglers: tuple[Straggler, ...]
    """Ranks that the others waited for, the latest first."""
    kernel_spread: Mapping[int, float]
    """How much repeated kernels vary, by rank index: measure_kernel_spread."""
    slow_ranks: Mapping[int, float]
    """Ranks that are slow at the same kernels, by rank index: find_slow_ranks."""
    event_calls: EventCalls
    """The calls that record events and wait for them."""
    pauses: Pauses
    """When the host did nothing for far longer than usual: find_pauses."""
    gaps_left_out: int = 0
    """Gaps that are long enough for a pause and were not looked into."""

    @property
    def median_of(self) -> dict[int, int]:
        """The ``medians`` by rank index."""
        return dict(self.medians.rows())


@dataclass(frozen=True, slots=True)
class AttributedRun:
    """A run whose steps are attributed: what facts and rows of the report are made from."""

    inputs: Inputs
    timeline: Timeline
    matched_ranks: MatchedRanks
    attribution: Attribution
    survey: Survey | None = None
    """All ranks, where only some were read in full: ``timeline`` holds these alone."""


def attribute(timeline: Timeline, matched_ranks: MatchedRanks, traces: Sequence[Trace]) -> Attribution:
    """Attributes the time of every step. ``timeline``: finished by match_ranks; ``traces``: for kernel names."""
    # Stragglers are found by what owned the time before the calls that ranks have in common, in any step.
    pauses, gaps_left_out = find_pauses(timeline, traces)
    medians = list_median_steps(timeline.steps, pauses)
    event_calls, is_shown, measured = attribute_parts(timeline, medians, pauses, bool(matched_ranks.arrivals.height))
    slices, exposed_slices, compute, budget, exposure, gap_sums, gap_stretches, spreads = measured
    transfer = measure_transfer(timeline, matched_ranks, exposed_slices, exposure)
    kernel_spread = measure_kernel_spread(spreads)
    slow_ranks: Mapping[int, float] = {}
    if len(matched_ranks.rank_of) >= LEAST_RANKS:
        paced_calls = list_paced_calls(timeline, traces)
        slow_ranks = find_slow_ranks(measure_paces(paced_calls, list(matched_ranks.rank_of), matched_ranks.pipeline))
    return Attribution(
        steps=timeline.steps,
        medians=medians,
        compute=compute,
        slices=slices.filter(is_shown),
        budget=budget.sort(*STEP, "bucket"),
        exposure=exposure.sort(*STEP_AND_CLASS),
        transfer=transfer,
        compute_gaps=ComputeGaps(gap_sums, gap_stretches),
        waits=list_waits(matched_ranks, medians, exposure, transfer),
        stragglers=explain_stragglers(
            find_late_ranks(matched_ranks, timeline.steps, kernel_spread, slow_ranks),
            matched_ranks,
            timeline,
            slices,
            traces,
        ),
        kernel_spread=kernel_spread,
        slow_ranks=slow_ranks,
        event_calls=event_calls,
        pauses=pauses,
        gaps_left_out=gaps_left_out,
    )


def attribute_parts(
    timeline: Timeline, medians: StepKeys, pauses: Pauses, slices_every_step: bool
) -> tuple[EventCalls, pl.Expr, list[AnyTable]]:
    """The run attributed part by part: its event calls, which steps are shown, and what is measured."""
    event_calls = list_event_calls(timeline.api_calls, timeline.stream_waits, timeline.event_records)
    is_shown = pl.col("step").is_in(medians["step"].unique().to_list())
    is_sliced = pl.lit(value=True) if slices_every_step else is_shown
    parts = [_attribute_part(part, is_shown, is_sliced, pauses) for part in divide_run(timeline, event_calls)]
    return event_calls, is_shown, [pl.concat(frames) for frames in zip(*parts, strict=True)]


def _attribute_part(part: Part, is_shown: pl.Expr, is_sliced: pl.Expr, pauses: Pauses) -> tuple[AnyTable, ...]:
    """What is measured of the steps of ``part``, each by itself.

    The slices (of steps with ``is_sliced``), those with exposed communication, the time with compute, the budget,
    exposure, the sums and the stretches of gaps (of steps with ``is_shown``), and the spread of repeated kernels.
    """
    timeline = part.timeline
    idle_causes = label_idle(timeline.operations, timeline.steps, timeline.synchronizing, timeline.overhead, pauses)
    slices = slice_steps(timeline.operations, idle_causes, timeline.steps)
    gaps = explain_compute_gaps(part, slices, is_shown, pauses)
    return (
        slices.filter(is_sliced),
        slices.filter(IS_EXPOSED),
        union_where(slices, COMPUTE_CATEGORIES),
        measure_budget(slices, timeline.steps),
        measure_exposure(slices),
        gaps.sums,
        gaps.stretches,
        measure_step_spreads(timeline.operations, timeline.steps),
    )
