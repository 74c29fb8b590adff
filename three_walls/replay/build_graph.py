"""Builds the dependency graph of one step of every captured rank."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from three_walls.replay import replay_thresholds
from three_walls.replay.awaited_operations import QueueWaits, find_awaited, find_queue_waits
from three_walls.replay.device_edges import find_producers, find_resource_waits, follow_streams
from three_walls.replay.host_chains import find_first_calls, find_handoffs, list_calls
from three_walls.replay.step_graph import (
    EDGE_COLUMNS,
    NONE,
    ORIGIN,
    Carried,
    Edges,
    GraphPauses,
    HostCalls,
    HostPoints,
    Kind,
    StepGraph,
)
from three_walls.step.build_timeline import Timeline, find_between, take_rank
from three_walls.step.intervals import DURATION
from three_walls.step.ranks.matched_ranks import MatchedRanks
from three_walls.step.step_tables import Arrivals, Operations, Pauses, RankIntervals, ReadyDurations
from three_walls.step.stream_edges import EventCalls
from three_walls.step.transfer import estimate_ready_durations
from three_walls.trace.schemas import BoolArray, Float64Array, Int64Array


def build_graphs(
    timeline: Timeline,
    matched_ranks: MatchedRanks,
    steps: Sequence[RankIntervals],
    event_calls: EventCalls,
    pauses: Pauses,
    shared_gpus: Collection[int] = (),
) -> Iterator[StepGraph]:
    """The graphs of several ``steps``, one after the other; each is given as windows, one of each rank.

    ``event_calls`` and ``pauses``: those of ``timeline``. ``shared_gpus``: indices of ranks whose GPU another process
    uses. It holds their operations up.
    """
    clock = matched_ranks.clock
    in_order = [windows.sort("rank_index") for windows in steps]
    ran = [
        find_between(take_rank(timeline.operations, row["rank_index"]), "start_ns", row["start_ns"], row["end_ns"])
        for rows in in_order
        for row in rows.iter_rows(named=True)
    ]
    ready = estimate_ready_durations(timeline)
    events = iter(find_producers(event_calls, ran))
    for rows in in_order:
        arrivals = matched_ranks.arrivals
        shifts = (clock.add_common_times(rows)["common_start_ns"] - rows["start_ns"]).to_list()
        if None in shifts:  # clocks that cannot be compared: every rank replays alone, from the start of its step
            shifts, arrivals = (rows["start_ns"][0] - rows["start_ns"]).to_list(), arrivals.clear()
        parts = [
            _read_rank(timeline, next(events), place, row, shifts[place], pauses.filter(rank_index=row["rank_index"]))
            for place, row in enumerate(rows.iter_rows(named=True))
        ]
        yield _join_ranks(parts, arrivals, ready, shared_gpus)


@dataclass(frozen=True, slots=True)
class _RankPart:
    """One rank's step: its operations, its calls, and what waited for what, by places in its own lists."""

    rank_index: int
    start_ns: int
    end_ns: int
    shift_ns: int
    """From the rank's own clock to the common one."""
    operations: Operations
    calls: HostCalls
    call_of: Int64Array
    """Per operation the call that launched it, or NONE."""
    previous: Int64Array
    """Per operation the one before it on its stream, or NONE."""
    events: tuple[Int64Array, Int64Array]
    resource: Int64Array
    awaited: tuple[Int64Array, Int64Array]
    """Calls, and the operations that they waited for."""
    queue: QueueWaits
    """Launches that waited for an operation of the step before; those that waited for one of this step are awaited."""
    first_calls: Int64Array
    """The first call of each thread."""
    handoffs: tuple[Int64Array, Int64Array]
    """Calls, and the calls of other threads that they followed."""
    free_ns: Int64Array
    """Per operation that is the first on its stream: when the stream was free; NONE where nothing ran before."""
    until_ns: int
    """When the host goes on with the next step."""
    paused: tuple[Int64Array, Int64Array]
    """Calls before which the host paused, and for how long."""
    begins_after_ns: int
    """How long it paused before the first launch of the step, """
    ends_with_ns: int
    """and before that of the next one."""


