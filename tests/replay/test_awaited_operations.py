"""Which operation each blocking call waited for, found in time that grows with the calls and operations alone."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from tests.linear_work import assert_linear
from three_walls.replay.awaited_operations import find_awaited, find_queue_waits
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
    operations = pl.DataFrame(
        {"start_ns": at_ns + 20, "end_ns": at_ns + 50, "stream": np.full(count, STREAM)}
    ).with_columns(category=pl.lit("gemm"))
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


def calls_with_operations(*rows: tuple[str, int, int]) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame, Int64Array]:
    """Calls of 10 ns and what each launches. ``rows``: a category, and when the operation begins and ends."""
    start_ns = 100 * np.arange(len(rows))
    category, begin, end = zip(*rows, strict=True)
    calls = pl.DataFrame({"start_ns": start_ns, "end_ns": start_ns + 10}).with_columns(
        rank=pl.lit(0), thread=pl.lit(1), correlation=pl.int_range(pl.len()), name=pl.lit("cudaMemcpyAsync_v3020")
    )
    launches = pl.Series(category).is_in(["gemm"])
    kinds = calls.with_columns(kind=pl.when(launches).then(pl.lit("launch")).otherwise(pl.lit("copy")))
    operations = pl.DataFrame({"start_ns": start_ns + begin, "end_ns": start_ns + end, "category": category})
    typed = kinds.select(pl.col(column).cast(dtype) for column, dtype in CALLS.items())
    no_waits = pl.DataFrame(schema={"correlation": pl.Int64, "stream": pl.Int64})
    return typed, operations.with_columns(stream=pl.lit(STREAM)), no_waits, np.arange(len(rows))


@pytest.mark.parametrize("copy", ["copy_h2d_pageable", "copy_d2h_pageable"])
def test_a_pageable_copy_that_ends_before_its_call_returns_was_waited_for(copy: str) -> None:
    waiting, awaited = find_awaited(*calls_with_operations((copy, 2, 8), (copy, 2, 30)))
    assert (waiting.tolist(), awaited.tolist()) == ([0], [0])


@pytest.mark.parametrize("category", ["gemm", "memset", "copy_d2d", "copy_h2d_pinned"])
def test_what_ends_while_its_call_is_open_on_a_slow_host_was_not_waited_for(category: str) -> None:
    waiting, _ = find_awaited(*calls_with_operations((category, 2, 8), ("gemm", 2, 30)))
    assert waiting.tolist() == []


def test_launches_block_where_most_of_them_return_after_their_kernels() -> None:
    waiting, awaited = find_awaited(*calls_with_operations(("gemm", 2, 8), ("gemm", 2, 30), ("gemm", 3, 9)))
    assert (waiting.tolist(), awaited.tolist()) == ([0, 2], [0, 2])


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_NAME)
def test_twice_the_calls_and_kernels_take_twice_the_time(name: str) -> None:
    assert_linear(lambda count: launches_and_waits(count, name), lambda step: find_awaited(*step), 4000, 100_000)


MS = 1_000_000
QUEUE = 3
"""Places in the queue of these tests."""


@pytest.fixture(autouse=True)
def _short_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("step.selected_steps", "replay.awaited_operations"):
        monkeypatch.setattr(f"three_walls.{module}.FULL_QUEUE_OPERATIONS", QUEUE)


def launches(
    starts_ms: list[float], ends_ms: list[float], kernel_ends_ms: list[float]
) -> tuple[pl.DataFrame, pl.DataFrame, Int64Array]:
    """Calls that launch a kernel each on one stream; kernels take the time since the one before has ended."""
    of_calls = {"start_ns": starts_ms, "end_ns": ends_ms}
    calls = pl.DataFrame(of_calls, schema=dict.fromkeys(of_calls, pl.Float64)).select(
        (pl.col("start_ns", "end_ns") * MS).round().cast(pl.Int64),
        rank=0,
        thread=1,
        correlation=pl.int_range(pl.len()),
        name=pl.lit("cudaLaunchKernel_v7000"),
        kind=pl.lit("launch"),
    )
    kernel_starts_ms = [0.0, *kernel_ends_ms[:-1]]
    of_kernels = {"start_ns": kernel_starts_ms, "end_ns": kernel_ends_ms}
    operations = pl.DataFrame(of_kernels, schema=dict.fromkeys(of_kernels, pl.Float64)).select(
        (pl.col("start_ns", "end_ns") * MS).cast(pl.Int64), stream=7
    )
    typed = calls.select(pl.col(column).cast(dtype) for column, dtype in CALLS.items())
    return typed, operations, np.arange(len(starts_ms))


NOTHING_BEFORE = pl.DataFrame(schema=dict.fromkeys(("start_ns", "end_ns", "stream", "launch_start_ns"), pl.Int64))
FIVE_STARTS = [0, 0.01, 0.02, 0.03, 0.04]


def test_a_launch_behind_a_full_queue_waits_for_the_kernel_that_freed_a_place() -> None:
    # The fifth launch returns at 10.2 ms, when the first kernel has ended at 10 ms: kernels 1, 2 and 3 still wait.
    calls, operations, call_of = launches(FIVE_STARTS, [0.01, 0.02, 0.03, 0.04, 10.2], [10, 20, 30, 40, 50])
    waits = find_queue_waits(calls, operations, NOTHING_BEFORE, call_of)
    assert (waits.call.tolist(), waits.operation.tolist(), waits.is_carried.tolist()) == ([4], [0], [False])
    assert waits.after_ns.tolist() == [0.2 * MS]


def test_a_long_launch_with_places_free_waits_for_nothing() -> None:
    # It returns when two kernels wait before it; the queue has three places.
    calls, operations, call_of = launches([0, 0.01, 0.02, 0.03], [0.01, 0.02, 0.03, 10.2], [10, 20, 30, 40])
    assert find_queue_waits(calls, operations, NOTHING_BEFORE, call_of).call.tolist() == []


def test_short_launches_behind_a_full_queue_wait_for_nothing() -> None:
    calls, operations, call_of = launches(FIVE_STARTS, [0.01, 0.02, 0.03, 0.04, 0.05], [10, 20, 30, 40, 50])
    assert find_queue_waits(calls, operations, NOTHING_BEFORE, call_of).call.tolist() == []


def test_a_queue_full_of_the_step_before_waits_for_the_place_of_its_kernel_in_this_step() -> None:
    # Four kernels of the step before wait on the stream; the first launch returns when the first of them ends.
    calls, operations, call_of = launches([0, 1.1, 1.2, 1.3], [1.05, 1.11, 1.21, 1.31], [50, 60, 70, 80])
    ends = [1, 10, 20, 30]
    earlier = pl.DataFrame({"start_ns": [0, 1, 10, 20], "end_ns": ends, "launch_start_ns": [-4, -3, -2, -1]}).select(
        pl.all() * MS, stream=7
    )
    waits = find_queue_waits(calls, operations, earlier, call_of)
    assert (waits.call.tolist(), waits.is_carried.tolist()) == ([0], [True])
    assert waits.operation.tolist() == [0]  # the first of four, as the one that ended was
