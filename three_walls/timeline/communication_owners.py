"""Whose a communication is: experts, tensors, data, pipeline or context. What stays open keeps its own bucket.

The evidence for an NCCL SendRecv, in order of trust: an NVTX range of PyTorch around the launch that names the
all-to-all (and then its absence around the others); the parallel sizes of the config, where only one of them can
exchange; the stream: an exchange on a stream that also computes is a blocking all-to-all, pipeline exchanges have
streams of their own.

The evidence for a collective, in order of trust: the NVTX ranges around the launch (tables/collective-owners.yaml); the
communicator, if some call on it lies in such a range; the parallel sizes, where only one kind of group can run that
operation. Without tensor and context parallelism a reduce-scatter is one of gradients and an all-gather one of
parameters, except for the token counts that the dispatcher gathers: a few kilobytes, for which NCCL takes a single
channel (one block), while buckets of parameters take more. All-reduces stay open unless gradients are reduced with them
(no distributed optimizer): the gradient norm, losses and auxiliary losses run on several groups.
"""

from __future__ import annotations

import polars as pl

from three_walls.model.buckets import GEMM_CATEGORIES, SEND_RECV
from three_walls.model.config import RunConfig
from three_walls.tables.nvtx_ranges import DATA_PARALLEL, TENSOR_PARALLEL, TOKENS, OwnerTexts
from three_walls.timeline.categories import CATEGORY, CATEGORY_OR_SEND_RECV

MEGATRON_TEXTS = ("_AllToAll",)
"""Ranges of Megatron Core's own all-to-all, which its token dispatcher calls (and nothing of context parallelism)."""

ALL_TO_ALL_TEXTS = (*MEGATRON_TEXTS, "nccl:all_to_all", "nccl:alltoall", "c10d::alltoall")
"""Ranges that PyTorch's emit_nvtx and ProcessGroupNCCL put around any all-to-all."""

AMBIGUOUS = "send_recv_ambiguous"

BY_OPERATION = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "other_collective")
"""Buckets of collectives whose owner is not known."""

_EXCHANGES = {
    "expert_model_parallel_size": "ep_all_to_all",
    "pipeline_model_parallel_size": "pipeline_p2p",
    "context_parallel_size": "context_ring",
}
"""Parallel size -> the category of its SendRecv exchange."""

_ONE_CHANNEL = pl.col("grid_x") == 1


def resolve_send_recv(operations: pl.DataFrame, ranges: pl.DataFrame, config: RunConfig) -> pl.DataFrame:
    """``operations`` of one capture with every ``send_recv`` replaced by its owner's category.

    ``operations`` have a ``communicator``, null where it is not known; ``ranges`` are NVTX ranges with one of
    ALL_TO_ALL_TEXTS. With context parallelism an all-to-all may be the context's own (Ulysses), so no range is trusted
    there; where the sizes are not known only Megatron's is.
    """
    is_exchange = pl.col("category") == pl.lit(SEND_RECV, dtype=CATEGORY_OR_SEND_RECV)
    in_range = operations.with_columns(inside=launched_inside(operations, _trusted_ranges(ranges, config)))
    # Where NCCL states the communicator, one range decides for all calls on it.
    on_same = pl.col("inside").any().over("rank_index", "communicator") & pl.col("communicator").is_not_null()
    marked = in_range.with_columns(inside=pl.col("inside") | on_same)
    elsewhere = _owner_outside_ranges(bool(marked.filter(is_exchange)["inside"].any()), config)
    owner = pl.when("inside").then(pl.lit("ep_all_to_all")).otherwise(elsewhere)
    return marked.with_columns(
        category=pl.when(is_exchange).then(owner).otherwise(pl.col("category").cast(pl.String)).cast(CATEGORY)
    ).drop("inside")


def _trusted_ranges(ranges: pl.DataFrame, config: RunConfig) -> pl.DataFrame:
    context, experts = config.size("context_parallel_size"), config.size("expert_model_parallel_size")
    if context is not None and context > 1:
        return ranges.clear()
    if context == 1 and experts is not None and experts > 1:
        return ranges
    return ranges.filter(pl.col("text").str.contains_any(list(MEGATRON_TEXTS)))


