"""A data loader that delivers batches at a pace of its own: no edit of the model makes a step shorter than its batches
take.

PyTorch's data loader marks the time in which a thread asks it for the next batch. A loader that is faster than the
training loop has it ready. One that is slower is waited for, and then its pace is the step's: what an edit saves, the
thread waits longer. A thread that runs ahead of the GPU may also ask before a batch can be ready: its waiting is no
work, and nobody knows what is left of it after an edit, so it is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from three_walls.facts.data_loader import LOADER_BOUND_FRACTION
from three_walls.replay import replay_thresholds
from three_walls.replay.step_graph import StepGraph, Times, Work, find_steady
from three_walls.step.intervals import DURATION, gaps_within, merge_overlapping
from three_walls.step.operators import take_batch_requests
from three_walls.step.step_tables import NamedRanges
from three_walls.trace.schemas import Int64Array


@dataclass(frozen=True, slots=True)
class LoaderWaits:
    """The waiting for batches in a captured step."""

    wait_ns: Int64Array
    """Per host point: the part of its segment in which its thread waits."""
    period_ns: int
    """What the loader needs for the batches of a step; 0 where the GPU has work meanwhile: then it may need less."""


def find_loader_waits(graph: StepGraph, ranges: Sequence[NamedRanges], starving: Collection[int]) -> LoaderWaits | None:
    """The waiting in the step of ``graph``; None where no rank waits for its loader.

    ``ranges``: of each rank of the graph (in order of ``ranks``), on its own clock as ``graph.calls`` is. ``starving``:
    indices of the ranks that a loader may hold up in most steps.
    """
    wait_ns = np.zeros(2 * graph.calls.height, dtype=np.int64)
    period_ns, without_pauses_ns = 0, graph.without_pauses().measured_ns
    calls = graph.calls.with_row_index("call")
    for place, of_rank in enumerate(ranges):
        asked = take_batch_requests(of_rank)
        waits = np.zeros_like(wait_ns)
        for (thread,), of_thread in calls.filter(pl.col("rank") == place).group_by("thread"):
            own = asked.filter(pl.col("thread") == thread)
            index, start_ns, end_ns = (of_thread[name].to_numpy() for name in ("call", "start_ns", "end_ns"))
            idle_from_ns = np.concatenate([[np.iinfo(np.int64).min], end_ns[:-1]])
            for asked_ns, given_ns in own.select("start_ns", "end_ns").iter_rows():
                overlap_ns = np.minimum(start_ns, given_ns) - np.maximum(idle_from_ns, asked_ns)
                waits[2 * index] += np.maximum(0, overlap_ns)
        waits = np.minimum(waits, graph.host_segment_ns)
        least_ns = LOADER_BOUND_FRACTION * without_pauses_ns[place]
        if waits.sum() >= replay_thresholds.LEAST_LOADER_WAIT_FRACTION * without_pauses_ns[place]:
            wait_ns += waits
            if graph.ranks[place] in starving and _measure_starving(graph, asked, place) >= least_ns:
                period_ns = max(period_ns, int(without_pauses_ns[place]))
    return LoaderWaits(wait_ns, period_ns) if wait_ns.any() else None


def _measure_starving(graph: StepGraph, asked: NamedRanges, place: int) -> int:
    """How long nothing runs in the step of the rank at ``place`` while a batch is ``asked`` for."""
    own = graph.operations.filter(pl.col("rank") == place)
    last_ns = int(own["end_ns"].to_numpy().max())
    window = pl.col("start_ns", "end_ns").clip(last_ns - int(graph.measured_ns[place]), last_ns)
    waiting = merge_overlapping(asked.with_columns(window, rank=pl.lit(place, pl.Int64)), ["rank"])
    return int(gaps_within(own, waiting, ["rank"]).select(DURATION.sum()).item())


def find_paced(graph: StepGraph, work: Work, waits: LoaderWaits) -> tuple[Work, Times]:
    """The steady step of ``work`` (without its waiting for batches) whose threads wait as long as the loader needs.

    It is ``work`` as it is where that takes longer than the loader.
    """
    rank = np.repeat(graph.calls["rank"].to_numpy(), 2)
    of_rank = np.bincount(rank, waits.wait_ns, len(graph.ranks))
    share = waits.wait_ns / np.maximum(1, of_rank[rank])
    own_ns = int((graph.host_segment_ns - waits.wait_ns).sum())
    host_ratio = int(work.host_segment_ns.sum()) / max(1, own_ns)
    waited_ns, tolerance_ns = 0, replay_thresholds.STEADY_FRACTION * waits.period_ns
    for _ in range(replay_thresholds.MOST_PACED_REPLAYS):
        host_segment_ns = work.host_segment_ns + np.rint(waited_ns * share).astype(np.int64)
        steady, times = find_steady(graph, replace(work, host_segment_ns=host_segment_ns), host_ratio=host_ratio)
        missing_ns = waits.period_ns - times.longest_ns
        if abs(missing_ns) <= tolerance_ns or waited_ns + missing_ns <= 0:
            break
        waited_ns += missing_ns
    return steady, times
