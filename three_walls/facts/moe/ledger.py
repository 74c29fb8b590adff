"""The ledger of MoE layers in the representative step: what each part of each layer takes, in each direction.

``ns`` of a part is the union of its operations within each pass, summed over the passes of the layer (micro-batches);
``exposed_ns`` is the share of it in which no compute kernel runs; ``calls`` counts operations (kernels and copies).
Shared experts have a row where their GEMMs can be distinguished from others. Which layer of the model a pass belongs
to stays unknown rather than guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import polars as pl

from three_walls.attribution.ownership import COMPUTE_MASK
from three_walls.facts.attention_passes import BACKWARD, FORWARD, RECOMPUTE
from three_walls.facts.model_shape import find_moe_layers
from three_walls.facts.moe.inferred_schedule import infer_schedule_nodes
from three_walls.facts.moe.overlapped_passes import find_overlapped_passes
from three_walls.facts.moe.passes import (
    COMBINE,
    DISPATCH,
    EXPERT_GEMM,
    LAYER_CATEGORIES,
    PARTS,
    SHARED_EXPERT,
    LayerPasses,
    find_passes_in_order,
)
from three_walls.facts.moe.shared_experts import find_shared_experts
from three_walls.facts.recompute.replays import SELECTIVE, Recompute
from three_walls.facts.step_view import StepView
from three_walls.facts.token_exchange import exchange_bytes, link_bytes_per_s
from three_walls.inputs.config.parallel_layout import has_uneven_stages
from three_walls.model.config import RunConfig
from three_walls.model.fact import FactGroup, Measurement, Measurements, known, missing
from three_walls.model.report import MoePart, ReportWarning
from three_walls.model.units import NS_PER_S
from three_walls.tables.attribution_thresholds import attribution_thresholds
from three_walls.timeline.intervals import intersect, merge_overlapping

facts = FactGroup()
SHARED_EXPERT_TIME = facts.duration(
    "shared_expert_ns",
    "shared expert GEMM time per step",
    "Time per step that GEMMs of shared experts take, in all MoE layers and directions.",
)
EXPERT_BACKWARD_GEMM_TIME = facts.duration(
    "expert_backward_gemm_ns",
    "backward expert GEMM time per step",
    "Time per step that GEMMs of routed experts take in backward passes, in all MoE layers.",
)
DISPATCH_BACKWARD_EXPOSED_TIME = facts.duration(
    "dispatch_backward_exposed_ns",
    "exposed backward dispatch time per step",
    "Time per step in which the backward pass of the dispatch (the exchange of what leaves the experts) runs and no "
    "compute kernel does, waiting included.",
)
MOE_LAYERS = facts.fact(
    "moe_layers_count", "count", "the number of separated MoE layers", "MoE layers of the step that could be separated."
)
EP_ACHIEVED = facts.fact(
    "ep_achieved_bytes_per_s",
    "bytes_per_s",
    "achieved token exchange bandwidth",
    "Bytes that a rank sends to other ranks in one dispatch or combine (from the config, with balanced routing) over "
    "the duration of the fastest tenth of the step's token exchanges.",
    "Average throughput: exchanges that waited for peers are left out, unless nearly all did.",
)

_DIRECTIONS = (FORWARD, RECOMPUTE, BACKWARD)


@dataclass(frozen=True, slots=True)
class MoeLedger:
    """``rows`` in order of layer, direction and part; none where passes through MoE layers cannot be separated."""

    rows: tuple[MoePart, ...]
    facts: Measurements
    warnings: tuple[ReportWarning, ...] = ()


def measure_moe_layers(step: StepView, attention: pl.DataFrame, recompute: Recompute) -> MoeLedger:
    """The ledger of ``step``. ``attention``: the step's passes (attention_passes.PASSES)."""
    if recompute.kind == SELECTIVE:
        # Attention replayed alone exchanges no tokens: it separates no MoE layers.
        attention = attention.filter(pl.col("direction") != RECOMPUTE)
    found = _find_passes(step, attention, recompute.replays)
    if found.reason:
        return MoeLedger((), dict.fromkeys(facts.definitions, missing(found.reason)))
    streams = attention["stream"].unique().to_list()
    shared_experts = find_shared_experts(step.started, found.passes, streams, step.config)
    operations = [found.operations] if shared_experts.value is None else [found.operations, shared_experts.value]
    microbatches = step.layout.microbatches
    passes, layers = _number_layers(found.passes, step.config, microbatches)
    rates = _measure_rates(found, step.config)
    link = link_bytes_per_s(step.run).value
    rows = tuple(_with_rate(row, passes, rates, link) for row in _sum_parts(passes, pl.concat(operations), step.slices))
    shared_rows = [row for row in rows if row.part == SHARED_EXPERT]
    backward = [row for row in rows if row.direction == BACKWARD]
    measured: Measurements = {
        SHARED_EXPERT_TIME: missing(shared_experts.missing_reason)
        if shared_experts.missing_reason
        else known(sum(row.ns for row in shared_rows)),
        EXPERT_BACKWARD_GEMM_TIME: known(sum(row.ns for row in backward if row.part == EXPERT_GEMM)),
        # In a backward pass combine follows the expert GEMMs: it reverses the dispatch of the forward pass.
        DISPATCH_BACKWARD_EXPOSED_TIME: known(sum(row.exposed_ns for row in backward if row.part == COMBINE)),
        MOE_LAYERS: layers,
        EP_ACHIEVED: rates.achieved,
    }
    mismatch = _find_mismatch(passes, step.config, microbatches)
    if mismatch is None:
        return MoeLedger(rows, measured)
    message = f"{mismatch}: the MoE layers are shown without their numbers; is this the run's config?"
    return MoeLedger(rows, measured, (ReportWarning("moe-layers-mismatch", message),))


