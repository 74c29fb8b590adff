"""The graph of a step holds what holds each operation back, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.replay.built_steps import US, Step
from three_walls.replay.step_graph import StepGraph, Times, replay


def starts_us(times: Times) -> list[float]:
    return [round(start / US, 3) for start in times.start_ns.tolist()]


def with_durations(graph: StepGraph, *durations_us: float) -> Times:
    durations_ns = np.array([round(duration * US) for duration in durations_us])
    return replay(graph, replace(graph.work, duration_ns=durations_ns))


def with_host(graph: StepGraph, factor: float) -> Times:
    return replay(graph, replace(graph.work, host_segment_ns=np.rint(graph.host_segment_ns * factor).astype(np.int64)))


def test_an_unchanged_replay_gives_the_captured_times(tmp_path: Path) -> None:
    step = Step().run(110, 150, launched=105).run(151, 180, launched=112).run(300, 320, launched=295)
    graph = step.graph_between(tmp_path, 110, 400)
    times = replay(graph)
    assert starts_us(times) == [0, 41, 190]
    assert times.step_ns.tolist() == graph.measured_ns.tolist() == [210 * US]


def test_a_queued_kernel_follows_its_stream_and_a_late_one_its_launch(tmp_path: Path) -> None:
    step = Step().run(110, 150, launched=105).run(151, 180, launched=112).run(300, 320, launched=295)
    times = with_durations(step.graph_between(tmp_path, 110, 400), 10, 29, 20)
    assert starts_us(times) == [0, 11, 190]  # the last one was launched late, and still is


def test_a_faster_host_brings_forward_only_what_waited_for_its_launch(tmp_path: Path) -> None:
    step = Step().run(110, 150, launched=105).run(151, 180, launched=112).run(300, 320, launched=295)
    graph = step.graph_between(tmp_path, 110, 400)
    # 190 us from the first launch to the last, of which 95 stay; the third kernel still waits for the second.
    assert starts_us(with_host(graph, 0.5)) == [0, 41, 95]
    assert starts_us(with_host(graph, 0.0)) == [0, 41, 71]


def test_a_kernel_without_a_launch_call_follows_its_stream(tmp_path: Path) -> None:
    step = Step().run(110, 150, launched=105).run(160, 180)
    times = with_durations(step.graph_between(tmp_path, 110, 400), 20, 20)
    assert starts_us(times) == [0, 30]


def test_a_synchronizing_call_returns_after_what_it_waited_for(tmp_path: Path) -> None:
    step = Step().run(110, 200, launched=105).call("cudaDeviceSynchronize_v3020", 110, 205).run(215, 230, launched=210)
    graph = step.graph_between(tmp_path, 110, 400)
    assert starts_us(replay(graph)) == [0, 105]
    assert starts_us(with_durations(graph, 40, 15)) == [0, 55]


def test_a_synchronizing_call_that_waited_for_nothing_takes_its_time(tmp_path: Path) -> None:
    step = Step().run(110, 120, launched=105).call("cudaDeviceSynchronize_v3020", 150, 152).run(165, 180, launched=160)
    graph = step.graph_between(tmp_path, 110, 400)
    assert starts_us(with_durations(graph, 1, 15)) == [0, 55]


def test_a_stream_waits_for_the_event_of_another(tmp_path: Path) -> None:
    step = Step().run(110, 150, launched=105)
    step.record_event(1, 7, called=107 * US, sync=11).wait_event(1, 8, called=108 * US, sync=11)
    step.run(152, 180, launched=110, stream=8)
    graph = step.graph_between(tmp_path, 110, 400)
    assert starts_us(with_durations(graph, 10, 28)) == [0, 12]


def test_streams_without_an_event_run_on_their_own(tmp_path: Path) -> None:
    step = Step().run(110, 150, launched=105).run(115, 130, launched=110, stream=8)
    graph = step.graph_between(tmp_path, 110, 400)
    assert starts_us(with_durations(graph, 90, 15)) == [0, 5]


def test_a_kernel_that_was_ready_waits_for_the_multiprocessors_that_another_one_leaves(tmp_path: Path) -> None:
    step = Step().run(110, 200, launched=105).run(201, 230, launched=110, stream=8)
    graph = step.graph_between(tmp_path, 110, 400)
    assert starts_us(with_durations(graph, 45, 29)) == [0, 46]


def test_a_thread_that_was_silent_goes_on_after_the_thread_that_worked_meanwhile(tmp_path: Path) -> None:
    step = Step().run(110, 120, launched=105)
    backward = step.thread + 1
    step.kernel("kernel", 160 * US, 170 * US).call("cudaLaunchKernel_v7000", 150, 151, step.correlation, backward)
    step.run(200, 210, launched=190)
    graph = step.graph_between(tmp_path, 110, 400)
    # 45 us of host time lie between the first launch and the second, and 40 between that and the third.
    assert starts_us(with_host(graph, 0.5)) == [0, 27.5, 47.5]


def test_threads_that_work_at_the_same_time_do_not_wait_for_each_other(tmp_path: Path) -> None:
    step = Step().run(110, 120, launched=105)
    other = step.thread + 1
    for at in (112, 122, 132):
        step.kernel("kernel", (at + 5) * US, (at + 6) * US, 8)
        step.call("cudaLaunchKernel_v7000", at, at + 1, step.correlation, other)
        step.run(at + 10, at + 12, launched=at + 4)
    graph = step.graph_between(tmp_path, 110, 400)
    slow = np.where(np.repeat((graph.calls["thread"] == other).to_numpy(), 2), 3, 1)
    times = replay(graph, replace(graph.work, host_segment_ns=graph.host_segment_ns * slow))
    main = (graph.operations["stream"] == 7).to_numpy()
    assert np.array_equal(times.start_ns[main], replay(graph).start_ns[main])


def test_a_shared_gpu_holds_up_what_nothing_else_holds_up(tmp_path: Path) -> None:
    step = Step().run(110, 120, launched=105).run(200, 220, launched=107)
    alone = step.graph_between(tmp_path, 110, 400)
    assert starts_us(replay(alone)) == [0, 11]  # nothing visible held the second kernel up
    shared = step.graph_between(tmp_path, 110, 400, shared=True)
    assert starts_us(replay(shared)) == [0, 90]
    # Another process still has the GPU for 79 us; the second kernel is not ready before its own launch.
    assert 85 <= starts_us(with_durations(shared, 5, 20))[1] < 86
