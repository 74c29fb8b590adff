"""What the run reaches of the machine's limits, as report.json holds it."""

from __future__ import annotations

from typing import Any

from three_walls.model.report import CopyBandwidth, Efficiency, GemmShape, Report

Json = dict[str, Any]


def efficiency_as_json(report: Report) -> Json:
    """Top-level fields of efficiency, in the order of the contract."""
    return {
        "efficiency": [_efficiency(one) for one in report.efficiency],
        "gemm_shapes": [_gemm_shape(one) for one in report.gemm_shapes],
        "copies": [_copies(one) for one in report.copies],
    }


def _efficiency(one: Efficiency) -> Json:
    return {
        "role": one.role,
        "flops": one.flops,
        "ns": one.ns,
        "achieved_flops_per_s": one.achieved_flops_per_s,
        "peak_flops_per_s": one.peak_flops_per_s,
        "fraction": one.fraction,
        "note": one.note,
    }


def _gemm_shape(one: GemmShape) -> Json:
    return {
        "role": one.role,
        "direction": one.direction,
        "batch": one.batch,
        "m": list(one.m),
        "n": list(one.n),
        "k": list(one.k),
        "calls": one.calls,
        "flops": one.flops,
        "ns": one.ns,
        "achieved_flops_per_s": one.achieved_flops_per_s,
        "precision": one.precision,
        "peak_flops_per_s": one.peak_flops_per_s,
        "fraction": one.fraction,
        "kernel": one.kernel,
    }


def _copies(one: CopyBandwidth) -> Json:
    return {
        "class": one.copy_class,
        "calls": one.calls,
        "bytes_moved": one.bytes_moved,
        "ns": one.ns,
        "large_calls": one.large_calls,
        "bytes_per_s": one.bytes_per_s,
        "limit_bytes_per_s": one.limit_bytes_per_s,
    }
