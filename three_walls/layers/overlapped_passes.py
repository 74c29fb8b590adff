"""Passes through MoE layers under expert-parallel overlap, found by the ranges around what the host launched.

The forward pass of one micro-batch is launched node by node between the nodes of another's backward pass, so the order
on the device shows no layer. Within one direction layers are launched whole, one after the other: a forward layer as
attention, dispatch, experts, combine; a backward layer in the reverse order (``TransformerLayerSchedulePlan.run`` of
Megatron Core's models/common/model_chunk_schedule_plan.py).

An operation belongs to the node in whose range it was launched, whichever thread launched it: the thread that holds
the range waits for the autograd thread. A dense layer has neither dispatch nor combine.
"""

from __future__ import annotations

import polars as pl

from three_walls.layers.attention_passes import BACKWARD, FORWARD
from three_walls.layers.moe_passes import (
    COMBINE,
    DISPATCH,
    EXPERT_GEMM,
    NO_EXCHANGES,
    PERMUTE,
    ROUTER,
    UNPERMUTE,
    LayerPasses,
)
from three_walls.step.build_timeline import ATTENTION, COMBINE_NODE, DISPATCH_NODE, EXPERTS, WEIGHT_GRADIENTS
from three_walls.step.step_tables import Operations, ScheduleNodes
from three_walls.tables.buckets import GEMM_CATEGORIES, TOKEN_EXCHANGES

_MOE_ORDER = {
    FORWARD: [ATTENTION, DISPATCH_NODE, EXPERTS, COMBINE_NODE],
    BACKWARD: [COMBINE_NODE, EXPERTS, DISPATCH_NODE, ATTENTION],
}
_DENSE_ORDER = {FORWARD: [ATTENTION, EXPERTS], BACKWARD: [EXPERTS, ATTENTION]}

OUT_OF_ORDER = "the schedule's NVTX ranges of MoE layers are not in the order of expert-parallel overlap"
OUTSIDE = "a token exchange of the step was launched outside the schedule's NVTX ranges of dispatch and combine"
UNEVEN = "MoE layers of one direction exchange tokens in different numbers of calls"


def find_overlapped_passes(operations: Operations, nodes: ScheduleNodes) -> LayerPasses | None:
    """The passes of one rank's step, or None where none of ``operations`` was launched in a node.

    ``operations``: of LAYER_CATEGORIES. A pass routes its tokens
    while attention's node runs; its ``partner`` is null.
    """
    placed = _place_in_nodes(operations, _number_passes(nodes))
    if placed["pass"].null_count() == placed.height:
        return None
    is_exchange = pl.col("category").is_in(TOKEN_EXCHANGES)
    exchanges = placed.filter(is_exchange)
    if exchanges.is_empty():
        return LayerPasses(reason=NO_EXCHANGES)
    if not exchanges["node"].is_in([DISPATCH_NODE, COMBINE_NODE]).fill_null(value=False).all():
        return LayerPasses(reason=OUTSIDE)
    used = _summarize_passes(placed)
    if not used["is_in_order"].all():
        return LayerPasses(reason=OUT_OF_ORDER)
    parts = placed.with_columns(part=_part_of_operation()).filter(pl.col("part").is_not_null())
    attention = placed.filter((pl.col("node") == ATTENTION) & ~is_exchange).group_by("pass")
    passes = (
        used.filter("is_moe")
        .select("pass", "direction", partner=pl.lit(None, dtype=pl.Int64))
        .join(attention.agg(route_from_ns=pl.col("start_ns").min(), route_until_ns=pl.col("end_ns").max()), on="pass")
        .sort("pass")
    )
    sent = (
        parts.filter(is_exchange)
        .sort("start_ns", "end_ns")
        .with_columns(position=pl.int_range(pl.len(), dtype=pl.Int64).over("pass"))
    )
    if not _exchange_alike(sent, passes):
        return LayerPasses(reason=UNEVEN)
    return LayerPasses(
        passes,
        sent.select("pass", "part", "position", "start_ns", "end_ns"),
        parts.join(passes, on="pass", how="semi").select("pass", "part", "start_ns", "end_ns"),
    )


def _number_passes(nodes: ScheduleNodes) -> ScheduleNodes:
    """``nodes`` with ``pass``, unique over both directions; weight gradients belong to the backward experts before.

    A forward pass begins with attention's node, a backward pass ends with it.
    """
    process = ["capture_id", "process"]
    is_attention = (pl.col("node") == ATTENTION).cast(pl.Int64)
    directed = nodes.with_columns(
        node_direction="direction", direction=pl.col("direction").replace({WEIGHT_GRADIENTS: BACKWARD})
    ).sort("start_ns")
    begun = is_attention.cum_sum().over(*process, "direction")
    return directed.with_columns(
        is_delayed=pl.col("node_direction") == WEIGHT_GRADIENTS,
        # Even numbers go forward, odd ones back: two directions never share one.
        **{"pass": pl.when(pl.col("direction") == FORWARD).then(2 * begun).otherwise(2 * (begun - is_attention) + 1)},
    ).drop("node_direction")