def _owner_outside_ranges(ranges_name_experts: bool, config: RunConfig) -> pl.Expr:
    """Owner of the exchanges that lie in no trusted range."""
    if ranges_name_experts:  # the experts' exchanges are all marked: the rest has another owner
        return pl.lit(_exchange_by_config(config, without="expert_model_parallel_size"))
    owner = _exchange_by_config(config)
    if owner != AMBIGUOUS or not _experts_and_pipeline_only(config):
        return pl.lit(owner)
    computes = pl.col("category").is_in(list(GEMM_CATEGORIES)).any().over("rank_index", "stream")
    on_own_stream = AMBIGUOUS if config.get("overlap_moe_expert_parallel_comm") is not False else "pipeline_p2p"
    return pl.when(computes).then(pl.lit("ep_all_to_all")).otherwise(pl.lit(on_own_stream))


def _experts_and_pipeline_only(config: RunConfig) -> bool:
    """Experts by NCCL all-to-all and a pipeline, no context: two kinds of exchange to distinguish."""
    experts, pipeline = config.size("expert_model_parallel_size"), config.size("pipeline_model_parallel_size")
    by_all_to_all = config.get("moe_token_dispatcher_type") == "alltoall"
    return by_all_to_all and config.size("context_parallel_size") == 1 and (experts or 0) > 1 and (pipeline or 0) > 1


def _exchange_by_config(config: RunConfig, without: str = "") -> str:
    """The only kind of exchange that the parallel sizes (except ``without``) allow, or ``send_recv_ambiguous``."""
    sizes = {key: config.size(key) for key in _EXCHANGES if key != without}
    exchanging = [key for key, size in sizes.items() if size is None or size > 1]
    if len(exchanging) != 1 or sizes[exchanging[0]] is None:
        return AMBIGUOUS
    if exchanging == ["expert_model_parallel_size"] and config.get("moe_token_dispatcher_type") == "flex":
        return AMBIGUOUS  # flex carries tokens with its own kernels: this exchange has another owner
    return _EXCHANGES[exchanging[0]]


def resolve_collectives(
    operations: pl.DataFrame, ranges: pl.DataFrame, owners: tuple[OwnerTexts, ...], config: RunConfig
) -> pl.DataFrame:
    """``operations`` of one capture with every collective whose owner is known in that owner's category.

    ``operations`` have a ``communicator``, null where it is not known; ``ranges`` are NVTX ranges.
    """
    by_range = operations.with_columns(owner=_owner_by_range(operations, ranges, owners))
    owned = by_range.with_columns(owner=pl.coalesce("owner", _owner_by_communicator()))
    category = pl.col("category").cast(pl.String)
    resolved = pl.coalesce(_category_of_owner(config), _category_by_config(config), category)
    return owned.with_columns(
        category=pl.when(category.is_in(BY_OPERATION)).then(resolved).otherwise(category).cast(CATEGORY)
    ).drop("owner")


def _owner_by_range(operations: pl.DataFrame, ranges: pl.DataFrame, owners: tuple[OwnerTexts, ...]) -> pl.Series:
    """Owner of the first row of the table with a range around the launch; null if there is none."""
    found = pl.repeat(None, n=operations.height, dtype=pl.String, eager=True)
    for row in owners:
        around = ranges.filter(pl.col("text").str.contains_any(list(row.texts)))
        inside = launched_inside(operations, around)
        flagged = pl.DataFrame({"owner": found, "inside": inside}).select(
            pl.coalesce("owner", pl.when("inside").then(pl.lit(row.owner)))
        )
        found = flagged.to_series()
    return found.alias("owner")


def _owner_by_communicator() -> pl.Expr:
    """The owner of the calls on the same communicator that lie in a range, if they agree."""
    same = ["rank_index", "communicator"]
    owners = pl.col("owner").drop_nulls()
    agreed = pl.when(owners.unique().len().over(same) == 1).then(owners.first().over(same))
    return pl.when(pl.col("communicator").is_not_null()).then(agreed)


