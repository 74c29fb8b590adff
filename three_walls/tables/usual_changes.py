"""What settings usually do to a step and to activations, by measured edits: ``usual-changes.yaml``, which explains the
numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from three_walls.lib.hydra import write_value
from three_walls.lib.load_documents import load_table
from three_walls.lib.plain_data import ConfigData
from three_walls.lib.resources import TABLES_DIR


@dataclass(frozen=True, slots=True)
class UsualGrowth:
    """What a setting does to activations."""

    miss: float
    levels: Mapping[str, float] = field(default_factory=dict)
    """By the value, as Hydra writes it; empty where none is known to need more than another."""


@dataclass(frozen=True, slots=True)
class UsualOverlap:
    """Of settings that save the same time."""

    ratio: float
    """Of the smaller of two savings: so much less both save together."""
    settings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UsualChanges:
    """The table: logarithms of steps, and of activations, by Megatron Core name."""

    other: float
    """Of settings that are not listed."""
    settings: Mapping[str, float]
    levels: Mapping[str, Mapping[str, float]]
    """By the value, as Hydra writes it."""
    overlap: UsualOverlap
    activations: Mapping[str, UsualGrowth]

    def ratio(self, setting: str) -> float:
        """By how many times more than a setting that is not listed ``setting`` usually changes a step."""
        return self.settings.get(setting, self.other) / self.other

    def mean(self, setting: str, before: ConfigData, after: ConfigData) -> float:
        """The mean change from the value ``before`` to ``after``; 0 where one of them is not listed."""
        change = _find_change(self.levels.get(setting, {}), before, after)
        return 0.0 if change is None else change

    def growth(self, setting: str, before: ConfigData, after: ConfigData) -> tuple[float, float] | None:
        """How activations change from the value ``before`` to ``after``, and how far that may miss."""
        if (usual := self.activations.get(setting)) is None:
            return None
        change = _find_change(usual.levels, before, after) if usual.levels else 0.0
        return None if change is None else (change, usual.miss)


def _find_change(levels: Mapping[str, float], before: ConfigData, after: ConfigData) -> float | None:
    old, new = (levels.get(write_value(value)) for value in (before, after))
    return None if old is None or new is None else new - old


@cache
def usual_changes() -> UsualChanges:
    """What ships with the program."""
    return load_table(TABLES_DIR / "usual-changes.yaml", UsualChanges)
