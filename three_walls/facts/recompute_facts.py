"""Recompute as the trace shows it: what the forward passes replayed inside the backward pass cost.

With *full* recompute a replay runs everything that a forward layer runs. It begins with the first of the kernels before
its attention that are those before a forward layer's attention. It ends after as many GEMMs as a forward layer runs
after its attention, and after the kernels that follow a layer's last GEMM.

With *selective* recompute of core attention the replay is the attention alone.

The kernels between a replayed attention and its backward pass show which of the two it is: with full recompute the
rest of the layer runs there, forward and backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import polars as pl

from three_walls.facts import fact_thresholds
from three_walls.facts.fact_rows import RecomputedLayer
from three_walls.layers.attention_passes import (
    BACKWARD,
    FORWARD,
    RECOMPUTE,
    AttentionPasses,
    Replays,
    count_phases,
    is_recomputing,
)
from three_walls.lib.declare import artifact, duration, fact
from three_walls.lib.measurement import Measurement, known, known_or_missing, missing
from three_walls.megatron.parallel_layout import has_uneven_stages
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.step.intervals import DURATION, merge_overlapping
from three_walls.step.step_tables import Operations
from three_walls.step.step_view import StepView
from three_walls.tables.buckets import GEMM_CATEGORIES

FULL, SELECTIVE, NONE = "full", "selective", "none"

MAX_KERNELS_COMPARED = 256
"""Kernels compared before a pass of attention: many more than a layer runs there (about thirty)."""

_NOT_IN_LAYER_ORDER = (
    "mtp_num_layers",
    "num_layers_per_virtual_pipeline_stage",
    "virtual_pipeline_model_parallel_size",
)
"""Settings with which a micro-batch runs through a rank's layers in several parts, or through more layers."""

_PLACE = {
    "place": pl.Int64,  # number of the kernel on its stream, from 0
    "gemms_before": pl.Int64,  # GEMMs earlier in the step
}

NumberedKernels = Annotated[
    pl.DataFrame,
    {"start_ns": pl.Int64, "end_ns": pl.Int64, "name_id": pl.Int64, "is_gemm": pl.Boolean, **_PLACE},
]
"""The kernels of a stream in order."""

PlacedPasses = Annotated[AttentionPasses, _PLACE]
"""Passes of attention with their place among the kernels of the stream."""

ForwardLayers = Annotated[
    pl.DataFrame,
    {"partner": pl.Int64, "own_gemms": pl.Int64},  # the number of expert GEMMs varies
]
"""GEMMs after attention of each forward pass that another forward pass follows."""


@dataclass(frozen=True, slots=True)
class Recompute:
    """What replays cost in one step, whether or not the config is known."""

    kind: str | None
    """full, selective or none; None where the trace does not show it."""
    cost_ns: Measurement[int]
    """Wall time of the step spent on replaying forward work."""
    replays: Replays | None = None
    """Each replay; None where the cost is an estimate."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """A forward layer in numbers of kernels and GEMMs on its stream."""

    kernels_before: int
    """From the layer's first kernel to its attention."""
    gemms_after: int
    """GEMMs from attention to the end of the layer: median."""
    kernels_after_gemms: int
    """Kernels after the layer's last GEMM: median."""
    gemms_after_each: ForwardLayers


@fact("ratio", "the ratio of attention forward to backward passes")
def attention_forward_per_backward_ratio(attention_passes: AttentionPasses) -> Measurement[float]:
    """Attention forward passes per backward pass: 1 without recompute, 2 when attention is computed twice."""
    forward, backward = count_phases(attention_passes)
    ratio = forward / backward if backward else None
    return known_or_missing(ratio, "no attention kernel of a backward pass was recorded")


@duration("recompute time per step")
def recompute_ns(recompute: Recompute) -> Measurement[int]:
    """Time per step that replaying forward work in the backward pass takes, from each replay's first kernel to the
    first of its backward pass. Where the kernels do not show that, it is the number of replayed layers times the median
    spacing of forward layers.

    Not the same as: Busy time: waiting and idle time inside a replay count, for they go when the replay goes.
    """
    return recompute.cost_ns


