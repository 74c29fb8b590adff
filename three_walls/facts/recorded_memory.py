"""Device memory as recorded: by the driver, inside steps, in a PyTorch snapshot; and whether the run is short of it.

PyTorch's caching allocator takes memory from the driver in warm-up and keeps it. Where it still calls the driver in a
steady step, it releases cached blocks to make room (a retry), or the step's needs grew: either stalls the device.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import polars as pl

from three_walls.facts.memory_estimate import NO_DEVICE_MEMORY
from three_walls.lib.declare import artifact, fact
from three_walls.lib.measurement import Measurement, known, known_or_missing, missing
from three_walls.memory_snapshot.snapshot import MemorySnapshot
from three_walls.step.step_tables import Steps
from three_walls.step.step_view import RunView, StepView
from three_walls.tables.kernel_names import load_api_patterns, union_of
from three_walls.trace.capabilities import YES
from three_walls.trace.read_inputs import Inputs

NEAR_LIMIT_FRACTION = 0.9
"""Of the device's memory, allocated: above it memory is short. In addition to what PyTorch allocates, the CUDA context,
NCCL and libraries held 3.6 GiB of 140 in a run that ran out of memory, and 6 GiB were lost to fragmentation: 7%.
Routing that shifts by some percent uses up the rest."""
RESERVED_LIMIT_FRACTION = 0.95
"""Of the device's memory, reserved: above it memory is short. Memory outside of PyTorch's allocator (3.6 GiB of 140)
leaves nothing more to reserve: the next new block makes the allocator release its cache."""

DEVICE_KINDS = (2, 3, 5)
"""ENUM_CUDA_MEM_KIND: device, array, device static."""
FREED = 1
"""ENUM_CUDA_DEV_MEM_EVENT_OPER: deallocation."""

T = TypeVar("T")

OUT_OF_MEMORY = "out_of_memory"
ALLOCATOR_RETRIES = "allocator_retries"
NEAR_LIMIT = "near_limit"
FRAGMENTED = "fragmented"
NONE = "none"

Allocations = Annotated[pl.DataFrame, {"start_ns": pl.Int64, "change": pl.Int64}]  # bytes; below 0 if freed
"""By how much the device memory of the rank's process changed, in order."""


@artifact
def allocations(step: StepView) -> Measurement[Allocations]:
    """What the driver allocated and freed for the rank's process in the capture."""
    trace, rank = step.trace, step.rank
    if trace.capabilities["gpu_memory_usage"] != YES:
        return missing(trace.capabilities["gpu_memory_usage"])
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
    return missing("no allocation of device memory was recorded") if events.is_empty() else known(events)


@artifact
def memory_snapshot(inputs: Inputs) -> Measurement[MemorySnapshot]:
    """The snapshot that was given."""
    return known_or_missing(inputs.snapshot, "no memory snapshot was given (--memory-snapshot)")


@fact("text", "memory pressure")
def memory_pressure(
    run: RunView,
    log_oom_count: Measurement[int],
    log_allocator_retries_count: Measurement[int],
    memory_peak_bytes: Measurement[int],
    log_reserved_memory_bytes: Measurement[int],
    allocator_calls_in_steps_count: Measurement[int],
) -> Measurement[str]:
    """The gravest sign in the log that device memory is short: out_of_memory, allocator_retries, near_limit (peak of
    allocated memory), fragmented (peak of reserved memory alone) or none. Without a log it is none where no step called
    the driver's allocator.

    Not the same as: The fraction of memory in use: without a log a run near its limit counts as none.
    """
    # A peak of reserved memory near the limit counts least: with little of it allocated, the rest is fragmented.
    if log_oom_count.value:
        return known(OUT_OF_MEMORY)
    if log_allocator_retries_count.value:
        return known(ALLOCATOR_RETRIES)
    allocated, reserved = memory_peak_bytes.value, log_reserved_memory_bytes.value
    if allocated is None:
        had_room = allocator_calls_in_steps_count.value == 0
        return known(NONE) if had_room else missing(str(memory_peak_bytes.missing_reason))
    device = run.device.memory_bytes if run.device else None
    if not device:
        return missing(NO_DEVICE_MEMORY)
    if allocated / device >= NEAR_LIMIT_FRACTION:
        return known(NEAR_LIMIT)
    if reserved is not None and reserved / device >= RESERVED_LIMIT_FRACTION:
        return known(FRAGMENTED)
    return known(NONE)


