"""Conditions: how ``{fact: {operator: operand}}`` is read, and whether it holds for a run.

A comparison holds, fails, or is unknown because its fact is missing. A setting that is known to be unset (value
``None``) is not missing: it equals null, and every comparison with a number or with a list without null fails.

:data:`Conditions` and :data:`Alternatives` are types for fields of the rows that read YAML. The names that
conditions may compare come from the loader's validation context::

    class Constraint(Row):
        needs: Conditions = ()
        needs_any: Alternatives = ()

    load_table(path, Constraints, lambda: {"facts": KnownFacts.of(definitions)})
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from operator import ge, gt, le, lt
from typing import TYPE_CHECKING, Annotated, Any

from three_walls.model.condition import OPERATORS, Condition
from three_walls.model.config import ConfigData, ConfigScalar
from three_walls.model.fact import FactDefinition, FactSheet
from three_walls.tables.loader import KEY, Loc, describe, raise_contradictions, suggest
from three_walls.tables.rows import PlainValidator

if TYPE_CHECKING:
    from pydantic import ValidationInfo

_COMPARE: Mapping[str, Callable[[float, float], bool]] = {"at_least": ge, "at_most": le, "above": gt, "below": lt}
ORDERED = tuple(_COMPARE)
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
    """Unit by name. Suggestions for a misspelt name come from these names."""
    unit_of_other: Callable[[str], str | None] = unit_of_setting
    """Unit of a name that is not in ``units``; None for a name that no condition may compare."""
    definitions: Mapping[str, FactDefinition] = field(default_factory=dict)
    """By name; empty where conditions compare something other than the facts of a FactSheet."""

    @staticmethod
    def of(definitions: Iterable[FactDefinition]) -> KnownFacts:
        """The defined facts, and every config key and variable of a run."""
        by_name = {definition.name: definition for definition in definitions}
        return KnownFacts({name: found.unit for name, found in by_name.items()}, definitions=by_name)

    def unit_of(self, name: str) -> str | None:
        """Unit of ``name``: ``config`` for config keys, ``env`` for variables, None for an unknown name."""
        return self.units.get(name) or self.unit_of_other(name)

    def check(self, name: str, unit: str = "") -> str:
        """Why ``name`` cannot stand where a fact (in ``unit``) is expected; empty if it can."""
        found = self.unit_of(name)
        if found is None:
            hint = suggest(name, self.units) or ("; three-walls facts lists the facts" if self.definitions else "")
            return f"unknown fact {name}{hint}"
        return f"expected a fact in {unit}, found {name} ({found})" if unit and found != unit else ""


_Problem = tuple[Loc, str]
"""Where in a group of conditions, and what is wrong."""


def _known_facts(info: ValidationInfo) -> KnownFacts:
    known = (info.context or {}).get("facts")
    if not isinstance(known, KnownFacts):
        raise TypeError('conditions are read with context={"facts": KnownFacts(...)}')
    return known


def _read_conditions(value: Any, info: ValidationInfo) -> tuple[Condition, ...]:
    """The conditions of a mapping, in order; all problems of the mapping are raised together."""
    problems: list[_Problem] = []
    conditions = _parse(value, (), _known_facts(info), problems)
    raise_contradictions(problems)
    return conditions


def _read_alternatives(value: Any, info: ValidationInfo) -> tuple[Condition, ...]:
    """The condition of each element of a list, in order; all problems of the list are raised together."""
    if not isinstance(value, list):
        raise ValueError(f"expected a list, found {describe(value)}")
    problems: list[_Problem] = []
    alternatives: list[Condition] = []
    for place, item in enumerate(value):
        conditions = _parse(item, (place,), _known_facts(info), problems)
        if len(conditions) > 1:
            problems.append(((place,), f"each element of any_of is one comparison, found {len(conditions)}"))
        alternatives += conditions
    raise_contradictions(problems)
    return tuple(alternatives)


Conditions = Annotated[tuple[Condition, ...], PlainValidator(_read_conditions)]
"""``fact: {operator: operand}`` entries; all must hold."""

Alternatives = Annotated[tuple[Condition, ...], PlainValidator(_read_alternatives)]
"""A list of ``fact: {operator: operand}``, one comparison each; one must hold."""


def _parse(value: Any, loc: Loc, known: KnownFacts, problems: list[_Problem]) -> tuple[Condition, ...]:
    """The well-formed comparisons of a mapping; ``problems`` gets the others."""
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
            problems.append(((*loc, fact), f"expected {{operator: operand}}, such as {{at_least: 2}}{found}"))
            continue
        for operator, operand in tests.items():
            place = (*loc, fact, operator)
            if operator not in OPERATORS:
                problems.append(((*place, KEY), f"unknown operator {operator}{suggest(operator, OPERATORS)}"))
                continue
            as_read = tuple(operand) if isinstance(operand, list) else operand
            if problem := check_operand(unit, operator, as_read):
                problems.append((place, f"{fact}: {problem}, found {describe(operand)}"))
                continue
            conditions.append(Condition(fact, operator, as_read))
    return tuple(conditions)


def check_operand(unit: str, operator: str, operand: object) -> str:
    """Why ``operator`` cannot compare a fact in ``unit`` with ``operand``; empty if it can."""
    values = operand if isinstance(operand, tuple) else (operand,)
    if any(isinstance(value, dict | list) for value in values):
        return f"{operator} takes a value or a list of values"
    if operator == "is_set":
        return "" if isinstance(operand, bool) else "is_set takes true or false"
    if operator in ORDERED:
        if unit in ("flag", "text", "env"):
            return f"{operator} needs a numeric fact, this fact is {unit}"
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
    compared = values if operator in LISTED else (operand,)
    return next((problem for value in compared if (problem := check_value(unit, value))), "")


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
    """What a comparison comes to."""

    HOLDS = "holds"
    FAILS = "fails"
    UNKNOWN = "unknown"


def evaluate(condition: Condition, facts: FactSheet) -> Truth:
    """Whether ``condition`` holds; unknown only when its fact is missing."""
    fact = facts.get(condition.fact)
    if fact.is_missing:
        return Truth.UNKNOWN
    return Truth.HOLDS if _compare(condition, fact.value) else Truth.FAILS


def evaluate_all(conditions: Iterable[Condition], facts: FactSheet) -> Truth:
    """Whether all hold: fails if any of them fails, else unknown if any of them is unknown."""
    answers = {evaluate(condition, facts) for condition in conditions}
    if Truth.FAILS in answers:
        return Truth.FAILS
    return Truth.UNKNOWN if Truth.UNKNOWN in answers else Truth.HOLDS


def evaluate_any(conditions: Iterable[Condition], facts: FactSheet) -> Truth:
    """Whether at least one holds: holds if any of them holds, else unknown if any of them is unknown."""
    answers = {evaluate(condition, facts) for condition in conditions}
    if Truth.HOLDS in answers:
        return Truth.HOLDS
    return Truth.UNKNOWN if Truth.UNKNOWN in answers else Truth.FAILS


def that_are(truth: Truth, conditions: Iterable[Condition], facts: FactSheet) -> tuple[Condition, ...]:
    """The ``conditions`` that come to ``truth``, in order."""
    return tuple(condition for condition in conditions if evaluate(condition, facts) is truth)


def same(value: ConfigData, other: ConfigData) -> bool:
    """Equality in which true is not 1, and 2 equals 2.0."""
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
            return _contains(_listed(condition), value)
        case "none_of":
            return not _contains(_listed(condition), value)
        case "within":
            return isinstance(value, tuple) and all(_contains(_listed(condition), element) for element in value)
        case "includes":
            return _contains(value, operand)
        case "excludes":
            return not _contains(value, operand)
        case operator if operator in ORDERED:
            fact = condition.fact
            return value is not None and _COMPARE[operator](_number(value, fact), _number(operand, fact))
        case operator:
            raise ValueError(f"unknown operator {operator} for {condition.fact}")


def _contains(value: ConfigData, part: ConfigData) -> bool:
    """Whether a list has the element ``part``, or a text contains it."""
    if isinstance(value, str):
        return isinstance(part, str) and part in value
    return isinstance(value, tuple) and any(same(element, part) for element in value)


def _listed(condition: Condition) -> tuple[ConfigScalar, ...]:
    if not isinstance(condition.operand, tuple):
        raise TypeError(f"{condition.operator} of {condition.fact} needs a list, found {condition.operand!r}")
    return condition.operand


def _number(value: ConfigData, fact: str) -> float:
    if isinstance(value, int | float) and is_number(value):
        return value
    raise TypeError(f"expected a number to compare {fact} with a limit, found {value!r}")
