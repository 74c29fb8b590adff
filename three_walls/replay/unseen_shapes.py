"""What the host needs for GEMMs of experts because their shapes did not occur before.

cuBLASLt chooses an algorithm for a shape that it has not met, and loads its kernel. Where tokens choose their experts
freely, that is nearly every GEMM of an expert. GEMMs of other layers have the same shapes in every pass: what their
launches take in the same step shows which launches of experts are dear.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from three_walls.replay.step_graph import NONE, StepGraph, Work
from three_walls.replay.transformation import Level
from three_walls.tables.buckets import GEMM_CATEGORIES
from three_walls.tables.model_parts import EXPERT_GEMM
from three_walls.trace.schemas import BoolArray, Int64Array

_FILL = "memset"
_ASKS = ("other", "module_load")
"""Kinds of calls (tables/api-calls.yaml) by which a library prepares a launch."""
_CHEAP_QUANTILE = 0.25


def meet_known_shapes(graph: StepGraph, work: Work, threads: Int64Array, selected: BoolArray, level: Level) -> Work:
    """``work`` with ``selected`` GEMMs of experts launched as those whose shapes occurred before.

    A launch is dear if it takes more than the cheapest quarter of the GEMMs of other layers. These include the code
    that leads to them, which GEMMs of experts in a row do not have; so likely a dear launch takes as long as they do,
    at best what the cheapest quarter of the experts' own launches take, and at worst nothing changes. Where the GEMMs
    of experts take no longer on average, a dear one has another cause, and stays. ``threads``: a number per call.
    """
    stretch, is_expert, is_fixed = _find_launches(graph, threads, selected)
    if level is Level.LOW or not is_expert.any() or not is_fixed.any():
        return work
    own = np.where(graph.points.sync_node == NONE, work.host_segment_ns, 0)  # what ends at a sync point is a wait
    host_ns = np.bincount(stretch, own[0::2] + own[1::2], len(is_expert)).astype(np.int64)
    usual_ns = _cheap(host_ns[is_fixed])
    of_experts_ns = host_ns[is_expert]
    if of_experts_ns.mean() <= usual_ns:
        return work
    known_ns = min(usual_ns, _cheap(of_experts_ns)) if level is Level.HIGH else usual_ns
    is_dear = is_expert & (host_ns > usual_ns)
    factor = np.where(is_dear, known_ns / np.maximum(1, host_ns), 1.0)[stretch]
    shorter_ns = np.rint(own * np.repeat(factor, 2)).astype(np.int64)
    return replace(work, host_segment_ns=work.host_segment_ns - own + shorter_ns)


def _cheap(host_ns: Int64Array) -> float:
    return float(np.quantile(host_ns, _CHEAP_QUANTILE))


def _find_launches(
    graph: StepGraph, threads: Int64Array, selected: BoolArray
) -> tuple[Int64Array, BoolArray, BoolArray]:
    """Per call its stretch; per stretch whether it launches a GEMM of experts, and whether one of another layer.

    A stretch of calls ends with one that launches, records or waits; fills belong to the launch after them. Of GEMMs of
    experts count several in a row on several streams.
    """
    operations, count = graph.operations, graph.calls.height
    category = operations["category"].cast(pl.String)
    launched = np.flatnonzero(graph.call_of != NONE)
    operation = np.full(count, NONE, dtype=np.int64)
    operation[graph.call_of[launched]] = launched
    operation[np.bincount(graph.call_of[launched], minlength=count) > 1] = NONE  # a CUDA graph
    fills = (operation != NONE) & (category == _FILL).to_numpy()[operation]
    ends = ~graph.calls["kind"].cast(pl.String).is_in(list(_ASKS)).to_numpy() & ~fills
    ends |= np.append(threads[1:] != threads[:-1], True)[:count]
    last = np.flatnonzero(ends)
    of_stretch = operation[last]
    is_gemm = category.is_in(list(GEMM_CATEGORIES)).to_numpy()
    is_expert = np.zeros(operations.height, dtype=bool)
    if "part" in operations.columns:
        is_expert = is_gemm & (operations["part"] == EXPERT_GEMM).fill_null(value=False).to_numpy()
    of_expert, of_other = (
        (of_stretch != NONE) & flags[of_stretch] for flags in (is_expert & selected, is_gemm & ~is_expert)
    )
    stream = operations["stream"].to_numpy()[of_stretch]
    follows = of_expert[1:] & of_expert[:-1] & (stream[1:] != stream[:-1]) & (threads[last[1:]] == threads[last[:-1]])
    in_row = np.append(False, follows) | np.append(follows, False)
    return np.searchsorted(last, np.arange(count)), in_row[: len(last)], of_other
