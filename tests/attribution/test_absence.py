"""Why no compute ran: each cause by construction, and the sum for anything."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import ADAM, ALL_GATHER, GEMM, POINTWISE, SEND_RECV, TraceBuilder

from three_walls import analyze
from three_walls.attribution.absence_causes import LATENCY_NS, Cause
from three_walls.attribution.host_activity import DOING, kind_of
from three_walls.vocabulary.categories import BUCKET_BY_NAME, Group
from three_walls.vocabulary.report import RankReport, Report

US = 1_000
STEP = 1_000 * US
BUSY = 300 * US
"""Every step computes until here, and again from NEXT to its end."""
NEXT = 800 * US

Causes = dict[tuple[str, str], int]


def three_steps(next_launched: int | None, stream: int = 7) -> TraceBuilder:
    """Per step a product, a gap of 500 us, and an update launched at ``next_launched`` on ``stream``."""
    builder = TraceBuilder()
    for at in (1, 1 + STEP, 1 + 2 * STEP):
        builder.kernel(GEMM, at, at + BUSY, launched=max(at - 5 * US, 0))
        launched = None if next_launched is None else at + next_launched
        builder.kernel(ADAM, at + NEXT, at + STEP, launched=launched, stream=stream)
    return builder


def begins() -> tuple[int, ...]:
    return (1, 1 + STEP, 1 + 2 * STEP)


def causes(tmp_path: Path, builder: TraceBuilder, without: tuple[str, ...] = ()) -> Causes:
    """Causes of the one kept step, the second, in us."""
    report = analyze(builder.write(tmp_path / "trace.sqlite", without=without))
    rank = report.ranks[0]
    assert [(step.start_ns, step.end_ns) for step in rank.steps if step.kept] == [(1 + STEP, 1 + 2 * STEP)]
    assert sum(one.ns for one in rank.idle_causes) == absent_ns(rank)
    return {(one.cause, one.detail): round(one.ns / US) for one in rank.idle_causes if one.ns >= US}


def absent_ns(rank: RankReport) -> int:
    return sum(ns for name, ns in rank.budget_ns.items() if BUCKET_BY_NAME[name].group is not Group.COMPUTE)


def test_a_step_without_gaps_has_no_causes(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for at in begins():
        builder.kernel(GEMM, at, at + NEXT, launched=max(at - 9, 0))
        builder.kernel(ADAM, at + NEXT, at + STEP, launched=at + 1)
    assert causes(tmp_path, builder) == {}


def test_a_long_queue_is_no_starvation(tmp_path: Path) -> None:
    # The next operation was launched long before; what exceeds the usual latency has no visible cause.
    assert causes(tmp_path, three_steps(next_launched=10)) == {
        ("launch_latency", ""): LATENCY_NS // US,
        ("residual", "launched, nothing visible held it"): 500 - LATENCY_NS // US,
    }


def test_a_launch_that_was_not_recorded_leaves_the_gap_unexplained(tmp_path: Path) -> None:
    assert causes(tmp_path, three_steps(next_launched=None)) == {("residual", "launch not recorded"): 500}


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


def test_calls_that_say_nothing_are_nothing_visible() -> None:
    assert kind_of("cudaEventQuery_v3020") is None
    assert kind_of("cuKernelGetName") is None
    assert set(DOING.values()) == {str(one) for one in Cause if one.startswith("starved_")} - {
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


EVENT_SYNC = ("CUPTI_ACTIVITY_KIND_CUDA_EVENT.eventSyncId", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION.eventSyncId")


def waiting_for_an_exchange(kind: int = 2) -> TraceBuilder:
    """The update waits for an exchange on stream 20; the same event is recorded again, later, on stream 30."""
    builder = three_steps(next_launched=100)
    for order, at in enumerate(begins()):
        builder.kernel(SEND_RECV, at + 200 * US, at + 700 * US, stream=20, launched=at + 10)
        builder.record_event(5, stream=20, called=at + 20, sync=2 * order)
        builder.wait_event(5, stream=7, called=at + 30, sync=2 * order, kind=kind)
        builder.kernel(ALL_GATHER, at + 600 * US, at + 799 * US, stream=30, launched=at + 110)
        builder.record_event(5, stream=30, called=at + 120, sync=2 * order + 1)
    return builder


BLOCKED = {
    ("blocking", "send_recv_ambiguous on stream 20"): 400,
    ("launch_latency", ""): 50,
    ("residual", "launched, nothing visible held it"): 50,
}


def test_an_event_blocks_while_its_producer_runs(tmp_path: Path) -> None:
    assert causes(tmp_path, waiting_for_an_exchange()) == BLOCKED


def test_without_event_sync_ids_the_last_record_before_the_wait_counts(tmp_path: Path) -> None:
    assert causes(tmp_path, waiting_for_an_exchange(), without=EVENT_SYNC) == BLOCKED


def test_waits_are_found_in_exports_that_number_them_otherwise(tmp_path: Path) -> None:
    builder = waiting_for_an_exchange(kind=3)
    # There an event query has the number that a stream's wait has elsewhere, and no stream.
    builder.add(
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
        start=9,
        end=10,
        streamId=2**32 - 1,
        globalPid=builder.process,
        syncType=2,
    )
    assert causes(tmp_path, builder, without=EVENT_SYNC) == BLOCKED


def test_events_are_followed_across_streams(tmp_path: Path) -> None:
    """Exchange on 20, then a copy on 30 that waits for it, then the update that waits for the copy."""
    builder = three_steps(next_launched=100)
    for at in begins():
        builder.kernel(SEND_RECV, at + 200 * US, at + 700 * US, stream=20, launched=at + 10)
        builder.record_event(5, stream=20, called=at + 20)
        builder.wait_event(5, stream=30, called=at + 30)
        builder.copy(8, at + 701 * US, at + 790 * US, stream=30, launched=at + 40, memory=(2, 2))
        builder.record_event(6, stream=30, called=at + 50)
        builder.wait_event(6, stream=7, called=at + 60)
    assert causes(tmp_path, builder) == {
        ("blocking", "send_recv_ambiguous on stream 20"): 400,
        ("blocking", "copy_d2d on stream 30"): 89,
        ("launch_latency", ""): 11,
    }


def test_a_record_that_is_not_listed_is_found_by_elimination(tmp_path: Path) -> None:
    # The exchange is the last that stream 20 ran, and the update began at once after it.
    builder = three_steps(next_launched=100)
    for at in begins():
        builder.kernel(SEND_RECV, at + 200 * US, at + 795 * US, stream=20, launched=at + 10)
        builder.record_event(5, stream=20, called=at + 20, listed=False)
        builder.wait_event(5, stream=7, called=at + 30)
        builder.kernel(ALL_GATHER, at + 400 * US, at + 799 * US, stream=30, launched=at + 110)
    assert causes(tmp_path, builder) == {
        ("blocking", "send_recv_ambiguous on stream 20"): 495,
        ("launch_latency", ""): 5,
    }


def test_an_event_whose_producer_cannot_be_told_is_a_stall(tmp_path: Path) -> None:
    # The exchange ended long before the update began: it may have been the producer, or not.
    builder = three_steps(next_launched=100)
    for at in begins():
        builder.kernel(SEND_RECV, at + 200 * US, at + 700 * US, stream=20, launched=at + 10)
        builder.record_event(5, stream=20, called=at + 20, listed=False)
        builder.wait_event(5, stream=7, called=at + 30)
    assert causes(tmp_path, builder) == {
        ("dependency_stalled", "perhaps send_recv_ambiguous on stream 20"): 400,
        ("launch_latency", ""): 50,
        ("residual", "launched, nothing visible held it"): 50,
    }


def test_an_event_that_nothing_launched_can_have_recorded_is_a_stall(tmp_path: Path) -> None:
    builder = three_steps(next_launched=100)
    for at in begins():
        builder.wait_event(5, stream=7, called=at + 30)
    assert causes(tmp_path, builder) == {("dependency_stalled", "an event that is not listed"): 500}


def test_an_event_holds_nobody_before_the_launch(tmp_path: Path) -> None:
    builder = three_steps(next_launched=780 * US)
    for at in begins():
        builder.wait_event(5, stream=7, called=at + 30)
    assert causes(tmp_path, builder) == {
        ("starved_nothing_visible", ""): 480,
        ("dependency_stalled", "an event that is not listed"): 20,
    }


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
    # A step begins with its first kernel, here a collective; the product behind it was launched late.
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
    rank = analyze(builder.write(tmp_path / "trace.sqlite")).ranks[0]
    assert [(one.cause, one.detail) for one in rank.idle_causes] == [("residual", "no compute follows")]
    assert rank.idle_causes[0].ns == STEP - 1 - 400 * US


def test_more_details_than_a_sweep_can_tell_apart_share_one(tmp_path: Path) -> None:
    builder = three_steps(next_launched=100)
    for at in begins():
        for order in range(80):
            begin = at + BUSY + order * 6 * US
            builder.copy(8, begin, begin + 3 * US + order, stream=100 + order, launched=at + 10, memory=(2, 2))
            builder.record_event(5 + order, stream=100 + order, called=at + 20)
            builder.wait_event(5 + order, stream=7, called=at + 30)
    report = analyze(builder.write(tmp_path / "trace.sqlite"))
    details = [one.detail for one in report.ranks[0].idle_causes if one.cause == "blocking"]
    assert "other" in details and len(details) < 62
    assert sum(one.ns for one in report.ranks[0].idle_causes) == absent_ns(report.ranks[0])


NAMES = (GEMM, POINTWISE, SEND_RECV, ALL_GATHER, None)
CALLS = ("cudaStreamSynchronize_v3020", "cudaMalloc_v3020", "cudaMemsetAsync_v3020", "cudaEventQuery_v3020")
when = st.integers(1, 400)
device = st.tuples(
    st.sampled_from(NAMES), st.sampled_from((7, 20)), when, st.integers(0, 60), st.none() | st.integers(0, 300)
)
host = st.tuples(st.sampled_from(CALLS), when, st.integers(0, 80))
event = st.tuples(st.integers(1, 2), st.sampled_from((7, 20)), when, st.booleans(), st.booleans())


def anything(operations: list[tuple], calls: list[tuple], events: list[tuple]) -> TraceBuilder:  # type: ignore[type-arg]
    builder = TraceBuilder().kernel(GEMM, 1, 2).kernel(ADAM, 200, 210, launched=150).kernel(ADAM, 480, 490)
    for name, stream, start, length, ahead in operations:
        launched = None if ahead is None else max(start - ahead, 0)
        if name is None:
            builder.copy(1, start, start + length, stream=stream, launched=launched)
        else:
            builder.kernel(name, start, start + length, stream=stream, launched=launched)
    for name, start, length in calls:
        builder.api(name, start, start + length)
    for number, stream, called, records, listed in events:
        if records:
            builder.record_event(number, stream, called, listed=listed)
        else:
            builder.wait_event(number, stream, called)
    return builder


@settings(max_examples=60, deadline=None)
@given(st.lists(device, max_size=15), st.lists(host, max_size=6), st.lists(event, max_size=8))
def test_the_causes_sum_to_the_time_without_compute(
    operations: list[tuple],  # type: ignore[type-arg]
    calls: list[tuple],  # type: ignore[type-arg]
    events: list[tuple],  # type: ignore[type-arg]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        builder = anything(operations, calls, events)
        first = analyze(builder.write(Path(folder) / "first.sqlite"))
        shuffled = analyze(builder.write(Path(folder) / "second.sqlite", shuffle=7))
    assert [one.ns > 0 for one in first.ranks[0].idle_causes].count(False) == 0
    assert sum(one.ns for one in first.ranks[0].idle_causes) == absent_ns(first.ranks[0])
    assert causes_of(first) == causes_of(shuffled)


def causes_of(report: Report) -> list[tuple[str, str, int]]:
    return [(one.cause, one.detail, one.ns) for rank in report.ranks for one in rank.idle_causes]
