"""Why no compute ran: events that a stream waited for, identified by id, by order, by elimination, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_builder import ALL_GATHER, SEND_RECV, TraceBuilder

from tests.step.compute_gaps_traces import US, begins, causes, three_steps

pytestmark = pytest.mark.slow

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
    ("unexplained", "launched, nothing visible held it"): 50,
}


def test_an_event_blocks_while_its_producer_runs(tmp_path: Path) -> None:
    assert causes(tmp_path, waiting_for_an_exchange()) == BLOCKED


def test_without_event_sync_ids_the_last_record_before_the_wait_counts(tmp_path: Path) -> None:
    assert causes(tmp_path, waiting_for_an_exchange(), without=EVENT_SYNC) == BLOCKED


def test_waits_are_found_in_exports_that_number_them_differently(tmp_path: Path) -> None:
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


def test_an_event_whose_producer_cannot_be_identified_is_a_stall(tmp_path: Path) -> None:
    # The exchange ended long before the update began: it may have been the producer, or not.
    builder = three_steps(next_launched=100)
    for at in begins():
        builder.kernel(SEND_RECV, at + 200 * US, at + 700 * US, stream=20, launched=at + 10)
        builder.record_event(5, stream=20, called=at + 20, listed=False)
        builder.wait_event(5, stream=7, called=at + 30)
    assert causes(tmp_path, builder) == {
        ("dependency_stalled", "perhaps send_recv_ambiguous on stream 20"): 400,
        ("launch_latency", ""): 50,
        ("unexplained", "launched, nothing visible held it"): 50,
    }


def test_an_event_that_nothing_launched_can_have_recorded_is_a_stall(tmp_path: Path) -> None:
    builder = three_steps(next_launched=100)
    for at in begins():
        builder.wait_event(5, stream=7, called=at + 30)
    assert causes(tmp_path, builder) == {("dependency_stalled", "an event that is not listed"): 500}


def test_an_event_delays_no_operation_before_its_launch(tmp_path: Path) -> None:
    builder = three_steps(next_launched=780 * US)
    for at in begins():
        builder.wait_event(5, stream=7, called=at + 30)
    assert causes(tmp_path, builder) == {
        ("starved_nothing_visible", ""): 480,
        ("dependency_stalled", "an event that is not listed"): 20,
    }
