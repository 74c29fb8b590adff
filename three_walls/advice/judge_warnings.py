"""Warnings that are comparisons of facts: read from ``rules/warnings/``, judged by the same engine as rules.

A message contains ``{fact:form}``, with a form of :data:`FORMS`. Warnings that need more than facts (rows that a reader
skipped, ranks that do not match) are made by the stage that has them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ValidationInfo

from three_walls.advice.format.conditions import Conditions, KnownFacts, evaluate_all
from three_walls.advice.format.rule_fields import Prose
from three_walls.advice.upper_bound import find_unpaused
from three_walls.lib.expressions import Truth
from three_walls.lib.fact import Fact, FactDefinition, FactSheet
from three_walls.lib.load_documents import Problem, Text, raise_problems, read_table, suggest
from three_walls.lib.report_warning import ReportWarning
from three_walls.lib.resources import WARNINGS_FOLDER
from three_walls.lib.text import UNKNOWN, capitalize, format_count, in_ms, in_percent
from three_walls.step.step_rows import Straggler

FORMS: dict[str, Callable[[Fact], str]] = {
    "percent": lambda fact: in_percent(_number(fact)),
    "ms": lambda fact: in_ms(_number(fact)),
    "count": lambda fact: format_count(_number(fact)),
    "ratio": lambda fact: f"{_number(fact):.2f}",
    "text": lambda fact: str(fact.value).replace("_", " "),
    "reason": lambda fact: capitalize(fact.missing_reason or UNKNOWN),
}
"""How a fact is written into a message; ``reason`` is why the fact is missing."""

_PLACE = re.compile(r"\{([\w.]+):(\w+)\}")
_OF_STRAGGLER = "straggler_rank"
"""The rank, in messages of warnings that are judged per straggler."""


def _check_message(message: str, info: ValidationInfo) -> str:
    known: KnownFacts = (info.context or {})["facts"]
    for fact, form in _PLACE.findall(message):
        if fact != _OF_STRAGGLER and (problem := known.check(fact)):
            raise ValueError(problem)
        if form not in FORMS:
            raise ValueError(f"unknown form {form}{suggest(form, FORMS)}")
    if "{" in _PLACE.sub("", message):
        raise ValueError(f"expected {{fact:form}} in braces, with a form of {', '.join(FORMS)}")
    return message


@dataclass(frozen=True, slots=True, kw_only=True)
class WarningRule:
    """A warning that depends on facts: given where all of ``when`` hold and not all of ``unless``."""

    code: Text
    per_straggler: bool = False
    """Judged once for each straggler, on its figures."""
    when: Conditions
    unless: Conditions = ()
    message: Annotated[Prose, AfterValidator(_check_message)]
    """Sentences with placeholders ``{fact:form}``."""


def load_warnings(directory: Path, *more: Path, definitions: Iterable[FactDefinition]) -> tuple[WarningRule, ...]:
    """The warnings of ``directory`` and of ``more`` directories, by path; RuleBaseError lists all problems."""
    problems: list[Problem] = []
    context = {"facts": KnownFacts.of(definitions)}
    warnings = [read_table(path, WarningRule, problems, context) for path in warning_files(directory, *more)]
    raise_problems(problems)
    return tuple(warning for warning in warnings if warning is not None)


def warning_files(*directories: Path) -> tuple[Path, ...]:
    """The files of warnings in the order of what :func:`load_warnings` gives."""
    return tuple(sorted(path for place in directories for path in (place / WARNINGS_FOLDER).glob("*.yaml")))


def judge_warnings(
    warnings: Sequence[WarningRule], facts: FactSheet, stragglers: Iterable[Straggler] = ()
) -> tuple[ReportWarning, ...]:
    """The warnings that hold: those about each straggler first, then those about the run."""
    sheets = [(True, _facts_of(straggler, facts)) for straggler in stragglers]
    return tuple(
        ReportWarning(warning.code, _fill(warning.message, sheet))
        for per_straggler, sheet in (*sheets, (False, facts))
        for warning in warnings
        if warning.per_straggler is per_straggler and _holds(warning, sheet)
    )


def _holds(warning: WarningRule, facts: FactSheet) -> bool:
    excepted = bool(warning.unless) and evaluate_all(warning.unless, facts) is Truth.HOLDS
    return evaluate_all(warning.when, facts) is Truth.HOLDS and not excepted


def _fill(message: str, facts: FactSheet) -> str:
    return _PLACE.sub(lambda place: FORMS[place[2]](facts.get(place[1])), message)


def _facts_of(straggler: Straggler, facts: FactSheet) -> FactSheet:
    """``facts`` with the straggler facts of ``straggler`` in place of those of the latest rank."""
    step_ns = find_unpaused(facts)
    if not step_ns:
        return facts
    # As in straggler_late_recoverable_ns, the profiler only explains a delay that comes from late launches.
    is_launch_starved = straggler.cause.replace("_", "-") == "launch-starved"
    excess_ns = (facts.number("profiler_excess_ns") or 0) if is_launch_starved else 0
    return facts.with_values(
        {
            _OF_STRAGGLER: straggler.rank,
            "straggler_late_ns": straggler.late_ns,
            "straggler_late_fraction": straggler.late_ns / step_ns,
            "straggler_late_recoverable_ns": max(0, round(straggler.late_ns - excess_ns)),
            "straggler_cause": straggler.cause,
        }
    )


def _number(fact: Fact) -> float:
    if isinstance(fact.value, bool) or not isinstance(fact.value, int | float):
        raise TypeError(f"expected a number for {fact.name}, found {fact.value!r}")
    return fact.value
