"""A plan being made from replays of the step: greedy on the graph that the earlier entries left.

The next entry is the edit with the best likely step, so gains add up. A gain rarely grows by other edits: the candidate
that gained most before is replayed first, and those that gained less than what it gains now are not replayed at all.
When nothing is left by this order, every gain that is older than the last entry is replayed once more: work that is
saved under an empty launch queue shortens a step only after the launches are gone.

Rules that no transformation stands for come last, with their share of measured times as an upper bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from three_walls.advice import verdict_thresholds
from three_walls.advice.decide_verdict import decide_verdict
from three_walls.advice.edits import fact_of
from three_walls.advice.finding import REPLAYED, Bounds, Finding, Gain, Outcome, PlanStep
from three_walls.advice.format.rule import Rule
from three_walls.advice.judge import describe_small, drop_small, is_small, judge_safely
from three_walls.advice.plan.draft import NOT_YET, Draft
from three_walls.advice.plan.gain import CULPRIT_RULE, apply_gain, estimate
from three_walls.advice.plan.replays import Replays, Transformations, as_ceiling, describe_gain
from three_walls.lib.fact import FactSheet
from three_walls.replay.transformation import Action, Level, Selection
from three_walls.tables.buckets import Wall


def predict_gain(finding: Finding, rule: Rule, facts: FactSheet, replays: Replays) -> Finding:
    """``finding`` with the gain of its edits alone by replay; as an upper bound where no replay gives it.

    That of a late rank stays as it is where the replays start without its delay.
    """
    is_culprit = rule.id == CULPRIT_RULE
    if finding.outcome not in (Outcome.RECOMMENDED, Outcome.FOUND) or (is_culprit and replays.base):
        return finding
    gain, _ = replays.gain_of(rule, facts)
    if gain is None:
        if is_culprit:
            return finding
        gain = as_ceiling(finding.gain_ns, replays.why_unknown(rule, facts))
    return replace(finding, gain_ns=gain)


@dataclass(slots=True)
class ReplayedDraft(Draft):
    """The gains of ``findings`` are replayed already, each alone."""

    replays: Replays = field(kw_only=True)
    taken: Transformations = ()
    """Of the entries so far."""
    settled: FactSheet = field(init=False)
    """Facts as traced, with the settings of the entries so far: replayed rules are judged on them."""
    wall: Wall | None = field(init=False)
    """That of the verdict, without replays."""
    last_gain: dict[str, tuple[int, int]] = field(init=False)
    """For each replayed rule its likely gain, and how many entries the plan had then."""

    def __post_init__(self) -> None:
        Draft.__post_init__(self)
        self.settled = self.original.as_traced()
        self.wall = decide_verdict(self.original.as_traced()).wall
        gains = {name: finding.gain_ns for name, finding in self.findings.items()}
        self.last_gain = {name: (gain.likely or 0, 0) for name, gain in gains.items() if gain.basis == REPLAYED}

    def _open_rules(self) -> list[str]:
        """As without replays, and rules that continue an entry: only a replay shows what is left for them."""
        planned = self._planned()
        continuing = [
            name
            for name, finding in self.findings.items()
            if finding.outcome in NOT_YET
            and finding.applicability in self.applicabilities
            and self.rules[name].continues in planned
            and name not in planned
        ]
        return [*Draft._open_rules(self), *continuing]

    def take_best(self) -> bool:
        """What makes the run fit; else the best by replay; else what frees memory; else an upper bound."""
        names = self._open_rules()
        fitting = [name for name in names if self.rules[name].gain.frees_memory]
        if not self._fits() and self._take_fitting(fitting):
            return True
        others = [name for name in names if name not in fitting]
        if best := self._choose_replayed(others):
            self._append_replayed(*best)
            return True
        if self._take_fitting(fitting):
            return True
        ceilings = [finding for name in others if (finding := self._bound(name))]
        if ceilings:
            self._append_ceiling(min(ceilings, key=self._rank))
        return bool(ceilings)

    def _take_fitting(self, names: Iterable[str]) -> bool:
        """Takes the cheapest of the rules that free memory; False where none can follow."""
        findings = [finding for name in names if (finding := self._allow(name, self.settled))]
        if findings:
            self._append_fitting(min(findings, key=self._rank))
        return bool(findings)

    def _allow(self, name: str, facts: FactSheet) -> Finding | None:
        """The finding on ``facts``, with its own gain, if it can follow the entries so far; else None."""
        finding = judge_safely(self.rules[name], facts)
        self._note_unlocking(finding)
        if before := self.findings[name] if self.findings[name].outcome is Outcome.RECOMMENDED else None:
            finding = replace(finding, gain_ns=before.gain_ns)
        if reason := self._reason_against(self.rules[name], replace(finding, gain_ns=_NO_SIZE)):
            self.left_out[name] = reason
            return None
        return finding

    def _choose_replayed(self, names: Iterable[str]) -> tuple[Finding, Transformations] | None:
        """The rule with the largest likely gain on the graph as the entries left it; None if all gains are small."""
        waiting = sorted(names, key=lambda name: (-self._most_ns(name), name))
        likely = [name for name in waiting if self._most_ns(name) >= self.minimum_ns]
        best = self._replay_best(likely)
        if best is None:
            stale = [name for name in waiting if name not in likely and self.last_gain[name][1] < len(self.steps)]
            best = self._replay_best(stale)
        return best

    def _most_ns(self, name: str) -> float:
        """What the rule gained when it was last replayed; endless where it never was."""
        return self.last_gain[name][0] if name in self.last_gain else float("inf")

    def _replay_best(self, names: Iterable[str]) -> tuple[Finding, Transformations] | None:
        """The largest likely gain. Of gains that two runs could not tell apart, one against the wall goes first."""
        replayed: list[tuple[Finding, Transformations]] = []
        largest_ns, enough_ns = 0.0, 0.0
        for name in names:
            if name in self.last_gain and self._most_ns(name) < enough_ns:
                break
            if name in self.last_gain and self._most_ns(name) < largest_ns and self.rules[name].wall is not self.wall:
                continue
            if found := self._replay(name):
                replayed.append(found)
                largest_ns = max(largest_ns, found[0].gain_ns.likely or 0)
                enough_ns = verdict_thresholds.SAME_GAIN_FRACTION * largest_ns
        same = [found for found in replayed if (found[0].gain_ns.likely or 0) >= enough_ns]
        return min(same, key=lambda found: (found[0].wall is not self.wall, self._rank(found[0])), default=None)

    def _replay(self, name: str) -> tuple[Finding, Transformations] | None:
        """The finding with its gain on the remaining step, and its transformations; None if it is not to be taken."""
        finding = self._allow(name, self.settled)
        if finding is None:
            return None
        transformations, _ = self.replays.find(self.rules[name], self.settled)
        if not transformations or self.replays.step(self.taken).because_unknown:
            return None
        likely_ns = self.replays.step(self.taken).likely_ns - self.replays.likely_ns((*self.taken, *transformations))
        gain = Gain(None, likely_ns, likely_ns, REPLAYED)
        self.last_gain[name] = (likely_ns, len(self.steps))
        if is_small(gain, self.minimum_ns):
            small = describe_small(gain, self.minimum_ns)
            self.left_out[name] = f"The earlier entries save the remaining time. {small}" if self.steps else small
            return None
        return replace(finding, gain_ns=gain), transformations

    def _bound(self, name: str) -> Finding | None:
        """The finding with the upper bound of its gain, if no replay gives its gain; else None."""
        rule = self.rules[name]
        if name in self.last_gain:
            return None
        finding = self._judge_remaining(name)
        self._note_unlocking(finding)
        why = self.replays.why_unknown(rule, self.settled)
        finding = replace(finding, gain_ns=self._fit_into_replayed(as_ceiling(finding.gain_ns, why)))
        if reason := self._reason_against(rule, finding):
            self.left_out[name] = reason
            return None
        return finding

    def _fit_into_replayed(self, gain: Gain) -> Gain:
        """An upper bound is no more than the replayed step."""
        left_ns = self.replays.step(self.taken).likely_ns
        return gain if gain.high is None or gain.high <= left_ns else replace(gain, high=left_ns)

    def _append_fitting(self, finding: Finding) -> None:
        """Adds an edit that frees memory. Where it can be replayed, the step after it holds its cost."""
        gain, transformations = self.replays.gain_of(self.rules[finding.rule], self.settled, self.taken)
        self.taken = (*self.taken, *transformations)
        self._append_entry(finding, gain or finding.gain_ns, finding.gain_ns, self._step_after())

    def _append_replayed(self, finding: Finding, transformations: Transformations) -> None:
        before = self.replays.step(self.taken)
        self.taken = (*self.taken, *transformations)
        after = self.replays.step(self.taken)
        gain = describe_gain(self.rules[finding.rule].gain, transformations, before, after)
        assert before.likely_ns - after.likely_ns == gain.likely  # so the gains sum to what the plan saves
        alone = self.findings[finding.rule].gain_ns
        self._append_entry(finding, gain, alone if alone.basis == REPLAYED else gain, self._step_after())
        self.settled = self.settled.with_values(_list_removed(transformations, self.settled))
        whole = replace(gain, high=gain.likely)
        # For the upper bounds that follow.
        self._change_facts(lambda facts: apply_gain(self.rules[finding.rule], whole, (), facts, Level.HIGH))

    def _append_ceiling(self, finding: Finding) -> None:
        rule, gain = self.rules[finding.rule], finding.gain_ns
        if gain.high is not None and self.original.before_log:
            without_profiler = estimate(rule.gain, self.without_profiler[Level.LIKELY])
            gain = replace(gain, high=min(gain.high, without_profiler.high or 0))
        bounds, likely_ns = self._step_after()
        lowest_ns = max(0, min(bounds.low, likely_ns) - (gain.high or 0))
        gain = self._note_shared_time(finding, gain)
        alone = self.findings[finding.rule].gain_ns
        self._append_entry(finding, gain, alone, (Bounds(lowest_ns, bounds.high), likely_ns))
        most = estimate(rule.gain, self.unclaimed)
        self.unclaimed = apply_gain(rule, most, (), self.unclaimed, Level.HIGH)

    def _step_after(self) -> tuple[Bounds, int]:
        """The step after the entries so far: its range, which upper bounds only lower, and its likely length."""
        step = self.replays.step(self.taken)
        lowest = [entry.step_after_ns.low for entry in self.steps if entry.gain_ns.basis != REPLAYED]
        return Bounds(min([step.low_ns, *lowest]) if lowest else step.low_ns, step.high_ns), step.likely_ns

    def _append_entry(self, finding: Finding, gain: Gain, alone: Gain, after: tuple[Bounds, int]) -> None:
        bounds, likely_ns = after
        self.steps.append(
            PlanStep(
                order=len(self.steps) + 1,
                rule=finding.rule,
                finding=replace(finding, gain_ns=alone),
                edits=finding.edits,
                gain_ns=gain,
                step_after_ns=bounds,
                unlocked_by=", ".join(self.unlocked_by.get(finding.rule, ())),
                step_after_likely_ns=likely_ns,
            )
        )
        values = {fact_of(edit): edit.to for edit in finding.edits}
        self.settled = self.settled.with_values(values)
        self._change_facts(lambda facts: facts.with_values(values))

    def _change_facts(self, change: Callable[[FactSheet], FactSheet]) -> None:
        """Every copy of the facts after ``change``. Without a log most of them are one sheet, which changes once."""
        changed: dict[int, tuple[FactSheet, FactSheet]] = {}

        def once(facts: FactSheet) -> FactSheet:
            if id(facts) not in changed:
                changed[id(facts)] = facts, change(facts)  # kept, so that no other sheet gets its id
            return changed[id(facts)][1]

        for sheets in (self.facts, self.without_profiler):
            sheets.update({level: once(facts) for level, facts in sheets.items()})
        self.unclaimed = once(self.unclaimed)

    def with_reason(self, finding: Finding) -> Finding:
        """As without replays; a rule whose gain is small alone and that did not enter is not needed."""
        if finding.rule not in self._planned():
            finding = drop_small(finding, self.rules[finding.rule], self.original.as_traced(), self.minimum_ns)
        return Draft.with_reason(self, finding)

    def _with_own_gain(self, finding: Finding) -> Finding:
        return finding

    def check_conservation(self, step_ns: float) -> None:
        """Asserts that the likely gains end at the last step (each was checked against its replay)."""
        assert all(entry.step_after_ns.low <= entry.step_after_ns.high for entry in self.steps), step_ns


_NO_SIZE = Gain(None, None, None, REPLAYED)
"""Stands for a gain that is not replayed yet, so that no size decides."""


def _list_removed(transformations: Transformations, facts: FactSheet) -> dict[str, int]:
    """Times and fractions of the categories that leave the step whole, as unfused attention does: they are 0 then.

    An edit that depends on them (which module to recompute) must not be chosen for kernels that are gone.
    """
    gone = {
        f"{category}_ns"
        for change in transformations
        if change.action is Action.SCALE and change.time.likely == 0
        for category in change.select.categories
        if change.select == Selection(categories=change.select.categories)
    }
    return {
        fact.name: 0
        for fact in facts.facts.values()
        if not fact.is_missing and (fact.name in gone or (fact.definition and fact.definition.numerator in gone))
    }
