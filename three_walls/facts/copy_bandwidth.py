"""How fast copies between host and device ran, against the link between them."""

from __future__ import annotations

import polars as pl

from three_walls.model.fact import FactValue
from three_walls.model.report import CopyBandwidth
from three_walls.model.units import NS_PER_S
from three_walls.tables.hardware import GpuModel

Known = tuple[FactValue, str | None]

TO_DEVICE = ("copy_h2d_pinned", "copy_h2d_pageable")
TO_HOST = ("copy_d2h_pinned", "copy_d2h_pageable")

LARGE_COPY_BYTES = 1 << 20
"""A smaller copy is over before the link is full: its rate says what starting a copy costs."""


def measure_copies(operations: pl.DataFrame, step: tuple[int, int], gpu: GpuModel | None) -> tuple[CopyBandwidth, ...]:
    """One row per kind of host copy of one rank that starts in ``step`` [start, end); the rate is of the large ones."""
    limit = gpu.host_link_bytes_per_s if gpu is not None else None
    copies = _host_copies(operations, step)
    sums = copies.group_by("category").agg(
        calls=pl.len(),
        moved=pl.col("bytes").sum(),
        ns=pl.col("duration_ns").sum(),
        large_calls=pl.col("is_large").sum(),
        large_bytes=pl.col("bytes").filter("is_large").sum(),
        large_ns=pl.col("duration_ns").filter("is_large").sum(),
    )
    return tuple(
        CopyBandwidth(
            str(row["category"]),
            row["calls"],
            row["moved"],
            row["ns"],
            row["large_calls"],
            row["large_bytes"] * NS_PER_S / row["large_ns"] if row["large_ns"] else None,
            limit,
        )
        for row in sums.sort("category").iter_rows(named=True)
    )


def copy_facts(operations: pl.DataFrame, step: tuple[int, int], gpu: GpuModel | None) -> dict[str, Known]:
    """The glossary's facts of host copies, both kinds of memory together."""
    copies = _host_copies(operations, step).filter("is_large")
    link = gpu.host_link_bytes_per_s if gpu is not None else None
    return {
        "h2d_achieved_bytes_per_s": _rate(copies.filter(pl.col("category").is_in(TO_DEVICE))),
        "d2h_achieved_bytes_per_s": _rate(copies.filter(pl.col("category").is_in(TO_HOST))),
        "host_link_bytes_per_s": (link, None if link else "the link to host memory is not known of this GPU"),
    }


def _host_copies(operations: pl.DataFrame, step: tuple[int, int]) -> pl.DataFrame:
    return (
        operations.with_columns(pl.col("category").cast(pl.String))
        .filter(
            pl.col("category").is_in([*TO_DEVICE, *TO_HOST])
            & pl.col("start_ns").is_between(step[0], step[1], closed="left")
        )
        .select(
            "category",
            pl.col("bytes").fill_null(0),
            duration_ns=pl.col("end_ns") - pl.col("start_ns"),
            is_large=pl.col("bytes").fill_null(0) >= LARGE_COPY_BYTES,
        )
    )


def _rate(copies: pl.DataFrame) -> Known:
    duration_ns = int(copies["duration_ns"].sum())
    if not duration_ns:
        return None, f"no copy of {LARGE_COPY_BYTES // (1 << 20)} MiB or more in the step"
    return int(copies["bytes"].sum()) * NS_PER_S / duration_ns, None
