"""Which parallelism a collective serves: tensors, data, or the token counts of experts.

Evidence, in order of trust: the NVTX ranges around the launch (tables/collective-owners.yaml); the communicator, if
some call on it lies in such a range; the parallel sizes, where only one kind of group can run that operation. What
none of them tells stays a bucket of its operation.

Without tensor and context parallelism a reduce-scatter is one of gradients and an all-gather one of parameters, but for
the counts of tokens that the dispatcher gathers: a few kilobytes, for which NCCL takes a single channel (one block),
while buckets of parameters take more. All-reduces stay open unless gradients are reduced so (no distributed
optimizer): the gradient norm, losses and auxiliary losses run on several groups.
"""

from __future__ import annotations

import polars as pl

from three_walls.model.config import RunConfig
from three_walls.tables.collective_owners import DATA_PARALLEL, TENSOR_PARALLEL, TOKENS, OwnerTexts
from three_walls.timeline.enclosing import launched_inside
from three_walls.timeline.schemas import CATEGORY

BY_OPERATION = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "other_collective")
"""Buckets of collectives whose owner is not told."""

_ONE_CHANNEL = pl.col("grid_x") == 1


def resolve_collectives(
    operations: pl.DataFrame, ranges: pl.DataFrame, owners: tuple[OwnerTexts, ...], config: RunConfig
) -> pl.DataFrame:
    """``operations`` of one report with every collective that can be told in its owner's category.

    They have a communicator each (``communicators.py``), null where not known; ``ranges`` are NVTX ranges.
    """
    named = operations.with_columns(owner=_owner_by_range(operations, ranges, owners))
    told = named.with_columns(owner=pl.coalesce("owner", _owner_by_communicator()))
    category = pl.col("category").cast(pl.String)
    owned = pl.coalesce(_category_of_owner(config), _category_by_config(config), category)
    return told.with_columns(
        category=pl.when(category.is_in(BY_OPERATION)).then(owned).otherwise(category).cast(CATEGORY)
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
    """What the calls of the same communicator that lie in a range say, if they agree."""
    same = ["rank_index", "communicator"]
    only = pl.col("owner").drop_nulls().unique()
    agreed = pl.when(only.len().over(same) == 1).then(pl.col("owner").drop_nulls().first().over(same))
    return pl.when(pl.col("communicator").is_not_null()).then(agreed)


def _category_of_owner(config: RunConfig) -> pl.Expr:
    """Category by owner; null where the sizes contradict it."""
    tensor, experts = _tensor_size(config), config.size("expert_model_parallel_size")
    of_tensors = pl.lit(TENSOR_PARALLEL)
    if tensor == 1:
        # Groups of one call nothing: with experts these functions then run over the experts' group, where the
        # all-gather dispatcher moves tokens with them and the others gather counts.
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
    """1 if neither dense layers nor experts are tensor parallel, more if one of them is; None if not known."""
    tensor = config.size("tensor_model_parallel_size")
    expert_tensor = config.size("expert_tensor_parallel_size") or tensor
    return None if tensor is None or expert_tensor is None else max(tensor, expert_tensor)
