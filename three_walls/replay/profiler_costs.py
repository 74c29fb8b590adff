"""``profiler-costs.yaml``: host time that a recorded CUDA call or NVTX range costs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from three_walls.lib.load_documents import Pattern, Text, load_table
from three_walls.lib.resources import TABLES_DIR


@dataclass(frozen=True, slots=True)
class CallCost:
    """Host time that the profiler adds to calls whose name matches."""

    pattern: Pattern
    before_ns: int
    inside_ns: int
    reason: Text


@dataclass(frozen=True, slots=True)
class ProfilerCosts:
    """The table."""

    source: Text
    pace_call: str
    """Its median duration shows how fast a host is."""
    pace_call_ns: int
    range_begin_ns: int
    """Where the capture has no neighbouring ranges to measure it by."""
    range_end_ns: int
    calls: tuple[CallCost, ...]

    def of_call(self, name: str) -> tuple[int, int]:
        """(before, inside) of the first pattern that is found in ``name``; zeros where none is."""
        found = next((row for row in self.calls if row.pattern.search(name)), None)
        return (found.before_ns, found.inside_ns) if found else (0, 0)


@cache
def profiler_costs() -> ProfilerCosts:
    """What ships with the program."""
    return load_table(TABLES_DIR / "profiler-costs.yaml", ProfilerCosts)
