"""Files of thresholds: ``name: {value: ..., reason: ...}``, all of the names and no other."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from three_walls.tables.strict_yaml import Problems, load_strict


def load_reasoned_numbers(path: Path, names: Collection[str], most: Callable[[str], float]) -> dict[str, float]:
    """Value of each of ``names``, from 0 to ``most`` of it; RuleBaseError lists everything wrong with ``path``."""
    problems = Problems()
    found = problems.fields(load_strict(path, problems), names)
    values: dict[str, float] = {}
    for name, node in found.items():
        entry = problems.fields(node, ("value", "reason"))
        problems.text(entry.get("reason"))
        values[name] = problems.number(entry.get("value"), 0.0, most(name))
    problems.raise_if_any()
    return values
