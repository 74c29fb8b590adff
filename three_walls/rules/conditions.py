"""Comparisons of facts with three answers: holds, fails, unknown.

A missing fact makes its comparison unknown. A fact that is known to be unset (value ``None``) is an
answer: it equals null, is in no list that lacks null, and reaches no number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import assert_never

from three_walls.model.config import ConfigData
from three_walls.model.fact import Fact, FactSheet
from three_walls.model.rule import Condition
from three_walls.model.units import ns_to_ms
from three_walls.rules.operands import is_number

ORDERED = ("at_least", "at_most", "above", "below")
"""Operators that compare a number with a limit."""


class Truth(StrEnum):
    """Answer of a comparison."""

    HOLDS = "holds"
    FAILS = "fails"
    UNKNOWN = "unknown"


def evaluate(condition: Condition, facts: FactSheet) -> Truth:
    """Whether ``condition`` holds; unknown exactly when its fact is missing."""
    fact = facts.get(condition.fact)
    if fact.is_missing:
        return Truth.UNKNOWN
    return Truth.HOLDS if _compare(condition, fact.value) else Truth.FAILS


def evaluate_all(conditions: Iterable[Condition], facts: FactSheet) -> Truth:
    """Whether all hold: one that fails decides, else one unknown leaves it unknown."""
    answers = {evaluate(condition, facts) for condition in conditions}
    if Truth.FAILS in answers:
        return Truth.FAILS
    return Truth.UNKNOWN if Truth.UNKNOWN in answers else Truth.HOLDS


def evaluate_any(conditions: Iterable[Condition], facts: FactSheet) -> Truth:
    """Whether one of several holds: one that holds decides, else one unknown leaves it unknown."""
    answers = {evaluate(condition, facts) for condition in conditions}
    if Truth.HOLDS in answers:
        return Truth.HOLDS
    return Truth.UNKNOWN if Truth.UNKNOWN in answers else Truth.FAILS


def that_are(truth: Truth, conditions: Iterable[Condition], facts: FactSheet) -> tuple[Condition, ...]:
    """Those of ``conditions`` whose answer is ``truth``, in order."""
    return tuple(condition for condition in conditions if evaluate(condition, facts) is truth)


def explain(conditions: Sequence[Condition], facts: FactSheet, joined_by: str = "; ") -> str:
    """What was compared with what, for several conditions."""
    return joined_by.join(explain_one(condition, facts) for condition in conditions)


def explain_one(condition: Condition, facts: FactSheet) -> str:
    """``launch_starved_fraction is 0.184, at least 0.1 needed``; a setting that is as it should be stands alone."""
    fact = facts.get(condition.fact)
    if fact.is_missing:
        return f"{fact.name} is not known ({fact.missing_reason}), {needed(condition, fact.unit)} needed"
    found = f"{fact.name} is {show(fact)}"
    if condition.operator not in ORDERED and _compare(condition, fact.value):
        return found  # "is false, false needed" says nothing more; how far a number is from its limit does
    return f"{found}, {needed(condition, fact.unit)} needed"


def needed(condition: Condition, unit: str = "") -> str:
    """What the condition asks for: ``at least 0.1``."""
    operand = condition.operand
    shown = ", ".join(show_value(one, unit) for one in (operand if isinstance(operand, tuple) else (operand,)))
    match condition.operator:
        case "is_set":
            return "a value" if operand else "no value"
        case "equals":
            return shown
        case "not_equals":
            return f"anything but {shown}"
        case "one_of":
            return f"one of {shown}"
        case "none_of":
            return f"none of {shown}"
        case "within":
            return f"a list of nothing but {shown}"
        case "includes":
            return f"a value with {shown} in it"
        case "excludes":
            return f"a value without {shown} in it"
        case "above":
            return f"more than {shown}"
        case "below":
            return f"less than {shown}"
        case operator:
            return f"{operator.replace('_', ' ')} {shown}"


def show(fact: Fact) -> str:
    """The value of a fact for a sentence, times in ms."""
    return show_value(fact.value, fact.unit)


def show_value(value: ConfigData, unit: str = "") -> str:
    """``value`` for a sentence: four significant digits, ``unset`` for null."""
    match value:
        case None:
            return "unset"
        case bool():
            return str(value).lower()
        case int() | float() if unit == "ns":
            return f"{ns_to_ms(value):g} ms"
        case float():
            return f"{value:.4g}"
        case int() | str():
            return str(value)
        case tuple():
            return f"[{', '.join(show_value(one) for one in value)}]"
        case _:
            assert_never(value)


def same(value: ConfigData, other: ConfigData) -> bool:
    """Equality that keeps true apart from 1 and treats 2 and 2.0 alike."""
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    if isinstance(value, tuple) and isinstance(other, tuple):
        return len(value) == len(other) and all(map(same, value, other))
    return value == other


def _compare(condition: Condition, value: ConfigData) -> bool:
    operand = condition.operand
    match condition.operator:
        case "is_set":
            return (value is not None) == operand
        case "equals":
            return same(value, operand)
        case "not_equals":
            return not same(value, operand)
        case "one_of":
            return any(same(value, one) for one in _listed(condition))
        case "none_of":
            return not any(same(value, one) for one in _listed(condition))
        case "within":
            listed = _listed(condition)
            return isinstance(value, tuple) and all(any(same(part, one) for one in listed) for part in value)
        case "includes":
            return _contains(value, operand)
        case "excludes":
            return not _contains(value, operand)
        case operator if operator in ORDERED:
            return value is not None and _is_ordered(condition, value)
        case operator:
            raise ValueError(f"unknown operator {operator} for {condition.fact}")


def _contains(value: ConfigData, part: ConfigData) -> bool:
    if isinstance(value, str):
        return isinstance(part, str) and part in value
    return isinstance(value, tuple) and any(same(one, part) for one in value)


def _is_ordered(condition: Condition, value: ConfigData) -> bool:
    number, limit = _number(value, condition.fact), _number(condition.operand, condition.fact)
    match condition.operator:
        case "at_least":
            return number >= limit
        case "at_most":
            return number <= limit
        case "above":
            return number > limit
        case _:
            return number < limit


def _listed(condition: Condition) -> tuple[ConfigData, ...]:
    if not isinstance(condition.operand, tuple):
        raise TypeError(f"{condition.operator} of {condition.fact} needs a list, found {condition.operand!r}")
    return condition.operand


def _number(value: ConfigData, fact: str) -> float:
    if isinstance(value, int | float) and is_number(value):
        return value
    raise TypeError(f"{fact} is compared as a number, but {value!r} is none")
