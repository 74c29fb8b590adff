"""Summarizes a memory snapshot: the peak, its shares by category, its largest allocation sites.

``tables/allocation-stacks.yaml`` says what an allocation is for, by the stack that allocated it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import groupby, islice
from pathlib import Path
from typing import Annotated

from three_walls.lib.load_documents import Pattern, Text, load_table, one_of
from three_walls.lib.resources import TABLES_DIR
from three_walls.memory_snapshot.read_snapshot import Event, Frames, Live, load_snapshot
from three_walls.memory_snapshot.snapshot import (
    BEFORE_RECORDING,
    CATEGORIES,
    NO_STACK,
    OTHER,
    AllocationSite,
    MemoryMoment,
    MemoryShare,
    MemorySnapshot,
)

_RESERVES = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
"""Action of an event -> sign of the change of reserved memory."""
_MOST_SITES = 10
_MOST_MOMENTS = 240
"""Stretches of the history: more than a chart can tell apart."""
_SITE_FRAMES = 4
_NO_HISTORY = (
    "the allocator's history was not recorded; record it with torch.cuda.memory._record_memory_history, with "
    "profiling.record_memory_history=true in Megatron-Bridge 0.4 or newer (older releases write a snapshot without "
    "history), or with --record-memory-history in Megatron-LM"
)
_OF_STACKS = tuple(name for name in CATEGORIES if name not in (NO_STACK, OTHER, BEFORE_RECORDING))


@dataclass(frozen=True, slots=True)
class StackPattern:
    """Allocations with a frame in which ``pattern`` is found are of ``category``."""

    category: Annotated[Text, one_of(_OF_STACKS)]
    pattern: Pattern
    reason: Text
    """What allocates there."""


@dataclass(frozen=True)
class AllocationStacks:
    """``allocation-stacks.yaml``. Frames are written ``<directory>/<file>:<function>``, innermost first."""

    stacks: tuple[StackPattern, ...]
    """In order of precedence."""
    ignored: tuple[Pattern, ...]
    """Frames that do not show what allocates."""

    @cached_property
    def _first_match(self) -> dict[str, int]:
        """Frame -> the first row whose pattern it matches; the number of rows where it matches none."""
        return {}

    def category(self, frames: Frames | None) -> str:
        """The category of an allocation with this stack. Each frame is searched once, however many stacks hold it."""
        if not frames:
            return BEFORE_RECORDING if frames is None else NO_STACK
        rows = self._first_match
        for frame in frames:
            if frame not in rows:
                matching = (index for index, row in enumerate(self.stacks) if row.pattern.search(frame))
                rows[frame] = next(matching, len(self.stacks))
        first = min(rows[frame] for frame in frames)
        return self.stacks[first].category if first < len(self.stacks) else OTHER

    def site(self, frames: Frames) -> tuple[str, ...]:
        """The innermost frames that show who allocates, without directories."""
        allocating = (frame for frame in frames if not any(pattern.search(frame) for pattern in self.ignored))
        innermost = tuple(islice(allocating, _SITE_FRAMES)) or frames[:_SITE_FRAMES]
        return tuple(frame.rpartition("/")[2] for frame in innermost)


@cache
def allocation_stacks() -> AllocationStacks:
    """The table that ships with the program."""
    return load_table(TABLES_DIR / "allocation-stacks.yaml", AllocationStacks)


def read_memory_snapshot(path: Path) -> MemorySnapshot:
    """The summary of the snapshot in ``path``; raises InputError as :func:`load_snapshot` does."""
    snapshot = load_snapshot(path)
    peak = None
    if any(event.action == "alloc" for event in snapshot.events):
        peak = find_peak(snapshot.events, snapshot.in_use, snapshot.reserved_bytes)
    stacks = _sum_by_stack(snapshot.in_use.values() if peak is None else peak.live)
    return MemorySnapshot(
        path_name=path.name,
        sha256=snapshot.sha256,
        device=snapshot.device,
        no_peak_reason=_NO_HISTORY if peak is None else None,
        peak_allocated_bytes=peak.allocated_bytes if peak else None,
        reserved_at_peak_bytes=peak.reserved_then_bytes if peak else None,
        peak_reserved_bytes=peak.reserved_bytes if peak else None,
        fragmentation_fraction=_fragmentation_fraction(peak),
        allocated_bytes=sum(block.size_bytes for block in snapshot.in_use.values()),
        reserved_bytes=snapshot.reserved_bytes,
        largest_free_block_bytes=snapshot.largest_free_bytes,
        shares=_shares(stacks),
        sites=_sites(stacks),
        failures=snapshot.failures,
        release_count=count_releases(snapshot.events),
        history=peak.history if peak else (),
    )


@dataclass(frozen=True, slots=True)
class Peak:
    """The first moment with the most allocated memory."""

    allocated_bytes: int
    reserved_then_bytes: int
    """Reserved at that moment."""
    reserved_bytes: int
    """The most that was ever reserved, which may be at another moment."""
    live: tuple[Live, ...]
    """The blocks in use at that moment."""
    history: tuple[MemoryMoment, ...]
    """The most memory in each stretch of the events."""


def find_peak(events: Sequence[Event], at_end: Mapping[int, Live], reserved_at_end_bytes: int) -> Peak:
    """Replays the events. ``at_end``: the blocks in use when the snapshot was taken, by address.

    The recording is a ring buffer: it may begin long after the program did, but it ends with the snapshot, whose blocks
    are known. So the state at its beginning follows from undoing every event.
    """
    live = _undo(events, at_end)
    allocated = sum(block.size_bytes for block in live.values())
    reserved = reserved_at_end_bytes - sum(_RESERVES.get(event.action, 0) * event.size_bytes for event in events)
    most_allocated, events_before_peak, reserved_then, most_reserved = allocated, 0, reserved, reserved
    sizes = {address: block.size_bytes for address, block in live.items()}
    stretch = -(-len(events) // _MOST_MOMENTS)
    history: list[MemoryMoment] = []
    highest, highest_reserved = allocated, reserved
    for count, event in enumerate(events, start=1):
        if event.action in _RESERVES:
            reserved += _RESERVES[event.action] * event.size_bytes
            most_reserved = max(most_reserved, reserved)
        allocated += _apply(event, sizes)
        if allocated > most_allocated:
            most_allocated, events_before_peak, reserved_then = allocated, count, reserved
        highest, highest_reserved = max(highest, allocated), max(highest_reserved, reserved)
        if count % stretch == 0 or count == len(events):
            history.append(MemoryMoment(count, highest, highest_reserved))
            highest, highest_reserved = allocated, reserved
    for event in events[:events_before_peak]:
        if event.action == "alloc":
            live[event.address] = Live(event.size_bytes, event.frames)
        elif event.action == "free_requested":
            live.pop(event.address, None)
    return Peak(most_allocated, reserved_then, most_reserved, tuple(live.values()), tuple(history))


def _undo(events: Sequence[Event], at_end: Mapping[int, Live]) -> dict[int, Live]:
    """The blocks in use before the first event, by address."""
    live = dict(at_end)
    for event in reversed(events):
        if event.action == "alloc":
            live.pop(event.address, None)
        elif event.action == "free_requested":
            live[event.address] = Live(event.size_bytes, None)
    return {address: Live(block.size_bytes, None) for address, block in live.items()}


def _apply(event: Event, sizes: dict[int, int]) -> int:
    """Applies ``event`` to ``sizes`` (address -> bytes of a block in use). Returns the change of allocated bytes."""
    if event.action == "alloc":
        before = sizes.get(event.address, 0)  # the recording may reuse an address without having freed it
        sizes[event.address] = event.size_bytes
        return event.size_bytes - before
    if event.action == "free_requested":
        return -sizes.pop(event.address, 0)
    return 0


def count_releases(events: Sequence[Event]) -> int:
    """How often the allocator returned segments to the driver; several in a row count once."""
    are_releases = groupby(event.action in ("segment_free", "segment_unmap") for event in events)
    return sum(is_release for is_release, _ in are_releases)


def _fragmentation_fraction(peak: Peak | None) -> float | None:
    """The part of the memory reserved at the peak that was not allocated."""
    if peak is None or peak.reserved_then_bytes <= 0:
        return None
    return max(0.0, (peak.reserved_then_bytes - peak.allocated_bytes) / peak.reserved_then_bytes)


def _sum_by_stack(live: Iterable[Live]) -> list[tuple[Frames | None, int, int]]:
    """(stack, its bytes, its blocks), each stack once. A snapshot of a million blocks has thousands of stacks."""
    sums: dict[int, tuple[Frames | None, int, int]] = {}
    for block in live:  # shared stacks are one object: hashing one visits all of its frames
        _, size, count = sums.get(id(block.frames), (None, 0, 0))
        sums[id(block.frames)] = block.frames, size + block.size_bytes, count + 1
    return list(sums.values())


def _shares(stacks: Iterable[tuple[Frames | None, int, int]]) -> tuple[MemoryShare, ...]:
    """Allocated memory by category, largest first. The shares sum to all allocated memory."""
    sizes: dict[str, int] = {}
    for frames, size_bytes, _ in stacks:
        category = allocation_stacks().category(frames)
        sizes[category] = sizes.get(category, 0) + size_bytes
    total = sum(sizes.values())
    ordered = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
    return tuple(MemoryShare(name, size, size / total if total else 0.0) for name, size in ordered)


def _sites(stacks: Iterable[tuple[Frames | None, int, int]]) -> tuple[AllocationSite, ...]:
    """The stacks that hold the most memory, largest first."""
    sites: dict[tuple[tuple[str, ...], str], tuple[int, int]] = {}
    for frames, size_bytes, blocks in stacks:
        key = allocation_stacks().site(frames or ()), allocation_stacks().category(frames)
        size, count = sites.get(key, (0, 0))
        sites[key] = size + size_bytes, count + blocks
    ordered = sorted(sites.items(), key=lambda item: (-item[1][0], item[0]))
    return tuple(
        AllocationSite(stack, category, size, count) for (stack, category), (size, count) in ordered[:_MOST_SITES]
    )
