"""How much of a step CUDA graphs launch, and what fell out of them.

With node granularity (``--cuda-graph-trace=node``) every kernel says whether a graph launched it. With graph
granularity a graph is one envelope and its kernels are unknown, so no share is given. A trace can have both: kernels
are counted by their own rows alone, an envelope adds none.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from three_walls.inputs.nsys.capabilities import YES
from three_walls.model.report import GraphCoverage, OutsideGraphs

IS_NODE = pl.col("graph_node").fill_null(0) != 0
"""Exporters write no node as null or 0."""

_WHOLE = "graphs of the step were recorded whole, without their kernels (recapture with --cuda-graph-trace=node)"


def measure_graph_coverage(
    operations: pl.DataFrame, step: tuple[int, int], capabilities: Mapping[str, str]
) -> GraphCoverage | None:
    """Coverage in one rank's step [start, end); None where no graph was launched. ``operations``: that rank's."""
    begun = operations.filter(pl.col("start_ns").is_between(*step, closed="left"))
    kernels = begun.filter(pl.col("kind") == "kernel")
    inside = kernels.filter(IS_NODE).height
    whole = _count_whole(begun.filter(pl.col("kind") == "graph"), kernels.filter(IS_NODE))
    hidden = capabilities["inside_cuda_graphs"]
    reason = hidden if hidden != YES else _WHOLE if whole else ""
    if not inside and not reason:
        return None
    return GraphCoverage(
        kernels_inside=inside,
        kernels_outside=kernels.height - inside,
        whole_graphs=whole,
        fraction=None if reason else inside / kernels.height,
        reason=reason,
        outside=_outside(kernels.filter(~IS_NODE)),
    )


def _count_whole(envelopes: pl.DataFrame, nodes: pl.DataFrame) -> int:
    """Envelopes inside which no kernel of a graph was recorded: the others hide nothing."""
    first_node = nodes.select(node_ns="start_ns").sort("node_ns")
    joined = envelopes.sort("start_ns").join_asof(
        first_node, left_on="start_ns", right_on="node_ns", strategy="forward", coalesce=False
    )
    return joined.filter((pl.col("node_ns") >= pl.col("end_ns")).fill_null(value=True)).height


def _outside(kernels: pl.DataFrame) -> tuple[OutsideGraphs, ...]:
    """Per category the kernels launched one by one and the time of their launch calls, most kernels first."""
    sums = (
        kernels.with_columns(host_ns=pl.col("launch_end_ns") - pl.col("launch_start_ns"))
        .group_by(pl.col("category").cast(pl.String))
        .agg(calls=pl.len(), host_ns=pl.col("host_ns").sum(), is_known=pl.col("host_ns").is_not_null().all())
        .sort("calls", "category", descending=[True, False])
    )
    return tuple(
        OutsideGraphs(category, calls, int(host_ns) if is_known else None)
        for category, calls, host_ns, is_known in sums.select("category", "calls", "host_ns", "is_known").rows()
    )
