"""Launch-starved time inside the optimizer phase: what a graph of the optimizer's kernels could take away."""

from __future__ import annotations

import polars as pl

from three_walls.attribution.ownership import LABELS
from three_walls.model.fact import FactValue
from three_walls.timeline.intervals import mask_of
from three_walls.timeline.steps import MODEL_WORK

_STARVED = mask_of(["launch_starved"], LABELS)


def measure_optimizer_starved(operations: pl.DataFrame, slices: pl.DataFrame) -> tuple[FactValue, str | None]:
    """(ns, None), or (None, why there is no phase to measure).

    ``operations`` and ``slices``: of one rank's step. The phase is from the first to the last optimizer kernel after
    the step's last model work, so the products of Muon's update begin it anew.
    """
    worked = operations.filter(pl.col("category").is_in(list(MODEL_WORK)))["end_ns"].max()
    kernels = operations.filter(pl.col("category") == "optimizer")
    after = kernels if worked is None else kernels.filter(pl.col("start_ns") >= worked)
    if after.height == 0:
        return None, "no optimizer kernel follows the step's last GEMM"
    begin, end = after["start_ns"].min(), after["end_ns"].max()
    inside = pl.min_horizontal("end_ns", pl.lit(end)) - pl.max_horizontal("start_ns", pl.lit(begin))
    starved = slices.filter((pl.col("active") & _STARVED) != 0).select(ns=inside.clip(lower_bound=0))
    return int(starved["ns"].sum()), None
