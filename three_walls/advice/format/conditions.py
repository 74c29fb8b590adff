"""Conditions of rules on facts: which expressions may stand there, and whether they hold for a run.

A condition holds, fails, or is unknown because its fact is missing. A setting that is known to be unset (value
``None``) is not missing: it is None, and every comparison with a number or with a list without None fails.

:data:`Conditions` is a type for fields of the dataclasses that read YAML. The names that conditions may compare come
from the loader's validation context::

    @dataclass(frozen=True, slots=True)
    class Constraint:
        needs: Conditions = ()

    load_table(path, Constraints, {"facts": KnownFacts.of(definitions)})
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import PlainValidator, ValidationInfo

from three_walls.lib.expressions import (
    CONTAINING,
    LISTED,
    OPERATIONS,
    ORDERED,
    Clause,
    Condition,
    Expression,
    Junction,
    Name,
    Operation,
    Truth,
    Value,
    parse_expression,
)
from three_walls.lib.fact import FactDefinition, FactSheet
from three_walls.lib.load_documents import Loc, describe, raise_contradictions, suggest
from three_walls.lib.measurement import NUMERIC
from three_walls.lib.plain_data import ConfigData

_EXAMPLE = "config.num_moe_experts >= 2"
_CONSTANTS = {"true": "True", "false": "False", "null": "None"}


def unit_of_setting(name: str) -> str | None:
    """``config`` for any ``config.<key>``, ``env`` for any ``env.<VARIABLE>``; None for every other name."""
    prefix, dot, _ = name.partition(".")
    return prefix if dot and prefix in ("config", "env") else None


@dataclass(frozen=True, slots=True)
class KnownFacts:
    """The facts that conditions may compare: those that are defined, and every config key and variable of a run."""

    definitions: Mapping[str, FactDefinition]
    """By name. Suggestions for a misspelt name come from these names."""

    @staticmethod
    def of(definitions: Iterable[FactDefinition]) -> KnownFacts:
        """Those of ``definitions``."""
        return KnownFacts({definition.name: definition for definition in definitions})

    def unit_of(self, name: str) -> str | None:
        """Unit of ``name``: ``config`` for config keys, ``env`` for variables, None for an unknown name."""
        definition = self.definitions.get(name)
        return definition.unit if definition else unit_of_setting(name)

    def check(self, name: str, unit: str = "") -> str:
        """Why ``name`` cannot stand where a fact (in ``unit``) is expected; empty if it can."""
        found_unit = self.unit_of(name)
        if found_unit is None:
            hint = suggest(name, self.definitions) or "; three-walls facts lists the facts"
            return f"unknown fact {name}{hint}"
        return f"expected a fact in {unit}, found {name} ({found_unit})" if unit and found_unit != unit else ""


def _read_conditions(value: Any, info: ValidationInfo) -> tuple[Clause, ...]:
    """The conditions of a text or of a list of texts, in order; all problems are raised together."""
    known = (info.context or {}).get("facts")
    if not isinstance(known, KnownFacts):
        raise TypeError('conditions are read with context={"facts": KnownFacts(...)}')
    problems: list[tuple[Loc, str]] = []
    conditions: list[Clause] = []
    for place, text in enumerate(value if isinstance(value, list) else [value]):
        loc = (place,) if isinstance(value, list) else ()
        try:
            conditions += _read_condition(text, known)
        except ValueError as error:
            problems += [(loc, problem) for problem in error.args]
    raise_contradictions(problems)
    return tuple(conditions)


Conditions = Annotated[tuple[Clause, ...], PlainValidator(_read_conditions)]
"""A text or a list of texts, all of which must hold: comparisons of a fact with a value, with ``and`` and ``or``."""


def _read_condition(text: object, known: KnownFacts) -> tuple[Clause, ...]:
    """The conditions in ``text``, all of which must hold; the arguments of a ValueError are its problems."""
    if not isinstance(text, str):
        raise ValueError(f"expected a condition such as {_EXAMPLE}, found {describe(text)}")
    expression = parse_expression(text)
    if problems := tuple(_find_problems(expression, text, known)):
        raise ValueError(*problems)
    assert isinstance(expression, Clause)  # else there was a problem
    if isinstance(expression, Junction) and expression.word == "and":
        return expression.parts
    return (expression,)


def _find_problems(expression: Expression, text: str, known: KnownFacts) -> Iterator[str]:
    """Why ``expression``, a part of ``text``, is no condition."""
    match expression:
        case Junction(parts=parts):
            for part in parts:
                yield from _find_problems(part, text, known)
        case Condition(name, sign, value):
            unit = known.unit_of(name)
            if unit is None:
                yield known.check(name)
            elif problem := check_value(unit, sign, value):
                yield f"{name}: {problem}, found {describe(value)}"
        case Operation(operands=(Name(name), Name(other))):
            yield known.check(name) or f"{name}: expected a value, found {other}{_suggest_value(other, known)}"
        case _:
            yield f"expected a comparison of a fact with a value, such as {_EXAMPLE}, found {text}"


def _suggest_value(name: str, known: KnownFacts) -> str:
    if name in _CONSTANTS:
        return f" (did you mean {_CONSTANTS[name]}?)"
    return ", another fact" if known.unit_of(name) else f" (did you mean {name!r}?)"


def check_value(unit: str, operator: str, value: Value) -> str:
    """Why ``operator`` cannot compare a fact in ``unit`` with ``value``; empty if it can."""
    if operator in ORDERED:
        if unit in ("flag", "text", "env"):
            return f"{operator} needs a numeric fact, this fact is {unit}"
        if not is_number(value):
            return f"{operator} takes a number"
        assert isinstance(value, int | float)
        return "a fraction lies between 0 and 1" if unit == "fraction" and not 0 <= value <= 1 else ""
    if operator in CONTAINING:
        if unit not in ("config", "env", "text"):
            return f"{CONTAINING[operator]} needs a list or text, this fact is in {unit}"
        return "" if isinstance(value, str) else f"{CONTAINING[operator]} takes text"
    if operator in LISTED:
        if not isinstance(value, tuple):
            return f"{operator} takes a list"
        return next((problem for element in value if (problem := _check_equal(unit, element))), "")
    if operator in ("is", "is not"):
        if value is None:
            return ""
        if not isinstance(value, bool):
            return f"{operator} takes True, False or None; write == or !="
    return _check_equal(unit, value)


def _check_equal(unit: str, value: Value) -> str:
    """Why a fact in ``unit`` cannot equal ``value``; empty if it can."""
    if unit in NUMERIC and not is_number(value):
        return f"a fact in {unit} is compared with a number"
    if unit == "flag" and not isinstance(value, bool):
        return "a flag is compared with True or False"
    if unit == "text" and not isinstance(value, str):
        return "a text fact is compared with text"
    if unit == "env" and not isinstance(value, str | None):
        return "a variable is compared with text (quote it) or None"
    return ""


def is_number(value: object) -> bool:
    """Whether ``value`` is a number; a boolean is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def evaluate(condition: Clause, facts: FactSheet) -> Truth:
    """Whether ``condition`` holds; unknown only when a fact that it depends on is missing."""
    return Truth.of(_answer(condition, facts))


