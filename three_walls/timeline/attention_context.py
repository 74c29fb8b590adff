"""Unfused attention, told by context: what a stream runs between the two GEMMs around a softmax.

Unfused attention is product, mask, scale, softmax, product. Its masks, scales and copies of the score matrix
are generic pointwise kernels that no name gives away; their place does. A fused kernel makes all of them
disappear, so they belong together.
"""

from __future__ import annotations

import polars as pl

from three_walls.timeline.schemas import CATEGORY

UNFUSED = "attention_unfused"

PRODUCTS = ("gemm", "grouped_gemm")

_JOINS = ("elementwise", "copy_d2d", "memset", "unclassified")
"""Generic categories that take part in unfused attention when they stand beside its softmax."""

MAX_OPERATIONS_BETWEEN_PRODUCTS = 24
"""The backward of Megatron's local attention runs about ten; a longer stretch holds other work too."""


def mark_unfused_attention(operations: pl.DataFrame) -> pl.DataFrame:
    """``operations`` with the generic work beside each attention softmax moved to ``attention_unfused``.

    A stretch is what one stream of one rank runs between two consecutive GEMMs; it is moved if it
    holds an attention softmax and is short enough to hold nothing else.
    """
    is_gemm = pl.col("category").is_in(list(PRODUCTS))
    stretch = ["rank_index", "stream", "stretch"]
    in_order = operations.with_row_index("row").sort("rank_index", "stream", "start_ns", "end_ns", "row")
    with_stretch = in_order.with_columns(stretch=is_gemm.cast(pl.Int64).cum_sum().over("rank_index", "stream"))
    has_softmax = (pl.col("category") == UNFUSED).any().over(stretch)
    is_short = pl.len().over(stretch) <= MAX_OPERATIONS_BETWEEN_PRODUCTS
    moved = (
        pl.when(has_softmax & is_short & pl.col("category").is_in(list(_JOINS)))
        .then(pl.lit(UNFUSED, dtype=CATEGORY))
        .otherwise("category")
    )
    return with_stretch.with_columns(category=moved).sort("row").drop("row", "stretch")
