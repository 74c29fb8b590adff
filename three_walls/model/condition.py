"""A condition of a rule: one fact compared with a value."""

from __future__ import annotations

from dataclasses import dataclass

from three_walls.model.fact import FactValue

OPERATORS = (
    "equals",
    "not_equals",
    "one_of",
    "none_of",
    "within",
    "at_least",
    "at_most",
    "above",
    "below",
    "is_set",
    "includes",
    "excludes",
)
"""``includes`` and ``excludes`` look for an element of a list, or for a part of a text."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of a fact: ``operator`` is one of :data:`OPERATORS`."""

    fact: str
    operator: str
    operand: FactValue
