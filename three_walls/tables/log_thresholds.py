"""The thresholds of ``tables/log.yaml``: steady iterations, logs of another run, short memory."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from three_walls.resources import TABLES_DIR
from three_walls.tables.reasoned_numbers import load_reasoned_numbers

_MOST = 100.0


@dataclass(frozen=True, slots=True)
class LogThresholds:
    """Shares, counts and ratios, as their names say; the file says why each has its value."""

    minimum_step_tolerance_fraction: float
    tolerance_in_deviations: float
    minimum_steady_count: float
    minimum_iterations_per_captured_step: float
    minimum_perturbation_ratio: float
    minimum_step_ratio: float
    maximum_step_ratio: float
    slow_rank_ratio: float
    slow_rank_prints_fraction: float
    near_limit_fraction: float
    reserved_limit_fraction: float


def load_log_thresholds(path: Path) -> LogThresholds:
    """Thresholds of ``path``; RuleBaseError lists everything wrong with it."""
    names = [field.name for field in fields(LogThresholds)]
    return LogThresholds(
        **load_reasoned_numbers(path, names, most=lambda name: 1.0 if name.endswith("_fraction") else _MOST)
    )


@cache
def default_log_thresholds() -> LogThresholds:
    """The thresholds that ship with the rules."""
    return load_log_thresholds(TABLES_DIR / "log.yaml")