def _place_in_nodes(operations: Operations, nodes: ScheduleNodes) -> Operations:
    """``operations`` with the node that launched them: pass, node, direction, is_delayed; null where none did."""
    launching = nodes.select(
        "capture_id", "process", "pass", "node", "direction", "is_delayed", node_ns="start_ns", until_ns="end_ns"
    )
    candidates = operations.sort("launch_start_ns").join_asof(
        launching.sort("node_ns"),
        left_on="launch_start_ns",
        right_on="node_ns",
        by=["capture_id", "process"],
        strategy="backward",
        check_sortedness=False,
    )
    is_inside = (pl.col("launch_start_ns") < pl.col("until_ns")).fill_null(value=False)
    placed = candidates.with_columns(
        pl.when(is_inside).then(name).alias(name) for name in ("pass", "node", "direction", "is_delayed", "node_ns")
    )
    return placed.drop("until_ns")


def _summarize_passes(operations: Operations) -> pl.DataFrame:
    """pass, direction, is_moe, is_in_order of every pass that launched an operation of the step."""
    nodes = operations.filter(pl.col("pass").is_not_null() & ~pl.col("is_delayed")).unique(["pass", "node", "node_ns"])
    passes = (
        nodes.sort("node_ns")
        .group_by("pass", maintain_order=True)
        .agg(pl.col("direction").first(), nodes="node")
        .with_columns(is_moe=pl.col("nodes").list.eval(pl.element().is_in([DISPATCH_NODE, COMBINE_NODE])).list.any())
    )
    expected = [
        (_MOE_ORDER if is_moe else _DENSE_ORDER)[direction]
        for direction, is_moe in passes.select("direction", "is_moe").rows()
    ]
    is_in_order = [list(nodes) == order for nodes, order in zip(passes["nodes"], expected, strict=True)]
    return passes.with_columns(is_in_order=pl.Series(is_in_order))


def _part_of_operation() -> pl.Expr:
    """Which part of the layer an operation is; null for the others.

    In both directions what runs before the expert GEMMs is dispatch, what runs after them combine. Attention's node
    permutes for itself too (rotary embedding): the permutation of tokens is what stands between dispatch or combine and
    the nearest GEMM or norm.
    """
    node, goes_forward = pl.col("node"), pl.col("direction") == FORWARD
    is_exchange, permutes = pl.col("category").is_in(TOKEN_EXCHANGES), pl.col("category") == "permute"
    is_gemm = pl.col("category").is_in(GEMM_CATEGORIES)
    boundary_ns = pl.col("launch_start_ns").filter(is_gemm | (pl.col("category") == "norm"))
    gemm_ns = pl.col("launch_start_ns").filter(is_gemm & ~pl.col("is_delayed"))
    same_node = ["pass", "node"]
    is_before_gemms = (
        pl.when(node == EXPERTS)
        .then(pl.col("launch_start_ns") < gemm_ns.min().over(same_node))
        .otherwise(goes_forward == node.is_in([ATTENTION, DISPATCH_NODE]))
    )
    permutes_tokens = permutes & (
        pl.when(node != ATTENTION)
        .then(pl.lit(value=True))
        .when(goes_forward)
        .then(pl.col("launch_start_ns") > boundary_ns.max().over(same_node))
        .otherwise(pl.col("launch_start_ns") < boundary_ns.min().over(same_node))
    )
    return (
        pl.when(pl.col("pass").is_null())
        .then(None)
        .when(is_exchange)
        .then(pl.when(is_before_gemms).then(pl.lit(DISPATCH)).otherwise(pl.lit(COMBINE)))
        .when(is_gemm & (node == EXPERTS))
        .then(pl.lit(EXPERT_GEMM))
        .when((pl.col("category") == "router") & (node == ATTENTION))
        .then(pl.lit(ROUTER))
        .when(permutes_tokens)
        .then(pl.when(is_before_gemms).then(pl.lit(PERMUTE)).otherwise(pl.lit(UNPERMUTE)))
    )


def _exchange_alike(exchanges: Operations, passes: pl.DataFrame) -> bool:
    """Whether every pass exchanges tokens both ways, and all of one direction in as many calls."""
    counts = passes.join(
        exchanges.group_by("pass").agg((pl.col("part") == part).sum().alias(part) for part in (DISPATCH, COMBINE)),
        on="pass",
        how="left",
    )
    is_complete = (pl.col(DISPATCH).fill_null(0) > 0) & (pl.col(COMBINE).fill_null(0) > 0)
    patterns = counts.group_by("direction").agg(pl.struct(DISPATCH, COMBINE).n_unique().alias("patterns"))
    return bool(counts.select(is_complete.all()).item()) and bool((patterns["patterns"] == 1).all())
