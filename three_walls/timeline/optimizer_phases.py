"""The optimizer phases of a capture: the anchor that recurs once per step when no range names the steps."""

from __future__ import annotations

import polars as pl

MODEL_WORK = ("gemm", "grouped_gemm", "attention", "cuda_graph")
"""What forward and backward consist of; an optimizer phase has next to none of it."""

SAME_PHASE_FRACTION = 0.1
"""Two optimizer clusters with less than this share of a step's model work between them are one phase.

Between the updates of dense and expert parameters lies a parameter all-gather, or (Muon) a few products for
the update itself: no forward and backward fits there.
"""


def phase_ends(operations: pl.DataFrame) -> list[int]:
    """When each optimizer phase of one track ends (end of its last update kernel), in order.

    An optimizer phase can be split by collectives into several clusters; a step must not be cut there. So
    consecutive clusters belong together unless real model work lies between them.
    """
    anchors = operations.filter(pl.col("anchor")).select("start_ns", "end_ns").sort("start_ns", "end_ns")
    if anchors.is_empty():
        return []
    work = (
        operations.filter(pl.col("category").is_in(list(MODEL_WORK)))
        .sort("start_ns")
        .select("start_ns", work_ns=(pl.col("end_ns") - pl.col("start_ns")).cum_sum())
    )
    done = anchors.join_asof(work, on="start_ns", strategy="backward").with_columns(pl.col("work_ns").fill_null(0))
    total = int(work["work_ns"][-1]) if work.height else 0
    # The stretches between anchors, and what comes before the first and after the last one.
    between = done["work_ns"].diff().fill_null(0).to_list()
    longest = max([*between, done["work_ns"][0], total - done["work_ns"][-1]])
    threshold = SAME_PHASE_FRACTION * longest
    opens = [order == 0 or between[order] > threshold for order in range(done.height)]
    phases = done.with_columns(phase=pl.Series(opens).cast(pl.Int64).cum_sum())
    ends = phases.group_by("phase", maintain_order=True).agg(pl.col("end_ns").max())
    return [int(end) for end in ends["end_ns"]]
