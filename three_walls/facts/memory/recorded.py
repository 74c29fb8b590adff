"""Device memory as recorded: allocations by the driver, calls of its allocator inside steps, a PyTorch snapshot.

PyTorch's caching allocator takes memory from the driver in warm-up and keeps it. Where it still calls the driver in a
steady step, it releases cached blocks to make room (a retry), or the step's needs grew: either stalls the device.
"""

from __future__ import annotations

import re

import polars as pl

from three_walls.facts.step_view import StepView
from three_walls.inputs.nsys.capabilities import YES
from three_walls.model.fact import FactGroup, Measurements, known, known_or_missing, missing
from three_walls.model.memory_snapshot import MemorySnapshot

DEVICE_KINDS = (2, 3, 5)
"""ENUM_CUDA_MEM_KIND: device, array, device static."""
FREED = 1
"""ENUM_CUDA_DEV_MEM_EVENT_OPER: deallocation."""

facts = FactGroup()

DRIVER_PEAK = facts.fact(
    "driver_peak_bytes",
    "bytes",
    "peak memory allocated by the driver",
    "Most device memory that the driver had allocated (cudaMalloc) for the process at one moment of the capture.",
    "Memory in use by tensors: PyTorch keeps what it frees. It is also a lower bound: what was allocated before the "
    "capture is listed incompletely.",
    needs=("gpu_memory_usage",),
)
DRIVER_GROWTH = facts.fact(
    "driver_growth_in_steps_bytes",
    "bytes",
    "growth of driver-allocated memory in steps",
    "Device memory that the driver allocated less what it freed, in all kept steps of the rank.",
    needs=("gpu_memory_usage",),
)
ALLOCATOR_CALLS = facts.fact(
    "allocator_calls_in_steps_count",
    "count",
    "the number of driver allocator calls in steps",
    "Calls that allocate or free device memory through the driver (cudaMalloc, cudaFree, ...), in all kept steps of "
    "the rank: a steady step needs none.",
    needs=("api_calls",),
)
SNAPSHOT_PEAK_ALLOCATED = facts.fact(
    "snapshot_peak_allocated_bytes",
    "bytes",
    "the snapshot's peak of allocated memory",
    "Most memory that tensors asked for at one moment of a recorded allocator history (--memory-snapshot).",
    "What the allocator reserves: it rounds up and keeps what was freed.",
)
SNAPSHOT_PEAK_RESERVED = facts.fact(
    "snapshot_peak_reserved_bytes",
    "bytes",
    "the snapshot's peak of reserved memory",
    "Most device memory that PyTorch's allocator reserved at one moment of a recorded history (--memory-snapshot).",
    "Memory of the whole device: NCCL, cuBLAS and the driver allocate theirs outside the allocator.",
)
SNAPSHOT_FRAGMENTATION = facts.fact(
    "snapshot_fragmentation_fraction",
    "fraction",
    "unallocated memory at the snapshot's peak",
    "Fraction of the reserved memory that was not allocated when most memory was allocated (--memory-snapshot).",
    whole="the allocator's reserved memory",
)


def measure_driver_memory(step: StepView, allocate: re.Pattern[str]) -> Measurements:
    """What the trace recorded of the rank. ``allocate``: names of calls that allocate or free memory."""
    trace, rank = step.trace, step.rank
    if trace.capabilities["api_calls"] != YES:
        return {**_measure_allocations(step), ALLOCATOR_CALLS: missing(trace.capabilities["api_calls"])}
    names = [name_id for name_id, name in trace.names.items() if allocate.search(name)]
    calls = trace.api_calls.filter((pl.col("process") == rank.process) & pl.col("name_id").is_in(names))
    count = sum(_within(calls, start, end).height for start, end in _windows(step.kept_steps))
    return {**_measure_allocations(step), ALLOCATOR_CALLS: known(count)}


def _measure_allocations(step: StepView) -> Measurements:
    trace, rank = step.trace, step.rank
    if trace.capabilities["gpu_memory_usage"] != YES:
        return dict.fromkeys((DRIVER_PEAK, DRIVER_GROWTH), missing(trace.capabilities["gpu_memory_usage"]))
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
        return dict.fromkeys((DRIVER_PEAK, DRIVER_GROWTH), missing("no allocation of device memory was recorded"))
    peak = max(events["change"].cum_sum().to_list())
    growth = sum(int(_within(events, start, end)["change"].sum()) for start, end in _windows(step.kept_steps))
    return {DRIVER_PEAK: known(int(peak)), DRIVER_GROWTH: known(growth)}


def measure_snapshot(snapshot: MemorySnapshot | None) -> Measurements:
    """What a memory snapshot gives; missing with the reason where it has no peak, or none was given."""
    if snapshot is None:
        reason = "no memory snapshot was given (--memory-snapshot)"
        return dict.fromkeys((SNAPSHOT_PEAK_ALLOCATED, SNAPSHOT_PEAK_RESERVED, SNAPSHOT_FRAGMENTATION), missing(reason))
    reason = snapshot.no_peak_reason or "the allocator reserved no memory at the peak"
    return {
        SNAPSHOT_PEAK_ALLOCATED: known_or_missing(snapshot.peak_allocated_bytes, reason),
        SNAPSHOT_PEAK_RESERVED: known_or_missing(snapshot.peak_reserved_bytes, reason),
        SNAPSHOT_FRAGMENTATION: known_or_missing(snapshot.fragmentation_fraction, reason),
    }


def _windows(steps: pl.DataFrame) -> list[tuple[int, int]]:
    return [(start, end) for start, end in steps.select("start_ns", "end_ns").rows()]


def _within(rows: pl.DataFrame, start: int, end: int) -> pl.DataFrame:
    return rows.filter(pl.col("start_ns").is_between(start, end, closed="left"))
