"""Ranks that compute the same kernels more slowly than their peers, and GPUs that other processes seem to use.

Two ranks that are equally slow hide each other from a comparison of arrivals: each of them arrives with the other, so
neither is late after the second-to-last rank. Their kernels show them, and each is then compared with the ranks that
are not slow.

A GPU that runs nothing else takes the same time for the same kernel. One that another process uses too is switched
between the two: some calls run undisturbed, others wait for a slice of the other process in the middle. So the spread
of kernels that repeat is measured: how much longer they take on average than their fastest call. There, the same kernel
means the same name and grid on the same stream, between the same kernels: grids alone do not identify the work, because
persistent kernels launch as many blocks as the GPU has multiprocessors. Kernels whose work follows the routing of
tokens whatever their grid are left out: grouped GEMMs and permutation.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import polars as pl

from three_walls.step.build_timeline import Timeline
from three_walls.step.find_steps import STEP
from three_walls.step.intervals import DURATION, find_window
from three_walls.step.ranks.rank_groups import Pipeline
from three_walls.step.step_tables import (
    Arrivals,
    ComputeTimes,
    KernelCalls,
    KernelNames,
    Operations,
    PacedKernels,
    Paces,
    Steps,
    StepSpreads,
)
from three_walls.tables.buckets import COMPUTE_CATEGORIES
from three_walls.trace.read_trace import Trace

MINIMUM_REPEATED_CALLS = 4
"""Calls of a kernel in a step from which it counts as repeated. A mean over its fastest call says little of a kernel
that runs once or twice; layers and micro-batches repeat most."""
MINIMUM_REPEATED_KERNEL_NS = 20_000
"""Kernels that take less on average do not count as repeated: those of a few microseconds vary by a fifth on a GPU that
runs nothing else."""
MINIMUM_REPEATED_FRACTION = 0.2
"""Of the compute: with less of it in kernels that repeat, a few of them decide, and their spread is not known. In
Megatron's steps on H200s they are a third to nine tenths of it."""
SHARED_GPU_SPREAD_RATIO = 1.25
"""A slow rank's spread of repeated kernels to its peers': from here on another process is likely on its GPU. Repeated
kernels take 1.00 to 1.03 times their fastest call on the healthy ranks of 17 captures on H200s, and 1.9 to 2.0 times on
a GPU on which another process ran matrix products; a process that takes a fifth of the GPU stretches them by a
quarter."""
EVEN_SPREAD_RATIO = 1.1
"""The same: up to here all kernels are slower alike, as with lower clocks. At a lower clock every call is slower by the
same factor, so that the spread stays that of the peers: those of one run differ by no more than 0.02."""
MINIMUM_SLOW_KERNELS_RATIO = 1.1
"""Time for the same kernels over that of the usual rank: a rank above it is slow. The same kernels take 0.99 to 1.01
times as long on each of the healthy H200s of three four-rank runs as on the median one, and 1.6 times (mean 2.07) on a
GPU that another process used too."""

ROUTED_CATEGORIES = ("grouped_gemm", "permute")
"""Compute whose work follows the routing of tokens, also where name and grid are the same."""

_KIND = ("name_id", "grid_x", "grid_y", "grid_z", "stream", "name_before", "name_after")


class GpuSuspicion(StrEnum):
    """Why a GPU computes slowly, as in ``Straggler.likely_reason``."""

    SHARED_GPU = "shared_gpu"
    LOWER_CLOCKS = "lower_clocks"
    NONE = ""


