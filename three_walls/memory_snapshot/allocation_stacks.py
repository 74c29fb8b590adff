"""What an allocation is for, by the stack that allocated it: ``tables/allocation-stacks.yaml``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Annotated

from three_walls.lib.load_documents import Pattern, Text, load_table, one_of
from three_walls.lib.resources import TABLES_DIR
from three_walls.memory_snapshot.snapshot import BEFORE_RECORDING, CATEGORIES, NO_STACK, OTHER

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

    def category(self, frames: Sequence[str]) -> str:
        """The category of an allocation with this stack. Each frame is searched once, however many stacks hold it."""
        if not frames:
            return NO_STACK
        known = self._first_match
        for frame in frames:
            if frame not in known:
                matching = (index for index, row in enumerate(self.stacks) if row.pattern.search(frame))
                known[frame] = next(matching, len(self.stacks))
        first = min(known[frame] for frame in frames)
        return self.stacks[first].category if first < len(self.stacks) else OTHER

    def relevant(self, frames: Sequence[str]) -> Iterator[str]:
        """The frames that show what allocates."""
        return (frame for frame in frames if not any(pattern.search(frame) for pattern in self.ignored))


@cache
def allocation_stacks() -> AllocationStacks:
    """The table that ships with the program."""
    return load_table(TABLES_DIR / "allocation-stacks.yaml", AllocationStacks)
