"""How much longer kernels that repeat take on average than their fastest call, per rank.

A GPU that runs nothing else takes the same time for the same kernel. One that another process uses too is switched
between the two: some calls run undisturbed, others wait for a slice of the other process in the middle.

The same kernel means the same name and grid on the same stream, between the same kernels: grids alone do not identify
the work, because persistent kernels launch as many blocks as the GPU has multiprocessors. Kernels whose work follows
the routing of tokens whatever their grid are left out: grouped GEMMs and permutation.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from enum import StrEnum

import polars as pl

from three_walls.step import attribution_thresholds
from three_walls.step.find_steps import STEP
from three_walls.step.intervals import DURATION, find_window
from three_walls.step.step_tables import KernelCalls, Operations, Steps, StepSpreads
from three_walls.tables.buckets import COMPUTE_CATEGORIES

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
    if ratio >= attribution_thresholds.SHARED_GPU_SPREAD_RATIO:
        return GpuSuspicion.SHARED_GPU
    return GpuSuspicion.LOWER_CLOCKS if ratio <= attribution_thresholds.EVEN_SPREAD_RATIO else GpuSuspicion.NONE


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
            (pl.col("calls") >= attribution_thresholds.MINIMUM_REPEATED_CALLS)
            & (pl.col("fastest_ns") > 0)
            & (pl.col("mean_ns") >= attribution_thresholds.MINIMUM_REPEATED_KERNEL_NS)
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
        .filter(pl.col("repeated_ns") >= attribution_thresholds.MINIMUM_REPEATED_FRACTION * pl.col("compute_ns"))
        .select(*STEP, "spread")
    )


def list_calls(operations: Operations, steps: Steps) -> KernelCalls:
    """Compute kernels that start in a kept step."""
    kept = steps.filter("kept")
    stored = [name for name in _KIND if name in operations.columns]
    kernels = operations.select("rank_index", "kind", "category", "start_ns", "end_ns", *stored).filter(
        (pl.col("kind") == "kernel") & pl.col("category").is_in(list(COMPUTE_CATEGORIES))
    )
    return (
        kernels.select(
            "rank_index",
            kept["step"].gather(find_window(kernels, kept, ["rank_index"])),
            "category",
            *stored,
            name_before=pl.col("name_id").shift(1).over("rank_index", "stream").fill_null(-1),
            name_after=pl.col("name_id").shift(-1).over("rank_index", "stream").fill_null(-1),
            ns=DURATION,
        )
        .drop_nulls("step")
        .select("rank_index", "step", "category", "ns", *_KIND)
    )
