"""Why the time went, as report.json holds it: stragglers, waits, layers, overlap, pipeline, recompute, graphs."""

from __future__ import annotations

from typing import Any

from three_walls.model.report import (
    Alignment,
    GraphCoverage,
    MoePart,
    OverlapSlowdown,
    PipelinePhase,
    RankReport,
    RecomputedLayer,
    Report,
    Straggler,
    Wait,
)

Json = dict[str, Any]


def diagnosis_as_json(report: Report) -> Json:
    """Top-level fields since version 1.1, in the order of the contract."""
    return {
        "stragglers": [_straggler(one) for one in report.stragglers],
        "waits": [_wait(one) for one in report.waits],
        "alignment": None if report.alignment is None else _alignment(report.alignment),
        "moe_layers": [_moe_part(one) for one in report.moe_layers],
        "overlap_slowdown": [_overlap_slowdown(one) for one in report.overlap_slowdown],
        "pipeline": [_pipeline_phase(one) for one in report.pipeline_phases],
        "recompute_layers": [_recomputed_layer(one) for one in report.recompute_layers],
        "graph_coverage": None if report.graph_coverage is None else _graph_coverage(report.graph_coverage),
    }


def idle_causes_as_json(rank: RankReport) -> list[Json]:
    return [{"cause": one.cause, "ns": one.ns, "detail": one.detail} for one in rank.gap_causes]


def _straggler(one: Straggler) -> Json:
    return {"rank": one.rank, "late_ns": one.late_ns, "cause": one.cause, "evidence": one.evidence}


def _wait(one: Wait) -> Json:
    return {
        "class": one.communication_class,
        "rank": one.rank,
        "wait_ns": one.wait_ns,
        "transfer_ns": one.transfer_ns,
        "awaited_rank": one.awaited_rank,
        "resolved": one.resolved,
        "note": one.note,
    }


def _alignment(alignment: Alignment) -> Json:
    return {
        "method": alignment.method,
        "residual_ns_p50": alignment.residual_ns_p50,
        "residual_ns_p95": alignment.residual_ns_p95,
    }


def _moe_part(part: MoePart) -> Json:
    return {
        "layer": part.layer,
        "direction": part.direction,
        "part": part.part,
        "ns": part.ns,
        "exposed_ns": part.exposed_ns,
        "calls": part.calls,
        "bytes_moved": part.bytes_moved,
        "bytes_per_s": part.bytes_per_s,
        "limit_bytes_per_s": part.limit_bytes_per_s,
    }


def _pipeline_phase(one: PipelinePhase) -> Json:
    return {
        "rank": one.rank,
        "stage": one.stage,
        "phase": one.phase,
        "ns": one.ns,
        "p2p_exposed_ns": one.p2p_exposed_ns,
        "bubble_ns": one.bubble_ns,
        "ep_exposed_ns": one.ep_exposed_ns,
        "idle_ns": one.idle_ns,
        "note": one.note,
    }


def _overlap_slowdown(one: OverlapSlowdown) -> Json:
    return {
        "kernel": one.kernel,
        "grid": one.grid,
        "calls_alone": one.calls_alone,
        "concurrent_calls": one.concurrent_calls,
        "alone_ns": one.alone_ns,
        "concurrent_ns": one.concurrent_ns,
        "slowdown_ns": one.slowdown_ns,
    }


def _recomputed_layer(one: RecomputedLayer) -> Json:
    return {"layer": one.layer, "kind": one.kind, "ns": one.ns, "calls": one.calls}


def _graph_coverage(coverage: GraphCoverage) -> Json:
    return {
        "kernels_inside": coverage.kernels_inside,
        "kernels_outside": coverage.kernels_outside,
        "whole_graphs": coverage.whole_graphs,
        "fraction": coverage.fraction,
        "reason": coverage.reason,
        "outside": [{"category": one.category, "calls": one.calls, "host_ns": one.host_ns} for one in coverage.outside],
    }
