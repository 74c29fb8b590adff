"""The stages of an analysis in order. ``analyze`` is their list, and the only code that knows them all.

Each stage is made from the ones before it, and the docstring of its module lists what it works out:

- ``trace/read_inputs.py``: what is read.
- ``step/build_timeline.py``: every operation with its category, and where steps come from.
- ``step/ranks/matched_ranks.py``: the calls of the ranks matched, and their clocks aligned.
- ``step/attribute_steps.py``: the budget, exposed communication, why no compute ran, stragglers.
- ``step/survey/rank_survey.py``: a run of many ranks, of which only some are read in full.
- ``facts/measure.py``: the fact sheet.
- ``replay/replay_steps.py``: the replay of the step, which predicts what edits give back.
- ``advice/plan/make_plan.py`` and ``advice/decide_verdict.py``: findings, the plan, the wall.
- ``bridge/render_overrides.py``: the plan as overrides of a launcher; ``bridge/render_entries.py``: each entry alone.
- ``export/drill_down.py``: the kernels of the step, the host's time by place, the timeline.
- ``export/step_tracks.py``: the step for trace viewers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import polars as pl

from three_walls.advice.answer_what_if import LiveReport, ReplayedRun
from three_walls.advice.decide_verdict import decide_verdict
from three_walls.advice.finding import Finding, FirstTrial, Overrides, PlanStep
from three_walls.advice.format.rule_base import RuleBase, load_rule_base
from three_walls.advice.judge_warnings import judge_warnings
from three_walls.advice.plan.locate import name_places
from three_walls.advice.plan.make_plan import choose_first_trial, make_validated_plan
from three_walls.advice.unknown_settings import warn_of_unknown_settings
from three_walls.advice.verdict_rows import Verdict
from three_walls.bridge.check_overrides import find_problems
from three_walls.bridge.nearest_recipe import find_nearest_recipe
from three_walls.bridge.recipe_rows import KnownGoodRecipe
from three_walls.bridge.render_entries import spell_entries
from three_walls.bridge.render_overrides import spell
from three_walls.export.drill_down import DrilledDown, drill_down
from three_walls.export.step_tracks import MeasuredStep, list_step_tracks
from three_walls.export.tracks import StepTracks
from three_walls.facts.counted_world import add_counted_world
from three_walls.facts.input_warnings import collect_warnings
from three_walls.facts.measure import Details, measure_facts
from three_walls.facts.registry import DEFINITIONS
from three_walls.facts.summarize_step import list_unclassified, summarize_budget, summarize_ranks, summarize_steps
from three_walls.lib.errors import InputError
from three_walls.lib.fact import FactDefinition, FactSheet
from three_walls.lib.report_warning import ReportWarning
from three_walls.lib.version import VERSION
from three_walls.replay.predictor import StepReplay
from three_walls.replay.replay_steps import RunReplay, replay_steps
from three_walls.step.attribute_steps import Attribution, attribute
from three_walls.step.build_timeline import Timeline, build_timeline, wanted_ranges
from three_walls.step.find_steps import STEP
from three_walls.step.ranks.attributed_steps import UnreadStepError, check_are_kept, choose_steps
from three_walls.step.ranks.matched_ranks import MatchedRanks, match_ranks
from three_walls.step.ranks.steps_to_read import choose_steps_to_read, outline_run, sample_steps
from three_walls.step.selected_steps import excerpt_trace
from three_walls.step.step_view import NO_STEP, StepView
from three_walls.step.stragglers import find_late_ranks
from three_walls.step.survey.survey_rows import Survey
from three_walls.tables.bridge_releases import check_release
from three_walls.tables.kernel_names import load_api_patterns, union_of
from three_walls.trace.read_inputs import (
    ChooseSteps,
    Inputs,
    Progress,
    read_every_step,
    read_inputs,
    warn_of_unreadable,
)
from three_walls.trace.read_trace import list_steps_to_read
from three_walls.trace.run_request import EXPORTS, THIS_PROCESS, RunRequest, Workers
from three_walls.trace.trace_files import keep_unpacked

Paths = str | Path | Iterable[str | Path]


def analyze(
    trace: Paths,
    *,
    logs: Paths = (),
    config: str | Path | None = None,
    settings: Iterable[str] = (),
    memory_snapshot: Path | None = None,
    step_range: str | None = None,
    bridge_version: str | None = None,
    rules: Path | None = None,
    allowed: Collection[str] = (),
    exports: Path = Path(EXPORTS),
    workers: Workers = THIS_PROCESS,
    progress: Progress = lambda _: None,
) -> LiveReport:
    """Analyzes a run: an Nsight Systems export or report, several (one per rank), or a directory of them.

    - ``logs``: training logs of the run, files or directories.
    - ``config``: its saved configuration (``run_config.yaml``).
    - ``settings``: ``key=value`` each; they take precedence over every other source.
    - ``memory_snapshot``: a snapshot of PyTorch's allocator on one rank.
    - ``step_range``: regular expression for the NVTX ranges that are steps, where the trace has no ``training_step_N``.
      It is searched in linear time, so it has neither look-around nor backreferences.
    - ``bridge_version``: Megatron-Bridge release that the overrides are spelled for; by default the run's.
    - ``rules``: a directory of rules in addition to those of the program.
    - ``allowed``: applicabilities (``model.rule.APPLICABILITIES``) whose edits may be planned in addition to
      execution-only ones.
    - ``exports``: the directory in which the exports of reports (``.nsys-rep``) are kept.
    - ``workers``: in how many threads traces are read, and where the ranks of a run with many are surveyed. New
      processes import the caller's main module, which must then run nothing on import.
    - ``progress``: called with a few words when a stage begins.

    Raises the errors of ``three_walls.lib.errors``, each with a one-line message for the user.
    """
    request = RunRequest(
        traces=_as_paths(trace),
        logs=_as_paths(logs),
        config=None if config is None else Path(config),
        settings=(settings,) if isinstance(settings, str) else tuple(settings),
        memory_snapshot=memory_snapshot,
        step_range=step_range,
        bridge_version=bridge_version,
        rules=rules,
        exports=exports,
        workers=workers,
    )
    return analyze_run(request, allowed, progress)


def _as_paths(paths: Paths) -> tuple[Path, ...]:
    return (Path(paths),) if isinstance(paths, str | Path) else tuple(map(Path, paths))


@keep_unpacked()
def analyze_run(request: RunRequest, allowed: Collection[str] = (), progress: Progress = lambda _: None) -> LiveReport:
    """Analyzes a run. ``allowed`` and ``progress`` are those of :func:`analyze`, and so are the errors."""
    check_release(request.bridge_version)
    rule_base = _load_rule_base(request.rules)
    run = _measure(request, progress)
    progress("judging rules")
    diagnosis = _diagnose(rule_base, run, request.bridge_version, allowed)
    progress("listing kernels, host work and the timeline")
    return _build_report(run, diagnosis, ReplayedRun(rule_base.rules, run.facts, run.replay.predictor))


@keep_unpacked()
def replay_run(request: RunRequest, progress: Progress = lambda _: None) -> ReplayedRun:
    """Prepares a run for replays of its step with changes. Raises the errors of :func:`analyze`."""
    rule_base = _load_rule_base(request.rules)
    run = _measure(request, progress)
    return ReplayedRun(rule_base.rules, run.facts, run.replay.predictor)


@keep_unpacked()
def export_step(request: RunRequest, ranks: Collection[int] = (), progress: Progress = lambda _: None) -> StepTracks:
    """The representative step of a run as tracks for a trace viewer; of ``ranks`` (their numbers), or of all.

    Raises the errors of :func:`analyze`, InputError where no step was kept, and UsageError for a rank that did not
    capture it.
    """
    run = _measure(request, progress, ranks)
    if run.details.step is None:
        raise InputError(f"nothing to export: {NO_STEP}")
    return list_step_tracks(_view_step(run, run.details.step), ranks)


@dataclass(frozen=True, slots=True)
class _MeasuredRun:
    """Everything that is measured of a run."""

    inputs: Inputs
    timeline: Timeline
    matched_ranks: MatchedRanks
    attribution: Attribution
    facts: FactSheet
    details: Details
    survey: Survey | None = None
    """All ranks, where only some were read in full: ``timeline`` holds these alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run(_MeasuredRun):
    """The same with its replay, whose facts are among the others."""

    replay: RunReplay


