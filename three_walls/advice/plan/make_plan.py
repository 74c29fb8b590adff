"""Orders recommendations into a plan: greedy on a step that shrinks, so that no nanosecond is counted twice.

:func:`make_validated_plan` makes a plan, asks a validator about the edits, and plans again without the rules whose
edits are refused. :func:`make_plan` makes one such plan: the best recommendation enters, its gain is subtracted from
the facts, the other rules are judged again on the remaining time, and so on. Three copies of the facts shrink in
parallel, by the low, likely and high gains. The likely copy decides; the others give the range of the step afterwards.

A log shows how much of a step the profiler added, and so how much smaller gains of host time are. It changes neither
which edits a trace calls for nor their order: the copies that decide are of the facts as traced. Three more copies,
less what the profiler added, give the gains, and an entry whose gain is too small there is left out.

Where the step is replayed (``replays.py``), the entries come from replays: each next one is the edit with the best
likely step on the graph that the earlier ones left, so their gains add up. Rules that no transformation stands for
keep their share of measured times as an upper bound, after every replayed entry.

An upper bound is subtracted from the high copy alone. Upper bounds therefore come after every gain with a likely value,
and several of them may claim the same time. The first of those ranks before upper bounds of other time, the rest after.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from three_walls.advice.finding import (
    EXECUTION_ONLY,
    Bounds,
    Finding,
    FirstTrial,
    Outcome,
    PlannedEdit,
    PlanNote,
    PlanStep,
)
from three_walls.advice.format.rule import Rule
from three_walls.advice.judge import drop_small, is_small, judge_all, judge_safely, minimum_gain_ns
from three_walls.advice.plan.draft import Draft
from three_walls.advice.plan.gain import CULPRIT_COST, CULPRIT_RULE, without_culprit
from three_walls.advice.plan.replayed_draft import ReplayedDraft, predict_gain
from three_walls.advice.plan.replays import Replays
from three_walls.lib.fact import FactSheet
from three_walls.replay.transformation import Predictor

Validate = Callable[[Sequence[PlannedEdit]], tuple[PlanNote, ...]]
"""Why a launcher refuses edits that are made together; empty if it accepts them."""


def make_validated_plan(
    rules: Iterable[Rule],
    facts: FactSheet,
    validate: Validate,
    allowed: Collection[str] = (),
    predictor: Predictor | None = None,
    *,
    fixes_rank_first: bool = True,
) -> tuple[list[Finding], tuple[PlanStep, ...]]:
    """:func:`make_plan` without the rules whose edits ``validate`` refuses; those are blocked for its reasons."""
    accepted = {rule.id: rule for rule in rules}
    refused: list[Finding] = []
    replays = Replays.of(predictor)
    while True:
        findings, plan = make_plan(
            accepted.values(), facts, allowed=allowed, replays=replays, fixes_rank_first=fixes_rank_first
        )
        edits: list[PlannedEdit] = []
        for step in plan:
            edits += step.edits
            problems = validate(edits) if step.edits else ()
            if problems:  # caused by this step: the edits before it were accepted
                break
        else:
            return sorted([*findings, *refused], key=lambda finding: finding.rule), plan
        finding = judge_safely(accepted.pop(step.finding.rule), facts)
        reason = "; ".join(note.text for note in problems)
        blocked_by = (*finding.blocked_by, *problems)
        refused.append(replace(finding, outcome=Outcome.BLOCKED, reason=reason, blocked_by=blocked_by))


def make_plan(
    rules: Iterable[Rule],
    facts: FactSheet,
    allowed: Collection[str] = (),
    replays: Replays | None = None,
    *,
    fixes_rank_first: bool = True,
) -> tuple[list[Finding], tuple[PlanStep, ...]]:
    """All findings by rule id, on the original facts, and the ordered plan.

    Every recommended finding is in the plan, or becomes an alternative with the reason why it is not. Without a step
    there is no plan. ``allowed``: applicabilities of rules that may enter in addition to ``execution-only``.

    Where one rank holds the others back, it is entry 0 (:data:`CULPRIT_RULE`); all other rules are judged, and gain, on
    the step without its delay. ``fixes_rank_first``: false where the verdict found that none does; a late rank is then
    a finding like any other.
    """
    by_id = {rule.id: rule for rule in rules}
    culprit_rule = by_id.get(CULPRIT_RULE) if fixes_rank_first else None
    culprit = judge_safely(culprit_rule, facts) if culprit_rule and facts.number(CULPRIT_COST) else None
    left = without_culprit(facts) if culprit else facts
    findings = _judge_rules(by_id, left)
    if culprit:
        findings = [culprit if finding.rule == CULPRIT_RULE else finding for finding in findings]
    step_ns = left.number("step_ns")
    if not step_ns:
        return findings, ()
    minimum_ns = minimum_gain_ns(step_ns)
    traced = left.as_traced()
    first: tuple[PlanStep, ...] = ()
    if culprit_rule and culprit and culprit.outcome is Outcome.FOUND:
        first = (_fix_first(culprit, facts, step_ns),)
        if replays:
            replays, first = _heal(replays, culprit_rule, facts, first[0])
    applicabilities = frozenset((EXECUTION_ONLY, *allowed))
    if replays:
        findings = [predict_gain(finding, by_id[finding.rule], traced, replays) for finding in findings]
        replayed_ns = replays.step().likely_ns
        minimum_ns = max(minimum_gain_ns(replayed_ns), replays.error_fraction * replayed_ns)
        by_rule = {finding.rule: finding for finding in findings}
        draft: Draft = ReplayedDraft(by_id, by_rule, left, minimum_ns, applicabilities, replays=replays)
    else:
        sized = {finding.rule: drop_small(finding, by_id[finding.rule], traced, minimum_ns) for finding in findings}
        draft = Draft(by_id, sized, left, minimum_ns, applicabilities)
    while draft.take_best():
        pass
    draft.check_conservation(step_ns)
    steps = (*first, *draft.steps)
    if not replays:
        steps = _without_profiler(steps, facts)
    return [draft.with_reason(finding) for finding in draft.findings.values()], steps


def _without_profiler(steps: tuple[PlanStep, ...], facts: FactSheet) -> tuple[PlanStep, ...]:
    """The steps after the entries as the log's unprofiled step becomes: gains are less what the profiler added."""
    traced_ns, unprofiled_ns = facts.number("step_ns"), facts.number("unprofiled_step_ns")
    if traced_ns is None or unprofiled_ns is None:
        return steps
    added_ns = round(traced_ns - unprofiled_ns)
    return tuple(
        replace(
            step,
            step_after_ns=Bounds(max(0, step.step_after_ns.low - added_ns), max(0, step.step_after_ns.high - added_ns)),
        )
        for step in steps
    )


