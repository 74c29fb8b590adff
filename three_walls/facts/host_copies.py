"""How fast copies between host and device ran, compared with the link between them."""

from __future__ import annotations

import polars as pl

from three_walls.facts.fact_rows import CopyBandwidth
from three_walls.lib.declare import artifact, fact
from three_walls.lib.measurement import NS_PER_S, Measurement, known_or_missing
from three_walls.step.intervals import DURATION
from three_walls.step.step_view import StepView
from three_walls.tables.buckets import HOST_COPIES

LARGE_COPY_BYTES = 1 << 20
"""A smaller copy is over before the link is full: its rate is the cost of starting a copy."""


@artifact
def copies(step: StepView) -> tuple[CopyBandwidth, ...]:
    """One row per kind of host copy that starts in the step; rates are of the large copies."""
    link = step.gpu.host_link_bytes_per_s if step.gpu else None
    is_host_copy = pl.col("category").cast(pl.String).is_in(HOST_COPIES)
    of_host = step.started.filter(is_host_copy).select(
        pl.col("category").cast(pl.String),
        pl.col("bytes").fill_null(0),
        duration_ns=DURATION,
        is_large=pl.col("bytes").fill_null(0) >= LARGE_COPY_BYTES,
    )
    sums = of_host.group_by("category").agg(
        calls=pl.len(),
        moved=pl.col("bytes").sum(),
        ns=pl.col("duration_ns").sum(),
        large_calls=pl.col("is_large").sum(),
        large_bytes=pl.col("bytes").filter("is_large").sum(),
        large_ns=pl.col("duration_ns").filter("is_large").sum(),
    )
    return tuple(
        CopyBandwidth(
            copy_class=row["category"],
            calls=row["calls"],
            bytes_moved=row["moved"],
            ns=row["ns"],
            large_calls=row["large_calls"],
            bytes_per_s=row["large_bytes"] * NS_PER_S / row["large_ns"] if row["large_ns"] else None,
            limit_bytes_per_s=link,
        )
        for row in sums.sort("category").iter_rows(named=True)
    )


@fact("bytes_per_s", "host link bandwidth")
def host_link_bytes_per_s(step: StepView) -> Measurement[int]:
    """Bandwidth of the link between GPU and host memory in one direction (PCIe, NVLink-C2C), before protocol
    overhead."""
    link = step.gpu.host_link_bytes_per_s if step.gpu else None
    return known_or_missing(link or None, "tables/hardware.yaml has no link to host memory for this GPU")
