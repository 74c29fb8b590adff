"""The ledger of MoE layers in the representative step: what each part of each layer takes, in each direction.

``ns`` of a part is the union of its operations within each pass, summed over the passes of the layer (micro-batches);
``exposed_ns`` is the part of it in which no compute kernel runs; ``calls`` counts operations (kernels and copies).
Shared experts have a row where their GEMMs can be distinguished from others. Where the layer of a pass is not certain,
it is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import polars as pl

from three_walls.facts.fact_rows import MoePart
from three_walls.facts.recompute_facts import SELECTIVE, Recompute
from three_walls.facts.token_exchange import ExchangeRates, TokenRates, measure_rates
from three_walls.layers.attention_passes import BACKWARD, FORWARD, RECOMPUTE, AttentionPasses
from three_walls.layers.inferred_schedule import infer_schedule_nodes
from three_walls.layers.layer_order import BACKWARD_GEMMS, FORWARD_GEMMS
from three_walls.layers.moe_passes import (
    COMBINE,
    DISPATCH,
    EXPERT_GEMM,
    LAYER_CATEGORIES,
    PARTS,
    SHARED_EXPERT,
    LayerPasses,
    MoePasses,
    PartOperations,
    find_passes_in_order,
)
from three_walls.layers.overlapped_passes import find_overlapped_passes
from three_walls.lib.declare import artifact, duration
from three_walls.lib.measurement import Measurement, known, missing, unstated
from three_walls.lib.report_warning import ReportWarning
from three_walls.megatron.model_shape import find_moe_layers
from three_walls.megatron.parallel_layout import has_uneven_stages
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.step.intervals import DURATION, intersect, merge_overlapping
from three_walls.step.ownership import COMPUTE_MASK
from three_walls.step.ranks.matched_ranks import MatchedRanks
from three_walls.step.step_tables import Operations, Slices
from three_walls.step.step_view import StepView
from three_walls.tables.buckets import GEMM_CATEGORIES

_DIRECTIONS = (FORWARD, RECOMPUTE, BACKWARD)
_NOT_IN_PLACE = "the GEMMs around the router are not in the order of shared experts in every MoE layer"
_NO_SIDE_STREAM = "overlapped shared experts run on a stream of their own: not exactly one such stream has GEMMs"


@dataclass(frozen=True, slots=True)
class MoeLedger:
    """``rows`` in order of layer, direction and part."""

    rows: tuple[MoePart, ...]
    shared_experts: Measurement[PartOperations]
    """Their GEMMs: find_shared_experts."""
    rates: ExchangeRates
    warnings: tuple[ReportWarning, ...] = ()


@artifact
def moe_ledger(
    step: StepView,
    attention_passes: AttentionPasses,
    recompute: Recompute,
    matched_ranks: MatchedRanks,
    ep_link_bytes_per_s: Measurement[float],
) -> Measurement[MoeLedger]:
    """The ledger of the step; missing where passes through MoE layers cannot be separated."""
    attention = attention_passes
    if recompute.kind == SELECTIVE:
        # Attention replayed alone exchanges no tokens: it separates no MoE layers.
        attention = attention.filter(pl.col("direction") != RECOMPUTE)
    layer_passes = _find_passes(step, attention, recompute.replays)
    if layer_passes.reason:
        return missing(layer_passes.reason)
    streams = attention["stream"].unique().to_list()
    shared_experts = find_shared_experts(step.started, layer_passes.passes, streams, step.config)
    operations = [each for each in (layer_passes.operations, shared_experts.value) if each is not None]
    microbatches = step.layout.microbatches
    mismatch = _find_mismatch(layer_passes.passes, step.config, microbatches)
    is_countable = microbatches is not None and mismatch is None
    passes = _number_layers(layer_passes.passes, _moe_layers_of_rank(step.config) if is_countable else None)
    of_rank = matched_ranks.arrivals.filter(pl.col("rank_index") == step.rank_index)
    rates = measure_rates(
        layer_passes.exchanges.join(layer_passes.passes.select("pass", "direction"), on="pass"), of_rank, step.config
    )
    link = ep_link_bytes_per_s.value
    rows = tuple(_with_rate(row, passes, rates, link) for row in _sum_parts(passes, pl.concat(operations), step.slices))
    if mismatch is None:
        return known(MoeLedger(rows, shared_experts, rates))
    message = f"{mismatch}. The MoE layers are shown without their numbers. Check that the config is of this run."
    return known(MoeLedger(rows, shared_experts, rates, (ReportWarning("moe-layers-mismatch", message),)))


@artifact
def moe_layers(moe_ledger: MoeLedger) -> tuple[MoePart, ...]:
    """The rows of the ledger."""
    return moe_ledger.rows


@artifact
def token_rates(moe_ledger: MoeLedger) -> Measurement[TokenRates]:
    """How fast the step's exchanges of tokens ran."""
    return moe_ledger.rates.measured


