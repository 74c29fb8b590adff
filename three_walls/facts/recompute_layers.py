"""Which layers a step replays, and what each of them takes.

A replay belongs to a forward pass of the step, and forward passes run through the layers of a pipeline stage in
order, one micro-batch after the other: so the number of layers in the stage gives each replay its layer. The config
says that number; without it, it is the length of the runs of forward passes, where all have the same.
"""

from __future__ import annotations

import polars as pl

from three_walls.facts.attention_passes import FORWARD
from three_walls.facts.recompute import Recompute
from three_walls.inputs.config.parallel_layout import has_uneven_stages
from three_walls.model.config import RunConfig
from three_walls.model.fact import FactValue
from three_walls.model.report import RecomputedLayer

_NOT_IN_ORDER = ("mtp_num_layers", "num_layers_per_virtual_pipeline_stage", "virtual_pipeline_model_parallel_size")
"""Settings with which a micro-batch does not run through a rank's layers at one go, or through more of them."""


def recompute_layers(
    recompute: Recompute, passes: pl.DataFrame, config: RunConfig, microbatches: FactValue
) -> tuple[RecomputedLayer, ...]:
    """Time of the replays per layer of the rank's stage, in order; all in one row where layers cannot be told apart.

    ``passes``: of attention in the step (attention_passes.PASSES). A replay's time counts whole: replays of two
    layers never overlap on one stream.
    """
    if recompute.kind is None or not recompute.ns:
        return ()
    replays = recompute.replays
    if replays is None:
        calls = passes.filter(pl.col("phase") == FORWARD).height - passes.filter(pl.col("phase") != FORWARD).height
        return (RecomputedLayer(None, recompute.kind, recompute.ns, calls),)
    layers = _layers(passes, config, microbatches)
    if layers is None or replays["partner"].null_count():
        return (RecomputedLayer(None, recompute.kind, recompute.ns, replays.height),)
    sums = (
        replays.group_by(layer=pl.col("partner") % layers)
        .agg(ns=(pl.col("end_ns") - pl.col("start_ns")).sum(), calls=pl.len())
        .sort("layer")
    )
    return tuple(RecomputedLayer(int(layer), recompute.kind, int(ns), int(calls)) for layer, ns, calls in sums.rows())


def _layers(passes: pl.DataFrame, config: RunConfig, microbatches: FactValue) -> int | None:
    """Layers that a micro-batch runs through on this rank; None where config and passes do not agree on one number."""
    forward = int((passes["direction"] == FORWARD).sum())
    count, stages = config.whole_number("num_layers"), config.whole_number("pipeline_model_parallel_size")
    if not count or not stages:
        return _equal_runs(passes)
    if count % stages or has_uneven_stages(config) or any(config.get(key) for key in _NOT_IN_ORDER):
        return None
    layers = count // stages
    fits = forward == layers * microbatches if isinstance(microbatches, int) else forward % layers == 0
    return layers if fits else None


def _equal_runs(passes: pl.DataFrame) -> int | None:
    """The length of every run of forward passes, replays left out; None where runs differ."""
    plain = passes.filter((pl.col("direction") == FORWARD) | (pl.col("phase") != FORWARD))
    runs = plain.group_by(run=pl.col("phase").rle_id(), maintain_order=True).agg(
        pl.col("phase").first(), length=pl.len()
    )
    lengths = runs.filter(pl.col("phase") == FORWARD)["length"].unique()
    return int(lengths[0]) if lengths.len() == 1 else None
