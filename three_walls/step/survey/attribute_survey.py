"""The attribution of a surveyed run: of all ranks what their summaries give, of the ranks read in full the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from three_walls.step.attribute_steps import Attribution, attribute_part
from three_walls.step.build_timeline import Timeline
from three_walls.step.compute_gaps import ComputeGaps
from three_walls.step.find_steps import STEP, list_median_steps
from three_walls.step.kernel_spread import measure_kernel_spread
from three_walls.step.parts_of_run import divide_run
from three_walls.step.ranks.matched_ranks import MatchedRanks
from three_walls.step.slow_ranks import PacedCalls, find_slow_ranks, measure_paces
from three_walls.step.stragglers import LateRank, explain_stragglers
from three_walls.step.stream_edges import EventCalls, list_event_calls
from three_walls.step.survey.rank_survey import RankSurvey
from three_walls.step.transfer import measure_transfer
from three_walls.step.waits_for_peers import list_waits
from three_walls.trace.read_trace import Trace


def attribute_survey(survey: RankSurvey, matched_ranks: MatchedRanks) -> Attribution:
    """The attribution of all ranks as far as summaries give it: without slices, causes of gaps and stragglers.

    ``survey``: with the steps of the finished timeline.
    """
    kept = survey.steps.filter("kept").select(STEP)
    timeline, nothing = survey.timeline, pl.DataFrame()
    transfer = measure_transfer(timeline, matched_ranks, survey.exposed, survey.exposure)
    paced = PacedCalls(
        survey.paced.calls.join(kept, on=STEP, how="semi").explode("ns"),
        survey.paced.compute.join(kept, on=STEP, how="semi"),
    )
    return Attribution(
        steps=survey.steps,
        compute=survey.compute,
        slices=nothing,
        budget=survey.budget,
        exposure=survey.exposure,
        transfer=transfer,
        compute_gaps=ComputeGaps(nothing, nothing),
        waits=list_waits(matched_ranks, survey.steps, survey.exposure, transfer),
        stragglers=(),
        kernel_spread=measure_kernel_spread(survey.spreads.join(kept, on=STEP, how="semi")),
        slow_ranks=find_slow_ranks(measure_paces(paced, list(matched_ranks.rank_of), matched_ranks.pipeline)),
        event_calls=EventCalls(nothing, nothing, nothing),
    )


def complete_attribution(
    surveyed: Attribution,
    late_ranks: Sequence[LateRank],
    timeline: Timeline,
    matched_ranks: MatchedRanks,
    traces: Sequence[Trace],
) -> Attribution:
    """``surveyed`` with what only ranks read in full show, which are those of ``timeline`` and ``traces``."""
    steps = timeline.steps
    event_calls = list_event_calls(timeline.api_calls, timeline.stream_waits, timeline.event_records)
    shown = pl.col("step").is_in(list_median_steps(steps)["step"].unique().to_list())
    parts = [attribute_part(part, shown, pl.lit(value=True)) for part in divide_run(timeline, event_calls)]
    slices, _, _, _, _, gap_sums, gap_stretches, _ = (pl.concat(frames) for frames in zip(*parts, strict=True))
    in_full = set(steps["rank_index"].to_list())
    explained = explain_stragglers(
        [late for late in late_ranks if late.rank_index in in_full],
        matched_ranks,
        timeline.with_steps(surveyed.steps),
        slices,
        traces,
    )
    return replace(
        surveyed,
        slices=slices.filter(shown),
        compute_gaps=ComputeGaps(gap_sums, gap_stretches),
        stragglers=explained,
        event_calls=event_calls,
    )
