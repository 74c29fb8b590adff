"""Judges rules against facts: each rule becomes one finding with one outcome and its reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from three_walls.model.fact import FactSheet
from three_walls.model.finding import Finding, Note, Outcome, PlannedEdit
from three_walls.model.rule import Condition, Requirement, Rule
from three_walls.rules.conditions import (
    Truth,
    evaluate_all,
    evaluate_any,
    explain,
    needed,
    that_are,
)
from three_walls.rules.edits import fact_of, missing_targets, plan_edits
from three_walls.rules.gain import estimate, no_estimate


def judge_all(rules: Iterable[Rule], facts: FactSheet) -> list[Finding]:
    """One finding per rule, by id; a rule that fails is a finding too."""
    return [judge_safely(rule, facts) for rule in sorted(rules, key=lambda rule: rule.id)]


def judge_safely(rule: Rule, facts: FactSheet) -> Finding:
    """``judge``, with an exception turned into the outcome ``error``: one bad rule never costs the report."""
    try:
        return judge(rule, facts)
    except Exception as error:
        return _finding(rule, Outcome.ERROR, f"the rule itself failed: {type(error).__name__}: {error}")


def judge(rule: Rule, facts: FactSheet) -> Finding:
    """The finding of ``rule``: is this its world, is the symptom there, may one do it, is it not done yet?

    What is known not to hold decides before what is not known: without its symptom no rule needs the rest.
    """
    for conditions, outcome in ((rule.applies_to, Outcome.NOT_APPLICABLE), (rule.when, Outcome.NOT_NEEDED)):
        if failing := that_are(Truth.FAILS, conditions, facts):
            return _finding(rule, outcome, explain(failing, facts))
    if unknown := that_are(Truth.UNKNOWN, (*rule.applies_to, *rule.when), facts):
        return _unknown(rule, unknown, facts)
    if not rule.edits:
        return replace(
            _finding(rule, Outcome.FOUND, explain(rule.when, facts)),
            gain_ns=estimate(rule.gain, facts),
            confirm_first=_notes_to_confirm(rule, facts),
        )
    if lacking := missing_targets(rule.edits, facts):
        reason = f"what to set depends on {', '.join(lacking)}, which is not known"
        return replace(_finding(rule, Outcome.UNKNOWN, reason), missing=lacking)
    return _judge_edits(rule, facts)


def failing_requirements(rule: Rule, facts: FactSheet) -> tuple[Requirement, ...]:
    """Requirements that are known not to be met."""
    return tuple(one for one in rule.requires if _is_met(one, facts) is Truth.FAILS)


def _judge_edits(rule: Rule, facts: FactSheet) -> Finding:
    own = plan_edits(rule.edits, facts)
    if not own:
        return _finding(rule, Outcome.NOT_NEEDED, f"every edit of {rule.id} is already set")
    mends = {one.name: _fix(one, facts) for one in failing_requirements(rule, facts)}
    edits = (*own, *(edit for mended in mends.values() for edit in mended))
    failing = tuple(one for one in rule.requires if mends.get(one.name) == ())
    reason = explain(rule.when, facts)
    if failing:
        reason = "; ".join(f"{one.name}: {_explain_requirement(one, facts)}" for one in failing)
    finding = _finding(rule, Outcome.BLOCKED if failing else Outcome.RECOMMENDED, reason)
    return replace(
        finding,
        blocked_by=tuple(_blocking_note(one, facts) for one in failing),
        confirm_first=_notes_to_confirm(rule, facts),
        edits=edits,
        gain_ns=estimate(rule.gain, facts),
    )


def _fix(requirement: Requirement, facts: FactSheet) -> tuple[PlannedEdit, ...]:
    """Edits after which ``requirement`` is no longer known to fail; none if it has no such edits."""
    if missing_targets(requirement.fix, facts):
        return ()
    edits = tuple(replace(edit, reason=requirement.reason) for edit in plan_edits(requirement.fix, facts))
    after = facts.with_values({fact_of(edit): edit.to for edit in edits})
    return edits if _is_met(requirement, after) is not Truth.FAILS else ()


def _is_met(requirement: Requirement, facts: FactSheet) -> Truth:
    if not requirement.checks:
        return Truth.UNKNOWN
    evaluate = evaluate_any if requirement.any_of else evaluate_all
    return evaluate(requirement.checks, facts)


def _explain_requirement(requirement: Requirement, facts: FactSheet) -> str:
    failing = that_are(Truth.FAILS, requirement.checks, facts)
    return explain(failing, facts, joined_by=", or " if requirement.any_of else " and ")


def _blocking_note(requirement: Requirement, facts: FactSheet) -> Note:
    text = f"{requirement.reason}: {_explain_requirement(requirement, facts)}"
    return Note(requirement.name, text, requirement.source)


def _notes_to_confirm(rule: Rule, facts: FactSheet) -> tuple[Note, ...]:
    unknown = (one for one in rule.requires if _is_met(one, facts) is Truth.UNKNOWN)
    return tuple(Note(one.name, _confirmation(one, facts), one.source) for one in unknown)


def _confirmation(requirement: Requirement, facts: FactSheet) -> str:
    unknown = that_are(Truth.UNKNOWN, requirement.checks, facts)
    if requirement.confirm:
        text = requirement.confirm
    else:
        wanted = (f"{one.fact} is {needed(one, facts.get(one.fact).unit)}" for one in unknown)
        text = f"check that {(' or ' if requirement.any_of else ' and ').join(wanted)}"
    named = f" (not known: {', '.join(_names(unknown))})" if unknown else ""
    return f"{text}{named}: {requirement.reason}"


def _unknown(rule: Rule, conditions: Sequence[Condition], facts: FactSheet) -> Finding:
    return replace(_finding(rule, Outcome.UNKNOWN, explain(conditions, facts)), missing=_names(conditions))


def _names(conditions: Iterable[Condition]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(condition.fact for condition in conditions))


def _finding(rule: Rule, outcome: Outcome, reason: str) -> Finding:
    return Finding(
        rule=rule.id,
        title=rule.title,
        outcome=outcome,
        wall=rule.wall,
        sub_wall=rule.sub_wall,
        lever=rule.lever,
        reason=reason,
        missing=(),
        blocked_by=(),
        confirm_first=(),
        edits=(),
        gain_ns=no_estimate(rule.gain, f"not estimated: the rule is {outcome.value.replace('_', ' ')}"),
        how_to_verify=rule.how_to_verify,
        why_it_matters=rule.why_it_matters,
        side_effects=rule.side_effects,
        evidence_for=_claims(rule, "for"),
        evidence_against=_claims(rule, "against"),
        advice=rule.advice,
        phase=rule.phase,
        rule_class=rule.rule_class,
    )


def _claims(rule: Rule, speaks: str) -> tuple[Note, ...]:
    return tuple(Note(speaks, one.claim, one.source) for one in rule.evidence if one.speaks == speaks)