def _fix_first(culprit: Finding, facts: FactSheet, step_without_ns: float) -> PlanStep:
    """Entry 0: the rank to fix before anything is tuned. It has no edits, and gains at most what the rank costs."""
    return PlanStep(
        order=0,
        rule=culprit.rule,
        finding=culprit,
        edits=(),
        gain_ns=replace(culprit.gain_ns, high=round(facts.number(CULPRIT_COST) or 0)),
        step_after_ns=Bounds(round(step_without_ns), round(facts.number("step_ns") or 0)),
    )


def _heal(replays: Replays, rule: Rule, facts: FactSheet, entry: PlanStep) -> tuple[Replays, tuple[PlanStep, ...]]:
    """Replays of the step in which the rank to fix first is as fast as its peers, and entry 0 by them.

    Both stay as they are where no replay tells what the rank costs, or one finds next to nothing.
    """
    gain, healed = replays.gain_of(rule, facts)
    if gain is None or is_small(gain, minimum_gain_ns(replays.step().likely_ns)):
        return replays, (entry,)
    after = replays.step(healed)
    bounds = Bounds(after.low_ns, after.high_ns)
    step = replace(entry, gain_ns=gain, step_after_ns=bounds, step_after_likely_ns=after.likely_ns)
    return replays.starting_from(healed), (step,)


def _judge_rules(rules: Mapping[str, Rule], facts: FactSheet) -> list[Finding]:
    """One finding per rule, by id: edits are judged on the facts as traced, advice on what the log leaves of them."""
    edits = judge_all((rule for rule in rules.values() if rule.edits), facts.as_traced())
    advice = judge_all((rule for rule in rules.values() if not rule.edits), facts)
    return sorted([*edits, *advice], key=lambda finding: finding.rule)


def choose_first_trial(
    plan: Sequence[PlanStep], facts: FactSheet, predictor: Predictor | None = None
) -> FirstTrial | None:
    """The plan's first entry as an experiment: what to change, and what must be seen if it worked; None without a plan.

    The fractions are those of the log's unprofiled step, because gains are less what the profiler added to the traced
    one; without a log, those of the traced step. Of a replayed gain they are those of the replayed step.
    """
    if not plan:
        return None
    first = plan[0]
    step_ns, unprofiled = facts.number("step_ns"), facts.number("unprofiled_step_ns")
    low = high = None
    if step_ns and first.gain_ns.low is not None and first.gain_ns.high is not None:
        is_replayed = predictor is not None and not predictor.missing_reason
        length_ns = predictor.step_ns.likely_ns if predictor and is_replayed else unprofiled or step_ns
        low, high = (min(1.0, saved_ns / length_ns) for saved_ns in (first.gain_ns.low, first.gain_ns.high))
    after_low = after_high = None
    if unprofiled is not None and low is not None and high is not None:
        after_low, after_high = round(unprofiled * (1 - high)), round(unprofiled * (1 - low))
    return FirstTrial(
        rule=first.finding.rule,
        title=first.finding.title,
        basis=first.gain_ns.basis,
        saved_low_fraction=low,
        saved_high_fraction=high,
        unprofiled_step_ns=None if unprofiled is None else round(unprofiled),
        unprofiled_step_after_low_ns=after_low,
        unprofiled_step_after_high_ns=after_high,
        cost_fraction=first.gain_ns.cost_fraction,
        cost_is_estimated=first.gain_ns.cost_is_estimated,
        must_show=first.finding.how_to_verify,
    )
