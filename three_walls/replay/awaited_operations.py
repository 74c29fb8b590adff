"""Which operation the host waited for in each call that blocks, so that the call returns after it in a replay too."""

from __future__ import annotations

import numpy as np
import polars as pl

from three_walls.replay.graph import NONE, Numbers
from three_walls.tables.thresholds import replay_thresholds

_STREAM, _EVENT, _COPY = "Stream", "Event", "Mem"
"""Parts of the names of calls that wait for a stream, for an event, or for their own copy."""


def find_awaited(calls: pl.DataFrame, operations: pl.DataFrame, waits: pl.DataFrame, call_of: Numbers) -> Numbers:
    """Per call the operation that it waited for, or NONE.

    ``calls``: CALLS of one rank. ``operations``: of that rank's step in the order of their starts. ``waits``:
    Timeline.stream_waits of its process, which give the stream of a cudaStreamSynchronize. ``call_of``: per operation
    the call that launched it, or NONE.

    - A stream: the last operation launched on it before.
    - An event: PyTorch's records are mostly not listed, so it is the last operation to end before the return, among
      those after which some event was recorded.
    - A copy from or to the host that ends before its call returns: the copy.
    - The device, or a long allocation (cudaFree synchronizes): the last operation to end before the return.
    """
    awaited = np.full(calls.height, NONE, dtype=np.int64)
    blocking = calls.with_row_index("call").filter(
        (pl.col("kind") == "synchronize")
        | (
            (pl.col("kind") == "allocate")
            & (pl.col("end_ns") - pl.col("start_ns") > replay_thresholds().long_allocation_ns)
        )
    )
    launched = _Launched(operations, calls, call_of)
    streams = dict(waits.drop_nulls("correlation").select("correlation", "stream").iter_rows())
    recorded = launched.before_a_record(calls.filter(pl.col("kind") == "event_record")["start_ns"].to_numpy())
    rows = blocking.select("call", "kind", "name", "start_ns", "end_ns", "correlation").iter_rows()
    for call, kind, name, start_ns, end_ns, correlation in rows:
        if kind == "allocate":
            until_ns = max(start_ns, end_ns - replay_thresholds().longest_allocation_tail_ns)
            found = launched.last_to_end(start_ns, end_ns, None, until_ns)
        elif _STREAM in name and correlation in streams:
            found = launched.last_on(streams[correlation], start_ns)
        elif _EVENT in name:
            found = launched.last_to_end(start_ns, end_ns, recorded)
        elif _COPY in name:
            continue
        else:
            found = launched.last_to_end(start_ns, end_ns, None)
        awaited[call] = found
    return _await_copies(awaited, calls, operations, call_of)


def _await_copies(awaited: Numbers, calls: pl.DataFrame, operations: pl.DataFrame, call_of: Numbers) -> Numbers:
    """``awaited`` with the calls that return after their own operation has ended."""
    has_call = np.flatnonzero(call_of != NONE)
    end_of_call = calls["end_ns"].to_numpy()
    is_graph = calls["kind"].eq_missing("graph_launch").to_numpy()  # a call without a name has no kind
    own = has_call[
        (operations["end_ns"].to_numpy()[has_call] <= end_of_call[call_of[has_call]]) & ~is_graph[call_of[has_call]]
    ]
    blocked = awaited.copy()
    blocked[call_of[own]] = own
    return blocked


class _Launched:
    """The operations of one rank's step, searchable by stream and launch, and by end."""

    def __init__(self, operations: pl.DataFrame, calls: pl.DataFrame, call_of: Numbers) -> None:
        start = calls["start_ns"].to_numpy()
        self._end = operations["end_ns"].to_numpy()
        self._launch = np.where(call_of != NONE, start[call_of] if len(start) else 0, operations["start_ns"].to_numpy())
        self._by_end = np.argsort(self._end, kind="stable")
        stream = operations["stream"].to_numpy()
        self._of_stream: dict[int, Numbers] = {}
        for number in np.unique(stream):
            places = np.flatnonzero(stream == number)
            self._of_stream[int(number)] = places[np.argsort(self._launch[places], kind="stable")]

    def before_a_record(self, record_ns: Numbers) -> Numbers:
        """By end, the operations after which an event was recorded before the next one on their stream."""
        records = np.sort(record_ns)
        found = np.zeros(len(self._end), dtype=bool)
        for places in self._of_stream.values():
            launched = np.searchsorted(records, self._launch[places])
            until = np.append(launched[1:], len(records))
            found[places] = until > launched
        return self._by_end[found[self._by_end]]

    def last_on(self, stream: int, at_ns: int) -> int:
        """The last operation launched on ``stream`` before ``at_ns``."""
        places = self._of_stream.get(stream)
        if places is None:
            return NONE
        count = int(np.searchsorted(self._launch[places], at_ns))
        return int(places[count - 1]) if count else NONE

    def last_to_end(self, start_ns: int, end_ns: int, among: Numbers | None, from_ns: int | None = None) -> int:
        """The last operation to end while a call from ``start_ns`` to ``end_ns`` waited, launched before it.

        ``among``: the only operations to look at, by end. ``from_ns``: it ended no earlier; by default when the call
        began.
        """
        places = self._by_end if among is None else among
        place = int(np.searchsorted(self._end[places], end_ns, side="right")) - 1
        while place >= 0 and self._end[places[place]] >= (start_ns if from_ns is None else from_ns):
            if self._launch[places[place]] < start_ns:
                return int(places[place])
            place -= 1
        return NONE
