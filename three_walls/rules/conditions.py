"""Conditions: how ``{fact: {operator: operand}}`` is read, and whether it holds of a run.

A comparison has three answers: it holds, it fails, or it is unknown because its fact is missing. A fact that is known
to be unset (value ``None``) is an answer: it equals null, is in no list that lacks null, and reaches no number.

:data:`Conditions` and :data:`Alternatives` are types for fields of the pydantic models that read YAML. The names that
conditions may compare come from the loader's validation context::

    class Constraint(Row):
        needs: Conditions = ()
        needs_any: Alternatives = ()

    load_table(path, Constraints, context={"facts": KnownFacts.of(definitions)})
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

from pydantic import PlainValidator, ValidationInfo, WithJsonSchema

from three_walls.model.config import ConfigData
from three_walls.model.fact import FactDefinition, FactSheet
from three_walls.model.rule import OPERATORS, Condition
from three_walls.tables.loader import KEY, Loc, describe, raise_contradictions, suggest

ORDERED = ("at_least", "at_most", "above", "below")
"""Operators that compare a number with a limit."""

LISTED = ("one_of", "none_of", "within")
"""Operators whose operand is a list."""

CONTAINING = ("includes", "excludes")
"""Operators that look for an element of a list, or for a part of a text."""

NUMERIC_UNITS = ("ns", "bytes", "count", "fraction", "ratio", "bytes_per_s", "tflops", "flops", "flops_per_s")


def unit_of_setting(name: str) -> str | None:
    """``config`` for any ``config.<key>``, ``env`` for any ``env.<VARIABLE>``; None for every other name."""
    prefix, dot, _ = name.partition(".")
    return prefix if dot and prefix in ("config", "env") else None


@dataclass(frozen=True, slots=True)
class KnownFacts:
    """The facts that conditions may compare."""

    units: Mapping[str, str]
    """Unit by name. Misspelt names are compared with these names for a suggestion."""
    unit_of_other: Callable[[str], str | None] = unit_of_setting
    """Unit of a name that is not in ``units``; None where a condition may not compare it."""
    definitions: Mapping[str, FactDefinition] = field(default_factory=dict)
    """By name; empty where the names are no facts of a FactSheet."""

    @staticmethod
    def of(definitions: Iterable[FactDefinition]) -> KnownFacts:
        """The facts that are defined, and every setting and variable of a run."""
        by_name = {definition.name: definition for definition in definitions}
        return KnownFacts({name: found.unit for name, found in by_name.items()}, definitions=by_name)

    def unit_of(self, name: str) -> str | None:
        """Unit of ``name``: ``config`` for settings, ``env`` for variables, None for a name that is not known."""
        return self.units.get(name) or self.unit_of_other(name)

    def check(self, name: str, unit: str = "") -> str:
        """What is wrong with naming ``name`` where a fact (in ``unit``) is expected; empty if nothing is."""
        found = self.unit_of(name)
        if found is None:
            return f"unknown fact {name}{suggest(name, self.units)}"
        return f"expected a fact in {unit}, found {name} ({found})" if unit and found != unit else ""


_Problem = tuple[Loc, str]
"""Where in a group of conditions, and what is wrong."""


def read_value(value: Any) -> ConfigData:
    """A value of a setting as it stands in a file: a scalar, or a flat list of them as a tuple."""
    if isinstance(value, list):
        value = tuple(value)
    parts = value if isinstance(value, tuple) else (value,)
    if any(not isinstance(part, str | int | float | None) for part in parts):
        raise ValueError(f"expected text, a number, true, false, null or a list of those, found {describe(value)}")
    return value  # type: ignore[no-any-return]


def _known_facts(info: ValidationInfo) -> KnownFacts:
    known = (info.context or {}).get("facts")
    if not isinstance(known, KnownFacts):
        raise TypeError('conditions are read with context={"facts": KnownFacts(...)}')
    return known


def _read_conditions(value: Any, info: ValidationInfo) -> tuple[Condition, ...]:
    """The conditions of a mapping, in order."""
    problems: list[_Problem] = []
    conditions = _parse(value, (), _known_facts(info), problems)
    raise_contradictions(problems)
    return conditions


def _read_alternatives(value: Any, info: ValidationInfo) -> tuple[Condition, ...]:
    """One condition of each element of a list, in order."""
    if not isinstance(value, list):
        raise ValueError(f"expected a list, found {describe(value)}")
    problems: list[_Problem] = []
    alternatives: list[Condition] = []
    for place, item in enumerate(value):
        conditions = _parse(item, (place,), _known_facts(info), problems)
        if len(conditions) > 1:
            problems.append(((place,), "an alternative of any_of is one comparison"))
        alternatives += conditions
    raise_contradictions(problems)
    return tuple(alternatives)


Conditions = Annotated[tuple[Condition, ...], PlainValidator(_read_conditions), WithJsonSchema({"type": "object"})]
"""``fact: {operator: operand}`` entries; all must hold."""

Alternatives = Annotated[tuple[Condition, ...], PlainValidator(_read_alternatives), WithJsonSchema({"type": "array"})]
"""A list of ``fact: {operator: operand}``, one comparison each; one must hold."""


def _parse(value: Any, loc: Loc, known: KnownFacts, problems: list[_Problem]) -> tuple[Condition, ...]:
    """The comparisons of a mapping, those that are well formed."""
    if not isinstance(value, dict):
        problems.append((loc, f"expected a mapping, found {describe(value)}"))
        return ()
    conditions = []
    for fact, tests in value.items():
        unit = known.unit_of(fact)
        if unit is None:
            problems.append(((*loc, fact, KEY), known.check(fact)))
            continue
        if not isinstance(tests, dict) or not tests:
            found = "" if isinstance(tests, dict) else f", found {describe(tests)}"
            problems.append(((*loc, fact), f"expected an operator and its operand{found}"))
            continue
        for operator, operand in tests.items():
            place = (*loc, fact, operator)
            if operator not in OPERATORS:
                problems.append(((*place, KEY), f"unknown operator {operator}{suggest(operator, OPERATORS)}"))
                continue
            plain = tuple(operand) if isinstance(operand, list) else operand
            if problem := check_operand(unit, operator, plain):
                problems.append((place, f"{fact}: {problem}, found {describe(operand)}"))
                continue
            conditions.append(Condition(fact, operator, plain))
    return tuple(conditions)


def check_operand(unit: str, operator: str, operand: object) -> str:
    """What is wrong with comparing a fact in ``unit`` so; empty if nothing is."""
    if isinstance(operand, dict) or (
        isinstance(operand, tuple) and any(isinstance(part, dict | list) for part in operand)
    ):
        return f"{operator} takes a value or a list of values"
    if operator == "is_set":
        return "" if isinstance(operand, bool) else "is_set takes true or false"
    if operator in ORDERED:
        if unit in ("flag", "text", "env"):
            return f"{operator} needs a numeric fact, this one is {unit}"
        if not is_number(operand):
            return f"{operator} takes a number"
        assert isinstance(operand, int | float)
        return "a fraction lies between 0 and 1" if unit == "fraction" and not 0 <= operand <= 1 else ""
    if operator in LISTED and not isinstance(operand, tuple):
        return f"{operator} takes a list"
    if operator in CONTAINING:
        if unit not in ("config", "env", "text"):
            return f"{operator} needs a list or text, this fact is in {unit}"
        return "" if isinstance(operand, str) else f"{operator} takes text"
    values = operand if operator in LISTED and isinstance(operand, tuple) else (operand,)
    return next((problem for value in values if (problem := check_value(unit, value))), "")


def check_value(unit: str, value: object) -> str:
    """Why a fact in ``unit`` cannot equal ``value``; empty if it can."""
    if unit in NUMERIC_UNITS and not is_number(value):
        return f"a fact in {unit} is compared with a number"
    if unit == "flag" and not isinstance(value, bool):
        return "a flag is compared with true or false"
    if unit == "text" and not isinstance(value, str):
        return "a text fact is compared with text"
    if unit == "env" and not isinstance(value, str | None):
        return "a variable is compared with text (quote it) or null"
    return ""


def is_number(value: object) -> bool:
    """Whether ``value`` is a number; a boolean is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


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
