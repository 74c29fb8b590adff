"""Kernel name -> category, by the ordered patterns of tables/kernel-categories.yaml; copies by direction.

Names are matched once per distinct name (thousands), never per kernel (millions).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from three_walls.tables.kernels import KernelPattern
from three_walls.timeline.schemas import CATEGORY_OR_SEND_RECV

UNCLASSIFIED = "unclassified"

# ENUM_CUDA_MEMCPY_OPER and ENUM_CUDA_MEM_KIND of the export.
_HOST_TO_DEVICE, _DEVICE_TO_HOST, _DEVICE_TO_DEVICE, _PEER_TO_PEER = 1, 2, 8, 10
_PAGEABLE = 0


def classify(operations: pl.DataFrame, names: Mapping[int, str], patterns: Sequence[KernelPattern]) -> pl.DataFrame:
    """``operations`` with four more columns: what each one is.

    category  bucket name, or ``send_recv`` while it is open whose exchange it is
    phase     ``forward`` or ``backward`` for the one kernel per attention pass that is counted, else null
    anchor    whether it marks the optimizer update
    unknown   the kernel's short name where no pattern matched, else null
    """
    distinct = operations.filter(pl.col("kind") == "kernel").select("name_id", "short_name_id").unique()
    pairs = distinct.sort("name_id", "short_name_id").rows()
    rows = [_describe(name_id, short_name_id, names, patterns) for name_id, short_name_id in pairs]
    schema = {
        "name_id": pl.Int64,
        "short_name_id": pl.Int64,
        "category": pl.String,
        "phase": pl.String,
        "anchor": pl.Boolean,
        "unknown": pl.String,
    }
    described = pl.DataFrame(rows, schema=schema, orient="row")
    return operations.join(
        described, on=["name_id", "short_name_id"], how="left", nulls_equal=True, maintain_order="left"
    ).with_columns(
        category=pl.when(pl.col("kind") == "kernel")
        .then("category")
        .otherwise(_category_of_other())
        .cast(CATEGORY_OR_SEND_RECV),
        anchor=pl.col("anchor").fill_null(value=False),
    )


def _describe(
    name_id: int | None, short_name_id: int | None, names: Mapping[int, str], patterns: Sequence[KernelPattern]
) -> tuple[int | None, int | None, str, str | None, bool, str | None]:
    demangled = names.get(name_id, "") if name_id is not None else ""
    short = names.get(short_name_id, "") if short_name_id is not None else ""
    found = match_kernel(f"{short} {demangled}".strip(), patterns)
    if found is None:
        return name_id, short_name_id, UNCLASSIFIED, None, False, short or demangled or "(no name)"
    return name_id, short_name_id, found.category, found.phase, found.anchor == "step", None


def match_kernel(text: str, patterns: Sequence[KernelPattern]) -> KernelPattern | None:
    """The first pattern found in ``text`` (short name, space, demangled name), or None."""
    return next((row for row in patterns if row.pattern.search(text)), None)


def _category_of_other() -> pl.Expr:
    copy = pl.col("copy_kind")
    from_pageable = (pl.col("source_kind") == _PAGEABLE).fill_null(value=False)
    to_pageable = (pl.col("target_kind") == _PAGEABLE).fill_null(value=False)
    return (
        pl.when(pl.col("kind") == "graph")
        .then(pl.lit("cuda_graph"))
        .when(pl.col("kind") == "memset")
        .then(pl.lit("memset"))
        .when((copy == _HOST_TO_DEVICE) & from_pageable)
        .then(pl.lit("copy_h2d_pageable"))
        .when(copy == _HOST_TO_DEVICE)
        .then(pl.lit("copy_h2d_pinned"))
        .when((copy == _DEVICE_TO_HOST) & to_pageable)
        .then(pl.lit("copy_d2h_pageable"))
        .when(copy == _DEVICE_TO_HOST)
        .then(pl.lit("copy_d2h_pinned"))
        .when(copy == _DEVICE_TO_DEVICE)
        .then(pl.lit("copy_d2d"))
        .when(copy == _PEER_TO_PEER)
        .then(pl.lit("copy_p2p"))
        .otherwise(pl.lit("copy_other"))
    )