def _read_rank(
    timeline: Timeline,
    events: tuple[Int64Array, Int64Array],
    place: int,
    window: Mapping[str, int],
    shift_ns: int,
    pauses: Pauses,
) -> _RankPart:
    """``events``: find_producers of the operations of this step. ``pauses``: of the rank."""
    rank_index, start_ns, end_ns = window["rank_index"], window["start_ns"], window["end_ns"]
    of_rank = take_rank(timeline.operations, rank_index)
    operations = find_between(of_rank, "start_ns", start_ns, end_ns)
    times = of_rank.select("stream", "launch_start_ns", "start_ns", "end_ns")  # of all steps, a few columns are enough
    earlier, _, later = _split(times, "start_ns", start_ns, end_ns)
    until_ns = _find_next_host_step(operations, later, end_ns)
    # A call between the pause before the next step and its first launch is part of neither.
    called_until_ns = pauses.filter(launch_ns=until_ns).select(pl.col("start_ns").append(until_ns).min()).item()
    calls = list_calls(timeline, operations, pauses, called_until_ns).with_columns(rank=pl.lit(place, dtype=pl.Int64))
    call_of = _find_calls(operations, calls)
    previous = follow_streams(operations)
    call_start = calls["start_ns"].to_numpy()
    launch_ns = np.where(call_of != NONE, call_start[call_of] if len(call_start) else NONE, NONE)
    waits = timeline.stream_waits.filter(
        (pl.col("capture_id") == operations["capture_id"][0])
        & (pl.col("process") == operations["process"][0])
        & pl.col("correlation").is_in(calls["correlation"].unique().implode())
    )
    awaited, queue = _join_waits(
        find_awaited(calls, operations, waits, call_of), find_queue_waits(calls, operations, earlier, call_of)
    )
    begin_ns = calls["start_ns"].min() if calls.height else until_ns
    begins_after_ns, ends_with_ns = (
        pauses.filter(launch_ns=launch_ns).select((DURATION - pl.col("usual_ns")).sum()).item()
        for launch_ns in (begin_ns, until_ns)
    )
    freed = earlier.group_by("stream").agg(pl.col("end_ns").max())
    free_of = dict(freed.iter_rows())
    first = np.flatnonzero(previous == NONE)
    free_ns = np.full(operations.height, NONE, dtype=np.int64)
    free_ns[first] = [free_of.get(stream, NONE) for stream in operations["stream"].gather(first).to_list()]
    return _RankPart(
        rank_index=rank_index,
        start_ns=start_ns,
        end_ns=end_ns,
        shift_ns=shift_ns,
        operations=operations.with_columns(rank=pl.lit(place, dtype=pl.Int64)),
        calls=calls,
        call_of=call_of,
        previous=previous,
        events=events,
        resource=find_resource_waits(operations, launch_ns, previous, events),
        awaited=awaited,
        queue=queue,
        first_calls=find_first_calls(calls),
        handoffs=find_handoffs(calls),
        free_ns=free_ns,
        until_ns=until_ns,
        paused=_find_paused(calls, pauses.filter(pl.col("launch_ns") > begin_ns, pl.col("launch_ns") < until_ns)),
        begins_after_ns=begins_after_ns,
        ends_with_ns=ends_with_ns,
    )


def _find_paused(calls: HostCalls, pauses: Pauses) -> tuple[Int64Array, Int64Array]:
    """The calls with which the host goes on after ``pauses``, and how much longer than usual each of these was."""
    following = (
        pauses.select("launch_ns", start_ns="end_ns", ns=DURATION - pl.col("usual_ns"))
        .sort("start_ns")
        .join_asof(
            calls.with_row_index("call").sort("start_ns").select("call", "start_ns", called_ns="start_ns"),
            on="start_ns",
            strategy="forward",
        )
        .filter(pl.col("called_ns") <= pl.col("launch_ns"))
        .unique("call", keep="first", maintain_order=True)
        .sort("call")
    )
    return following["call"].cast(pl.Int64).to_numpy(), following["ns"].to_numpy()


def _join_waits(
    awaited: tuple[Int64Array, Int64Array], queue: QueueWaits
) -> tuple[tuple[Int64Array, Int64Array], QueueWaits]:
    """All waits for operations of the step, and the launches that waited for one of the step before.

    A call that is known to wait for its own operation did not wait for the queue.
    """
    is_new = ~np.isin(queue.call, awaited[0])
    of_step, carried = is_new & ~queue.is_carried, is_new & queue.is_carried
    waiting = np.concatenate([awaited[0], queue.call[of_step]])
    order = np.argsort(waiting, kind="stable")
    return (waiting[order], np.concatenate([awaited[1], queue.operation[of_step]])[order]), queue.take(carried)


