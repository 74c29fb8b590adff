"""Column types that the timeline adds to the tables."""

from __future__ import annotations

import polars as pl

from three_walls.model.buckets import CATEGORIES, SEND_RECV

CATEGORY = pl.Enum(CATEGORIES)
"""What an operation is, in order of precedence; an unknown word raises."""

CATEGORY_OR_SEND_RECV = pl.Enum([*CATEGORIES, SEND_RECV])
"""As above while NCCL SendRecv kernels still wait to be told apart."""

STEPS = pl.Schema(
    {
        "rank_index": pl.Int64,  # the rank
        "step": pl.Int64,  # training step where its number is known, else its order since the first capture began
        "start_ns": pl.Int64,
        "end_ns": pl.Int64,
        "kept": pl.Boolean,  # whether conclusions may rest on it
        "reason": pl.String,  # why it was dropped, or kept in spite of something; empty if nothing is to be said
    }
)
