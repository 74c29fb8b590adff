"""Measures every fact of a run, and the rows that the report shows in detail: the one entry of this package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from three_walls.facts.communication_facts import measure_communication, withhold_unowned
from three_walls.facts.cuda_graphs import measure_graphs
from three_walls.facts.fact_rows import (
    CopyBandwidth,
    Efficiency,
    GemmShape,
    GraphCoverage,
    MoePart,
    OverlapSlowdown,
    PipelinePhase,
    RecomputedLayer,
)
from three_walls.facts.gemm_efficiency import GEMM_EFFICIENCY, measure_roles
from three_walls.facts.gemm_shapes import count_received_tokens, measure_gemm_shapes
from three_walls.facts.half_tensor_parallel import measure_half_tensor_parallel
from three_walls.facts.host_copies import measure_host_copies
from three_walls.facts.log_facts import NO_LOG, PROFILER_EXCESS, UNPROFILED_STEP, JoinedLog, join_log
from three_walls.facts.low_precision import measure_low_precision
from three_walls.facts.memory_estimate import measure_memory
from three_walls.facts.model_flops import measure_utilization
from three_walls.facts.moe_ledger import measure_moe_layers
from three_walls.facts.overlap_slowdown import measure_overlap_slowdown
from three_walls.facts.pipeline_schedule import measure_bubble, measure_pipeline
from three_walls.facts.program_facts import measure_program
from three_walls.facts.rank_facts import measure_culprit, measure_ranks
from three_walls.facts.recompute_facts import measure_recompute, recompute_facts, sum_replays_by_layer
from three_walls.facts.recorded_memory import (
    MEMORY_PRESSURE,
    classify_memory_pressure,
    measure_driver_memory,
    measure_snapshot,
)
from three_walls.facts.recoverable import LAUNCH_STARVED_RECOVERABLE, measure_recoverable
from three_walls.facts.registry import DEFINITION_BY_NAME, DEFINITIONS
from three_walls.facts.run_layout import measure_layout
from three_walls.facts.step_facts import LAUNCH_STARVED, STEP_SPREAD, measure_spread, measure_step
from three_walls.facts.summarize_step import list_captured_lengths
from three_walls.facts.token_balance import RECEIVED_TOKENS, compare_received
from three_walls.facts.token_exchange import (
    EP_ACHIEVED,
    EP_DEDUPLICATED,
    EP_LINK,
    deduplicated_transfer,
    link_bytes_per_s,
)
from three_walls.facts.transport import measure_transport
from three_walls.facts.unfused_ops import finish_unfused, measure_unfused_ops
from three_walls.layers.attention_passes import find_passes
from three_walls.lib.fact import Fact, FactDefinition, FactSheet, FactValue, Measurements
from three_walls.lib.measurement import Measurement, known, missing
from three_walls.lib.report_warning import ReportWarning
from three_walls.megatron.settings.run_config import NOT_SHOWN, RunConfig
from three_walls.step.attribute_steps import Attribution
from three_walls.step.build_timeline import Timeline
from three_walls.step.operators import read_operators
from three_walls.step.ranks.matched_ranks import MatchedRanks
from three_walls.step.step_view import NO_STEP, RunView, StepView, choose_step, find_sick, view_other_rank, view_run
from three_walls.tables.kernel_names import load_api_patterns, union_of
from three_walls.trace.read_inputs import Inputs

_NO_STEP = missing(NO_STEP)


@dataclass(frozen=True, slots=True)
class Details:
    """What the report shows besides facts. Without a kept step ``step`` is None and the rows of the step are empty."""

    run: RunView
    log: JoinedLog
    pipeline_phases: tuple[PipelinePhase, ...]
    step: StepView | None = None
    moe_layers: tuple[MoePart, ...] = ()
    overlap_slowdown: tuple[OverlapSlowdown, ...] = ()
    recompute_layers: tuple[RecomputedLayer, ...] = ()
    graph_coverage: GraphCoverage | None = None
    efficiency: tuple[Efficiency, ...] = ()
    gemm_shapes: tuple[GemmShape, ...] = ()
    copies: tuple[CopyBandwidth, ...] = ()
    warnings: tuple[ReportWarning, ...] = ()
    before_log: Measurements = field(default_factory=dict)
    """Facts as traced, before the log takes what the profiler added; empty where it takes nothing."""


def measure_facts(
    inputs: Inputs,
    timeline: Timeline,
    attribution: Attribution,
    matched_ranks: MatchedRanks,
) -> tuple[FactSheet, Details]:
    """Every defined fact, missing with its reason where it cannot be measured, and the settings of the run as facts.

    Raises InputError where the representative step's trace cannot be read any more.
    """
    traces = inputs.with_kernels
    run = view_run([capture for capture in inputs.captures if capture.ranks], inputs.config)
    step = choose_step(traces, timeline, attribution, matched_ranks, run)
    step_ns, lengths = step.step_ns if step else None, list_captured_lengths(attribution.steps)
    log = join_log(inputs.log, inputs.config_without_log, run.config, step_ns, lengths)
    sick = find_sick(attribution.stragglers, step_ns or 0, log.whole(PROFILER_EXCESS))
    if sick:  # which of them are, the log decides; steps of all ranks are equally long
        step = choose_step(traces, timeline, attribution, matched_ranks, run, [straggler for straggler, _ in sick])
        step_ns = step.step_ns if step else None
        log = join_log(inputs.log, inputs.config_without_log, run.config, step_ns, lengths)
    phases = measure_pipeline(timeline, attribution, matched_ranks, run.config)
    details = Details(run, log, phases)
    measured: Measurements = {
        **measure_program(inputs, timeline),
        **measure_layout(run),
        **log.facts,
        **measure_ranks(matched_ranks, attribution, [straggler for straggler, _ in sick]),
        **measure_memory(
            step.config_as_run if step else run.config, run.device.memory_bytes if run.device else None, log.facts
        ),
        **measure_snapshot(inputs.snapshot),
        **measure_utilization(run, step_ns, log.whole(UNPROFILED_STEP)),
        STEP_SPREAD: measure_spread(attribution.steps),
    }
    if step:
        measured, details = _measure_details(step, matched_ranks, measured, replace(details, step=step))
        measured = {
            **measured,
            **measure_culprit(attribution.stragglers, step, measured),
            **_compare_received(step, measured[RECEIVED_TOKENS], inputs, timeline),
        }
    measured = {**measured, **measure_half_tensor_parallel(run, step, measured)}
    pressure = classify_memory_pressure(measured)
    sheet = make_sheet({**measured, MEMORY_PRESSURE: pressure}, run.config)
    if not details.before_log:
        return sheet, details
    traced = make_sheet({**measured, **details.before_log}, run.config).facts
    before = {name: traced[name].value for name, fact in sheet.facts.items() if fact.value != traced[name].value}
    before.pop(MEMORY_PRESSURE.name, None)
    return replace(sheet, before_log=before), details


def _measure_details(
    step: StepView, matched_ranks: MatchedRanks, measured: Measurements, details: Details
) -> tuple[Measurements, Details]:
    """``measured`` with the facts of the representative step, and ``details`` with its rows."""
    attention = find_passes(step.operations, step.window)
    recompute = measure_recompute(step, attention)
    moe_layers = measure_moe_layers(step, attention, recompute, matched_ranks.arrivals)
    overlap_slowdown = measure_overlap_slowdown(step)
    graphs = measure_graphs(step)
    efficiency = measure_roles(step, moe_layers.rows)
    operators = read_operators(step.trace, step.rank.process, step.operations)
    gemm_shapes = measure_gemm_shapes(step, operators)
    copies = measure_host_copies(step)
    measured = {
        **measured,
        **measure_step(step),
        **measure_communication(step),
        **recompute_facts(recompute, attention),
        **moe_layers.facts,
        **overlap_slowdown.facts,
        **graphs.facts,
        **efficiency.facts,
        **measure_low_precision(step.run, efficiency.facts[GEMM_EFFICIENCY]),
        **gemm_shapes.facts,
        **copies.facts,
        **measure_unfused_ops(step, operators),
        **measure_driver_memory(step, union_of(load_api_patterns(), "allocate")),
        **measure_bubble(details.pipeline_phases, step, measured),
        EP_LINK: link_bytes_per_s(step.run),
        EP_DEDUPLICATED: deduplicated_transfer(step.run, moe_layers.facts[EP_ACHIEVED]),
    }
    measured = {**measured, **measure_transport(step, operators, matched_ranks.arrivals, measured)}
    # Last: upper bounds are sums of what was measured, also where a part may not be given by itself.
    withheld = {**withhold_unowned(step), **_withhold_unrecorded(step.run)}
    recoverable = {**_measure_recoverable(measured, recompute.cost_ns), **withheld}
    before_log: Measurements = {}
    if measured[PROFILER_EXCESS].whole:
        without_log = {**measured, PROFILER_EXCESS: missing(NO_LOG)}
        before_log = {**_measure_recoverable(without_log, recompute.cost_ns), **withheld}
    return {**measured, **recoverable}, replace(
        details,
        moe_layers=moe_layers.rows,
        overlap_slowdown=overlap_slowdown.rows,
        recompute_layers=sum_replays_by_layer(recompute, attention, step.config, step.layout.microbatches),
        graph_coverage=graphs.rows,
        efficiency=efficiency.rows,
        gemm_shapes=gemm_shapes.rows,
        copies=copies.rows,
        warnings=moe_layers.warnings,
        before_log=before_log,
    )


def _compare_received(
    step: StepView, received: Measurement[FactValue], inputs: Inputs, timeline: Timeline
) -> Measurements:
    """How unevenly the captured ranks received tokens, each in its median step. ``received``: of the representative."""
    if inputs.surveyed:
        return compare_received([None], "not every rank was read in full")
    counts: list[int | None] = []
    for trace in inputs.with_kernels if received.whole else ():
        for rank in trace.ranks:
            if rank.rank_index == step.rank_index:
                counts.append(received.whole)
            elif (view := view_other_rank(step, trace, rank, timeline)) is not None:
                operators = read_operators(trace, rank.process, view.operations)
                counts.append(count_received_tokens(view, operators))
    reason = received.missing_reason or "the operators of some rank do not show the tokens of its experts"
    ranks_count = len(step.run.ranks)
    return compare_received(counts or [None] * ranks_count, reason)


def _measure_recoverable(measured: Measurements, recompute: Measurement[FactValue]) -> Measurements:
    """The facts that depend on what the profiler added to the step. ``recompute``: the time that replays take."""
    bounds = measure_recoverable(measured, recompute)
    starved, recoverable = measured[LAUNCH_STARVED].whole, bounds[LAUNCH_STARVED_RECOVERABLE].whole
    return {**bounds, **finish_unfused(measured, starved, recoverable)}


def _withhold_unrecorded(run: RunView) -> Measurements:
    """Facts that need what the traces did not record."""
    withheld: dict[FactDefinition, Measurement[FactValue]] = {}
    for definition in DEFINITIONS:
        lacking = [reason for need in definition.needs if (reason := run.lacks(need))]
        if lacking:
            withheld[definition] = missing(lacking[0])
    return withheld


def make_sheet(measured: Measurements, config: RunConfig) -> FactSheet:
    """All definitions in their order, then ``config.*`` and ``env.*``. Raises ValueError for an unlisted definition."""
    unlisted = [fact.name for fact in measured if DEFINITION_BY_NAME.get(fact.name) is not fact]
    if unlisted:
        raise ValueError(f"facts measured that no group of facts/registry.py defines: {', '.join(unlisted)}")
    facts = []
    for definition in DEFINITIONS:
        found = _derive_fraction(definition, measured) if definition.numerator else measured.get(definition, _NO_STEP)
        facts.append(Fact(definition.name, found.value, definition.unit, found.missing_reason, definition))
    settings = (
        ("config", config.values, config.withheld_values),
        ("env", config.environment, config.withheld_environment),
    )
    for kind, values, _ in settings:
        facts += [Fact(f"{kind}.{key}", found.value, "config") for key, found in sorted(values.items())]
    for kind, _, withheld in settings:
        facts += [Fact(f"{kind}.{key}", None, "config", missing_reason=NOT_SHOWN) for key in sorted(withheld)]
    return FactSheet.of(facts, config.environment_is_known)


def _derive_fraction(
    definition: FactDefinition, measured: Mapping[FactDefinition, Measurement[FactValue]]
) -> Measurement[FactValue]:
    numerator, denominator = (
        measured.get(DEFINITION_BY_NAME[name], _NO_STEP) for name in (definition.numerator, definition.denominator)
    )
    reason = numerator.missing_reason or denominator.missing_reason
    if reason:
        return missing(reason)
    if numerator.whole is None or not denominator.whole:
        return missing(f"{DEFINITION_BY_NAME[definition.denominator].label} is zero")
    return known(numerator.whole / denominator.whole)
