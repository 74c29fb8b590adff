"""The dependency graph of one step of every captured rank, as columns, and its evaluation.

A node is an instant whose time follows from earlier ones:

- the start of a device operation;
- a *rendezvous*: the last captured member of a collective arrives, and its transfer begins;
- a *sync point* of a host thread: where it began, took over from another thread, or waited for the device. From one
  sync point to the next a thread is a chain of host segments (CUDA calls and the think time between them). So the time
  of a call is that of the last sync point plus the host segments since.

An edge says that a node is at least so much later than an earlier one. Its length is the sum of a fixed part, of host
segments, and of a share of the duration of an operation. A replay works out the earliest time of every node: the
longest path to it, for the captured host segments and durations or for changed ones (Daydream, USENIX ATC 2020).

Nodes are numbered by their time in the capture, so every edge leads from a smaller to a larger number.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Annotated, Any, TypeVar

import numpy as np
import polars as pl

from three_walls.replay import replay_thresholds
from three_walls.replay.longest_path import find_longest_paths
from three_walls.step.step_tables import Operations
from three_walls.trace.schemas import BoolArray, Float64Array, Int64Array

Value = TypeVar("Value")

NONE = -1
"""Stands for no node, host point or operation."""

ORIGIN = 0
"""The node from which time counts."""

_EVERY = slice(None)


class Kind(IntEnum):
    """Why one node waits for another."""

    GIVEN = 0
    """What happened before the step: when a thread began, when a stream was free."""
    LAUNCH = 1
    """An operation starts after its launch."""
    STREAM = 2
    """Operations of a stream run in their order."""
    EVENT = 3
    """A stream waits for an event."""
    RESOURCE = 4
    """An operation that was ready started when another one left the multiprocessors."""
    ARRIVAL = 5
    """A collective transfers once its last member has arrived."""
    THREAD = 6
    """A thread goes on after what it did before."""
    HAND_OVER = 7
    """A thread goes on after another thread."""
    AWAITED = 8
    """A synchronizing call returns after the operation that it waits for."""


@dataclass(frozen=True, slots=True)
class HostPoints:
    """Starts and ends of the CUDA calls of all threads in the order of each thread: point 2i is the start of call i."""

    sync_node: Int64Array
    """The point's own node if it is a sync point, else NONE. The first point of each thread is one."""

    last_sync_point: Int64Array = field(init=False)
    """Per point the last sync point up to it."""

    def __post_init__(self) -> None:
        sync_points = np.append(0, np.flatnonzero(self.sync_node != NONE))
        object.__setattr__(
            self, "last_sync_point", np.repeat(sync_points, np.diff(sync_points, append=len(self.sync_node)))
        )

    def offsets_ns(self, host_segment_ns: Int64Array, points: Int64Array | slice = _EVERY) -> Int64Array:
        """Host time from the last sync point to each of ``points``."""
        total_ns = np.cumsum(host_segment_ns)
        return np.asarray(total_ns[points] - total_ns[self.last_sync_point[points]], dtype=np.int64)

    def last_sync_node(self, points: Int64Array | slice = _EVERY) -> Int64Array:
        """The node of the last sync point up to each of ``points``."""
        return self.sync_node[self.last_sync_point[points]]


