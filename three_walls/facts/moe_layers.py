"""Which layer of the model a pass through an MoE layer is of; never guessed at."""

from __future__ import annotations

import polars as pl

from three_walls.facts.attention_passes import BACKWARD, FORWARD, RECOMPUTE
from three_walls.facts.model_shape import find_moe_layers
from three_walls.inputs.config.parallel_layout import has_uneven_stages
from three_walls.model.config import RunConfig
from three_walls.model.fact import FactValue


def number_layers(
    passes: pl.DataFrame, config: RunConfig, microbatches: FactValue
) -> tuple[pl.DataFrame, int | None, str | None]:
    """(``passes`` with ``layer``, number of MoE layers, None), or with ``layer`` null throughout and the reason.

    Micro-batches run one after the other: each goes forward through the layers in order and back in reverse.
    """
    layers, reason = moe_layers(config)
    if layers is None:
        return _unnumbered(passes), None, reason
    if not isinstance(microbatches, int) or isinstance(microbatches, bool):
        return _unnumbered(passes), None, "the number of micro-batches is not known"
    if reason := count_mismatch(passes, config, microbatches):
        return _unnumbered(passes), None, reason
    numbered = _number(passes, layers)
    if numbered["layer"].null_count():
        return _unnumbered(passes), None, "a pass of an MoE layer cannot be joined to its forward pass"
    return numbered, len(layers), None


def count_mismatch(passes: pl.DataFrame, config: RunConfig, microbatches: FactValue) -> str | None:
    """How ``passes`` contradict the MoE layers and micro-batches that the config gives this rank; None if they agree,
    or if the config does not say how many there are."""
    layers = layers_of_rank(config)
    if layers is None or not isinstance(microbatches, int) or isinstance(microbatches, bool):
        return None
    counts = {str(name): int(count) for name, count in passes.group_by("direction").len().rows()}
    expected, forward, backward = layers * microbatches, counts.get(FORWARD, 0), counts.get(BACKWARD, 0)
    if forward == expected and backward == expected:
        return None
    return (
        f"{forward} forward and {backward} backward passes of MoE layers in the step, expected {expected} each "
        f"({layers} layers x {microbatches} micro-batches)"
    )


def layers_of_rank(config: RunConfig) -> int | None:
    """How many MoE layers a rank runs; None where the config does not say it or stages differ."""
    stages = config.whole_number("pipeline_model_parallel_size")
    if stages == 1:
        layers, _ = moe_layers(config)
        return None if layers is None else len(layers)
    count = config.whole_number("num_layers")
    has_dense = config.knows("moe_layer_freq") and config.get("moe_layer_freq") != 1
    has_more = bool(config.get("mtp_num_layers"))
    if not count or not stages or count % stages or has_dense or has_more or has_uneven_stages(config):
        return None
    return count // stages


def moe_layers(config: RunConfig) -> tuple[list[int] | None, str | None]:
    """Numbers (from 0) of the model's MoE layers, in order, or why they cannot be told."""
    count = config.whole_number("num_layers")
    if not count:
        return None, "the config does not say num_layers"
    if config.whole_number("pipeline_model_parallel_size") != 1:
        return None, "with pipeline stages (or an unknown number of them) a rank's layers have no known number"
    if config.get("mtp_num_layers"):
        return None, "multi-token prediction adds layers of its own"
    found = find_moe_layers(config, count)
    return (None, found.missing_reason) if found.value is None else (sorted(found.value), None)


def _number(passes: pl.DataFrame, layers: list[int]) -> pl.DataFrame:
    """Forward passes by order; the n-th from the end of a micro-batch goes back n-th; a replay is its backward's."""
    place = pl.int_range(pl.len(), dtype=pl.Int64).over("direction") % len(layers)
    numbers = dict(enumerate(layers))
    ordered = passes.sort("pass").with_columns(
        at=pl.when(pl.col("direction") == FORWARD)
        .then(place)
        .when(pl.col("direction") == BACKWARD)
        .then(len(layers) - 1 - place)
    )
    # A replay runs the layer of the forward pass that follows the same attention.
    own = ordered.filter(pl.col("direction") == FORWARD).select("partner", own="at").unique("partner", keep="first")
    return (
        ordered.join(own, on="partner", how="left", maintain_order="left")
        .with_columns(at=pl.when(pl.col("direction") == RECOMPUTE).then("own").otherwise("at"))
        .with_columns(layer=pl.col("at").replace_strict(numbers, default=None, return_dtype=pl.Int64))
        .drop("at", "own")
    )


def _unnumbered(passes: pl.DataFrame) -> pl.DataFrame:
    return passes.with_columns(layer=pl.lit(None, dtype=pl.Int64))
