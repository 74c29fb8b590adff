"""Which kind of parallelism each NCCL kernel belongs to: expert, tensor, data, pipeline or context.

A kernel whose owner the evidence does not settle keeps a category of its own.

An NCCL SendRecv is settled by the first of these that applies:

1. An NVTX range of PyTorch around its launch names the all-to-all. Where some are named, those outside such ranges are
   not the experts'.
2. By the parallel sizes of the config only one kind of exchange is possible.
3. Its stream: an exchange on a stream that also computes is a blocking all-to-all; pipeline exchanges have streams of
   their own.

A collective is settled by the first of these that applies:

1. The NVTX ranges around its launch (``tables/collective-owners.yaml``).
2. Its communicator, where another call on it lies in such a range.
3. The parallel sizes, where only one kind of group can run that operation. Without tensor and context parallelism a
   reduce-scatter carries gradients, and an all-gather carries parameters or the dispatcher's token counts. Token counts
   are a few kilobytes, for which NCCL uses a single channel (one block); buckets of parameters use more. All-reduces
   stay open unless they reduce the gradients (no distributed optimizer), because the gradient norm, losses and
   auxiliary losses run on several groups. Where no two ranks hold the same parameters, nothing but tensor parallelism
   reduces and scatters, and it gathers all that is more than token counts.

The communicator is known where NCCL's own NVTX ranges state it. A kernel is launched inside the range of its call or,
where calls are grouped, inside the end of the outermost group. A group with calls on several communicators launches
several kernels that nothing distinguishes: their communicator stays unknown.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from three_walls.megatron.parallel_layout import read_layout
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.step.categories import CATEGORY, CATEGORY_OR_SEND_RECV
from three_walls.step.step_tables import ClassifiedOperations, Operations
from three_walls.tables.buckets import COMMUNICATION_CATEGORIES, GEMM_CATEGORIES, SEND_RECV
from three_walls.tables.nvtx_ranges import DATA_PARALLEL, TENSOR_PARALLEL, TOKENS, OwnerTexts
from three_walls.trace.nccl_payload import GROUP_END, GROUP_START
from three_walls.trace.schemas import HostRanges, NcclCalls

MEGATRON_TEXTS = ("_AllToAll",)
"""Ranges of Megatron Core's own all-to-all: its token dispatcher calls it, context parallelism does not."""

ALL_TO_ALL_TEXTS = (*MEGATRON_TEXTS, "nccl:all_to_all", "nccl:alltoall", "c10d::alltoall")
"""The same, and the ranges that PyTorch's emit_nvtx and ProcessGroupNCCL put around any all-to-all."""

AMBIGUOUS = "send_recv_ambiguous"

BY_OPERATION = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "other_collective")
"""Categories of collectives whose owner is not known."""

_EXCHANGES = {
    "expert_model_parallel_size": "ep_all_to_all",
    "pipeline_model_parallel_size": "pipeline_p2p",
    "context_parallel_size": "context_ring",
}
"""Parallel size -> category of the SendRecv exchanges of that parallelism."""

_ONE_CHANNEL = pl.col("grid_x") == 1
NCCL_CATEGORIES = [*COMMUNICATION_CATEGORIES, SEND_RECV]
"""Categories of the operations that communicate, before and after their owners are known."""
_IS_GROUP_MARK = pl.col("call_name").is_in([GROUP_START, GROUP_END])


def take_ranges(ranges: HostRanges, texts: Sequence[str], distinct: pl.Series | None = None) -> HostRanges:
    """The ``ranges`` whose text holds one of ``texts``. ``distinct``: their texts, each once, where that is known.

    Hundreds of thousands of ranges have some dozens of texts: to search each of these once takes an eighth of the time.
    """
    each = ranges["text"].unique() if distinct is None else distinct
    matches = each.filter(each.str.contains_any(list(texts)))
    return ranges.clear() if matches.is_empty() else ranges.filter(pl.col("text").is_in(matches.implode()))


