"""The GEMMs of shared experts, where the config has some: two per layer forward, four backward.

Their place is fixed by Megatron Core's transformer/moe/moe_layer.py. Forward they run between the norm before the MLP
and the router: GEMM, activation, GEMM, then the router's own GEMM. Backward runs in reverse: after the router's GEMMs,
right before that norm's backward: two GEMMs, activation, two GEMMs. With ``moe_shared_expert_overlap`` they run on a
stream of their own (transformer/moe/shared_experts.py). A gate on their output is left out.
"""

from __future__ import annotations

import polars as pl

from three_walls.facts.attention_passes import BACKWARD
from three_walls.facts.moe.passes import SHARED_EXPERT
from three_walls.model.buckets import GEMM_CATEGORIES
from three_walls.model.config import RunConfig
from three_walls.model.fact import Measurement, known, missing

FORWARD_GEMMS, BACKWARD_GEMMS = 2, 4

_UNKNOWN = "the config does not state whether there are shared experts"
_NOT_IN_PLACE = "the GEMMs around the router are not in the order of shared experts in every MoE layer"
_NO_SIDE_STREAM = "overlapped shared experts run on a stream of their own: not exactly one such stream has GEMMs"


def find_shared_experts(
    operations: pl.DataFrame, passes: pl.DataFrame, streams: list[int], config: RunConfig
) -> Measurement[pl.DataFrame]:
    """Their GEMMs: pass, part, start_ns, end_ns. A known None where the config has no shared experts.

    ``operations``: one rank's of the step, all categories. ``passes``: LayerPasses.passes. ``streams``: those that
    compute attention.
    """
    if not config.get("moe_shared_expert_intermediate_size"):
        return Measurement(None, None if config.knows("moe_shared_expert_intermediate_size") else _UNKNOWN)
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


def _gemms_next_to_router(kernels: pl.DataFrame, passes: pl.DataFrame) -> pl.DataFrame:
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


def _within(kernels: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """``kernels`` that start in a pass's window [begin, until), in order, with pass and direction."""
    return (
        kernels.sort("start_ns", "end_ns")
        .join_asof(windows.sort("begin"), left_on="start_ns", right_on="begin", strategy="backward")
        .filter(pl.col("start_ns") < pl.col("until"))
    )


def _every_pass_is_complete(gemms: pl.DataFrame, passes: pl.DataFrame) -> bool:
    """Whether every pass has as many GEMMs as shared experts run."""
    expected = pl.when(pl.col("direction") == BACKWARD).then(BACKWARD_GEMMS).otherwise(FORWARD_GEMMS)
    counts = passes.join(gemms.group_by("pass").len(), on="pass", how="left")
    return bool(counts.select((pl.col("len").fill_null(0) == expected).all()).item())
