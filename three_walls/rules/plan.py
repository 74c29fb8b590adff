"""Orders recommendations into a plan: greedy on a step that shrinks, so that no nanosecond is counted twice.

:func:`make_validated_plan` is the whole: it plans, asks a validator about the edits, and plans again without the rules
whose edits are refused. :func:`make_plan` is one such plan. The best recommendation enters, its gain is subtracted from
the facts, the other rules are judged again on what is left, and so on. Three copies of the facts shrink next to each
other, by the low, likely and high gains: the likely one decides, the other two give the range of the step afterwards.

A gain of which only the upper bound is known is subtracted from the last copy alone. It therefore comes after every
gain with a likely value, and several upper bounds may be of the same time. Of those the first stands before upper
bounds of other time, the rest after them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from three_walls.model.fact import FactSheet
from three_walls.model.finding import Bounds, Finding, FirstTrial, Gain, Note, Outcome, PlannedEdit, PlanStep
from three_walls.model.rule import EXECUTION_ONLY, Rule
from three_walls.rules.conditions import same
from three_walls.rules.gain import Level, apply_gain, estimate
from three_walls.rules.judge import (
    describe_small,
    drop_small,
    failing_requirements,
    is_small,
    judge_all,
    judge_safely,
    minimum_gain_ns,
)
from three_walls.rules.pools import CULPRIT_COST, without_culprit
from three_walls.rules.verdict import decide_verdict
from three_walls.tables.thresholds import VerdictThresholds, default_thresholds

_BASIS_ORDER = ("measured", "modelled", "range")

CULPRIT_RULE = "late-rank"
"""The rule of the rank to fix first."""

Validate = Callable[[Sequence[PlannedEdit]], tuple[Note, ...]]
"""What is wrong with edits that are made together; nothing if a launcher accepts them."""


def make_validated_plan(
    rules: Iterable[Rule], facts: FactSheet, validate: Validate, allowed: Collection[str] = ()
) -> tuple[list[Finding], tuple[PlanStep, ...]]:
    """:func:`make_plan` without the rules whose edits ``validate`` refuses; those are blocked, with its reasons."""
    accepted = {rule.id: rule for rule in rules}
    refused: list[Finding] = []
    while True:
        findings, plan = make_plan(accepted.values(), facts, allowed=allowed)
        edits: list[PlannedEdit] = []
        for step in plan:
            edits += step.edits
            problems = validate(edits) if step.edits else ()
            if problems:  # of this step: the edits of the steps before it were accepted
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
    thresholds: VerdictThresholds | None = None,
    allowed: Collection[str] = (),
) -> tuple[list[Finding], tuple[PlanStep, ...]]:
    """All findings by rule id, on the original facts, and the ordered plan.

    A recommended finding is in the plan, unless the step is not known; what was left out says why. ``allowed``:
    applicabilities of rules that may enter besides ``execution-only``.

    Where one rank holds the others back, it is entry 0 (:data:`CULPRIT_RULE`); all other rules are judged, and gain, on
    the step without its delay.
    """
    by_id = {rule.id: rule for rule in rules}
    culprit_rule = by_id.get(CULPRIT_RULE)
    culprit = judge_safely(culprit_rule, facts) if culprit_rule and facts.number(CULPRIT_COST) else None
    left = without_culprit(facts) if culprit else facts
    findings = judge_all(by_id.values(), left)
    if culprit:
        findings = [culprit if one.rule == CULPRIT_RULE else one for one in findings]
    step_ns = left.number("step_ns")
    if not step_ns:
        return findings, ()
    limits = thresholds or default_thresholds()
    minimum_ns = minimum_gain_ns(step_ns, limits)
    kept = {one.rule: drop_small(one, by_id[one.rule], left, minimum_ns) for one in findings}
    draft = _Draft(by_id, kept, left, limits, minimum_ns, frozenset((EXECUTION_ONLY, *allowed)))
    while draft.take_best():
        pass
    draft.check_conservation(step_ns)
    first = (_fix_first(culprit, facts, step_ns),) if culprit and culprit.outcome is Outcome.FOUND else ()
    return [draft.with_reason(one) for one in draft.findings.values()], (*first, *draft.steps)


def _fix_first(culprit: Finding, facts: FactSheet, step_without_ns: float) -> PlanStep:
    """Entry 0: the rank to fix before anything is tuned. It has no edits, and gains at most what the rank costs."""
    gain = replace(culprit.gain_ns, high=round(facts.number(CULPRIT_COST) or 0))
    return PlanStep(
        order=0,
        rule=culprit.rule,
        finding=culprit,
        edits=(),
        gain_ns=gain,
        step_after_ns=Bounds(round(step_without_ns), round(facts.number("step_ns") or 0)),
    )


@dataclass(slots=True)
class _Draft:
    """A plan being made."""

    rules: Mapping[str, Rule]
    findings: Mapping[str, Finding]
    """On the original facts."""
    original: FactSheet
    limits: VerdictThresholds
    minimum_ns: float
    applicabilities: frozenset[str]
    """Of the rules that may enter."""
    steps: list[PlanStep] = field(default_factory=list)
    unlocked_by: dict[str, list[str]] = field(default_factory=dict)
    """Per rule that was blocked at first: the entries that each removed some of what blocked it."""
    left_out: dict[str, str] = field(default_factory=dict)
    facts: dict[Level, FactSheet] = field(init=False)
    unclaimed: FactSheet = field(init=False)
    """Facts if each likely gain so far comes true and each upper bound is won in full: time that no entry claims."""
    blockers: dict[str, set[str]] = field(init=False)

    def __post_init__(self) -> None:
        self.facts = dict.fromkeys(Level, self.original)
        self.unclaimed = self.original
        blocked = {name: one for name, one in self.findings.items() if one.outcome is Outcome.BLOCKED}
        self.blockers = {name: {note.name for note in one.blocked_by} for name, one in blocked.items()}

    def take_best(self) -> bool:
        """Move the best remaining recommendation into the plan; False when none is left."""
        candidates = [found for name in self._open_rules() if (found := self._reconsider(name))]
        if not candidates:
            return False
        self._append(self._choose(candidates))
        return True

    def _choose(self, candidates: Sequence[Finding]) -> Finding:
        """What makes the run fit; else the largest likely gain, or one of comparable size against the present wall."""
        fitting = [one for one in candidates if self.rules[one.rule].gain.frees_memory]
        if fitting:
            return min(fitting, key=self._rank)
        best = min(candidates, key=self._rank)
        wall = decide_verdict(self.facts[Level.LIKELY], self.limits).wall
        enough_ns = self.limits.comparable_gain_fraction * (best.gain_ns.likely or 0)
        of_wall = [one for one in candidates if one.wall is wall and (one.gain_ns.likely or 0) >= enough_ns]
        return min(of_wall if best.gain_ns.likely and of_wall else [best], key=self._rank)

    def _rank(self, finding: Finding) -> tuple[int, int, int, int, float, int, str]:
        """Size of the gain first, then its basis, its cost, the number of edits, and the id, so that no two tie."""
        gain = finding.gain_ns
        basis = _BASIS_ORDER.index(gain.basis) if gain.basis in _BASIS_ORDER else len(_BASIS_ORDER)
        effort = len(finding.edits) + len(finding.confirm_first)
        return (*self._size(finding), basis, gain.cost_fraction or 0.0, effort, finding.rule)

    def _size(self, finding: Finding) -> tuple[int, int, int]:
        """Likely gains first, then upper bounds, the largest first in both, then gains that are unknown.

        Of an upper bound the part that no earlier entry may win counts before the whole.
        """
        gain = finding.gain_ns
        if gain.likely is not None:
            return 0, -gain.likely, 0
        if gain.high is None:
            return 2, 0, 0
        return 1, -min(self._unclaimed_ns(finding), gain.high), -gain.high

    def _unclaimed_ns(self, finding: Finding) -> int:
        """The part of an upper bound that no earlier entry may win."""
        return estimate(self.rules[finding.rule].gain, self.unclaimed).high or 0

    def with_reason(self, finding: Finding) -> Finding:
        """``finding``, as an alternative with its reason if it was recommended and is not in the plan."""
        if finding.outcome is not Outcome.RECOMMENDED or finding.rule in self._planned():
            return finding
        reason = self.left_out.get(finding.rule) or _not_allowed(finding)
        return replace(finding, outcome=Outcome.ALTERNATIVE, reason=reason)

    def check_conservation(self, step_ns: float) -> None:
        """Even the high gains together fit into the step."""
        assert sum(step.gain_ns.high or 0 for step in self.steps) <= round(step_ns)

    def _planned(self) -> dict[str, PlanStep]:
        return {step.finding.rule: step for step in self.steps}

    def _open_rules(self) -> list[str]:
        """Rules that may still enter: recommended or blocked at first, not in the plan."""
        planned = self._planned()
        hopeful = (Outcome.RECOMMENDED, Outcome.BLOCKED)
        return [
            name
            for name, one in self.findings.items()
            if one.outcome in hopeful and one.applicability in self.applicabilities and name not in planned
        ]

    def _reconsider(self, name: str) -> Finding | None:
        """The finding on the facts that are left, if it still belongs into the plan; else notes why not."""
        rule, finding = self.rules[name], judge_safely(self.rules[name], self.facts[Level.LIKELY])
        self._note_unlocking(finding)
        fitting = replace(finding, gain_ns=self._fit_into_step(finding.gain_ns))
        reason = self._reason_against(rule, finding) or self._reason_of_size(fitting.gain_ns)
        if reason:
            self.left_out[name] = reason
            return None
        return fitting

    def _reason_against(self, rule: Rule, finding: Finding) -> str:
        for step in self.steps:
            if step.finding.lever == rule.lever:
                return f"{step.finding.rule} changes the same settings ({rule.lever}) and ranks higher"
            if clash := _contradiction(step.edits, finding.edits):
                return f"{step.finding.rule} already sets {clash} to another value"
        if finding.outcome is not Outcome.RECOMMENDED:
            after = ", ".join(step.finding.rule for step in self.steps)
            return f"After {after} the rule is {finding.outcome.value.replace('_', ' ')}: {finding.reason}"
        if is_small(finding.gain_ns, self.minimum_ns):
            left = describe_small(finding.gain_ns, self.minimum_ns)
            return f"The earlier edits leave too little to gain. {left}"
        return self._harm_to_earlier(rule, finding)

    def _reason_of_size(self, gain: Gain) -> str:
        if not is_small(gain, self.minimum_ns):
            return ""
        left = describe_small(gain, self.minimum_ns)
        return f"The earlier entries may win the remaining time, so trace again after them. {left}"

    def _harm_to_earlier(self, rule: Rule, finding: Finding) -> str:
        """Which earlier entry's requirement the edits of ``rule`` would break."""
        after = apply_gain(rule, finding.gain_ns, finding.edits, self.facts[Level.LIKELY])
        for name in self._planned():
            if broken := failing_requirements(self.rules[name], after):
                return (
                    f"Its edits break a requirement of {name}: {', '.join(requirement.name for requirement in broken)}"
                )
        return ""

    def _note_unlocking(self, finding: Finding) -> None:
        before = self.blockers.get(finding.rule)
        if not before or not self.steps:
            return
        now = {note.name for note in finding.blocked_by}
        if before - now:
            self.unlocked_by.setdefault(finding.rule, []).append(self.steps[-1].finding.rule)
        self.blockers[finding.rule] = now

    def _append(self, finding: Finding) -> None:
        gain = self._note_shared_time(finding)
        self._take(self.rules[finding.rule], finding.edits)
        single = self.findings[finding.rule].gain_ns
        after_low, after_high = self._step_ns(Level.HIGH), self._step_ns(Level.LOW)
        self.steps.append(
            PlanStep(
                order=len(self.steps) + 1,
                rule=finding.rule,
                finding=replace(finding, gain_ns=single),
                edits=finding.edits,
                gain_ns=gain,
                step_after_ns=Bounds(min(after_low, after_high), after_high),  # rounding may swap them by 1 ns
                unlocked_by=", ".join(self.unlocked_by.get(finding.rule, ())),
            )
        )

    def _take(self, rule: Rule, edits: Sequence[PlannedEdit]) -> None:
        """Take the gain of ``rule`` from every copy of the facts."""
        for level, facts in self.facts.items():
            self.facts[level] = apply_gain(rule, estimate(rule.gain, facts), edits, facts, level)
        claims = Level.HIGH if rule.gain.is_upper_bound else Level.LIKELY
        self.unclaimed = apply_gain(rule, estimate(rule.gain, self.unclaimed), edits, self.unclaimed, claims)

    def _note_shared_time(self, finding: Finding) -> Gain:
        """The gain, with a remark where earlier entries claim the same time as this upper bound."""
        gain = finding.gain_ns
        if gain.likely is not None or not gain.high or self._unclaimed_ns(finding) >= gain.high:
            return gain
        return replace(gain, explanation=f"Earlier entries may win part of the same time. {gain.explanation}")

    def _fit_into_step(self, gain: Gain) -> Gain:
        """``gain`` with its ends within what the high gains so far leave of the step."""
        if gain.high is None or gain.low is None:
            return gain
        taken_ns = sum(step.gain_ns.high or 0 for step in self.steps)
        left_ns = max(0, round(self.original.number("step_ns") or 0) - taken_ns)
        if gain.high <= left_ns:
            return gain
        return replace(
            gain,
            low=min(gain.low, left_ns),
            likely=None if gain.likely is None else min(gain.likely, left_ns),
            high=left_ns,
            explanation=f"Limited to what the high gains of the earlier entries leave of the step. {gain.explanation}",
        )

    def _step_ns(self, level: Level) -> int:
        return round(self.facts[level].number("step_ns") or 0)