def _split(rows: pl.DataFrame, column: str, begin: int, end: int) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """The ``rows``, sorted by ``column``, before ``begin``, from there to before ``end``, and from ``end`` on."""
    first, after = (rows[column].search_sorted(value, "left") for value in (begin, end))
    return rows[:first], rows[first:after], rows[after:]


def _find_next_host_step(operations: Operations, later: pl.DataFrame, end_ns: int) -> int:
    """When the host begins to launch the next step: it runs ahead of the device, so this may be before ``end_ns``."""
    last_launch = operations["launch_start_ns"].max()
    following = pl.col("launch_start_ns")
    if isinstance(last_launch, int):
        following = following.filter(following > last_launch)
    first = later.select(following.min()).item()
    return first if isinstance(first, int) else end_ns


def _find_calls(operations: Operations, calls: pl.DataFrame) -> Int64Array:
    """Per operation the place of its launch call among ``calls``, or NONE. Correlations are unique in a process."""
    if not calls.height:
        return np.full(operations.height, NONE, dtype=np.int64)
    of_call = calls["correlation"].fill_null(NONE).to_numpy()
    order = np.argsort(of_call, kind="stable")
    correlation = operations["correlation"].fill_null(NONE).to_numpy()
    place = order[np.minimum(np.searchsorted(of_call[order], correlation), len(order) - 1)]
    is_recorded = operations["launch_start_ns"].is_not_null().to_numpy()
    return np.where(is_recorded & (of_call[place] == correlation), place, NONE)


Column = Int64Array | Float64Array


class _EdgeList:
    """Edges, gathered a column of each kind of number at a time."""

    def __init__(self) -> None:
        self._parts: list[dict[str, Column]] = []

    def add(self, kind: Kind, target: Int64Array, fixed_ns: Column | int = 0, **columns: Column | float) -> None:
        """Adds edges to ``target``. By default other columns are NONE, and ``share`` is 0."""
        values = dict.fromkeys(("source", "point", "host_segment", "operation"), NONE) | {"share": 0.0, **columns}
        values |= {"kind": int(kind), "target": target, "fixed_ns": fixed_ns}
        part: dict[str, Column] = {}
        for name in EDGE_COLUMNS:
            dtype: type = np.float64 if name == "share" else np.int64
            part[name] = np.broadcast_to(np.asarray(values[name], dtype=dtype), (len(target),))
        self._parts.append(part)

    def finish(self, points: HostPoints) -> Edges:
        """All edges, sorted by target. Those from a host point begin at the sync point before it."""
        order = np.argsort(np.concatenate([part["target"] for part in self._parts]), kind="stable")
        columns = {name: np.concatenate([part[name] for part in self._parts])[order] for name in EDGE_COLUMNS}
        from_host = columns["point"] != NONE
        columns["source"][from_host] = points.last_sync_node(columns["point"][from_host])
        return Edges(**columns)


