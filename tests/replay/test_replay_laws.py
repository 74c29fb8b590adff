"""Laws of replay, on made up graphs and on small captures."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.replay.small_graphs import lockstep_graph, random_graphs
from three_walls.replay.find_critical_path import find_critical_path
from three_walls.replay.longest_path import _load_compiled, find_longest_paths, find_longest_paths_once
from three_walls.replay.predictor import measure_replayed_budget
from three_walls.replay.step_graph import StepGraph, Work, find_steady, replay
from three_walls.replay.transform_graph import transform
from three_walls.replay.transformation import Action, Level, Selection, Transformation
from three_walls.tables.buckets import CATEGORIES
from three_walls.tables.prediction_intervals import Levels
from three_walls.trace.schemas import Int64Array

pytestmark = pytest.mark.slow

CAPTURED = st.sampled_from([1, 2, 3]).map(lockstep_graph)
GRAPHS = random_graphs() | CAPTURED


def lengths_of(graph: StepGraph, work: Work) -> Int64Array:
    return work.edges.lengths_ns(graph.points, work.host_segment_ns, work.duration_ns)


@st.composite
def graphs_with_less_work(draw: st.DrawFn) -> tuple[StepGraph, Work]:
    """A graph, and work of which some durations, host segments and gaps are shorter and some edges are gone."""
    graph = draw(GRAPHS)
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    share = draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))

    def shorten(values: Int64Array) -> Int64Array:
        factors = np.where(random.random(len(values)) < share, random.choice([0.0, 0.3, 0.9], len(values)), 1.0)
        return np.minimum(values, np.floor(values * factors).astype(np.int64))

    edges = graph.edges
    # An edge from before the step holds when a thread began: without it everything would begin at 0.
    kept = (random.random(len(edges.kind)) >= share / 4) | (edges.kind == 0)
    fixed_ns = np.where(edges.kind == 0, edges.fixed_ns, shorten(edges.fixed_ns))
    return graph, replace(
        graph.work,
        host_segment_ns=shorten(graph.host_segment_ns),
        duration_ns=shorten(graph.duration_ns),
        edges=replace(edges, fixed_ns=fixed_ns).take(kept),
    )


@given(GRAPHS)
@settings(max_examples=60, deadline=None)
def test_scaling_by_one_changes_nothing(graph: StepGraph) -> None:
    work = graph.work
    same = Work(
        np.rint(work.host_segment_ns * 1.0).astype(np.int64),
        np.rint(work.duration_ns * 1.0).astype(np.int64),
        replace(work.edges, share=work.edges.share * 1.0),
        work.wait_ns,
    )
    before, after = replay(graph), replay(graph, same)
    assert np.array_equal(before.node_ns, after.node_ns)
    assert np.array_equal(before.start_ns, after.start_ns)
    assert np.array_equal(before.end_ns, after.end_ns)
    assert np.array_equal(before.step_ns, after.step_ns)


@given(graphs_with_less_work())
@settings(max_examples=100, deadline=None)
def test_less_work_never_lengthens_a_step(case: tuple[StepGraph, Work]) -> None:
    graph, less = case
    assert (replay(graph, less).step_ns <= replay(graph).step_ns).all()


@given(random_graphs(), st.integers(1, 30), st.data())
@settings(max_examples=60, deadline=None)
def test_more_work_never_shortens_a_step(graph: StepGraph, more: int, data: st.DataObject) -> None:
    duration_ns = graph.duration_ns.copy()
    duration_ns[data.draw(st.integers(0, len(duration_ns) - 1))] += more
    assert replay(graph, replace(graph.work, duration_ns=duration_ns)).longest_ns >= replay(graph).longest_ns


@given(graphs_with_less_work())
@settings(max_examples=60, deadline=None)
def test_no_edge_is_shorter_than_its_length(case: tuple[StepGraph, Work]) -> None:
    """So a step is never shorter than any chain of dependencies in it."""
    graph, work = case
    node_ns = replay(graph, work).node_ns
    assert (node_ns[work.edges.target] - node_ns[work.edges.source] >= lengths_of(graph, work)).all()


@given(random_graphs())
@settings(max_examples=100, deadline=None)
def test_a_step_is_as_long_as_its_longest_dependency_chain(graph: StepGraph) -> None:
    edges, lengths = graph.edges, lengths_of(graph, graph.work)

    @cache
    def longest_chain(node: int) -> int:
        before = [longest_chain(int(edges.source[k])) + int(lengths[k]) for k in np.flatnonzero(edges.target == node)]
        return max(before, default=0)

    ends = [
        max(longest_chain(int(end)) + int(duration), longest_chain(int(start)))
        for start, end, duration in zip(graph.start_node, graph.end_node, graph.duration_ns, strict=True)
    ]
    assert replay(graph).longest_ns == max(ends)


@given(graphs_with_less_work())
@settings(max_examples=60, deadline=None)
def test_buckets_of_a_replayed_step_sum_to_it(case: tuple[StepGraph, Work]) -> None:
    graph, work = case
    times = replay(graph, work)
    for rank in range(len(graph.ranks)):
        budget = measure_replayed_budget(graph, work, times, rank)
        assert sum(budget.values()) == times.step_ns[rank]


@given(random_graphs())
@settings(max_examples=30, deadline=None)
def test_the_compiled_search_gives_what_the_plain_one_gives(graph: StepGraph) -> None:
    compiled = _load_compiled()
    if compiled is None:
        pytest.skip("numba is not installed")
    order = np.argsort(graph.edges.target, kind="stable")
    source, target = graph.edges.source[order], graph.edges.target[order]
    first = np.searchsorted(target, np.arange(graph.nodes_count + 1))
    length = lengths_of(graph, graph.work)[order]
    plain = find_longest_paths_once(graph.nodes_count, source, target, length)
    assert np.array_equal(compiled(first, source, length), plain)


@given(graphs_with_less_work())
def test_taking_chains_of_nodes_together_changes_no_path(changed: tuple[StepGraph, Work]) -> None:
    graph, work = changed
    followed = graph.nodes_count, work.edges.source, work.edges.target, lengths_of(graph, work)
    assert np.array_equal(find_longest_paths(*followed), find_longest_paths_once(*followed))


@given(st.data())
def test_nodes_with_any_number_of_edges_get_the_longest_path(data: st.DataObject) -> None:
    nodes = data.draw(st.integers(1, 8))
    edges = [
        (data.draw(st.integers(0, target - 1)), target, data.draw(st.integers(-9, 9)))
        for target in range(1, nodes)
        for _ in range(data.draw(st.integers(0, 5)))
    ]
    longer = [(source, target, length + 1) for source, target, length in edges]
    for followed in (edges, longer, edges[1:], edges):  # the same graph as before, and another
        expected = [0] * nodes
        for node in range(nodes):
            reached = [expected[source] + length for source, target, length in followed if target == node]
            expected[node] = max(reached, default=0)
        source, target, length = (np.array([edge[place] for edge in followed], dtype=np.int64) for place in range(3))
        assert find_longest_paths(nodes, source, target, length).tolist() == expected


def scale(factor: float, host: float = 1.0, *categories: str, kernels: str = "") -> Transformation:
    return Transformation(
        Action.SCALE,
        Selection(categories=categories, kernels=kernels),
        time=Levels(factor, factor, factor),
        host=Levels(host, host, host),
    )


def host(factor: float) -> Transformation:
    return Transformation(Action.HOST, host=Levels(factor, factor, factor))


LESS = st.lists(
    st.one_of(
        st.builds(scale, st.floats(0, 1), st.floats(0, 1), st.sampled_from(["communication", "compute", *CATEGORIES])),
        st.builds(host, st.floats(0, 1)),
        st.builds(lambda pattern: scale(0.0, 0.0, kernels=pattern), st.sampled_from(["gemm", "e", "all|norm", "^$"])),
    ),
    min_size=1,
    max_size=3,
)


@given(GRAPHS, st.sampled_from(Level))
@settings(max_examples=40, deadline=None)
def test_transformations_by_one_change_nothing(graph: StepGraph, level: Level) -> None:
    work = transform(graph, graph.work, [scale(1.0), host(1.0), scale(1.0, 1.0, "compute")], level)
    assert np.array_equal(replay(graph, work).node_ns, replay(graph).node_ns)
    assert np.array_equal(replay(graph, work).end_ns, replay(graph).end_ns)


@given(GRAPHS, LESS)
@settings(max_examples=100, deadline=None)
def test_transformations_that_leave_less_work_never_lengthen_a_step(
    graph: StepGraph, changes: list[Transformation]
) -> None:
    step_ns = replay(graph).step_ns
    work = graph.work
    for change in changes:
        work = transform(graph, work, [change], Level.LIKELY)
        after_ns = replay(graph, work).step_ns
        assert (after_ns <= step_ns).all()
        step_ns = after_ns


@given(GRAPHS, LESS)
@settings(max_examples=40, deadline=None)
def test_the_budget_and_the_path_of_a_changed_step_sum_to_it(graph: StepGraph, changes: list[Transformation]) -> None:
    work, times = find_steady(graph, transform(graph, graph.work, changes, Level.LIKELY))
    budget = measure_replayed_budget(graph, work, times, 0)
    assert sum(budget.values()) == times.step_ns[0]
    path = find_critical_path(graph, work, times, 0)
    assert sum(path.sum_by_limit().values()) == times.step_ns[0]