@dataclass(frozen=True, slots=True)
class Edges:
    """All edges, sorted by the nodes they lead to. One from a host point begins at the last sync point."""

    kind: Int64Array
    source: Int64Array
    target: Int64Array
    fixed_ns: Int64Array
    point: Int64Array
    """The host point whose offset from its sync point is added, or NONE."""
    host_segment: Int64Array
    """The host point whose host segment is added, or NONE."""
    operation: Int64Array
    """The operation of whose duration ``share`` is added, or NONE."""
    share: Float64Array

    def lengths_ns(self, points: HostPoints, host_segment_ns: Int64Array, duration_ns: Int64Array) -> Int64Array:
        """Length of every edge. Where there is no operation, the share is 0."""
        lengths_ns = self.fixed_ns + np.rint(self.share * duration_ns[self.operation]).astype(np.int64)
        from_host, with_host_segment = np.flatnonzero(self.point != NONE), np.flatnonzero(self.host_segment != NONE)
        lengths_ns[from_host] += points.offsets_ns(host_segment_ns, self.point[from_host])
        lengths_ns[with_host_segment] += host_segment_ns[self.host_segment[with_host_segment]]
        return lengths_ns

    def delay(self, nodes: Int64Array, later_ns: Int64Array, besides: Kind | None = None) -> Edges:
        """The edges with those to ``nodes`` longer by ``later_ns`` each, but for those of the kind ``besides``."""
        by_node = np.zeros(int(max(self.target.max(initial=0), nodes.max(initial=0))) + 1, dtype=np.int64)
        by_node[nodes] = later_ns
        later_ns = np.where(self.kind == (NONE if besides is None else besides), 0, by_node[self.target])
        return replace(self, fixed_ns=self.fixed_ns + later_ns)

    def add(self, kind: Kind, operation: Int64Array, source: Int64Array, target: Int64Array) -> Edges:
        """The edges, and others after the ends of each ``operation`` (from ``source``), to later nodes ``target``."""
        added = {"source": source, "target": target, "operation": operation}
        numbers = {"kind": int(kind), "fixed_ns": 0}
        columns = {
            name: np.append(getattr(self, name), added.get(name, np.full(len(target), numbers.get(name, NONE))))
            for name in EDGE_COLUMNS[:-1]
        }
        share = np.append(self.share, np.ones(len(target)))
        return Edges(**columns, share=share).take(np.argsort(columns["target"], kind="stable"))

    def drop(self, dropped: BoolArray) -> Edges:
        """The edges without those that are ``dropped``. Where there are none, the next replay need not be prepared."""
        return self.take(~dropped) if dropped.any() else self

    def take(self, chosen: BoolArray | Int64Array) -> Edges:
        """The edges that are ``chosen``, by a mask or by their places."""
        return Edges(*(getattr(self, name)[chosen] for name in EDGE_COLUMNS))


EDGE_COLUMNS = ("kind", "source", "target", "fixed_ns", "point", "host_segment", "operation", "share")


@dataclass(frozen=True, slots=True)
class Carried:
    """What a step inherits from the one before it: when threads go on, streams are free, and queued launches return."""

    node: Int64Array
    """The first node of a thread or stream, or that of a launch which waited for an operation of the step before."""
    last_point: Int64Array
    """The last host point of the thread in the step, after which it goes on in the next; NONE for a stream."""
    last_operation: Int64Array
    """The last operation of the stream, or the one that the launch waited for; NONE for a thread."""
    pause_ns: Int64Array
    """Host time from the thread's last call of the step to its first of the next; from the end of the operation to the
    return of the launch; 0 for a stream."""
    holds_host: BoolArray
    """Whether the host waits for it: threads and launches, not streams."""
    fixed_ns: Int64Array
    """What of the time before the next step no change of the host's work shortens: a pause before the first launch."""


@dataclass(frozen=True, slots=True)
class GraphPauses:
    """Pauses of the host in a step: edges to these nodes contain them, whatever else changes."""

    node: Int64Array
    """The call after a pause, or an operation that it launches and that starts later than anything else explains."""
    ns: Int64Array
    rank: Int64Array
    """Place of the rank in the graph."""


CALLS = pl.Schema(
    {
        "rank": pl.Int64(),  # place of the rank in the graph
        "thread": pl.Int64(),
        "start_ns": pl.Int64(),  # on the capture's own clock
        "end_ns": pl.Int64(),
        "correlation": pl.Int64(),
        "name": pl.Categorical(),
        "kind": pl.Categorical(),  # tables/api-calls.yaml; other
    }
)

HostCalls = Annotated[pl.DataFrame, CALLS]
"""CUDA calls of the threads that launch, thread by thread in the order of time."""

