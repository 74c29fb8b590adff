"""The stages of an analysis in order. ``analyze`` is their list, and the only code that knows them all.

Each stage is made from the ones before it, and the docstring of its module lists what it works out:

- ``trace/read_inputs.py``: what is read.
- ``step/build_timeline.py``: every operation with its category, and where steps come from.
- ``step/ranks/matched_ranks.py``: the calls of the ranks matched, and their clocks aligned.
- ``step/attribute_steps.py``: the budget, exposed communication, why no compute ran, stragglers.
- ``step/survey/rank_survey.py``: a run of many ranks, of which only some are read in full.
- ``facts/sheet.py``: the fact sheet. From here on facts and rows of the report are pulled (``lib/declare.py``).
- ``replay/replay_steps.py``: the replay of the step, which predicts what edits give back.
- ``advice/plan/make_plan.py`` and ``advice/decide_verdict.py``: findings, the plan, the wall.
- ``bridge/render_overrides.py``: the plan as overrides of a launcher; ``bridge/render_entries.py``: each entry alone.
- ``export/``: the kernels of the step (``kernel_table.py``), the host's time by place, the timeline.
- ``export/chrome_trace.py``: the step for trace viewers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from three_walls.advice.answer_what_if import ReplayedRun
from three_walls.advice.compare_settings import compare_settings
from three_walls.advice.decide_verdict import decide_verdict
from three_walls.advice.finding import PlanStep
from three_walls.advice.format.load_rules import RuleBase, check_rules_directory, load_rule_base
from three_walls.advice.judge_warnings import judge_warnings
from three_walls.advice.plan.locate import name_places
from three_walls.advice.plan.make_plan import choose_first_trial, make_plan
from three_walls.advice.reconcile import measure_noise_ns, reconcile
from three_walls.advice.unknown_settings import warn_of_unknown_settings
from three_walls.bridge.check_overrides import find_problems
from three_walls.bridge.nearest_recipe import find_nearest_recipe
from three_walls.bridge.render_entries import spell_entries
from three_walls.bridge.render_overrides import spell
from three_walls.export.chrome_trace import StepTracks, list_step_tracks
from three_walls.export.host_flame import host_frames
from three_walls.export.host_work_rows import host_work, rank_reports
from three_walls.export.kernel_table import kernels
from three_walls.export.lanes import measured_step
from three_walls.export.step_timeline import PlanChange, drawn_timeline
from three_walls.facts.after_settings import find_facts_after
from three_walls.facts.counted_world import add_counted_world
from three_walls.facts.cuda_graphs import graph_coverage
from three_walls.facts.gemm_efficiency import efficiency
from three_walls.facts.gemm_shapes import gemm_shapes
from three_walls.facts.hardware_metrics import hardware
from three_walls.facts.host_copies import copies
from three_walls.facts.input_warnings import measured_warnings
from three_walls.facts.log_facts import log_mismatch, log_summary
from three_walls.facts.moe_ledger import moe_layers
from three_walls.facts.overlap_slowdown import overlap_slowdown
from three_walls.facts.pipeline_schedule import pipeline_phases
from three_walls.facts.recompute_facts import recompute_layers
from three_walls.facts.sheet import DEFINITIONS, make_sheet
from three_walls.facts.summarize_step import budget, shown_waits, step_summary, unclassified
from three_walls.lib.declare import Artifacts
from three_walls.lib.errors import InputError
from three_walls.lib.fact import FactValue
from three_walls.lib.load_documents import load_table
from three_walls.lib.measurement import NS_PER_S
from three_walls.lib.version import VERSION
from three_walls.replay.replay_steps import critical_path, predictor, synchronizations
from three_walls.replay.transformation import Transformation
from three_walls.report.check_report import check_report
from three_walls.report.report import Diagnosis, LiveReport
from three_walls.step import step_view
from three_walls.step.attribute_steps import AttributedRun, attribute
from three_walls.step.build_timeline import Timeline, build_timeline, wanted_ranges
from three_walls.step.ranks.attributed_steps import UnreadStepError, choose_steps
from three_walls.step.ranks.matched_ranks import MatchedRanks, match_ranks
from three_walls.step.ranks.steps_to_read import choose_steps_to_read, outline_run
from three_walls.step.selected_steps import select_from_trace
from three_walls.tables.bridge_releases import check_release
from three_walls.tables.kernel_names import KernelPack, load_api_patterns, union_of
from three_walls.tables.prediction_intervals import prediction_intervals
from three_walls.trace.input_file import describe_names
from three_walls.trace.read_inputs import ChooseSteps, Inputs, Progress, read_every_step, read_inputs
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
    kernel_names: str | Path | None = None,
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
    - ``kernel_names``: a YAML file that says what kernels are, searched before the names of the program.
    - ``bridge_version``: Megatron-Bridge release that the overrides are spelled for; by default the run's.
    - ``rules``: a directory of rules in addition to those of the program.
    - ``allowed``: applicabilities whose edits may be planned in addition to execution-only ones.
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
        kernel_names=None if kernel_names is None else Path(kernel_names),
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
    run = measure_run(request, progress)
    replayed = _prepare_replays(run, rule_base, request.bridge_version)
    progress("judging rules")
    diagnosis = _diagnose(rule_base, run, replayed, request.bridge_version, allowed)
    progress("listing kernels, host work and the timeline")
    report, names = _build_report(run, diagnosis, replayed), request.kernel_names
    check_report(report)
    return report if names is None else replace(report, kernel_names=describe_names(names))


@keep_unpacked()
def replay_run(request: RunRequest, progress: Progress = lambda _: None) -> ReplayedRun:
    """Prepares a run for replays of its step with changes. Raises the errors of :func:`analyze`."""
    rule_base = _load_rule_base(request.rules)
    run = measure_run(request, progress)
    return _prepare_replays(run, rule_base, request.bridge_version)


@keep_unpacked()
def export_step(request: RunRequest, ranks: Collection[int] = (), progress: Progress = lambda _: None) -> StepTracks:
    """The representative step of a run as tracks for a trace viewer; of ``ranks`` (their numbers), or of all.

    Raises the errors of :func:`analyze`, InputError where no step was kept, and UsageError for a rank that did not
    capture it.
    """
    measured = measure_run(request, progress, ranks).artifacts.find(measured_step)
    if measured.value is None:
        raise InputError(f"nothing to export: {measured.missing_reason}")
    return list_step_tracks(measured.value, ranks)


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """An attributed run. Everything else is made of ``artifacts`` when it is asked for."""

    attributed: AttributedRun
    artifacts: Artifacts


def measure_run(request: RunRequest, progress: Progress, ranks: Collection[int] = ()) -> MeasuredRun:
    """Reads and attributes a run. ``ranks``: numbers of those to read in full. Raises the errors of :func:`analyze`."""
    step_range, workers = request.step_range, request.workers
    own_names = None if request.kernel_names is None else load_table(request.kernel_names, KernelPack)
    ranges, graph_launch = wanted_ranges(step_range), union_of(load_api_patterns(), "graph_launch")

    def measure(inputs: Inputs) -> MeasuredRun:
        if inputs.is_to_be_surveyed:
            from three_walls.step.survey.survey_run import survey_run  # most runs are not surveyed

            surveyed = survey_run(
                inputs, step_range, progress, workers=workers, rank_numbers=ranks, own_names=own_names
            )
            return _begin_measuring(surveyed, progress)
        # From here on nothing refers to what was read: of a long capture most is not needed when the steps are known.
        inputs, timeline, matched_ranks = _find_steps(inputs, step_range, own_names, progress)
        progress("attributing every nanosecond")
        attribution = attribute(timeline, matched_ranks, inputs.with_kernels)
        return _begin_measuring(AttributedRun(inputs, timeline, matched_ranks, attribution), progress)

    read = partial(read_inputs, request, ranges, graph_launch, progress)
    choose: ChooseSteps = partial(
        choose_steps_to_read, step_range=step_range, progress=progress, jobs=workers.jobs, own_names=own_names
    )
    measured = None
    with suppress(UnreadStepError):
        measured = measure(read(choose))
    if measured is None:
        choose = read_every_step
        measured = measure(read(choose))
    if measured.artifacts.find(log_mismatch).value:  # by its steps, if not by its settings, left out while reading
        inputs = measured.attributed.inputs
        if inputs.without_log_settings(request.bridge_version).explicit != inputs.explicit:
            measured = measure(read(choose).without_log_settings(request.bridge_version))
    return measured


def _find_steps(
    inputs: Inputs, step_range: str | None, own_names: KernelPack | None, progress: Progress
) -> tuple[Inputs, Timeline, MatchedRanks]:
    """Finds the steps to attribute and matches their ranks; reduces ``inputs`` to what these steps rest on."""
    traces = inputs.with_kernels
    progress("classifying kernels, finding steps")
    captured = build_timeline(traces, inputs.config, step_range, own_names)
    progress("matching the calls of the ranks on one clock")
    to_read = list_steps_to_read(traces)
    outline = outline_run(captured, to_read)
    finished, matched_ranks = match_ranks(captured, traces, inputs.config, outline)
    timeline, matched_ranks = choose_steps(finished, matched_ranks, to_read)
    if timeline is not finished:
        attributed = (select_from_trace(trace, timeline) if trace.ranks else trace for trace in inputs.traces)
        inputs = replace(inputs, traces=tuple(attributed))
    return inputs, timeline, matched_ranks


def _begin_measuring(run: AttributedRun, progress: Progress) -> MeasuredRun:
    """Adds the number of GPUs, where nothing but the steps shows it; makes the facts of ``run`` available."""
    inputs = replace(run.inputs, config=add_counted_world(run.inputs.config, run.timeline))
    progress("measuring facts")
    artifacts = Artifacts(
        {
            "inputs": inputs,
            "timeline": run.timeline,
            "matched_ranks": run.matched_ranks,
            "attribution": run.attribution,
            "progress": progress,
        }
    )
    return MeasuredRun(replace(run, inputs=inputs), artifacts)


def _prepare_replays(run: MeasuredRun, rule_base: RuleBase, bridge_version: str | None) -> ReplayedRun:
    """Measures the facts of a run, and makes the predictor of its step."""
    facts = make_sheet(run.artifacts, run.attributed.inputs.config)
    config = run.attributed.inputs.config
    validate = partial(find_problems, config=config, bridge_version=bridge_version)
    facts_after = partial(find_facts_after, run.artifacts)
    return ReplayedRun(
        rule_base.rules,
        rule_base.effects,
        facts,
        run.artifacts.pull(predictor),
        validate,
        facts_after,
        prediction_intervals(),
    )


def _load_rule_base(additional: Path | None) -> RuleBase:
    """The rules and warnings that ship with the program, and those of the directory ``additional``."""
    if additional is not None:
        check_rules_directory(additional)
    return load_rule_base(DEFINITIONS, additional)


def _diagnose(
    rule_base: RuleBase, run: MeasuredRun, replayed: ReplayedRun, bridge_version: str | None, allowed: Collection[str]
) -> Diagnosis:
    inputs, stragglers = run.attributed.inputs, run.attributed.attribution.stragglers
    facts, config, predictor = replayed.facts, inputs.config, replayed.predictor
    verdict = decide_verdict(facts, stragglers=stragglers, predictor=predictor)
    findings, plan = make_plan(replayed, allowed, fixes_rank_first=verdict.culprit is not None)
    recipe, no_recipe_reason = find_nearest_recipe(config, facts, plan, verdict.wall)
    edits = [edit for step in plan for edit in step.edits]
    overrides = spell(edits, config, bridge_version or config.bridge_version)
    plan = name_places(spell_entries(plan, findings, config, bridge_version), rule_base.rules)
    warnings = (
        *warn_of_unknown_settings(config, findings, facts, leaves_config=inputs.leaves_config),
        *judge_warnings(rule_base.warnings, facts, stragglers),
    )
    verdict, plan = reconcile(verdict, plan, measure_noise_ns(facts, run.artifacts.pull(step_summary)))
    first = choose_first_trial(plan, facts, predictor)
    return Diagnosis(verdict, tuple(findings), plan, first, overrides, warnings, recipe, no_recipe_reason)


def _build_report(run: MeasuredRun, diagnosis: Diagnosis, replayed: ReplayedRun) -> LiveReport:
    """The report of ``run``. What is missing is empty in it."""
    attributed = run.attributed
    inputs, stragglers = attributed.inputs, attributed.attribution.stragglers
    culprits = diagnosis.verdict.culprit.ranks if diagnosis.verdict.culprit else ()
    late = dict.fromkeys((*culprits, *(straggler.rank for straggler in stragglers)))
    artifacts = run.artifacts.with_inputs(
        {"late_ranks": tuple(late), "plan_changes": tuple(_list_changes(diagnosis.plan, replayed))}
    )
    step, work = artifacts.find(step_view.step).value, artifacts.find(host_work).value
    return LiveReport(
        tool_version=VERSION,
        inputs=tuple(capture.input for capture in inputs.captures),
        verdict=diagnosis.verdict,
        step=artifacts.pull(step_summary),
        ranks=artifacts.pull(rank_reports),
        budget=artifacts.find(budget).value or (),
        budget_of=step.why if step else "no step could be kept",
        config=inputs.config,
        facts=replayed.facts,
        findings=diagnosis.findings,
        plan=diagnosis.plan,
        overrides=diagnosis.overrides,
        warnings=(*diagnosis.warnings, *artifacts.pull(measured_warnings)),
        unclassified=artifacts.find(unclassified).value or (),
        capabilities=artifacts.pull(step_view.run).capabilities,
        stragglers=stragglers,
        waits=artifacts.pull(shown_waits),
        alignment=attributed.matched_ranks.clock.alignment,
        moe_layers=artifacts.find(moe_layers).value or (),
        overlap_slowdown=artifacts.find(overlap_slowdown).value or (),
        pipeline_phases=artifacts.pull(pipeline_phases),
        log=artifacts.find(log_summary).value,
        memory_snapshot=inputs.snapshot,
        recompute_layers=artifacts.find(recompute_layers).value or (),
        graph_coverage=artifacts.find(graph_coverage).value,
        efficiency=artifacts.find(efficiency).value or (),
        gemm_shapes=artifacts.find(gemm_shapes).value or (),
        copies=artifacts.find(copies).value or (),
        hardware=artifacts.find(hardware).value or (),
        first_trial=diagnosis.first_trial,
        known_good_recipe=diagnosis.recipe,
        no_recipe_reason=diagnosis.no_recipe_reason,
        critical_path=artifacts.find(critical_path).value,
        kernels=artifacts.find(kernels).value or (),
        host_work=work.rows if work else (),
        host_frames=artifacts.find(host_frames).value or (),
        synchronizations=artifacts.find(synchronizations).value,
        timeline=artifacts.find(drawn_timeline).value,
        survey=attributed.survey,
        recorded_at=_find_start(inputs),
        replay=replayed,
    )


def _list_changes(plan: Sequence[PlanStep], replayed: ReplayedRun) -> Iterator[PlanChange]:
    """What each entry of ``plan`` changes in the step of the run, next to the entries before it."""
    settings: dict[str, FactValue] = {}
    before: tuple[Transformation, ...] = ()
    for step in plan:
        settings |= {f"{edit.kind}.{edit.key}": edit.to for edit in step.edits}
        after = compare_settings(replayed.effects, replayed.facts, settings, replayed.predictor.explain).transformations
        yield PlanChange(step.order, step.finding.title, tuple(each.select for each in after if each not in before))
        before = after


def _find_start(inputs: Inputs) -> str | None:
    """When the first capture began, in UTC; None where none states it."""
    starts = [capture.session_start_ns for capture in inputs.captures if capture.session_start_ns]
    return f"{datetime.fromtimestamp(min(starts) // NS_PER_S, UTC):%Y-%m-%dT%H:%M:%SZ}" if starts else None
