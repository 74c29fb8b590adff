"""The thresholds of ``tables/facts.yaml``: what a trace is taken to show, each with its reason."""

from __future__ import annotations

from functools import cache

from pydantic import Field

from three_walls.resources import TABLES_DIR
from three_walls.tables.loader import Row, Text, load_table


class Threshold(Row):
    """A number that a reviewer decided on."""

    value: float = Field(gt=0, le=100)
    reason: Text


class FactThresholds(Row):
    """Fractions, ratios and counts, as their names say; the file gives the reason for each value."""

    maximum_ambiguous_fraction: Threshold
    minimum_recompute_ratio: Threshold
    minimum_full_recompute_ratio: Threshold
    minimum_replayed_layer_ratio: Threshold
    minimum_shaped_fraction: Threshold
    minimum_overlap_calls: Threshold
    minimum_concurrent_fraction: Threshold
    maximum_alone_spread_ratio: Threshold


@cache
def fact_thresholds() -> FactThresholds:
    """The thresholds that ship with the product."""
    return load_table(TABLES_DIR / "facts.yaml", FactThresholds)
