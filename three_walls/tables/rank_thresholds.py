"""The thresholds of ``tables/ranks.yaml``: when one rank is said to hold up the others, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from three_walls.resources import TABLES_DIR
from three_walls.tables.reasoned_numbers import load_reasoned_numbers

_MOST_MS = 10.0


@dataclass(frozen=True, slots=True)
class RankThresholds:
    """Shares of the step, of a wait or of a class's time, as their names say; the file says why each has its value."""

    minimum_late_fraction: float
    minimum_blame_fraction: float
    minimum_resolved_fraction: float
    minimum_cause_fraction: float
    minimum_slow_outside_fraction: float
    maximum_end_spread_ms: float
    maximum_even_end_spread_ms: float
    maximum_even_end_spread_fraction: float
    minimum_start_skew_fraction: float

    @property
    def maximum_end_spread_ns(self) -> int:
        return round(self.maximum_end_spread_ms * 1e6)

    @property
    def maximum_even_end_spread_ns(self) -> int:
        return round(self.maximum_even_end_spread_ms * 1e6)


def load_rank_thresholds(path: Path) -> RankThresholds:
    """Thresholds of ``path``; RuleBaseError lists everything wrong with it."""
    names = [field.name for field in fields(RankThresholds)]
    return RankThresholds(
        **load_reasoned_numbers(path, names, most=lambda name: _MOST_MS if name.endswith("_ms") else 1.0)
    )


@cache
def default_rank_thresholds() -> RankThresholds:
    """The thresholds that ship with the rules."""
    return load_rank_thresholds(TABLES_DIR / "ranks.yaml")