RankOperations = Annotated[Operations, {"rank": pl.Int64}]  # place of the rank in the graph
"""What ran on the devices; a row's place is the operation's number in the graph."""


@dataclass(frozen=True, slots=True)
class StepGraph:
    """One step of every captured rank. Times count from ``origin_ns`` on the common clock."""

    operations: RankOperations
    calls: HostCalls
    """Call i has the host points 2i and 2i + 1."""
    points: HostPoints
    edges: Edges
    nodes_count: int
    call_of: Int64Array
    """Per operation the call that launched it, or NONE."""
    start_node: Int64Array
    """Per operation the node of its start."""
    end_node: Int64Array
    """Per operation the node after which it takes its duration: its start, or the rendezvous of its collective."""
    host_segment_ns: Int64Array
    """As captured: host time right before every point. At a sync point, what it takes without a wait."""
    silent_ns: Int64Array
    """Of that, what passes without anything that was recorded: no operator takes it, and none that goes saves it."""
    duration_ns: Int64Array
    """As captured; of a member of a rendezvous, the time from the rendezvous to its end."""
    wait_ns: Int64Array
    """The part of the duration in which communication is taken to wait for ranks that were not captured."""
    held_ns: Int64Array
    """Per operation how long another process held it up on a shared GPU; edges to its start contain it."""
    ready_ns: Int64Array
    """Per operation how long it transfers at the pace of the fastest of its kind; NONE where that is not known."""
    carried: Carried
    pauses: GraphPauses
    measured_ns: Int64Array
    """Per rank (in order of ``ranks``): from its step's start to the end of its last operation."""
    rank_start_ns: Int64Array
    """Per rank: the start of its step."""
    tail_ns: int
    """From the end of the last operation to the end of the step, of the rank where that is least."""
    ranks: tuple[int, ...]
    """Rank indices."""
    _known: dict[Hashable, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    def once(self, name: Hashable, compute: Callable[[], Value]) -> Value:
        """What ``compute`` gives, computed once: the replays of a plan ask for the same arrays hundreds of times.

        ``name`` stands for the value. Nobody changes such an array.
        """
        if name not in self._known:
            self._known[name] = compute()
        value: Value = self._known[name]
        return value

    def sum_pauses(self) -> list[int]:
        """How long the host of each rank pauses in the step and before it."""
        point, operation = self.carried.last_point, self.carried.last_operation
        of_calls, of_operations = (frame["rank"].to_numpy() for frame in (self.calls, self.operations))
        before_ns = np.zeros(len(self.ranks), dtype=np.int64)
        rank = np.where(point == NONE, of_operations[operation], of_calls[point // 2])
        np.maximum.at(before_ns, rank, self.carried.fixed_ns)
        within_ns = np.bincount(self.pauses.rank, self.pauses.ns, len(self.ranks))
        return [int(ns) for ns in before_ns + within_ns]

    def without_pauses(self) -> StepGraph:
        """The step whose host never pauses; itself where that is so."""
        if not len(self.pauses.node) and not self.carried.fixed_ns.any():
            return self
        none = GraphPauses(*(getattr(self.pauses, name)[:0] for name in ("node", "ns", "rank")))
        carried = replace(self.carried, fixed_ns=np.zeros_like(self.carried.fixed_ns))
        edges = self.edges.delay(self.pauses.node, -self.pauses.ns, besides=Kind.LAUNCH)
        without = replace(self, edges=edges, carried=carried, pauses=none)
        # What other ranks and the loader take is compared with the step that was captured: without its pauses, too.
        saved_ns = replay(self).step_ns - replay(without).step_ns
        return replace(without, measured_ns=self.measured_ns - saved_ns)

    @property
    def work(self) -> Work:
        """The work as captured."""
        return Work(self.host_segment_ns, self.duration_ns, self.edges, self.wait_ns)


@dataclass(frozen=True, slots=True)
class Work:
    """What a replay evaluates: host segments, durations and edges, as captured or changed."""

    host_segment_ns: Int64Array
    duration_ns: Int64Array
    edges: Edges
    wait_ns: Int64Array
    """The part of the durations that waits for ranks that were not captured."""


@dataclass(frozen=True, slots=True)
class Times:
    """When everything happens in a replay, counted from the graph's origin."""

    node_ns: Int64Array
    start_ns: Int64Array
    """Per operation."""
    end_ns: Int64Array
    step_ns: Int64Array
    """Per rank: from its step's start to the end of its last operation."""

    @property
    def longest_ns(self) -> int:
        """The step of the rank that takes longest."""
        return int(self.step_ns.max())


def replay(graph: StepGraph, work: Work | None = None) -> Times:
    """The earliest time of everything in ``graph`` when ``work`` (by default that of the capture) is done."""
    work = work or graph.work
    lengths_ns = work.edges.lengths_ns(graph.points, work.host_segment_ns, work.duration_ns)
    node_ns = find_longest_paths(graph.nodes_count, work.edges.source, work.edges.target, lengths_ns)
    start_ns = node_ns[graph.start_node]
    end_ns = np.maximum(node_ns[graph.end_node] + work.duration_ns, start_ns)
    rank = graph.operations["rank"].to_numpy()
    last_ns = graph.rank_start_ns.copy()  # what ends before its step takes none of it
    np.maximum.at(last_ns, rank, end_ns)
    return Times(node_ns, start_ns, end_ns, last_ns - graph.rank_start_ns)


def find_steady(
    graph: StepGraph, work: Work | None = None, times: Times | None = None, host_ratio: float | None = None
) -> tuple[Work, Times]:
    """``work`` with threads and streams that begin as a step like it leaves them, and its replay.

    A host that ran ahead of the device in the capture does not stay ahead once the device is faster. ``times``: those
    of ``work``, if they are known. ``host_ratio``: what is left of the host's own work, without what it waits for.
    """
    work = work or graph.work
    times = times or replay(graph, work)
    carried = graph.carried
    if host_ratio is None:
        host_ratio = int(work.host_segment_ns.sum()) / max(1, int(graph.host_segment_ns.sum()))
    is_thread = carried.last_point != NONE
    last_sync_node = graph.points.last_sync_node(carried.last_point)
    carried_at = np.full(graph.nodes_count, NONE, dtype=np.int64)
    carried_at[carried.node] = np.arange(len(carried.node), dtype=np.int64)
    inherited = np.flatnonzero((work.edges.kind == Kind.GIVEN) & (carried_at[work.edges.target] != NONE))
    place = carried_at[work.edges.target[inherited]]
    for _ in range(replay_thresholds.MOST_STEADY_REPLAYS):
        host_end_ns = times.node_ns[last_sync_node] + graph.points.offsets_ns(work.host_segment_ns, carried.last_point)
        pause_ns = np.rint(carried.pause_ns * host_ratio).astype(np.int64)
        operation_end_ns = times.end_ns[carried.last_operation] + carried.pause_ns
        left_ns = np.where(is_thread, host_end_ns + pause_ns, operation_end_ns) + carried.fixed_ns
        begin_ns = left_ns - times.longest_ns - graph.tail_ns
        later_ns = begin_ns[place] - work.edges.fixed_ns[inherited]
        # A stream that is free earlier than it was holds nothing back.
        moved_ns = int(np.where(carried.holds_host[place], np.abs(later_ns), later_ns).max(initial=0))
        if moved_ns <= replay_thresholds.STEADY_FRACTION * times.longest_ns:
            break
        fixed_ns = work.edges.fixed_ns.copy()
        fixed_ns[inherited] = begin_ns[place]
        work = replace(work, edges=replace(work.edges, fixed_ns=fixed_ns))
        following = replay(graph, work)
        is_steady = abs(following.longest_ns - times.longest_ns) <= replay_thresholds.STEADY_FRACTION * times.longest_ns
        times = following
        if is_steady:
            break
    return work, times
