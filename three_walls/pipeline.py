"""The stages in order; the only module that knows them all."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from three_walls.attribution.attribution import Attribution, attribute
from three_walls.facts.caveats import collect_caveats, warn_of_stragglers
from three_walls.facts.config_caveats import warn_of_settings
from three_walls.facts.efficiency import measure_efficiency
from three_walls.facts.fact_sheet import collect_facts
from three_walls.facts.log_caveats import warn_of_log
from three_walls.facts.log_facts import join_log
from three_walls.facts.memory_snapshot import with_snapshot_facts
from three_walls.facts.operator_details import OperatorDetails, measure_operators
from three_walls.facts.outliers import warn_of_outliers
from three_walls.facts.pipeline_bubble import measure_pipeline, pipeline_facts
from three_walls.facts.rank_facts import rank_facts
from three_walls.facts.representative import Representative, choose_representative
from three_walls.facts.step_details import measure_step_details
from three_walls.facts.summary import (
    count_captured_steps,
    list_unclassified,
    summarize_budget,
    summarize_ranks,
    summarize_steps,
)
from three_walls.inputs.nsys.capabilities import common_capabilities
from three_walls.inputs.nsys.reader import Trace
from three_walls.inputs.read_inputs import Paths, Progress, read_inputs
from three_walls.model.config import RunConfig
from three_walls.model.errors import UsageError
from three_walls.model.report import Report
from three_walls.overrides.nearest_recipe import find_nearest_recipe
from three_walls.overrides.spell import spell
from three_walls.overrides.validated_plan import make_validated_plan
from three_walls.ranks.capture_start import without_affected
from three_walls.ranks.comparison import compare_ranks, match_ranks
from three_walls.ranks.step_numbers import number_alike
from three_walls.resources import RULES_DIR
from three_walls.rules.first_trial import choose_first_trial
from three_walls.rules.load import load_rules
from three_walls.rules.verdict import decide_verdict
from three_walls.tables.hardware import GpuModel, find_gpu
from three_walls.tables.kernels import load_api_patterns, load_kernel_patterns, union_of
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
    (``vocabulary.rules.RULE_CLASSES``) whose edits may be planned besides execution-only ones.

    Raises the errors of ``three_walls.model.errors``, each with one line for a person.
    """
    _check_expression(step_range)
    check_release(bridge_version)
    rule_base = load_rules(RULES_DIR, *([rules] if rules else []))
    kernel_patterns, api_patterns = load_kernel_patterns(), load_api_patterns()

    given = read_inputs(
        trace,
        logs,
        config,
        settings,
        memory_snapshot,
        wanted_ranges(step_range),
        union_of(api_patterns, "graph_launch"),
        progress,
    )
    traces, ranks, run_config = given.with_kernels, given.ranks, given.config
    rank_of = {rank.rank_index: rank.rank for rank in ranks}
    gpu = find_gpu(ranks[0].gpu.name, ranks[0].gpu.sm) if ranks[0].gpu else None
    capabilities = common_capabilities([one.capabilities for one in traces])

    progress("classifying kernels, finding steps")
    timeline = build_timeline(traces, kernel_patterns, union_of(api_patterns, "synchronize"), run_config, step_range)
    progress("putting the ranks on one clock")
    timeline = replace(timeline, steps=number_alike(timeline, traces))
    matched_ranks = match_ranks(traces, timeline, ranks, run_config)
    timeline = replace(timeline, steps=without_affected(timeline.steps, matched_ranks.skewed))
    progress("attributing every nanosecond")
    attribution = attribute(timeline)
    comparison = compare_ranks(traces, timeline, attribution, ranks, matched_ranks)
    attribution = replace(attribution, transfer=comparison.transfer)
    phases = measure_pipeline(timeline, attribution, matched_ranks, comparison, rank_of, run_config)
    representative = choose_representative(attribution, rank_of)
    step_details = measure_step_details(
        timeline, attribution, representative, _names_of(traces, representative), run_config, gpu, capabilities
    )
    joined = join_log(
        given.log,
        given.config_of_trace,
        run_config,
        representative.step_ns if representative else None,
        count_captured_steps(timeline),
    )
    efficiency = measure_efficiency(
        traces,
        timeline,
        attribution,
        representative,
        step_details.ledger.parts,
        run_config,
        gpu,
        union_of(api_patterns, "allocate"),
        unprofiled_step_ns=joined.whole("unprofiled_step_ns"),
        log_peak_memory_bytes=joined.whole("log_peak_memory_bytes"),
        log_memory_iterations=joined.whole("log_memory_iterations_count"),
    )
    progress("reading the operators of one step")
    operators = _look_at_operators(traces, timeline, attribution, representative, run_config, gpu)
    of_pipeline = pipeline_facts(phases, rank_of[representative.rank_index]) if representative else {}
    of_ranks = rank_facts(matched_ranks, comparison, timeline, len(ranks))
    measured = {**step_details.facts, **of_pipeline, **of_ranks, **efficiency.facts, **operators.facts}
    facts = collect_facts(
        timeline, attribution, representative, ranks, run_config, gpu, capabilities, measured, joined.facts
    )
    facts = with_snapshot_facts(facts, given.snapshot)

    progress("judging rules")
    findings, plan = make_validated_plan(rule_base, facts, run_config, bridge_version, allowed)
    edits = [edit for step in plan for edit in step.edits]
    verdict = decide_verdict(facts)
    recipe, no_recipe_reason = find_nearest_recipe(run_config, facts, plan, verdict.wall)
    return Report(
        tool_version=VERSION,
        inputs=tuple(one.input for one in given.traces),
        verdict=verdict,
        step=summarize_steps(timeline, ranks),
        ranks=summarize_ranks(attribution, ranks),
        budget=summarize_budget(attribution, representative) if representative else (),
        budget_of=representative.why if representative else "no step could be kept",
        config=run_config,
        facts=facts,
        findings=tuple(findings),
        plan=plan,
        overrides=spell(edits, run_config, bridge_version or run_config.bridge_version),
        warnings=(
            *warn_of_stragglers(comparison.stragglers, facts),
            *collect_caveats(given.traces, timeline, facts, capabilities),
            *warn_of_log(given.log, joined, facts),
            *warn_of_settings(given.stated, given.merged, ranks),
            *comparison.warnings,
            *step_details.warnings,
            *warn_of_outliers(attribution, rank_of),
        ),
        unclassified=list_unclassified(timeline, representative) if representative else (),
        capabilities=capabilities,
        stragglers=comparison.stragglers,
        waits=comparison.waits,
        alignment=comparison.alignment,
        moe_layers=step_details.ledger.parts,
        overlap_slowdown=step_details.overlap_slowdown,
        pipeline_phases=phases,
        log=joined.summary,
        memory_snapshot=given.snapshot,
        recompute_layers=step_details.recompute_layers,
        graph_coverage=step_details.graph_coverage,
        config_conflicts=given.merged.conflicts,
        efficiency=efficiency.roles,
        gemm_shapes=operators.shapes,
        copies=efficiency.copies,
        first_trial=choose_first_trial(plan, facts),
        known_good_recipe=recipe,
        no_recipe_reason=no_recipe_reason,
    )


