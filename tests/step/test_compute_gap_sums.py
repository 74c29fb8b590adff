"""Why no compute ran: for any operations, calls and events the causes sum, whatever the order of rows."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import ADAM, ALL_GATHER, GEMM, POINTWISE, SEND_RECV, TraceBuilder

from tests.measured import measure
from tests.step.compute_gaps_traces import absent_ns
from three_walls.report.report import Report

pytestmark = pytest.mark.slow

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


@settings(max_examples=8, deadline=None)
@given(st.lists(device, max_size=15), st.lists(host, max_size=6), st.lists(event, max_size=8))
def test_the_causes_sum_to_the_time_without_compute(
    operations: list[tuple],  # type: ignore[type-arg]
    calls: list[tuple],  # type: ignore[type-arg]
    events: list[tuple],  # type: ignore[type-arg]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        builder = anything(operations, calls, events)
        first = measure(builder.write(Path(folder) / "first.sqlite"))
        shuffled = measure(builder.write(Path(folder) / "second.sqlite", shuffle=7))
        assert [gap.ns > 0 for gap in first.ranks[0].gap_causes].count(False) == 0
        assert sum(gap.ns for gap in first.ranks[0].gap_causes) == absent_ns(first.ranks[0])
        assert causes_of(first) == causes_of(shuffled)


def causes_of(report: Report) -> list[tuple[str, str, int]]:
    return [(gap.cause, gap.detail, gap.ns) for rank in report.ranks for gap in rank.gap_causes]