@artifact
def recompute(step: StepView, attention_passes: AttentionPasses) -> Recompute:
    """The replays of the step."""
    config, passes = step.config, attention_passes
    forward, backward = count_phases(passes)
    if not forward or not backward:
        if config.knows("recompute_granularity") and config.get("recompute_granularity") is None:
            return Recompute(NONE, known(0))
        return Recompute(None, missing("no attention kernel with a known direction was recorded"))
    kernels = number_kernels(step.kernels, int(passes["stream"].mode().sort()[0]))
    stream_passes = place_passes(kernels, passes)
    if not is_recomputing(forward, backward):
        return _without_replayed_attention(stream_passes)
    has_order = not passes["direction"].null_count() and passes["stream"].n_unique() == 1
    kind = _classify_recompute(stream_passes) if has_order else None
    if kind is None:
        granularity = config.get("recompute_granularity")
        if granularity == FULL:
            return _estimate_full_recompute(passes, step.step_ns)
        setting = granularity if config.knows("recompute_granularity") else "unknown"
        return Recompute(
            None,
            missing(
                f"attention runs {forward} times forward and {backward} backward, recompute granularity is {setting}, "
                "and the GEMMs around the replays do not show how far each replay extends"
            ),
        )
    replays = _measure_extents(kernels, stream_passes, kind)
    if replays is None and kind == FULL:
        return _estimate_full_recompute(passes, step.step_ns)
    if replays is None:
        return Recompute(kind, missing("no GEMM precedes or follows a replay"))
    covered = merge_overlapping(replays.with_columns(group=0), ["group"])
    ns = int((covered["end_ns"] - covered["start_ns"]).sum())
    return Recompute(kind, known(min(ns, step.step_ns)), replays)


@artifact
def recompute_layers(
    step: StepView, recompute: Recompute, attention_passes: AttentionPasses
) -> tuple[RecomputedLayer, ...]:
    """Time of the replays per layer of the rank's stage."""
    return sum_replays_by_layer(recompute, attention_passes, step.config, step.layout.microbatches)


def _estimate_full_recompute(passes: pl.DataFrame, step_ns: int) -> Recompute:
    """Replays times the median distance between attention forward passes with no backward pass in between."""
    forward, backward = count_phases(passes)
    after_forward = (pl.col("phase") == FORWARD) & (pl.col("phase").shift(1) == FORWARD)
    distances = passes.with_columns(distance_ns=pl.col("start_ns").diff()).filter(after_forward)["distance_ns"]
    if distances.is_empty():
        return Recompute(FULL, missing("no two forward layers follow one another in the step"))
    spacing_ns = int(distances.quantile(0.5, interpolation="lower") or 0)
    return Recompute(FULL, known(min((forward - backward) * spacing_ns, step_ns)))


def _without_replayed_attention(stream_passes: pl.DataFrame) -> Recompute:
    """No attention is replayed. The experts alone may be: a backward layer then runs three GEMMs per forward GEMM."""
    between = _count_gemms_to_next(stream_passes).filter(pl.col("direction") == pl.col("next"))
    medians = {str(name): gemms for name, gemms in between.group_by("direction").agg(pl.col("gemms").median()).rows()}
    forward, backward = medians.get(FORWARD), medians.get(BACKWARD)
    if forward and backward and backward >= fact_thresholds.MINIMUM_REPLAYED_LAYER_RATIO * forward:
        return Recompute(
            None,
            missing(
                f"a backward layer runs {backward:.0f} GEMMs, a forward layer {forward:.0f}: work other than attention "
                "is replayed, and the trace does not show where it begins and ends"
            ),
        )
    return Recompute(NONE, known(0))


