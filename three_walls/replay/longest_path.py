"""Longest paths from the first node of an acyclic graph: the arithmetic of every replay.

Most operations of a step are followed by the next one of their stream alone. Such *chains* are taken together: NumPy
finds what they add up to, plain Python follows the edges between them, a fifth to a half of all, and NumPy finds the
nodes within.

Numba compiles the search where it is installed (the extra ``fast``), with the same result. Compiling takes as long as
some thousand replays of an ordinary step, so plain Python follows as much first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module

import numpy as np

from three_walls.trace.schemas import Int64Array

_WORTH_COMPILING = 8_000_000
"""Rows that plain Python follows in about the two seconds that compiling takes."""

_NO_EDGE = -1


def find_longest_paths(nodes_count: int, source: Int64Array, target: Int64Array, length: Int64Array) -> Int64Array:
    """The largest sum of lengths on any path from node 0 to every node.

    ``target`` ascends, and every ``source`` is smaller than its target. A node that no edge leads to gets 0, the value
    of node 0: nothing holds it back. All lengths together stay within 63 bits.
    """
    compiled = _load_compiled() if _prepared.followed_count >= _WORTH_COMPILING else None
    if compiled is not None:
        return compiled(_find_first(nodes_count, target), source, length)
    chains = _prepared.of(nodes_count, source, target)
    _prepared.followed_count += len(chains.rows.first_source)
    return _follow_chains(chains, length)


def find_longest_paths_once(nodes_count: int, source: Int64Array, target: Int64Array, length: Int64Array) -> Int64Array:
    """As :func:`find_longest_paths`, for a graph that is followed once, and for lengths of any size."""
    return _follow_rows(_pair_edges(nodes_count, source, target), length)


def _find_first(nodes_count: int, target: Int64Array) -> Int64Array:
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
    first_edge: Int64Array
    """The place of that edge; the number of edges stands for one without length."""
    second_edge: Int64Array
    row_of_node: Int64Array
    """The last row of every node."""


@dataclass(frozen=True, slots=True)
class _Chains:
    """A graph as chains of nodes, in the order of the nodes that end them: edges between chains begin at such ends.

    Nodes are in the order of chains, and edges between chains in that of the nodes to which they lead.
    """

    links: Int64Array
    """Per node the edge from the one before it in its chain; the number of edges stands for none."""
    edges: Int64Array
    """The edges between chains."""
    source: Int64Array
    """The chain at whose end each of these begins."""
    node: Int64Array
    """The node to which each leads, """
    end: Int64Array
    """and the end of that one's chain."""
    chain: Int64Array
    """Number of that chain among those to which edges lead, """
    first: Int64Array
    """and for each of those its first edge."""
    grouped: Int64Array
    """Edges between chains, those of one chain to one chain next to each other, """
    groups: Int64Array
    """and where each such group begins."""
    rows: _Rows
    """A graph of chains, with a group of edges as one."""
    reached: Int64Array
    """Nodes to which a path leads, by their number in the whole graph, """
    place: Int64Array
    """each one's place in the order of nodes, """
    last: Int64Array
    """and the last edge that leads to it or to a node before it in its chain."""


class _Prepared:
    """The last graph that was followed. Most replays in a row change lengths alone."""

    def __init__(self) -> None:
        self.followed_count = 0
        """Rows followed since the program began."""
        self._source: Int64Array | None = None
        self._target: Int64Array | None = None
        self._chains: _Chains | None = None
        self._nodes_count = 0

    def of(self, nodes_count: int, source: Int64Array, target: Int64Array) -> _Chains:
        is_same = _is_same(source, self._source) and _is_same(target, self._target)
        if self._chains is None or not is_same or self._nodes_count != nodes_count:
            self._chains = _find_chains(nodes_count, source, target)
            self._source, self._target, self._nodes_count = source, target, nodes_count
        return self._chains


def _is_same(values: Int64Array, last: Int64Array | None) -> bool:
    """Whether these are the same numbers: edits that leave out edges make arrays of their own, often equal ones."""
    return values is last or (last is not None and np.array_equal(values, last))


_prepared = _Prepared()