class _JoinedRanks:
    """The steps of all ranks as one, with operations and calls numbered on. Times count from the graph's origin."""

    def __init__(self, parts: Sequence[_RankPart]) -> None:
        origin_ns = min(part.start_ns + part.shift_ns for part in parts)
        shift_ns = np.array([part.shift_ns - origin_ns for part in parts], dtype=np.int64)
        self.step_start_ns = np.array([part.start_ns for part in parts], dtype=np.int64) + shift_ns
        self.step_end_ns = np.array([part.end_ns for part in parts], dtype=np.int64) + shift_ns
        self.until_ns = np.array([part.until_ns for part in parts], dtype=np.int64) + shift_ns

        self.operations = pl.concat([part.operations for part in parts])
        self.calls = pl.concat([part.calls for part in parts])
        (self.start, self.end), (self.call_start, self.call_end) = (
            [frame[name].to_numpy() + shift_ns[frame["rank"].to_numpy()] for name in ("start_ns", "end_ns")]
            for frame in (self.operations, self.calls)
        )

        operation_base = np.cumsum([0, *(part.operations.height for part in parts[:-1])])
        call_base = np.cumsum([0, *(part.calls.height for part in parts[:-1])])
        self.call_of = _add_bases([part.call_of for part in parts], call_base)
        self.previous = _add_bases([part.previous for part in parts], operation_base)
        self.resource = _add_bases([part.resource for part in parts], operation_base)
        calls, pauses_ns = _add_bases([part.paused[0] for part in parts], call_base), [part.paused[1] for part in parts]
        self.paused_ns = np.zeros(len(self.call_start), dtype=np.int64)
        self.paused_ns[calls] = np.concatenate(pauses_ns)
        self.begins_after_ns, self.ends_with_ns = (
            np.array([getattr(part, name) for part in parts], dtype=np.int64)
            for name in ("begins_after_ns", "ends_with_ns")
        )
        self.free_ns = _add_bases([part.free_ns for part in parts], shift_ns)
        self.events = tuple(_add_bases([part.events[side] for part in parts], operation_base) for side in (0, 1))
        self.first_calls = _add_bases([part.first_calls for part in parts], call_base)
        self.resumed, self.followed = (
            _add_bases([part.handoffs[side] for part in parts], call_base) for side in (0, 1)
        )
        # Where a thread begins with a call, nothing of it was seen before.
        self.paused_ns[np.setdiff1d(self.first_calls, self.resumed)] = 0
        self.paused = np.flatnonzero(self.paused_ns)
        self.queued = _add_bases([part.queue.call for part in parts], call_base)
        self.queued_behind = _add_bases([part.queue.operation for part in parts], operation_base)
        self.queued_after_ns = np.concatenate([part.queue.after_ns for part in parts])
        waiting = _add_bases([part.awaited[0] for part in parts], call_base)
        awaited = _add_bases([part.awaited[1] for part in parts], operation_base)
        # A call that "waited" for an operation that ended after its return did not wait for it.
        in_time = self.end[awaited] <= self.call_end[waiting] + replay_thresholds.SHORTEST_WAIT_NS
        self.waiting, self.awaited = waiting[in_time], awaited[in_time]
        self.has_waited = self.end[self.awaited] > self.call_start[self.waiting]


def _add_bases(values: Sequence[Int64Array], bases: Int64Array) -> Int64Array:
    """The ``values`` of all ranks, each greater by the base of its rank. NONE stays."""
    return np.concatenate(
        [np.where(value == NONE, NONE, value + base) for value, base in zip(values, bases, strict=True)]
    )


class _Nodes:
    """The nodes of a graph by what happens at them, and when they happened in the capture."""

    def __init__(self, ranks: _JoinedRanks, member: Int64Array, meeting: Int64Array) -> None:
        """``member``, ``meeting``: _list_rendezvous."""
        self.meeting_ns = np.zeros(meeting.max(initial=NONE) + 1, dtype=np.int64)
        np.maximum.at(self.meeting_ns, meeting, ranks.start[member])
        sync_calls = np.unique(np.concatenate([ranks.first_calls, ranks.resumed, ranks.paused]))
        returning = np.concatenate([ranks.waiting, ranks.queued])
        # Of nodes at one time, those of an earlier kind come first.
        times = [ranks.call_start[sync_calls], ranks.start, self.meeting_ns, ranks.call_end[returning]]
        at_ns = np.concatenate(times)
        order = np.argsort(at_ns, kind="stable")
        node = np.empty(len(order), dtype=np.int64)
        node[order] = np.arange(1, len(order) + 1)  # node 0 is the origin
        self.captured_ns = np.concatenate([[0], at_ns[order]])
        sync_starts, self.start, self.meeting, sync_ends = np.split(node, np.cumsum([len(part) for part in times])[:-1])
        self.end = self.start.copy()
        self.end[member] = self.meeting[meeting]
        self.sync = np.full(2 * ranks.calls.height, NONE, dtype=np.int64)
        self.sync[2 * sync_calls] = sync_starts
        self.sync[2 * returning + 1] = sync_ends
        self.points = HostPoints(self.sync)


