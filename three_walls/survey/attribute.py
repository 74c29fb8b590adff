"""The attribution of a surveyed run: of all ranks what their summaries give, of the ranks read in full the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from three_walls.attribution.attribution import Attribution
from three_walls.attribution.compute_gaps import ComputeGaps, explain_compute_gaps
from three_walls.attribution.kernel_spread import take_median_spread
from three_walls.attribution.ownership import label_idle, slice_steps
from three_walls.attribution.slow_ranks import PacedCalls, find_slow_ranks, measure_paces
from three_walls.attribution.stragglers import LateRank, explain_stragglers
from three_walls.attribution.transfer import measure_transfer
from three_walls.attribution.waits import list_waits
from three_walls.inputs.nsys.reader import Trace
from three_walls.ranks.matched_ranks import MatchedRanks
from three_walls.survey.rank_survey import RankSurvey
from three_walls.timeline.steps import STEP
from three_walls.timeline.timeline import Timeline


def attribute_survey(survey: RankSurvey, matched_ranks: MatchedRanks) -> Attribution:
    """The attribution of all ranks as far as summaries give it: without slices, causes of gaps and stragglers.

    ``survey``: with the steps of the finished timeline.
    """
    kept = survey.steps.filter("kept").select(STEP)
    timeline, nothing = survey.timeline, pl.DataFrame()
    exposed = survey.exposed.with_columns(active=pl.lit(0, dtype=pl.Int64))  # as slices in which no compute is active
    transfer = measure_transfer(timeline, matched_ranks, exposed, survey.exposure)
    paced = PacedCalls(
        survey.paced.calls.join(kept, on=STEP, how="semi").explode("ns"),
        survey.paced.compute.join(kept, on=STEP, how="semi"),
    )
    return Attribution(
        steps=survey.steps,
        compute=survey.compute,
        slices=exposed.clear(),
        budget=survey.budget,
        exposure=survey.exposure,
        transfer=transfer,
        compute_gaps=ComputeGaps(nothing, nothing, nothing),
        waits=list_waits(matched_ranks, survey.steps, survey.exposure, transfer),
        stragglers=(),
        kernel_spread=take_median_spread(survey.spreads.join(kept, on=STEP, how="semi")),
        slow_ranks=find_slow_ranks(measure_paces(paced, list(matched_ranks.rank_of), matched_ranks.pipeline)),
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
    idle_causes = label_idle(timeline.operations, steps, timeline.synchronizing, timeline.overhead)
    slices = slice_steps(timeline.operations, idle_causes, steps)
    in_full = set(steps["rank_index"].to_list())
    explained = explain_stragglers(
        [late for late in late_ranks if late.rank_index in in_full],
        matched_ranks,
        timeline.with_steps(surveyed.steps),
        slices,
        traces,
    )
    return replace(surveyed, slices=slices, compute_gaps=explain_compute_gaps(timeline, slices), stragglers=explained)


def restrict_to_full(matched_ranks: MatchedRanks, timeline: Timeline) -> MatchedRanks:
    """``matched_ranks`` for a replay of the ranks of ``timeline``: a call with other members counts as incomplete."""
    in_full = pl.col("rank_index").is_in(timeline.steps["rank_index"].unique().implode())
    arrivals = matched_ranks.arrivals
    partial = arrivals.filter(~in_full)["instance"].unique().implode()
    return replace(
        matched_ranks,
        ranks=tuple(rank for rank in matched_ranks.ranks if rank.rank_index in set(timeline.steps["rank_index"])),
        arrivals=arrivals.filter(in_full).with_columns(
            complete=pl.col("complete") & ~pl.col("instance").is_in(partial)
        ),
    )