def _category_of_owner(config: RunConfig) -> pl.Expr:
    """Category by owner; null where the sizes contradict it."""
    tensor, experts = _tensor_size(config), config.size("expert_model_parallel_size")
    of_tensors = pl.lit(TENSOR_PARALLEL)
    if tensor == 1:
        # A group of one rank communicates nothing. With experts these functions then run over the experts' group,
        # where the all-gather dispatcher moves tokens with them and the other dispatchers gather counts.
        of_tensors = pl.lit("ep_dispatch_combine" if (experts or 0) > 1 else None, dtype=pl.String)
    counts = _ONE_CHANNEL & (pl.col("category").cast(pl.String) == "all_gather") & pl.lit((experts or 0) > 1)
    if tensor == 1 and config.get("moe_token_dispatcher_type") in ("alltoall", "flex"):
        counts = pl.lit((experts or 0) > 1)
    return (
        pl.when(pl.col("owner") == DATA_PARALLEL)
        .then(pl.lit(DATA_PARALLEL))
        .when((pl.col("owner") == TOKENS) & counts.fill_null(value=False))
        .then(pl.lit("ep_control"))
        .when(pl.col("owner").is_in([TENSOR_PARALLEL, TOKENS]))
        .then(of_tensors)
    )


def _category_by_config(config: RunConfig) -> pl.Expr:
    """Category where the sizes leave one kind of group for the operation; null elsewhere."""
    context, experts = config.size("context_parallel_size"), config.size("expert_model_parallel_size")
    if _tensor_size(config) != 1 or context != 1 or experts is None:
        return pl.lit(None, dtype=pl.String)
    category = pl.col("category").cast(pl.String)
    if config.get("moe_token_dispatcher_type") == "allgather" and experts > 1:
        return pl.lit(None, dtype=pl.String)
    small = pl.lit("ep_control" if experts > 1 else None, dtype=pl.String)
    reduces_gradients = pl.lit(config.get("use_distributed_optimizer") is False)
    return (
        pl.when(category == "reduce_scatter")
        .then(pl.lit(DATA_PARALLEL))
        .when((category == "all_gather") & _ONE_CHANNEL)
        .then(small)
        .when((category == "all_gather") & (pl.col("grid_x") > 1))
        .then(pl.lit(DATA_PARALLEL))
        .when((category == "all_reduce") & (pl.col("grid_x") > 1) & reduces_gradients)
        .then(pl.lit(DATA_PARALLEL))
    )


def _tensor_size(config: RunConfig) -> int | None:
    """1 if neither dense layers nor experts are tensor parallel, more if either is; None if not known."""
    tensor = config.size("tensor_model_parallel_size")
    expert_tensor = config.size("expert_tensor_parallel_size") or tensor
    return None if tensor is None or expert_tensor is None else max(tensor, expert_tensor)


def launched_inside(operations: pl.DataFrame, ranges: pl.DataFrame) -> pl.Series:
    """Per operation: whether its launch lies in one of ``ranges`` (HOST_RANGES of one capture) on its thread."""
    if ranges.is_empty():
        return pl.repeat(value=False, n=operations.height, eager=True)
    # Ranges of one thread nest, so the one that opened last before the launch may have closed while an outer
    # one is still open: the latest end so far decides.
    open_until = (
        ranges.with_columns(end_ns=pl.col("end_ns").fill_null(2**62))
        .sort("start_ns")
        .with_columns(open_until_ns=pl.col("end_ns").cum_max().over("thread"))
        .select("thread", "start_ns", "open_until_ns")
    )
    launches = operations.with_row_index("row").select("row", "launch_start_ns", thread="launch_thread")
    found = (
        launches.drop_nulls()
        .sort("launch_start_ns")
        .join_asof(
            open_until,
            left_on="launch_start_ns",
            right_on="start_ns",
            by="thread",
            strategy="backward",
            check_sortedness=False,
        )
        .select("row", inside=(pl.col("open_until_ns") > pl.col("launch_start_ns")).fill_null(value=False))
    )
    return launches.join(found, on="row", how="left", maintain_order="left")["inside"].fill_null(value=False)
