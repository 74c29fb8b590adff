"""Recompute seen in the trace: what the forward passes that are replayed inside backward cost.

With *full* recompute a replay runs everything a forward layer runs. It begins where the kernels before its attention
stop being those before a forward layer's attention, and ends once it has run as many GEMMs after its
attention as a forward layer runs, and the kernels that follow a layer's last product. With *selective* recompute of
core attention it is the attention alone. Which of the two it is shows between the replayed attention and its
backward: with full recompute the rest of the layer runs there, forward and backward.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from three_walls.facts.attention_passes import BACKWARD, FORWARD, RECOMPUTE, RECOMPUTES_RATIO, count_phases
from three_walls.facts.representative import Representative
from three_walls.facts.stream_order import LayerShape, kernels_in_order, layer_shape, place_passes
from three_walls.model.config import RunConfig
from three_walls.timeline.intervals import intersect, merge_overlapping

FULL, SELECTIVE, NONE = "full", "selective", "none"

FULL_RUNS_TIMES = 1.5
"""With full recompute at least this many forward layers' products lie between a replayed attention and its backward.

Replay and backward of what follows attention are three times its forward: in a dense layer, where least follows, 9
products against the forward layer's 4 (fused attention) or 12 against 6. Replayed core attention alone leaves at most
the products of the scores there: 3.
"""

REPLAYS = pl.Schema(
    {
        "partner": pl.Int64,  # which forward pass of the step it replays, from 0
        "start_ns": pl.Int64,  # its first kernel
        "end_ns": pl.Int64,  # the first kernel of the backward that follows
        "busy_ns": pl.Int64,  # union of the device's work in between
    }
)


@dataclass(frozen=True, slots=True)
class Recompute:
    """What replays cost in one step. ``ns`` is None where it cannot be told, ``reason`` says why."""

    kind: str | None
    ns: int | None
    reason: str | None = None
    replays: pl.DataFrame | None = None
    """Each replay as measured (REPLAYS); None where ``ns`` is the estimate."""


def measure_recompute(
    operations: pl.DataFrame,
    passes: pl.DataFrame,
    representative: Representative,
    step: tuple[int, int],
    config: RunConfig,
) -> Recompute:
    """Wall time of the step [start, end) spent replaying forward work, whether or not the config is known.

    ``operations``: the chosen rank's. ``passes``: of attention in the step (attention_passes.PASSES).
    """
    forward, backward = count_phases(passes)
    if not forward or not backward:
        if config.knows("recompute_granularity") and config.get("recompute_granularity") is None:
            return Recompute(NONE, 0)
        return Recompute(None, None, "no attention kernel with a known direction was recorded")
    kernels = kernels_in_order(operations, step, int(passes["stream"].mode().sort()[0]))
    if forward < RECOMPUTES_RATIO * backward:
        return _without_replayed_attention(place_passes(kernels, passes))
    estimate = _estimate_ns(passes, forward - backward, representative.step_ns)
    told = not passes["direction"].null_count() and passes["stream"].n_unique() == 1
    placed = place_passes(kernels, passes)
    kind = _kind(placed) if told else None
    if kind is None:
        return _by_config(config, forward, backward, estimate)
    replays = _measure(kernels, placed, kind)
    if replays is not None:
        replays = _with_busy(operations, replays)
        covered = merge_overlapping(replays.with_columns(of=0), ["of"])
        ns = int((covered["end_ns"] - covered["start_ns"]).sum())
        return Recompute(kind, min(ns, representative.step_ns), None, replays)
    return _estimated(estimate) if kind == FULL else Recompute(kind, None, "no GEMM around a replay")


def _by_config(config: RunConfig, forward: int, backward: int, estimate: int | None) -> Recompute:
    granularity = config.get("recompute_granularity")
    if granularity != FULL:
        said = granularity if config.knows("recompute_granularity") else "not known"
        return Recompute(
            None,
            None,
            f"attention runs {forward} times forward and {backward} backward, recompute granularity is {said}, and the "
            "GEMMs around the replays do not show their extent",
        )
    return _estimated(estimate)


def _estimated(estimate: int | None) -> Recompute:
    """Full recompute whose replays cannot be measured."""
    if estimate is None:
        return Recompute(FULL, None, "no two forward layers follow one another in the step")
    return Recompute(FULL, estimate)


def _without_replayed_attention(placed: pl.DataFrame) -> Recompute:
    """No attention is replayed; the expert layer alone may be: then a backward layer has three forwards' products."""
    between = placed.with_columns(
        products=pl.col("products").shift(-1) - pl.col("products"), next=pl.col("direction").shift(-1)
    ).filter(pl.col("direction") == pl.col("next"))
    median = {str(name): ns for name, ns in between.group_by("direction").agg(pl.col("products").median()).rows()}
    ahead, back = median.get(FORWARD), median.get(BACKWARD)
    if ahead and back and back >= 2.5 * ahead:
        return Recompute(
            None,
            None,
            f"a backward layer runs {back:.0f} GEMMs, a forward layer {ahead:.0f}: work other than "
            "attention is replayed, and its extent cannot be told",
        )
    return Recompute(NONE, 0)


