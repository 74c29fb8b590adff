"""Cases derived from a rule: its limits, its missing facts and its blockers, from the workloads of the written cases.

For every condition this looks for a workload in which the condition alone decides: if it is left out, or if its limit
moves a little, the finding changes. :func:`check_cases` reports every condition without such a workload, derived or
written: the condition is useless, or a case is missing. Written cases need only show what the rule is for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from three_walls.advice.finding import Finding, Outcome
from three_walls.advice.format.conditions import is_number, list_conditions, same
from three_walls.advice.format.load_rules import rule_file
from three_walls.advice.format.rule import Edit, Requirement, Rule
from three_walls.advice.format.scaffold import list_todos
from three_walls.advice.judge import judge_with_size
from three_walls.advice.testing.rule_cases import Case, Expectation, RuleCases
from three_walls.advice.wording import explain_one
from three_walls.lib.expressions import ORDERED, Clause, Condition, Junction
from three_walls.lib.fact import FactSheet
from three_walls.lib.load_documents import suggest
from three_walls.lib.plain_data import ConfigData
from three_walls.tables.config_keys import config_keys

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
    facts = [condition.name for condition, _, _ in _conditions_of(rule)]
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
        derived_case = search.distinguish(mutant)
        if derived_case:
            derived.append(derived_case)
        elif not search.is_noticed(mutant):
            gaps.append(f"no case shows that {mutant.name} matters: write a case in which it alone decides")
    alternatives = (
        requirement
        for requirement in rule.requires.values()
        if rule.edits and not requirement.fix and any(isinstance(check, Junction) for check in requirement.check)
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
    """The alternatives that ``or`` joins with it: they have to fail for this one to decide."""
    outcome: Outcome | None = None
    """The outcome of the original where the condition fails; None where it varies."""


def mutants_of_conditions(rule: Rule) -> Iterator[Mutant]:
    """The rule with each condition left out in turn, and with each limit moved a little up and down."""
    for condition, siblings, outcome in _conditions_of(rule):
        yield Mutant(str(condition), _swap(rule, condition, None), condition, siblings, outcome)
        for limit in _nearby_limits(condition):
            moved = replace(condition, value=limit)
            yield Mutant(f"{condition}, not {limit:g}", _swap(rule, condition, moved), condition, siblings)


def _conditions_of(rule: Rule) -> Iterator[tuple[Condition, tuple[Condition, ...], Outcome | None]]:
    """Each condition with its alternatives and the outcome where it fails."""
    parts: list[tuple[tuple[Clause, ...], Outcome | None]] = [
        (rule.applies_to, Outcome.NOT_APPLICABLE),
        (rule.when, Outcome.NOT_NEEDED),
        (rule.unless, None),
        *((one.check, Outcome.BLOCKED if rule.edits and not one.fix else None) for one in rule.requires.values()),
        *((one.only_if, None) for one in rule.requires.values()),
        *((edit.only_if, None) for edit in _edits_of(rule)),
    ]
    for clauses, outcome in parts:
        for condition, siblings in _with_alternatives(Junction("and", clauses)):
            yield condition, siblings, None if siblings else outcome


def _with_alternatives(junction: Junction) -> Iterator[tuple[Condition, tuple[Condition, ...]]]:
    """Each condition with those that ``or`` joins with it."""
    for part in junction.parts:
        rest = [other for other in junction.parts if other is not part] if junction.word == "or" else []
        siblings = tuple(list_conditions(rest))
        if isinstance(part, Condition):
            yield part, siblings
        else:
            yield from ((condition, (*inner, *siblings)) for condition, inner in _with_alternatives(part))


def _edits_of(rule: Rule) -> tuple[Edit, ...]:
    return (*rule.edits, *(edit for requirement in rule.requires.values() for edit in requirement.fix))


def _nearby_limits(condition: Condition) -> tuple[int | float, ...]:
    limit = condition.value
    if condition.operator not in ORDERED or not isinstance(limit, int | float):
        return ()
    return (limit + 1, limit - 1) if isinstance(limit, int) else (limit * 1.02, limit * 0.98)


def _swap(rule: Rule, old: Condition, new: Condition | None) -> Rule:
    """``rule`` with one condition replaced or left out. The same words in another place are another condition."""

    def swap(clauses: tuple[Clause, ...]) -> tuple[Clause, ...]:
        swapped = (new if clause is old else swap_parts(clause) for clause in clauses)
        return tuple(clause for clause in swapped if clause is not None)

    def swap_parts(clause: Clause) -> Clause:
        return replace(clause, parts=swap(clause.parts)) if isinstance(clause, Junction) else clause

    def swap_edits(edits: tuple[Edit, ...]) -> tuple[Edit, ...]:
        return tuple(replace(edit, only_if=swap(edit.only_if)) for edit in edits)

    def swap_requirement(requirement: Requirement) -> Requirement:
        return replace(
            requirement,
            check=swap(requirement.check),
            only_if=swap(requirement.only_if),
            fix=swap_edits(requirement.fix),
        )

    return replace(
        rule,
        applies_to=swap(rule.applies_to),
        when=swap(rule.when),
        unless=swap(rule.unless),
        requires={name: swap_requirement(requirement) for name, requirement in rule.requires.items()},
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
                case = Case(base.expect, {**base.given, **changes}, base.without, base.environment_is_known)
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
            conditions = tuple(list_conditions(requirement.check))
            for changes in _failing_together(conditions, {**self.cases.workload, **base.given}):
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
            for value in _values_near(mutant.condition, known.get(mutant.condition.name)):
                yield {**sibling_values, mutant.condition.name: value}


def _failing_together(
    conditions: tuple[Condition, ...], known: Mapping[str, ConfigData]
) -> Iterator[dict[str, ConfigData]]:
    """Values with which all ``conditions`` fail; one empty mapping where there are none."""
    if not conditions:
        yield {}
        return
    first, rest = conditions[0], conditions[1:]
    for others in _failing_together(rest, known):
        current = others.get(first.name, known.get(first.name))
        for value in (current, *_values_near(first, current)):
            yield {**others, first.name: value}


def _values_near(condition: Condition, current: ConfigData) -> Iterator[ConfigData]:
    """Values for which the condition holds and values for which it fails, starting next to its limit."""
    value = condition.value
    match condition.operator:
        case ">=" | "<=" | ">" | "<" if isinstance(value, int | float):
            step = 1 if isinstance(value, int) else value * 0.01
            yield from (value, value - step, value + step)
        case "contains" | "lacks":
            yield from _lists_around(value, current)
        case _:
            listed = value if isinstance(value, tuple) else (value,)
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
        yield from (1, True, _OTHER)
    else:
        yield None


def _missing_fact_cases(rule: Rule, bases: tuple[Case, ...]) -> Iterator[Case]:
    """Without a fact of ``applies_to`` or ``when`` the rule is unknown, unless an alternative may decide."""
    base = bases[0]
    conditions = (condition for condition in (*rule.applies_to, *rule.when) if isinstance(condition, Condition))
    for fact in dict.fromkeys(condition.name for condition in conditions):
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
    pools = {share.time for share in rule.gain.at_most}
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
