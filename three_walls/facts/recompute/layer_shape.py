"""The kernels of the compute stream in order, and what one forward layer looks like among them."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from three_walls.facts.attention_passes import BACKWARD, FORWARD, RECOMPUTE
from three_walls.model.buckets import GEMM_CATEGORIES

MAX_KERNELS_COMPARED = 256
"""Kernels compared before a pass of attention: more than any layer runs before its attention (about thirty)."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """A forward layer in numbers of kernels and GEMMs on its stream."""

    kernels_before: int
    """From the layer's first kernel to its attention."""
    gemms_after: int
    """GEMMs from attention to the end of the layer: median."""
    kernels_after_gemms: int
    """Kernels after the layer's last GEMM: median."""
    gemms_after_each: pl.DataFrame
    """``own_gemms`` per forward pass (``partner``) that another forward pass follows: the number of expert GEMMs
    varies."""


def number_kernels(kernels: pl.DataFrame, stream: int) -> pl.DataFrame:
    """Those of one rank's ``kernels`` that run on ``stream``, in order.

    Columns: place (from 0), start_ns, end_ns, name_id, is_gemm, gemms_before (GEMMs earlier in the step).
    """
    is_gemm = pl.col("category").is_in(list(GEMM_CATEGORIES))
    return (
        kernels.filter(pl.col("stream") == stream)
        .sort("start_ns", "end_ns")
        .select("start_ns", "end_ns", "name_id", is_gemm=is_gemm)
        .with_columns(
            place=pl.int_range(pl.len(), dtype=pl.Int64),
            gemms_before=pl.col("is_gemm").cast(pl.Int64).cum_sum() - pl.col("is_gemm").cast(pl.Int64),
        )
    )


def place_passes(kernels: pl.DataFrame, passes: pl.DataFrame) -> pl.DataFrame:
    """``passes`` with their ``place`` among ``kernels`` and ``gemms_before``; passes of other streams are dropped."""
    places = kernels.unique("start_ns", keep="first", maintain_order=True).select("start_ns", "place", "gemms_before")
    return passes.join(places, on="start_ns", how="inner", maintain_order="left")


def measure_layer_shape(kernels: pl.DataFrame, placed: pl.DataFrame) -> LayerShape | None:
    """What a forward layer runs; None where no two forward layers follow one another or none shows its start."""
    follows = (pl.col("direction") == FORWARD) & (pl.col("direction").shift(-1) == FORWARD)
    pairs = placed.with_columns(next_place=pl.col("place").shift(-1)).filter(follows)
    kernels_before = _common_kernels_before(kernels, placed)
    if pairs.is_empty() or kernels_before is None:
        return None
    layers = pairs.with_columns(end=pl.col("next_place") - kernels_before)
    last_gemm = kernels.filter("is_gemm").select(last="place").sort("last")
    counted = (
        layers.join(kernels.select(end="place", gemms_at_end="gemms_before"), on="end")
        .sort("end")
        .join_asof(last_gemm, left_on="end", right_on="last", strategy="backward", allow_exact_matches=False)
        .with_columns(
            own_gemms=pl.col("gemms_at_end") - pl.col("gemms_before"), rest=pl.col("end") - pl.col("last") - 1
        )
        .filter((pl.col("last") > pl.col("place")) & (pl.col("own_gemms") > 0))
    )
    if counted.is_empty():
        return None
    return LayerShape(
        kernels_before=kernels_before,
        gemms_after=_lower_median(counted["own_gemms"]),
        kernels_after_gemms=_lower_median(counted["rest"]),
        gemms_after_each=counted.select("partner", "own_gemms"),
    )


def _common_kernels_before(kernels: pl.DataFrame, placed: pl.DataFrame) -> int | None:
    """How many kernels before a replayed attention have the names of those before a forward layer's: median.

    Only replays that follow backward work are compared: one that follows another replay has a whole layer in common.
    """
    replays = placed.filter((pl.col("direction") == RECOMPUTE) & (pl.col("direction").shift(1) == BACKWARD))
    forward = placed.filter(pl.col("direction") == FORWARD)
    pairs = replays.join(forward.select("partner", forward_place="place"), on="partner")
    if pairs.is_empty():
        return None
    names = kernels.select("place", "name_id")
    compared = (
        pairs.select("place", "forward_place", back=pl.int_ranges(1, MAX_KERNELS_COMPARED + 1, dtype=pl.Int64))
        .explode("back")
        .with_columns(replay_at=pl.col("place") - pl.col("back"), forward_at=pl.col("forward_place") - pl.col("back"))
        .join(names.rename({"place": "replay_at", "name_id": "replay_name"}), on="replay_at", how="left")
        .join(names.rename({"place": "forward_at", "name_id": "forward_name"}), on="forward_at", how="left")
        .with_columns(is_same=(pl.col("replay_name") == pl.col("forward_name")).fill_null(value=False))
    )
    lengths = compared.group_by("place").agg(
        length=pl.col("back").filter(~pl.col("is_same")).min().fill_null(MAX_KERNELS_COMPARED + 1) - 1
    )["length"]
    median = _lower_median(lengths)
    return median if 0 < median < MAX_KERNELS_COMPARED else None


def _lower_median(numbers: pl.Series) -> int:
    return int(numbers.quantile(0.5, interpolation="lower") or 0)
