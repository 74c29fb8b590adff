"""The budget of a replayed step: the same attribution as of a captured one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.replay.small_graphs import GraphBuilder, lockstep_graph
from three_walls.replay.predictor import find_point_times, measure_replayed_budget
from three_walls.replay.step_graph import StepGraph, Work, replay


def budget_of(graph: StepGraph, work: Work | None = None) -> dict[str, int]:
    work = work or graph.work
    return measure_replayed_budget(graph, work, replay(graph, work), 0)


def late_launch() -> GraphBuilder:
    """A GEMM, and a norm that is launched 100 ns after it ends."""
    builder = GraphBuilder()
    builder.operation(builder.call(0, 10), duration=50)
    builder.operation(builder.call(140, 10), duration=30, latency=5, category="norm")
    return builder


def test_idle_time_up_to_the_launch_is_the_hosts_and_the_rest_is_other() -> None:
    assert budget_of(late_launch().build()) == {"gemm": 50, "norm": 30, "launch_starved": 100, "idle_other": 5}


def test_with_an_infinitely_fast_host_nothing_is_starved() -> None:
    graph = late_launch().build()
    instant = replace(graph.work, host_segment_ns=np.zeros_like(graph.host_segment_ns))
    assert budget_of(graph, instant) == {"gemm": 50, "norm": 30}


def test_time_in_a_synchronizing_call_is_host_blocked() -> None:
    builder = GraphBuilder()
    awaited = builder.operation(builder.call(0, 1), duration=50)
    builder.call(0, 1, awaits=awaited, tail=20)
    builder.operation(builder.call(30, 1), duration=10)
    assert budget_of(builder.build()) == {"gemm": 60, "host_blocked": 20, "launch_starved": 30}


def test_an_operation_that_takes_no_time_any_more_owns_none() -> None:
    graph = late_launch().build()
    budget = budget_of(graph, replace(graph.work, duration_ns=np.array([50, 0])))
    assert "norm" not in budget
    assert sum(budget.values()) == replay(graph, replace(graph.work, duration_ns=np.array([50, 0]))).longest_ns


def test_host_points_are_where_the_replay_puts_them() -> None:
    graph = late_launch().build()
    assert find_point_times(graph, graph.work, replay(graph)).tolist() == [0, 10, 150, 160]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_rank_of_a_capture_has_a_budget_that_sums_to_its_step(ranks: int) -> None:
    graph = lockstep_graph(ranks)
    times = replay(graph)
    for rank in range(ranks):
        budget = measure_replayed_budget(graph, graph.work, times, rank)
        assert sum(budget.values()) == times.step_ns[rank]
        assert abs(times.step_ns[rank] - graph.measured_ns[rank]) <= 0.03 * graph.measured_ns[rank]