class PeerMedians:
    """The median of all values but one, from values sorted once."""

    def __init__(self, values: Iterable[float]) -> None:
        self._sorted = sorted(values)

    def without(self, value: float | None) -> float | None:
        """The median of the others; of all where ``value`` is None. None without others."""
        skipped = len(self._sorted) if value is None else bisect_left(self._sorted, value)
        count = len(self._sorted) - (value is not None)
        if count < 1:
            return None
        middle = [self._sorted[place + (place >= skipped)] for place in ((count - 1) // 2, count // 2)]
        return sum(middle) / 2


def suspect_gpu(spread: float | None, peers_spread: float | None) -> GpuSuspicion:
    """What the spread of a rank's repeated kernels suggests, should it be its GPU that is slow.

    ``spread`` and ``peers_spread`` (median): see measure_kernel_spread; None where too few kernels repeat.
    """
    if spread is None or peers_spread is None:
        return GpuSuspicion.NONE
    ratio = spread / peers_spread
    if ratio >= SHARED_GPU_SPREAD_RATIO:
        return GpuSuspicion.SHARED_GPU
    return GpuSuspicion.LOWER_CLOCKS if ratio <= EVEN_SPREAD_RATIO else GpuSuspicion.NONE


def measure_kernel_spread(spreads: StepSpreads) -> Mapping[int, float]:
    """Mean over fastest call of the kernels that repeat within a step, by rank index; at least 1.

    The median of the kept steps counts.
    """
    medians = spreads.group_by("rank_index").agg(pl.col("spread").quantile(0.5, interpolation="lower"))
    return dict(medians.sort("rank_index").rows())


def measure_step_spreads(operations: Operations, steps: Steps) -> StepSpreads:
    """The spread of the repeated kernels of each kept step.

    Steps without enough repeated kernels are left out.
    """
    calls = list_calls(operations, steps)
    compute_ns = calls.group_by(STEP).agg(compute_ns=pl.col("ns").sum())
    kinds = (
        calls.filter(
            ~pl.col("category").is_in(list(ROUTED_CATEGORIES)) & pl.all_horizontal(pl.col(_KIND).is_not_null())
        )
        .group_by(*STEP, *_KIND)
        .agg(calls=pl.len(), total_ns=pl.col("ns").sum(), mean_ns=pl.col("ns").mean(), fastest_ns=pl.col("ns").min())
        .filter(
            (pl.col("calls") >= MINIMUM_REPEATED_CALLS)
            & (pl.col("fastest_ns") > 0)
            & (pl.col("mean_ns") >= MINIMUM_REPEATED_KERNEL_NS)
        )
        .with_columns(spread=pl.col("mean_ns") / pl.col("fastest_ns"))
        .sort(*STEP, "spread")
        .with_columns(below_ns=pl.col("total_ns").cum_sum().over(STEP), repeated_ns=pl.col("total_ns").sum().over(STEP))
    )
    return (
        kinds.filter(2 * pl.col("below_ns") >= pl.col("repeated_ns"))
        .group_by(STEP)
        .agg(pl.col("spread").min(), pl.col("repeated_ns").first())
        .join(compute_ns, on=STEP)
        .filter(pl.col("repeated_ns") >= MINIMUM_REPEATED_FRACTION * pl.col("compute_ns"))
        .select(*STEP, "spread")
    )


def list_calls(operations: Operations, steps: Steps) -> KernelCalls:
    """Compute kernels that start in a kept step."""
    kept_steps = steps.filter("kept")
    kind_columns = [name for name in _KIND if name in operations.columns]
    kernels = operations.select("rank_index", "kind", "category", "start_ns", "end_ns", *kind_columns).filter(
        (pl.col("kind") == "kernel") & pl.col("category").is_in(list(COMPUTE_CATEGORIES))
    )
    return (
        kernels.select(
            "rank_index",
            kept_steps["step"].gather(find_window(kernels, kept_steps, ["rank_index"])),
            "category",
            *kind_columns,
            name_before=pl.col("name_id").shift(1).over("rank_index", "stream").fill_null(-1),
            name_after=pl.col("name_id").shift(-1).over("rank_index", "stream").fill_null(-1),
            ns=DURATION,
        )
        .drop_nulls("step")
        .select("rank_index", "step", "category", "ns", *_KIND)
    )


LEAST_RANKS = 4
"""Of a stage: of three, two slow ones would be the usual pace."""

_KERNEL = ("stage", "kernel", "grid_x", "grid_y", "grid_z")


def find_slow_ranks(paces: Paces) -> Mapping[int, float]:
    """Ranks that take much longer than the others for the same kernels, each with its pace over the usual one.

    They are at most half of the ranks of their pipeline stage: the pace of the others is taken to be the usual one.
    """
    slow = (
        paces.with_columns(ratio=pl.col("pace") / _lower_median("pace").over("stage"))
        .filter(pl.col("ratio") >= MINIMUM_SLOW_KERNELS_RATIO)
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
        .filter((pl.col("calls") >= MINIMUM_REPEATED_CALLS) & (pl.col("ns") >= MINIMUM_REPEATED_KERNEL_NS))
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
        .filter(pl.col("compared_ns") >= MINIMUM_REPEATED_FRACTION * pl.col("compute_ns"))
        .select("rank_index", "stage", pace=pl.col("compared_ns") / pl.col("usual_ns"))
        .sort("rank_index")
    )


def _lower_median(column: str) -> pl.Expr:
    return pl.col(column).quantile(0.5, interpolation="lower")


def name_kernels(traces: Sequence[Trace]) -> KernelNames:
    """The names of all kernels."""
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
