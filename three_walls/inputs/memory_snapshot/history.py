"""Replays what the allocator did: how much was in use when, and what was alive at the peak.

The recording is a ring: it may begin long after the program. It ends with the snapshot, whose blocks are known, so the
state at its beginning follows from undoing every event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Frames = tuple[str, ...]

_RESERVES = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


@dataclass(frozen=True, slots=True)
class Event:
    """An allocator event; ``frames`` is empty where the entry has no stack."""

    action: str
    address: int
    size_bytes: int
    frames: Frames


@dataclass(frozen=True, slots=True)
class Live:
    """A block in use: its requested size and who allocated it; None: before the recording."""

    size_bytes: int
    frames: Frames | None


@dataclass(frozen=True, slots=True)
class Peak:
    allocated_bytes: int
    reserved_then_bytes: int
    reserved_bytes: int
    """The most that was ever reserved; not always at the same moment."""
    live: tuple[Live, ...]


def find_peak(events: Sequence[Event], at_end: Mapping[int, Live], reserved_at_end_bytes: int) -> Peak:
    """The first moment with the most allocated memory. ``at_end``: blocks in use at the snapshot, by address."""
    live = _undo(events, at_end)
    allocated = sum(block.size_bytes for block in live.values())
    reserved = reserved_at_end_bytes - sum(_RESERVES.get(event.action, 0) * event.size_bytes for event in events)
    most_allocated, events_before_peak, reserved_then, most_reserved = allocated, 0, reserved, reserved
    sizes = {address: block.size_bytes for address, block in live.items()}
    for count, event in enumerate(events, start=1):
        reserved += _RESERVES.get(event.action, 0) * event.size_bytes
        allocated += _apply(event, sizes)
        most_reserved = max(most_reserved, reserved)
        if allocated > most_allocated:
            most_allocated, events_before_peak, reserved_then = allocated, count, reserved
    for event in events[:events_before_peak]:
        if event.action == "alloc":
            live[event.address] = Live(event.size_bytes, event.frames)
        elif event.action == "free_requested":
            live.pop(event.address, None)
    return Peak(most_allocated, reserved_then, most_reserved, tuple(live.values()))


def _undo(events: Sequence[Event], at_end: Mapping[int, Live]) -> dict[int, Live]:
    """Blocks in use before the first event."""
    live = dict(at_end)
    for event in reversed(events):
        if event.action == "alloc":
            live.pop(event.address, None)
        elif event.action == "free_requested":
            live[event.address] = Live(event.size_bytes, None)
    return {address: Live(block.size_bytes, None) for address, block in live.items()}


def _apply(event: Event, sizes: dict[int, int]) -> int:
    """Applies ``event`` to ``sizes`` (bytes of the blocks in use, by address); the change of allocated memory."""
    if event.action == "alloc":
        before = sizes.get(event.address, 0)  # an address that was never freed in the recording is used again
        sizes[event.address] = event.size_bytes
        return event.size_bytes - before
    if event.action == "free_requested":
        return -sizes.pop(event.address, 0)
    return 0


def count_releases(events: Sequence[Event]) -> int:
    """How often segments went back to the driver; several in a row count as one release."""
    releases = 0
    was_release = False
    for event in events:
        is_release = event.action in ("segment_free", "segment_unmap")
        releases += is_release and not was_release
        was_release = is_release
    return releases
