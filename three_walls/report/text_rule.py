"""One rule as plain text, for a person who wants to know why it recommends its edits, or does not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from three_walls.model.rule import Condition, Edit, GainModel, Requirement, Rule, WarningRule
from three_walls.report.formats import format_cost, format_setting


def describe_rule(rule: Rule) -> str:
    """Everything in the rule file, in its order; no trailing newline."""
    return "\n".join(_lines(rule))


def describe_warning(warning: WarningRule) -> str:
    """When a warning is given, on one line."""
    unless = f" unless {' and '.join(map(_condition, warning.unless))}" if warning.unless else ""
    return f"{' and '.join(map(_condition, warning.when))}{unless}"


def _lines(rule: Rule) -> Iterator[str]:
    wall = f"{rule.wall} ({rule.sub_wall})" if rule.sub_wall else str(rule.wall)
    yield f"{rule.id}: {rule.title}"
    yield f"wall {wall}, {rule.applicability}" + (f", lever {rule.lever}" if rule.lever else "")
    yield from _section("Looks for", [rule.what_it_looks_for])
    yield from _section("Why it matters", [rule.why_it_matters])
    yield from _section("Applies to", map(_condition, rule.applies_to))
    yield from _section("When", map(_condition, rule.when))
    yield from _section("Requires", (line for requirement in rule.requires for line in _requirement(requirement)))
    yield from _section("Edits", map(_edit, rule.edits))
    yield from _section("What to do", [rule.advice] if rule.advice else [])
    yield from _section("Gain", _gain(rule.gain))
    yield from _section("Side effects", rule.side_effects)
    yield from _section("Verify by", [rule.how_to_verify])
    yield from _section("Evidence for", (f"{evidence.claim} ({evidence.source})" for evidence in rule.evidence_for))
    yield from _section(
        "Evidence against", (f"{evidence.claim} ({evidence.source})" for evidence in rule.evidence_against)
    )


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    found = list(lines)
    if found:
        yield f"\n{title}"
    for line in found:
        yield f"  {' '.join(line.split())}"


def _condition(condition: Condition) -> str:
    return f"{condition.fact} {condition.operator.replace('_', ' ')} {format_setting(condition.operand)}"


def _requirement(requirement: Requirement) -> Iterator[str]:
    joined = " or " if requirement.any_of else " and "
    checks = joined.join(map(_condition, requirement.checks))
    confirm = f"a person confirms: {requirement.confirm}" if requirement.confirm else ""
    yield f"{requirement.name}: {'; '.join(filter(None, (checks, confirm)))}"
    yield f"  reason: {requirement.reason} ({requirement.source})"
    for edit in requirement.fix:
        yield f"  else {_edit(edit)}"


def _edit(edit: Edit) -> str:
    target = f"the value of {edit.to_fact}" if edit.to_fact else format_setting(edit.to)
    words = {"set": f"set {edit.key} to {target}", "add": f"add {target} to {edit.key}"}
    change = words.get(edit.operation, f"remove {target} from {edit.key}")
    only_if = f" if {' and '.join(map(_condition, edit.only_if))}" if edit.only_if else ""
    return f"{change}{only_if}" + (f": {edit.reason}" if edit.reason else "")


def _gain(gain: GainModel) -> Iterator[str]:
    for term in gain.terms:
        high = f"1 - {term.high_one_minus_fact}" if term.high_one_minus_fact else f"{term.high:g}"
        if term.likely is None:
            yield f"up to {high} of {term.pool}"
        else:
            yield f"{term.low:g} to {high} of {term.pool}, likely {term.likely:g}"
    for limit in filter(None, (gain.hidden_under, gain.at_most)):
        yield f"no more than {limit}"
    if gain.cost_fraction is not None:
        yield f"frees memory, {format_cost(gain.cost_fraction, gain.cost_is_estimated)}"
    yield f"{gain.basis}: {gain.explanation}"
