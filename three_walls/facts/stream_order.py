"""The kernels of the stream that computes, numbered in order, and what one forward layer looks like among them."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from three_walls.facts.attention_passes import BACKWARD, FORWARD, RECOMPUTE

PRODUCTS = ("gemm", "grouped_gemm")

LONGEST_HEAD = 256
"""Kernels compared before a pass of attention: more than any layer runs before its attention (about thirty)."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """A forward layer in numbers of kernels and GEMMs on its stream."""

    kernels_before: int
    """From the layer's first kernel to its attention."""
    gemms_after: int
    """GEMMs from attention to the end of the layer: median."""
    kernels_after_gemms: int
    """Kernels after the layer's last product: median."""
    gemms_after_each: pl.DataFrame
    """``own_gemms`` of each forward pass (``partner``) that another forward pass follows: experts' products vary."""


def kernels_in_order(operations: pl.DataFrame, step: tuple[int, int], stream: int) -> pl.DataFrame:
    """Kernels of one stream of one rank that start in the step: place (from 0), start_ns, end_ns, name_id, is_gemm,
    gemms_before (products earlier in the step)."""
    is_gemm = pl.col("category").is_in(list(PRODUCTS))
    return (
        operations.filter(
            (pl.col("stream") == stream)
            & (pl.col("kind") == "kernel")
            & pl.col("start_ns").is_between(step[0], step[1], closed="left")
        )
        .sort("start_ns", "end_ns")
        .select("start_ns", "end_ns", "name_id", is_gemm=is_gemm)
        .with_columns(
            place=pl.int_range(pl.len(), dtype=pl.Int64),
            gemms_before=pl.col("is_gemm").cast(pl.Int64).cum_sum() - pl.col("is_gemm").cast(pl.Int64),
        )
    )


def place_passes(kernels: pl.DataFrame, passes: pl.DataFrame) -> pl.DataFrame:
    """``passes`` with ``place`` among the kernels and ``products`` before it; passes of other streams are left out."""
    at = kernels.unique("start_ns", keep="first", maintain_order=True).select(
        "start_ns", "place", products="gemms_before"
    )
    return passes.join(at, on="start_ns", how="inner", maintain_order="left")


def layer_shape(kernels: pl.DataFrame, placed: pl.DataFrame) -> LayerShape | None:
    """What a forward layer runs; None where no two forward layers follow one another or none shows its start."""
    follows = (pl.col("direction") == FORWARD) & (pl.col("direction").shift(-1) == FORWARD)
    pairs = placed.with_columns(next_place=pl.col("place").shift(-1)).filter(follows)
    kernels_before = _common_before(kernels, placed)
    if pairs.is_empty() or kernels_before is None:
        return None
    ends = pairs.with_columns(end=pl.col("next_place") - kernels_before)
    last_gemm = kernels.filter("is_gemm").select(last="place").sort("last")
    counted = (
        ends.join(kernels.select(end="place", gemms_then="gemms_before"), on="end")
        .sort("end")
        .join_asof(last_gemm, left_on="end", right_on="last", strategy="backward", allow_exact_matches=False)
        .with_columns(own_gemms=pl.col("gemms_then") - pl.col("products"), rest=pl.col("end") - pl.col("last") - 1)
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


def _common_before(kernels: pl.DataFrame, placed: pl.DataFrame) -> int | None:
    """How many kernels before a replayed attention have the names of those before a forward layer's: median.

    Only replays that follow backward work are compared: one behind another replay has a whole layer in common.
    """
    replays = placed.filter((pl.col("direction") == RECOMPUTE) & (pl.col("direction").shift(1) == BACKWARD))
    forward = placed.filter(pl.col("direction") == FORWARD)
    pairs = replays.join(forward.select("partner", own_place="place"), on="partner")
    if pairs.is_empty():
        return None
    names = kernels.select("place", "name_id")
    compared = (
        pairs.select("place", "own_place", back=pl.int_ranges(1, LONGEST_HEAD + 1, dtype=pl.Int64))
        .explode("back")
        .with_columns(at=pl.col("place") - pl.col("back"), own_at=pl.col("own_place") - pl.col("back"))
        .join(names.rename({"place": "at", "name_id": "name"}), on="at", how="left")
        .join(names.rename({"place": "own_at", "name_id": "own_name"}), on="own_at", how="left")
        .with_columns(same=(pl.col("name") == pl.col("own_name")).fill_null(value=False))
    )
    lengths = compared.group_by("place").agg(
        length=pl.col("back").filter(~pl.col("same")).min().fill_null(LONGEST_HEAD + 1) - 1
    )["length"]
    middle = _lower_median(lengths)
    return middle if 0 < middle < LONGEST_HEAD else None


def _lower_median(numbers: pl.Series) -> int:
    return int(numbers.quantile(0.5, interpolation="lower") or 0)
