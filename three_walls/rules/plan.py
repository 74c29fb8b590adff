"""Orders recommendations into a plan: greedy on a step that shrinks, so no nanosecond is sold twice.

The best recommendation enters, its gain is taken from the facts, the other rules are judged again on what
is left, and so on. Three copies of the facts shrink side by side, by the low, likely and high gains: the
likely one decides, the other two give the range of the step afterwards. A ceiling of which nobody measured
how much goes takes nothing but from the last; so it comes after every gain of which something likely is known,
and several ceilings may be of the same time. Of those the first stands before ceilings of other time, the rest after.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from three_walls.model.fact import FactSheet
from three_walls.model.finding import Bounds, Finding, Gain, Outcome, PlannedEdit, PlanStep
from three_walls.model.rule import EXECUTION_ONLY, PHASES, Rule
from three_walls.rules.conditions import same
from three_walls.rules.gain import Level, apply_gain, estimate
from three_walls.rules.judge import failing_requirements, judge_all, judge_safely
from three_walls.rules.small_gains import describe_small, drop_small, is_small, minimum_gain_ns
from three_walls.rules.thresholds import Thresholds, default_thresholds
from three_walls.rules.verdict import decide_verdict

_BASIS_ORDER = ("measured", "modelled", "range")


def make_plan(
    rules: Iterable[Rule],
    facts: FactSheet,
    thresholds: Thresholds | None = None,
    allowed: Collection[str] = (),
) -> tuple[list[Finding], tuple[PlanStep, ...]]:
    """All findings by rule id, on the original facts, and the ordered plan.

    A recommended finding is in the plan, unless the step is not known; what was left out says why. ``allowed``:
    classes of rules that may enter besides ``execution-only``.
    """
    by_id = {rule.id: rule for rule in rules}
    findings = judge_all(by_id.values(), facts)
    step_ns = facts.number("step_ns")
    if not step_ns:
        return findings, ()
    limits = thresholds or default_thresholds()
    minimum_ns = minimum_gain_ns(step_ns, limits)
    kept = {one.rule: drop_small(one, by_id[one.rule], facts, minimum_ns) for one in findings}
    draft = _Draft(by_id, kept, facts, limits, minimum_ns, frozenset((EXECUTION_ONLY, *allowed)))
    while draft.take_best():
        pass
    draft.check_conservation(step_ns)
    return [draft.with_reason(one) for one in draft.findings.values()], tuple(draft.steps)


@dataclass(slots=True)
class _Draft:
    """A plan being made."""

    rules: Mapping[str, Rule]
    findings: Mapping[str, Finding]
    """On the original facts."""
    original: FactSheet
    limits: Thresholds
    minimum_ns: float
    classes: frozenset[str]
    """Classes of rules that may enter."""
    steps: list[PlanStep] = field(default_factory=list)
    unlocked_by: dict[str, list[str]] = field(default_factory=dict)
    """Per rule that was blocked at first: the entries that each lifted some of what blocked it."""
    left_out: dict[str, str] = field(default_factory=dict)
    facts: dict[Level, FactSheet] = field(init=False)
    unclaimed: FactSheet = field(init=False)
    """Facts if each likely gain so far comes true and each ceiling goes in full: time of no entry yet."""
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
        """What makes the run fit; else the largest likely gain, or one of the same order against the present wall."""
        fitting = [one for one in candidates if one.phase == PHASES[0]]
        if fitting:
            return min(fitting, key=self._rank)
        best = min(candidates, key=self._rank)
        wall = decide_verdict(self.facts[Level.LIKELY], self.limits).wall
        enough_ns = self.limits.comparable_gain_fraction * (best.gain_ns.likely or 0)
        of_wall = [one for one in candidates if one.wall is wall and (one.gain_ns.likely or 0) >= enough_ns]
        return min(of_wall if best.gain_ns.likely and of_wall else [best], key=self._rank)

    def _rank(self, finding: Finding) -> tuple[int, int, int, int, float, int, str]:
        """Size of the gain first, then how it is founded, what it costs, how much there is to do, the id: total."""
        gain = finding.gain_ns
        basis = _BASIS_ORDER.index(gain.basis) if gain.basis in _BASIS_ORDER else len(_BASIS_ORDER)
        effort = len(finding.edits) + len(finding.confirm_first)
        return (*self._size(finding), basis, gain.cost_fraction or 0.0, effort, finding.rule)

    def _size(self, finding: Finding) -> tuple[int, int, int]:
        """Likely gains first, then ceilings, the largest first in both, then what nobody can tell.

        Of a ceiling the part that no earlier entry may win counts before the whole.
        """
        gain = finding.gain_ns
        if gain.likely is not None:
            return 0, -gain.likely, 0
        if gain.high is None:
            return 2, 0, 0
        return 1, -min(self._unclaimed_ns(finding), gain.high), -gain.high

    def _unclaimed_ns(self, finding: Finding) -> int:
        """What of a ceiling no earlier entry may win."""
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
            if one.outcome in hopeful and one.rule_class in self.classes and name not in planned
        ]

    def _reconsider(self, name: str) -> Finding | None:
        """The finding on the facts that are left, if it still belongs into the plan; else notes why not."""
        rule, finding = self.rules[name], judge_safely(self.rules[name], self.facts[Level.LIKELY])
        self._note_unlocking(finding)
        fitting = replace(finding, gain_ns=self._fit_into_step(finding.gain_ns))
        reason = self._reason_against(rule, finding) or self._reason_of_room(fitting.gain_ns)
        if reason:
            self.left_out[name] = reason
            return None
        return fitting

    def _reason_against(self, rule: Rule, finding: Finding) -> str:
        for step in self.steps:
            if step.finding.lever == rule.lever:
                return f"{step.finding.rule} takes the lever {rule.lever}: it ranks before this rule"
            if clash := _contradiction(step.edits, finding.edits):
                return f"{step.finding.rule} already sets {clash} to another value"
        if finding.outcome is not Outcome.RECOMMENDED:
            after = ", ".join(step.finding.rule for step in self.steps)
            return f"after {after} it is {finding.outcome.value.replace('_', ' ')}: {finding.reason}"
        if is_small(finding.gain_ns, self.minimum_ns):
            left = describe_small(finding.gain_ns, self.minimum_ns)
            return f"after the earlier edits too little is left to gain: {left}"
        return self._harm_to_earlier(rule, finding)

    def _reason_of_room(self, gain: Gain) -> str:
        if not is_small(gain, self.minimum_ns):
            return ""
        left = describe_small(gain, self.minimum_ns)
        return f"the earlier entries may win the time that is left, so trace again after them: {left}"

    def _harm_to_earlier(self, rule: Rule, finding: Finding) -> str:
        """Which earlier entry's requirement the edits of ``rule`` would break."""
        after = apply_gain(rule, finding.gain_ns, finding.edits, self.facts[Level.LIKELY])
        for name in self._planned():
            if broken := failing_requirements(self.rules[name], after):
                return f"its edits break what {name} requires: {', '.join(one.name for one in broken)}"
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
        claims = Level.HIGH if rule.gain.is_ceiling else Level.LIKELY
        self.unclaimed = apply_gain(rule, estimate(rule.gain, self.unclaimed), edits, self.unclaimed, claims)

    def _note_shared_time(self, finding: Finding) -> Gain:
        """The gain, of a ceiling that others claim too saying so."""
        gain = finding.gain_ns
        if gain.likely is not None or not gain.high or self._unclaimed_ns(finding) >= gain.high:
            return gain
        return replace(gain, explanation=f"Earlier entries may win some of the same time. {gain.explanation}")

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
            explanation=f"No more than the highest gains of the earlier entries leave of the step. {gain.explanation}",
        )

    def _step_ns(self, level: Level) -> int:
        return round(self.facts[level].number("step_ns") or 0)


def _not_allowed(finding: Finding) -> str:
    return f"it is {finding.rule_class}: planned only with --allow {finding.rule_class}; {finding.reason}"


def _contradiction(earlier: Iterable[PlannedEdit], later: Iterable[PlannedEdit]) -> str:
    """The first key that both set, to different values; empty if none. What builds on a list agrees with it."""
    targets = {(edit.kind, edit.key): edit.to for edit in earlier}
    clashes = (
        e.key for e in later if (e.kind, e.key) in targets and not e.relative and not same(targets[e.kind, e.key], e.to)
    )
    return next(clashes, "")
