"""Device memory as recorded: by the driver, inside steps, in a PyTorch snapshot; and whether the run is short of it.

PyTorch's caching allocator takes memory from the driver in warm-up and keeps it. Where it still calls the driver in a
steady step, it releases cached blocks to make room (a retry), or the step's needs grew: either stalls the device.
"""

from __future__ import annotations

import re

import polars as pl

from three_walls.facts.log_facts import LOG_ALLOCATOR_RETRIES, LOG_OOMS, LOG_RESERVED_MEMORY
from three_walls.facts.memory_estimate import MEMORY_PEAK, NO_DEVICE_MEMORY
from three_walls.facts.run_layout import GPU_MEMORY
from three_walls.lib.fact import FactDefinition, FactGroup, Measurements
from three_walls.lib.measurement import Measurement, known, known_or_missing, missing
from three_walls.log import log_thresholds
from three_walls.memory_snapshot.snapshot import MemorySnapshot
from three_walls.step.step_view import StepView
from three_walls.trace.capabilities import YES

DEVICE_KINDS = (2, 3, 5)
"""ENUM_CUDA_MEM_KIND: device, array, device static."""
FREED = 1
"""ENUM_CUDA_DEV_MEM_EVENT_OPER: deallocation."""

OUT_OF_MEMORY = "out_of_memory"
ALLOCATOR_RETRIES = "allocator_retries"
NEAR_LIMIT = "near_limit"
FRAGMENTED = "fragmented"
NONE = "none"

facts = FactGroup()

MEMORY_PRESSURE = facts.fact(
    "memory_pressure",
    "text",
    "memory pressure",
    "The gravest sign in the log that device memory is short: out_of_memory, allocator_retries, near_limit (peak of "
    "allocated memory), fragmented (peak of reserved memory alone) or none. Without a log it is none where no "
    "step called the driver's allocator.",
    "The fraction of memory in use: without a log a run near its limit counts as none.",
)
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
    calls = trace.api_calls.named(lambda name: allocate.search(name) is not None).frame("process", "start_ns")
    own = calls.filter(pl.col("process") == rank.process)
    return {**_measure_allocations(step), ALLOCATOR_CALLS: known(_in_steps(own, step.kept_steps).height)}


def _measure_allocations(step: StepView) -> Measurements:
    trace, rank = step.trace, step.rank
    if trace.capabilities["gpu_memory_usage"] != YES:
        return dict.fromkeys((DRIVER_PEAK, DRIVER_GROWTH), missing(trace.capabilities["gpu_memory_usage"]))
    # Events at time 0 are allocations from before the capture. Events of one instant are taken together.
    change = pl.when(pl.col("operation") == FREED).then(-pl.col("bytes")).otherwise(pl.col("bytes"))
    events = (
        trace.memory_events.filter(
            (pl.col("process") == rank.process)
            & (pl.col("device") == rank.device)
            & pl.col("memory_kind").is_in(DEVICE_KINDS)
        )
        .group_by("start_ns")
        .agg(change=change.sum())
        .sort("start_ns")
    )
    if events.is_empty():
        return dict.fromkeys((DRIVER_PEAK, DRIVER_GROWTH), missing("no allocation of device memory was recorded"))
    return {
        DRIVER_PEAK: known(max(events["change"].cum_sum().to_list())),
        DRIVER_GROWTH: known(int(_in_steps(events, step.kept_steps)["change"].sum())),
    }


def _in_steps(rows: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """``rows`` that start in one of ``steps``."""
    windows = steps.select("start_ns", "end_ns").rows()
    in_some = [pl.col("start_ns").is_between(start, end, closed="left") for start, end in windows]
    return rows.filter(pl.any_horizontal(pl.lit(value=False), *in_some))


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


def classify_memory_pressure(measured: Measurements) -> Measurement[str]:
    """The gravest sign of short memory among ``measured``.

    An out-of-memory error comes before allocations that had to be tried again, these before a peak of allocated memory
    near the limit, and that before a peak of reserved memory there: with little of it allocated, the rest is
    fragmented. Without a log, steps in which the allocator never called the driver had room.
    """

    def whole(definition: FactDefinition) -> int | None:
        return measured[definition].whole if definition in measured else None

    if whole(LOG_OOMS):
        return known(OUT_OF_MEMORY)
    if whole(LOG_ALLOCATOR_RETRIES):
        return known(ALLOCATOR_RETRIES)
    allocated, reserved, device = whole(MEMORY_PEAK), whole(LOG_RESERVED_MEMORY), whole(GPU_MEMORY)
    if allocated is None:
        had_room = whole(ALLOCATOR_CALLS) == 0
        return known(NONE) if had_room else missing(str(measured[MEMORY_PEAK].missing_reason))
    if not device:
        return missing(NO_DEVICE_MEMORY)
    if allocated / device >= log_thresholds.NEAR_LIMIT_FRACTION:
        return known(NEAR_LIMIT)
    if reserved is not None and reserved / device >= log_thresholds.RESERVED_LIMIT_FRACTION:
        return known(FRAGMENTED)
    return known(NONE)
