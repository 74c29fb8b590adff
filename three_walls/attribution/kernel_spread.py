"""How much longer kernels that repeat take on average than their fastest call, per rank.

A GPU that runs nothing else takes the same time for the same kernel. One that another process uses too is switched
between the two: some calls run undisturbed, others wait for a slice of the other process in the middle.

The same kernel means the same name and grid on the same stream, between the same kernels: grids alone do not identify
the work, because persistent kernels launch as many blocks as the GPU has multiprocessors. Kernels whose work follows
the routing of tokens whatever their grid are left out: grouped GEMMs and permutation.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import polars as pl

from three_walls.model.buckets import COMPUTE_CATEGORIES
from three_walls.tables.thresholds import default_rank_thresholds
from three_walls.timeline.intervals import DURATION
from three_walls.timeline.steps import STEP

ROUTED_CATEGORIES = ("grouped_gemm", "permute")
"""Compute whose work follows the routing of tokens, also where name and grid are the same."""

_KIND = ("name_id", "grid_x", "grid_y", "grid_z", "stream", "name_before", "name_after")


class GpuSuspicion(StrEnum):
    """Why a GPU computes slowly, as in ``Straggler.likely_reason``."""

    SHARED_GPU = "shared_gpu"
    LOWER_CLOCKS = "lower_clocks"
    NONE = ""


def suspect_gpu(spread: float | None, peers_spread: float | None) -> GpuSuspicion:
    """What the spread of a rank's repeated kernels suggests, should it be its GPU that is slow.

    ``spread`` and ``peers_spread`` (median): see measure_kernel_spread; None where too few kernels repeat.
    """
    if spread is None or peers_spread is None:
        return GpuSuspicion.NONE
    ratio, thresholds = spread / peers_spread, default_rank_thresholds()
    if ratio >= thresholds.shared_gpu_spread_ratio:
        return GpuSuspicion.SHARED_GPU
    return GpuSuspicion.LOWER_CLOCKS if ratio <= thresholds.even_spread_ratio else GpuSuspicion.NONE


def measure_kernel_spread(operations: pl.DataFrame, steps: pl.DataFrame) -> Mapping[int, float]:
    """The spread of each rank's repeated kernels, by rank index: the median of its kept steps; at least 1.

    Ranks without enough repeated kernels are left out.
    """
    return take_median_spread(measure_spread_of_steps(operations, steps))


def take_median_spread(spreads: pl.DataFrame) -> Mapping[int, float]:
    """The lower median of each rank's ``spreads`` (measure_spread_of_steps), by rank index."""
    medians = spreads.group_by("rank_index").agg(pl.col("spread").quantile(0.5, interpolation="lower"))
    return dict(medians.sort("rank_index").rows())


def measure_spread_of_steps(operations: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Mean over fastest call of the kernels that repeat within a kept step: rank_index, step, spread.

    Half of the time of the repeated kernels is in kernels that spread more than that. Steps without enough repeated
    kernels are left out.
    """
    thresholds = default_rank_thresholds()
    calls = list_calls(operations, steps)
    compute_ns = calls.group_by(STEP).agg(compute_ns=pl.col("ns").sum())
    kinds = (
        calls.filter(
            ~pl.col("category").is_in(list(ROUTED_CATEGORIES)) & pl.all_horizontal(pl.col(_KIND).is_not_null())
        )
        .group_by(*STEP, *_KIND)
        .agg(calls=pl.len(), total_ns=pl.col("ns").sum(), mean_ns=pl.col("ns").mean(), fastest_ns=pl.col("ns").min())
        .filter(
            (pl.col("calls") >= thresholds.minimum_repeated_calls)
            & (pl.col("fastest_ns") > 0)
            & (pl.col("mean_ns") >= thresholds.minimum_repeated_kernel_ms * 1e6)
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
        .filter(pl.col("repeated_ns") >= thresholds.minimum_repeated_fraction * pl.col("compute_ns"))
        .select(*STEP, "spread")
    )


def list_calls(operations: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Compute kernels that start in a kept step: rank_index, step, category, ns, and the columns of _KIND."""
    windows = steps.filter("kept").select("rank_index", "step", begin_ns="start_ns", stop_ns="end_ns")
    return (
        operations.filter((pl.col("kind") == "kernel") & pl.col("category").is_in(list(COMPUTE_CATEGORIES)))
        .sort("rank_index", "stream", "start_ns", "end_ns")
        .with_columns(
            name_before=pl.col("name_id").shift(1).over("rank_index", "stream").fill_null(-1),
            name_after=pl.col("name_id").shift(-1).over("rank_index", "stream").fill_null(-1),
            ns=DURATION,
        )
        .sort("start_ns")
        .join_asof(
            windows.sort("begin_ns"), left_on="start_ns", right_on="begin_ns", by="rank_index", check_sortedness=False
        )
        .filter(pl.col("start_ns") < pl.col("stop_ns"))
        .select("rank_index", "step", "category", "ns", *_KIND)
    )