def _find_passes(step: StepView, attention: pl.DataFrame, replays: pl.DataFrame | None) -> LayerPasses:
    """By the schedule's ranges; without them by order on the device, and under overlap by order of the launches."""
    operations = step.started.filter(pl.col("category").is_in(LAYER_CATEGORIES)).with_columns(
        category=pl.col("category").cast(pl.String)
    )
    by_range = find_overlapped_passes(operations, step.schedule_nodes)
    if by_range is not None:
        return by_range
    in_order = find_passes_in_order(operations, attention, replays, step.config)
    if not in_order.reason or step.config.get("overlap_moe_expert_parallel_comm") is not True:
        return in_order
    nodes = infer_schedule_nodes(step.started, attention)
    inferred = None if nodes is None else find_overlapped_passes(operations, nodes)
    return in_order if inferred is None or inferred.reason else inferred


def _sum_parts(passes: pl.DataFrame, operations: pl.DataFrame, slices: pl.DataFrame) -> list[MoePart]:
    """Sums per layer, direction and part. ``operations``: pass, part, start_ns, end_ns of every operation."""
    key = ["pass", "part"]
    union = merge_overlapping(operations, key)
    not_computing = merge_overlapping(slices.filter((pl.col("active") & COMPUTE_MASK) == 0), ["rank_index"])
    # What computes cannot be exposed: only an exchange can.
    exchanges = union.filter(pl.col("part").is_in([DISPATCH, COMBINE])).join(
        not_computing.select("rank_index").head(1), how="cross"
    )
    length = pl.col("end_ns") - pl.col("start_ns")
    exposed = intersect(exchanges, not_computing, ["rank_index"]).group_by(key).agg(exposed_ns=length.sum())
    sums = (
        union.group_by(key)
        .agg(ns=length.sum())
        .join(exposed, on=key, how="left")
        .join(operations.group_by(key).agg(calls=pl.len()), on=key, how="left")
        .join(passes.select("pass", "layer", "direction"), on="pass")
        .group_by("layer", "direction", "part")
        .agg(pl.col("ns").sum(), pl.col("exposed_ns").fill_null(0).sum(), pl.col("calls").sum())
    )
    rows = sums.select("layer", "direction", "part", "ns", "exposed_ns", "calls").rows()
    rows.sort(key=lambda row: (row[0] is None, row[0] or 0, _DIRECTIONS.index(row[1]), PARTS.index(row[2])))
    return [
        MoePart(layer, direction, part, int(ns), int(exposed_ns), calls)
        for layer, direction, part, ns, exposed_ns, calls in rows
    ]


