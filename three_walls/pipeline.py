"""The stages in order; the only module that knows them all."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from three_walls.advice.dialects import spell
from three_walls.advice.plan import make_plan
from three_walls.advice.rulebase import load_rules
from three_walls.advice.verdict import weigh
from three_walls.attribution.attribution import attribute
from three_walls.knowledge.hardware import find_gpu
from three_walls.knowledge.kernel_patterns import load_api_patterns, load_kernel_patterns, union_of
from three_walls.log.reader import read_logs
from three_walls.ranks.capture_start import without_affected
from three_walls.ranks.comparison import bring_together, compare_ranks
from three_walls.ranks.step_numbers import number_alike
from three_walls.resources import RULES_DIR
from three_walls.snapshot.facts import with_snapshot_facts
from three_walls.snapshot.summarize import read_memory_snapshot
from three_walls.timeline.timeline import build_timeline, wanted_ranges
from three_walls.trace.capabilities import common_capabilities
from three_walls.trace.reader import Trace, read_trace
from three_walls.trace.source import find_traces
from three_walls.trace.tables import WantedRanges
from three_walls.version import VERSION
from three_walls.vocabulary.errors import NothingToAnalyzeError, UsageError
from three_walls.vocabulary.report import Report
from three_walls.vocabulary.training_log import TrainingLog
from three_walls.walls.caveats import collect_caveats, warn_of_stragglers
from three_walls.walls.closeup import look_closer
from three_walls.walls.fact_sheet import collect_facts
from three_walls.walls.log_caveats import warn_of_log
from three_walls.walls.log_facts import join_log
from three_walls.walls.outliers import warn_of_outliers
from three_walls.walls.pipeline_bubble import measure_pipeline, pipeline_facts
from three_walls.walls.representative import Representative, choose_representative
from three_walls.walls.summary import (
    count_captured_steps,
    list_unclassified,
    summarize_budget,
    summarize_ranks,
    summarize_steps,
)

Progress = Callable[[str], None]
"""Told what is being done, in a few words, each time a stage begins."""


def _silent(_: str) -> None:
    return None


def analyze(
    trace: str | Path | Iterable[str | Path],
    *,
    step_range: str | None = None,
    bridge_version: str | None = None,
    rules: Path | None = None,
    allowed: Collection[str] = (),
    logs: str | Path | Iterable[str | Path] = (),
    memory_snapshot: Path | None = None,
    progress: Progress = _silent,
) -> Report:
    """Analyzes one run: an Nsight Systems export, several (one per rank), or a directory of them.

    ``step_range``: regular expression for the NVTX ranges that are steps, where the trace has no
    ``training_step_N``. ``bridge_version``: release the overrides are spelled for. ``rules``: a directory of more
    rules. ``allowed``: classes of rules (``vocabulary.rules.RULE_CLASSES``) whose edits may be planned besides
    execution-only ones. ``logs``: the run's training logs, files or directories of them.
    ``memory_snapshot``: a snapshot of PyTorch's allocator of one rank.

    Raises the errors of ``three_walls.vocabulary.errors``, each with one line for a person.
    """
    paths = find_traces(_as_paths(trace))
    _check_expression(step_range)
    _check_release(bridge_version)
    rule_base = load_rules(RULES_DIR, *([rules] if rules else []))
    kernel_patterns, api_patterns = load_kernel_patterns(), load_api_patterns()

    log = _read_logs(_as_paths(logs), progress)
    snapshot = read_memory_snapshot(memory_snapshot) if memory_snapshot else None
    traces = _read_all(paths, wanted_ranges(step_range), union_of(api_patterns, "graph_launch"), progress)
    with_kernels = [one for one in traces if one.ranks]
    ranks = tuple(rank for one in with_kernels for rank in one.ranks)
    config = with_kernels[0].config
    gpu = find_gpu(ranks[0].gpu.name, ranks[0].gpu.sm) if ranks[0].gpu else None
    capabilities = common_capabilities([one.capabilities for one in with_kernels])

    progress("classifying kernels, finding steps")
    timeline = build_timeline(with_kernels, kernel_patterns, union_of(api_patterns, "synchronize"), config, step_range)
    progress("putting the ranks on one clock")
    timeline = replace(timeline, steps=number_alike(timeline, with_kernels))
    encounters = bring_together(with_kernels, timeline, ranks, config)
    timeline = replace(timeline, steps=without_affected(timeline.steps, encounters.skewed))
    progress("attributing every nanosecond")
    attribution = attribute(timeline)
    comparison = compare_ranks(with_kernels, timeline, attribution, ranks, encounters)
    attribution = replace(attribution, transfer=comparison.transfer)
    rank_of = {rank.track: rank.rank for rank in ranks}
    phases = measure_pipeline(timeline, attribution, encounters, comparison, rank_of, config)
    chosen = choose_representative(attribution, rank_of)
    closeup = look_closer(timeline, attribution, chosen, _names_of(with_kernels, chosen), config, gpu, capabilities)
    measured = {**closeup.facts, **(pipeline_facts(phases, rank_of[chosen.track]) if chosen else {})}
    joined = join_log(log, config, chosen.step_ns if chosen else None, count_captured_steps(timeline))
    facts = collect_facts(timeline, attribution, chosen, ranks, config, gpu, capabilities, measured, joined.facts)
    facts = with_snapshot_facts(facts, snapshot)

    progress("judging rules")
    findings, plan = make_plan(rule_base, facts, allowed=allowed)
    edits = [edit for step in plan for edit in step.edits]
    return Report(
        tool_version=VERSION,
        inputs=tuple(one.input for one in traces),
        verdict=weigh(facts),
        step=summarize_steps(timeline, ranks),
        ranks=summarize_ranks(attribution, ranks),
        budget=summarize_budget(attribution, chosen) if chosen else (),
        budget_of=chosen.why if chosen else "no step could be kept",
        config=config,
        facts=facts,
        findings=tuple(findings),
        plan=plan,
        overrides=spell(edits, config, bridge_version or config.bridge_version),
        warnings=(
            *warn_of_stragglers(comparison.stragglers, facts),
            *collect_caveats(traces, timeline, facts, capabilities),
            *warn_of_log(log, joined, facts),
            *comparison.warnings,
            *closeup.warnings,
            *warn_of_outliers(attribution, rank_of),
        ),
        unclassified=list_unclassified(timeline, chosen) if chosen else (),
        capabilities=capabilities,
        stragglers=comparison.stragglers,
        waits=comparison.waits,
        alignment=comparison.alignment,
        moe_layers=closeup.ledger.parts,
        overlap_tax=closeup.overlap_tax,
        pipeline_phases=phases,
        log=joined.summary,
        memory_snapshot=snapshot,
        recompute_layers=closeup.recompute_layers,
        graph_coverage=closeup.graph_coverage,
    )


def _as_paths(given: str | Path | Iterable[str | Path]) -> list[Path]:
    return [Path(given)] if isinstance(given, str | Path) else [Path(one) for one in given]


def _read_logs(paths: Sequence[Path], progress: Progress) -> TrainingLog | None:
    if not paths:
        return None
    progress("reading training logs")
    return read_logs(paths)


def _names_of(traces: Sequence[Trace], chosen: Representative | None) -> Mapping[int, str]:
    """Kernel names of the chosen rank's trace: ids mean something within one trace only."""
    of_rank = (one.names for one in traces if chosen and any(rank.track == chosen.track for rank in one.ranks))
    return next(of_rank, {})


def _check_expression(step_range: str | None) -> None:
    try:
        re.compile(step_range or "")
    except re.error as error:
        raise UsageError(f"--step-range: expected a regular expression, found {step_range!r} ({error})") from error


def _check_release(bridge_version: str | None) -> None:
    if bridge_version is not None and not re.fullmatch(r"main|\d+\.\d+(\.\d+)?", bridge_version):
        raise UsageError(f"--bridge-version: expected a release like 0.6.2, or main, found {bridge_version!r}")


def _read_all(
    paths: Sequence[Path], ranges: WantedRanges, graph_launch: re.Pattern[str], progress: Progress
) -> list[Trace]:
    traces: list[Trace] = []
    tracks = 0
    for order, path in enumerate(paths, start=1):
        progress(f"reading {path.name} ({order} of {len(paths)})")
        traces.append(read_trace(path, order - 1, tracks, ranges, graph_launch))
        tracks += len(traces[-1].ranks)
    if not tracks:
        names = ", ".join(path.name for path in paths)
        raise NothingToAnalyzeError(
            f"{names}: expected CUDA kernels, found none; capture with: nsys profile -t cuda,nvtx ... "
            "(and check that the capture range covers training steps)"
        )
    return traces
