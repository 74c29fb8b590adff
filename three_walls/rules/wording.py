"""Conditions as sentences for a reader.

``Unfused attention takes 28.6 % of the step (threshold 5 %)``; ``cpu_offloading is on (must be off)``; to confirm,
``cpu_offloading is off``. What facts are called stands in ``tables/fact-labels.yaml``.
"""

from __future__ import annotations

from collections.abc import Iterable

from three_walls.model.config import ConfigData
from three_walls.model.fact import Fact, FactSheet
from three_walls.model.rule import Condition
from three_walls.model.units import ns_to_ms
from three_walls.rules.conditions import ORDERED, Truth, evaluate, unit_of_setting
from three_walls.tables.fact_labels import fact_labels

_LIMITS = {"at_least": "threshold", "at_most": "limit", "above": "must be more than", "below": "must be less than"}
_COMPARED = {"at_least": "at least", "at_most": "at most", "above": "more than", "below": "less than"}
_GIB = 1 << 30


def explain(conditions: Iterable[Condition], facts: FactSheet, joined_by: str = "; ") -> str:
    """What was found and what is needed, for several conditions."""
    sentences = [explain_one(condition, facts) for condition in conditions]
    return joined_by.join(sentences[:1] + [_lower_first(sentence) for sentence in sentences[1:]])


def explain_one(condition: Condition, facts: FactSheet) -> str:
    """What was found, and what is needed unless a setting is as it should be."""
    fact = facts.get(condition.fact)
    if fact.is_missing:
        return f"{describe_missing(fact.name, facts)} ({_requirement(condition, _unit(fact, facts))})"
    if condition.operator not in ORDERED and evaluate(condition, facts) is Truth.HOLDS:
        return state(fact)  # "is off (must be off)" says nothing more; how far a number is from its limit does
    if isinstance(fact.value, bool) and fact.name in fact_labels().flags:
        return state(fact)  # a sentence that is true or not needs no limit
    return f"{state(fact)} ({_requirement(condition, fact.unit)})"


def describe_missing(name: str, facts: FactSheet) -> str:
    """That a fact is not known, and why."""
    fact = facts.get(name)
    if unit_of_setting(name):
        return f"{label(name)} is not recorded"
    reason = f": {fact.missing_reason}" if fact.name in facts.facts and fact.missing_reason else ""
    return f"{label(name)} is unknown{reason}"


def label(name: str) -> str:
    """What a fact is called as the subject of a sentence."""
    sentences = fact_labels().flags.get(name)
    return f'Whether "{sentences.yes}"' if sentences else fact_labels().label(name)


def list_labels(names: Iterable[str]) -> str:
    """Several facts as a list within a sentence."""
    return ", ".join(_lower_first(label(name)) for name in names)


def state(fact: Fact) -> str:
    """The value of a fact as a sentence."""
    labels = fact_labels()
    if isinstance(fact.value, bool) and (sentences := labels.flags.get(fact.name)):
        return sentences.yes if fact.value else sentences.no
    verb = "takes" if labels.is_time(fact.name) else "is"
    of_whole = f" of {whole}" if (whole := labels.whole(fact.name)) else ""
    return f"{labels.label(fact.name)} {verb} {format_value(fact.value, fact.unit)}{of_whole}"


def confirmation(condition: Condition, facts: FactSheet) -> str:
    """What a person is to confirm of a fact that is not known: ``cpu_offloading is off (not recorded)``."""
    sentences = fact_labels().flags.get(condition.fact)
    wanted = condition.operand if condition.operator == "equals" else None
    if sentences and isinstance(wanted, bool):
        return f"{_lower_first(sentences.yes if wanted else sentences.no)} (unknown)"
    fact = facts.get(condition.fact)
    missing = "not recorded" if unit_of_setting(condition.fact) else "unknown"
    verb = "takes" if fact_labels().is_time(condition.fact) else "is"
    of_whole = f" of {whole}" if (whole := fact_labels().whole(condition.fact)) else ""
    return (
        f"{_lower_first(label(condition.fact))} {_predicate(condition, _unit(fact, facts), verb)}{of_whole} ({missing})"
    )


def _unit(fact: Fact, facts: FactSheet) -> str:
    """Unit of a fact; of one that is not on the sheet by its name, which ends in its unit."""
    if fact.name in facts.facts or unit_of_setting(fact.name):
        return fact.unit
    return next((unit for unit in ("ns", "fraction", "bytes", "count", "ratio") if fact.name.endswith(f"_{unit}")), "")


def format_value(value: ConfigData, unit: str = "") -> str:
    """A value in its unit, to about three significant digits; switches are on or off."""
    match value:
        case None:
            return "unset"
        case bool():
            return "on" if value else "off"
        case tuple():
            return f"[{', '.join(format_value(part) for part in value)}]"
        case str():
            return value.replace("_", " ") if unit == "text" and not value.startswith("sm_") else value
        case _ if unit == "ns":
            return f"{_round(ns_to_ms(value))} ms"
        case _ if unit == "fraction":
            return f"{_round(value * 100)} %"
        case _ if unit == "bytes":
            return f"{_round(value / _GIB)} GiB"
        case _:
            return f"{value:,}" if isinstance(value, int) and unit == "count" else _round(value)


def _round(value: float) -> str:
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{value:.3g}"


def _requirement(condition: Condition, unit: str) -> str:
    """What is needed, in brackets behind what was found: ``threshold 5 %``, ``must be off``."""
    if condition.operator in ORDERED:
        return f"{_LIMITS[condition.operator]} {format_value(condition.operand, unit)}"
    predicate = _predicate(condition, unit, "be")
    return f"must {predicate}"


def _predicate(condition: Condition, unit: str, verb: str) -> str:
    """What a condition asks of its fact, after ``is`` (or ``takes``), or after ``must``, then with ``be``."""
    operand = condition.operand
    listed = [format_value(part, unit) for part in (operand if isinstance(operand, tuple) else (operand,))]
    any_of = ", ".join(listed[:-1]) + (" or " if len(listed) > 1 else "") + listed[-1]
    must = verb == "be"
    match condition.operator:
        case "is_set":
            return f"{verb} {'set' if operand else 'unset'}"
        case "not_equals" if isinstance(operand, bool):
            return f"{verb} {format_value(not operand)}"
        case "equals" | "one_of":
            return f"{verb} {any_of}"
        case "not_equals" | "none_of":
            return f"not be {any_of}" if must else f"is not {any_of}"
        case "within":
            return f"{'contain' if must else 'contains'} nothing but {', '.join(listed)}"
        case "includes":
            return f"{'include' if must else 'includes'} {any_of}"
        case "excludes":
            return f"not include {any_of}" if must else f"does not include {any_of}"
        case operator:
            return f"{verb} {_COMPARED[operator]} {any_of}"


def _lower_first(sentence: str) -> str:
    """``sentence`` for the middle of another one; words in capitals such as GEMMs stay."""
    first = sentence.split(" ", 1)[0]
    return sentence if any(letter.isupper() for letter in first[1:]) else sentence[:1].lower() + sentence[1:]
