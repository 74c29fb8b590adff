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

from three_walls.model.record import dataclass

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
    return _follow_edges(_prepared.of(nodes_count, source, target), length)


def _find_first(nodes_count: int, target: Numbers) -> Numbers:
    """Per node the place of its first edge, and at the end the number of edges."""
    return np.asarray(np.searchsorted(target, np.arange(nodes_count + 1)), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class _Rows:
    """A graph whose every node is reached by two edges, as lists: one element of an array takes long to read.

    A node with more edges has a row for each further one, which compares it with the row above; a node with fewer has
    the same edge twice. Row 0 is node 0.
    """

    first_source: list[int]
    """Row at which the first edge of every row but row 0 begins."""
    second_source: list[int]
    first_edge: Numbers
    """The place of that edge; the number of edges stands for one without length."""
    second_edge: Numbers
    row_of_node: Numbers
    """The last row of every node."""


class _Prepared:
    """The last graph that was followed. Most replays in a row change lengths alone."""

    def __init__(self) -> None:
        self.followed_count = 0
        """Edges followed since the program began."""
        self._source: Numbers | None = None
        self._target: Numbers | None = None
        self._rows: _Rows | None = None

    def of(self, nodes_count: int, source: Numbers, target: Numbers) -> _Rows:
        is_same = _is_same(source, self._source) and _is_same(target, self._target)
        if self._rows is None or not is_same or len(self._rows.row_of_node) != nodes_count:
            self._rows = _pair_edges(nodes_count, source, target)
            self._source, self._target = source, target
        return self._rows


def _is_same(values: Numbers, last: Numbers | None) -> bool:
    """Whether these are the same numbers: edits that leave out edges make arrays of their own, often equal ones."""
    return values is last or (last is not None and np.array_equal(values, last))


_prepared = _Prepared()


def _pair_edges(nodes_count: int, source: Numbers, target: Numbers) -> _Rows:
    first = _find_first(nodes_count, target)
    edges_count = np.diff(first)
    rows_count = np.maximum(edges_count - 1, 1)
    row_of_node = np.cumsum(rows_count) - 1
    node = np.repeat(np.arange(nodes_count), rows_count)
    row = np.arange(len(node))
    place = row - (row_of_node - rows_count + 1)[node]  # among the rows of its node
    no_edge = len(source)
    has_edge = edges_count[node] > 0
    first_edge = np.where(has_edge & (place == 0), first[node], no_edge)
    second_edge = np.where(has_edge, first[node] + np.minimum(place + 1, edges_count[node] - 1), no_edge)
    row_of_source = np.append(row_of_node[source], 0)
    first_source = np.where(place == 0, row_of_source[first_edge], row - 1)
    return _Rows(
        first_source[1:].tolist(),
        row_of_source[second_edge][1:].tolist(),
        first_edge[1:],
        second_edge[1:],
        row_of_node,
    )


def _follow_edges(rows: _Rows, length: Numbers) -> Numbers:
    lengths = np.append(length, 0)
    times = [0]
    append = times.append
    for first, first_length, second, second_length in zip(
        rows.first_source,
        lengths[rows.first_edge].tolist(),
        rows.second_source,
        lengths[rows.second_edge].tolist(),
        strict=True,
    ):
        reached = times[first] + first_length
        other = times[second] + second_length
        append(reached if reached > other else other)
    return np.array(times, dtype=np.int64)[rows.row_of_node]


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
