"""Facts: named numbers with a unit and a definition; the seam between measuring and advising.

Left of the FactSheet nothing knows a rule; right of it nothing knows a trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from three_walls.model.config import ConfigData

FactValue = ConfigData

UNITS = (
    "ns",
    "bytes",
    "count",
    "fraction",
    "ratio",
    "flag",
    "text",
    "bytes_per_s",
    "tflops",
    "flops",
    "flops_per_s",
    "config",
)


@dataclass(frozen=True, slots=True)
class FactDefinition:
    """What a fact means, once: read by the report, by the rule loader and by ``three-walls facts``."""

    name: str
    unit: str
    meaning: str
    not_the_same_as: str = ""
    numerator: str = ""
    denominator: str = ""
    """For a fraction: the facts it is the quotient of, so that a plan can re-derive it."""
    needs: tuple[str, ...] = ()
    """Capabilities of the trace without which the fact is missing (``trace/capabilities.py``)."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One value. It is missing exactly when ``missing_reason`` is set; ``None`` alone is a known "unset"."""

    name: str
    value: FactValue
    unit: str
    missing_reason: str | None = None

    @property
    def is_missing(self) -> bool:
        return self.missing_reason is not None


@dataclass(frozen=True, slots=True)
class FactSheet:
    """Every fact of one run, by name, in order of definition."""

    facts: Mapping[str, Fact]
    environment_is_known: bool = False
    """The launch environment was recorded: a variable that is not among the facts was not set."""

    @staticmethod
    def of(facts: Iterable[Fact], environment_is_known: bool = False) -> FactSheet:
        """A sheet of ``facts``; raises ValueError if two share a name."""
        by_name: dict[str, Fact] = {}
        for fact in facts:
            if fact.name in by_name:
                raise ValueError(f"fact {fact.name} is defined twice")
            by_name[fact.name] = fact
        return FactSheet(MappingProxyType(by_name), environment_is_known)

    def get(self, name: str) -> Fact:
        """The fact called ``name``; an unknown name is a missing fact, never an error."""
        found = self.facts.get(name)
        if found is None and self.environment_is_known and name.startswith("env."):
            return Fact(name, None, "config")
        if found is None:
            return Fact(name, None, "text", missing_reason="not known from the inputs given")
        return found

    def number(self, name: str) -> float | None:
        """Numeric value of ``name`` or ``None`` when missing or not a number."""
        fact = self.get(name)
        if fact.is_missing or isinstance(fact.value, bool) or not isinstance(fact.value, int | float):
            return None
        return fact.value

    def with_values(self, values: Mapping[str, FactValue]) -> FactSheet:
        """A copy in which the named facts have new values and are not missing."""
        merged = dict(self.facts)
        for name, value in values.items():
            old = self.get(name)
            unit = "config" if name not in self.facts and name.startswith("config.") else old.unit
            merged[name] = replace(old, value=value, unit=unit, missing_reason=None)
        return FactSheet(MappingProxyType(merged), self.environment_is_known)