def _kind(placed: pl.DataFrame) -> str | None:
    """Full or selective: by the products from a replayed attention to its backward; None where that tells neither."""
    counted = placed.select(
        "direction", next=pl.col("direction").shift(-1), products=pl.col("products").shift(-1) - pl.col("products")
    )
    layer = counted.filter((pl.col("direction") == FORWARD) & (pl.col("next") == FORWARD))["products"].median()
    between = counted.filter((pl.col("direction") == RECOMPUTE) & (pl.col("next") == BACKWARD))["products"]
    if not isinstance(layer, float) or not layer:
        return None
    is_full = between >= FULL_RUNS_TIMES * layer
    if is_full.all():
        return FULL
    return None if is_full.any() else SELECTIVE


def _measure(kernels: pl.DataFrame, placed: pl.DataFrame, kind: str) -> pl.DataFrame | None:
    """partner, start_ns, end_ns of every replay; None where the kernels do not show the extent of one."""
    replays = placed.filter(pl.col("direction") == RECOMPUTE)
    if kind == SELECTIVE:
        extents = _attention_extents(kernels, replays)
    else:
        shape = layer_shape(kernels, placed)
        if shape is None:
            return None
        extents = _full_extents(kernels, replays, shape)
    return None if extents["end_ns"].null_count() or extents["start_ns"].null_count() else extents


def _full_extents(kernels: pl.DataFrame, replays: pl.DataFrame, shape: LayerShape) -> pl.DataFrame:
    """partner, start_ns, end_ns of replays of whole layers."""
    last_gemm = kernels.filter("is_gemm").select(products="gemms_before", last="place")
    starts = kernels.select(first="place", replay_ns="start_ns")
    ends = kernels.select(after="place", until_ns="start_ns")
    return (
        replays.join(shape.gemms_after_each, on="partner", how="left")
        .with_columns(
            first=pl.col("place") - shape.kernels_before,
            # A product's own count is of those before it, so the n-th after the pass is found by n - 1.
            products=pl.col("products") + pl.col("own_gemms").fill_null(shape.gemms_after) - 1,
        )
        .join(starts, on="first", how="left")
        .join(last_gemm, on="products", how="left")
        .with_columns(after=pl.col("last") + shape.kernels_after_gemms + 1)
        .join(ends, on="after", how="left")
        .select("partner", start_ns="replay_ns", end_ns="until_ns")
        .sort("start_ns")
    )


def _attention_extents(kernels: pl.DataFrame, replays: pl.DataFrame) -> pl.DataFrame:
    """partner, start_ns, end_ns of replays of attention alone: with its two products where it is not fused."""
    product = kernels.filter("is_gemm")
    before = product.select(place="place", gemm_start_ns="start_ns").sort("place")
    after = product.select(place="place", gemm_end_ns="end_ns").sort("place")
    around = replays.sort("place").join_asof(before, on="place").join_asof(after, on="place", strategy="forward")
    unfused = pl.col("category") == "attention_unfused"
    return around.select(
        "partner",
        start_ns=pl.when(unfused).then("gemm_start_ns").otherwise("start_ns"),
        end_ns=pl.when(unfused).then("gemm_end_ns").otherwise("end_ns"),
    ).sort("start_ns")


def _with_busy(operations: pl.DataFrame, extents: pl.DataFrame) -> pl.DataFrame:
    windows = extents.with_columns(of=0).with_row_index("replay")
    mine = operations.select("start_ns", "end_ns", of=0)
    busy = (
        merge_overlapping(intersect(mine, windows, ["of"], carry=["replay"]), ["replay"])
        .group_by("replay")
        .agg(busy_ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
    )
    return windows.join(busy, on="replay", how="left").sort("replay").select(REPLAYS.names())


def _estimate_ns(passes: pl.DataFrame, replays: int, step_ns: int) -> int | None:
    """Replays times the median distance between attention forward passes with no backward pass in between."""
    after_forward = (pl.col("phase") == FORWARD) & (pl.col("phase").shift(1) == FORWARD)
    distances = passes.with_columns(distance_ns=pl.col("start_ns").diff()).filter(after_forward)["distance_ns"]
    spacing = int(distances.quantile(0.5, interpolation="lower") or 0) if distances.len() else None
    return None if spacing is None else min(replays * spacing, step_ns)
