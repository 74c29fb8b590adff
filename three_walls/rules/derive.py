"""Cases derived from a rule: its limits, its missing facts and its blockers, from the workloads of the written cases.

For every condition this looks for a workload in which the condition alone decides: if it is left out, or if its limit
moves a little, the finding changes. :func:`check_cases` reports every condition without such a workload, derived or
written: the condition is useless, or a case is missing. Written cases need only show what the rule is for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from three_walls.model.condition import Condition
from three_walls.model.config import ConfigData
from three_walls.model.fact import FactSheet
from three_walls.model.finding import Finding, Outcome
from three_walls.model.rule import Edit, Requirement, Rule
from three_walls.rules.cases import Case, Expectation, RuleCases
from three_walls.rules.conditions import ORDERED, is_number, same
from three_walls.rules.judge import judge_with_size
from three_walls.rules.load import rule_file
from three_walls.rules.scaffold import list_todos
from three_walls.rules.wording import explain_one
from three_walls.tables.config_keys import config_keys
from three_walls.tables.loader import suggest

_POSITIVE = (Outcome.RECOMMENDED, Outcome.FOUND)
_OTHER = "another value"
"""A text that no setting has."""


@dataclass(slots=True)
class CaseReport:
    """What running the cases of one rule gave."""

    written: int = 0
    derived: int = 0
    failures: list[str] = field(default_factory=list)


def check_cases(rule: Rule, cases: RuleCases) -> CaseReport:
    """Runs the written and the derived cases, and reports every condition that no case shows to matter."""
    report = CaseReport(written=len(cases.cases))
    report.failures += [f"fill in {line}" for path in (rule_file(cases.path), cases.path) for line in list_todos(path)]
    report.failures += _unknown_keys(rule)
    for case in cases.cases:
        finding = judge_with_size(rule, cases.facts_of(case))
        report.failures += [f"{case.name}: {sentence}" for sentence in case.expect.mismatches(finding)]
    if not any(case.expect.outcome in _POSITIVE for case in cases.cases):
        outcome = "recommended" if rule.edits else "found"
        report.failures.append(f"write a case with outcome {outcome}: the derived cases start from it")
        return report
    derived, gaps = derive_cases(rule, cases)
    report.derived = len(derived)
    for case in derived:
        finding = judge_with_size(rule, cases.facts_of(case))
        report.failures += [f"derived: {case.name}: {sentence}" for sentence in case.expect.mismatches(finding)]
    report.failures += gaps
    return report


def _unknown_keys(rule: Rule) -> Iterator[str]:
    """A sentence for each config key of the rule that no run can have."""
    known = config_keys().keys
    keys = [edit.key for edit in _edits_of(rule) if edit.kind == "config"]
    facts = [condition.fact for condition, _, _ in _conditions_of(rule)]
    keys += [fact.removeprefix("config.") for fact in facts if fact.startswith("config.")]
    for key in dict.fromkeys(keys):
        if key not in known:
            yield f"unknown config key {key}{suggest(key, known)}: tables/config-keys.yaml lists the keys"


def derive_cases(rule: Rule, cases: RuleCases) -> tuple[tuple[Case, ...], list[str]]:
    """Cases that follow from the rule, and a sentence for each condition that no case shows to matter."""
    search = _Search(rule, cases)
    derived: list[Case] = [*_missing_fact_cases(rule, search.bases)]
    gaps = []
    for mutant in mutants_of_conditions(rule):
        found = search.distinguish(mutant)
        if found:
            derived.append(found)
        elif not search.is_noticed(mutant):
            gaps.append(f"no case shows that {mutant.name} matters: write a case in which it alone decides")
    alternatives = (
        requirement for requirement in rule.requires if rule.edits and requirement.any_of and not requirement.fix
    )
    derived += [blocked for requirement in alternatives if (blocked := search.block(requirement))]
    if small := _small_gain_case(rule, cases, search.bases[0]):
        derived.append(small)
    unique = {(case.name, tuple(sorted(case.given.items(), key=str))): case for case in derived}
    return tuple(unique.values()), gaps


@dataclass(frozen=True, slots=True)
class Mutant:
    """A rule that differs from the original in one condition."""

    name: str
    rule: Rule
    condition: Condition
    siblings: tuple[Condition, ...] = ()
    """The other alternatives of an ``any_of``: they have to fail for this one to decide."""
    outcome: Outcome | None = None
    """The outcome of the original where the condition fails; None where it varies."""


def mutants_of_conditions(rule: Rule) -> Iterator[Mutant]:
    """The rule with each condition left out in turn, and with each limit moved a little up and down."""
    for condition, siblings, outcome in _conditions_of(rule):
        name = f"{condition.fact} {condition.operator} {condition.operand}"
        yield Mutant(name, _swap(rule, condition, None), condition, siblings, outcome)
        for limit in _nearby_limits(condition):
            moved = replace(condition, operand=limit)
            yield Mutant(f"{name}, not {limit:g}", _swap(rule, condition, moved), condition, siblings)


def _conditions_of(rule: Rule) -> Iterator[tuple[Condition, tuple[Condition, ...], Outcome | None]]:
    """Each condition with its alternatives and the outcome where it fails."""
    for condition in rule.applies_to:
        yield condition, (), Outcome.NOT_APPLICABLE
    for condition in rule.when:
        yield condition, (), Outcome.NOT_NEEDED
    for requirement in rule.requires:
        blocks = bool(rule.edits) and not requirement.fix and not requirement.any_of
        for condition in requirement.checks:
            siblings = tuple(other for other in requirement.checks if other is not condition)
            yield condition, siblings if requirement.any_of else (), Outcome.BLOCKED if blocks else None
    for edit in _edits_of(rule):
        for condition in edit.only_if:
            yield condition, (), None


def _edits_of(rule: Rule) -> tuple[Edit, ...]:
    return (*rule.edits, *(edit for requirement in rule.requires for edit in requirement.fix))


def _nearby_limits(condition: Condition) -> tuple[int | float, ...]:
    operand = condition.operand
    if condition.operator not in ORDERED or not isinstance(operand, int | float):
        return ()
    return (operand + 1, operand - 1) if isinstance(operand, int) else (operand * 1.02, operand * 0.98)


def _swap(rule: Rule, old: Condition, new: Condition | None) -> Rule:
    """``rule`` with one condition replaced or left out, wherever it occurs."""

    def swap(conditions: tuple[Condition, ...]) -> tuple[Condition, ...]:
        swapped = (new if condition is old else condition for condition in conditions)
        return tuple(condition for condition in swapped if condition is not None)

    def swap_edits(edits: tuple[Edit, ...]) -> tuple[Edit, ...]:
        return tuple(replace(edit, only_if=swap(edit.only_if)) for edit in edits)

    def swap_requirement(requirement: Requirement) -> Requirement:
        return replace(requirement, checks=swap(requirement.checks), fix=swap_edits(requirement.fix))

    return replace(
        rule,
        applies_to=swap(rule.applies_to),
        when=swap(rule.when),
        requires=tuple(map(swap_requirement, rule.requires)),
        edits=swap_edits(rule.edits),
    )


class _Search:
    """Looks for workloads that distinguish a rule from its mutants."""

    def __init__(self, rule: Rule, cases: RuleCases) -> None:
        self.rule, self.cases = rule, cases
        self.bases = tuple(case for case in cases.cases if case.expect.outcome in _POSITIVE)
        self._sheets: dict[str, FactSheet] = {}

    def distinguish(self, mutant: Mutant) -> Case | None:
        """The first change of a positive case after which the rule and the mutant differ."""
        for base in self.bases:
            for changes in self._changes(mutant, base):
                case = Case("", base.expect, {**base.given, **changes}, base.without, base.environment_is_known)
                facts = self.cases.facts_of(case)
                finding = judge_with_size(self.rule, facts)
                if finding.outcome is Outcome.ERROR or not _differ(finding, judge_with_size(mutant.rule, facts)):
                    continue
                if mutant.outcome and finding.outcome is not mutant.outcome:
                    continue
                name = f"{finding.outcome.value.replace('_', ' ')} where {explain_one(mutant.condition, facts)}"
                return replace(case, name=name, expect=_expectation(finding))
        return None

    def block(self, requirement: Requirement) -> Case | None:
        """A positive case changed so that every alternative of ``requirement`` fails, which blocks the rule."""
        for base in self.bases:
            for changes in _failing_together(requirement.checks, {**self.cases.workload, **base.given}):
                case = replace(base, given={**base.given, **changes})
                finding = judge_with_size(self.rule, self.cases.facts_of(case))
                if requirement.name in [note.name for note in finding.blocked_by]:
                    return replace(case, name=f"blocked by {requirement.name}", expect=_expectation(finding))
        return None

    def is_noticed(self, mutant: Mutant) -> bool:
        """Whether a written case fails for the mutant."""
        for case in self.cases.cases:
            facts = self._sheets.setdefault(case.name, self.cases.facts_of(case))
            if case.expect.mismatches(judge_with_size(mutant.rule, facts)):
                return True
        return False

    def _changes(self, mutant: Mutant, base: Case) -> Iterator[Mapping[str, ConfigData]]:
        """Values of facts to try, starting next to the limit."""
        known = {**self.cases.workload, **base.given}
        for sibling_values in _failing_together(mutant.siblings, known):
            for value in _values_near(mutant.condition, known.get(mutant.condition.fact)):
                yield {**sibling_values, mutant.condition.fact: value}


def _failing_together(
    conditions: tuple[Condition, ...], known: Mapping[str, ConfigData]
) -> Iterator[dict[str, ConfigData]]:
    """Values with which all ``conditions`` fail; one empty mapping where there are none."""
    if not conditions:
        yield {}
        return
    first, rest = conditions[0], conditions[1:]
    for others in _failing_together(rest, known):
        current = others.get(first.fact, known.get(first.fact))
        for value in (current, *_values_near(first, current)):
            yield {**others, first.fact: value}


def _values_near(condition: Condition, current: ConfigData) -> Iterator[ConfigData]:
    """Values for which the condition holds and values for which it fails, starting next to its limit."""
    operand = condition.operand
    match condition.operator:
        case "at_least" | "at_most" | "above" | "below" if isinstance(operand, int | float):
            step = 1 if isinstance(operand, int) else operand * 0.01
            yield from (operand, operand - step, operand + step)
        case "includes" | "excludes":
            yield from _lists_around(operand, current)
        case "within" if isinstance(operand, tuple):
            yield from ((*operand, _OTHER), operand)
        case "is_set":
            yield from (None, 1, True, _OTHER)
        case _:
            listed = operand if isinstance(operand, tuple) else (operand,)
            yield from listed
            yield from _others(listed)


def _lists_around(element: ConfigData, current: ConfigData) -> Iterator[ConfigData]:
    """Lists and texts with and without ``element``."""
    assert isinstance(element, str)  # checked when the condition was read
    if isinstance(current, tuple):
        yield tuple(part for part in current if part != element)
        yield (*current, element)
    elif isinstance(current, str):
        yield from (_OTHER, f"{current},{element}", element)
    yield from ((), (element,), None, element)


def _others(listed: tuple[ConfigData, ...]) -> Iterator[ConfigData]:
    """Values that are not listed, of the same types as those that are."""
    numbers = [value for value in listed if isinstance(value, int | float) and is_number(value)]
    if numbers:
        yield from (max(numbers) + 1, min(numbers) - 1)
    if any(isinstance(value, bool) for value in listed):
        yield from (value for value in (True, False) if not any(same(value, known) for known in listed))
    if any(isinstance(value, str) for value in listed):
        yield _OTHER
    if None in listed:
        yield from (_OTHER, True, 1)
    else:
        yield None


def _missing_fact_cases(rule: Rule, bases: tuple[Case, ...]) -> Iterator[Case]:
    """Without a fact of ``applies_to`` or ``when`` the rule is unknown."""
    base = bases[0]
    for fact in dict.fromkeys(condition.fact for condition in (*rule.applies_to, *rule.when)):
        if fact in base.without:
            continue
        yield Case(
            name=f"unknown without {fact}",
            expect=Expectation(outcome=Outcome.UNKNOWN, missing=(fact,)),
            given={name: value for name, value in base.given.items() if name != fact},
            without=(*base.without, fact),
        )


def _small_gain_case(rule: Rule, cases: RuleCases, base: Case) -> Case | None:
    """A rule with edits whose gain is too small is not needed."""
    pools = {term.pool for term in rule.gain.terms}
    if not pools or not rule.edits or "step_ns" not in {**cases.workload, **base.given}:
        return None
    expect = Expectation(outcome=Outcome.NOT_NEEDED)
    given = {**base.given, **dict.fromkeys(pools, 1)}
    return replace(base, name="not needed where the gain is too small", expect=expect, given=given)


def _differ(finding: Finding, other: Finding) -> bool:
    return _summary(finding) != _summary(other)


def _summary(finding: Finding) -> tuple[object, ...]:
    """What cases compare, except the gain."""
    return (
        finding.outcome,
        finding.missing,
        tuple(note.name for note in finding.blocked_by),
        tuple(note.name for note in finding.confirm_first),
        tuple((edit.key, edit.to) for edit in finding.edits),
    )


def _expectation(finding: Finding) -> Expectation:
    return Expectation(
        outcome=finding.outcome,
        edits={edit.key: edit.to for edit in finding.edits},
        missing=finding.missing,
        blocked_by=tuple(note.name for note in finding.blocked_by),
        confirm_first=tuple(note.name for note in finding.confirm_first),
    )
