"""Whose exchange an NCCL SendRecv is: experts, pipeline or context. What stays open stays its own bucket.

Evidence, in order of trust: an NVTX range of PyTorch around the launch that names the all-to-all (and then its
absence around the others); the parallel sizes of the config, where only one of them can exchange; the stream: an
exchange on a stream that also computes is a blocking all-to-all, pipeline exchange has streams of its own.
"""

from __future__ import annotations

import polars as pl

from three_walls.model.buckets import SEND_RECV
from three_walls.model.config import RunConfig
from three_walls.timeline.attention_context import PRODUCTS
from three_walls.timeline.enclosing import launched_inside
from three_walls.timeline.schemas import CATEGORY, CATEGORY_OR_SEND_RECV

MEGATRON_TEXTS = ("_AllToAll",)
"""Ranges of Megatron Core's own all-to-all, which its token dispatcher calls (and nothing of context parallelism)."""

ALL_TO_ALL_TEXTS = (*MEGATRON_TEXTS, "nccl:all_to_all", "nccl:alltoall", "c10d::alltoall")
"""Ranges that PyTorch's emit_nvtx and ProcessGroupNCCL put around any all-to-all."""

AMBIGUOUS = "send_recv_ambiguous"

_OWNERS = {
    "expert_model_parallel_size": "ep_all_to_all",
    "pipeline_model_parallel_size": "pipeline_p2p",
    "context_parallel_size": "context_ring",
}


def resolve_send_recv(operations: pl.DataFrame, ranges: pl.DataFrame, config: RunConfig) -> pl.DataFrame:
    """``operations`` of one report with every ``send_recv`` replaced by its owner's category.

    They have a communicator each, null where not known; ``ranges`` are NVTX ranges with one of ALL_TO_ALL_TEXTS.
    With context parallelism an all-to-all may be the context's own (Ulysses), so no range is trusted there; where the
    sizes are not known only Megatron's is.
    """
    exchanges = pl.col("category") == pl.lit(SEND_RECV, dtype=CATEGORY_OR_SEND_RECV)
    named = operations.with_columns(inside=launched_inside(operations, _trusted_ranges(ranges, config)))
    # Where NCCL says on which communicator, one range speaks for all calls on it.
    on_it = pl.col("inside").any().over("rank_index", "communicator") & pl.col("communicator").is_not_null()
    marked = named.with_columns(inside=pl.col("inside") | on_it)
    elsewhere = _owner_of_the_rest(bool(marked.filter(exchanges)["inside"].any()), config)
    owner = pl.when("inside").then(pl.lit("ep_all_to_all")).otherwise(elsewhere)
    return marked.with_columns(
        category=pl.when(exchanges).then(owner).otherwise(pl.col("category").cast(pl.String)).cast(CATEGORY)
    ).drop("inside")


def _owner_of_the_rest(ranges_name_experts: bool, config: RunConfig) -> pl.Expr:
    """Owner of the exchanges that lie in no trusted range."""
    if ranges_name_experts:  # the experts' are all marked: the rest is somebody else's
        return pl.lit(owner_by_config(config, without="expert_model_parallel_size"))
    if owner_by_config(config) != AMBIGUOUS or not _experts_and_pipeline_only(config):
        return pl.lit(owner_by_config(config))
    computes = pl.col("category").is_in([*PRODUCTS]).any().over("rank_index", "stream")
    on_own_stream = AMBIGUOUS if config.get("overlap_moe_expert_parallel_comm") is not False else "pipeline_p2p"
    return pl.when(computes).then(pl.lit("ep_all_to_all")).otherwise(pl.lit(on_own_stream))


def _experts_and_pipeline_only(config: RunConfig) -> bool:
    """Experts by NCCL all-to-all and a pipeline, no context: two kinds of exchange to tell apart."""
    experts, pipeline = config.size("expert_model_parallel_size"), config.size("pipeline_model_parallel_size")
    plain = config.get("moe_token_dispatcher_type") == "alltoall"
    return plain and config.size("context_parallel_size") == 1 and (experts or 0) > 1 and (pipeline or 0) > 1


def _trusted_ranges(ranges: pl.DataFrame, config: RunConfig) -> pl.DataFrame:
    context, experts = config.size("context_parallel_size"), config.size("expert_model_parallel_size")
    if context is not None and context > 1:
        return ranges.clear()
    if context == 1 and experts is not None and experts > 1:
        return ranges
    return ranges.filter(pl.col("text").str.contains_any(list(MEGATRON_TEXTS)))


def owner_by_config(config: RunConfig, without: str = "") -> str:
    """The only kind of exchange that the parallel sizes allow (but ``without``), or ``send_recv_ambiguous``."""
    sizes = {key: config.size(key) for key in _OWNERS if key != without}
    exchanging = [key for key, size in sizes.items() if size is None or size > 1]
    if len(exchanging) != 1 or sizes[exchanging[0]] is None:
        return AMBIGUOUS
    if exchanging == ["expert_model_parallel_size"] and config.get("moe_token_dispatcher_type") == "flex":
        return AMBIGUOUS  # flex carries tokens by its own kernels: this exchange is somebody else's
    return _OWNERS[exchanging[0]]
