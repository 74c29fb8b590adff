"""CUDA graphs: how much of a step they launch, what they leave out, and what a graph of the optimizer could save.

With node granularity (``--cuda-graph-trace=node``) the trace records for every kernel whether a graph launched it. With
graph granularity a graph is one envelope and its kernels are unknown, so no share is given. A trace can have both: only
recorded kernels are counted.
"""

from __future__ import annotations

import polars as pl

from three_walls.facts.fact_rows import GraphCoverage, OutsideGraphs
from three_walls.facts.step_facts import HOST_LAUNCHES
from three_walls.lib.declare import artifact, duration, fact
from three_walls.lib.measurement import Measurement, known, missing
from three_walls.step.find_steps import MODEL_WORK
from three_walls.step.intervals import mask_of
from three_walls.step.ownership import LABELS
from three_walls.step.step_tables import Operations
from three_walls.step.step_view import StepView

_STARVED = mask_of(["launch_starved"], LABELS)

IS_NODE = pl.col("graph_node").fill_null(0) != 0
"""Whether a graph launched the kernel. Exporters write no node as null or 0."""

_WHOLE = "graphs of the step were recorded whole, without their kernels (recapture with --cuda-graph-trace=node)"


@duration(
    "optimizer launch-starved time per step",
    needs=HOST_LAUNCHES,
    share="launch-starved time of the optimizer",
)
def optimizer_launch_starved_ns(step: StepView) -> Measurement[int]:
    """Time per step that is launch-starved from the first to the last optimizer kernel after the step's last GEMM."""
    # It is what a graph of the optimizer's kernels could remove. The GEMMs of Muon's update count as model work, so the
    # phase begins after them.
    model_work_end = step.operations.filter(pl.col("category").is_in(list(MODEL_WORK)))["end_ns"].max()
    optimizer = step.operations.filter(pl.col("category") == "optimizer")
    phase = optimizer if model_work_end is None else optimizer.filter(pl.col("start_ns") >= model_work_end)
    if phase.is_empty():
        return missing("no optimizer kernel follows the step's last GEMM")
    begin, end = phase["start_ns"].min(), phase["end_ns"].max()
    inside = pl.min_horizontal("end_ns", pl.lit(end)) - pl.max_horizontal("start_ns", pl.lit(begin))
    starved = step.slices.filter((pl.col("active") & _STARVED) != 0).select(ns=inside.clip(lower_bound=0))
    return known(int(starved["ns"].sum()))


@fact("fraction", "the share of kernels inside CUDA graphs", needs=("graph_nodes", "inside_cuda_graphs"))
def graph_kernel_fraction(step: StepView) -> Measurement[float]:
    """Fraction of the step's kernels that CUDA graphs launched."""
    kernels = step.kernels
    if not kernels.height:
        return missing("no kernel ran in the step")
    return known(kernels.filter(IS_NODE).height / kernels.height)


@artifact
def graph_coverage(step: StepView) -> GraphCoverage | None:
    """Coverage of the step by graphs; None where no graph was launched."""
    kernels = step.kernels
    nodes = kernels.filter(IS_NODE)
    whole_graphs = _count_whole_graphs(step.started.filter(pl.col("kind") == "graph"), nodes)
    reason = step.run.lacks("inside_cuda_graphs") or (_WHOLE if whole_graphs else "")
    if not reason and not nodes.height:
        return None
    return GraphCoverage(
        kernels_inside=nodes.height,
        kernels_outside=kernels.height - nodes.height,
        whole_graphs=whole_graphs,
        fraction=None if reason else nodes.height / kernels.height,
        reason=reason,
        outside=_sum_outside(kernels.filter(~IS_NODE)),
    )


def _count_whole_graphs(envelopes: Operations, nodes: Operations) -> int:
    """Envelopes inside which no kernel of a graph was recorded: the others hide nothing."""
    first_node = nodes.select(node_ns="start_ns").sort("node_ns")
    joined = envelopes.sort("start_ns").join_asof(
        first_node, left_on="start_ns", right_on="node_ns", strategy="forward", coalesce=False
    )
    return joined.filter((pl.col("node_ns") >= pl.col("end_ns")).fill_null(value=True)).height


def _sum_outside(kernels: Operations) -> tuple[OutsideGraphs, ...]:
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