def _measure(request: RunRequest, progress: Progress, asked: Collection[int] = ()) -> _Run:
    """Reads and measures a run: the stages up to the replay. ``asked``: numbers of ranks to read in full."""
    step_range, workers = request.step_range, request.workers
    ranges, graph_launch = wanted_ranges(step_range), union_of(load_api_patterns(), "graph_launch")

    def measure(inputs: Inputs) -> _MeasuredRun:
        if inputs.is_to_be_surveyed:
            return _measure_survey(inputs, step_range, progress, workers=workers, asked=asked)
        # From here on nothing refers to what was read: of a long capture most is not needed when the steps are known.
        inputs, timeline, matched_ranks = _find_steps(inputs, step_range, progress)
        return _measure_steps(inputs, timeline, matched_ranks, progress)

    read = partial(read_inputs, request, ranges, graph_launch, progress)
    choose: ChooseSteps = partial(choose_steps_to_read, step_range=step_range, progress=progress, jobs=workers.jobs)
    measured = None
    with suppress(UnreadStepError):
        measured = measure(read(choose))
    if measured is None:
        choose = read_every_step
        measured = measure(read(choose))
    if measured.details.log.mismatch:  # by its steps, if not by its settings, which are left out while reading
        without = measured.inputs.without_log_settings(request.bridge_version)
        if without.stated != measured.inputs.stated:
            measured = measure(read(choose).without_log_settings(request.bridge_version))
    progress("replaying the step")
    inputs, details, facts = measured.inputs, measured.details, measured.facts
    timeline, matched_ranks, attribution = measured.timeline, measured.matched_ranks, measured.attribution
    if measured.survey is not None:
        from three_walls.step.survey.attribute_survey import restrict_to_full

        matched_ranks = restrict_to_full(matched_ranks, timeline)
    replay = replay_steps(timeline, matched_ranks, attribution, inputs.with_kernels, details.step, facts)
    facts = facts.with_measured(replay.facts)
    return _Run(
        inputs,
        timeline,
        measured.matched_ranks,
        attribution,
        facts,
        details,
        measured.survey,
        replay=replay,
    )


