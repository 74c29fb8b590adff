"""Cases of a rule: facts in, expected finding out. They are the tests of a rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ValidationInfo

from three_walls.advice.finding import Finding, Outcome
from three_walls.advice.format.conditions import KnownFacts
from three_walls.advice.format.load_rules import CASES_SUFFIX
from three_walls.lib.fact import Fact, FactDefinition, FactSheet
from three_walls.lib.load_documents import (
    KEY,
    NOT_STATED,
    ByName,
    NamedRow,
    Text,
    Value,
    load_table,
    raise_contradictions,
)
from three_walls.lib.plain_data import ConfigData


def _check_names(values: dict[str, ConfigData], info: ValidationInfo) -> dict[str, ConfigData]:
    known: KnownFacts = (info.context or {})["facts"]
    raise_contradictions(((name, KEY), problem) for name in values if (problem := known.check(name)))
    return values


Facts = Annotated[dict[str, Value], AfterValidator(_check_names)]
"""Values of facts by name."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """What the finding must be. Only the named parts are compared."""

    outcome: Outcome
    edits: dict[Text, Value] | None = None
    """Targets of edits that the finding must have, by key; it may have others."""
    edits_absent: tuple[Text, ...] = ()
    missing: tuple[Text, ...] | None = None
    blocked_by: tuple[Text, ...] | None = None
    confirm_first: tuple[Text, ...] | None = None
    gain_at_most_ns: int | None = NOT_STATED
    """The upper bound of the gain; null where even that is not known."""

    def mismatches(self, finding: Finding) -> list[str]:
        """One sentence for each difference between the expectation and ``finding``."""
        targets = {edit.key: edit.to for edit in finding.edits}
        wrong = [f"edit {key}: expected none, found {targets[key]}" for key in self.edits_absent if key in targets]
        compared: list[tuple[str, object, object]] = [("outcome", self.outcome.value, finding.outcome.value)]
        for name, expected, found in (
            ("missing", self.missing, finding.missing),
            ("blocked_by", self.blocked_by, [note.name for note in finding.blocked_by]),
            ("confirm_first", self.confirm_first, [note.name for note in finding.confirm_first]),
        ):
            if expected is not None:
                compared.append((name, sorted(expected), sorted(found)))
        for key, target in (self.edits or {}).items():
            compared.append((f"edit {key}", target, targets.get(key, "no such edit")))
        if self.gain_at_most_ns is not NOT_STATED:
            compared.append(("gain_at_most_ns", self.gain_at_most_ns, finding.gain_ns.high))
        return wrong + [
            f"{name}: expected {expected}, found {found}"
            for name, expected, found in compared
            if type(expected) is not type(found) or expected != found
        ]


@dataclass(frozen=True, slots=True)
class Case(NamedRow):
    """One sentence about a rule: how the workload is changed, and what the finding must be."""

    expect: Expectation
    given: Facts = field(default_factory=dict)
    without: tuple[Text, ...] = ()
    """Facts that are missing."""
    environment_is_known: bool = False
    """Every variable that is not among the facts is unset."""


def _check_rule(rule: str, info: ValidationInfo) -> str:
    path: Path = (info.context or {})["path"]
    if path.name != f"{rule}{CASES_SUFFIX}":
        raise ValueError(f"expected the file's name {path.name.removesuffix(CASES_SUFFIX)} as rule, found {rule}")
    return rule


@dataclass(frozen=True, slots=True)
class CasesFile:
    rule: Annotated[Text, AfterValidator(_check_rule)]
    workload: Facts
    cases: ByName[Case]


@dataclass(frozen=True, slots=True)
class RuleCases:
    """The written cases of one rule, and the workload they start from."""

    rule: str
    workload: Mapping[str, ConfigData]
    cases: tuple[Case, ...]
    known: KnownFacts
    path: Path

    def facts_of(self, case: Case) -> FactSheet:
        """The facts on which ``case`` is judged."""
        values = {**self.workload, **case.given}
        present = {name: value for name, value in values.items() if name not in case.without}
        return sheet_of(present, self.known, case.environment_is_known)


def load_cases(path: Path, *, definitions: Iterable[FactDefinition]) -> RuleCases:
    """Cases of one file; RuleBaseError lists all its problems."""
    known = KnownFacts.of(definitions)
    found = load_table(path, CasesFile, {"facts": known, "path": path})
    return RuleCases(found.rule, found.workload, tuple(found.cases.values()), known, path)


def sheet_of(values: Mapping[str, ConfigData], known: KnownFacts, environment_is_known: bool = False) -> FactSheet:
    """A fact sheet that holds exactly ``values``; of a step without pauses of the host, unless they say otherwise."""
    if "step_ns" in values:
        values = {"unpaused_step_ns": values["step_ns"], **values}
    return FactSheet.of(
        (
            Fact(name, value, known.unit_of(name) or "text", definition=known.definitions.get(name))
            for name, value in values.items()
        ),
        environment_is_known,
        known.definitions,
    )
