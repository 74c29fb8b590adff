"""Recompute as the trace shows it: what the forward passes replayed inside the backward pass cost.

With *full* recompute a replay runs everything that a forward layer runs, with *selective* recompute some modules of it.
The GEMMs of the replays tell the one from the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import polars as pl

from three_walls.facts.fact_rows import RecomputedLayer
from three_walls.layers.directions import is_recomputing
from three_walls.layers.labels import LabelledOperations
from three_walls.lib.declare import artifact, duration, fact
from three_walls.lib.measurement import Measurement, known, known_or_missing, missing
from three_walls.step.intervals import DURATION
from three_walls.step.step_view import StepView
from three_walls.tables.buckets import GEMM_CATEGORIES
from three_walls.tables.model_parts import BACKWARD, FORWARD, RECOMPUTE, VISION

MINIMUM_FULL_RECOMPUTE_FRACTION = 0.8
"""GEMMs of a replay per GEMM of a forward layer from which on recompute is full. It replays all of them; without its
experts or its attention, which selective recompute replays, a layer lacks two GEMMs of six or more."""
MINIMUM_REPLAYED_LAYER_RATIO = 2.5
"""GEMMs of a backward layer per GEMM of a forward layer from which on work other than attention is replayed. A backward
pass runs two GEMMs for each one of the forward pass, and three where an expert layer is replayed."""

FULL, SELECTIVE, NONE = "full", "selective", "none"

Replays = Annotated[
    pl.DataFrame,
    {
        "layer": pl.Int64,  # null where not known
        "start_ns": pl.Int64,  # its first kernel
        "end_ns": pl.Int64,  # the kernel that follows it on its stream: the first of a backward pass
    },
]
"""What a stream replays in one go."""


@dataclass(frozen=True, slots=True)
class Recompute:
    """What replays cost in one step, whether or not the config is known."""

    kind: str | None
    """full, selective or none; None where the trace does not show it."""
    cost_ns: Measurement[int]
    """Wall time of the step spent on replaying forward work."""
    replays: Replays | None = None
    """Each replay; None where there is none."""


@fact("ratio", "the ratio of attention forward to backward passes")
def attention_forward_per_backward_ratio(labelled_step: LabelledOperations) -> Measurement[float]:
    """Attention forward passes per backward pass: 1 without recompute, 2 when attention is computed twice. Those of a
    vision tower, which may be frozen, do not count."""
    forward, backward = count_attention(labelled_step)
    ratio = forward / backward if backward else None
    return known_or_missing(ratio, "no attention kernel of a backward pass was recorded")


@duration("recompute time per step")
def recompute_ns(recompute: Recompute) -> Measurement[int]:
    """Time per step that replaying forward work in the backward pass takes, from each replay's first kernel to the
    first of its backward pass.

    Not the same as: Busy time: waiting and idle time inside a replay count, for they go when the replay goes.
    """
    return recompute.cost_ns


@artifact
def recompute(step: StepView, labelled_step: LabelledOperations) -> Recompute:
    """The replays of the step."""
    config = step.config
    replayed = labelled_step.filter(pl.col("direction") == RECOMPUTE)
    if replayed.is_empty():
        forward, backward = count_attention(labelled_step)
        if not (forward and backward) and not (
            config.knows("recompute_granularity") and config.get("recompute_granularity") is None
        ):
            return Recompute(None, missing("no attention kernel with a known direction was recorded"))
        reason = _find_unseen_replays(step, labelled_step, forward, backward)
        return Recompute(None, missing(reason)) if reason else Recompute(NONE, known(0))
    replays = _bound_replays(labelled_step)
    cost_ns = min(int(replays.select(DURATION.sum()).item()), step.step_ns)
    return Recompute(_classify(labelled_step), known(cost_ns), replays)


@artifact
def recompute_layers(recompute: Recompute) -> tuple[RecomputedLayer, ...]:
    """Time of the replays per layer of the rank's stage, in order; one row for all layers where they are unknown."""
    if recompute.replays is None or recompute.kind is None:
        return ()
    replays = recompute.replays
    if replays["layer"].null_count():
        replays = replays.with_columns(layer=pl.lit(None, dtype=pl.Int64))
    sums = replays.group_by("layer").agg(ns=DURATION.sum(), calls=pl.len()).sort("layer")
    return tuple(RecomputedLayer(layer, recompute.kind, int(ns), calls) for layer, ns, calls in sums.rows())


