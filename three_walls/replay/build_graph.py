"""Builds the dependency graph of one step of every captured rank."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from three_walls.replay import replay_thresholds
from three_walls.replay.awaited_operations import find_awaited
from three_walls.replay.device_edges import find_producers, find_resource_waits, follow_streams
from three_walls.replay.host_chains import find_first_calls, find_handoffs, list_calls
from three_walls.replay.launch_queue import QueueWaits, find_queue_waits
from three_walls.replay.step_graph import (
    EDGE_COLUMNS,
    NONE,
    ORIGIN,
    Carried,
    Edges,
    HostCalls,
    HostPoints,
    Kind,
    StepGraph,
)
from three_walls.step.build_timeline import Timeline, find_between, take_rank
from three_walls.step.ranks.matched_ranks import MatchedRanks
from three_walls.step.step_tables import Arrivals, Operations, RankIntervals, ReadyDurations
from three_walls.step.stream_edges import EventCalls, list_event_calls
from three_walls.step.transfer import estimate_ready_durations
from three_walls.trace.schemas import BoolArray, Float64Array, Int64Array


@dataclass(frozen=True, slots=True)
class RunCalls:
    """What the graphs of all steps of a run need of its calls, found once."""

    event_calls: EventCalls
    ready: ReadyDurations

    @classmethod
    def of(cls, timeline: Timeline) -> RunCalls:
        """Those of ``timeline``."""
        event_calls = list_event_calls(timeline.api_calls, timeline.stream_waits, timeline.event_records)
        return cls(event_calls, estimate_ready_durations(timeline))


def build_graph(
    timeline: Timeline,
    matched_ranks: MatchedRanks,
    windows: RankIntervals,
    shared_gpus: Collection[int] = (),
    run_calls: RunCalls | None = None,
) -> StepGraph:
    """The graph of the steps ``windows``, one of each rank.

    ``shared_gpus``: indices of ranks whose GPU another process uses. It holds their operations up. ``run_calls``: those
    of ``timeline``, where they are known.
    """
    return next(build_graphs(timeline, matched_ranks, [windows], shared_gpus, run_calls or RunCalls.of(timeline)))


def build_graphs(
    timeline: Timeline,
    matched_ranks: MatchedRanks,
    steps: Sequence[RankIntervals],
    shared_gpus: Collection[int],
    run_calls: RunCalls,
) -> Iterator[StepGraph]:
    """The graphs of several ``steps``, one after the other; each is given as for :func:`build_graph`."""
    clock = matched_ranks.clock
    in_order = [windows.sort("rank_index") for windows in steps]
    ran = [
        find_between(take_rank(timeline.operations, row["rank_index"]), "start_ns", row["start_ns"], row["end_ns"])
        for rows in in_order
        for row in rows.iter_rows(named=True)
    ]
    events = iter(find_producers(run_calls.event_calls, ran))
    for rows in in_order:
        arrivals = matched_ranks.arrivals
        shifts = (clock.add_common_times(rows)["common_start_ns"] - rows["start_ns"]).to_list()
        if None in shifts:  # clocks that cannot be compared: every rank replays alone, from the start of its step
            shifts, arrivals = (rows["start_ns"][0] - rows["start_ns"]).to_list(), arrivals.clear()
        parts = [
            _read_rank(timeline, next(events), place, row, shifts[place])
            for place, row in enumerate(rows.iter_rows(named=True))
        ]
        yield _join_ranks(parts, arrivals, run_calls.ready, shared_gpus)


@dataclass(frozen=True, slots=True)
class _RankPart:
    """One rank's step: what ran, what its host called, and who waited for whom, by places in its own lists."""

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


def _read_rank(
    timeline: Timeline, events: tuple[Int64Array, Int64Array], place: int, window: Mapping[str, int], shift_ns: int
) -> _RankPart:
    """``events``: find_producers of the operations of this step."""
    rank_index, start_ns, end_ns = window["rank_index"], window["start_ns"], window["end_ns"]
    of_rank = take_rank(timeline.operations, rank_index)
    operations = find_between(of_rank, "start_ns", start_ns, end_ns)
    times = of_rank.select("stream", "launch_start_ns", "start_ns", "end_ns")  # of all steps, a few columns are enough
    earlier, _, later = _split(times, "start_ns", start_ns, end_ns)
    until_ns = _find_next_host_step(operations, later, end_ns)
    calls = list_calls(timeline, operations, until_ns).with_columns(rank=pl.lit(place, dtype=pl.Int64))
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
    )


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
    wanted = operations["correlation"].fill_null(NONE).to_numpy()
    place = order[np.minimum(np.searchsorted(of_call[order], wanted), len(order) - 1)]
    is_recorded = operations["launch_start_ns"].is_not_null().to_numpy()
    return np.where(is_recorded & (of_call[place] == wanted), place, NONE)


