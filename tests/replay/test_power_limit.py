"""A device at its power limit does its work at a lower clock where an edit leaves it less idle time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.replay.built_steps import US, Step
from tests.trace_builder import GEMM, SEND_RECV
from three_walls.replay.predictor import ProfilerCost, StepReplay, find_busy_fractions, slow_clocks
from three_walls.replay.step_graph import StepGraph, replay
from three_walls.replay.transformation import Level


def built(tmp_path: Path) -> StepGraph:
    """A GEMM of 40 us, a transfer of 20 us and, on another stream, a GEMM that is half beside the first."""
    step = Step().run(110, 150, launched=105, name=GEMM).run(151, 171, launched=106, name=SEND_RECV)
    return step.run(130, 170, launched=107, name=GEMM, stream=8).graph_between(tmp_path, 110, 400)


def durations_us(graph: StepGraph, before: float, after: float) -> list[float]:
    changed = slow_clocks(graph, graph.work, np.array([before]), np.array([after]))
    return [round(ns / US, 2) for ns in changed.duration_ns.tolist()]


def test_a_device_is_busy_where_it_computes_however_many_kernels_do(tmp_path: Path) -> None:
    graph = built(tmp_path)
    times = replay(graph)
    assert find_busy_fractions(graph, times) == pytest.approx([60 * US / times.longest_ns], abs=0.03)


def test_less_idle_time_costs_clock_and_more_of_it_gains_some(tmp_path: Path) -> None:
    graph = built(tmp_path)
    first, *_ = durations_us(graph, 0.9, 0.96)
    assert 40 * 0.96**0.5 / 0.9**0.5 <= first < 40 * (1 / 0.9) ** 0.5
    assert durations_us(graph, 0.96, 0.9)[0] < 40


def test_transfers_take_as_long_at_any_clock(tmp_path: Path) -> None:
    graph = built(tmp_path)
    assert sum(took == 20 for took in durations_us(graph, 0.9, 1.0)) == 1


@pytest.mark.parametrize(("before", "after"), [(0.2, 0.8), (0.8, 0.2), (0.9, 0.9)])
def test_a_device_with_power_left_keeps_its_clock(tmp_path: Path, before: float, after: float) -> None:
    graph = built(tmp_path)
    assert durations_us(graph, before, after) == [ns / US for ns in graph.work.duration_ns.tolist()]


@pytest.mark.parametrize(("gemm_us", "is_slower"), [(80, True), (40, False)])
def test_a_device_that_rested_under_the_profiler_is_slower_without_it_where_it_then_computes_all_the_time(
    tmp_path: Path, gemm_us: int, is_slower: bool
) -> None:
    """20 GEMMs, launched 100 us apart under a profiler that adds 20 us to each."""
    step = Step()
    for place in range(20):
        step.run(110 + 100 * place, 110 + 100 * place + gemm_us, launched=105 + 100 * place, name=GEMM)
    graph = step.graph_between(tmp_path, 110, 2110)
    added_ns = np.zeros(len(graph.host_segment_ns))
    added_ns[0::2] = 20 * US
    replayed = StepReplay(graph, added_ns, 0, 0.0, ProfilerCost(1.0, 1.0, 1.0))
    work, _ = replayed._settle((), Level.LIKELY, 1.0)
    slower = work.duration_ns.sum() / graph.work.duration_ns.sum()
    assert slower == pytest.approx((1 / 0.85) ** 0.5 if is_slower else 1.0, abs=0.02)
