"""A run of many ranks: all are surveyed, and those that represent it or differ are read in full.

The entry of this package.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

import polars as pl

from three_walls.step.attribute_steps import AttributedRun, Attribution, attribute_parts
from three_walls.step.build_timeline import Timeline, build_timeline
from three_walls.step.compute_gaps import ComputeGaps
from three_walls.step.find_steps import STEP, list_median_steps
from three_walls.step.host_pauses import find_pauses
from three_walls.step.ranks.attributed_steps import check_are_kept
from three_walls.step.ranks.matched_ranks import MatchedRanks, match_ranks
from three_walls.step.ranks.steps_to_read import sample_steps
from three_walls.step.slow_ranks import PacedCalls, find_slow_ranks, measure_kernel_spread, measure_paces
from three_walls.step.step_rows import Straggler
from three_walls.step.step_tables import PAUSES
from three_walls.step.step_view import choose_rank
from three_walls.step.stragglers import LateRank, StragglerCause, explain_stragglers, find_late_ranks
from three_walls.step.stream_edges import EventCalls
from three_walls.step.survey.rank_survey import RankSurvey, plan_tasks, read_in_full
from three_walls.step.survey.summarize_survey import summarize_survey
from three_walls.step.survey.survey_workers import run_tasks
from three_walls.step.transfer import measure_transfer
from three_walls.step.waits_for_peers import list_waits
from three_walls.tables.kernel_names import KernelPack
from three_walls.trace.read_inputs import Inputs, Progress, refuse_other_runs, warn_of_unreadable
from three_walls.trace.read_trace import Trace, list_steps_to_read
from three_walls.trace.run_request import Workers

MOST_LATE_RANKS_IN_FULL = 4
"""Late ranks of a surveyed run that are read in full, the latest first: ranks are repaired one by one. The others are
listed with how late they are."""
PEERS_OF_LATE_RANK = 2
"""Ranks that are read in full with each of them, to find the cause by comparison. The cause is what the late rank did
longer than the median of its peers, which two of them give."""
MOST_STAGES_IN_FULL = 8
"""Pipeline stages of a surveyed run of which one rank each is read in full. The first, the last and the stages evenly
between them show how a pipeline is balanced."""

REPRESENTATIVE, LATE, PEER, SLOW, LEAST, MOST, STAGE, ASKED = (
    "represents the run",
    "late",
    "peer of a late rank",
    "slow at the same kernels",
    "least compute",
    "most compute",
    "of its pipeline stage",
    "asked for",
)


def choose_ranks(
    attribution: Attribution,
    matched_ranks: MatchedRanks,
    late_ranks: Sequence[LateRank],
    rank_numbers: Collection[int],
) -> dict[int, str]:
    """The indices of the ranks to read in full, each with the reason; none without a kept step.

    ``attribution``: see attribute_survey. ``late_ranks``: the latest first. ``rank_numbers``: of ranks that
    the user wants to see.
    """
    medians = attribution.median_of
    if not medians:
        return {}
    rank_of = matched_ranks.rank_of
    index_of = {rank.rank: rank.rank_index for rank in matched_ranks.ranks}
    reasons: dict[int, str] = {}
    # Which of the late ranks are late for a reason of their own is not known yet: none of them, or all.
    suspects = [Straggler(rank_of[late.rank_index], late.late_ns, StragglerCause.UNKNOWN, "") for late in late_ranks]
    late_indices = {late.rank_index for late in late_ranks}
    for sick in (suspects, ()):
        index = choose_rank(medians, attribution, matched_ranks, sick)[0]
        reasons.setdefault(index, LATE if index in late_indices else REPRESENTATIVE)
    representative = next(iter(reasons))
    slow = sorted(attribution.slow_ranks, key=lambda index: (-attribution.slow_ranks[index], rank_of[index]))
    unusual = late_indices | set(slow)
    for late in late_ranks[:MOST_LATE_RANKS_IN_FULL]:
        reasons.setdefault(late.rank_index, LATE)
    for late in late_ranks[:MOST_LATE_RANKS_IN_FULL]:
        for peer in _find_peers(late, matched_ranks, unusual):
            reasons.setdefault(peer, PEER)
    for index in slow[:MOST_LATE_RANKS_IN_FULL]:
        reasons.setdefault(index, SLOW)
    compute_ns = {
        index: ns
        for index, step, ns in attribution.compute.select(*STEP, "ns").sort("ns", *STEP).rows()
        if medians.get(index) == step
    }
    if compute_ns:
        reasons.setdefault(next(iter(compute_ns)), LEAST)
        reasons.setdefault(next(reversed(compute_ns)), MOST)
    for index in _list_stages(matched_ranks, representative, medians):
        reasons.setdefault(index, STAGE)
    for number in rank_numbers:
        if number in index_of:
            reasons.setdefault(index_of[number], ASKED)
    return reasons


def _find_peers(late: LateRank, matched_ranks: MatchedRanks, unusual: Collection[int]) -> list[int]:
    """Ranks that are not ``unusual`` and that take part in most of the calls at which ``late`` arrived last."""
    arrivals = matched_ranks.arrivals.filter(pl.col("kept") & pl.col("resolved"))
    own = arrivals.filter(pl.col("rank_index") == late.rank_index)
    last_at = own.filter(pl.col("last") == late.rank_index)
    instances = (last_at if last_at.height else own)["instance"].unique().implode()
    members = arrivals.filter(pl.col("instance").is_in(instances))["rank_index"]
    calls = Counter(index for index in members.to_list() if index != late.rank_index and index not in unusual)
    return sorted(calls, key=lambda index: (-calls[index], index))[:PEERS_OF_LATE_RANK]


def _list_stages(matched_ranks: MatchedRanks, representative: int, medians: Collection[int]) -> list[int]:
    """A rank of each stage of the pipeline, or of stages evenly apart: those in the lane of the representative."""
    if matched_ranks.pipeline is None or representative not in matched_ranks.pipeline.places:
        return []
    _, lane = matched_ranks.pipeline.places[representative]
    in_lane = sorted(
        (stage, index)
        for index, (stage, other) in matched_ranks.pipeline.places.items()
        if other == lane and index in medians
    )
    most = MOST_STAGES_IN_FULL
    if len(in_lane) > most:
        in_lane = [in_lane[round(place * (len(in_lane) - 1) / (most - 1))] for place in range(most)]
    return [index for _, index in in_lane]


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
    medians = list_median_steps(survey.steps)
    return Attribution(
        steps=survey.steps,
        medians=medians,
        compute=survey.compute,
        slices=nothing,
        budget=survey.budget,
        exposure=survey.exposure,
        transfer=transfer,
        compute_gaps=ComputeGaps(nothing, nothing),
        waits=list_waits(matched_ranks, medians, survey.exposure, transfer),
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
    pauses, gaps_left_out = find_pauses(timeline, traces)
    event_calls, is_shown, measured = attribute_parts(timeline, surveyed.medians, pauses, slices_every_step=True)
    slices, _, _, _, _, gap_sums, gap_stretches, _ = measured
    in_full = set(timeline.steps["rank_index"].to_list())
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
        gaps_left_out=gaps_left_out,
    )