def _find_steps(inputs: Inputs, step_range: str | None, progress: Progress) -> tuple[Inputs, Timeline, MatchedRanks]:
    """The steps that are attributed, with the ranks compared; and ``inputs`` with what these steps rest on alone."""
    traces = inputs.with_kernels
    progress("classifying kernels, finding steps")
    captured = build_timeline(traces, inputs.config, step_range)
    progress("matching the calls of the ranks on one clock")
    to_read = list_steps_to_read(traces)
    outline = outline_run(captured, to_read)
    finished, matched_ranks = match_ranks(captured, traces, inputs.config, outline)
    timeline, matched_ranks = choose_steps(finished, matched_ranks, to_read)
    if timeline is not finished:
        inputs = replace(
            inputs, traces=tuple(excerpt_trace(trace, timeline) if trace.ranks else trace for trace in inputs.traces)
        )
    return inputs, timeline, matched_ranks


def _measure_steps(inputs: Inputs, timeline: Timeline, matched_ranks: MatchedRanks, progress: Progress) -> _MeasuredRun:
    """The stages between finding the steps and the replay."""
    progress("attributing every nanosecond")
    attribution = attribute(timeline, matched_ranks, inputs.with_kernels)
    inputs = replace(inputs, config=add_counted_world(inputs.config, timeline))
    progress("measuring facts")
    facts, details = measure_facts(inputs, timeline, attribution, matched_ranks)
    return _MeasuredRun(inputs, timeline, matched_ranks, attribution, facts, details)


def _measure_survey(
    inputs: Inputs, step_range: str | None, progress: Progress, *, workers: Workers, asked: Collection[int]
) -> _MeasuredRun:
    """The same for a run of many ranks: all are surveyed, and those that matter are read in full."""
    # Imported where they are needed: most runs are not surveyed.
    from three_walls.step.survey.attribute_survey import attribute_survey, complete_attribution
    from three_walls.step.survey.choose_ranks import choose_ranks
    from three_walls.step.survey.rank_survey import plan_tasks, read_in_full
    from three_walls.step.survey.summarize_survey import summarize_survey
    from three_walls.step.survey.survey_workers import run_tasks

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
    inputs = replace(
        inputs,
        traces=tuple(traces),
        surveyed=survey.captures,
        config=add_counted_world(inputs.config, timeline),
        warnings=(*lost, *inputs.warnings),
    )
    progress("measuring facts")
    facts, details = measure_facts(inputs, timeline, attribution, matched_ranks)
    summary = summarize_survey(survey, attribution, matched_ranks, late_ranks, in_full)
    return _MeasuredRun(inputs, timeline, matched_ranks, attribution, facts, details, summary)


def _view_step(run: _Run, step: StepView) -> MeasuredStep:
    """``step`` and what was worked out about it."""
    predictor = run.replay.predictor
    return MeasuredStep(
        timeline=run.timeline,
        clock=run.matched_ranks.clock,
        slices=run.attribution.slices,
        gaps=run.attribution.compute_gaps,
        traces=run.inputs.with_kernels,
        step=step,
        graph=predictor.graph if isinstance(predictor, StepReplay) else None,
        reason_without_graph=predictor.reason_withheld,
    )


