"""Efficiency against the limits of the machine: model work over time and peak, GEMMs, host copies, memory."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from three_walls.attribution.attribution import Attribution
from three_walls.facts.copy_bandwidth import copy_facts, measure_copies
from three_walls.facts.driver_memory import measure_driver_memory
from three_walls.facts.gemm_efficiency import (
    EXPERTS_ROLE,
    GEMMS_ROLE,
    count_executed,
    precision_of,
    tabulate,
)
from three_walls.facts.memory_estimate import estimate_memory
from three_walls.facts.model_flops import count_forward, step_flops
from three_walls.facts.model_shape import read_model_shape
from three_walls.facts.representative import Representative
from three_walls.inputs.config.parallel_layout import read_layout
from three_walls.inputs.nsys.identity import Rank
from three_walls.inputs.nsys.reader import Trace
from three_walls.model.config import RunConfig
from three_walls.model.fact import FactValue
from three_walls.model.report import CopyBandwidth, Efficiency, MoePart
from three_walls.model.units import NS_PER_S
from three_walls.tables.hardware import GpuModel
from three_walls.timeline.timeline import Timeline

Known = tuple[FactValue, str | None]


@dataclass(frozen=True, slots=True)
class MeasuredEfficiency:
    """Rows for the report, and ``facts``: those of the glossary, each with its reason where missing."""

    roles: tuple[Efficiency, ...] = ()
    copies: tuple[CopyBandwidth, ...] = ()
    facts: Mapping[str, Known] = field(default_factory=dict)


def measure_efficiency(
    traces: Sequence[Trace],
    timeline: Timeline,
    attribution: Attribution,
    representative: Representative | None,
    parts: Sequence[MoePart],
    config: RunConfig,
    gpu: GpuModel | None,
    allocate: re.Pattern[str],
    unprofiled_step_ns: int | None = None,
    log_peak_memory_bytes: int | None = None,
    log_memory_iterations: int | None = None,
) -> MeasuredEfficiency:
    """``parts``: the MoE ledger of the chosen step. ``allocate``: names of allocator calls.

    ``unprofiled_step_ns`` and the memory come from the training log, None where there is none.
    """
    seen = {rank.gpu for trace in traces for rank in trace.ranks}
    only = seen.pop() if len(seen) == 1 else None
    held = only.memory_bytes if only else None
    facts = estimate_memory(config, held, log_peak_memory_bytes, log_memory_iterations)
    facts |= count_work(config)
    facts |= _utilization(facts, config, gpu, representative.step_ns if representative else None, unprofiled_step_ns)
    if representative is None:
        return MeasuredEfficiency(facts=facts)
    trace, rank = _trace_of(traces, representative.rank_index)
    roles, reason = _roles(attribution, representative, parts, config, gpu, rank)
    facts["gemm_efficiency_fraction"] = _fraction_of(roles, GEMMS_ROLE, reason)
    facts["expert_gemm_efficiency_fraction"] = _fraction_of(roles, EXPERTS_ROLE, reason)
    kept = timeline.steps.filter((pl.col("rank_index") == representative.rank_index) & pl.col("kept"))
    start, end = kept.filter(pl.col("step") == representative.step).select("start_ns", "end_ns").row(0)
    operations = timeline.operations.filter(pl.col("rank_index") == representative.rank_index)
    facts |= copy_facts(operations, (start, end), gpu)
    facts |= measure_driver_memory(trace, rank, kept, allocate)
    return MeasuredEfficiency(roles, measure_copies(operations, (start, end), gpu), facts)


def count_work(config: RunConfig) -> dict[str, Known]:
    """The model's operations per step: as defined here, as Megatron's log counts them, and per GPU."""
    names = ("model_flops_per_step", "megatron_flops_per_step", "flops_per_gpu_step")
    read = read_model_shape(config)
    shape = read.value
    batch = config.whole_number("global_batch_size")
    if shape is None or not batch:
        return dict.fromkeys(names, (None, read.missing_reason or "the config does not say global_batch_size"))
    forward = count_forward(shape)
    total = step_flops(forward.total, batch * shape.sequence)
    world = read_layout(config).world
    return {
        names[0]: (total, None),
        names[1]: (step_flops(forward.as_logged, batch * shape.sequence), None),
        names[2]: (total // world, None) if world else (None, "neither WORLD_SIZE nor a log or config says it"),
    }


def _utilization(
    work: Mapping[str, Known],
    config: RunConfig,
    gpu: GpuModel | None,
    traced_step_ns: int | None,
    unprofiled_step_ns: int | None,
) -> dict[str, Known]:
    """MFU by the log's step and by the traced one, against the peak at the run's precision."""
    peak, reason = _peak(config, gpu)
    flops, no_flops = work["flops_per_gpu_step"]

    def over(step_ns: int | None, no_step: str) -> Known:
        if not isinstance(flops, int) or peak is None:
            return None, no_flops or reason
        return (flops * NS_PER_S / step_ns / peak, None) if step_ns else (None, no_step)

    return {
        "peak_flops_per_s": (peak, reason),
        "mfu_fraction": over(unprofiled_step_ns, "no training log gave the time of unprofiled steps"),
        "mfu_traced_fraction": over(traced_step_ns, "no step could be kept"),
    }


def _peak(config: RunConfig, gpu: GpuModel | None) -> tuple[int | None, str | None]:
    precision, reason = precision_of(config)
    if precision is None:
        return None, reason
    if gpu is None:
        return None, "the GPU is not in tables/hardware.yaml"
    peak = gpu.peak_flops(precision)
    return peak, None if peak else f"no peak in {precision} is known of {gpu.family}"


def _roles(
    attribution: Attribution,
    representative: Representative,
    parts: Sequence[MoePart],
    config: RunConfig,
    gpu: GpuModel | None,
    rank: Rank,
) -> tuple[tuple[Efficiency, ...], str | None]:
    read, complete = read_model_shape(config), read_layout(config).complete()
    shape, layout = read.value, complete.value
    if shape is None or layout is None:
        return (), read.missing_reason or complete.missing_reason
    if layout.pipeline > 1 and rank.rank_source != "environment":
        return (), "the rank, and with it the pipeline stage, is not known"
    executed, reason = count_executed(shape, layout, config, rank.rank)
    if executed is None:
        return (), reason
    mine = (pl.col("rank_index") == representative.rank_index) & (pl.col("step") == representative.step)
    budget = {str(name): int(ns) for name, ns in attribution.budget.filter(mine).select("bucket", "ns").rows()}
    return tabulate(executed, budget, parts, config, gpu), None


def _fraction_of(roles: Sequence[Efficiency], role: str, reason: str | None) -> Known:
    found = next((row for row in roles if row.role == role), None)
    if found is None:
        return None, reason or f"the time of {role} is not known"
    return (found.fraction, None) if found.fraction is not None else (None, "the GPU's peak is not known")


def _trace_of(traces: Sequence[Trace], rank_index: int) -> tuple[Trace, Rank]:
    return next((trace, rank) for trace in traces for rank in trace.ranks if rank.rank_index == rank_index)