def _join_ranks(
    parts: Sequence[_RankPart], arrivals: Arrivals, ready: ReadyDurations, shared_gpus: Collection[int]
) -> StepGraph:
    """One graph of all ranks, on the common clock."""
    ranks = _JoinedRanks(parts)
    operations = ranks.operations
    member, meeting = _list_rendezvous(operations, arrivals, [part.rank_index for part in parts])
    nodes = _Nodes(ranks, member, meeting)
    host_segment_ns = _measure_host_segments(ranks)
    duration_ns = ranks.end - ranks.start
    duration_ns[member] = np.maximum(0, ranks.end[member] - nodes.meeting_ns[meeting])
    ready_ns = _find_ready_durations(operations, ready)
    # Where the whole group was captured, the rendezvous holds the waiting.
    waits_outside = (ready_ns != NONE) & ~_is_complete(member, arrivals, operations)

    edges = _EdgeList()
    _add_host_edges(edges, ranks, nodes)
    _add_launch_edges(edges, ranks, nodes)
    _add_stream_edges(edges, ranks, nodes)
    _add_resource_edges(edges, ranks, nodes, duration_ns)
    edges.add(Kind.ARRIVAL, nodes.meeting[meeting], source=nodes.start[member])
    all_edges = edges.finish(nodes.points)
    all_edges, pauses = _add_pauses(all_edges, ranks, nodes, host_segment_ns, duration_ns)
    is_shared = operations["rank_index"].is_in(list(shared_gpus)).to_numpy()
    held_ns = np.zeros(operations.height, dtype=np.int64)
    if is_shared.any():
        lengths_ns = all_edges.lengths_ns(nodes.points, host_segment_ns, duration_ns)
        held_ns = np.where(is_shared, _measure_delays(ranks.start, nodes, all_edges, lengths_ns), 0)
        all_edges = all_edges.delay(nodes.start, held_ns)
    last_end_ns = np.zeros(len(parts), dtype=np.int64)
    np.maximum.at(last_end_ns, operations["rank"].to_numpy(), ranks.end)
    return StepGraph(
        operations=operations,
        calls=ranks.calls,
        points=nodes.points,
        # Two things at one instant, or a launch that begins after its kernel because clocks differ, order nothing.
        edges=all_edges.drop(all_edges.source >= all_edges.target),
        nodes_count=len(nodes.captured_ns),
        call_of=ranks.call_of,
        start_node=nodes.start,
        end_node=nodes.end,
        host_segment_ns=host_segment_ns,
        silent_ns=np.zeros_like(host_segment_ns),
        duration_ns=duration_ns,
        wait_ns=np.where(waits_outside, np.maximum(0, duration_ns - ready_ns), 0),
        held_ns=held_ns,
        ready_ns=ready_ns,
        carried=_list_carried(ranks, nodes, pauses),
        pauses=pauses,
        measured_ns=last_end_ns - ranks.step_start_ns,
        rank_start_ns=ranks.step_start_ns,
        tail_ns=max(0, int((ranks.step_end_ns - last_end_ns).min())),
        ranks=tuple(part.rank_index for part in parts),
    )


def _measure_host_segments(ranks: _JoinedRanks) -> Int64Array:
    """Host time right before every point, without pauses. What a call takes without its wait is known roughly."""
    shortest_wait_ns = replay_thresholds.SHORTEST_WAIT_NS
    host_segment_ns = np.empty(2 * ranks.calls.height, dtype=np.int64)
    think_ns, took_ns = host_segment_ns[0::2], host_segment_ns[1::2]
    think_ns[1:] = np.maximum(0, ranks.call_start[1:] - ranks.call_end[:-1])
    think_ns[ranks.first_calls] = 0
    think_ns[ranks.resumed] = ranks.call_start[ranks.resumed] - ranks.call_end[ranks.followed]
    think_ns[:] = np.maximum(0, think_ns - ranks.paused_ns)
    took_ns[:] = ranks.call_end - ranks.call_start
    has_waited = ranks.waiting[ranks.has_waited]
    took_ns[has_waited] = np.minimum(took_ns[has_waited], shortest_wait_ns)
    took_ns[ranks.queued] = shortest_wait_ns
    return host_segment_ns


