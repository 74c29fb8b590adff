"""The products of shared experts, where the config says that there are some: two per layer forward, four backward.

Their place is fixed by Megatron Core's transformer/moe/moe_layer.py. Forward they run between the norm before the
MLP and the router: product, activation, product, then the router's own. Backward runs in reverse: after the router's,
right before that norm's backward: two products, activation, two products. With ``moe_shared_expert_overlap`` they run
on a stream of their own (transformer/moe/shared_experts.py). A gate on their output is left out.
"""

from __future__ import annotations

import polars as pl

from three_walls.facts.attention_passes import BACKWARD
from three_walls.facts.stream_order import PRODUCTS
from three_walls.model.config import RunConfig

SHARED_EXPERT = "shared_expert"

FORWARD_PRODUCTS, BACKWARD_PRODUCTS = 2, 4

_UNKNOWN = "the config does not say whether there are shared experts"
_NOT_IN_PLACE = "the products around the router are not in the order of shared experts in every MoE layer"
_NO_SIDE_STREAM = "overlapped shared experts run on a stream of their own: not exactly one such stream has products"


def attach_shared_experts(
    operations: pl.DataFrame, passes: pl.DataFrame, streams: list[int], config: RunConfig
) -> tuple[pl.DataFrame | None, str | None]:
    """(pass, part, start_ns, end_ns of their products, None), or (None, why not); (None, None) where there are none.

    ``operations``: one rank's step, all categories. ``passes``: with route_from_ns and route_until_ns, between which
    a pass routes its tokens. ``streams``: those that compute attention.
    """
    if not config.get("moe_shared_expert_intermediate_size"):
        return None, None if config.knows("moe_shared_expert_intermediate_size") else _UNKNOWN
    kernels = operations.filter(pl.col("kind") == "kernel").with_columns(
        category=pl.col("category").cast(pl.String), is_gemm=pl.col("category").is_in(list(PRODUCTS))
    )
    if config.get("moe_shared_expert_overlap") is True:
        found = _on_own_stream(kernels, passes, streams)
        return (None, _NO_SIDE_STREAM) if found is None else (found, None)
    found = _beside_the_router(kernels.filter(pl.col("stream").is_in(streams)), passes)
    return (None, _NOT_IN_PLACE) if found is None else (found, None)


def _on_own_stream(kernels: pl.DataFrame, passes: pl.DataFrame, streams: list[int]) -> pl.DataFrame | None:
    aside = kernels.filter(pl.col("is_gemm") & ~pl.col("stream").is_in(streams))
    if aside["stream"].n_unique() != 1 or "from_ns" not in passes.columns:
        return None
    windows = passes.select("pass", "direction", begin="from_ns", until="until_ns")
    products = _within(aside, windows)
    return _if_complete(products, passes)


def _beside_the_router(kernels: pl.DataFrame, passes: pl.DataFrame) -> pl.DataFrame | None:
    windows = passes.select("pass", "direction", begin="route_from_ns", until="route_until_ns")
    routed = _within(kernels, windows)
    is_norm, is_router = pl.col("category") == "norm", pl.col("category") == "router"
    at, goes_back = pl.col("start_ns"), pl.col("direction") == BACKWARD
    norm_ns = pl.when(goes_back).then(at.filter(is_norm).min()).otherwise(at.filter(is_norm).max()).over("pass")
    bounded = routed.with_columns(norm_ns=norm_ns).with_columns(
        router_ns=at.filter(is_router & (goes_back | (at > pl.col("norm_ns")))).min().over("pass")
    )
    between = (
        pl.when(goes_back)
        .then(at.is_between("router_ns", "norm_ns", closed="none"))
        .otherwise(at.is_between("norm_ns", "router_ns", closed="none"))
    )
    # Products with nothing between them are one run: an activation parts the first linear layer from the second.
    runs = bounded.filter(between).with_columns(run=pl.col("is_gemm").rle_id().over("pass")).filter("is_gemm")
    ordered = runs.with_columns(
        run=pl.col("run").rank("dense").over("pass"),
        run_from_last=pl.col("run").rank("dense", descending=True).over("pass"),
        first=pl.int_range(pl.len()).over("pass", "run"),
        length=pl.len().over("pass", "run"),
    ).with_columns(last=pl.col("length") - 1 - pl.col("first"))
    forward = (pl.col("first") == 0) & ((pl.col("run") == 2) | ((pl.col("run") == 1) & (pl.col("length") == 1)))
    backward = (pl.col("last") < 2) & (
        (pl.col("run_from_last") == 2) | ((pl.col("run_from_last") == 1) & (pl.col("length") == 2))
    )
    representative = ordered.with_columns(is_shared=pl.when(goes_back).then(backward).otherwise(forward))
    # The router's own product must be left over: else these are the router's.
    kept = representative.filter((~pl.col("is_shared")).any().over("pass") & pl.col("is_shared"))
    return _if_complete(kept, passes)


def _within(kernels: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """``kernels`` that start in a pass's window [begin, until), in order, with pass and direction."""
    return (
        kernels.sort("start_ns", "end_ns")
        .join_asof(windows.sort("begin"), left_on="start_ns", right_on="begin", strategy="backward")
        .filter(pl.col("start_ns") < pl.col("until"))
    )


def _if_complete(products: pl.DataFrame, passes: pl.DataFrame) -> pl.DataFrame | None:
    """``products`` as rows of the ledger, if every pass has as many as shared experts run."""
    counts = passes.join(products.group_by("pass").len(), on="pass", how="left").select(
        is_whole=pl.col("len").fill_null(0)
        == pl.when(pl.col("direction") == BACKWARD).then(BACKWARD_PRODUCTS).otherwise(FORWARD_PRODUCTS)
    )
    if not counts["is_whole"].all():
        return None
    return products.select("pass", "start_ns", "end_ns", part=pl.lit(SHARED_EXPERT)).select(
        "pass", "part", "start_ns", "end_ns"
    )
