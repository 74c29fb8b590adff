"""Everything that is measured of the representative step in detail: rows for the report, and facts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from three_walls.facts.attention_passes import find_passes
from three_walls.facts.copy_bandwidth import copy_facts, measure_copies
from three_walls.facts.cuda_graphs import measure_graphs
from three_walls.facts.driver_memory import measure_driver_memory
from three_walls.facts.efficiency.gemm_shapes import measure_gemm_shapes
from three_walls.facts.efficiency.model_flops import measure_utilization
from three_walls.facts.efficiency.roles import measure_roles
from three_walls.facts.memory_estimate import estimate_memory
from three_walls.facts.moe.ledger import measure_moe_layers
from three_walls.facts.overlap_slowdown import measure_overlap_slowdown, overlap_slowdown_fact
from three_walls.facts.recompute.replays import measure_recompute, recompute_facts, sum_replays_by_layer
from three_walls.facts.registry import by_name
from three_walls.facts.step_view import RunView, StepView
from three_walls.facts.token_exchange import EP_LINK, link_bytes_per_s
from three_walls.facts.unfused_ops import measure_unfused_ops
from three_walls.model.fact import FactValue
from three_walls.model.report import (
    CopyBandwidth,
    Efficiency,
    GemmShape,
    GraphCoverage,
    MoePart,
    OverlapSlowdown,
    RecomputedLayer,
    ReportWarning,
)
from three_walls.timeline.operators import read_operators


@dataclass(frozen=True, slots=True)
class Details:
    """``facts``: each with its reason where missing."""

    facts: Mapping[str, tuple[FactValue, str | None]] = field(default_factory=dict)
    moe_layers: tuple[MoePart, ...] = ()
    overlap_slowdown: tuple[OverlapSlowdown, ...] = ()
    recompute_layers: tuple[RecomputedLayer, ...] = ()
    graph_coverage: GraphCoverage | None = None
    efficiency: tuple[Efficiency, ...] = ()
    gemm_shapes: tuple[GemmShape, ...] = ()
    copies: tuple[CopyBandwidth, ...] = ()
    warnings: tuple[ReportWarning, ...] = ()


def measure_details(
    step: StepView | None, run: RunView, allocate: re.Pattern[str], log: Sequence[int | None]
) -> Details:
    """``allocate``: names of allocator calls. ``log``: unprofiled step ns, peak memory bytes, iterations before it."""
    unprofiled_step_ns, log_peak_memory_bytes, log_memory_iterations = log
    held = run.device.memory_bytes if run.device else None
    facts = estimate_memory(run.config, held, log_peak_memory_bytes, log_memory_iterations)
    facts |= by_name(measure_utilization(run, step.step_ns if step else None, unprofiled_step_ns))
    if step is None:
        return Details(facts)
    attention = find_passes(step.operations, step.window)
    recompute = measure_recompute(step, attention)
    ledger = measure_moe_layers(step, attention, recompute)
    slowdown = measure_overlap_slowdown(step.operations, step.window, step.names)
    graphs = measure_graphs(step)
    roles = measure_roles(step, ledger.rows)
    operators = read_operators(step.trace, step.rank.process, step.operations)
    shapes = measure_gemm_shapes(step, operators)
    for measured in (
        recompute_facts(recompute, attention),
        ledger.facts,
        graphs.facts,
        roles.facts,
        shapes.facts,
        measure_unfused_ops(step, operators),
    ):
        facts |= by_name(measured)
    facts |= by_name({EP_LINK: link_bytes_per_s(run)})
    facts["overlap_slowdown_ns"] = overlap_slowdown_fact(slowdown)
    facts |= copy_facts(step.operations, step.window, run.gpu)
    facts |= measure_driver_memory(step.trace, step.rank, step.kept_steps, allocate)
    return Details(
        facts,
        ledger.rows,
        slowdown,
        sum_replays_by_layer(recompute, attention, run.config, run.layout.microbatches),
        graphs.rows,
        roles.rows,
        shapes.rows,
        measure_copies(step.operations, step.window, run.gpu),
        ledger.warnings,
    )
