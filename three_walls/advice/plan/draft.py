"""A plan being made from shares of measured times: greedy on facts that shrink."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from three_walls.advice import verdict_thresholds
from three_walls.advice.decide_verdict import decide_verdict
from three_walls.advice.finding import Bounds, Finding, Gain, Outcome, PlannedEdit, PlanStep
from three_walls.advice.format.conditions import same
from three_walls.advice.format.rule import Rule
from three_walls.advice.judge import (
    describe_small,
    failing_requirements,
    is_nearly_enough,
    is_small,
    is_threshold,
    judge_safely,
)
from three_walls.advice.plan.gain import apply_gain, estimate
from three_walls.lib.fact import FactSheet
from three_walls.lib.text import in_ms
from three_walls.replay.transformation import Level

NOT_YET = (Outcome.NOT_APPLICABLE, Outcome.NOT_NEEDED)
"""What a rule that continues another one is until that is in the plan."""

FITTING_PRESSURES = ("allocator_retries", "near_limit", "fragmented")
"""Values of the fact ``memory_pressure`` of a run that is short of memory and goes on."""

_BASIS_ORDER = ("measured", "modelled", "range")


@dataclass(slots=True)
class Draft:
    """A plan being made."""

    rules: Mapping[str, Rule]
    findings: Mapping[str, Finding]
    """On the original facts as traced."""
    original: FactSheet
    minimum_ns: float
    applicabilities: frozenset[str]
    """Those of the rules that may enter."""
    steps: list[PlanStep] = field(default_factory=list)
    unlocked_by: dict[str, list[str]] = field(default_factory=dict)
    """For each rule that was blocked at first: the entries that removed one of its blockers or more."""
    passed_over: dict[str, bool] = field(default_factory=dict)
    """Rules whose gain the log makes too small -> whether only by little."""
    left_out: dict[str, str] = field(default_factory=dict)
    """For each rule that was considered and not taken: the reason."""
    saved_as_traced_ns: int = 0
    """All high gains so far, as traced."""
    facts: dict[Level, FactSheet] = field(init=False)
    """As traced: they decide which rule comes next."""
    without_profiler: dict[Level, FactSheet] = field(init=False)
    """Less what the profiler added, where a log shows it: they give the gains."""
    unclaimed: FactSheet = field(init=False)
    """Facts after every likely gain and every upper bound in full: the time that no entry claims."""
    blockers: dict[str, set[str]] = field(init=False)

    def __post_init__(self) -> None:
        self.facts = dict.fromkeys(Level, self.original.as_traced())
        self.without_profiler = dict.fromkeys(Level, self.original)
        self.unclaimed = self.original.as_traced()
        blocked = [finding for finding in self.findings.values() if finding.outcome is Outcome.BLOCKED]
        self.blockers = {finding.rule: {note.name for note in finding.blocked_by} for finding in blocked}

    def take_best(self) -> bool:
        """Move the best remaining recommendation into the plan; False when none is left."""
        candidates = [found for name in self._open_rules() if (found := self._reconsider(name))]
        if not candidates:
            return False
        chosen = self._choose(candidates)
        gain = self._without_profiler(chosen)
        if is_small(gain, self.minimum_ns):
            self.left_out[chosen.rule] = describe_profiler(chosen.gain_ns, gain, self.minimum_ns)
            self._take_as_traced(self.rules[chosen.rule], ())
            self.passed_over[chosen.rule] = is_nearly_enough(gain, self.minimum_ns)
        else:
            self._append(chosen, gain)
        return True

    def _without_profiler(self, finding: Finding) -> Gain:
        """The gain of ``finding`` in the time that the log leaves; the one as traced where it takes nothing."""
        if not self.original.before_log:
            return finding.gain_ns
        gain = estimate(self.rules[finding.rule].gain, self.without_profiler[Level.LIKELY])
        return self._fit_into_step(gain, sum(step.gain_ns.high or 0 for step in self.steps))

    def _choose(self, candidates: Sequence[Finding]) -> Finding:
        """What makes the run fit; else the largest likely gain, or a comparable one against the current wall."""
        fitting = [finding for finding in candidates if self.rules[finding.rule].gain.frees_memory]
        if fitting and not self._fits():
            return min(fitting, key=self._rank)
        best = min(candidates, key=self._rank)
        wall = decide_verdict(self.facts[Level.LIKELY]).wall
        enough_ns = verdict_thresholds.COMPARABLE_GAIN_FRACTION * (best.gain_ns.likely or 0)
        comparable = [finding for finding in candidates if (finding.gain_ns.likely or 0) >= enough_ns]
        against_wall = [finding for finding in comparable if finding.wall is wall]
        return min(against_wall if best.gain_ns.likely and against_wall else [best], key=self._rank)

    def _fits(self) -> bool:
        """Whether the run is known to fit into memory: to free some is then no condition of saving time."""
        return self.original.get("memory_pressure").value in FITTING_PRESSURES

    def _rank(self, finding: Finding) -> tuple[int, int, int, int, float, int, str]:
        """By size of the gain, then basis, cost and number of edits; the id makes the order total."""
        gain = finding.gain_ns
        basis = _BASIS_ORDER.index(gain.basis) if gain.basis in _BASIS_ORDER else len(_BASIS_ORDER)
        effort = len(finding.edits) + len(finding.confirm_first)
        return (*self._size(finding), basis, gain.cost_fraction or 0.0, effort, finding.rule)

    def _size(self, finding: Finding) -> tuple[int, int, int]:
        """Likely gains, then upper bounds, each from large to small, then unknown gains.

        An upper bound counts by the part that no earlier entry claims, then by the whole.
        """
        gain = finding.gain_ns
        if gain.likely is not None:
            return 0, -gain.likely, 0
        if gain.high is None:
            return 2, 0, 0
        return 1, -min(self._unclaimed_ns(finding), gain.high), -gain.high

    def _unclaimed_ns(self, finding: Finding) -> int:
        """The part of an upper bound that no earlier entry claims."""
        return estimate(self.rules[finding.rule].gain, self.unclaimed).high or 0

    def with_reason(self, finding: Finding) -> Finding:
        """``finding`` with the gain that the log leaves.

        It is an alternative with its reason if it was recommended and is not in the plan, and not needed if the log
        makes its gain too small.
        """
        finding = self._with_own_gain(finding)
        if finding.rule in self.passed_over:
            reason = self.left_out[finding.rule]
            near = reason if self.passed_over[finding.rule] else ""
            return replace(finding, outcome=Outcome.NOT_NEEDED, reason=reason, near=near)
        if finding.rule in self._planned():
            continues = finding.outcome in NOT_YET
            return replace(finding, near="", outcome=Outcome.BLOCKED if continues else finding.outcome)
        if finding.outcome is not Outcome.RECOMMENDED:
            return finding
        applicability = finding.applicability
        not_allowed = f"The rule is {applicability}, so it needs --allow {applicability}. {finding.reason}"
        return replace(finding, outcome=Outcome.ALTERNATIVE, reason=self.left_out.get(finding.rule) or not_allowed)

    def _with_own_gain(self, finding: Finding) -> Finding:
        """``finding`` with the gain that it has alone."""
        if finding.gain_ns.high is None or not self.original.before_log:
            return finding
        return replace(finding, gain_ns=estimate(self.rules[finding.rule].gain, self.original))

    def check_conservation(self, step_ns: float) -> None:
        """Asserts that all high gains together fit into the step."""
        assert sum(step.gain_ns.high or 0 for step in self.steps) <= round(step_ns)

    def _planned(self) -> dict[str, PlanStep]:
        return {step.finding.rule: step for step in self.steps}

    def _open_rules(self) -> list[str]:
        """Rules that may still enter: recommended or blocked at first, not in the plan."""
        planned = self._planned()
        return [
            name
            for name, finding in self.findings.items()
            if finding.outcome in (Outcome.RECOMMENDED, Outcome.BLOCKED)
            and finding.applicability in self.applicabilities
            and name not in planned
            and name not in self.passed_over
        ]

    def _reconsider(self, name: str) -> Finding | None:
        """The finding on the remaining time if it belongs in the plan; else None, with the reason in ``left_out``."""
        rule, finding = self.rules[name], self._judge_remaining(name)
        self._note_unlocking(finding)
        fitting = replace(finding, gain_ns=self._fit_into_step(finding.gain_ns, self.saved_as_traced_ns))
        reason = self._reason_against(rule, finding)
        if not reason and is_small(fitting.gain_ns, self.minimum_ns):
            size = describe_small(fitting.gain_ns, self.minimum_ns)
            reason = f"The earlier entries may already save the remaining time, so profile again after them. {size}"
        if reason:
            self.left_out[name] = reason
            return None
        return fitting

    def _judge_remaining(self, name: str) -> Finding:
        """The rule on the remaining time. Where a threshold is missed by little, the size of the gain decides."""
        rule, before = self.rules[name], self.findings[name]
        finding = judge_safely(rule, self.facts[Level.LIKELY])
        if not finding.near or before.outcome is not Outcome.RECOMMENDED:
            return finding
        gradual = tuple(condition for condition in rule.when if not is_threshold(condition))
        finding = judge_safely(replace(rule, when=gradual), self.facts[Level.LIKELY])
        return replace(finding, reason=before.reason) if finding.outcome is Outcome.RECOMMENDED else finding

    def _reason_against(self, rule: Rule, finding: Finding) -> str:
        """Why ``rule`` cannot follow the entries so far; empty if it can."""
        for step in self.steps:
            if step.finding.lever == rule.lever and step.rule != rule.continues:
                return f"{step.finding.rule} changes the same settings ({rule.lever}) and ranks higher"
            if clash := _contradiction(step.edits, finding.edits):
                return f"{step.finding.rule} already sets {clash} to another value"
        if finding.outcome is not Outcome.RECOMMENDED:
            after = ", ".join(step.finding.rule for step in self.steps)
            return f"After {after}, the rule is {finding.outcome.value.replace('_', ' ')}: {finding.reason}"
        if is_small(finding.gain_ns, self.minimum_ns):
            return f"The earlier edits leave too little to gain. {describe_small(finding.gain_ns, self.minimum_ns)}"
        after_edits = apply_gain(rule, finding.gain_ns, finding.edits, self.facts[Level.LIKELY])
        for name in self._planned():
            if broken := failing_requirements(self.rules[name], after_edits):
                names = ", ".join(requirement.name for requirement in broken)
                return f"Its edits break a requirement of {name}: {names}"
        return ""

    def _note_unlocking(self, finding: Finding) -> None:
        """Credit the last entry if it removed a blocker of the rule, and the one that the rule continues."""
        if self.rules[finding.rule].continues in self._planned():
            self.unlocked_by[finding.rule] = [self.rules[finding.rule].continues]
            return
        before = self.blockers.get(finding.rule)
        if not before or not self.steps:
            return
        now = {note.name for note in finding.blocked_by}
        if before - now:
            self.unlocked_by.setdefault(finding.rule, []).append(self.steps[-1].finding.rule)
        self.blockers[finding.rule] = now

    def _append(self, finding: Finding, gain: Gain) -> None:
        """Adds ``finding`` to the plan with its ``gain``, which the log may have made smaller than its own."""
        rule = self.rules[finding.rule]
        profiler_ns = max(0, (_size_ns(finding.gain_ns) or 0) - (_size_ns(gain) or 0))
        gain = self._note_shared_time(finding, gain)
        self._take_as_traced(rule, finding.edits)
        for level, facts in self.without_profiler.items():
            self.without_profiler[level] = apply_gain(rule, estimate(rule.gain, facts), finding.edits, facts, level)
        single = estimate(rule.gain, self.original) if self.original.before_log else self.findings[finding.rule].gain_ns
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
                profiler_ns=profiler_ns,
            )
        )

    def _take_as_traced(self, rule: Rule, edits: Sequence[PlannedEdit]) -> None:
        """Subtract the gain of ``rule`` from every copy of the facts as traced."""
        self.saved_as_traced_ns += (
            self._fit_into_step(estimate(rule.gain, self.facts[Level.LIKELY]), self.saved_as_traced_ns).high or 0
        )
        for level, facts in self.facts.items():
            self.facts[level] = apply_gain(rule, estimate(rule.gain, facts), edits, facts, level)
        claims = Level.HIGH if rule.gain.is_upper_bound else Level.LIKELY
        self.unclaimed = apply_gain(rule, estimate(rule.gain, self.unclaimed), edits, self.unclaimed, claims)

    def _note_shared_time(self, finding: Finding, gain: Gain) -> Gain:
        """``gain``, with a remark if earlier entries claim part of the same time as this upper bound."""
        traced = finding.gain_ns
        if traced.likely is not None or not traced.high or self._unclaimed_ns(finding) >= traced.high:
            return gain
        return replace(gain, explanation=f"Earlier entries may save part of the same time. {gain.explanation}")

    def _fit_into_step(self, gain: Gain, taken_ns: int) -> Gain:
        """``gain`` limited to the part of the step that high gains of ``taken_ns`` leave."""
        if gain.high is None or gain.low is None:
            return gain
        left_ns = max(0, round(self.original.number("step_ns") or 0) - taken_ns)
        if gain.high <= left_ns:
            return gain
        return replace(
            gain,
            low=min(gain.low, left_ns),
            likely=None if gain.likely is None else min(gain.likely, left_ns),
            high=left_ns,
            explanation=f"Limited to the time that the high gains of the earlier entries leave. {gain.explanation}",
        )

    def _step_ns(self, level: Level) -> int:
        return round(self.without_profiler[level].number("step_ns") or 0)


def describe_profiler(traced: Gain, gain: Gain, minimum_ns: float) -> str:
    """That the log takes so much of a gain ``traced`` that what is left, ``gain``, is too small."""
    profiler_ns = (_size_ns(traced) or 0) - (_size_ns(gain) or 0)
    traced_as = "at most" if traced.likely is None else "a likely"
    return (
        f"The log shows that {in_ms(profiler_ns, '.3g')} of {traced_as} {in_ms(_size_ns(traced) or 0, '.3g')} in "
        f"this trace are the profiler's. {describe_small(gain, minimum_ns)}"
    )


def _size_ns(gain: Gain) -> int | None:
    return gain.high if gain.likely is None else gain.likely


def _contradiction(earlier: Iterable[PlannedEdit], later: Iterable[PlannedEdit]) -> str:
    """The first key that both set to different values; empty if none. Adding to a list contradicts nothing."""
    targets = {(edit.kind, edit.key): edit.to for edit in earlier}
    for edit in later:
        place = (edit.kind, edit.key)
        if place in targets and not edit.relative and not same(targets[place], edit.to):
            return edit.key
    return ""
