"""What the profiler is taken to have added is read off the capture's own ranges and calls."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.replay.built_steps import US, Step
from tests.replay.small_graphs import GraphBuilder
from three_walls.replay.host_chains import measure_silences
from three_walls.replay.predictor import (
    LogSteps,
    ProfilerCost,
    StepReplay,
    fit_profiler_cost,
    settle_waits,
    without_profiler,
)
from three_walls.replay.profiler_cost import measure_profiler_cost, profiler_costs
from three_walls.replay.step_graph import StepGraph, replay
from three_walls.replay.transformation import Action, Selection, Transformation
from three_walls.step.operators import RANGE_TIMES
from three_walls.tables.prediction_intervals import Levels, prediction_intervals


def added_us(graph: StepGraph, *ranges: tuple[float, float, str]) -> list[float]:
    """What was added to every host point, in us. ``ranges``: begin, end and text."""
    thread = graph.calls["thread"][0]
    rows = [(thread, round(begin * US), round(end * US), "sizes = " in text) for begin, end, text in ranges]
    frame = pl.DataFrame(rows, schema=RANGE_TIMES, orient="row")
    added = measure_profiler_cost(graph.calls, frame)
    return [round(value / US, 3) for value in added.tolist()]


def launches(tmp_path: Path, count: int, every: float = 100) -> StepGraph:
    """``count`` launches that take as long as on the host of the table."""
    step, took = Step(), profiler_costs().pace_call_ns / US
    for place in range(count):
        at = 100 + every * place
        step.kernel("kernel", round((at + 10) * US), round((at + 20) * US))
        step.call("cudaLaunchKernel_v7000", at, at + took, step.correlation)
    return step.graph_between(tmp_path, 110, 100 + every * count + 100)


def launch_cost_us() -> tuple[float, float]:
    before, inside = profiler_costs().of_call("cudaLaunchKernel_v7000")
    return before / US, inside / US


def test_every_recorded_launch_costs_what_the_table_states(tmp_path: Path) -> None:
    before, inside = launch_cost_us()
    # Nothing is known of the time before a thread's first call.
    assert added_us(launches(tmp_path, 3)) == [0, inside, before, inside, before, inside]


def test_what_a_launch_costs_is_taken_from_the_time_before_its_kernel_is_looked_up(tmp_path: Path) -> None:
    step, took = Step(), profiler_costs().pace_call_ns / US
    for at in (100, 200):
        step.call("cuKernelGetName", at - 2, at - 1)
        step.kernel("kernel", (at + 10) * US, (at + 20) * US)
        step.call("cudaLaunchKernel_v7000", at, at + took, step.correlation)
    added = added_us(step.graph_between(tmp_path, 110, 400))
    before, inside = launch_cost_us()
    looked_up, _ = profiler_costs().of_call("cuKernelGetName")
    # Of the 93.7 us between the two launches 92.7 are before the look-up, and 1 is after it.
    assert added[2] + added[4] == pytest.approx(before + looked_up / US)
    assert added[2] / added[4] == pytest.approx(92.7, rel=0.02)
    assert added[5] == inside


def test_a_host_whose_launches_take_twice_as_long_pays_twice(tmp_path: Path) -> None:
    step, took = Step(), 2 * profiler_costs().pace_call_ns / US
    step.kernel("kernel", 120 * US, 130 * US).call("cudaLaunchKernel_v7000", 100, 100 + took, step.correlation)
    _, inside = launch_cost_us()
    assert added_us(step.graph_between(tmp_path, 110, 400)) == [0, 2 * inside]


def test_a_range_costs_the_time_to_the_range_inside_it_and_between_two_ends(tmp_path: Path) -> None:
    graph = launches(tmp_path, 2)
    before, inside = launch_cost_us()
    # Between the launches two nested ranges: 3 us from begin to begin, 2 us from end to end.
    added = added_us(graph, (110, 192, "outer"), (113, 190, "inner"))
    assert added == [0, inside, round(before + 2 * 3 + 2 * 2, 3), inside]


def test_a_cuda_call_between_two_begins_does_not_count_as_the_cost_of_a_range(tmp_path: Path) -> None:
    graph = launches(tmp_path, 2)
    before, _ = launch_cost_us()
    added = added_us(graph, (99, 250, "around both"), (150, 180, "between"), (153, 178, "inside that"))
    assert added[2] == round(before + 2 * 3 + 2 * 2, 3)


def test_without_the_profiler_no_host_segment_is_negative_and_none_grows(tmp_path: Path) -> None:
    graph = launches(tmp_path, 3, every=20)
    left = without_profiler(graph, np.full(len(graph.host_segment_ns), 1e9), 1.0).host_segment_ns
    assert (left >= 0).all()
    assert (left <= graph.host_segment_ns).all()
    assert (left[graph.host_segment_ns > 10] > 0).all()  # some of each is the program's own
    assert np.array_equal(
        without_profiler(graph, np.zeros(len(graph.host_segment_ns)), 1.0).host_segment_ns, graph.host_segment_ns
    )


def test_a_log_decides_how_much_the_profiler_added(tmp_path: Path) -> None:
    graph = launches(tmp_path, 11)
    added = np.zeros(len(graph.host_segment_ns))
    added[0::2] = 50 * US  # of the 95 us between two launches
    without = fit_profiler_cost(graph, added, 0, None)
    assert without.least < without.likely < without.most
    unprofiled_ns = int(graph.measured_ns[0]) - 330 * US  # 11 times 50 us are a cost of 1
    fitted = fit_profiler_cost(graph, added, 0, LogSteps(unprofiled_ns, unprofiled_ns, unprofiled_ns))
    assert fitted.least == fitted.likely == fitted.most
    assert abs(fitted.likely - 0.6) < 0.1


def test_of_the_costs_that_give_nearly_the_log_s_step_the_most_usual_one_counts(tmp_path: Path) -> None:
    graph = launches(tmp_path, 11)
    added = np.zeros(len(graph.host_segment_ns))
    added[0::2] = 10 * US
    unprofiled_ns = int(graph.measured_ns[0]) - 110 * US  # exact at a cost of 1; 8% of the step are 0.65
    fitted = fit_profiler_cost(graph, added, 0, LogSteps(unprofiled_ns, unprofiled_ns, unprofiled_ns))
    assert [round(cost, 1) for cost in (fitted.least, fitted.likely, fitted.most)] == [0.8, 1.5, 1.5]


def test_the_quartiles_of_a_log_give_the_ends_of_what_the_profiler_added(tmp_path: Path) -> None:
    graph = launches(tmp_path, 11)
    added = np.zeros(len(graph.host_segment_ns))
    added[0::2] = 50 * US
    measured_ns = int(graph.measured_ns[0])
    log = LogSteps(measured_ns - 440 * US, measured_ns - 330 * US, measured_ns - 220 * US)
    fitted = fit_profiler_cost(graph, added, 0, log)
    # 8% of the step are 0.1 more.
    assert [fitted.least, fitted.likely, fitted.most] == pytest.approx([0.5, 0.7, 0.9], abs=0.06)


def test_where_the_device_decides_the_ends_are_those_without_a_log(tmp_path: Path) -> None:
    graph = launches(tmp_path, 11)
    nothing = np.zeros(len(graph.host_segment_ns))
    without, measured_ns = fit_profiler_cost(graph, nothing, 0, None), int(graph.measured_ns[0])
    fitted = fit_profiler_cost(graph, nothing, 0, LogSteps(measured_ns - US, measured_ns, measured_ns + US))
    assert fitted.least <= without.least
    assert fitted.most >= without.most


@pytest.mark.parametrize("added_us", [0, 10])
def test_without_a_log_the_step_of_a_host_bound_run_is_known_to_a_tenth_times_what_logs_were_off_by(
    tmp_path: Path, added_us: int
) -> None:
    graph = launches(tmp_path, 11)
    added = np.full(len(graph.host_segment_ns), added_us * US)
    replay = StepReplay(graph, added, 0, 0.0, fit_profiler_cost(graph, added, 0, None))
    for distance_ns in (
        replay.step_ns.high_ns - replay.step_ns.likely_ns,
        replay.step_ns.likely_ns - replay.step_ns.low_ns,
    ):
        assert 0.1 < distance_ns / replay.step_ns.likely_ns / prediction_intervals().step_ratio < 0.15
    logged = replace(replay, log_step_ns=US)
    assert (logged.step_ns.low_ns, logged.step_ns.high_ns) == (US, US)


def test_waiting_for_ranks_that_were_not_captured_shrinks_with_the_profiler(tmp_path: Path) -> None:
    graph = launches(tmp_path, 2)
    waiting = replace(graph.work, wait_ns=np.array([0, 8 * US]))
    shrunk = settle_waits(graph, waiting, 2 * int(graph.measured_ns[0]))
    assert shrunk.duration_ns[0] == 10 * US
    assert 2 * US < shrunk.duration_ns[1] < 7 * US


@pytest.mark.parametrize(
    ("host", "launch_us", "share"),
    [(1.0, 450, 0.0), (0.5, 1, 0.0), (0.5, 450, 0.3), (0.5, 650, 1.0)],
    ids=["its hosts have as much to do", "its host costs it nothing", "its host costs it 50 us", "250 us"],
)
def test_an_edit_shortens_the_waiting_for_ranks_that_were_not_captured_by_what_it_saves_their_hosts(
    monkeypatch: pytest.MonkeyPatch, host: float, launch_us: int, share: float
) -> None:
    monkeypatch.setattr("three_walls.replay.predictor.find_steady", lambda graph, work, *_: (work, replay(graph, work)))
    step = GraphBuilder()
    step.operation(step.call(0, 1), 400 * US)
    step.operation(step.call(launch_us * US, 1), 600 * US, category="ep_all_to_all")
    waiting = replace(step.build(), wait_ns=np.array([0, 500 * US]))
    replayed = StepReplay(waiting, np.zeros(len(waiting.host_segment_ns)), 0, 0.0, ProfilerCost(0.0, 0.0, 0.0))
    half = Transformation(Action.SCALE, Selection(categories=("gemm",)), time=Levels(0.5, 0.5, 0.5))
    after = replayed.predict((half, Transformation(Action.HOST, host=Levels(host, host, host))))
    low, likely, high = (replayed.step_ns.likely_ns - ns for ns in (after.high_ns, after.likely_ns, after.low_ns))
    assert low == pytest.approx((max(400, launch_us) - max(200, launch_us * host)) * US, abs=US)
    assert (high > low) is (host < 1)
    assert likely - low == pytest.approx(share * (high - low), abs=US)  # of the 500 us that it waits


@pytest.mark.parametrize(("apart_us", "share"), [(0, 0.0), (100, 0.1)])
def test_hosts_hold_ranks_that_come_together_up_by_no_more_than_they_come_apart(
    monkeypatch: pytest.MonkeyPatch, apart_us: int, share: float
) -> None:
    monkeypatch.setattr("three_walls.replay.predictor.find_steady", lambda graph, work, *_: (work, replay(graph, work)))
    step = GraphBuilder()
    members = [
        step.operation(step.call(launch_us * US, 1), 600 * US, stream, category="ep_all_to_all")
        for stream, launch_us in enumerate((650, apart_us))
    ]
    step.meet(*members)
    waiting = replace(step.build(), wait_ns=np.array([500 * US, 500 * US]))
    replayed = StepReplay(waiting, np.zeros(len(waiting.host_segment_ns)), 0, 0.0, ProfilerCost(0.0, 0.0, 0.0))
    after = replayed.predict((Transformation(Action.HOST, host=Levels(0.5, 0.5, 0.5)),))
    low, likely, high = (replayed.step_ns.likely_ns - ns for ns in (after.high_ns, after.likely_ns, after.low_ns))
    assert high > low
    assert likely - low == pytest.approx(share * (high - low), abs=US)


def silent_us(graph: StepGraph, *ranges: tuple[float, float]) -> list[float]:
    """Per host point how long nothing was recorded, in us. ``ranges``: begin and end."""
    thread = graph.calls["thread"][0]
    rows = [(thread, round(begin * US), round(end * US), False) for begin, end in ranges]
    frame = pl.DataFrame(rows, schema=RANGE_TIMES, orient="row")
    return [value / US for value in measure_silences(graph.calls, frame).tolist()]


def test_a_millisecond_without_a_range_or_a_call_is_silence(tmp_path: Path) -> None:
    graph = launches(tmp_path, 2, every=3000)
    took = profiler_costs().pace_call_ns / US
    assert silent_us(graph) == [0, 0, 3000 - took, 0]
    assert silent_us(graph, (2900, 2950)) == [0, 0, 2900 - 100 - took, 0]


def test_a_thread_that_works_through_short_ranges_is_never_silent(tmp_path: Path) -> None:
    ranges = [(110 + 500 * place, 400 + 500 * place) for place in range(6)]
    assert silent_us(launches(tmp_path, 2, every=3000), *ranges) == [0, 0, 0, 0]
