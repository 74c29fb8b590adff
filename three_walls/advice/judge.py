"""Judges rules against facts: each rule becomes one finding with one outcome and its reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from three_walls.advice import verdict_thresholds
from three_walls.advice.edits import fact_of, missing_targets, plan_edits
from three_walls.advice.finding import Finding, Outcome, PlannedEdit, PlanNote
from three_walls.advice.format.conditions import evaluate_all, list_conditions, that_are, unit_of_setting
from three_walls.advice.format.rule import Claim, Requirement, Rule
from three_walls.advice.upper_bound import (
    bound_gain,
    describe_small,
    find_unpaused,
    is_nearly_enough,
    is_small,
    minimum_gain_ns,
    no_gain,
)
from three_walls.advice.wording import confirmation, describe_missing, explain, list_labels, state
from three_walls.lib.expressions import ORDERED, Clause, Junction, Truth, list_names
from three_walls.lib.fact import FactSheet


def judge_all(rules: Iterable[Rule], facts: FactSheet) -> list[Finding]:
    """One finding per rule, by id; a rule that raises an exception is a finding too."""
    return [judge_safely(rule, facts) for rule in sorted(rules, key=lambda rule: rule.id)]


def judge_safely(rule: Rule, facts: FactSheet) -> Finding:
    """``judge``, with outcome ``error`` for an exception, so that a defective rule never costs the whole report."""
    try:
        finding = judge(rule, facts)
        if rule.configured and evaluate_all(rule.applies_to, facts) is Truth.HOLDS:
            cause = _name_causes(rule, facts) if finding.outcome is Outcome.FOUND else ""
            finding = replace(finding, configured=rule.configured, cause=cause)
        return finding
    except Exception as error:
        return _finding(rule, FactSheet.of(()), Outcome.ERROR, f"The rule failed with {type(error).__name__}: {error}")


def judge(rule: Rule, facts: FactSheet) -> Finding:
    """The finding of ``rule``: does it apply, is the symptom there, are its edits still to make, and are they allowed?

    A condition that fails decides before one that is unknown: without its symptom, a rule needs no other fact.
    """
    for conditions, outcome in ((rule.applies_to, Outcome.NOT_APPLICABLE), (rule.when, Outcome.NOT_NEEDED)):
        if failing := that_are(Truth.FAILS, conditions, facts):
            near = explain(failing, facts) if outcome is Outcome.NOT_NEEDED and is_near(rule, failing, facts) else ""
            return replace(_finding(rule, facts, outcome, explain(failing, facts)), near=near)
    if rule.unless and evaluate_all(rule.unless, facts) is Truth.HOLDS:
        return _finding(rule, facts, Outcome.NOT_NEEDED, explain(rule.unless, facts))
    if not rule.any_program and (missing := lacking_signs(facts)):
        reason = "; ".join(describe_missing(name, facts) for name in missing)
        return replace(_finding(rule, facts, Outcome.UNKNOWN, reason), missing=missing)
    if unknown := that_are(Truth.UNKNOWN, (*rule.applies_to, *rule.when), facts):
        return _unknown(rule, unknown, facts)
    if not rule.edits:
        return replace(
            _finding(rule, facts, Outcome.FOUND, explain(that_are(Truth.HOLDS, rule.when, facts), facts)),
            advice=_order_advice(rule, facts),
            gain_ns=bound_gain(rule.gain, facts),
            confirm_first=_notes_to_confirm(rule, facts),
        )
    if missing := missing_targets(rule.edits, facts):
        reason = f"The value to set is unknown: it depends on {list_labels(missing, facts)}"
        return replace(_finding(rule, facts, Outcome.UNKNOWN, reason), missing=missing)
    return _judge_edits(rule, facts)


def lacking_signs(facts: FactSheet) -> tuple[str, ...]:
    """The signs that the inputs lack: without both, no advice on the settings of Megatron holds."""
    return tuple(
        name for name in ("training_sign", "megatron_sign") if name in facts.facts and facts.get(name).is_missing
    )


def is_near(rule: Rule, failing: Sequence[Clause], facts: FactSheet) -> bool:
    """Whether each of the ``failing`` conditions is a threshold that a measured value misses by little.

    A rule whose edits are already made, or that a requirement blocks, is not near.
    """
    if not all(_misses_by_little(condition, facts) for condition in failing):
        return False
    return not failing_requirements(rule, facts) and (not rule.edits or bool(plan_edits(rule.edits, facts)))


def _misses_by_little(condition: Clause, facts: FactSheet) -> bool:
    """Whether ``condition``, which fails, is a threshold that is missed by less than the nearness of its size.

    The size of a ratio is its distance from 1, which is no symptom; that of a fraction is the smaller of its two parts:
    a limit of 85% of memory leaves 15%, and a peak of 100% is not near it.
    """
    if isinstance(condition, Junction):
        enough = any if condition.word == "or" else all
        return enough(_misses_by_little(part, facts) for part in condition.parts)
    value, limit, unit = facts.number(condition.name), condition.value, facts.get(condition.name).unit
    if not is_threshold(condition) or value is None or not isinstance(limit, int | float):
        return False
    size = {"ratio": abs(limit - 1), "fraction": min(abs(limit), abs(1 - limit))}.get(unit, abs(limit))
    return abs(value - limit) < verdict_thresholds.NEAR_THRESHOLD_FRACTION * size


def is_threshold(condition: Clause) -> bool:
    """Whether ``condition`` compares something measured with a limit; sizes and settings have no gradual limits."""
    return any(
        part.operator in ORDERED and isinstance(part.value, float) and not unit_of_setting(part.name)
        for part in list_conditions((condition,))
    )


def failing_requirements(rule: Rule, facts: FactSheet) -> tuple[Requirement, ...]:
    """Requirements that fail."""
    return tuple(requirement for requirement in rule.requires.values() if _is_met(requirement, facts) is Truth.FAILS)


def judge_with_size(rule: Rule, facts: FactSheet) -> Finding:
    """``judge_safely``, with outcome not needed if the gain is too small; without a step, no gain is too small."""
    finding = judge_safely(rule, facts)
    step_ns = find_unpaused(facts)
    return drop_small(finding, rule, facts, minimum_gain_ns(step_ns)) if step_ns else finding


def drop_small(finding: Finding, rule: Rule, facts: FactSheet, minimum_ns: float) -> Finding:
    """``finding``, with outcome not needed if it is recommended or unknown and its gain is too small."""
    gain = bound_gain(rule.gain, facts) if finding.outcome is Outcome.UNKNOWN else finding.gain_ns
    if finding.outcome not in (Outcome.RECOMMENDED, Outcome.UNKNOWN) or not is_small(gain, minimum_ns):
        return finding
    reason = describe_small(gain, minimum_ns)
    near = reason if is_nearly_enough(gain, minimum_ns) else ""
    return replace(finding, outcome=Outcome.NOT_NEEDED, reason=reason, missing=(), near=near)


def _judge_edits(rule: Rule, facts: FactSheet) -> Finding:
    own_edits = plan_edits(rule.edits, facts)
    if not own_edits:
        return _finding(rule, facts, Outcome.NOT_NEEDED, "Every setting already has the recommended value")
    fixes = {requirement.name: _fix(requirement, facts) for requirement in failing_requirements(rule, facts)}
    failing = tuple(requirement for requirement in rule.requires.values() if fixes.get(requirement.name) == ())
    reason = explain(that_are(Truth.HOLDS, rule.when, facts), facts)
    near = ""
    if failing:
        reason = "; ".join(_explain_requirement(requirement, facts) for requirement in failing)
        near = reason if all(_is_nearly_met(requirement, facts) for requirement in failing) else ""
    return replace(
        _finding(rule, facts, Outcome.BLOCKED if failing else Outcome.RECOMMENDED, reason),
        blocked_by=tuple(_blocking_note(requirement, facts) for requirement in failing),
        confirm_first=_notes_to_confirm(rule, facts),
        edits=(*own_edits, *(edit for fix in fixes.values() for edit in fix)),
        gain_ns=bound_gain(rule.gain, facts),
        near=near,
    )


def _is_nearly_met(requirement: Requirement, facts: FactSheet) -> bool:
    """Whether ``requirement``, which fails, does so by thresholds that are missed by little."""
    failing = that_are(Truth.FAILS, requirement.check, facts)
    return all(_misses_by_little(condition, facts) for condition in failing)


def _fix(requirement: Requirement, facts: FactSheet) -> tuple[PlannedEdit, ...]:
    """Edits after which ``requirement`` no longer fails; none if it has no such edits."""
    if missing_targets(requirement.fix, facts):
        return ()
    edits = tuple(replace(edit, reason=requirement.reason) for edit in plan_edits(requirement.fix, facts))
    after = facts.with_values({fact_of(edit): edit.to for edit in edits})
    return edits if _is_met(requirement, after) is not Truth.FAILS else ()


def _is_met(requirement: Requirement, facts: FactSheet) -> Truth:
    if evaluate_all(requirement.only_if, facts) is Truth.FAILS:
        return Truth.HOLDS
    return evaluate_all(requirement.check, facts) if requirement.check else Truth.UNKNOWN


def _explain_requirement(requirement: Requirement, facts: FactSheet) -> str:
    failing = that_are(Truth.FAILS, requirement.check, facts)
    return explain(failing, facts, joined_by=" and ")


def _blocking_note(requirement: Requirement, facts: FactSheet) -> PlanNote:
    text = f"{_explain_requirement(requirement, facts)}: {requirement.reason}"
    return PlanNote(requirement.name, text, requirement.source)


def _notes_to_confirm(rule: Rule, facts: FactSheet) -> tuple[PlanNote, ...]:
    unknown = (requirement for requirement in rule.requires.values() if _is_met(requirement, facts) is Truth.UNKNOWN)
    return tuple(
        PlanNote(requirement.name, _confirmation(requirement, facts), requirement.source) for requirement in unknown
    )


def _confirmation(requirement: Requirement, facts: FactSheet) -> str:
    """``Confirm that cpu_offloading is off (not recorded): CUDA graphs do not support it``."""
    unknown = that_are(Truth.UNKNOWN, requirement.check, facts)
    if requirement.confirm:
        named = f" (unknown: {list_labels(_names(unknown), facts)})" if unknown else ""
        return f"Confirm that {requirement.confirm}{named}: {requirement.reason}"
    confirmations = " and that ".join(confirmation(condition, facts) for condition in unknown)
    return f"Confirm that {confirmations}: {requirement.reason}"


def _unknown(rule: Rule, conditions: Sequence[Clause], facts: FactSheet) -> Finding:
    return replace(_finding(rule, facts, Outcome.UNKNOWN, explain(conditions, facts)), missing=_names(conditions))


def _names(conditions: Iterable[Clause]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for condition in conditions for name in list_names(condition)))


def _finding(rule: Rule, facts: FactSheet, outcome: Outcome, reason: str) -> Finding:
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
        gain_ns=no_gain(rule.gain, f"Not estimated: the rule is {outcome.value.replace('_', ' ')}."),
        how_to_verify=rule.docs.how_to_verify,
        why_it_matters=rule.docs.why_it_matters,
        side_effects=tuple(f"{side.effect} ({side.source})" for side in rule.side_effects),
        evidence_for=_claims("for", rule.evidence.for_, facts),
        evidence_against=_claims("against", rule.evidence.against, facts),
        advice=" ".join(advice.text for advice in rule.advice),
        applicability=rule.applicability,
    )


def _name_causes(rule: Rule, facts: FactSheet) -> str:
    """The causes that the facts name."""
    named = (each for each in rule.advice if each.cause and evaluate_all(each.when, facts) is Truth.HOLDS)
    return "; ".join(each.cause for each in named)


def _order_advice(rule: Rule, facts: FactSheet) -> str:
    """What fits the facts first, then what always applies, then what to look at should the cause be another."""
    left = [
        advice for advice in rule.advice if not advice.unless or evaluate_all(advice.unless, facts) is not Truth.HOLDS
    ]
    always = [advice.text for advice in left if not advice.when]
    fitting = [advice.text for advice in left if advice.when and evaluate_all(advice.when, facts) is Truth.HOLDS]
    others = [advice.text for advice in left if advice.text not in (*always, *fitting)]
    return " ".join([*fitting, *always, *(["Should that not be it:"] if fitting and others else []), *others])


def _claims(name: str, evidence: Iterable[Claim], facts: FactSheet) -> tuple[PlanNote, ...]:
    """What this run shows, with its figures, then what is known of others."""
    return tuple(
        PlanNote(name, _add_figures(claim, facts), claim.source)
        for claim in sorted(evidence, key=lambda claim: not claim.when)
        if evaluate_all(claim.when, facts) is Truth.HOLDS
    )


def _add_figures(claim: Claim, facts: FactSheet) -> str:
    figures = ". ".join(state(facts.get(condition.name)) for condition in list_conditions(claim.when))
    return f"{claim.claim}. {figures}" if figures else claim.claim