def _add_pauses(
    edges: Edges, ranks: _JoinedRanks, nodes: _Nodes, host_segment_ns: Int64Array, duration_ns: Int64Array
) -> tuple[Edges, GraphPauses]:
    """``edges`` with the pauses of the host as delays of their own, which no change of the host's work touches.

    What is launched right after a pause may start later than anything explains: the device paused with its host, as
    long after its last work.
    """
    at_call = nodes.sync[2 * ranks.paused]
    edges = edges.delay(at_call, ranks.paused_ns[ranks.paused])
    launching = np.unique(ranks.call_of[ranks.call_of != NONE])
    begins_after_ns = ranks.begins_after_ns[ranks.calls["rank"].to_numpy()[ranks.first_calls]]
    resuming = np.concatenate([ranks.paused, ranks.first_calls[begins_after_ns > 0]])
    paused_ns = np.concatenate([ranks.paused_ns[ranks.paused], begins_after_ns[begins_after_ns > 0]])
    place = np.searchsorted(launching, resuming)
    by_call = np.zeros(ranks.calls.height, dtype=np.int64)
    np.maximum.at(by_call, launching[place[place < len(launching)]], paused_ns[place < len(launching)])
    late_ns = np.zeros(len(ranks.start), dtype=np.int64)
    if by_call.any():
        lengths_ns = edges.lengths_ns(nodes.points, host_segment_ns, duration_ns)
        is_late = _measure_delays(ranks.start, nodes, edges, lengths_ns) > 0
        on_device = edges.kind != Kind.LAUNCH
        idle_ns = _measure_delays(ranks.start, nodes, edges.take(on_device), lengths_ns[on_device])
        late_ns = np.where(is_late & (ranks.call_of != NONE), np.minimum(idle_ns, by_call[ranks.call_of]), 0)
    late = np.flatnonzero(late_ns)
    rank_of_call, rank_of_operation = (frame["rank"].to_numpy() for frame in (ranks.calls, ranks.operations))
    pauses = GraphPauses(
        node=np.concatenate([at_call, nodes.start[late]]),
        ns=np.concatenate([ranks.paused_ns[ranks.paused], late_ns[late]]),
        rank=np.concatenate([rank_of_call[ranks.paused], rank_of_operation[late]]),
    )
    return edges.delay(nodes.start[late], late_ns[late], besides=Kind.LAUNCH), pauses


def _measure_delays(start: Int64Array, nodes: _Nodes, edges: Edges, lengths_ns: Int64Array) -> Int64Array:
    """Per operation how much later it starts than its edges explain; 0 where that has other causes than a process."""
    free_at_ns = np.zeros(len(nodes.captured_ns), dtype=np.int64)
    np.maximum.at(free_at_ns, edges.target, nodes.captured_ns[edges.source] + lengths_ns)
    late_ns = start - free_at_ns[nodes.start]
    return np.where(late_ns > replay_thresholds.LEAST_HELD_NS, late_ns, 0)


def _list_carried(ranks: _JoinedRanks, nodes: _Nodes, pauses: GraphPauses) -> Carried:
    """What the next step inherits from this one."""
    paused_ns = np.zeros(len(nodes.captured_ns), dtype=np.int64)
    paused_ns[pauses.node] = pauses.ns
    first = ranks.first_calls
    last = np.append(first[1:], ranks.calls.height)[: len(first)] - 1
    head, tail = _find_ends(ranks.operations, ranks.previous)
    rank = ranks.calls["rank"].to_numpy()[last]
    pause_ns = np.maximum(0, ranks.until_ns[rank] - ranks.call_end[last] - ranks.ends_with_ns[rank])
    no_point = np.full(len(head) + len(ranks.queued), NONE)
    return Carried(
        node=np.concatenate([nodes.sync[2 * first], nodes.start[head], nodes.sync[2 * ranks.queued + 1]]),
        last_point=np.concatenate([2 * last + 1, no_point]),
        last_operation=np.concatenate([np.full(len(first), NONE), tail, ranks.queued_behind]),
        pause_ns=np.concatenate([pause_ns, np.zeros_like(head), ranks.queued_after_ns]),
        holds_host=np.repeat([True, False, True], [len(first), len(head), len(ranks.queued)]),
        fixed_ns=np.concatenate(
            [ranks.begins_after_ns[rank], paused_ns[nodes.start[head]], np.zeros_like(ranks.queued_after_ns)]
        ),
    )


