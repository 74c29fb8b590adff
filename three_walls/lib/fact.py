"""Facts: named numbers with a unit and a definition; the seam between measuring and advising.

Left of the FactSheet nothing knows a rule; right of it nothing knows a trace. A fact is defined by the function that
measures it (``lib/declare.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from three_walls.lib.measurement import NUMERIC
from three_walls.lib.plain_data import ConfigData

FactValue = ConfigData

UNITS = (*NUMERIC, "flag", "text", "config")


@dataclass(frozen=True, slots=True)
class FactDefinition:
    """What a fact means, once: read by the report, by the rule loader and by ``three-walls facts``."""

    name: str
    unit: str
    label: str
    """What sentences call the fact: a noun phrase of two to eight words, lower case unless a name, unlike any other
    label. It reads in "Missing: <label>" and before the verb, as in "Unfused attention takes 28.6% of the step"."""
    meaning: str
    not_the_same_as: str = ""
    whole: str = ""
    """For a fraction: what it is a fraction of, in words. What is a fraction of "the step" takes time of it."""
    if_true: str = ""
    if_false: str = ""
    """For a flag: the sentence for each answer."""
    numerator: str = ""
    denominator: str = ""
    """For a derived fraction: the facts it is the quotient of, so that a plan can derive it again."""
    needs: tuple[str, ...] = ()
    """Capabilities of the trace without which the fact is missing (``trace/capabilities.py``)."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One value. It is missing exactly when ``missing_reason`` is set; ``None`` alone is a known "unset"."""

    name: str
    value: FactValue
    unit: str
    missing_reason: str | None = None
    definition: FactDefinition | None = None
    """None for settings of the run (``config.*`` and ``env.*``)."""

    @property
    def is_missing(self) -> bool:
        return self.missing_reason is not None

    @property
    def label(self) -> str:
        """What sentences call the fact: its label, or the key of a setting; without either the words of its name."""
        if self.definition is not None:
            return self.definition.label
        prefix, _, key = self.name.partition(".")
        return key if prefix in ("config", "env") else self.name.replace("_", " ")


@dataclass(frozen=True, slots=True)
class FactSheet:
    """Every fact of one run, by name, in order of definition."""

    facts: Mapping[str, Fact]
    environment_is_known: bool = False
    """The launch environment was recorded: a variable that is not among the facts was not set."""
    definitions: Mapping[str, FactDefinition] = field(default_factory=dict)
    """Of facts that are not on the sheet."""
    before_log: Mapping[str, FactValue] = field(default_factory=dict)
    """Of facts from which the log took what the profiler added: their values as traced."""

    @staticmethod
    def of(
        facts: Iterable[Fact],
        environment_is_known: bool = False,
        definitions: Mapping[str, FactDefinition] = MappingProxyType({}),
    ) -> FactSheet:
        """A sheet of ``facts``; raises ValueError if two share a name."""
        by_name: dict[str, Fact] = {}
        for fact in facts:
            if fact.name in by_name:
                raise ValueError(f"fact {fact.name} is defined twice")
            by_name[fact.name] = fact
        return FactSheet(MappingProxyType(by_name), environment_is_known, definitions)

    def get(self, name: str) -> Fact:
        """The fact called ``name``; an unknown name is a missing fact, never an error."""
        if name in self.facts:
            return self.facts[name]
        if self.environment_is_known and name.startswith("env."):
            return Fact(name, None, "config")
        definition = self.definitions.get(name)
        unit = definition.unit if definition else "text"
        return Fact(name, None, unit, "not known from the inputs given", definition)

    def number(self, name: str) -> float | None:
        """Numeric value of ``name`` or ``None`` when missing or not a number."""
        fact = self.get(name)
        if fact.is_missing or isinstance(fact.value, bool) or not isinstance(fact.value, int | float):
            return None
        return fact.value

    def as_traced(self) -> FactSheet:
        """A copy in which the log took nothing from any fact; the sheet itself where it takes nothing."""
        return self.with_values(self.before_log) if self.before_log else self

    def with_facts(self, facts: Mapping[str, Fact]) -> FactSheet:
        """A copy in which ``facts`` take the place of those of their names."""
        return replace(self, facts=MappingProxyType({**self.facts, **facts})) if facts else self

    def with_values(self, values: Mapping[str, FactValue]) -> FactSheet:
        """A copy in which the named facts have new values and are not missing."""
        merged = dict(self.facts)
        for name, value in values.items():
            old = self.get(name)
            unit = "config" if name not in self.facts and name.startswith("config.") else old.unit
            merged[name] = replace(old, value=value, unit=unit, missing_reason=None)
        return replace(self, facts=MappingProxyType(merged))
