"""A snapshot -> what the report shows of it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from three_walls.inputs.memory_snapshot.history import Live, Peak, count_releases, find_peak
from three_walls.inputs.memory_snapshot.load import Snapshot, load_snapshot
from three_walls.model.memory_snapshot import (
    BEFORE_RECORDING,
    AllocationSite,
    MemoryShare,
    MemorySnapshot,
    OutOfMemory,
)
from three_walls.tables.allocation_stacks import allocation_stacks

_MOST_SITES = 10
_SHOWN_FRAMES = 4
_NO_HISTORY = (
    "the allocator's history was not recorded (torch.cuda.memory._record_memory_history; "
    "profiling.record_memory_history=true of Megatron-Bridge 0.4 or newer, older ones write a snapshot without it; "
    "--record-memory-history of Megatron-LM)"
)


def read_memory_snapshot(path: Path) -> MemorySnapshot:
    """What ``path`` says; raises InputError where it is no snapshot."""
    return summarize_snapshot(path.name, load_snapshot(path))


def summarize_snapshot(name: str, snapshot: Snapshot) -> MemorySnapshot:
    peak = _peak_of(snapshot)
    live = tuple(snapshot.in_use.values()) if peak is None else peak.live
    return MemorySnapshot(
        path_name=name,
        sha256=snapshot.sha256,
        device=snapshot.device,
        no_peak_reason=_NO_HISTORY if peak is None else None,
        peak_allocated_bytes=peak.allocated_bytes if peak else None,
        reserved_at_peak_bytes=peak.reserved_then_bytes if peak else None,
        peak_reserved_bytes=peak.reserved_bytes if peak else None,
        fragmentation_fraction=_fragmentation(peak),
        allocated_bytes=sum(one.size_bytes for one in snapshot.in_use.values()),
        reserved_bytes=snapshot.reserved_bytes,
        largest_free_block_bytes=snapshot.largest_free_bytes,
        shares=_shares(live),
        sites=_sites(live),
        failures=tuple(OutOfMemory(requested, free) for requested, free in snapshot.failures),
        release_count=count_releases(snapshot.events),
    )


def _peak_of(snapshot: Snapshot) -> Peak | None:
    if not any(event.action == "alloc" for event in snapshot.events):
        return None
    return find_peak(snapshot.events, snapshot.in_use, snapshot.reserved_bytes)


def _fragmentation(peak: Peak | None) -> float | None:
    if peak is None or peak.reserved_then_bytes <= 0:
        return None
    return max(0.0, (peak.reserved_then_bytes - peak.allocated_bytes) / peak.reserved_then_bytes)


def _category(live: Live) -> str:
    return BEFORE_RECORDING if live.frames is None else allocation_stacks().category(live.frames)


def _shares(live: Iterable[Live]) -> tuple[MemoryShare, ...]:
    """Allocated memory by category, largest first; sums to all of it."""
    sizes: dict[str, int] = {}
    for one in live:
        category = _category(one)
        sizes[category] = sizes.get(category, 0) + one.size_bytes
    total = sum(sizes.values())
    ordered = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
    return tuple(MemoryShare(name, size, size / total if total else 0.0) for name, size in ordered)


def _sites(live: Iterable[Live]) -> tuple[AllocationSite, ...]:
    found: dict[tuple[tuple[str, ...], str], tuple[int, int]] = {}
    for one in live:
        key = _shown(one), _category(one)
        size, count = found.get(key, (0, 0))
        found[key] = size + one.size_bytes, count + 1
    ordered = sorted(found.items(), key=lambda item: (-item[1][0], item[0]))
    return tuple(
        AllocationSite(stack, category, size, count) for (stack, category), (size, count) in ordered[:_MOST_SITES]
    )


def _shown(live: Live) -> tuple[str, ...]:
    """The innermost frames that say who allocates, without directories."""
    frames = allocation_stacks().relevant(live.frames or ())[:_SHOWN_FRAMES] or list(live.frames or ())[:_SHOWN_FRAMES]
    return tuple(frame.rpartition("/")[2] for frame in frames)
