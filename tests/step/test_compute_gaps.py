"""Why no compute ran: starved, blocked by its own stream, or unexplained, each by construction."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_builder import ADAM, ALL_GATHER, GEMM, TraceBuilder

from tests.measured import measure
from tests.step.compute_gaps_traces import BUSY, NEXT, STEP, US, absent_ns, begins, causes, three_steps
from three_walls.step.compute_gaps import MAXIMUM_LAUNCH_LATENCY_NS, Cause
from three_walls.step.host_activity import STARVATION_CAUSES, kind_of

pytestmark = pytest.mark.slow


def test_a_step_without_gaps_has_no_causes(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for at in begins():
        builder.kernel(GEMM, at, at + NEXT, launched=max(at - 9, 0))
        builder.kernel(ADAM, at + NEXT, at + STEP, launched=at + 1)
    assert causes(tmp_path, builder) == {}


def test_a_long_queue_is_no_starvation(tmp_path: Path) -> None:
    # The next operation was launched long before; what exceeds the usual latency has no visible cause.
    assert causes(tmp_path, three_steps(next_launched=10)) == {
        ("launch_latency", ""): MAXIMUM_LAUNCH_LATENCY_NS // US,
        ("unexplained", "launched, nothing visible held it"): 500 - MAXIMUM_LAUNCH_LATENCY_NS // US,
    }


def test_a_launch_that_was_not_recorded_leaves_the_gap_unexplained(tmp_path: Path) -> None:
    assert causes(tmp_path, three_steps(next_launched=None)) == {("unexplained", "launch not recorded"): 500}


def test_a_late_launch_with_nothing_visible(tmp_path: Path) -> None:
    assert causes(tmp_path, three_steps(next_launched=780 * US)) == {
        ("starved_nothing_visible", ""): 480,
        ("launch_latency", ""): 20,
    }


@pytest.mark.parametrize(
    ("call", "cause"),
    [
        ("cudaDeviceSynchronize", "starved_synchronizing"),
        ("cudaMalloc", "starved_allocating"),
        ("cudaFree", "starved_allocating"),
        ("cuMemCreate", "starved_allocating"),
        ("cudaHostAlloc", "starved_allocating"),
        ("cuModuleLoadData", "starved_allocating"),
        ("cuLibraryLoadData", "starved_allocating"),
        ("cudaLaunchKernel", "starved_launching"),
        ("cuLaunchKernelEx", "starved_launching"),
        ("cudaGraphLaunch", "starved_launching"),
        ("cudaMemcpyAsync", "starved_copying"),
        ("cudaMemsetAsync", "starved_copying"),
        ("cuMemcpyHtoDAsync", "starved_copying"),
    ],
)
def test_a_late_launch_is_split_by_what_its_thread_did(tmp_path: Path, call: str, cause: str) -> None:
    builder = three_steps(next_launched=780 * US)
    for at in begins():
        builder.api(f"{call}_v3020", at + 200 * US, at + 500 * US)
        builder.api("cudaMalloc_v3020", at + 300 * US, at + 700 * US, thread=builder.thread + 7)
    found = causes(tmp_path, builder)
    assert found == {(cause, call): 200, ("starved_nothing_visible", ""): 280, ("launch_latency", ""): 20}


def test_calls_without_a_kind_are_nothing_visible() -> None:
    assert kind_of("cudaEventQuery_v3020") is None
    assert kind_of("cuKernelGetName") is None
    assert set(STARVATION_CAUSES.values()) == {str(cause) for cause in Cause if cause.startswith("starved_")} - {
        str(Cause.NOTHING_VISIBLE)
    }


def test_a_synchronizing_call_names_what_released_it(tmp_path: Path) -> None:
    builder = three_steps(next_launched=780 * US)
    for at in begins():
        builder.kernel(ALL_GATHER, at + 250 * US, at + 590 * US, stream=20, launched=at + 20)
        builder.api("cudaStreamSynchronize_v3020", at + 200 * US, at + 600 * US)
    assert causes(tmp_path, builder) == {
        ("starved_synchronizing", "cudaStreamSynchronize until all_gather on stream 20"): 300,
        ("starved_nothing_visible", ""): 180,
        ("launch_latency", ""): 20,
    }


@pytest.mark.parametrize("begins_of", [{20: 250, 21: 260}, {20: 260, 21: 250}])
def test_of_two_operations_that_end_together_always_the_same_is_named(
    tmp_path: Path, begins_of: dict[int, int]
) -> None:
    builder = three_steps(next_launched=780 * US)
    for at in begins():
        for stream, begin in begins_of.items():
            builder.kernel(ALL_GATHER, at + begin * US, at + 590 * US, stream=stream, launched=at + stream)
        builder.api("cudaStreamSynchronize_v3020", at + 200 * US, at + 600 * US)
    assert ("starved_synchronizing", "cudaStreamSynchronize until all_gather on stream 21") in causes(tmp_path, builder)


def test_the_profilers_own_work_is_not_the_hosts_fault(tmp_path: Path) -> None:
    builder = three_steps(next_launched=780 * US)
    for at in begins():
        builder.overhead(at + 400 * US, at + 600 * US)
    assert causes(tmp_path, builder) == {
        ("profiler", ""): 200,
        ("starved_nothing_visible", ""): 280,
        ("launch_latency", ""): 20,
    }


def test_what_ran_before_on_the_same_stream_blocks_even_a_late_launch(tmp_path: Path) -> None:
    builder = three_steps(next_launched=780 * US)
    for at in begins():
        builder.kernel(ALL_GATHER, at + BUSY, at + 790 * US, launched=at + 9)
    assert causes(tmp_path, builder) == {("blocking", "all_gather on stream 7"): 490, ("launch_latency", ""): 10}


def test_a_device_saturated_by_copies_is_blocked_by_them_never_starved(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for at in begins():
        for order in range(95):
            begin = at + order * 10 * US
            builder.copy(1, begin, begin + 10 * US - 5, launched=max(begin - 900, 0))
        builder.kernel(GEMM, at + 950 * US, at + 960 * US, launched=at + 900 * US)
        builder.kernel(ADAM, at + 960 * US, at + STEP, launched=at + 901 * US)
        builder.api("cudaStreamSynchronize_v3020", at + 10 * US, at + 890 * US)
    found = causes(tmp_path, builder)
    assert found == {("blocking", "copy_h2d_pinned on stream 7"): 950}


def test_an_operation_that_nothing_waits_for_does_not_block(tmp_path: Path) -> None:
    builder = three_steps(next_launched=780 * US)
    for at in begins():
        builder.kernel(ALL_GATHER, at + BUSY, at + 790 * US, launched=at + 9, stream=20)
    assert causes(tmp_path, builder) == {("starved_nothing_visible", ""): 480, ("launch_latency", ""): 20}


def test_a_launched_node_of_a_graph_waits_for_another_part_of_it(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for at in begins():
        builder.kernel(GEMM, at, at + BUSY, launched=at - 1, node=1)
        builder.kernel(ADAM, at + NEXT, at + STEP, launched=at - 1, node=2)
    assert causes(tmp_path, builder) == {
        ("dependency_stalled", "another part of its CUDA graph"): 450,
        ("launch_latency", ""): 50,
    }


def test_a_gap_that_the_step_cuts_is_explained_by_what_follows(tmp_path: Path) -> None:
    # A step begins with its first kernel, here a collective; the GEMM after it was launched late.
    builder = TraceBuilder()
    for order, at in enumerate(begins()):
        builder.nvtx(f"training_step_{order}", at - 100 if order else 0, at - 100 + STEP)
        builder.kernel(ALL_GATHER, at, at + 50 * US, stream=20, launched=max(at - 90, 0))
        builder.kernel(GEMM, at + 50 * US, at + BUSY, launched=max(at - 80, 0))
        builder.kernel(ALL_GATHER, at + 700 * US, at + 720 * US, stream=20, launched=at + 10)
        builder.api("cudaMalloc_v3020", at + 400 * US, at + 600 * US)
    assert causes(tmp_path, builder) == {
        ("starved_allocating", "cudaMalloc"): 200,
        ("starved_nothing_visible", ""): 500,
        ("launch_latency", ""): 50,
    }


def test_a_gap_that_the_capture_ends_is_explained_by_nothing(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.kernel(GEMM, 1, 1 + 400 * US, launched=0).copy(2, 900 * US, STEP, stream=9)
    rank = measure(builder.write(tmp_path / "trace.sqlite")).ranks[0]
    assert [(gap.cause, gap.detail) for gap in rank.gap_causes] == [("unexplained", "no compute follows")]
    assert rank.gap_causes[0].ns == STEP - 1 - 400 * US


def test_more_details_than_a_sweep_can_distinguish_share_one(tmp_path: Path) -> None:
    builder = three_steps(next_launched=100)
    for at in begins():
        for order in range(80):
            begin = at + BUSY + order * 6 * US
            builder.copy(8, begin, begin + 3 * US + order, stream=100 + order, launched=at + 10, memory=(2, 2))
            builder.record_event(5 + order, stream=100 + order, called=at + 20)
            builder.wait_event(5 + order, stream=7, called=at + 30)
    report = measure(builder.write(tmp_path / "trace.sqlite"))
    details = [gap.detail for gap in report.ranks[0].gap_causes if gap.cause == "blocking"]
    assert "other" in details and len(details) < 62
    assert sum(gap.ns for gap in report.ranks[0].gap_causes) == absent_ns(report.ranks[0])
