"""A snapshot -> what the report shows of it: the peak, its shares by category, its largest allocation sites."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from three_walls.inputs.memory_snapshot.history import Live, Peak, count_releases, find_peak
from three_walls.inputs.memory_snapshot.load import load_snapshot
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
    """What the snapshot in ``path`` holds; raises InputError where it is none."""
    snapshot = load_snapshot(path)
    peak = None
    if any(event.action == "alloc" for event in snapshot.events):
        peak = find_peak(snapshot.events, snapshot.in_use, snapshot.reserved_bytes)
    live = tuple(snapshot.in_use.values()) if peak is None else peak.live
    return MemorySnapshot(
        path_name=path.name,
        sha256=snapshot.sha256,
        device=snapshot.device,
        because_no_peak=_NO_HISTORY if peak is None else None,
        peak_allocated_bytes=peak.allocated_bytes if peak else None,
        reserved_at_peak_bytes=peak.reserved_then_bytes if peak else None,
        peak_reserved_bytes=peak.reserved_bytes if peak else None,
        fragmentation_fraction=_fragmentation(peak),
        allocated_bytes=sum(block.size_bytes for block in snapshot.in_use.values()),
        reserved_bytes=snapshot.reserved_bytes,
        largest_free_block_bytes=snapshot.largest_free_bytes,
        shares=_shares(live),
        sites=_sites(live),
        failures=tuple(OutOfMemory(requested, free) for requested, free in snapshot.failures),
        release_count=count_releases(snapshot.events),
    )


def _fragmentation(peak: Peak | None) -> float | None:
    if peak is None or peak.reserved_then_bytes <= 0:
        return None
    return max(0.0, (peak.reserved_then_bytes - peak.allocated_bytes) / peak.reserved_then_bytes)


def _category(live: Live) -> str:
    return BEFORE_RECORDING if live.frames is None else allocation_stacks().category(live.frames)


def _shares(live: Iterable[Live]) -> tuple[MemoryShare, ...]:
    """Allocated memory by category, largest first; the shares sum to all of it."""
    sizes: dict[str, int] = {}
    for block in live:
        category = _category(block)
        sizes[category] = sizes.get(category, 0) + block.size_bytes
    total = sum(sizes.values())
    ordered = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
    return tuple(MemoryShare(name, size, size / total if total else 0.0) for name, size in ordered)


def _sites(live: Iterable[Live]) -> tuple[AllocationSite, ...]:
    """The stacks that hold the most memory, largest first."""
    found: dict[tuple[tuple[str, ...], str], tuple[int, int]] = {}
    for block in live:
        key = _shown_frames(block), _category(block)
        size, count = found.get(key, (0, 0))
        found[key] = size + block.size_bytes, count + 1
    ordered = sorted(found.items(), key=lambda item: (-item[1][0], item[0]))
    return tuple(
        AllocationSite(stack, category, size, count) for (stack, category), (size, count) in ordered[:_MOST_SITES]
    )


def _shown_frames(live: Live) -> tuple[str, ...]:
    """The innermost frames that show who allocates, without directories."""
    frames = allocation_stacks().relevant(live.frames or ())[:_SHOWN_FRAMES] or list(live.frames or ())[:_SHOWN_FRAMES]
    return tuple(frame.rpartition("/")[2] for frame in frames)