@fact("bytes", "peak memory allocated by the driver", needs=("gpu_memory_usage",))
def driver_peak_bytes(allocations: Allocations) -> int:
    """Most device memory that the driver had allocated (cudaMalloc) for the process at one moment of the capture.

    Not the same as: Memory in use by tensors: PyTorch keeps what it frees. It is also a lower bound: what was allocated
    before the capture is listed incompletely.
    """
    return int(max(allocations["change"].cum_sum().to_list()))


@fact("bytes", "growth of driver-allocated memory in steps", needs=("gpu_memory_usage",))
def driver_growth_in_steps_bytes(step: StepView, allocations: Allocations) -> int:
    """Device memory that the driver allocated less what it freed, in all kept steps of the rank."""
    return int(_in_steps(allocations, step.kept_steps)["change"].sum())


@fact("count", "the number of driver allocator calls in steps", needs=("api_calls",))
def allocator_calls_in_steps_count(step: StepView) -> Measurement[int]:
    """Calls that allocate or free device memory through the driver (cudaMalloc, cudaFree, ...), in all kept steps of
    the rank: a steady step needs none."""
    trace = step.trace
    if trace.capabilities["api_calls"] != YES:
        return missing(trace.capabilities["api_calls"])
    allocate = union_of(load_api_patterns(), "allocate")
    calls = trace.api_calls.named(lambda name: allocate.search(name) is not None).frame("process", "start_ns")
    own = calls.filter(pl.col("process") == step.rank.process)
    return known(_in_steps(own, step.kept_steps).height)


@fact("bytes", "the snapshot's peak of allocated memory")
def snapshot_peak_allocated_bytes(memory_snapshot: MemorySnapshot) -> Measurement[int]:
    """Most memory that tensors asked for at one moment of a recorded allocator history (--memory-snapshot).

    Not the same as: What the allocator reserves: it rounds up and keeps what was freed.
    """
    return _of_peak(memory_snapshot.peak_allocated_bytes, memory_snapshot)


@fact("bytes", "the snapshot's peak of reserved memory")
def snapshot_peak_reserved_bytes(memory_snapshot: MemorySnapshot) -> Measurement[int]:
    """Most device memory that PyTorch's allocator reserved at one moment of a recorded history (--memory-snapshot).

    Not the same as: Memory of the whole device: NCCL, cuBLAS and the driver allocate theirs outside the allocator.
    """
    return _of_peak(memory_snapshot.peak_reserved_bytes, memory_snapshot)


@fact("fraction", "unallocated memory at the snapshot's peak", whole="the allocator's reserved memory")
def snapshot_fragmentation_fraction(memory_snapshot: MemorySnapshot) -> Measurement[float]:
    """Fraction of the reserved memory that was not allocated when most memory was allocated (--memory-snapshot)."""
    return _of_peak(memory_snapshot.fragmentation_fraction, memory_snapshot)


def _of_peak(value: T | None, snapshot: MemorySnapshot) -> Measurement[T]:
    return known_or_missing(value, snapshot.no_peak_reason or "the allocator reserved no memory at the peak")


def _in_steps(rows: pl.DataFrame, steps: Steps) -> pl.DataFrame:
    """``rows`` that start in one of ``steps``."""
    windows = steps.select("start_ns", "end_ns").rows()
    in_some = [pl.col("start_ns").is_between(start, end, closed="left") for start, end in windows]
    return rows.filter(pl.any_horizontal(pl.lit(value=False), *in_some))
