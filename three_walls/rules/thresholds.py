"""The thresholds of ``tables/verdict.yaml``: what is enough, too much or too close, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from three_walls.resources import TABLES_DIR
from three_walls.tables.reasoned_numbers import load_reasoned_numbers


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Shares of the step, but for the last one; the file says why each has its value."""

    minimum_recoverable_fraction: float
    minimum_margin_fraction: float
    minimum_compute_busy_fraction: float
    notable_wait_fraction: float
    maximum_wait_fraction: float
    maximum_unexplained_idle_fraction: float
    maximum_cuda_graph_fraction: float
    maximum_unclassified_fraction: float
    minimum_plan_gain_fraction: float
    comparable_gain_fraction: float


def load_thresholds(path: Path) -> Thresholds:
    """Thresholds of ``path``; RuleBaseError lists everything wrong with it."""
    names = [field.name for field in fields(Thresholds)]
    return Thresholds(**load_reasoned_numbers(path, names, most=lambda _: 1.0))


@cache
def default_thresholds() -> Thresholds:
    """The thresholds that ship with the rules."""
    return load_thresholds(TABLES_DIR / "verdict.yaml")
