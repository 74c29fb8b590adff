"""How much settings usually change a step, by measured edits: ``usual-changes.yaml``, which explains the numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from three_walls.lib.load_documents import load_table
from three_walls.lib.resources import TABLES_DIR


@dataclass(frozen=True, slots=True)
class UsualChanges:
    """The table: logarithms of steps."""

    other: float
    """Of settings that are not listed."""
    settings: Mapping[str, float]
    """By Megatron Core name."""

    def ratio(self, setting: str) -> float:
        """By how many times more than a setting that is not listed ``setting`` usually changes a step."""
        return self.settings.get(setting, self.other) / self.other


@cache
def usual_changes() -> UsualChanges:
    """What ships with the program."""
    return load_table(TABLES_DIR / "usual-changes.yaml", UsualChanges)