def _look_at_operators(
    traces: Sequence[Trace],
    timeline: Timeline,
    attribution: Attribution,
    representative: Representative | None,
    config: RunConfig,
    gpu: GpuModel | None,
) -> OperatorDetails:
    if representative is None:
        return OperatorDetails()
    trace, rank = next(
        (one, rank) for one in traces for rank in one.ranks if rank.rank_index == representative.rank_index
    )
    return measure_operators(trace, rank, timeline, attribution, representative, config, gpu)


def _names_of(traces: Sequence[Trace], representative: Representative | None) -> Mapping[int, str]:
    """Kernel names of the chosen rank's trace: ids mean something within one trace only."""
    of_rank = (
        one.names
        for one in traces
        if representative and any(rank.rank_index == representative.rank_index for rank in one.ranks)
    )
    return next(of_rank, {})


def _check_expression(step_range: str | None) -> None:
    try:
        re.compile(step_range or "")
    except re.error as error:
        raise UsageError(f"--step-range: expected a regular expression, found {step_range!r} ({error})") from error


def check_release(bridge_version: str | None) -> None:
    """Raises UsageError where the option is no release."""
    if bridge_version is not None and not re.fullmatch(r"main|\d+\.\d+(\.\d+)?", bridge_version):
        raise UsageError(f"--bridge-version: expected a release like 0.6.2, or main, found {bridge_version!r}")
