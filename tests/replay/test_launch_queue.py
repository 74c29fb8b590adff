"""Launches that waited for a place in the launch queue, and for which operation."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from three_walls.replay.host_chains import CALLS
from three_walls.replay.launch_queue import find_queue_waits
from three_walls.trace.schemas import Int64Array

MS = 1_000_000
QUEUE = 3
"""Places in the queue of these tests."""


@pytest.fixture(autouse=True)
def _short_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("three_walls.step.timeline_thresholds.FULL_QUEUE_OPERATIONS", QUEUE)


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
