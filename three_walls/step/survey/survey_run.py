"""A run of many ranks: all are surveyed, and those that matter are read in full. The entry of this package."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import polars as pl

from three_walls.step.attribute_steps import AttributedRun
from three_walls.step.build_timeline import build_timeline
from three_walls.step.find_steps import STEP
from three_walls.step.ranks.attributed_steps import check_are_kept
from three_walls.step.ranks.matched_ranks import match_ranks
from three_walls.step.ranks.steps_to_read import sample_steps
from three_walls.step.stragglers import find_late_ranks
from three_walls.step.survey.attribute_survey import attribute_survey, complete_attribution
from three_walls.step.survey.choose_ranks import choose_ranks
from three_walls.step.survey.rank_survey import plan_tasks, read_in_full
from three_walls.step.survey.summarize_survey import summarize_survey
from three_walls.step.survey.survey_workers import run_tasks
from three_walls.trace.read_inputs import Inputs, Progress, warn_of_unreadable
from three_walls.trace.read_trace import list_steps_to_read
from three_walls.trace.run_request import Workers


def survey_run(
    inputs: Inputs, step_range: str | None, progress: Progress, *, workers: Workers, asked: Collection[int]
) -> AttributedRun:
    """Surveys and attributes the run of ``inputs``. ``asked``: numbers of ranks to read in full.

    Raises UnreadStepError where the steps of the first capture did not run where they were expected.
    """
    first = inputs.with_kernels[0]
    # A range that marks no step is an error before all are read, and so are steps that did not run where expected.
    check_are_kept(build_timeline([first], inputs.config, step_range).steps, list_steps_to_read([first]))
    tasks = plan_tasks(inputs.paths, inputs.config, step_range, sample_steps(first))
    survey = run_tasks(tasks, workers, progress)
    progress(f"matching the calls of {len(survey.ranks):,} ranks on one clock")
    captures = [capture for capture in survey.captures if capture.ranks]
    finished, matched_ranks = match_ranks(survey.timeline, captures, inputs.config, survey.outline)
    survey = survey.with_steps(finished.steps)
    surveyed = attribute_survey(survey, matched_ranks)
    late_ranks = find_late_ranks(matched_ranks, survey.steps, surveyed.kernel_spread, surveyed.slow_ranks)
    chosen = choose_ranks(surveyed, matched_ranks, late_ranks, asked)
    traces = read_in_full(first, captures, chosen, step_range, progress, workers.jobs)
    in_full = {rank.rank_index: chosen.get(rank.rank_index, "") for trace in traces for rank in trace.ranks}
    progress(f"attributing every nanosecond of {len(in_full):,} ranks")
    attributed = survey.steps.join(survey.budget.select(STEP).unique(), on=STEP, how="semi", maintain_order="left")
    steps = attributed.filter(pl.col("rank_index").is_in(list(in_full)))
    timeline = replace(build_timeline(traces, inputs.config, step_range), steps=steps, sources=survey.sources)
    attribution = complete_attribution(surveyed, late_ranks, timeline, matched_ranks, traces)
    lost = tuple(warn_of_unreadable(capture.path, capture.reason) for capture in survey.lost)
    inputs = replace(inputs, traces=tuple(traces), surveyed=survey.captures, warnings=(*lost, *inputs.warnings))
    summary = summarize_survey(survey, attribution, matched_ranks, late_ranks, in_full)
    return AttributedRun(inputs, timeline, matched_ranks, attribution, summary)
