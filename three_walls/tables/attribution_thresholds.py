"""The thresholds of ``tables/attribution.yaml``: what the timeline, the ranks and the attribution take for granted."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from three_walls.resources import TABLES_DIR
from three_walls.tables.loader import Row, load_table


def _value_of(entry: Any) -> Any:
    """The value of an entry that states its reason too."""
    match entry:
        case {"value": value, "reason": str(reason), **rest} if reason.strip() and not rest:
            return value
    raise ValueError("expected a value and the reason for it (value: ..., reason: ...)")


Count = Annotated[int, BeforeValidator(_value_of), Field(gt=0, le=1_000)]
Nanoseconds = Annotated[int, BeforeValidator(_value_of), Field(gt=0, le=1_000_000_000)]
Fraction = Annotated[float, BeforeValidator(_value_of), Field(gt=0, le=1)]
Ratio = Annotated[float, BeforeValidator(_value_of), Field(ge=1)]


class AttributionThresholds(Row):
    """One value per entry of the file, which states why each has its value."""

    maximum_operations_between_gemms: Count
    same_optimizer_phase_fraction: Fraction
    maximum_pause_fraction: Fraction
    minimum_common_steps: Count
    same_step_fraction: Fraction
    different_step_fraction: Fraction
    minimum_common_ends: Count
    better_clock_fraction: Fraction
    maximum_same_host_error_ns: Nanoseconds
    maximum_launch_latency_ns: Nanoseconds
    maximum_return_ns: Nanoseconds
    maximum_event_latency_ns: Nanoseconds
    followed_events: Count
    ready_quantile: Fraction
    minimum_calls: Count
    maximum_control_ns: Nanoseconds
    minimum_small_exchange_ratio: Ratio
    maximum_small_exchange_ns: Nanoseconds
    minimum_joined_launches_fraction: Fraction


def load_attribution_thresholds(path: Path) -> AttributionThresholds:
    """The thresholds in ``path``; RuleBaseError lists everything wrong with it."""
    return load_table(path, AttributionThresholds)


@cache
def attribution_thresholds() -> AttributionThresholds:
    """The thresholds that ship with the product."""
    return load_attribution_thresholds(TABLES_DIR / "attribution.yaml")
