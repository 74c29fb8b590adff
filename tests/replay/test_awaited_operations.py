"""Which operation each blocking call waited for, found in time that grows with the calls and operations alone."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from tests.linear_work import assert_linear
from three_walls.replay.awaited_operations import find_awaited
from three_walls.replay.host_chains import CALLS
from three_walls.trace.schemas import Int64Array

STREAM = 7
BY_NAME = ("cudaStreamSynchronize_v3020", "cudaEventSynchronize_v3020", "cudaDeviceSynchronize_v3020")


def launches_and_waits(
    count: int, name: str, stream: int = STREAM
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame, Int64Array]:
    """The arguments of find_awaited: ``count`` times a launch, the record of an event, and a wait for the kernel."""
    at_ns = 100 * np.arange(count)
    rows = (
        ("cudaLaunchKernel_v7000", "launch", at_ns, at_ns + 5),
        ("cudaEventRecord_v3020", "event_record", at_ns + 6, at_ns + 8),
        (name, "synchronize", at_ns + 10, at_ns + 60),
    )
    calls = pl.concat(
        pl.DataFrame({"start_ns": start, "end_ns": end, "correlation": 3 * np.arange(count) + part}).with_columns(
            rank=pl.lit(0), thread=pl.lit(1), name=pl.lit(called), kind=pl.lit(kind)
        )
        for part, (called, kind, start, end) in enumerate(rows)
    ).sort("start_ns")
    operations = pl.DataFrame({"start_ns": at_ns + 20, "end_ns": at_ns + 50, "stream": np.full(count, STREAM)})
    waits = pl.DataFrame({"correlation": 3 * np.arange(count) + 2, "stream": np.full(count, stream)})
    typed = calls.select(pl.col(column).cast(dtype) for column, dtype in CALLS.items())
    return typed, operations, waits, 3 * np.arange(count)


@pytest.mark.parametrize("name", BY_NAME)
def test_a_blocking_call_waits_for_the_kernel_that_ended_last_before_it_returned(name: str) -> None:
    waiting, awaited = find_awaited(*launches_and_waits(3, name))
    assert waiting.tolist() == [2, 5, 8]
    assert awaited.tolist() == [0, 1, 2]


def test_a_call_that_waits_for_a_stream_without_kernels_waits_for_none() -> None:
    waiting, _ = find_awaited(*launches_and_waits(3, BY_NAME[0], stream=STREAM + 1))
    assert waiting.tolist() == []


def test_a_call_that_waits_for_a_kernel_launched_after_it_waits_for_none() -> None:
    calls, operations, waits, call_of = launches_and_waits(1, BY_NAME[2])
    waiting, _ = find_awaited(calls.with_columns(start_ns=pl.lit(0)), operations, waits, call_of)
    assert waiting.tolist() == []


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_NAME)
def test_twice_the_calls_and_kernels_take_twice_the_time(name: str) -> None:
    assert_linear(lambda count: launches_and_waits(count, name), lambda step: find_awaited(*step), 4000, 100_000)