def _find_ends(operations: Operations, previous: Int64Array) -> tuple[Int64Array, Int64Array]:
    """The first and the last of the ``operations`` on every stream. ``previous``: per operation the one before it."""
    has_next = np.zeros(len(previous) + 1, dtype=bool)
    has_next[previous] = True  # NONE marks the end of the array
    first, last = np.flatnonzero(previous == NONE), np.flatnonzero(~has_next[:-1])
    keys = operations["stream"].to_numpy(), operations["rank"].to_numpy()
    last_of_first = np.empty_like(last)
    last_of_first[np.lexsort([key[first] for key in keys])] = last[np.lexsort([key[last] for key in keys])]
    return first, last_of_first


_ALWAYS = -(2**62)
"""Since when a stream is free on which nothing ran before."""

_CALL = ("rank_index", "stream", "start_ns", "end_ns")
"""Identifies a call of communication."""


def _find_ready_durations(operations: Operations, ready: ReadyDurations) -> Int64Array:
    """Per operation how long it transfers when its peers are ready, or NONE."""
    of_call = ready.drop_nulls("ready_ns").unique(_CALL, keep="first", maintain_order=True)
    ready_ns = operations.select(_CALL).join(of_call, on=_CALL, how="left", maintain_order="left")["ready_ns"]
    return ready_ns.fill_null(NONE).to_numpy()


def _is_complete(member: Int64Array, arrivals: Arrivals, operations: Operations) -> BoolArray:
    """Per operation whether all members of its collective were captured, so that its rendezvous is whole.

    ``member``: the operations that meet others.
    """
    complete = arrivals.filter("complete").select(_CALL).unique().with_columns(whole=pl.lit(value=True))
    whole = operations.select(_CALL).join(complete, on=_CALL, how="left", maintain_order="left")["whole"]
    meets = np.zeros(operations.height, dtype=bool)
    meets[member] = True
    return np.asarray(whole.fill_null(value=False).to_numpy() & meets)


def _list_rendezvous(
    operations: Operations, arrivals: Arrivals, rank_indices: Sequence[int]
) -> tuple[Int64Array, Int64Array]:
    """Pairs (operation, number of its rendezvous), by rendezvous. Each has two members or more."""
    instances = arrivals.filter(pl.col("rank_index").is_in(list(rank_indices))).select(*_CALL, "instance")
    members = (
        operations.select(pl.int_range(pl.len()).alias("op"), *_CALL)
        .join(instances, on=_CALL)
        .unique("op", keep="first", maintain_order=True)
        .sort("instance", "op")
        .filter(pl.len().over("instance") > 1)
    )
    return members["op"].to_numpy(), members["instance"].rle_id().cast(pl.Int64).to_numpy()


def _add_host_edges(edges: _EdgeList, ranks: _JoinedRanks, nodes: _Nodes) -> None:
    """Edges to the sync points of threads: from what they did before, and from what they waited for."""
    first, resumed, waiting, queued = ranks.first_calls, ranks.resumed, ranks.waiting, ranks.queued
    alone = np.setdiff1d(first, resumed)
    edges.add(Kind.GIVEN, nodes.sync[2 * alone], ranks.call_start[alone], source=ORIGIN)
    edges.add(Kind.HAND_OVER, nodes.sync[2 * resumed], point=2 * ranks.followed + 1, host_segment=2 * resumed)
    going_on = np.setdiff1d(resumed, first)
    edges.add(Kind.THREAD, nodes.sync[2 * going_on], point=2 * going_on - 1)
    paused = np.setdiff1d(ranks.paused, resumed)
    edges.add(Kind.THREAD, nodes.sync[2 * paused], point=2 * paused - 1, host_segment=2 * paused)
    returning = np.concatenate([waiting, queued])
    edges.add(Kind.THREAD, nodes.sync[2 * returning + 1], point=2 * returning, host_segment=2 * returning + 1)
    edges.add(Kind.GIVEN, nodes.sync[2 * queued + 1], ranks.call_end[queued], source=ORIGIN)
    tail_ns = np.where(ranks.has_waited, np.maximum(0, ranks.call_end[waiting] - ranks.end[ranks.awaited]), 0)
    _add_edges_after(edges, Kind.AWAITED, nodes.sync[2 * waiting + 1], ranks.awaited, nodes, tail_ns)


