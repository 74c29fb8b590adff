"""Which operations belong to which part of a pass through an MoE layer."""

from __future__ import annotations

import polars as pl

from three_walls.facts.moe_passes import COMBINE, DISPATCH
from three_walls.facts.shared_experts import SHARED_EXPERT
from three_walls.facts.stream_order import PRODUCTS

ROUTER, PERMUTE, EXPERT_GEMM, UNPERMUTE = "router", "permute", "expert_gemm", "unpermute"
PARTS = (ROUTER, PERMUTE, DISPATCH, EXPERT_GEMM, COMBINE, UNPERMUTE, SHARED_EXPERT)

ATTACHED = (*PRODUCTS, "norm", "router", "permute")
"""Categories that :func:`attach_operations` reads."""

_NEIGHBOURS = (*PRODUCTS, "norm")
"""What stands between the permutation and other layers: no product or norm runs inside it."""


def attach_operations(operations: pl.DataFrame, passes: pl.DataFrame, exchanges: pl.DataFrame) -> pl.DataFrame:
    """Operations of the parts: pass, part, start_ns, end_ns.

    ``operations``: one rank's step. Of a pass, *expert_gemm* is every product between dispatch and combine; *permute*
    what permutes tokens from the last product or norm before dispatch to the first expert product, *unpermute* from
    there to the next product or norm after combine; *router* is router work anywhere between the attention (or pass)
    before and the one after.
    """
    bounds = _bounds(operations, passes)
    windows = [
        bounds.select("pass", part=pl.lit(part), begin=begin, until=until, wanted=pl.lit(wanted))
        for part, begin, until, wanted in (
            (ROUTER, pl.col("from_ns"), pl.col("until_ns"), "router"),
            (PERMUTE, pl.col("opens_ns"), pl.col("first_gemm_ns"), "permute"),
            (EXPERT_GEMM, pl.col("dispatch_end_ns"), pl.col("combine_start_ns"), "product"),
            (UNPERMUTE, pl.col("first_gemm_ns"), pl.col("closes_ns"), "permute"),
        )
    ]
    kinds = operations.with_columns(
        wanted=pl.when(pl.col("category").is_in(PRODUCTS)).then(pl.lit("product")).otherwise("category")
    ).select("wanted", "start_ns", "end_ns")
    attached = (
        kinds.sort("start_ns")
        .join_asof(
            pl.concat(windows).sort("begin"),
            left_on="start_ns",
            right_on="begin",
            by="wanted",
            strategy="backward",
            check_sortedness=False,
        )
        .filter(pl.col("start_ns") < pl.col("until"))
        .select("pass", "part", "start_ns", "end_ns")
    )
    return pl.concat([attached, exchanges.select("pass", "part", "start_ns", "end_ns")])


def _bounds(operations: pl.DataFrame, passes: pl.DataFrame) -> pl.DataFrame:
    """Passes with opens_ns, first_gemm_ns and closes_ns (see attach_operations)."""
    marks = operations.filter(pl.col("category").is_in(_NEIGHBOURS)).select("category", at="start_ns").sort("at")
    products = marks.filter(pl.col("category").is_in(PRODUCTS))

    def nearest(passes: pl.DataFrame, to: str, among: pl.DataFrame, strategy: str, name: str) -> pl.DataFrame:
        found = among.select(pl.col("at").alias(name))
        direction = "backward" if strategy == "backward" else "forward"
        return passes.sort(to).join_asof(found, left_on=to, right_on=name, strategy=direction)  # type: ignore[arg-type]

    joined = nearest(passes, "dispatch_start_ns", marks, "backward", "opens_ns")
    joined = nearest(joined, "dispatch_end_ns", products, "forward", "first_gemm_ns")
    joined = nearest(joined, "combine_end_ns", marks, "forward", "closes_ns")
    return joined.with_columns(
        opens_ns=pl.max_horizontal("opens_ns", "from_ns"),
        first_gemm_ns=pl.min_horizontal("first_gemm_ns", "combine_start_ns"),
        # A pass is always followed by attention, so until_ns is known; a product or norm may not follow.
        closes_ns=pl.min_horizontal("closes_ns", "until_ns"),
    ).sort("pass")
