"""What host threads do in a step: their CUDA calls one after the other, and where they wait for another thread.

A thread is a chain: think time, call, think time, call. Two things break it. A call that synchronizes returns when the
device has caught up (``awaited_operations.py``). And a thread that stayed silent while another one made calls went on
because of it: PyTorch's main thread waits for the autograd thread during the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import polars as pl

from three_walls.replay import replay_thresholds
from three_walls.replay.step_graph import CALLS, NONE, HostCalls
from three_walls.step.build_timeline import Timeline
from three_walls.step.host_activity import kind_of
from three_walls.step.step_tables import Operations, Pauses, RangeTimes
from three_walls.trace.schemas import AnyTable, Int64Array

_SORTED = ("thread", "start_ns", "end_ns", "correlation")
_BEFORE_ALL = -(2**63)


def list_calls(timeline: Timeline, operations: Operations, pauses: Pauses, until_ns: int) -> HostCalls:
    """The CUDA calls of the threads that launch ``operations``, thread by thread in the order of time.

    ``operations``: of one rank's step, whose host work ends at ``until_ns``. A call inside another one is part of that.
    What a call takes of ``pauses`` of the rank is no part of it: one that stalls begins late, or returns early.
    Threads that launch nothing (NCCL's watchdog) hold nobody up.
    """
    first = operations.select("capture_id", "process").row(0)
    threads = operations["launch_thread"].drop_nulls().unique()
    first_ns = operations["launch_start_ns"].min()
    begin_ns = first_ns if isinstance(first_ns, int) else until_ns
    calls = (
        timeline.api_calls.during({first[0]: [(begin_ns, until_ns)]})
        .frame()
        .pipe(_leave_out, operations, pauses.sort("start_ns"))
        .filter(
            (pl.col("process") == first[1])
            & pl.col("thread").is_in(threads.implode())
            & pl.col("start_ns").is_between(begin_ns, until_ns, closed="left")
        )
        .select(*_SORTED, "name")
    )
    # Exports list calls nearly in order, which numpy's stable sort makes use of.
    keys = [calls[name].fill_null(_BEFORE_ALL).to_numpy() for name in _SORTED]
    in_order = np.lexsort(keys[::-1])
    thread, start, end = (key[in_order] for key in keys[:3])
    outermost = calls[in_order[_find_outermost(thread, start, end)]]
    names = outermost["name"].unique().drop_nulls().cast(pl.String).to_list()
    kinds = {name: kind_of(name) or "other" for name in names}
    kind_of_name = pl.DataFrame(
        {"name": list(kinds), "kind": list(kinds.values())}, schema={"name": pl.Categorical, "kind": pl.Categorical}
    )
    return (
        outermost.join(kind_of_name, on="name", how="left", maintain_order="left")
        .with_columns(rank=pl.lit(0, dtype=pl.Int64))
        .select(CALLS.names())
    )


def _leave_out(calls: AnyTable, operations: Operations, pauses: Pauses) -> AnyTable:
    """``calls`` without what they take of ``pauses``, which are sorted and disjoint; launches begin as ``operations``
    have it.
    """
    launches = operations.select("correlation", "launch_start_ns").drop_nulls().unique("correlation")
    launched_ns = calls.join(launches, on="correlation", how="left", maintain_order="left")["launch_start_ns"]
    calls = calls.with_columns(start_ns=pl.max_horizontal("start_ns", launched_ns))
    if pauses.is_empty():
        return calls
    begin, until = (pauses[name].to_numpy() for name in ("start_ns", "end_ns"))
    start, end = (calls[name].to_numpy() for name in ("start_ns", "end_ns"))
    begun = np.searchsorted(begin, start, side="right") - 1
    start = np.where((begun >= 0) & (start < until[begun]), until[begun], start)
    ended = np.searchsorted(begin, end, side="left") - 1
    end = np.where((ended >= 0) & (end <= until[ended]), begin[ended], end)
    return calls.with_columns(start_ns=pl.Series(start), end_ns=pl.Series(np.maximum(start, end)))


def _find_outermost(thread: Int64Array, start: Int64Array, end: Int64Array) -> Int64Array:
    """Places of the calls, sorted, that begin after all earlier ones of their thread have ended."""
    is_outermost = np.ones(len(start), dtype=bool)
    for begin, until in _bound_runs(thread):
        latest = np.maximum.accumulate(end[begin:until])
        is_outermost[begin + 1 : until] = start[begin + 1 : until] >= latest[:-1]
    return np.flatnonzero(is_outermost)


def _bound_runs(values: Int64Array) -> Iterator[tuple[int, int]]:
    """The first place of each run of equal values, and the first one after it."""
    changes = np.flatnonzero(values[1:] != values[:-1]) + 1
    return pairwise([0, *changes.tolist(), len(values)]) if len(values) else pairwise(())


def find_first_calls(calls: HostCalls) -> Int64Array:
    """The places of the first call of each thread. Before every other one is the thread's last."""
    return np.array([begin for begin, _ in _bound_runs(calls["thread"].to_numpy())], dtype=np.int64)


def find_handoffs(calls: HostCalls) -> tuple[Int64Array, Int64Array]:
    """Pairs (call, call of another thread that it followed), in the order of calls.

    A thread resumes after a handoff when it had been silent for a while, and another thread finished a call in the
    meantime and began no other one.
    """
    start, end = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    is_first = np.zeros(len(start), dtype=bool)
    is_first[find_first_calls(calls)] = True
    silent = np.flatnonzero(is_first | (start - np.roll(end, 1) > replay_thresholds.SILENT_THREAD_NS))
    latest_end = np.where(is_first[silent], _BEFORE_ALL, end[silent - 1])
    followed = np.full(len(silent), NONE, dtype=np.int64)
    for begin, until in _bound_runs(calls["thread"].to_numpy()):
        latest = begin + np.searchsorted(start[begin:until], start[silent], side="left") - 1
        is_other = (latest >= begin) & ((silent < begin) | (silent >= until))
        is_over = is_other & (end[latest] <= start[silent]) & (end[latest] > latest_end)
        followed[is_over] = latest[is_over]
        latest_end = np.where(is_over, end[latest], latest_end)
    return silent[followed != NONE], followed[followed != NONE]


def measure_silences(calls: HostCalls, ranges: RangeTimes) -> Int64Array:
    """Per host point (2i: think time before call i, 2i + 1: call i) how long its thread did nothing that was recorded.

    ``calls``: of one rank. ``ranges``: of its process around them. Only gaps from LEAST_SILENCE_NS on count. Where a
    thread waited for another one, they count from the end of that one's call.
    """
    thread, start, end = (calls[name].to_numpy() for name in ("thread", "start_ns", "end_ns"))
    first, (resumed, followed) = find_first_calls(calls), find_handoffs(calls)
    since = np.roll(end, 1)
    since[first] = start[first]
    since[resumed] = end[followed]
    silent_ns = np.zeros(2 * calls.height, dtype=np.int64)
    for begin, until in _bound_runs(thread):
        of_thread = ranges.filter(pl.col("thread") == thread[begin])
        opened, closed = (of_thread[name].drop_nulls().to_numpy() for name in ("start_ns", "end_ns"))
        at_ns = np.sort(np.concatenate([opened, closed, start[begin:until], end[begin:until]]))
        call = begin + np.searchsorted(start[begin:until], at_ns[1:])
        before = call < until
        gap_ns = at_ns[1:][before] - np.maximum(at_ns[:-1][before], since[call[before]])
        is_long = gap_ns >= replay_thresholds.LEAST_SILENCE_NS
        np.add.at(silent_ns, 2 * call[before][is_long], gap_ns[is_long])
    return silent_ns
