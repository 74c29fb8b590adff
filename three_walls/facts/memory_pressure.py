"""Whether the run is short of device memory, as its training log or its steps show it."""

from __future__ import annotations

from collections.abc import Mapping

from three_walls.model.fact import FactValue
from three_walls.tables.thresholds import LogThresholds

Known = tuple[FactValue, str | None]

OUT_OF_MEMORY = "out_of_memory"
ALLOCATOR_RETRIES = "allocator_retries"
NEAR_LIMIT = "near_limit"
FRAGMENTED = "fragmented"
NONE = "none"

_MISSING: Known = (None, "the step's facts hold no memory of the log")


def classify_memory_pressure(known: Mapping[str, Known], limits: LogThresholds) -> Known:
    """The gravest sign of short memory among the log's facts, as a word, or (None, why it cannot be told).

    A report of memory exhausted comes before allocations that had to be tried again, these before a peak of
    allocated memory near the limit, and that before a peak of reserved memory there: with little of it allocated,
    the rest lies in fragments. Without a log, steps in which the allocator never called the driver had room.
    """
    if _number(known, "log_oom_count"):
        return OUT_OF_MEMORY, None
    if _number(known, "log_allocator_retries_count"):
        return ALLOCATOR_RETRIES, None
    allocated, reserved, device = (
        _number(known, name) for name in ("memory_peak_bytes", "log_reserved_memory_bytes", "gpu.memory_bytes")
    )
    if allocated is None and _number(known, "allocator_calls_in_steps_count") == 0:
        return NONE, None
    if allocated is None:
        return None, known.get("memory_peak_bytes", _MISSING)[1]
    if not device:
        return None, "the trace does not say how much memory the GPU has"
    if allocated / device >= limits.near_limit_fraction:
        return NEAR_LIMIT, None
    if reserved is not None and reserved / device >= limits.reserved_limit_fraction:
        return FRAGMENTED, None
    return NONE, None


def _number(known: Mapping[str, Known], name: str) -> int | None:
    value = known.get(name, _MISSING)[0]
    return value if isinstance(value, int) else None
