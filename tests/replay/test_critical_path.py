"""The critical path partitions the step, and the slack of an operation is exact."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.replay.small_graphs import GraphBuilder, lockstep_graph, random_graphs
from three_walls.facts.replayed_step import critical_path_compute_fraction, critical_path_host_fraction
from three_walls.replay.find_critical_path import CriticalNodes, find_critical_path, summarize_critical_path
from three_walls.replay.step_graph import StepGraph, replay


def path_of(graph: StepGraph, rank: int | None = None) -> CriticalNodes:
    return find_critical_path(graph, graph.work, replay(graph), rank)


def rows(path: CriticalNodes, *columns: str) -> list[tuple[object, ...]]:
    return path.segments.select(columns).rows()


def test_a_host_that_is_late_owns_the_path_up_to_the_launch() -> None:
    builder = GraphBuilder()
    builder.call(10, 5)
    builder.operation(builder.call(20, 5), duration=7, latency=3)
    path = path_of(builder.build())
    assert path.step_ns == 10 + 5 + 20 + 3 + 7
    assert rows(path, "what", "start_ns", "end_ns", "kind", "name") == [
        ("gap", 0, 10, "given", ""),  # before the thread's first call
        ("host", 10, 15, "launch", "call0"),
        ("host", 15, 35, "launch", ""),
        ("gap", 35, 38, "launch", ""),
        ("operation", 38, 45, "end", "gemm_kernel"),
    ]
    assert path.sum_by_limit() == {"host": 25, "gap": 13, "compute": 7}


def test_a_busy_stream_owns_the_path_and_the_host_is_not_on_it() -> None:
    builder = GraphBuilder()
    first = builder.call(1, 1)
    builder.operation(first, duration=100)
    builder.operation(builder.call(1, 1), duration=50, gap=2, category="norm")
    path = path_of(builder.build())
    assert rows(path, "what", "category", "start_ns", "end_ns") == [
        ("gap", "gap", 0, 1),
        ("operation", "gemm", 1, 101),
        ("gap", "gap", 101, 103),
        ("operation", "norm", 103, 153),
    ]
    assert path.sum_by("category") == {"gemm": 100, "norm": 50, "gap": 3}


def test_what_is_left_of_a_synchronizing_call_belongs_to_the_host() -> None:
    builder = GraphBuilder()
    awaited = builder.operation(builder.call(1, 1), duration=100)
    call = builder.call(1, 2, awaits=awaited, tail=4)
    builder.operation(builder.call(10, 1), duration=5)
    path = path_of(builder.build())
    assert ("host", "awaited", 101, 105, f"call{call}", True) in rows(
        path, "what", "kind", "start_ns", "end_ns", "name", "is_call"
    )


def test_the_transfer_of_a_collective_begins_with_its_last_member() -> None:
    builder = GraphBuilder()
    early = builder.operation(builder.call(1, 1), duration=10, stream=0, category="all_reduce")
    late = builder.operation(builder.call(50, 1), duration=10, stream=1, category="all_reduce")
    builder.meet(early, late)
    path = path_of(builder.build())
    assert path.sum_by("category")["all_reduce"] == 10  # and not the 51 ns of waiting
    assert path.step_ns == 1 + 1 + 50 + 10


def test_modules_are_unknown_until_operations_are_labelled() -> None:
    builder = GraphBuilder()
    builder.operation(builder.call(10, 1), duration=7)
    builder.operation(builder.call(20, 1), duration=9)
    graph = builder.build()
    assert path_of(graph).sum_by("module") == {"unknown": path_of(graph).step_ns}
    labelled = replace(graph, operations=graph.operations.with_columns(module=pl.Series(["experts", "router"])))
    # The host works for what it launches next.
    assert path_of(labelled).sum_by("module") == {"router": 20 + 9, "unknown": 10, "experts": 1}


def test_the_slack_of_an_operation_is_what_it_may_end_later() -> None:
    builder = GraphBuilder()
    call = builder.call(0, 0)
    short = builder.operation(call, duration=10, stream=0)
    long = builder.operation(call, duration=100, stream=1)
    last = builder.operation(call, duration=5, stream=2)
    builder.wait(last, short)
    builder.wait(last, long)
    assert path_of(builder.build()).find_slack().tolist() == [90, 0, 0]


def test_the_path_of_several_ranks_leads_through_the_one_that_is_late() -> None:
    graph = lockstep_graph(3)
    path = path_of(graph, rank=0)
    on_path = path.segments.filter(pl.col("what") == "operation")
    by_rank = on_path.group_by("rank").agg((pl.col("end_ns") - pl.col("start_ns")).sum().alias("ns")).sort("ns")
    assert by_rank["rank"][-1] == 2


@pytest.mark.slow
@given(random_graphs() | st.sampled_from([1, 2, 3]).map(lockstep_graph), st.data())
@settings(max_examples=80, deadline=None)
def test_segments_partition_the_step_of_every_rank(graph: StepGraph, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, len(graph.ranks) - 1))
    times = replay(graph)
    path = find_critical_path(graph, graph.work, times, rank)
    assert path.step_ns == times.step_ns[rank]
    starts, ends = path.segments["start_ns"].to_list(), path.segments["end_ns"].to_list()
    assert starts[1:] == ends[:-1]
    assert sum(end - start for start, end in zip(starts, ends, strict=True)) == path.step_ns
    for column in ("category", "module"):
        assert sum(path.sum_by(column).values()) == path.step_ns


@pytest.mark.slow
@given(random_graphs(), st.data())
@settings(max_examples=80, deadline=None)
def test_an_operation_may_end_later_by_its_slack_and_no_more(graph: StepGraph, data: st.DataObject) -> None:
    longest_ns = replay(graph).longest_ns
    slack_ns = path_of(graph).find_slack()
    operation = data.draw(st.integers(0, len(slack_ns) - 1))

    def longest_after(added: int) -> int:
        duration_ns = graph.duration_ns.copy()
        duration_ns[operation] += added
        return replay(graph, replace(graph.work, duration_ns=duration_ns)).longest_ns

    assert slack_ns[operation] >= 0
    assert longest_after(int(slack_ns[operation])) == longest_ns
    in_part = (graph.edges.operation == operation) & (graph.edges.share < 1)
    if not in_part.any():  # lengths that follow a share of it are rounded
        assert longest_after(int(slack_ns[operation]) + 1) == longest_ns + 1


@given(random_graphs())
@settings(max_examples=40, deadline=None)
def test_shorter_host_segments_off_the_path_change_nothing(graph: StepGraph) -> None:
    path = path_of(graph)
    on_path = set(path.segments.filter(pl.col("what") == "operation")["operation"].to_list())
    longest_ns = replay(graph).longest_ns
    for operation in sorted(set(range(len(graph.duration_ns))) - on_path)[:3]:
        duration_ns = graph.duration_ns.copy()
        duration_ns[operation] = 0
        assert replay(graph, replace(graph.work, duration_ns=duration_ns)).longest_ns == longest_ns
    assert np.all(path.find_slack()[sorted(on_path)] >= 0)


def test_the_report_holds_the_path_in_few_segments_that_sum_to_the_step() -> None:
    builder = GraphBuilder()
    for _ in range(1000):
        builder.operation(builder.call(3, 2), duration=1)
    builder.operation(builder.call(5000, 1), duration=4000, category="norm")
    graph = builder.build()
    path = path_of(graph)
    found = summarize_critical_path(graph, path, {0: 5})
    assert len(found.segments) < 10 < path.segments.height
    assert [segment.start_ns for segment in found.segments[1:]] == [segment.end_ns for segment in found.segments[:-1]]
    assert (found.segments[0].start_ns, found.segments[-1].end_ns) == (0, found.step_ns)
    assert {segment.rank for segment in found.segments} == {5}
    assert found.segments[-1].category == "norm"


def test_rows_of_the_report_sum_to_the_step_and_count_what_is_off_the_path() -> None:
    builder = GraphBuilder()
    call = builder.call(0, 0)
    builder.operation(call, duration=10, stream=0)
    builder.operation(call, duration=100, stream=1)
    found = summarize_critical_path(builder.build(), path_of(builder.build()), {})
    (row,) = found.by_category
    assert (row.name, row.ns, row.fraction, row.operations, row.operations_on_path) == ("gemm", 100, 1.0, 2, 1)
    assert row.median_slack_ns == 90
    assert critical_path_compute_fraction(found) == 1.0
    assert critical_path_host_fraction(found) == 0.0
