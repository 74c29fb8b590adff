"""A run of many ranks: all are surveyed, and those that matter are read in full. The entry of this package."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import polars as pl

from three_walls.step.attribute_steps import AttributedRun, Attribution, attribute_part
from three_walls.step.build_timeline import Timeline, build_timeline
from three_walls.step.compute_gaps import ComputeGaps
from three_walls.step.find_steps import STEP, list_median_steps
from three_walls.step.host_pauses import find_pauses
from three_walls.step.parts_of_run import divide_run
from three_walls.step.ranks.attributed_steps import check_are_kept
from three_walls.step.ranks.matched_ranks import MatchedRanks, match_ranks
from three_walls.step.ranks.steps_to_read import sample_steps
from three_walls.step.slow_ranks import PacedCalls, find_slow_ranks, measure_kernel_spread, measure_paces
from three_walls.step.step_tables import PAUSES
from three_walls.step.stragglers import LateRank, explain_stragglers, find_late_ranks
from three_walls.step.stream_edges import EventCalls, list_event_calls
from three_walls.step.survey.choose_ranks import choose_ranks
from three_walls.step.survey.rank_survey import RankSurvey, plan_tasks, read_in_full
from three_walls.step.survey.summarize_survey import summarize_survey
from three_walls.step.survey.survey_workers import run_tasks
from three_walls.step.transfer import measure_transfer
from three_walls.step.waits_for_peers import list_waits
from three_walls.tables.kernel_names import KernelPack
from three_walls.trace.read_inputs import Inputs, Progress, refuse_other_runs, warn_of_unreadable
from three_walls.trace.read_trace import Trace, list_steps_to_read
from three_walls.trace.run_request import Workers


def survey_run(
    inputs: Inputs,
    step_range: str | None,
    progress: Progress,
    *,
    workers: Workers,
    rank_numbers: Collection[int],
    own_names: KernelPack | None = None,
) -> AttributedRun:
    """Surveys and attributes the run of ``inputs``. ``rank_numbers``: of ranks to read in full.

    Raises UnreadStepError where the steps of the first capture did not run where they were expected.
    """
    first = inputs.with_kernels[0]
    # A range that marks no step is an error before all are read, and so are steps that did not run where expected.
    check_are_kept(build_timeline([first], inputs.config, step_range, own_names).steps, list_steps_to_read([first]))
    tasks = plan_tasks(inputs.paths, inputs.config, step_range, sample_steps(first), own_names)
    survey = run_tasks(tasks, workers, progress)
    progress(f"matching the calls of {len(survey.ranks):,} ranks on one clock")
    captures = [capture for capture in survey.captures if capture.ranks]
    refuse_other_runs(captures, inputs.paths)
    finished, matched_ranks = match_ranks(survey.timeline, captures, inputs.config, survey.outline)
    survey = survey.with_steps(finished.steps)
    survey_attribution = attribute_survey(survey, matched_ranks)
    late_ranks = find_late_ranks(
        matched_ranks, survey.steps, survey_attribution.kernel_spread, survey_attribution.slow_ranks
    )
    chosen = choose_ranks(survey_attribution, matched_ranks, late_ranks, rank_numbers)
    traces = read_in_full(first, captures, chosen, step_range, progress, workers.jobs)
    in_full = {rank.rank_index: chosen.get(rank.rank_index, "") for trace in traces for rank in trace.ranks}
    progress(f"attributing every nanosecond of {len(in_full):,} ranks")
    attributed_steps = survey.steps.join(
        survey.budget.select(STEP).unique(), on=STEP, how="semi", maintain_order="left"
    )
    steps = attributed_steps.filter(pl.col("rank_index").is_in(list(in_full)))
    timeline = replace(
        build_timeline(traces, inputs.config, step_range, own_names), steps=steps, sources=survey.sources
    )
    attribution = complete_attribution(survey_attribution, late_ranks, timeline, matched_ranks, traces)
    lost = tuple(warn_of_unreadable(capture.path, capture.reason) for capture in survey.lost)
    inputs = replace(inputs, traces=tuple(traces), surveyed=survey.captures, warnings=(*lost, *inputs.warnings))
    summary = summarize_survey(survey, attribution, matched_ranks, late_ranks, in_full)
    return AttributedRun(inputs, timeline, matched_ranks, attribution, summary)


def attribute_survey(survey: RankSurvey, matched_ranks: MatchedRanks) -> Attribution:
    """The attribution of all ranks as far as summaries give it: without slices, causes of gaps and stragglers.

    ``survey``: with the steps of the finished timeline.
    """
    kept_steps = survey.steps.filter("kept").select(STEP)
    timeline, nothing = survey.timeline, pl.DataFrame()
    transfer = measure_transfer(timeline, matched_ranks, survey.exposed, survey.exposure)
    paced_calls = PacedCalls(
        survey.paced.calls.join(kept_steps, on=STEP, how="semi").explode("ns"),
        survey.paced.compute.join(kept_steps, on=STEP, how="semi"),
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
        kernel_spread=measure_kernel_spread(survey.spreads.join(kept_steps, on=STEP, how="semi")),
        slow_ranks=find_slow_ranks(measure_paces(paced_calls, list(matched_ranks.rank_of), matched_ranks.pipeline)),
        event_calls=EventCalls(nothing, nothing, nothing),
        pauses=pl.DataFrame(schema=PAUSES),
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
    is_shown = pl.col("step").is_in(list_median_steps(steps)["step"].unique().to_list())
    pauses = find_pauses(timeline, traces)
    parts = [attribute_part(part, is_shown, pl.lit(value=True), pauses) for part in divide_run(timeline, event_calls)]
    slices, _, _, _, _, gap_sums, gap_stretches, _ = (pl.concat(frames) for frames in zip(*parts, strict=True))
    in_full = set(steps["rank_index"].to_list())
    stragglers = explain_stragglers(
        [late for late in late_ranks if late.rank_index in in_full],
        matched_ranks,
        timeline.with_steps(surveyed.steps),
        slices,
        traces,
    )
    return replace(
        surveyed,
        slices=slices.filter(is_shown),
        compute_gaps=ComputeGaps(gap_sums, gap_stretches),
        stragglers=stragglers,
        event_calls=event_calls,
        pauses=pauses,
    )
