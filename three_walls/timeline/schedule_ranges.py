"""NVTX ranges of Megatron's expert-parallel overlap: the nodes of a layer that its schedule launches one by one.

Megatron Core's ``ScheduleNode`` (pipeline_parallel/utils.py) puts a range around each node it launches, always up to
0.16 and with ``nvtx_ranges`` since. A range is named for the node and its direction; delayed weight gradients have
one of their own (models/gpt/fine_grained_callables.py).
"""

from __future__ import annotations

import polars as pl

ATTENTION, DISPATCH_NODE, EXPERTS, COMBINE_NODE = "attn", "moe_dispatch", "mlp", "moe_combine"
WEIGHT_GRADIENTS = "wgrad"

NODE_TEXTS = (
    *(
        f"{node} {direction}"
        for node in (ATTENTION, DISPATCH_NODE, EXPERTS, COMBINE_NODE)
        for direction in ("forward", "backward")
    ),
    f"{EXPERTS} {WEIGHT_GRADIENTS}",
)

SCHEDULE_NODES = pl.Schema(
    {
        "capture_id": pl.Int64,
        "process": pl.Int64,
        "node": pl.String,  # attn, moe_dispatch, mlp or moe_combine
        "direction": pl.String,  # forward, backward or wgrad
        "start_ns": pl.Int64,  # when the host began to launch the node
        "end_ns": pl.Int64,
    }
)


def schedule_nodes(ranges: pl.DataFrame) -> pl.DataFrame:
    """The schedule's nodes among NVTX ``ranges`` (SCHEDULE_NODES), sorted; a range that stayed open is left out."""
    words = pl.col("text").str.split(" ")
    return (
        ranges.filter(pl.col("text").is_in(NODE_TEXTS) & pl.col("end_ns").is_not_null())
        .with_columns(node=words.list.first(), direction=words.list.last())
        .match_to_schema(SCHEDULE_NODES, extra_columns="ignore")
        .sort("capture_id", "process", "start_ns", "end_ns", "node")
    )
