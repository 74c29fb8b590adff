"""Longest paths from the first node of an acyclic graph: the arithmetic of every replay.

Compiled by numba where that is installed (the extra ``fast``), with the same result without it. Compiling takes as long
as some hundred replays of an ordinary step, so it waits until as much has been followed in plain Python.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]


_WORTH_COMPILING = 15_000_000
"""Edges that plain Python follows in about the two seconds that compiling takes."""


def find_longest_paths(nodes_count: int, source: Numbers, target: Numbers, length: Numbers) -> Numbers:
    """The largest sum of lengths on any path from node 0 to every node.

    ``target`` ascends, and every ``source`` is smaller than its target. A node that no edge leads to gets 0, the value
    of node 0: nothing holds it back.
    """
    compiled = _load_compiled() if _prepared.followed_count >= _WORTH_COMPILING else None
    if compiled is not None:
        return compiled(_find_first(nodes_count, target), source, length)
    _prepared.followed_count += len(source)
    return _follow_edges(_prepared.of(nodes_count, source, target), length.tolist())


def _find_first(nodes_count: int, target: Numbers) -> Numbers:
    """Per node the place of its first edge, and at the end the number of edges."""
    return np.asarray(np.searchsorted(target, np.arange(nodes_count + 1)), dtype=np.int64)


class _Prepared:
    """The edges of the last graph as lists: reading one element of an array takes several times as long.

    Most replays in a row change lengths alone, and hand in the same arrays.
    """

    def __init__(self) -> None:
        self.followed_count = 0
        """Edges followed since the program began."""
        self._source: Numbers | None = None
        self._target: Numbers | None = None
        self._lists: tuple[list[int], list[int]] = ([], [])

    def of(self, nodes_count: int, source: Numbers, target: Numbers) -> tuple[list[int], list[int]]:
        """(first edge per node, source per edge)."""
        if source is not self._source or target is not self._target or len(self._lists[0]) != nodes_count + 1:
            self._lists = (_find_first(nodes_count, target).tolist(), source.tolist())
            self._source, self._target = source, target
        return self._lists


_prepared = _Prepared()


def _follow_edges(prepared: tuple[list[int], list[int]], lengths: list[int]) -> Numbers:
    firsts, sources = prepared
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