@dataclass(frozen=True, slots=True)
class _ExchangeRates:
    """``sent_bytes`` of one dispatch or combine; None where the config does not give it."""

    sent_bytes: int | None
    achieved: Measurement[float]
    """Bytes per second of dispatch and combine together."""
    by_part: Mapping[str, float] = field(default_factory=dict)


def _measure_rates(found: LayerPasses, config: RunConfig) -> _ExchangeRates:
    """Bytes per second over the duration of the fastest tenth of the calls, which found all peers ready.

    Both directions move as many bytes.
    """
    sent = exchange_bytes(config)
    if not sent.value:
        reason = sent.missing_reason or "expert-parallel size 1: nothing is sent"
        return _ExchangeRates(sent.value, missing(reason))
    calls = _select_token_calls(found.exchanges.join(found.passes.select("pass", "direction"), on="pass"))
    thresholds = attribution_thresholds()
    fastest = pl.col("duration_ns").quantile(thresholds.ready_quantile, interpolation="lower")
    is_measurable = (pl.col("calls") >= thresholds.minimum_calls) & (pl.col("duration_ns") > 0)
    by_part = calls.group_by("part").agg(fastest, calls=pl.len()).filter(is_measurable).rows()
    together = calls.select(fastest, calls=pl.len()).filter(is_measurable)
    if together.is_empty():
        return _ExchangeRates(
            sent.value, missing(f"fewer than {thresholds.minimum_calls} exchanges of tokens in the step")
        )
    sent_per_ns = sent.value * NS_PER_S
    return _ExchangeRates(
        sent.value,
        known(sent_per_ns / float(together["duration_ns"][0])),
        {str(part): sent_per_ns / duration for part, duration, _ in by_part},
    )


def _select_token_calls(exchanges: pl.DataFrame) -> pl.DataFrame:
    """part and duration_ns of the exchanges that carry the tokens.

    One dispatch or combine may exchange their probabilities too, before or after: a call of small messages. Of the
    positions in a pass the one whose fastest call is longest carries the tokens; waiting lengthens single calls only.
    """
    kind = ["direction", "part"]
    timed = exchanges.with_columns(duration_ns=pl.col("end_ns") - pl.col("start_ns"))
    positions = (
        timed.group_by(*kind, "position")
        .agg(pl.col("duration_ns").min())
        .sort("duration_ns", "position", descending=[True, False])
        .unique(kind, keep="first", maintain_order=True)
    )
    return timed.join(positions.select(*kind, "position"), on=[*kind, "position"]).select("part", "duration_ns")


def _with_rate(row: MoePart, passes: pl.DataFrame, rates: _ExchangeRates, link: float | None) -> MoePart:
    """``row`` with what it moved and how fast, if it is an exchange."""
    if row.part not in (DISPATCH, COMBINE):
        return row
    same_layer = pl.col("layer").eq_missing(pl.lit(row.layer, dtype=pl.Int64))
    count = passes.filter(same_layer & (pl.col("direction") == row.direction)).height
    return replace(
        row,
        bytes_moved=None if rates.sent_bytes is None else rates.sent_bytes * count,
        bytes_per_s=rates.by_part.get(row.part),
        limit_bytes_per_s=link,
    )


def _number_layers(
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
    if reason := _find_mismatch(passes, config, microbatches):
        return without_layer, missing(reason)
    numbered = _assign_layers(passes, layers.value)
    if numbered["layer"].null_count():
        return without_layer, missing("a pass of an MoE layer cannot be joined to its forward pass")
    return numbered, known(len(layers.value))


def _find_mismatch(passes: pl.DataFrame, config: RunConfig, microbatches: int | None) -> str | None:
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