def _classify_recompute(stream_passes: pl.DataFrame) -> str | None:
    """Full or selective, by the GEMMs from a replayed attention to its backward pass; None where they show neither."""
    counted = _count_gemms_to_next(stream_passes)
    layer = counted.filter((pl.col("direction") == FORWARD) & (pl.col("next") == FORWARD))["gemms"].median()
    between = counted.filter((pl.col("direction") == RECOMPUTE) & (pl.col("next") == BACKWARD))["gemms"]
    if not isinstance(layer, float) or not layer:
        return None
    is_full = between >= fact_thresholds.MINIMUM_FULL_RECOMPUTE_RATIO * layer
    if is_full.all():
        return FULL
    return None if is_full.any() else SELECTIVE


def _count_gemms_to_next(stream_passes: pl.DataFrame) -> pl.DataFrame:
    """direction of each pass, direction of the ``next`` one, and ``gemms`` in between."""
    return stream_passes.select(
        "direction",
        next=pl.col("direction").shift(-1),
        gemms=pl.col("gemms_before").shift(-1) - pl.col("gemms_before"),
    )


def _measure_extents(kernels: pl.DataFrame, stream_passes: pl.DataFrame, kind: str) -> pl.DataFrame | None:
    """partner, start_ns, end_ns of every replay; None where the kernels do not show the extent of one."""
    replays = stream_passes.filter(pl.col("direction") == RECOMPUTE)
    shape = measure_layer_shape(kernels, stream_passes) if kind == FULL else None
    if kind == FULL and shape is None:
        return None
    extents = _attention_extents(kernels, replays) if shape is None else _layer_extents(kernels, replays, shape)
    return None if extents["end_ns"].null_count() or extents["start_ns"].null_count() else extents


def _layer_extents(kernels: pl.DataFrame, replays: pl.DataFrame, shape: LayerShape) -> pl.DataFrame:
    """partner, start_ns, end_ns of replays of whole layers."""
    gemms = kernels.filter("is_gemm").select(last_gemm="gemms_before", last="place")
    starts = kernels.select(first="place", replay_start_ns="start_ns")
    ends = kernels.select(after="place", replay_end_ns="start_ns")
    return (
        replays.join(shape.gemms_after_each, on="partner", how="left")
        .with_columns(
            first=pl.col("place") - shape.kernels_before,
            # A GEMM's own count is of those before it, so the n-th after the pass is found by n - 1.
            last_gemm=pl.col("gemms_before") + pl.col("own_gemms").fill_null(shape.gemms_after) - 1,
        )
        .join(starts, on="first", how="left")
        .join(gemms, on="last_gemm", how="left")
        .with_columns(after=pl.col("last") + shape.kernels_after_gemms + 1)
        .join(ends, on="after", how="left")
        .select("partner", start_ns="replay_start_ns", end_ns="replay_end_ns")
        .sort("start_ns")
    )


def _attention_extents(kernels: pl.DataFrame, replays: pl.DataFrame) -> pl.DataFrame:
    """partner, start_ns, end_ns of replays of attention alone: with its two GEMMs where it is not fused."""
    gemms = kernels.filter("is_gemm")
    before = gemms.select(place="place", gemm_start_ns="start_ns").sort("place")
    after = gemms.select(place="place", gemm_end_ns="end_ns").sort("place")
    around = replays.sort("place").join_asof(before, on="place").join_asof(after, on="place", strategy="forward")
    is_unfused = pl.col("category") == "attention_unfused"
    return around.select(
        "partner",
        start_ns=pl.when(is_unfused).then("gemm_start_ns").otherwise("start_ns"),
        end_ns=pl.when(is_unfused).then("gemm_end_ns").otherwise("end_ns"),
    ).sort("start_ns")


def number_kernels(kernels: Operations, stream: int) -> NumberedKernels:
    """Those of one rank's ``kernels`` that run on ``stream``, in order."""
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