Column = Int64Array | Float64Array


def _fill(value: Column | float, dtype: type, size: int) -> Column:
    return np.broadcast_to(np.asarray(value, dtype=dtype), (size,))


class _EdgeList:
    """Edges as they are found, a column of each kind of number at a time."""

    def __init__(self) -> None:
        self._parts: list[dict[str, Column]] = []

    def add(self, kind: Kind, target: Int64Array, fixed_ns: Column | int = 0, **columns: Column | float) -> None:
        """Adds edges to ``target``; columns that are not given are NONE, or 0 for ``share``."""
        size = len(target)
        given = {"kind": int(kind), "target": target, "fixed_ns": fixed_ns, **columns}
        defaults = dict.fromkeys(("source", "point", "host_segment", "operation"), NONE) | {"share": 0.0}
        part: dict[str, Column] = {}
        for name in EDGE_COLUMNS:
            dtype = np.float64 if name == "share" else np.int64
            part[name] = _fill(given.get(name, defaults.get(name, 0)), dtype, size)
        self._parts.append(part)

    def finish(self, points: HostPoints) -> Edges:
        """All edges, sorted by target. Those from a host point begin at the sync point before it."""
        order = np.argsort(np.concatenate([part["target"] for part in self._parts]), kind="stable")
        columns = {name: np.concatenate([part[name] for part in self._parts])[order] for name in EDGE_COLUMNS}
        from_host = columns["point"] != NONE
        columns["source"][from_host] = points.last_sync_node(columns["point"][from_host])
        return Edges(**columns)