@duration("shared expert GEMM time per step")
def shared_expert_ns(moe_ledger: MoeLedger) -> Measurement[int]:
    """Time per step that GEMMs of shared experts take, in all MoE layers and directions."""
    if moe_ledger.shared_experts.missing_reason:
        return missing(moe_ledger.shared_experts.missing_reason)
    return known(sum(row.ns for row in moe_ledger.rows if row.part == SHARED_EXPERT))


@duration("backward expert GEMM time per step")
def expert_backward_gemm_ns(moe_ledger: MoeLedger) -> int:
    """Time per step that GEMMs of routed experts take in backward passes, in all MoE layers."""
    return sum(row.ns for row in moe_ledger.rows if (row.direction, row.part) == (BACKWARD, EXPERT_GEMM))


@duration("exposed backward dispatch time per step")
def dispatch_backward_exposed_ns(moe_ledger: MoeLedger) -> int:
    """Time per step in which the backward pass of the dispatch (the exchange of what leaves the experts) runs and no
    compute kernel does, waiting included."""
    # In a backward pass combine follows the expert GEMMs: it reverses the dispatch of the forward pass.
    return sum(row.exposed_ns for row in moe_ledger.rows if (row.direction, row.part) == (BACKWARD, COMBINE))


def _find_passes(step: StepView, attention: pl.DataFrame, replays: pl.DataFrame | None) -> LayerPasses:
    """Passes by the schedule's ranges; else by order on the device; else, under overlap, by order of the launches."""
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