def place_passes(kernels: NumberedKernels, passes: AttentionPasses) -> PlacedPasses:
    """``passes`` with their ``place`` among ``kernels`` and ``gemms_before``; passes of other streams are dropped."""
    places = kernels.unique("start_ns", keep="first", maintain_order=True).select("start_ns", "place", "gemms_before")
    return passes.join(places, on="start_ns", how="inner", maintain_order="left")


def measure_layer_shape(kernels: NumberedKernels, stream_passes: PlacedPasses) -> LayerShape | None:
    """What a forward layer runs; None where no two forward layers follow one another, or no replay shows its start."""
    follows = (pl.col("direction") == FORWARD) & (pl.col("direction").shift(-1) == FORWARD)
    pairs = stream_passes.with_columns(next_place=pl.col("place").shift(-1)).filter(follows)
    kernels_before = _common_kernels_before(kernels, stream_passes)
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


def _common_kernels_before(kernels: pl.DataFrame, stream_passes: pl.DataFrame) -> int | None:
    """How many kernels before a replayed attention have the same names as before a forward layer's attention: median.

    Only replays that follow backward work are compared: a replay that follows another has a whole layer in common.
    """
    replays = stream_passes.filter((pl.col("direction") == RECOMPUTE) & (pl.col("direction").shift(1) == BACKWARD))
    forward = stream_passes.filter(pl.col("direction") == FORWARD)
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


def sum_replays_by_layer(
    recompute: Recompute, passes: AttentionPasses, config: RunConfig, microbatches: int | None
) -> tuple[RecomputedLayer, ...]:
    """Time of the replays per layer of the rank's stage, in order; one row for all layers where they are unknown.

    A replay belongs to a forward pass of the step, and forward passes run through the layers of a pipeline stage in
    order, one micro-batch after the other: so the number of layers in the stage gives each replay its layer. The
    config states that number; without it, it is the length of the runs of forward passes, where all are equally long.

    A replay's time counts whole: replays of two layers never overlap on one stream.
    """
    total_ns = recompute.cost_ns.value
    if recompute.kind is None or not total_ns:
        return ()
    replays = recompute.replays
    if replays is None:
        forward, backward = count_phases(passes)
        return (RecomputedLayer(None, recompute.kind, total_ns, forward - backward),)
    layers = _count_layers(passes, config, microbatches)
    if layers is None or replays["partner"].null_count():
        return (RecomputedLayer(None, recompute.kind, total_ns, replays.height),)
    sums = replays.group_by(layer=pl.col("partner") % layers).agg(ns=DURATION.sum(), calls=pl.len()).sort("layer")
    return tuple(RecomputedLayer(int(layer), recompute.kind, int(ns), int(calls)) for layer, ns, calls in sums.rows())


def _count_layers(passes: pl.DataFrame, config: RunConfig, microbatches: int | None) -> int | None:
    """Layers that a micro-batch runs through on this rank; None where config and passes do not agree on one number."""
    forward = int((passes["direction"] == FORWARD).sum())
    model_layers, stages = config.whole_number("num_layers"), config.whole_number("pipeline_model_parallel_size")
    if not model_layers or not stages:
        return _common_run_length(passes)
    if model_layers % stages or has_uneven_stages(config) or any(config.get(key) for key in _NOT_IN_LAYER_ORDER):
        return None
    layers = model_layers // stages
    fits = forward % layers == 0 if microbatches is None else forward == layers * microbatches
    return layers if fits else None


def _common_run_length(passes: pl.DataFrame) -> int | None:
    """The length of every run of forward passes, replays left out; None where runs differ in length."""
    without_replays = passes.filter((pl.col("direction") == FORWARD) | (pl.col("phase") != FORWARD))
    runs = without_replays.group_by(run=pl.col("phase").rle_id(), maintain_order=True).agg(
        pl.col("phase").first(), length=pl.len()
    )
    lengths = runs.filter(pl.col("phase") == FORWARD)["length"].unique()
    return int(lengths[0]) if lengths.len() == 1 else None