def _not_allowed(finding: Finding) -> str:
    return f"The rule is {finding.applicability}, so it needs --allow {finding.applicability}. {finding.reason}"


def _contradiction(earlier: Iterable[PlannedEdit], later: Iterable[PlannedEdit]) -> str:
    """The first key that both set, to different values; empty if none. What builds on a list agrees with it."""
    targets = {(edit.kind, edit.key): edit.to for edit in earlier}
    clashes = (
        e.key for e in later if (e.kind, e.key) in targets and not e.relative and not same(targets[e.kind, e.key], e.to)
    )
    return next(clashes, "")


def choose_first_trial(plan: Sequence[PlanStep], facts: FactSheet) -> FirstTrial | None:
    """The single edit to try first, and what must be seen if it worked: the plan's first entry; None for an empty plan.

    A rank that must be fixed first is that entry too.

    The order of the plan prefers a likely gain to an upper bound, and what makes the run fit to both. Fractions come
    from the trace and times from the log: the log's unprofiled step should fall by the fraction of the traced step that
    the entry may save.
    """
    if not plan:
        return None
    first = plan[0]
    step_ns, unprofiled = facts.number("step_ns"), facts.number("unprofiled_step_ns")
    low = high = None
    if step_ns and first.gain_ns.low is not None and first.gain_ns.high is not None:
        low, high = first.gain_ns.low / step_ns, first.gain_ns.high / step_ns
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