def _join_ranks(
    parts: Sequence[_RankPart], arrivals: Arrivals, ready: pl.DataFrame, shared_gpus: Collection[int]
) -> StepGraph:
    """One graph of all ranks, on the common clock. ``ready``: estimate_ready_durations."""
    operation_base = np.cumsum([0, *(part.operations.height for part in parts)])
    call_base = np.cumsum([0, *(part.calls.height for part in parts)])
    operations = pl.concat([part.operations for part in parts])
    calls = pl.concat([part.calls for part in parts])
    origin_ns = min(part.start_ns + part.shift_ns for part in parts)
    shift = np.array([part.shift_ns - origin_ns for part in parts], dtype=np.int64)
    rank = operations["rank"].to_numpy()
    start, end = (operations[name].to_numpy() + shift[rank] for name in ("start_ns", "end_ns"))
    call_start, call_end = (
        np.concatenate([part.calls[name].to_numpy() + shift[place] for place, part in enumerate(parts)])
        for name in ("start_ns", "end_ns")
    )

    def offset(values: Sequence[Int64Array], base: Int64Array) -> Int64Array:
        shifted = [np.where(value == NONE, NONE, value + base[place]) for place, value in enumerate(values)]
        return np.concatenate(shifted)

    call_of = offset([part.call_of for part in parts], call_base)
    previous = offset([part.previous for part in parts], operation_base)
    resource = offset([part.resource for part in parts], operation_base)
    waiting = offset([part.awaited[0] for part in parts], call_base)
    awaited = offset([part.awaited[1] for part in parts], operation_base)
    queued = offset([part.queue.call for part in parts], call_base)
    queued_behind = offset([part.queue.operation for part in parts], operation_base)
    first = offset([part.first_calls for part in parts], call_base)
    resumed, followed = (offset([part.handoffs[side] for part in parts], call_base) for side in (0, 1))
    event_op = offset([part.events[0] for part in parts], operation_base)
    event_producer = offset([part.events[1] for part in parts], operation_base)
    free_ns = np.concatenate(
        [np.where(part.free_ns == NONE, NONE, part.free_ns + shift[place]) for place, part in enumerate(parts)]
    )
    # A call that "waited" for an operation that ended after its return did not wait for it.
    shortest_wait_ns = replay_thresholds.SHORTEST_WAIT_NS
    in_time = end[awaited] <= call_end[waiting] + shortest_wait_ns
    waiting, awaited = waiting[in_time], awaited[in_time]
    member, meeting = _list_rendezvous(operations, arrivals, [part.rank_index for part in parts])

    sync_calls = np.union1d(first, resumed)
    latest = np.zeros(meeting.max(initial=NONE) + 1, dtype=np.int64)
    np.maximum.at(latest, meeting, start[member])
    # Of nodes at one time, those of an earlier kind come first.
    times = [call_start[sync_calls], start, latest, call_end[waiting], call_end[queued]]
    at_ns = np.concatenate(times)
    order = np.argsort(at_ns, kind="stable")
    node = np.empty(len(order), dtype=np.int64)
    node[order] = np.arange(1, len(order) + 1)  # node 0 is the origin
    captured_ns = np.concatenate([[0], at_ns[order]])
    sizes = [len(part) for part in times]
    start_sync_node, start_node, meeting_node, end_sync_node, queued_node = np.split(node, np.cumsum(sizes)[:-1])

    sync_node = np.full(2 * calls.height, NONE, dtype=np.int64)
    sync_node[2 * sync_calls] = start_sync_node
    sync_node[2 * waiting + 1] = end_sync_node
    sync_node[2 * queued + 1] = queued_node
    points = HostPoints(sync_node)
    host_segment_ns = np.empty(2 * calls.height, dtype=np.int64)
    think_ns, took_ns = host_segment_ns[0::2], host_segment_ns[1::2]
    think_ns[1:] = np.maximum(0, call_start[1:] - call_end[:-1])
    think_ns[first] = 0
    think_ns[resumed] = call_start[resumed] - call_end[followed]
    took_ns[:] = call_end - call_start
    has_waited = end[awaited] > call_start[waiting]
    took_ns[waiting] = np.where(has_waited, np.minimum(took_ns[waiting], shortest_wait_ns), took_ns[waiting])
    took_ns[queued] = shortest_wait_ns

    end_node, duration_ns = start_node.copy(), end - start
    end_node[member] = meeting_node[meeting]
    duration_ns[member] = np.maximum(0, end[member] - latest[meeting])

    ready_ns = _find_ready_durations(operations, ready)
    # Where the whole group was captured, the rendezvous holds the waiting.
    waits_outside = (ready_ns != NONE) & ~_is_complete(member, arrivals, operations)
    wait_ns = np.where(waits_outside, np.maximum(0, duration_ns - ready_ns), 0)

    edges = _EdgeList()
    _add_host_edges(edges, sync_node, call_start, first, (resumed, followed), np.concatenate([waiting, queued]))
    edges.add(Kind.GIVEN, queued_node, call_end[queued], source=ORIGIN)
    tail_ns = np.where(has_waited, np.maximum(0, call_end[waiting] - end[awaited]), 0)
    edges.add(
        Kind.AWAITED,
        sync_node[2 * waiting + 1],
        tail_ns,
        source=end_node[awaited],
        operation=awaited,
        share=1.0,
    )
    _add_operation_edges(
        edges,
        _Device(start, end, duration_ns, start_node, end_node),
        call_of,
        call_start,
        previous,
        resource,
        (event_op, event_producer),
        free_ns,
    )
    edges.add(Kind.ARRIVAL, meeting_node[meeting], source=start_node[member])
    finished = edges.finish(points)
    # Two things at one instant, or a launch that begins after its kernel because clocks differ, order nothing.
    in_order = finished.source < finished.target
    step_start = np.array([part.start_ns for part in parts], dtype=np.int64) + shift
    step_end = np.array([part.end_ns for part in parts], dtype=np.int64) + shift
    last_end = np.zeros(len(parts), dtype=np.int64)
    np.maximum.at(last_end, rank, end)
    held_ns = np.zeros(len(start), dtype=np.int64)
    is_shared = operations["rank_index"].is_in(list(shared_gpus)).to_numpy()
    if is_shared.any():
        lengths_ns = finished.lengths_ns(points, host_segment_ns, duration_ns)
        free_at_ns = np.zeros(len(captured_ns), dtype=np.int64)
        np.maximum.at(free_at_ns, finished.target, captured_ns[finished.source] + lengths_ns)
        late_ns = start - free_at_ns[start_node]
        held_ns = np.where(is_shared & (late_ns > replay_thresholds.LEAST_HELD_NS), late_ns, 0)
        finished = finished.delay(start_node, held_ns)
    return StepGraph(
        operations=operations,
        calls=calls,
        points=points,
        edges=finished.drop(~in_order),
        nodes_count=len(order) + 1,
        call_of=call_of,
        start_node=start_node,
        end_node=end_node,
        host_segment_ns=host_segment_ns,
        duration_ns=duration_ns,
        wait_ns=wait_ns,
        held_ns=held_ns,
        ready_ns=ready_ns,
        carried=_list_carried(
            np.array([part.until_ns for part in parts], dtype=np.int64) + shift,
            calls["rank"].to_numpy(),
            (first, np.append(first[1:], calls.height)[: len(first)] - 1),
            _find_ends(operations, previous),
            _FirstNodes(sync_node, start_node, call_end),
            (queued_node, queued_behind, np.concatenate([part.queue.after_ns for part in parts])),
        ),
        measured_ns=last_end - step_start,
        rank_start_ns=step_start,
        tail_ns=max(0, int((step_end - last_end).min())),
        ranks=tuple(part.rank_index for part in parts),
    )