def join_communicators(operations: ClassifiedOperations, nccl_calls: NcclCalls) -> Operations:
    """Adds ``communicator`` and ``message_bytes`` to the ``operations`` of one capture, null where not known.

    ``nccl_calls``: NCCL_CALLS of the same capture. The message of a group is what it sends or receives, whichever is
    more, or, if it does neither, all of it; it is known only where one kernel carries it.
    """
    if nccl_calls.is_empty():
        return operations.with_columns(
            communicator=pl.lit(None, dtype=pl.UInt64), message_bytes=pl.lit(None, dtype=pl.Int64)
        )
    rows = operations.with_row_index("row")
    launches = (
        rows.filter(pl.col("category").cast(pl.String).is_in(NCCL_CATEGORIES))
        .select("row", "launch_start_ns", thread="launch_thread")
        .drop_nulls()
        .sort("launch_start_ns")
    )
    calls = _number_groups(nccl_calls)
    ungrouped = calls.filter(~_IS_GROUP_MARK & (pl.col("depth") == 0))
    outside_groups = _in_ranges(launches, ungrouped, ["communicator", "message_bytes"]).drop("thread")
    communicators = pl.concat([outside_groups, _in_groups(launches, calls)])
    return rows.join(communicators, on="row", how="left", maintain_order="left").drop("row")


def _number_groups(calls: pl.DataFrame) -> pl.DataFrame:
    """Adds ``depth`` (groups open after the call's start) and ``group`` (number of the outermost one) to ``calls``.

    The end that closes the outermost group has depth 0. A capture can begin inside a group, so an end without a start
    closes nothing.
    """
    opens = (pl.col("call_name") == GROUP_START).cast(pl.Int64)
    closes = (pl.col("call_name") == GROUP_END).cast(pl.Int64)
    level = (opens - closes).cum_sum()
    lowest = level.cum_min().clip(upper_bound=0)
    ordered = calls.sort("thread", "start_ns", "end_ns").with_columns(depth=(level - lowest).over("thread"))
    begins = (pl.col("call_name") == GROUP_START) & (pl.col("depth") == 1)
    return ordered.with_columns(group=begins.cast(pl.Int64).cum_sum().over("thread"))


