"""The stages in order; the only module that knows them all."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from three_walls.attribution.attribution import Attribution, attribute
from three_walls.facts.caveats import collect_caveats, warn_of_stragglers
from three_walls.facts.config_caveats import warn_of_settings
from three_walls.facts.efficiency import MeasuredEfficiency, measure_efficiency
from three_walls.facts.fact_sheet import collect_facts
from three_walls.facts.log_caveats import warn_of_log
from three_walls.facts.log_facts import JoinedLog, join_log
from three_walls.facts.memory_snapshot import with_snapshot_facts
from three_walls.facts.operator_details import OperatorDetails, measure_operators
from three_walls.facts.outliers import warn_of_outliers
from three_walls.facts.pipeline_bubble import measure_pipeline, pipeline_facts
from three_walls.facts.rank_facts import rank_facts
from three_walls.facts.representative import Representative, choose_representative
from three_walls.facts.step_details import StepDetails, measure_step_details
from three_walls.facts.summary import (
    count_captured_steps,
    list_unclassified,
    summarize_budget,
    summarize_ranks,
    summarize_steps,
)
from three_walls.inputs.nsys.capabilities import common_capabilities
from three_walls.inputs.nsys.reader import Trace
from three_walls.inputs.read_inputs import Inputs, Paths, Progress, read_inputs
from three_walls.model.config import RunConfig
from three_walls.model.errors import UsageError
from three_walls.model.fact import FactSheet
from three_walls.model.finding import Finding, Overrides, PlanStep
from three_walls.model.report import KnownGoodRecipe, PipelinePhase, Report, ReportWarning, Verdict
from three_walls.model.rule import Rule
from three_walls.overrides.nearest_recipe import find_nearest_recipe
from three_walls.overrides.spell import spell
from three_walls.overrides.validated_plan import make_validated_plan
from three_walls.ranks.matched_ranks import MatchedRanks, match_ranks
from three_walls.resources import RULES_DIR
from three_walls.rules.first_trial import choose_first_trial
from three_walls.rules.load import load_rules
from three_walls.rules.verdict import decide_verdict
from three_walls.tables.hardware import GpuModel, find_gpu
from three_walls.tables.kernels import load_api_patterns, union_of
from three_walls.timeline.timeline import Timeline, build_timeline, wanted_ranges
from three_walls.version import VERSION


def _silent(_: str) -> None:
    return None


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
    progress: Progress = _silent,
) -> Report:
    """Analyzes one run: an Nsight Systems export, several (one per rank), or a directory of them.

    ``logs``: the run's training logs, files or directories. ``config``: its saved configuration
    (``run_config.yaml``). ``settings``: ``key=value`` each, which count before every other source.
    ``memory_snapshot``: a snapshot of PyTorch's allocator of one rank. ``step_range``: regular expression for the
    NVTX ranges that are steps, where the trace has no ``training_step_N``. ``bridge_version``: release the overrides
    are spelled for. ``rules``: a directory of more rules. ``allowed``: classes of rules
    (``model.rules.RULE_CLASSES``) whose edits may be planned in addition to execution-only ones.

    Raises the errors of ``three_walls.model.errors``, each with one line for a person.
    """
    _check_options(step_range, bridge_version)
    rule_base = load_rules(RULES_DIR, *([rules] if rules else []))
    ranges, graph_launch = wanted_ranges(step_range), union_of(load_api_patterns(), "graph_launch")

    inputs = read_inputs(trace, logs, config, settings, memory_snapshot, ranges, graph_launch, progress)
    traces, run_config = inputs.with_kernels, inputs.config
    progress("classifying kernels, finding steps")
    captured = build_timeline(traces, run_config, step_range)
    progress("matching the calls of the ranks on one clock")
    timeline, matched_ranks = match_ranks(captured, traces, run_config)
    progress("attributing every nanosecond")
    attribution = attribute(timeline, matched_ranks, traces)
    progress("measuring facts")
    measured = _measure_facts(inputs, timeline, matched_ranks, attribution)
    progress("judging rules")
    diagnosis = _diagnose(rule_base, measured.facts, run_config, bridge_version, allowed)
    return _build_report(inputs, timeline, matched_ranks, attribution, measured, diagnosis)


@dataclass(frozen=True, slots=True)
class _Measured:
    """What is measured of the run, and of the step that represents it (None without a kept step)."""

    representative: Representative | None
    capabilities: Mapping[str, str]
    step_details: StepDetails
    phases: tuple[PipelinePhase, ...]
    log: JoinedLog
    efficiency: MeasuredEfficiency
    operators: OperatorDetails
    facts: FactSheet


@dataclass(frozen=True, slots=True)
class _Diagnosis:
    """What the rules make of the facts."""

    verdict: Verdict
    findings: tuple[Finding, ...]
    plan: tuple[PlanStep, ...]
    overrides: Overrides
    recipe: KnownGoodRecipe | None
    no_recipe_reason: str


def _measure_facts(
    inputs: Inputs, timeline: Timeline, matched_ranks: MatchedRanks, attribution: Attribution
) -> _Measured:
    traces, ranks, config = inputs.with_kernels, inputs.ranks, inputs.config
    gpu = find_gpu(ranks[0].gpu.name, ranks[0].gpu.sm) if ranks[0].gpu else None
    capabilities = common_capabilities([trace.capabilities for trace in traces])
    rank_of = dict(matched_ranks.rank_of)
    phases = measure_pipeline(timeline, attribution, matched_ranks, config)
    representative = choose_representative(attribution, rank_of)
    names = _kernel_names(traces, representative)
    step_details = measure_step_details(timeline, attribution, representative, names, config, gpu, capabilities)
    step_ns = representative.step_ns if representative else None
    log = join_log(inputs.log, inputs.config_of_trace, config, step_ns, count_captured_steps(timeline))
    efficiency = measure_efficiency(
        traces,
        timeline,
        attribution,
        representative,
        step_details.ledger.parts,
        config,
        gpu,
        union_of(load_api_patterns(), "allocate"),
        unprofiled_step_ns=log.whole("unprofiled_step_ns"),
        log_peak_memory_bytes=log.whole("log_peak_memory_bytes"),
        log_memory_iterations=log.whole("log_memory_iterations_count"),
    )
    operators = _measure_operators(traces, timeline, attribution, representative, config, gpu)
    measured = {
        **step_details.facts,
        **(pipeline_facts(phases, rank_of[representative.rank_index]) if representative else {}),
        **rank_facts(matched_ranks, attribution, timeline),
        **efficiency.facts,
        **operators.facts,
    }
    facts = collect_facts(timeline, attribution, representative, ranks, config, gpu, capabilities, measured, log.facts)
    return _Measured(
        representative=representative,
        capabilities=capabilities,
        step_details=step_details,
        phases=phases,
        log=log,
        efficiency=efficiency,
        operators=operators,
        facts=with_snapshot_facts(facts, inputs.snapshot),
    )


def _measure_operators(
    traces: Sequence[Trace],
    timeline: Timeline,
    attribution: Attribution,
    representative: Representative | None,
    config: RunConfig,
    gpu: GpuModel | None,
) -> OperatorDetails:
    if representative is None:
        return OperatorDetails()
    rank_index = representative.rank_index
    trace, rank = next((trace, rank) for trace in traces for rank in trace.ranks if rank.rank_index == rank_index)
    return measure_operators(trace, rank, timeline, attribution, representative, config, gpu)


def _kernel_names(traces: Sequence[Trace], representative: Representative | None) -> Mapping[int, str]:
    """Kernel names in the trace of the representative rank: name ids are valid within one trace only."""
    if representative is None:
        return {}
    rank_index = representative.rank_index
    return next(trace.names for trace in traces if any(rank.rank_index == rank_index for rank in trace.ranks))


def _diagnose(
    rule_base: Collection[Rule],
    facts: FactSheet,
    config: RunConfig,
    bridge_version: str | None,
    allowed: Collection[str],
) -> _Diagnosis:
    findings, plan = make_validated_plan(rule_base, facts, config, bridge_version, allowed)
    verdict = decide_verdict(facts)
    recipe, no_recipe_reason = find_nearest_recipe(config, facts, plan, verdict.wall)
    edits = [edit for step in plan for edit in step.edits]
    overrides = spell(edits, config, bridge_version or config.bridge_version)
    return _Diagnosis(verdict, tuple(findings), plan, overrides, recipe, no_recipe_reason)


def _build_report(
    inputs: Inputs,
    timeline: Timeline,
    matched_ranks: MatchedRanks,
    attribution: Attribution,
    measured: _Measured,
    diagnosis: _Diagnosis,
) -> Report:
    ranks, representative, facts = inputs.ranks, measured.representative, measured.facts
    return Report(
        tool_version=VERSION,
        inputs=tuple(trace.input for trace in inputs.traces),
        verdict=diagnosis.verdict,
        step=summarize_steps(timeline, ranks),
        ranks=summarize_ranks(attribution, ranks),
        budget=summarize_budget(attribution, representative) if representative else (),
        budget_of=representative.why if representative else "no step could be kept",
        config=inputs.config,
        facts=facts,
        findings=diagnosis.findings,
        plan=diagnosis.plan,
        overrides=diagnosis.overrides,
        warnings=_collect_warnings(inputs, timeline, matched_ranks, attribution, measured),
        unclassified=list_unclassified(timeline, representative) if representative else (),
        capabilities=measured.capabilities,
        stragglers=attribution.stragglers,
        waits=attribution.waits,
        alignment=matched_ranks.clock.alignment,
        moe_layers=measured.step_details.ledger.parts,
        overlap_slowdown=measured.step_details.overlap_slowdown,
        pipeline_phases=measured.phases,
        log=measured.log.summary,
        memory_snapshot=inputs.snapshot,
        recompute_layers=measured.step_details.recompute_layers,
        graph_coverage=measured.step_details.graph_coverage,
        config_conflicts=inputs.merged.conflicts,
        efficiency=measured.efficiency.roles,
        gemm_shapes=measured.operators.shapes,
        copies=measured.efficiency.copies,
        first_trial=choose_first_trial(diagnosis.plan, facts),
        known_good_recipe=diagnosis.recipe,
        no_recipe_reason=diagnosis.no_recipe_reason,
    )


def _collect_warnings(
    inputs: Inputs,
    timeline: Timeline,
    matched_ranks: MatchedRanks,
    attribution: Attribution,
    measured: _Measured,
) -> tuple[ReportWarning, ...]:
    facts = measured.facts
    return (
        *warn_of_stragglers(attribution.stragglers, facts),
        *collect_caveats(inputs.traces, timeline, facts, measured.capabilities),
        *warn_of_log(inputs.log, measured.log, facts),
        *warn_of_settings(inputs.stated, inputs.merged, inputs.ranks),
        *matched_ranks.warnings,
        *measured.step_details.warnings,
        *warn_of_outliers(attribution, dict(matched_ranks.rank_of)),
    )


def _check_options(step_range: str | None, bridge_version: str | None) -> None:
    try:
        re.compile(step_range or "")
    except re.error as error:
        raise UsageError(f"--step-range: expected a regular expression, found {step_range!r} ({error})") from error
    check_release(bridge_version)


def check_release(bridge_version: str | None) -> None:
    """Raises UsageError where the option is no release."""
    if bridge_version is not None and not re.fullmatch(r"main|\d+\.\d+(\.\d+)?", bridge_version):
        raise UsageError(f"--bridge-version: expected a release like 0.6.2, or main, found {bridge_version!r}")
