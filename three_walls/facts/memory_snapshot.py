"""Facts of a memory snapshot, beside those of the trace."""

from __future__ import annotations

from three_walls.model.fact import Fact, FactSheet
from three_walls.model.memory_snapshot import MemorySnapshot

_NOT_GIVEN = "no memory snapshot was given (--memory-snapshot)"
_NOTHING_RESERVED = "the allocator held no memory at the peak"


def with_snapshot_facts(facts: FactSheet, snapshot: MemorySnapshot | None) -> FactSheet:
    """``facts`` with those of ``snapshot``; missing with the reason where it has none."""
    values = (
        ("snapshot_peak_allocated_bytes", "bytes", snapshot.peak_allocated_bytes if snapshot else None),
        ("snapshot_peak_reserved_bytes", "bytes", snapshot.peak_reserved_bytes if snapshot else None),
        ("snapshot_fragmentation_fraction", "fraction", snapshot.fragmentation_fraction if snapshot else None),
    )
    reason = (snapshot.no_peak_reason or _NOTHING_RESERVED) if snapshot else _NOT_GIVEN
    own = [Fact(name, value, unit, reason if value is None else None) for name, unit, value in values]
    replaced = {fact.name: fact for fact in own}
    merged = [replaced.pop(fact.name, fact) for fact in facts.facts.values()]
    return FactSheet.of([*merged, *replaced.values()], facts.environment_is_known)
