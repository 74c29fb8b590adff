"""Hardware counters of GPUs, by the names that Nsight Systems gives them: ``tables/gpu-metrics.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from three_walls.lib.load_documents import ByName, NamedRow, Text, load_table
from three_walls.lib.resources import TABLES_DIR

_PERCENT = " [throughput %]"
"""Ends the names of percentages, in lower case. Other endings are those of the same counters in other units."""


@dataclass(frozen=True, slots=True)
class Counter(NamedRow):
    """A hardware counter, as a percentage of its peak."""

    title: Text
    definition: Text
    spellings: tuple[tuple[Text, ...], ...]
    """Names of the metric; the first counts of which all parts were recorded. Parts are added up."""
    source: Text

    def find(self, recorded: Mapping[str, int]) -> tuple[int, ...]:
        """The ids of the metrics that add up to the counter; none where it was not recorded.

        ``recorded``: ids by names as :func:`plain_name` makes them.
        """
        for names in self.spellings:
            ids = [recorded.get(plain_name(name)) for name in names]
            if None not in ids:
                return tuple(number for number in ids if number is not None)
        return ()


@dataclass(frozen=True, slots=True)
class CounterTable:
    """``gpu-metrics.yaml``."""

    counters: ByName[Counter]


@cache
def gpu_counters() -> Mapping[str, Counter]:
    """The counters that are read, by name."""
    return load_table(TABLES_DIR / "gpu-metrics.yaml", CounterTable).counters


def plain_name(metric: str) -> str:
    """The name of a ``metric`` that is a percentage, without its unit."""
    return metric.strip().lower().removesuffix(_PERCENT)