def _add_edges_after(
    edges: _EdgeList, kind: Kind, target: Int64Array, operation: Int64Array, nodes: _Nodes, fixed_ns: Int64Array
) -> None:
    """Edges from the ends of operations."""
    edges.add(kind, target, fixed_ns, source=nodes.end[operation], operation=operation, share=1.0)


def _add_launch_edges(edges: _EdgeList, ranks: _JoinedRanks, nodes: _Nodes) -> None:
    """Edges from launch calls to what they launched."""
    launched = np.flatnonzero(ranks.call_of != NONE)
    if not len(launched):
        return
    call = ranks.call_of[launched]
    latency_ns = ranks.start[launched] - ranks.call_start[call]
    before, free_ns = ranks.previous[launched], ranks.free_ns[launched]
    free_since = np.where(before != NONE, ranks.end[before], np.where(free_ns == NONE, _ALWAYS, free_ns))
    waits_for_event = np.isin(launched, ranks.events[0])
    is_idle = (free_since <= ranks.call_start[call]) & ~waits_for_event
    # Where the host is ahead of the device, the latency of most launches is a wait in their stream.
    unhindered_ns = latency_ns[is_idle] if is_idle.any() else latency_ns
    least_ns = max(
        replay_thresholds.LEAST_LAUNCH_LATENCY_NS,
        int(np.quantile(unhindered_ns, replay_thresholds.LAUNCH_LATENCY_QUANTILE)),
    )
    longest_ns = np.where(is_idle, least_ns * replay_thresholds.LONGEST_LATENCY_RATIO, least_ns)
    edges.add(Kind.LAUNCH, nodes.start[launched], np.maximum(0, np.minimum(latency_ns, longest_ns)), point=2 * call)


def _add_stream_edges(edges: _EdgeList, ranks: _JoinedRanks, nodes: _Nodes) -> None:
    """Edges to the starts of operations from the one before on their stream, and from events of other streams."""
    previous, free_ns = ranks.previous, ranks.free_ns
    gap_ns = np.where(previous != NONE, ranks.start - ranks.end[previous], 0)
    following = np.flatnonzero((previous != NONE) & (gap_ns >= 0))
    following_gap_ns = gap_ns[following]
    is_usual = (following_gap_ns < replay_thresholds.USUAL_STREAM_GAP_NS) | (ranks.call_of[following] == NONE)
    fixed_ns = np.where(is_usual, following_gap_ns, replay_thresholds.LEAST_STREAM_GAP_NS)
    _add_edges_after(edges, Kind.STREAM, nodes.start[following], previous[following], nodes, fixed_ns)
    overlapping = np.flatnonzero((previous != NONE) & (gap_ns < 0))
    edges.add(Kind.STREAM, nodes.start[overlapping], source=nodes.start[previous[overlapping]])
    first = np.flatnonzero((previous == NONE) & (free_ns != NONE))
    edges.add(Kind.GIVEN, nodes.start[first], free_ns[first], source=ORIGIN)
    unlaunched = np.flatnonzero((previous == NONE) & (ranks.call_of == NONE))
    edges.add(Kind.GIVEN, nodes.start[unlaunched], ranks.start[unlaunched], source=ORIGIN)
    waiting, producer = ranks.events
    event_gap_ns = np.clip(ranks.start[waiting] - ranks.end[producer], 0, replay_thresholds.LONGEST_EVENT_GAP_NS)
    _add_edges_after(edges, Kind.EVENT, nodes.start[waiting], producer, nodes, event_gap_ns)


def _add_resource_edges(edges: _EdgeList, ranks: _JoinedRanks, nodes: _Nodes, duration_ns: Int64Array) -> None:
    """An operation starts at the same share of the holder's duration as captured, or as long after its end."""
    late = np.flatnonzero(ranks.resource != NONE)
    holder = ranks.resource[late]
    since_end = ranks.start[late] - ranks.end[holder]
    after = since_end >= 0
    _add_edges_after(edges, Kind.RESOURCE, nodes.start[late[after]], holder[after], nodes, since_end[after])
    inside, during = late[~after], holder[~after]
    share = 1.0 + since_end[~after] / np.maximum(1, duration_ns[during])
    running = share >= 0  # of a collective that has not begun to transfer, nothing is known
    inside, during = inside[running], during[running]
    edges.add(Kind.RESOURCE, nodes.start[inside], source=nodes.end[during], operation=during, share=share[running])
