"""Device memory that the process holds through the driver, and calls of the driver's allocator inside steps.

PyTorch's caching allocator takes memory from the driver in warm-up and keeps it. Where it still calls the driver in a
steady step, it gives cached blocks back to make room (a retry), or the step's needs grew: either stalls the device.
"""

from __future__ import annotations

import re

import polars as pl

from three_walls.inputs.nsys.capabilities import YES
from three_walls.inputs.nsys.identity import Rank
from three_walls.inputs.nsys.reader import Trace
from three_walls.model.fact import FactValue

Known = tuple[FactValue, str | None]

DEVICE_KINDS = (2, 3, 5)
"""ENUM_CUDA_MEM_KIND: device, array, device static."""
FREED = 1
"""ENUM_CUDA_DEV_MEM_EVENT_OPER: deallocation."""


def measure_driver_memory(trace: Trace, rank: Rank, steps: pl.DataFrame, allocate: re.Pattern[str]) -> dict[str, Known]:
    """Facts of one rank. ``steps``: its kept steps; ``allocate``: names of calls that take or give back memory."""
    facts = _held(trace, rank, steps)
    if trace.capabilities["api_calls"] != YES:
        facts["allocator_calls_in_steps_count"] = (None, trace.capabilities["api_calls"])
        return facts
    names = [number for number, name in trace.names.items() if allocate.search(name)]
    calls = trace.api_calls.filter((pl.col("process") == rank.process) & pl.col("name_id").is_in(names))
    facts["allocator_calls_in_steps_count"] = (_count_within(calls, steps), None)
    return facts


def _held(trace: Trace, rank: Rank, steps: pl.DataFrame) -> dict[str, Known]:
    names = ("driver_peak_bytes", "driver_growth_in_steps_bytes")
    if trace.capabilities["gpu_memory_usage"] != YES:
        return dict.fromkeys(names, (None, trace.capabilities["gpu_memory_usage"]))
    # Events at time 0 are allocations from before the capture; those of one instant are taken together.
    change = (
        pl.when(pl.col("operation") == FREED).then(-pl.col("bytes")).otherwise(pl.col("bytes")).sum().alias("change")
    )
    events = (
        trace.memory_events.filter(
            (pl.col("process") == rank.process)
            & (pl.col("device") == rank.device)
            & pl.col("memory_kind").is_in(DEVICE_KINDS)
        )
        .group_by("start_ns")
        .agg(change)
        .sort("start_ns")
    )
    if events.is_empty():
        return dict.fromkeys(names, (None, "no allocation of device memory was recorded"))
    held = events["change"].cum_sum()
    growth = sum(
        int(events.filter(pl.col("start_ns").is_between(start, end, closed="left"))["change"].sum())
        for start, end in steps.select("start_ns", "end_ns").rows()
    )
    return {names[0]: (int(held.max()), None), names[1]: (growth, None)}  # type: ignore[arg-type]  # it is not empty


def _count_within(calls: pl.DataFrame, steps: pl.DataFrame) -> int:
    return sum(
        calls.filter(pl.col("start_ns").is_between(start, end, closed="left")).height
        for start, end in steps.select("start_ns", "end_ns").rows()
    )