def _load_rule_base(additional: Path | None) -> RuleBase:
    """The rules and warnings that ship with the program, and those of the directory ``additional``."""
    if additional is not None:
        # Imported where it is needed: rules that ship with the program were read and checked before.
        from three_walls.advice.format.load_rules import check_rules_directory

        check_rules_directory(additional)
    return load_rule_base(_list_definitions, additional)


def _list_definitions() -> tuple[FactDefinition, ...]:
    return DEFINITIONS


@dataclass(frozen=True, slots=True)
class _Diagnosis:
    """The facts, and what was concluded from them."""

    facts: FactSheet
    verdict: Verdict
    findings: tuple[Finding, ...]
    plan: tuple[PlanStep, ...]
    first_trial: FirstTrial | None
    overrides: Overrides
    warnings: tuple[ReportWarning, ...]
    recipe: KnownGoodRecipe | None
    no_recipe_reason: str


def _diagnose(rule_base: RuleBase, run: _Run, bridge_version: str | None, allowed: Collection[str]) -> _Diagnosis:
    facts, config, predictor = run.facts, run.inputs.config, run.replay.predictor
    stragglers = run.attribution.stragglers
    validate = partial(find_problems, config=config, bridge_version=bridge_version)
    verdict = decide_verdict(facts, stragglers=stragglers, predictor=predictor)
    findings, plan = make_validated_plan(
        rule_base.rules, facts, validate, allowed, predictor, fixes_rank_first=verdict.culprit is not None
    )
    recipe, no_recipe_reason = find_nearest_recipe(config, facts, plan, verdict.wall)
    edits = [edit for step in plan for edit in step.edits]
    overrides = spell(edits, config, bridge_version or config.bridge_version)
    plan = name_places(spell_entries(plan, findings, config, bridge_version), rule_base.rules)
    warnings = (
        *warn_of_unknown_settings(config, findings, facts, leaves_config=run.inputs.leaves_config),
        *judge_warnings(rule_base.warnings, facts, stragglers),
    )
    first = choose_first_trial(plan, facts, predictor)
    return _Diagnosis(facts, verdict, tuple(findings), plan, first, overrides, warnings, recipe, no_recipe_reason)


def _build_report(run: _Run, diagnosis: _Diagnosis, replay: ReplayedRun) -> LiveReport:
    inputs, timeline, matched_ranks = run.inputs, run.timeline, run.matched_ranks
    attribution, details, facts = run.attribution, run.details, diagnosis.facts
    in_full = tuple(rank for trace in inputs.with_kernels for rank in trace.ranks)
    step, ranks = details.step, summarize_ranks(attribution, matched_ranks.steps, in_full)
    numbers = {rank.rank for rank in in_full}
    culprits = diagnosis.verdict.culprit.ranks if diagnosis.verdict.culprit else ()
    late = dict.fromkeys((*culprits, *(straggler.rank for straggler in attribution.stragglers)))
    drilled = drill_down(_view_step(run, step), ranks, list(late)) if step else DrilledDown(ranks)
    return LiveReport(
        tool_version=VERSION,
        inputs=tuple(capture.input for capture in inputs.captures),
        verdict=diagnosis.verdict,
        step=summarize_steps(matched_ranks.steps, timeline.sources.values(), inputs.ranks),
        ranks=drilled.ranks,
        budget=summarize_budget(step) if step else (),
        budget_of=step.why if step else "no step could be kept",
        config=inputs.config,
        facts=facts,
        findings=diagnosis.findings,
        plan=diagnosis.plan,
        overrides=diagnosis.overrides,
        warnings=(
            *diagnosis.warnings,
            *collect_warnings(inputs, timeline, matched_ranks, attribution, details, facts),
        ),
        unclassified=list_unclassified(timeline, step) if step else (),
        capabilities=details.run.capabilities,
        stragglers=attribution.stragglers,
        waits=tuple(wait for wait in attribution.waits if wait.rank in numbers),
        alignment=matched_ranks.clock.alignment,
        moe_layers=details.moe_layers,
        overlap_slowdown=details.overlap_slowdown,
        pipeline_phases=details.pipeline_phases,
        log=details.log.summary,
        memory_snapshot=inputs.snapshot,
        recompute_layers=details.recompute_layers,
        graph_coverage=details.graph_coverage,
        efficiency=details.efficiency,
        gemm_shapes=details.gemm_shapes,
        copies=details.copies,
        first_trial=diagnosis.first_trial,
        known_good_recipe=diagnosis.recipe,
        no_recipe_reason=diagnosis.no_recipe_reason,
        critical_path=run.replay.critical_path,
        kernels=drilled.kernels,
        host_work=drilled.host_work,
        timeline=drilled.timeline,
        survey=run.survey,
        replay=replay,
    )
