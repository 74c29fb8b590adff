"""The budget of a replayed step: the same attribution as of a captured one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.replay.small_graphs import GraphBuilder, lockstep_graph
from three_walls.replay.predictor import ProfilerCost, StepReplay, find_point_times, measure_replayed_budget
from three_walls.replay.step_graph import StepGraph, Work, replay
from three_walls.replay.transformation import NOTHING, Action, Selection, Transformation


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


def test_a_step_of_which_nothing_is_left_has_a_budget_of_nothing() -> None:
    """With a host that takes no time, the memory is filled before the step begins: in the tail of the one before."""
    builder = late_launch()
    builder.operation(builder.call(10, 10), duration=20, category="memset")
    graph = replace(builder.build(), tail_ns=30)
    step = StepReplay(graph, np.zeros(len(graph.host_segment_ns)), 0, 0.0, ProfilerCost(1, 1, 1))
    no_compute = Transformation(Action.SCALE, Selection(categories=("compute",)), time=NOTHING)
    instant_host = Transformation(Action.HOST, host=NOTHING)
    assert step.budget_after([no_compute]) == {"memset": 20, "launch_starved": 130}
    assert step.budget_after([no_compute, instant_host]) == step.limits_after([no_compute, instant_host]) == {}


def test_a_rank_that_is_done_before_its_step_begins_has_a_step_of_nothing() -> None:
    graph = replace(late_launch().build(), rank_start_ns=np.array([500]))
    assert replay(graph).step_ns.tolist() == [0]
    assert budget_of(graph) == {}
    assert replay(replace(graph, rank_start_ns=np.array([50]))).step_ns.tolist() == [185 - 50]


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