def _in_groups(launches: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Launches inside the end of an outermost group: row, communicator, message_bytes."""
    key = ["thread", "group"]
    sends, receives = pl.col("call_name") == "ncclSend", pl.col("call_name") == "ncclRecv"
    size = pl.col("message_bytes")
    groups = (
        calls.filter(~_IS_GROUP_MARK & (pl.col("depth") > 0))
        .group_by(key)
        .agg(
            communicator=pl.when(pl.col("communicator").n_unique() == 1).then(pl.col("communicator").first()),
            message_bytes=pl.when((sends | receives).any())
            .then(pl.max_horizontal(size.filter(sends).sum(), size.filter(receives).sum()))
            .otherwise(size.sum()),
        )
    )
    ends = calls.filter((pl.col("call_name") == GROUP_END) & (pl.col("depth") == 0))
    inside = _in_ranges(launches, ends, ["group"]).join(groups, on=key)
    is_alone = pl.len().over(key) == 1
    return inside.select("row", "communicator", message_bytes=pl.when(is_alone).then("message_bytes"))


def _in_ranges(launches: pl.DataFrame, ranges: pl.DataFrame, carry: list[str]) -> pl.DataFrame:
    """Launches inside one of ``ranges``, which do not overlap on a thread: row, thread, and the columns ``carry``."""
    return (
        launches.join_asof(
            ranges.select("thread", "start_ns", "end_ns", *carry).sort("start_ns"),
            left_on="launch_start_ns",
            right_on="start_ns",
            by="thread",
            strategy="backward",
            check_sortedness=False,
        )
        .filter(pl.col("launch_start_ns") < pl.col("end_ns"))
        .select("row", "thread", *carry)
    )


def resolve_send_recv(operations: Operations, ranges: HostRanges, config: RunConfig) -> Operations:
    """Replaces the category ``send_recv`` in the ``operations`` of one capture by that of its owner.

    ``operations`` have a ``communicator``, null where it is not known; ``ranges`` are NVTX ranges with one of
    ALL_TO_ALL_TEXTS.
    """
    is_exchange = pl.col("category") == pl.lit(SEND_RECV, dtype=CATEGORY_OR_SEND_RECV)
    in_range = operations.with_columns(inside=launched_inside(operations, _trusted_ranges(ranges, config)))
    # A range around one call settles all calls on the same communicator.
    on_same = pl.col("inside").any().over("rank_index", "communicator") & pl.col("communicator").is_not_null()
    exchanges = in_range.with_columns(inside=pl.col("inside") | on_same)
    elsewhere = _owner_outside_ranges(bool(exchanges.filter(is_exchange)["inside"].any()), config)
    owner = pl.when("inside").then(pl.lit("ep_all_to_all")).otherwise(elsewhere)
    return exchanges.with_columns(
        category=pl.when(is_exchange).then(owner).otherwise(pl.col("category").cast(pl.String)).cast(CATEGORY)
    ).drop("inside")


def _trusted_ranges(ranges: HostRanges, config: RunConfig) -> HostRanges:
    """The all-to-all ranges that show an exchange of experts.

    None with context parallelism, whose own all-to-all (Ulysses) has such ranges too. Where the sizes are not known,
    only those of Megatron.
    """
    context, experts = config.size("context_parallel_size"), config.size("expert_model_parallel_size")
    if context is not None and context > 1:
        return ranges.clear()
    if context == 1 and experts is not None and experts > 1:
        return ranges
    return take_ranges(ranges, MEGATRON_TEXTS)


def _owner_outside_ranges(ranges_name_experts: bool, config: RunConfig) -> pl.Expr:
    """Category of the exchanges that lie in no trusted range."""
    if ranges_name_experts:  # all exchanges of experts are in ranges, so the rest has another owner
        return pl.lit(_exchange_by_config(config, without="expert_model_parallel_size"))
    owner = _exchange_by_config(config)
    if owner != AMBIGUOUS or not _experts_and_pipeline_only(config):
        return pl.lit(owner)
    computes = pl.col("category").is_in(list(GEMM_CATEGORIES)).any().over("rank_index", "stream")
    on_own_stream = AMBIGUOUS if config.get("overlap_moe_expert_parallel_comm") is not False else "pipeline_p2p"
    return pl.when(computes).then(pl.lit("ep_all_to_all")).otherwise(pl.lit(on_own_stream))


def _experts_and_pipeline_only(config: RunConfig) -> bool:
    """Whether the exchanges are either the experts' NCCL all-to-all or the pipeline's."""
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
        return (
            AMBIGUOUS  # the flex dispatcher carries tokens with its own kernels, so this exchange is not the experts'
        )
    return _EXCHANGES[exchanging[0]]


def resolve_collectives(
    operations: Operations, ranges: HostRanges, owners: tuple[OwnerTexts, ...], config: RunConfig
) -> Operations:
    """Gives every collective in the ``operations`` of one capture its owner's category, where the owner is known.

    ``operations`` have a ``communicator``, null where it is not known; ``ranges`` are NVTX ranges.
    """
    by_range = operations.with_columns(owner=_owner_by_range(operations, ranges, owners))
    with_owner = by_range.with_columns(owner=pl.coalesce("owner", _owner_by_communicator()))
    category = pl.col("category").cast(pl.String)
    resolved = pl.coalesce(_category_of_owner(config), _category_by_config(config), category)
    return with_owner.with_columns(
        category=pl.when(category.is_in(BY_OPERATION)).then(resolved).otherwise(category).cast(CATEGORY)
    ).drop("owner")


def _owner_by_range(operations: Operations, ranges: HostRanges, owners: tuple[OwnerTexts, ...]) -> pl.Series:
    """Per operation the first of ``owners`` with a range around the launch; null if there is none."""
    distinct = ranges["text"].unique()
    owner = np.full(operations.height, len(owners))
    for place, row in reversed(list(enumerate(owners))):
        owner[launched_inside(operations, take_ranges(ranges, row.texts, distinct)).to_numpy()] = place
    names = pl.Series("owner", [*(row.owner for row in owners), None], dtype=pl.String)
    return names.gather(pl.Series(owner))


def _owner_by_communicator() -> pl.Expr:
    """The owner of those calls on the same communicator that lie in a range, if they agree."""
    same = ["rank_index", "communicator"]
    owners = pl.col("owner").drop_nulls()
    agreed = pl.when(owners.unique().len().over(same) == 1).then(owners.first().over(same))
    return pl.when(pl.col("communicator").is_not_null()).then(agreed)


def _category_of_owner(config: RunConfig) -> pl.Expr:
    """Category for the column ``owner``; null where the parallel sizes contradict it."""
    tensor, experts = _tensor_size(config), config.size("expert_model_parallel_size")
    of_tensors = pl.lit(TENSOR_PARALLEL)
    if tensor == 1:
        # A tensor-parallel group of one rank communicates nothing. With expert parallelism these functions run over the
        # experts' group: the all-gather dispatcher moves tokens with them, the other dispatchers gather token counts.
        of_tensors = pl.lit("ep_dispatch_combine" if (experts or 0) > 1 else None, dtype=pl.String)
    category = pl.col("category").cast(pl.String)
    # Without a size an all-to-all of the experts shows that they are on several ranks.
    exchange = pl.lit(experts > 1) if experts else (category == "ep_all_to_all").any().over("rank_index")
    counts = _ONE_CHANNEL & (category == "all_gather") & exchange
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
    """Category where the parallel sizes leave one kind of group for the operation; null elsewhere."""
    context, experts = config.size("context_parallel_size"), config.size("expert_model_parallel_size")
    if context != 1 or experts is None or (experts > 1 and config.get("moe_token_dispatcher_type") == "allgather"):
        return pl.lit(None, dtype=pl.String)
    category = pl.col("category").cast(pl.String)
    if _tensor_size(config) != 1:
        of_layers = (category == "reduce_scatter") | ((category == "all_gather") & ~(_ONE_CHANNEL & (experts > 1)))
        return pl.when(of_layers & _holds_all_parameters_once(config)).then(pl.lit(TENSOR_PARALLEL))
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


def _holds_all_parameters_once(config: RunConfig) -> bool:
    """Whether no two ranks hold the same parameters, so that none are gathered and no gradients reduced."""
    layout = read_layout(config)
    is_dense = config.knows("num_moe_experts") and config.get("num_moe_experts") is None
    return layout.data == 1 and (is_dense or layout.expert_data == 1)


def _tensor_size(config: RunConfig) -> int | None:
    """The larger tensor-parallel size of dense layers and experts; None if not known."""
    tensor = config.size("tensor_model_parallel_size")
    expert_tensor = config.size("expert_tensor_parallel_size") or tensor
    return None if tensor is None or expert_tensor is None else max(tensor, expert_tensor)


def launched_inside(operations: Operations, ranges: HostRanges) -> pl.Series:
    """Per operation whether its launch lies in one of ``ranges`` (HOST_RANGES of one capture) on its thread."""
    inside = np.zeros(operations.height, dtype=np.bool_)
    is_known = operations["launch_start_ns"].is_not_null() & operations["launch_thread"].is_not_null()
    rows = is_known.arg_true()
    launched_ns, thread = (operations[name].gather(rows).to_numpy() for name in ("launch_start_ns", "launch_thread"))
    by_thread = np.argsort(thread, kind="stable")
    nowhere, never = -(2**63), 2**62
    opened_on, opened_ns = ranges["thread"].fill_null(nowhere).to_numpy(), ranges["start_ns"].to_numpy()
    in_order = np.lexsort((opened_ns, opened_on))
    opened_on, opened_ns = opened_on[in_order], opened_ns[in_order]
    closed_ns = ranges["end_ns"].fill_null(never).to_numpy()[in_order]
    # Ranges of a thread nest: the last one that opened before the launch may have closed while an outer one is still
    # open. So the latest end of all ranges that have opened decides.
    for each in np.intersect1d(thread, opened_on):
        first, after = np.searchsorted(opened_on, each, "left"), np.searchsorted(opened_on, each, "right")
        begin, until = (np.searchsorted(thread, each, side, sorter=by_thread) for side in ("left", "right"))
        own = by_thread[begin:until]
        open_until_ns = np.append(nowhere, np.maximum.accumulate(closed_ns[first:after]))
        opened = np.searchsorted(opened_ns[first:after], launched_ns[own], "right")
        inside[rows.to_numpy()[own]] = open_until_ns[opened] > launched_ns[own]
    return pl.Series(inside)