def _list_carried(
    until_ns: Int64Array,
    call_rank: Int64Array,
    threads: tuple[Int64Array, Int64Array],
    streams: tuple[Int64Array, Int64Array],
    nodes: _FirstNodes,
    queued: tuple[Int64Array, Int64Array, Int64Array],
) -> Carried:
    """What the next step inherits from this one.

    ``until_ns``: per rank when its host goes on with the next step. ``threads``, ``streams``: the first and the last
    call of each, and the first and the last operation. ``queued``: the nodes of launches that waited for the step
    before, the operations that they waited for, and how long after these they returned.
    """
    (first, last), (head, tail) = threads, streams
    pause_ns = np.maximum(0, until_ns[call_rank[last]] - nodes.call_end[last])
    queued_node, queued_behind, after_ns = queued
    no_point = np.full(len(head) + len(queued_node), NONE)
    return Carried(
        node=np.concatenate([nodes.sync_node[2 * first], nodes.start[head], queued_node]),
        last_point=np.concatenate([2 * last + 1, no_point]),
        last_operation=np.concatenate([np.full(len(first), NONE), tail, queued_behind]),
        pause_ns=np.concatenate([pause_ns, np.zeros_like(head), after_ns]),
        holds_host=np.concatenate(
            [np.ones(len(first), bool), np.zeros(len(head), bool), np.ones(len(queued_node), bool)]
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


@dataclass(frozen=True, slots=True)
class _FirstNodes:
    """Where threads and streams begin and end."""

    sync_node: Int64Array
    start: Int64Array
    call_end: Int64Array


_ALWAYS = -(2**62)
"""Since when a stream is free on which nothing ran before."""

_CALL = ("rank_index", "stream", "start_ns", "end_ns")
"""Identifies a call of communication."""


def _find_ready_durations(operations: Operations, ready: pl.DataFrame) -> Int64Array:
    """Per operation how long it transfers when its peers are ready, or NONE."""
    known = ready.drop_nulls("ready_ns").unique(_CALL, keep="first", maintain_order=True)
    joined = operations.select(_CALL).join(known, on=_CALL, how="left", maintain_order="left")
    return joined["ready_ns"].fill_null(NONE).to_numpy()


def _is_complete(member: Int64Array, arrivals: Arrivals, operations: Operations) -> BoolArray:
    """Per operation whether all members of its collective were captured, so that its rendezvous is whole.

    ``member``: the operations that meet others.
    """
    complete = arrivals.filter("complete").select(_CALL).unique()
    joined = operations.select(_CALL).join(
        complete.with_columns(whole=pl.lit(value=True)), on=_CALL, how="left", maintain_order="left"
    )
    meets = np.zeros(operations.height, dtype=bool)
    meets[member] = True
    return np.asarray(joined["whole"].fill_null(value=False).to_numpy() & meets)


def _list_rendezvous(
    operations: Operations, arrivals: Arrivals, rank_indices: Sequence[int]
) -> tuple[Int64Array, Int64Array]:
    """Pairs (operation, number of its rendezvous), by rendezvous. Each has two members or more."""
    numbered = operations.with_row_index("op").select(
        pl.col("op").cast(pl.Int64), "rank_index", "stream", "start_ns", "end_ns"
    )
    instances = arrivals.filter(pl.col("rank_index").is_in(list(rank_indices))).select(
        "rank_index", "stream", "start_ns", "end_ns", "instance"
    )
    members = (
        numbered.join(instances, on=["rank_index", "stream", "start_ns", "end_ns"])
        .unique("op", keep="first", maintain_order=True)
        .sort("instance", "op")
        .filter(pl.len().over("instance") > 1)
    )
    return members["op"].to_numpy(), members["instance"].rle_id().cast(pl.Int64).to_numpy()


def _add_host_edges(
    edges: _EdgeList,
    sync_node: Int64Array,
    call_start: Int64Array,
    first: Int64Array,
    handoffs: tuple[Int64Array, Int64Array],
    waiting: Int64Array,
) -> None:
    """Edges to the sync points of threads from what they did before."""
    resumed, followed = handoffs
    alone = np.setdiff1d(first, resumed)
    edges.add(Kind.GIVEN, sync_node[2 * alone], call_start[alone], source=ORIGIN)
    edges.add(Kind.HAND_OVER, sync_node[2 * resumed], point=2 * followed + 1, host_segment=2 * resumed)
    going_on = np.setdiff1d(resumed, first)
    edges.add(Kind.THREAD, sync_node[2 * going_on], point=2 * going_on - 1)
    edges.add(Kind.THREAD, sync_node[2 * waiting + 1], point=2 * waiting, host_segment=2 * waiting + 1)


@dataclass(frozen=True, slots=True)
class _Device:
    """Operations of all ranks on the common clock, with their nodes."""

    start: Int64Array
    end: Int64Array
    duration_ns: Int64Array
    start_node: Int64Array
    end_node: Int64Array


def _add_operation_edges(
    edges: _EdgeList,
    device: _Device,
    call_of: Int64Array,
    call_start: Int64Array,
    previous: Int64Array,
    resource: Int64Array,
    events: tuple[Int64Array, Int64Array],
    free_ns: Int64Array,
) -> None:
    """Edges to the starts of operations."""
    start, end = device.start, device.end
    gap_ns = np.where(previous != NONE, start - end[previous], 0)

    launched = np.flatnonzero(call_of != NONE)
    if len(launched):
        observed_ns = start[launched] - call_start[call_of[launched]]
        before = previous[launched]
        free_since = np.where(
            before != NONE, end[before], np.where(free_ns[launched] == NONE, _ALWAYS, free_ns[launched])
        )
        waits_for_event = np.zeros(len(start), dtype=bool)
        waits_for_event[events[0]] = True
        is_idle = (free_since <= call_start[call_of[launched]]) & ~waits_for_event[launched]
        # Where the host is ahead of the device, the latency of most launches is a wait in their stream.
        unhindered_ns = observed_ns[is_idle] if is_idle.any() else observed_ns
        least_ns = max(
            replay_thresholds.LEAST_LAUNCH_LATENCY_NS,
            int(np.quantile(unhindered_ns, replay_thresholds.LAUNCH_LATENCY_QUANTILE)),
        )
        longest_ns = np.where(is_idle, least_ns * replay_thresholds.LONGEST_LATENCY_RATIO, least_ns)
        edges.add(
            Kind.LAUNCH,
            device.start_node[launched],
            np.maximum(0, np.minimum(observed_ns, longest_ns)),
            point=2 * call_of[launched],
        )
    following = np.flatnonzero((previous != NONE) & (gap_ns >= 0))
    usual = gap_ns[following]
    kept = np.where(usual < replay_thresholds.USUAL_STREAM_GAP_NS, usual, replay_thresholds.LEAST_STREAM_GAP_NS)
    kept = np.where(call_of[following] == NONE, usual, kept)
    before = previous[following]
    edges.add(
        Kind.STREAM, device.start_node[following], kept, source=device.end_node[before], operation=before, share=1.0
    )
    overlapping = np.flatnonzero((previous != NONE) & (gap_ns < 0))
    edges.add(Kind.STREAM, device.start_node[overlapping], source=device.start_node[previous[overlapping]])
    first = np.flatnonzero((previous == NONE) & (free_ns != NONE))
    edges.add(Kind.GIVEN, device.start_node[first], free_ns[first], source=ORIGIN)
    unlaunched = np.flatnonzero((previous == NONE) & (call_of == NONE))
    edges.add(Kind.GIVEN, device.start_node[unlaunched], start[unlaunched], source=ORIGIN)

    op, producer = events
    edges.add(
        Kind.EVENT,
        device.start_node[op],
        np.clip(start[op] - end[producer], 0, replay_thresholds.LONGEST_EVENT_GAP_NS),
        source=device.end_node[producer],
        operation=producer,
        share=1.0,
    )
    held = np.flatnonzero(resource != NONE)
    _add_resource_edges(edges, device, held, resource[held])


def _add_resource_edges(edges: _EdgeList, device: _Device, held: Int64Array, holder: Int64Array) -> None:
    """An operation starts at the same share of the holder's duration as captured, or as long after its end."""
    since_end = device.start[held] - device.end[holder]
    after = since_end >= 0
    edges.add(
        Kind.RESOURCE,
        device.start_node[held[after]],
        since_end[after],
        source=device.end_node[holder[after]],
        operation=holder[after],
        share=1.0,
    )
    inside, during = held[~after], holder[~after]
    duration_ns = np.maximum(1, device.duration_ns[during])
    share = 1.0 + since_end[~after] / duration_ns
    running = share >= 0  # of a collective that has not begun to transfer, nothing is known
    edges.add(
        Kind.RESOURCE,
        device.start_node[inside[running]],
        source=device.end_node[during[running]],
        operation=during[running],
        share=share[running],
    )
