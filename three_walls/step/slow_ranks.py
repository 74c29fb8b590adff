"""Ranks that compute the same kernels more slowly than their peers.

Two ranks that are equally slow hide each other from a comparison of arrivals: each of them arrives with the other, so
neither is late after the second-to-last rank. Their kernels show them, and each is then compared with the ranks that
are not slow.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from three_walls.step import attribution_thresholds
from three_walls.step.build_timeline import Timeline
from three_walls.step.find_steps import STEP
from three_walls.step.kernel_spread import ROUTED_CATEGORIES, list_calls
from three_walls.step.ranks.rank_groups import Pipeline
from three_walls.step.step_tables import Arrivals, ComputeTimes, KernelNames, PacedKernels, Paces
from three_walls.trace.read_trace import Trace

LEAST_RANKS = 4
"""Of a stage: of three, two slow ones would be the usual pace."""

_KERNEL = ("stage", "kernel", "grid_x", "grid_y", "grid_z")


def find_slow_ranks(paces: Paces) -> Mapping[int, float]:
    """Ranks that take much longer than the others for the same kernels, each with its pace over the usual one.

    They are at most half of the ranks of their pipeline stage: the pace of the others is taken to be the usual one.
    """
    slow = (
        paces.with_columns(ratio=pl.col("pace") / _lower_median("pace").over("stage"))
        .filter(pl.col("ratio") >= attribution_thresholds.MINIMUM_SLOW_KERNELS_RATIO)
        .select("rank_index", "ratio")
    )
    return dict(slow.sort("rank_index").rows())


@dataclass(frozen=True, slots=True)
class PacedCalls:
    """The compute kernels of kept steps, as far as ranks can be compared by them."""

    calls: PacedKernels
    compute: ComputeTimes
    """Of all kernels."""


def list_paced_calls(timeline: Timeline, traces: Sequence[Trace]) -> PacedCalls:
    """The calls of all ranks. ``traces``: for kernel names."""
    captures = pl.DataFrame(
        [(rank.rank_index, trace.capture_id) for trace in traces for rank in trace.ranks],
        schema={"rank_index": pl.Int64, "capture_id": pl.Int64},
        orient="row",
    )
    calls = list_calls(timeline.operations, timeline.steps)
    return PacedCalls(
        calls=calls.filter(~pl.col("category").is_in(list(ROUTED_CATEGORIES)))
        .join(captures, on="rank_index")
        .join(name_kernels(traces), on=["capture_id", "name_id"])
        .select(*STEP, *(name for name in _KERNEL if name != "stage"), "ns"),
        compute=calls.group_by(STEP).agg(compute_ns=pl.col("ns").sum()),
    )


def measure_paces(paced: PacedCalls, rank_indices: Sequence[int], pipeline: Pipeline | None) -> Paces:
    """How long the same kernels take, over what they take on the median rank of the stage.

    Only stages of four captured ranks or more. Ranks on which too little can be compared are left out.
    """
    places = pipeline.places if pipeline else {}
    stages = (
        pl.DataFrame(
            [(rank_index, places.get(rank_index, (0, 0))[0]) for rank_index in rank_indices],
            schema={"rank_index": pl.Int64, "stage": pl.Int64},
            orient="row",
        )
        .with_columns(ranks=pl.len().over("stage"))
        .filter(pl.col("ranks") >= LEAST_RANKS)
    )
    if stages.is_empty():
        return pl.DataFrame(schema={"rank_index": pl.Int64, "stage": pl.Int64, "pace": pl.Float64})
    compute_ns = paced.compute.group_by("rank_index").agg(pl.col("compute_ns").sum())
    kernels = (
        paced.calls.join(stages, on="rank_index")
        .group_by("rank_index", "ranks", *_KERNEL)
        # The median: the output layer's GEMM may have the name and grid of a layer's, on the last stage alone.
        .agg(calls=pl.len(), ns=pl.col("ns").median())
        .filter(
            (pl.col("calls") >= attribution_thresholds.MINIMUM_REPEATED_CALLS)
            & (pl.col("ns") >= attribution_thresholds.MINIMUM_REPEATED_KERNEL_NS)
        )
        .filter(pl.len().over(_KERNEL) == pl.col("ranks"))
        .with_columns(usual_ns=_lower_median("ns").over(_KERNEL))
    )
    return (
        kernels.group_by("rank_index", "stage")
        .agg(
            compared_ns=(pl.col("ns") * pl.col("calls")).sum(),
            usual_ns=(pl.col("usual_ns") * pl.col("calls")).sum(),
        )
        .join(compute_ns, on="rank_index")
        .filter(pl.col("compared_ns") >= attribution_thresholds.MINIMUM_REPEATED_FRACTION * pl.col("compute_ns"))
        .select("rank_index", "stage", pace=pl.col("compared_ns") / pl.col("usual_ns"))
        .sort("rank_index")
    )


def _lower_median(column: str) -> pl.Expr:
    return pl.col(column).quantile(0.5, interpolation="lower")


def name_kernels(traces: Sequence[Trace]) -> KernelNames:
    """Demangled names, which are comparable across captures: capture_id, name_id, kernel."""
    return pl.concat(
        pl.DataFrame(
            {"name_id": list(trace.names), "kernel": list(trace.names.values())},
            schema={"name_id": pl.Int64, "kernel": pl.String},
        ).with_columns(capture_id=pl.lit(trace.capture_id, dtype=pl.Int64))
        for trace in traces
    )


def leave_out(arrivals: Arrivals, ranks: Collection[int], clock_error_ns: int) -> Arrivals:
    """``arrivals`` (measure_arrivals) of the other ranks alone: who of these came last, and when the last two came."""
    arrival = pl.col("common_start_ns")
    return (
        arrivals.filter(~pl.col("rank_index").is_in(list(ranks)))
        .filter(pl.len().over("instance") > 1)
        .with_columns(
            latest_ns=arrival.max().over("instance"),
            second_ns=arrival.bottom_k(pl.len() - 1).max().over("instance"),
            last=pl.col("rank_index").get(arrival.fill_null(0).arg_max()).over("instance"),
        )
        .with_columns(
            last=pl.when(pl.col("resolved") & (pl.col("latest_ns") - pl.col("second_ns") > clock_error_ns)).then("last")
        )
    )
