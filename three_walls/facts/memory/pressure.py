"""Whether the run is short of device memory, by its training log or by its steps."""

from __future__ import annotations

from three_walls.facts.layout import GPU_MEMORY
from three_walls.facts.log_facts import LOG_ALLOCATOR_RETRIES, LOG_OOMS, LOG_RESERVED_MEMORY
from three_walls.facts.memory.estimate import MEMORY_PEAK, NO_DEVICE_MEMORY
from three_walls.facts.memory.recorded import ALLOCATOR_CALLS
from three_walls.model.fact import FactDefinition, FactGroup, Measurement, Measurements, known, missing
from three_walls.tables.thresholds import LogThresholds

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
    "allocated memory), fragmented (peak of reserved memory alone) or none. Limits: tables/log.yaml. Without a log it "
    "is none where no step called the driver's allocator.",
    "The fraction of memory in use: without a log a run near its limit counts as none.",
)


def classify_memory_pressure(measured: Measurements, limits: LogThresholds) -> Measurement[str]:
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
    if allocated / device >= limits.near_limit_fraction:
        return known(NEAR_LIMIT)
    if reserved is not None and reserved / device >= limits.reserved_limit_fraction:
        return known(FRAGMENTED)
    return known(NONE)