def _find_chains(nodes_count: int, source: Int64Array, target: Int64Array) -> _Chains:
    """A node whose only edge leads to another node is in the chain of that one, unless another node is already."""
    first_edge = _find_first(nodes_count, target)
    goes_on = (np.bincount(source, minlength=nodes_count) == 1) & (np.diff(first_edge) > 0)
    link = np.full(nodes_count, _NO_EDGE)
    linking = np.flatnonzero(goes_on[source])
    link[target[linking]] = linking  # of several the last
    linked = np.flatnonzero(link != _NO_EDGE)
    end = np.arange(nodes_count)
    end[source[link[linked]]] = linked
    while not np.array_equal(further := end[end], end):
        end = further
    order = np.argsort(end, kind="stable")
    place = np.empty(nodes_count, dtype=np.int64)
    place[order] = np.arange(nodes_count)
    ends, chain_of = np.unique(end, return_inverse=True)

    is_between = np.ones(len(source), dtype=bool)
    is_between[link[linked]] = False
    edges = np.flatnonzero(is_between)
    edges = edges[np.argsort(place[target[edges]], kind="stable")]
    from_chain, to_chain = chain_of[source[edges]], chain_of[target[edges]]
    first = _find_changes(to_chain)
    grouped = np.lexsort((from_chain, to_chain))
    groups = _find_changes(to_chain[grouped] * len(ends) + from_chain[grouped])
    one_of_group = grouped[groups]
    edges_before = np.searchsorted(place[target[edges]], np.arange(nodes_count), side="right")
    is_reached = np.diff(first_edge)[order] > 0
    return _Chains(
        links=np.where(link == _NO_EDGE, len(source), link)[order],
        edges=edges,
        source=from_chain,
        node=place[target[edges]],
        end=place[end[target[edges]]],
        chain=np.cumsum(np.bincount(first, minlength=len(edges))) - 1,
        first=first,
        grouped=grouped,
        groups=groups,
        rows=_pair_edges(len(ends), from_chain[one_of_group], to_chain[one_of_group]),
        reached=order[is_reached],
        place=np.flatnonzero(is_reached),
        last=edges_before[is_reached] - 1,
    )


def _find_changes(values: Int64Array) -> Int64Array:
    """Where in ``values`` another one begins."""
    return np.flatnonzero(np.diff(values, prepend=-1))


def _follow_chains(chains: _Chains, length: Int64Array) -> Int64Array:
    if not len(chains.edges):
        return np.zeros(len(chains.links), dtype=np.int64)
    passed = np.cumsum(np.append(length, 0)[chains.links])  # differences are lengths within a chain
    between = length[chains.edges]
    until_end = between + passed[chains.end] - passed[chains.node]
    ends = _follow_rows(chains.rows, np.maximum.reduceat(until_end[chains.grouped], chains.groups))
    arrived = _find_running_maximum(ends[chains.source] + between - passed[chains.node], chains.first, chains.chain)
    times = np.zeros(len(chains.links), dtype=np.int64)
    times[chains.reached] = arrived[chains.last] + passed[chains.place]
    return times


def _find_running_maximum(values: Int64Array, first: Int64Array, group: Int64Array) -> Int64Array:
    """The largest of the values up to each one in its group. ``first``: where groups begin.

    Each group is moved above the one before, so that one run over all values does.
    """
    begin = values[first]
    values = np.maximum(values, begin[group])
    rise = np.maximum.reduceat(values, first) - begin
    shift = (np.cumsum(rise) - rise - begin)[group]
    return np.asarray(np.maximum.accumulate(values + shift) - shift)


def _pair_edges(nodes_count: int, source: Int64Array, target: Int64Array) -> _Rows:
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


def _follow_rows(rows: _Rows, length: Int64Array) -> Int64Array:
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
def _load_compiled() -> Callable[[Int64Array, Int64Array, Int64Array], Int64Array] | None:
    try:
        numba = import_module("numba")
    except ImportError:
        return None

    @numba.njit(cache=False)  # type: ignore[untyped-decorator]
    def follow(first: Int64Array, source: Int64Array, length: Int64Array) -> Int64Array:
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
