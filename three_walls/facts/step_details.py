"""What is measured of the representative step alone: recompute, its MoE layers, the price of overlap, its graphs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from three_walls.attribution.attribution import Attribution
from three_walls.facts.attention_passes import RECOMPUTE, count_phases, find_passes
from three_walls.facts.graph_coverage import measure_graph_coverage
from three_walls.facts.moe_ledger import MoeLedger, build_moe_ledger
from three_walls.facts.optimizer_starved import measure_optimizer_starved
from three_walls.facts.overlap_slowdown import measure_overlap_slowdown, overlap_slowdown_fact
from three_walls.facts.recompute import SELECTIVE, measure_recompute
from three_walls.facts.recompute_layers import recompute_layers
from three_walls.facts.representative import Representative
from three_walls.facts.step_view import RunView
from three_walls.inputs.config.parallel_layout import read_layout
from three_walls.model.config import RunConfig
from three_walls.model.fact import FactValue
from three_walls.model.report import GraphCoverage, OverlapSlowdown, RecomputedLayer, ReportWarning
from three_walls.tables.hardware import GpuModel
from three_walls.timeline.timeline import Timeline


@dataclass(frozen=True, slots=True)
class StepDetails:
    """``facts``: those of the glossary that follow from the three, each with its reason where missing."""

    ledger: MoeLedger = field(default_factory=MoeLedger)
    overlap_slowdown: tuple[OverlapSlowdown, ...] = ()
    recompute_layers: tuple[RecomputedLayer, ...] = ()
    graph_coverage: GraphCoverage | None = None
    warnings: tuple[ReportWarning, ...] = ()
    facts: Mapping[str, tuple[FactValue, str | None]] = field(default_factory=dict)


def measure_step_details(
    timeline: Timeline,
    attribution: Attribution,
    representative: Representative | None,
    names: Mapping[int, str],
    config: RunConfig,
    gpu: GpuModel | None,
    capabilities: Mapping[str, str],
) -> StepDetails:
    """``names``: texts by ``name_id`` in the trace of the chosen rank."""
    if representative is None:
        return StepDetails()
    start, end = (
        attribution.steps.filter(
            (pl.col("rank_index") == representative.rank_index) & (pl.col("step") == representative.step)
        )
        .select("start_ns", "end_ns")
        .row(0)
    )
    step = (int(start), int(end))
    mine = timeline.operations.filter(
        (pl.col("rank_index") == representative.rank_index)
        & (pl.col("start_ns") < step[1])
        & (pl.col("end_ns") > step[0])
    )
    passes = find_passes(mine, step)
    recompute = measure_recompute(mine, passes, representative, step, config)
    slices = attribution.slices.filter(
        (pl.col("rank_index") == representative.rank_index) & (pl.col("step") == representative.step)
    )
    run = RunView(config, read_layout(config), gpu)
    # Attention replayed alone exchanges no tokens: it stands between no two MoE layers.
    layered = passes.filter(pl.col("direction") != RECOMPUTE) if recompute.kind == SELECTIVE else passes
    ledger = build_moe_ledger(mine, slices, layered, recompute.replays, timeline.schedule_nodes, step, run)
    taxes = measure_overlap_slowdown(mine, step, names)
    return StepDetails(
        ledger,
        taxes,
        recompute_layers(recompute, passes, config, run.layout.microbatches),
        measure_graph_coverage(mine, step, capabilities),
        facts={
            "attention_forward_per_backward_ratio": _attention_ratio(passes),
            "recompute_ns": (recompute.ns, recompute.reason),
            "overlap_slowdown_ns": overlap_slowdown_fact(taxes),
            "optimizer_launch_starved_ns": measure_optimizer_starved(mine, slices),
            **ledger.facts(),
        },
        warnings=_warn_of_layers(ledger),
    )


def _warn_of_layers(ledger: MoeLedger) -> tuple[ReportWarning, ...]:
    if ledger.mismatch is None:
        return ()
    message = f"{ledger.mismatch}: the MoE layers are shown without their numbers; is this the run's config?"
    return (ReportWarning("moe-layers-mismatch", message),)


def _attention_ratio(passes: pl.DataFrame) -> tuple[FactValue, str | None]:
    forward, backward = count_phases(passes)
    return (forward / backward, None) if backward else (None, "no attention kernel of a backward pass was recorded")
