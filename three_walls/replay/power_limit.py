"""A device at the limit of its power: its clock falls where an edit leaves it less idle time.

Idle time costs a fraction of the power of GEMMs. Where the mean power is at its limit, a step that idles less has to do
its work at a lower clock, and gives back a part of what it gained. Captures show it: attention and GEMMs of one shape
differ by 7 to 12% within a step that computes most of the time, and are fastest after idle time; where hosts leave the
device idle they differ by 1 to 2%.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from three_walls.replay import replay_thresholds
from three_walls.replay.step_graph import StepGraph, Times, Work
from three_walls.replay.transform_graph import select_operations
from three_walls.replay.transformation import Selection
from three_walls.tables.buckets import COMPUTE_CATEGORIES
from three_walls.trace.schemas import BoolArray, Float64Array


def find_busy_fractions(graph: StepGraph, times: Times) -> Float64Array:
    """Per rank of ``graph``, the part of the step (``times``) in which its device computes."""
    rank, computes = graph.operations["rank"].to_numpy(), _computes(graph)
    busy_ns = np.zeros(len(graph.ranks))
    for place in range(len(graph.ranks)):
        own = np.flatnonzero(computes & (rank == place))
        own = own[np.argsort(times.start_ns[own], kind="stable")]
        ends_ns = np.maximum.accumulate(times.end_ns[own])
        begins_ns = np.maximum(times.start_ns[own], np.append(0, ends_ns[:-1])[: len(own)])
        busy_ns[place] = np.maximum(0, ends_ns - begins_ns).sum()
    return np.asarray(busy_ns / max(1, times.longest_ns))


def slow_clocks(graph: StepGraph, work: Work, before: Float64Array, after: Float64Array) -> Work:
    """``work`` at the clock that its power allows: per rank the device computed ``before`` an edit, and ``after`` it.

    Power grows with the third power of the clock, so the clock falls with the square root of the time in which the
    device computes (``POWER_EXPONENT``), from ``LIMITED_BUSY_FRACTION`` of the step on. A slower clock leaves the step
    less idle time still: ``slower`` is where both agree.
    """
    slower = np.ones(len(after))
    least = replay_thresholds.LIMITED_BUSY_FRACTION
    for _ in range(replay_thresholds.CLOCK_ROUNDS):
        busy = after * slower / (1 + after * (slower - 1))
        slower = (np.maximum(least, busy) / np.maximum(least, before)) ** replay_thresholds.POWER_EXPONENT
    factor = np.where(_computes(graph), slower[graph.operations["rank"].to_numpy()], 1.0)
    transfer_ns = np.rint((work.duration_ns - work.wait_ns) * factor).astype(np.int64)
    return replace(work, duration_ns=work.wait_ns + transfer_ns)


def _computes(graph: StepGraph) -> BoolArray:
    return select_operations(graph, Selection(categories=COMPUTE_CATEGORIES))
