"""What a trace viewer draws: slices of time on named tracks, and arrows between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

LONGEST_SHOWN_NAME = 400
"""Characters of a name: demangled kernels have up to 1,421, and the words that distinguish them come early."""


class Slice(NamedTuple):
    """Something that took time. Times are in ns from the start of the exported step."""

    start_ns: int
    end_ns: int
    name: str
    category: str
    details: Mapping[str, object]
    """JSON values by name; None: not known, or does not apply."""


class Arrow(NamedTuple):
    """From a launch call to what it launched. Tracks are places in ``RankTracks.tracks``."""

    from_track: int
    from_ns: int
    to_track: int
    to_ns: int


class Track(NamedTuple):
    """A row of slices, sorted by start, the outer before the inner. Two of them nest or do not overlap."""

    name: str
    slices: Sequence[Slice]


@dataclass(frozen=True, slots=True)
class RankTracks:
    """Everything of one rank."""

    rank: int
    tracks: tuple[Track, ...]
    arrows: tuple[Arrow, ...]


@dataclass(frozen=True, slots=True)
class StepTracks:
    """One step of some ranks. ``ranks`` can be iterated once: each rank is made when it is its turn."""

    step: int
    why: str
    """Which step it is and why that one."""
    notes: tuple[str, ...]
    """What the step lacks, and how to read it."""
    ranks: Iterable[RankTracks]


def lay_out(name: str, slices: Iterable[Slice]) -> list[Track]:
    """``slices`` on as few tracks as keep slices that overlap without nesting apart, the first called ``name``."""
    lanes: list[tuple[list[Slice], list[int]]] = []  # what is on it, and the ends of what is open
    for found in sorted(slices, key=lambda each: (each.start_ns, -each.end_ns, each.name)):
        lane = next((lane for lane in lanes if _has_room(lane[1], found)), None)
        if lane is None:
            lane = ([], [])
            lanes.append(lane)
        lane[0].append(found)
        lane[1].append(found.end_ns)
    return [Track(name if place == 0 else f"{name} ({place + 1})", lane[0]) for place, lane in enumerate(lanes)]


def _has_room(open_ends: list[int], found: Slice) -> bool:
    """Whether ``found`` begins after all that is open, or lies within it. Takes out what has ended."""
    while open_ends and open_ends[-1] <= found.start_ns:
        open_ends.pop()
    return not open_ends or found.end_ns <= open_ends[-1]
