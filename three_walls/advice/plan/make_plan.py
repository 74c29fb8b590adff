"""Judges the rules and makes the plan: an ordered list of edits, each with its gain on the step that the earlier ones
leave.

Gains are replayed. Where the step cannot be replayed there is no plan: the findings stand with their upper bounds.
Where what an edit changes is not known, its finding does.

A log shows how much of a step the profiler added. That changes neither which edits a trace calls for nor their order:
edits are judged on the facts as traced.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from three_walls.advice.answer_what_if import ReplayedRun
from three_walls.advice.decide_verdict import decide_verdict
from three_walls.advice.edits import fact_of
from three_walls.advice.finding import EXECUTION_ONLY, Bounds, Finding, FirstTrial, Outcome, PlanStep
from three_walls.advice.format.rule import Rule
from three_walls.advice.judge import drop_small, judge_all, judge_safely
from three_walls.advice.plan.replays import Replays
from three_walls.advice.plan.search import Search, shorten
from three_walls.advice.upper_bound import find_unpaused, is_small, minimum_gain_ns
from three_walls.advice.without_culprit import CULPRIT_COST, CULPRIT_RULE, without_culprit
from three_walls.lib.fact import FactSheet
from three_walls.lib.text import capitalize
from three_walls.replay.transformation import Predictor


def make_plan(
    run: ReplayedRun, allowed: Collection[str] = (), *, fixes_rank_first: bool = True
) -> tuple[list[Finding], tuple[PlanStep, ...]]:
    """All findings by rule id, on the original facts, and the ordered plan.

    ``allowed``: applicabilities of rules that may enter in addition to ``execution-only``.

    Where one rank holds the others back, it is entry 0 (:data:`CULPRIT_RULE`); all other rules are judged, and gain, on
    the step without its delay. ``fixes_rank_first``: false where the verdict found that none does; a late rank is then
    a finding like any other.
    """
    by_id, facts = {rule.id: rule for rule in run.rules}, run.facts
    culprit_rule = by_id.get(CULPRIT_RULE) if fixes_rank_first else None
    culprit = judge_safely(culprit_rule, facts) if culprit_rule and facts.number(CULPRIT_COST) else None
    left = without_culprit(facts) if culprit else facts
    findings = _judge_rules(by_id, left)
    if culprit:
        findings = [culprit if finding.rule == CULPRIT_RULE else finding for finding in findings]
    if not left.number("step_ns"):
        return findings, ()
    replays = Replays.of(run.predictor, run.effects, facts, run.intervals)
    first: tuple[PlanStep, ...] = ()
    if culprit_rule and culprit and culprit.outcome is Outcome.FOUND:
        first = (_fix_first(culprit, facts, replays),)
        if replays:
            replays, first = _heal(replays, culprit_rule, facts, first[0])
    if replays is None:
        return [
            drop_small(finding, by_id[finding.rule], facts, minimum_gain_ns(find_unpaused(left)))
            for finding in findings
        ], first
    traced = left.as_traced()
    replayed_ns, unpaused_ns = replays.step().likely_ns, replays.unpaused_ns()
    minimum_ns = max(minimum_gain_ns(unpaused_ns), replays.predictor.error_fraction * unpaused_ns)
    findings = [
        # What is not known does not matter where the gain is too small anyway.
        drop_small(finding, by_id[finding.rule], traced, minimum_ns)
        if finding.outcome is Outcome.UNKNOWN
        else _predict_alone(finding, by_id[finding.rule], traced, replays)
        for finding in findings
    ]
    applicabilities = frozenset((EXECUTION_ONLY, *allowed))
    search = Search(
        rules=by_id,
        findings={finding.rule: finding for finding in findings},
        replays=replays,
        facts=traced,
        minimum_ns=minimum_ns,
        may_enter=lambda finding: finding.applicability in applicabilities,
        wall=decide_verdict(traced.with_values({"host_pauses_recur": False})).wall,  # edits shorten no pause
        start_ns=first[0].step_after_ns if first else Bounds(replayed_ns, replayed_ns),
        validate=run.validate,
        facts_after=run.facts_after,
    )
    search.run()
    return [search.with_reason(finding) for finding in findings], (*first, *search.steps)


def _judge_rules(rules: Mapping[str, Rule], facts: FactSheet) -> list[Finding]:
    """One finding per rule, by id: edits are judged on the facts as traced, advice on what the log leaves of them."""
    edits = judge_all((rule for rule in rules.values() if rule.edits), facts.as_traced())
    advice = judge_all((rule for rule in rules.values() if not rule.edits), facts)
    return sorted([*edits, *advice], key=lambda finding: finding.rule)


def _predict_alone(finding: Finding, rule: Rule, facts: FactSheet, replays: Replays) -> Finding:
    """``finding`` with the gain of its edits alone by replay; the upper bound stays where no replay gives it.

    That of a late rank stays as it is where the replays start without its delay.
    """
    if finding.outcome not in (Outcome.RECOMMENDED, Outcome.FOUND) or (rule.id == CULPRIT_RULE and replays.base):
        return finding
    if rule.edits:
        difference = replays.compare({fact_of(edit): edit.to for edit in finding.edits})
        changes, reason, effects = difference.transformations, "; ".join(difference.unknown), difference.effects
    else:
        effects = ()
        changes, reason = replays.follow_advice(rule, facts)
        reason = reason and f"not replayed, because {reason}"
    if not reason:
        return replace(finding, gain_ns=replays.describe_gain(rule.gain, (), changes, effects))
    if finding.gain_ns.high is None:
        return finding
    return replace(
        finding,
        gain_ns=replace(
            finding.gain_ns,
            high=min(finding.gain_ns.high, replays.step().likely_ns),
            explanation=f"{capitalize(reason)}. {finding.gain_ns.explanation}",
        ),
    )


def _fix_first(culprit: Finding, facts: FactSheet, replays: Replays | None) -> PlanStep:
    """Entry 0: the rank to fix before anything is tuned. It has no edits, and gains at most what the rank costs."""
    now_ns = replays.step().likely_ns if replays else facts.number("unprofiled_step_ns") or facts.number("step_ns") or 0
    cost_ns = min(facts.number(CULPRIT_COST) or 0, now_ns)
    return PlanStep(
        order=0,
        rule=culprit.rule,
        finding=culprit,
        edits=(),
        gain_ns=replace(culprit.gain_ns, high=round(cost_ns)),
        step_after_ns=Bounds(round(now_ns - cost_ns), round(now_ns)),
    )


def _heal(replays: Replays, rule: Rule, facts: FactSheet, entry: PlanStep) -> tuple[Replays, tuple[PlanStep, ...]]:
    """Replays of the step in which the rank to fix first is as fast as its peers, and entry 0 by them.

    Both stay as they are where no replay tells what the rank costs, or one finds next to nothing.
    """
    healed, reason = replays.follow_advice(rule, facts)
    if reason:
        return replays, (entry,)
    before, after = replays.step(), replays.step(healed)
    gain = replays.describe_gain(rule.gain, (), healed)
    if is_small(gain, minimum_gain_ns(replays.unpaused_ns())):
        return replays, (entry,)
    bounds = shorten(Bounds(before.likely_ns, before.likely_ns), replays.find_gain((), healed))
    step = replace(entry, gain_ns=gain, step_after_ns=bounds, step_after_likely_ns=after.likely_ns)
    return replace(replays, base=healed), (step,)


def choose_first_trial(
    plan: Sequence[PlanStep], facts: FactSheet, predictor: Predictor | None = None
) -> FirstTrial | None:
    """The plan's first entry as an experiment: what to change, and what must be seen if it worked; None without a plan.

    The fractions are those of the replayed step where the gain is replayed, else of the log's unprofiled step or the
    traced one.
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
        must_show=first.finding.how_to_verify,
    )
