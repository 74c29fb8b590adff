"""What an allocation is for, by the stack that allocated it: ``tables/allocation-stacks.yaml``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Annotated

from three_walls.model.memory_snapshot import BEFORE_RECORDING, CATEGORIES, NO_STACK, OTHER
from three_walls.resources import TABLES_DIR
from three_walls.tables.loader import Pattern, Row, Text, load_table, one_of


class StackPattern(Row):
    """Allocations with a frame in which ``pattern`` is found are of ``category``."""

    category: Annotated[Text, one_of([name for name in CATEGORIES if name not in (NO_STACK, OTHER, BEFORE_RECORDING)])]
    pattern: Pattern
    reason: Text
    """What allocates there."""


class AllocationStacks(Row):
    """``allocation-stacks.yaml``. Frames are written ``<directory>/<file>:<function>``, innermost first."""

    stacks: tuple[StackPattern, ...]
    """In order of precedence."""
    ignored: tuple[Pattern, ...]
    """Frames that do not show what allocates."""

    def category(self, frames: Sequence[str]) -> str:
        """The category of an allocation with this stack."""
        if not frames:
            return NO_STACK
        for row in self.stacks:
            if any(row.pattern.search(frame) for frame in frames):
                return row.category
        return OTHER

    def relevant(self, frames: Sequence[str]) -> list[str]:
        """The frames that show what allocates."""
        return [frame for frame in frames if not any(pattern.search(frame) for pattern in self.ignored)]


@cache
def allocation_stacks() -> AllocationStacks:
    """The table that ships with the program."""
    return load_table(TABLES_DIR / "allocation-stacks.yaml", AllocationStacks)
