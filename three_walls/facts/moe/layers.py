"""Which layer of the model a pass through an MoE layer belongs to; unknown rather than guessed."""

from __future__ import annotations

import polars as pl

from three_walls.facts.attention_passes import BACKWARD, FORWARD, RECOMPUTE
from three_walls.facts.model_shape import find_moe_layers
from three_walls.inputs.config.parallel_layout import has_uneven_stages
from three_walls.model.config import RunConfig
from three_walls.model.fact import Measurement, known, missing


def number_layers(
    passes: pl.DataFrame, config: RunConfig, microbatches: int | None
) -> tuple[pl.DataFrame, Measurement[int]]:
    """``passes`` with ``layer`` (from 0; null throughout where unknown), and the number of MoE layers.

    Micro-batches run one after the other: each goes forward through the layers in order and back in reverse.
    """
    without_layer = passes.with_columns(layer=pl.lit(None, dtype=pl.Int64))
    layers = _moe_layers_of_rank(config)
    if layers.value is None:
        return without_layer, missing(str(layers.missing_reason))
    if microbatches is None:
        return without_layer, missing("the number of micro-batches is not known")
    if reason := find_mismatch(passes, config, microbatches):
        return without_layer, missing(reason)
    numbered = _assign_layers(passes, layers.value)
    if numbered["layer"].null_count():
        return without_layer, missing("a pass of an MoE layer cannot be joined to its forward pass")
    return numbered, known(len(layers.value))


def find_mismatch(passes: pl.DataFrame, config: RunConfig, microbatches: int | None) -> str | None:
    """How ``passes`` contradict the MoE layers and micro-batches that the config gives this rank.

    None where they agree, or where the config leaves the number open.
    """
    layers = _count_layers_of_rank(config)
    if layers is None or microbatches is None:
        return None
    counts = {str(direction): int(count) for direction, count in passes.group_by("direction").len().rows()}
    expected, forward, backward = layers * microbatches, counts.get(FORWARD, 0), counts.get(BACKWARD, 0)
    if forward == expected and backward == expected:
        return None
    return (
        f"{forward} forward and {backward} backward passes of MoE layers in the step, expected {expected} each "
        f"({layers} layers x {microbatches} micro-batches)"
    )


def _count_layers_of_rank(config: RunConfig) -> int | None:
    """How many MoE layers a rank runs; None where the config does not state it or stages differ."""
    stages = config.whole_number("pipeline_model_parallel_size")
    if stages == 1:
        layers = _moe_layers_of_rank(config).value
        return None if layers is None else len(layers)
    count = config.whole_number("num_layers")
    has_dense = config.knows("moe_layer_freq") and config.get("moe_layer_freq") != 1
    has_more = bool(config.get("mtp_num_layers"))
    if not count or not stages or count % stages or has_dense or has_more or has_uneven_stages(config):
        return None
    return count // stages


def _moe_layers_of_rank(config: RunConfig) -> Measurement[list[int]]:
    """Numbers (from 0) of the MoE layers that a rank holds, in order; missing with more than one pipeline stage."""
    count = config.whole_number("num_layers")
    if not count:
        return missing("the config does not state num_layers")
    if config.whole_number("pipeline_model_parallel_size") != 1:
        return missing("with pipeline stages (or an unknown number of them) a rank's layers have no known number")
    if config.get("mtp_num_layers"):
        return missing("multi-token prediction adds layers of its own")
    layers = find_moe_layers(config, count)
    return missing(str(layers.missing_reason)) if layers.value is None else known(sorted(layers.value))


def _assign_layers(passes: pl.DataFrame, layers: list[int]) -> pl.DataFrame:
    """Forward passes by order; the n-th from the end of a micro-batch goes back n-th; a replay has its backward's."""
    order = pl.int_range(pl.len(), dtype=pl.Int64).over("direction") % len(layers)
    numbers = dict(enumerate(layers))
    ordered = passes.sort("pass").with_columns(
        place=pl.when(pl.col("direction") == FORWARD)
        .then(order)
        .when(pl.col("direction") == BACKWARD)
        .then(len(layers) - 1 - order)
    )
    # A replay runs the layer of the forward pass that follows the same attention.
    forward = (
        ordered.filter(pl.col("direction") == FORWARD)
        .select("partner", forward_place="place")
        .unique("partner", keep="first")
    )
    return (
        ordered.join(forward, on="partner", how="left", maintain_order="left")
        .with_columns(place=pl.when(pl.col("direction") == RECOMPUTE).then("forward_place").otherwise("place"))
        .with_columns(layer=pl.col("place").replace_strict(numbers, default=None, return_dtype=pl.Int64))
        .drop("place", "forward_place")
    )