def count_attention(labelled: LabelledOperations) -> tuple[int, int]:
    """(forward, backward) passes of attention through the model's layers; replays count as forward."""
    phases = labelled.filter(pl.col("stack").ne_missing(pl.lit(VISION)))["phase"].cast(pl.String)
    return int((phases == FORWARD).sum()), int((phases == BACKWARD).sum())


def _find_unseen_replays(step: StepView, labelled: LabelledOperations, forward: int, backward: int) -> str:
    """What shows that work is replayed although no operation could be labelled so; empty where nothing does."""
    if is_recomputing(forward, backward):
        granularity = step.config.get("recompute_granularity")
        setting = granularity if step.config.knows("recompute_granularity") else "unknown"
        return (
            f"attention runs {forward} times forward and {backward} backward, recompute granularity is {setting}, "
            "and nothing shows how far each replay extends"
        )
    medians = dict(_count_gemms(labelled).group_by("direction").agg(pl.col("gemms").median()).iter_rows())
    of_forward, of_backward = medians.get(FORWARD), medians.get(BACKWARD)
    # By ranges each replay is labelled. Without them the experts alone may be replayed, and nothing shows where.
    if of_forward and of_backward and of_backward >= MINIMUM_REPLAYED_LAYER_RATIO * of_forward:
        return (
            f"a backward layer runs {of_backward:.0f} GEMMs, a forward layer {of_forward:.0f}: work other than "
            "attention is replayed, and the trace does not show where it begins and ends"
        )
    return ""


def _count_gemms(labelled: LabelledOperations) -> pl.DataFrame:
    """direction and ``gemms`` of each pass through a layer."""
    is_gemm = pl.col("category").cast(pl.String).is_in(list(GEMM_CATEGORIES))
    return labelled.drop_nulls("pass").group_by("direction", "pass").agg(gemms=is_gemm.sum())


def _classify(labelled: LabelledOperations) -> str:
    """Full where the replays have as many GEMMs as forward layers, else selective."""
    is_gemm = pl.col("category").cast(pl.String).is_in(list(GEMM_CATEGORIES))
    gemms = _count_gemms(labelled)
    usual = gemms.filter(pl.col("direction") == FORWARD)["gemms"].median()
    whole = gemms.filter(pl.col("direction") == RECOMPUTE)
    replayed = labelled.filter((pl.col("direction") == RECOMPUTE) & is_gemm).height
    if not isinstance(usual, float) or not usual or not whole.height:
        return SELECTIVE
    return FULL if replayed >= MINIMUM_FULL_RECOMPUTE_FRACTION * usual * whole.height else SELECTIVE


def _bound_replays(labelled: LabelledOperations) -> Replays:
    """Runs of replayed kernels on the stream that computes, each until the next kernel there."""
    is_replay = pl.col("direction").eq_missing(pl.lit(RECOMPUTE))
    stream = labelled.filter(is_replay)["stream"].mode().sort()[0]
    layer = pl.col("layer").fill_null(-1)
    return (
        labelled.filter(pl.col("stream") == stream)
        .sort("start_ns", "end_ns")
        .with_columns(
            end_ns=pl.coalesce(pl.col("start_ns").shift(-1), "end_ns"),
            run=pl.struct(is_replay, pl.when(is_replay).then(layer)).rle_id(),
        )
        .filter(is_replay)
        .group_by("run", maintain_order=True)
        .agg(pl.col("layer", "start_ns").first(), pl.col("end_ns").last())
        .drop("run")
    )
