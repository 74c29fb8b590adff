"""What an allocation is for, by its stack: ``tables/allocation-stacks.yaml``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from three_walls.model.memory_snapshot import BEFORE_RECORDING, CATEGORIES, NO_STACK, OTHER
from three_walls.resources import TABLES_DIR
from three_walls.tables.strict_yaml import Problems, load_strict


@dataclass(frozen=True, slots=True)
class AllocationStacks:
    """Ordered patterns; frames are written ``<directory>/<file>:<function>``, innermost first."""

    patterns: tuple[tuple[str, re.Pattern[str]], ...]
    ignored: tuple[re.Pattern[str], ...]

    def category(self, frames: Sequence[str]) -> str:
        """Category of an allocation that ``frames`` made."""
        if not frames:
            return NO_STACK
        for category, pattern in self.patterns:
            if any(pattern.search(frame) for frame in frames):
                return category
        return OTHER

    def telling(self, frames: Sequence[str]) -> list[str]:
        """The frames that say who allocates."""
        return [frame for frame in frames if not any(pattern.search(frame) for pattern in self.ignored)]


@cache
def allocation_stacks() -> AllocationStacks:
    """The patterns that ship with the program."""
    return load_allocation_stacks(TABLES_DIR / "allocation-stacks.yaml")


def load_allocation_stacks(path: Path) -> AllocationStacks:
    """The patterns in ``path``; raises RuleBaseError that lists every error."""
    problems = Problems()
    top = problems.fields(load_strict(path, problems), ("stacks", "ignored"))
    named = [name for name in CATEGORIES if name not in (NO_STACK, OTHER, BEFORE_RECORDING)]
    patterns = []
    for node in problems.items(top.get("stacks")):
        row = problems.fields(node, ("category", "pattern", "reason"))
        problems.text(row.get("reason"))
        patterns.append((problems.choice(row.get("category"), named), problems.pattern(row.get("pattern"))))
    ignored = tuple(problems.pattern(node) for node in problems.items(top.get("ignored")))
    problems.raise_if_any()
    return AllocationStacks(tuple(patterns), ignored)