def _sum_parts(passes: pl.DataFrame, operations: pl.DataFrame, slices: Slices) -> list[MoePart]:
    """Sums per layer, direction and part. ``operations``: pass, part, start_ns, end_ns of every operation."""
    key = ["pass", "part"]
    union = merge_overlapping(operations, key)
    not_computing = merge_overlapping(slices.filter((pl.col("active") & COMPUTE_MASK) == 0), ["rank_index"])
    # Only an exchange can be exposed: the other parts compute.
    exchanges = union.filter(pl.col("part").is_in([DISPATCH, COMBINE])).join(
        not_computing.select("rank_index").head(1), how="cross"
    )
    exposed = intersect(exchanges, not_computing, ["rank_index"]).group_by(key).agg(exposed_ns=DURATION.sum())
    sums = (
        union.group_by(key)
        .agg(ns=DURATION.sum())
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


def _with_rate(row: MoePart, passes: pl.DataFrame, rates: ExchangeRates, link: float | None) -> MoePart:
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


def _number_layers(passes: pl.DataFrame, layers: list[int] | None) -> pl.DataFrame:
    """``passes`` with ``layer`` (one of ``layers``; null throughout where that is not certain).

    Micro-batches run one after the other: each goes forward through the layers in order and back in reverse.
    """
    without_layer = passes.with_columns(layer=pl.lit(None, dtype=pl.Int64))
    if layers is None:
        return without_layer
    numbered = _assign_layers(passes, layers)
    return without_layer if numbered["layer"].null_count() else numbered  # some pass has no forward pass


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
        layers = _moe_layers_of_rank(config)
        return None if layers is None else len(layers)
    count = config.whole_number("num_layers")
    has_dense = config.knows("moe_layer_freq") and config.get("moe_layer_freq") != 1
    has_more = bool(config.get("mtp_num_layers"))
    if not count or not stages or count % stages or has_dense or has_more or has_uneven_stages(config):
        return None
    return count // stages


def _moe_layers_of_rank(config: RunConfig) -> list[int] | None:
    """Numbers (from 0) of the MoE layers that a rank holds, in order; None with more than one pipeline stage.

    None with multi-token prediction too: the step then runs more layers than the model's.
    """
    count = config.whole_number("num_layers")
    if not count or config.whole_number("pipeline_model_parallel_size") != 1 or config.get("mtp_num_layers"):
        return None
    layers = find_moe_layers(config, count).value
    return None if layers is None else sorted(layers)


def _assign_layers(passes: pl.DataFrame, layers: list[int]) -> pl.DataFrame:
    """``passes`` with their layer.

    Forward passes run through the layers in order, backward passes in reverse; a replay has the layer of its forward
    pass.
    """
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


def find_shared_experts(
    operations: Operations, passes: MoePasses, streams: list[int], config: RunConfig
) -> Measurement[PartOperations]:
    """The GEMMs of shared experts. A known None where the config has none.

    There are two per layer forward and four backward, in a place that Megatron Core's transformer/moe/moe_layer.py
    fixes. Forward they run between the norm before the MLP and the router: GEMM, activation, GEMM, then the router's
    own GEMM. Backward they run in reverse, after the router's GEMMs and right before that norm's backward: two GEMMs,
    activation, two GEMMs. With ``moe_shared_expert_overlap`` they run on a stream of their own
    (transformer/moe/shared_experts.py). A gate on their output is left out.

    ``operations``: one rank's of the step, all categories. ``streams``: those that compute attention.
    """
    if not config.knows("moe_shared_expert_intermediate_size"):
        return unstated("moe_shared_expert_intermediate_size")
    if not config.get("moe_shared_expert_intermediate_size"):
        return Measurement(None)
    kernels = operations.filter(pl.col("kind") == "kernel").with_columns(
        category=pl.col("category").cast(pl.String), is_gemm=pl.col("category").is_in(list(GEMM_CATEGORIES))
    )
    if config.get("moe_shared_expert_overlap") is True:
        gemms = _gemms_of_side_stream(kernels, passes, streams)
        reason = _NO_SIDE_STREAM
    else:
        gemms = _gemms_next_to_router(kernels.filter(pl.col("stream").is_in(streams)), passes)
        reason = _NOT_IN_PLACE
    if gemms is None or not _every_pass_is_complete(gemms, passes):
        return missing(reason)
    return known(gemms.select("pass", pl.lit(SHARED_EXPERT).alias("part"), "start_ns", "end_ns"))


def _gemms_of_side_stream(kernels: pl.DataFrame, passes: pl.DataFrame, streams: list[int]) -> pl.DataFrame | None:
    side_gemms = kernels.filter(pl.col("is_gemm") & ~pl.col("stream").is_in(streams))
    if side_gemms["stream"].n_unique() != 1 or "from_ns" not in passes.columns:
        return None
    return _within(side_gemms, passes.select("pass", "direction", begin="from_ns", until="until_ns"))


def _gemms_next_to_router(kernels: Operations, passes: pl.DataFrame) -> Operations:
    """GEMMs in the place of shared experts between the norm and the router of each pass."""
    routed = _within(kernels, passes.select("pass", "direction", begin="route_from_ns", until="route_until_ns"))
    is_norm, is_router = pl.col("category") == "norm", pl.col("category") == "router"
    at, goes_back = pl.col("start_ns"), pl.col("direction") == BACKWARD
    norm_ns = pl.when(goes_back).then(at.filter(is_norm).min()).otherwise(at.filter(is_norm).max()).over("pass")
    bounded = routed.with_columns(norm_ns=norm_ns).with_columns(
        router_ns=at.filter(is_router & (goes_back | (at > pl.col("norm_ns")))).min().over("pass")
    )
    is_between = (
        pl.when(goes_back)
        .then(at.is_between("router_ns", "norm_ns", closed="none"))
        .otherwise(at.is_between("norm_ns", "router_ns", closed="none"))
    )
    # GEMMs with nothing between them are one run: an activation separates the first linear layer from the second.
    gemms = bounded.filter(is_between).with_columns(run=pl.col("is_gemm").rle_id().over("pass")).filter("is_gemm")
    ordered = gemms.with_columns(
        run=pl.col("run").rank("dense").over("pass"),
        run_from_last=pl.col("run").rank("dense", descending=True).over("pass"),
        first=pl.int_range(pl.len()).over("pass", "run"),
        length=pl.len().over("pass", "run"),
    ).with_columns(last=pl.col("length") - 1 - pl.col("first"))
    forward = (pl.col("first") == 0) & ((pl.col("run") == 2) | ((pl.col("run") == 1) & (pl.col("length") == 1)))
    backward = (pl.col("last") < 2) & (
        (pl.col("run_from_last") == 2) | ((pl.col("run_from_last") == 1) & (pl.col("length") == 2))
    )
    marked = ordered.with_columns(is_shared=pl.when(goes_back).then(backward).otherwise(forward))
    # The router's own GEMM must be left over: else these are the router's.
    return marked.filter((~pl.col("is_shared")).any().over("pass") & pl.col("is_shared"))


def _within(kernels: Operations, windows: pl.DataFrame) -> Operations:
    """``kernels`` that start in a pass's window [begin, until), in order, with pass and direction."""
    return (
        kernels.sort("start_ns", "end_ns")
        .join_asof(windows.sort("begin"), left_on="start_ns", right_on="begin", strategy="backward")
        .filter(pl.col("start_ns") < pl.col("until"))
    )


def _every_pass_is_complete(gemms: Operations, passes: pl.DataFrame) -> bool:
    """Whether every pass has as many GEMMs as shared experts run."""
    expected = pl.when(pl.col("direction") == BACKWARD).then(BACKWARD_GEMMS).otherwise(FORWARD_GEMMS)
    counts = passes.join(gemms.group_by("pass").len(), on="pass", how="left")
    return bool(counts.select((pl.col("len").fill_null(0) == expected).all()).item())