def _answer(condition: Clause, facts: FactSheet) -> bool | Truth:
    if isinstance(condition, Junction):
        answer: bool | Truth = condition.decide(lambda part: _answer(part, facts))
        return answer
    fact = facts.get(condition.name)
    return Truth.UNKNOWN if fact.is_missing else _compare(condition, fact.value)


def evaluate_all(conditions: Iterable[Clause], facts: FactSheet) -> Truth:
    """Whether all hold: fails if any of them fails, else unknown if any of them is unknown."""
    answers = {evaluate(condition, facts) for condition in conditions}
    return next((answer for answer in (Truth.FAILS, Truth.UNKNOWN) if answer in answers), Truth.HOLDS)


def that_are(truth: Truth, conditions: Iterable[Clause], facts: FactSheet) -> tuple[Clause, ...]:
    """The ``conditions`` that come to ``truth``, in order; of junctions only the parts that do."""
    return tuple(_only(truth, condition, facts) for condition in conditions if evaluate(condition, facts) is truth)


def _only(truth: Truth, condition: Clause, facts: FactSheet) -> Clause:
    if isinstance(condition, Condition):
        return condition
    parts = that_are(truth, condition.parts, facts)
    return replace(condition, parts=parts) if len(parts) > 1 else parts[0]


def list_conditions(clauses: Iterable[Clause]) -> Iterator[Condition]:
    """Each comparison in ``clauses``."""
    for clause in clauses:
        if isinstance(clause, Condition):
            yield clause
        else:
            yield from list_conditions(clause.parts)


def same(value: ConfigData, other: ConfigData) -> bool:
    """Equality in which true is not 1, and 2 equals 2.0."""
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    if isinstance(value, tuple) and isinstance(other, tuple):
        return len(value) == len(other) and all(map(same, value, other))
    return value == other


def _compare(condition: Condition, found: ConfigData) -> bool:
    value = condition.value
    if condition.operator not in ORDERED:
        return _COMPARE[condition.operator](found, value)
    if found is None:
        return False
    holds: bool = OPERATIONS[condition.operator](_number(found, condition.name), _number(value, condition.name))
    return holds


def _contains(value: ConfigData, part: ConfigData) -> bool:
    """Whether a list has the element ``part``, or a text contains it."""
    if isinstance(value, str):
        return isinstance(part, str) and part in value
    return isinstance(value, tuple) and any(same(element, part) for element in value)


def _number(value: ConfigData, fact: str) -> float:
    if isinstance(value, int | float) and is_number(value):
        return value
    raise TypeError(f"expected a number to compare {fact} with a limit, found {value!r}")


_COMPARE: Mapping[str, Callable[[ConfigData, ConfigData], bool]] = {
    "==": same,
    "is": same,
    "!=": lambda found, value: not same(found, value),
    "is not": lambda found, value: not same(found, value),
    "in": lambda found, value: _contains(value, found),
    "not in": lambda found, value: not _contains(value, found),
    "contains": _contains,
    "lacks": lambda found, value: not _contains(found, value),
}
"""What comparisons other than with a limit mean here."""
