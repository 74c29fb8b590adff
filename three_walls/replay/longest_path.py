"""Longest paths from the first node of an acyclic graph: the arithmetic of every replay.

Compiled by numba where that is installed (the extra ``fast``), with the same result without it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]


_WORTH_COMPILING = 100_000
"""Edges from which on compiling, which takes about a second, is shorter than the replays of a plan without it."""


def find_longest_paths(nodes_count: int, source: Numbers, target: Numbers, length: Numbers) -> Numbers:
    """The largest sum of lengths on any path from node 0 to every node.

    ``target`` ascends, and every ``source`` is smaller than its target. A node that no edge leads to gets 0, the value
    of node 0: nothing holds it back.
    """
    first = np.searchsorted(target, np.arange(nodes_count + 1))
    compiled = _load_compiled() if len(source) >= _WORTH_COMPILING else None
    if compiled is not None:
        return compiled(first, source, length)
    return _follow_edges(first, source, length)


def _follow_edges(first: Numbers, source: Numbers, length: Numbers) -> Numbers:
    """``first``: per node the place of its first edge, and the number of edges at the end."""
    # Lists: reading one element of an array takes several times as long.
    firsts, sources, lengths = first.tolist(), source.tolist(), length.tolist()
    times = [0] * (len(firsts) - 1)
    begin = firsts[0]
    for node, end in enumerate(firsts[1:]):
        if begin == end:
            continue
        latest = times[sources[begin]] + lengths[begin]
        for edge in range(begin + 1, end):
            reached = times[sources[edge]] + lengths[edge]
            if reached > latest:
                latest = reached
        times[node] = latest
        begin = end
    return np.array(times, dtype=np.int64)


@cache
def _load_compiled() -> Callable[[Numbers, Numbers, Numbers], Numbers] | None:
    try:
        numba = import_module("numba")
    except ImportError:
        return None

    @numba.njit(cache=False)  # type: ignore[untyped-decorator]
    def follow(first: Numbers, source: Numbers, length: Numbers) -> Numbers:
        times = np.zeros(len(first) - 1, dtype=np.int64)
        for node in range(len(first) - 1):
            begin, end = first[node], first[node + 1]
            if begin == end:
                continue
            latest = times[source[begin]] + length[begin]
            for edge in range(begin + 1, end):
                reached = times[source[edge]] + length[edge]
                if reached > latest:
                    latest = reached
            times[node] = latest
        return times

    return follow  # type: ignore[no-any-return]
