"""Conditions as sentences for a reader.

``Unfused attention takes 28.6% of the step (threshold 5%)``; ``cpu_offloading is on (must be off)``; to confirm,
``cpu_offloading is off``. A fact is called by the label of its definition (``lib/fact.py``).
"""

from __future__ import annotations

from collections.abc import Iterable

from three_walls.advice.format.conditions import evaluate, unit_of_setting
from three_walls.lib.expressions import ORDERED, Clause, Condition, Junction, Truth, list_names
from three_walls.lib.fact import Fact, FactSheet
from three_walls.lib.plain_data import ConfigData
from three_walls.lib.text import UNSET, capitalize, format_name, join_words, write_rounded

_LIMITS = {">=": "threshold", "<=": "limit", ">": "must be more than", "<": "must be less than"}
"""How a limit of something measured is written. Settings have to be ``at least 2``."""
_COMPARED = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}


def explain(conditions: Iterable[Clause], facts: FactSheet, joined_by: str = "; ") -> str:
    """What was found and what is needed, for several conditions."""
    explained = [(explain_one(condition, facts), facts.get(list_names(condition)[0]).label) for condition in conditions]
    rest = [_lower_first(sentence, label) for sentence, label in explained[1:]]
    return joined_by.join([sentence for sentence, _ in explained[:1]] + rest)


def explain_one(condition: Clause, facts: FactSheet) -> str:
    """What was found, and what is needed unless a setting is as it should be."""
    if isinstance(condition, Junction):
        return explain(condition.parts, facts, joined_by=", or " if condition.word == "or" else " and ")
    fact = facts.get(condition.name)
    if fact.is_missing:
        missing = describe_missing(fact.name, facts)
        return f"{missing} ({_requirement(condition, fact.unit)})" if unit_of_setting(fact.name) else missing
    if condition.operator not in ORDERED and evaluate(condition, facts) is Truth.HOLDS:
        return state(fact)  # "is off (must be off)" says nothing more; how far a number is from its limit does
    if _answer(fact, fact.value):
        return state(fact)  # a sentence that is true or not needs no limit
    return f"{state(fact)} ({_requirement(condition, fact.unit)})"


def describe_missing(name: str, facts: FactSheet) -> str:
    """That a fact is not known, and why."""
    fact = facts.get(name)
    if unit_of_setting(name):
        return f"{_upper_first(fact)} is not recorded"
    reason = f": {fact.missing_reason}" if fact.name in facts.facts and fact.missing_reason else ""
    return f"{_upper_first(fact)} is unknown{reason}"


def list_labels(names: Iterable[str], facts: FactSheet) -> str:
    """Several facts as a list within a sentence."""
    return ", ".join(facts.get(name).label for name in names)


def state(fact: Fact) -> str:
    """The value of a fact as a sentence."""
    if answer := _answer(fact, fact.value):
        return answer
    return f"{_upper_first(fact)} {_verb(fact)} {format_value(fact.value, fact.unit)}{_of_whole(fact)}"


def confirmation(condition: Clause, facts: FactSheet) -> str:
    """What a person is to confirm of a fact that is not known: ``cpu_offloading is off (not recorded)``."""
    if isinstance(condition, Junction):
        return f" {condition.word} that ".join(confirmation(part, facts) for part in condition.parts)
    fact = facts.get(condition.name)
    value = condition.value if condition.operator in ("==", "is") else None
    if answer := _answer(fact, value):
        return f"{_lower_first(answer, fact.label)} (unknown)"
    missing = "not recorded" if unit_of_setting(condition.name) else "unknown"
    predicate = _predicate(condition, fact.unit, _verb(fact))
    return f"{fact.label} {predicate}{_of_whole(fact)} ({missing})"


def _answer(fact: Fact, value: ConfigData) -> str:
    """The sentence that a flag has for ``value``; empty for other facts and other values."""
    if not isinstance(value, bool) or fact.definition is None:
        return ""
    return fact.definition.if_true if value else fact.definition.if_false


def _verb(fact: Fact) -> str:
    """Parts of the step take time; everything else has a value."""
    return "takes" if fact.definition and fact.definition.whole == "the step" else "is"


def _of_whole(fact: Fact) -> str:
    return f" of {fact.definition.whole}" if fact.definition and fact.definition.whole else ""


def format_value(value: ConfigData, unit: str = "") -> str:
    """A value in its unit, to about three significant digits; switches are on or off."""
    match value:
        case None:
            return UNSET
        case bool():
            return "on" if value else "off"
        case tuple():
            return f"[{', '.join(format_value(part) for part in value)}]"
        case str():
            return format_name(value) if unit == "text" and not value.startswith("sm_") else value
        case _:
            return write_rounded(value, unit)


def _requirement(condition: Condition, unit: str) -> str:
    """What is needed, in brackets behind what was found: ``threshold 5%``, ``must be off``."""
    if condition.operator in ORDERED and not unit_of_setting(condition.name):
        return f"{_LIMITS[condition.operator]} {format_value(condition.value, unit)}"
    predicate = _predicate(condition, unit, "be")
    return f"must {predicate}"


def _predicate(condition: Condition, unit: str, verb: str) -> str:
    """What a condition asks of its fact, after ``is`` (or ``takes``), or after ``must``, then with ``be``."""
    value = condition.value
    listed = [format_value(part, unit) for part in (value if isinstance(value, tuple) else (value,))]
    any_of = join_words(listed, "or")
    must = verb == "be"
    match condition.operator:
        case "!=" | "is not" if value is None:
            return f"{verb} set"
        case "!=" | "is not" if isinstance(value, bool):
            return f"{verb} {format_value(not value)}"
        case "==" | "is" | "in":
            return f"{verb} {any_of}"
        case "!=" | "not in":
            return f"not be {any_of}" if must else f"is not {any_of}"
        case "contains":
            return f"{'include' if must else 'includes'} {any_of}"
        case "lacks":
            return f"not include {any_of}" if must else f"does not include {any_of}"
        case operator:
            return f"{verb} {_COMPARED[operator]} {any_of}"


def _upper_first(fact: Fact) -> str:
    """The label of a fact at the beginning of a sentence; keys of settings stay as they are."""
    return fact.label if unit_of_setting(fact.name) else capitalize(fact.label)


def _lower_first(sentence: str, label: str) -> str:
    """``sentence`` for the middle of another one. Words in capitals stay, such as GEMMs, and names in ``label``."""
    first = sentence.split(" ", 1)[0]
    is_name = any(letter.isupper() for letter in first[1:]) or first in label.split(" ")
    return sentence if is_name else sentence[:1].lower() + sentence[1:]
