"""Searches a plan: from the settings of a run, step by step, to the best ones that its rules propose.

Every candidate is a rule's edits on the settings so far, and its gain is the replayed step before less the one after,
of whole configurations. So gains add up, and a plan's step is what ``whatif`` says of its settings. The candidate with
the best likely step comes next. A gain rarely grows by other edits: the candidate that gained most before is replayed
first, and those that gained less than what it gains now are not replayed at all. When nothing is left by this order,
every gain that is older than the last entry is replayed once more: work that is saved under an empty launch queue
shortens a step only after the launches are gone. So it is at once where an entry leaves a step that something else
bounds.

Then pairs are tried: edits that gain nothing alone but let others follow, as freed memory does for a larger
micro-batch, and the best single candidates that gain more on top of each other. Such a pair is one entry.

A rule's threshold on something measured keeps no edit out: the replay shows what is there to gain. It also shows
whether an edit shortens what the host or what the GPU does, whatever most runs of such a rule gain from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from three_walls.advice import verdict_thresholds
from three_walls.advice.answer_what_if import FactsAfter, Validate
from three_walls.advice.compare_settings import Settings
from three_walls.advice.edits import fact_of
from three_walls.advice.finding import (
    NEEDS_ALLOW,
    REPLAYED,
    Bounds,
    Finding,
    Gain,
    Outcome,
    PlannedEdit,
    PlanNote,
    PlanStep,
)
from three_walls.advice.format.conditions import evaluate, evaluate_all, same
from three_walls.advice.format.rule import FactTarget, Rule
from three_walls.advice.judge import failing_requirements, is_threshold, judge_safely
from three_walls.advice.plan.replays import Replays, Transformations
from three_walls.advice.upper_bound import describe_small, is_small
from three_walls.advice.wording import explain
from three_walls.lib.expressions import Truth
from three_walls.lib.fact import FactSheet, FactValue
from three_walls.lib.text import capitalize
from three_walls.replay.transformation import FREE_HOST, Action, Selection
from three_walls.tables.buckets import SubWall, Wall
from three_walls.tables.prediction_intervals import Levels

FITTING_PRESSURES = ("allocator_retries", "near_limit", "fragmented")
"""Values of the fact ``memory_pressure`` of a run that fits into memory, if barely: to free some is no
condition of saving time."""
MOST_PAIRED = 6
"""Of the candidates that gain too little alone: so many of the best are tried together, in 5 to 20 replays."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """The edits of a rule, or of two, on top of the entries so far."""

    finding: Finding
    settings: Settings
    """Of the whole plan with it."""
    changes: Transformations
    """Of the whole plan with it."""
    effects: tuple[str, ...]
    """Ids of those of its own edits."""
    likely_ns: int
    """The step with it."""
    gain_ns: int
    nearest_gain_ns: int = 0
    """Of the nearest of the values that the rule proposes: it ranks the candidate, because runs of such a step were
    measured, and gains of values further away follow from it."""
    with_rule: str = ""
    """Of a pair: the other rule, whose edits are among those of ``finding``."""
    is_further: bool = False
    """Whether the rule proposes a nearer value, too."""

    @property
    def effort(self) -> tuple[int, str]:
        return len(self.finding.edits) + len(self.finding.confirm_first), self.finding.rule


@dataclass(slots=True)
class Search:
    """A plan being made."""

    rules: Mapping[str, Rule]
    findings: Mapping[str, Finding]
    """On the original facts, with the gain that each has alone."""
    replays: Replays
    facts: FactSheet
    """As traced, with the settings of the entries so far and what follows from them: rules are judged on them."""
    minimum_ns: float
    may_enter: Callable[[Finding], bool]
    wall: Wall | None
    start_ns: Bounds
    """The step before the first entry."""
    validate: Validate = lambda _: ()
    facts_after: FactsAfter = lambda _: {}
    steps: list[PlanStep] = field(default_factory=list)
    settings: dict[str, FactValue] = field(default_factory=dict)
    """Those of the entries so far."""
    changes: Transformations = ()
    effects: tuple[str, ...] = ()
    """Ids of those of the entries so far."""
    unlocked_by: dict[str, list[str]] = field(default_factory=dict)
    """For each rule that was blocked at first: the entries that removed one of its blockers or more."""
    left_out: dict[str, str] = field(default_factory=dict)
    """For each rule that was considered and not taken: the reason."""
    refused: dict[str, tuple[PlanNote, ...]] = field(default_factory=dict)
    """For each rule whose edits the launcher refuses: why."""
    refused_settings: list[Settings] = field(default_factory=list)
    """Of pairs and further values that it refuses: their rules may do without."""
    kept_out_by: dict[str, str] = field(default_factory=dict)
    """For each rule that could be applied before an entry and not after it: the rule of that entry."""
    part_of: dict[str, str] = field(default_factory=dict)
    """For each rule whose edits entered with those of another one: that one."""
    last_gain: dict[str, tuple[int, int]] = field(default_factory=dict)
    """For each replayed rule its likely gain, and how many entries the plan had then."""
    blockers: dict[str, set[str]] = field(init=False)

    def __post_init__(self) -> None:
        blocked = [finding for finding in self.findings.values() if finding.outcome is Outcome.BLOCKED]
        self.blockers = {finding.rule: {note.name for note in finding.blocked_by} for finding in blocked}

    def run(self) -> None:
        """Takes entries until none is worth one."""
        while candidate := self._choose():
            self._take(candidate)

    def _choose(self) -> Candidate | None:
        """What makes the run fit; else the best by replay; else a pair; else what frees memory."""
        open_rules = [name for name in self.rules if self._is_open(name)]
        fitting = [name for name in open_rules if self.rules[name].gain.frees_memory]
        if self.facts.get("memory_pressure").value not in FITTING_PRESSURES and (
            cheapest := self._find_cheapest(fitting)
        ):
            return cheapest
        others = [name for name in open_rules if name not in fitting]
        if best := self._find_best(others) or self._find_pair(open_rules, fitting):
            return best
        return self._find_cheapest(fitting)

    def _is_open(self, name: str) -> bool:
        rule, finding = self.rules[name], self.findings[name]
        is_planned = name in self.part_of or any(step.rule == name for step in self.steps)
        return bool(rule.edits) and not is_planned and name not in self.refused and self.may_enter(finding)

    def _find_cheapest(self, names: Iterable[str]) -> Candidate | None:
        """Of the rules that free memory and whose symptom is there, the one after which the step is shortest."""
        recommended = (
            name for name in names if judge_safely(self.rules[name], self.facts).outcome is Outcome.RECOMMENDED
        )
        candidates = [found for name in recommended if (found := self._replay(name))]
        return min(candidates, key=lambda found: (found.likely_ns, *found.effort), default=None)

    def _find_best(self, names: Iterable[str]) -> Candidate | None:
        """The rule with the largest likely gain on the step as the entries left it; None if all gains are small."""
        waiting = sorted(names, key=lambda name: (-self._most_ns(name), name))
        likely = [name for name in waiting if self._most_ns(name) >= self.minimum_ns]
        stale = (name for name in waiting if name not in likely and self.last_gain[name][1] < len(self.steps))
        return self._replay_best(likely) or self._replay_best(stale)

    def _most_ns(self, name: str) -> float:
        """What the rule gained when it was last replayed; endless where it never was."""
        return self.last_gain[name][0] if name in self.last_gain else float("inf")

    def _replay_best(self, names: Iterable[str]) -> Candidate | None:
        """The largest likely gain. Of gains that two runs could not tell apart, one against the wall goes first."""
        waiting, replayed = list(names), list[Candidate]()
        while True:
            waiting = self._replay_likely(waiting, replayed)
            if not replayed:
                return None
            largest = max(replayed, key=lambda found: found.nearest_gain_ns)
            enough_ns = verdict_thresholds.SAME_GAIN_FRACTION * largest.nearest_gain_ns
            best = min(
                (found for found in replayed if found.nearest_gain_ns >= enough_ns),
                key=lambda found: (found.finding.wall is not self.wall, -found.nearest_gain_ns, *found.effort),
            )
            refuted = next((found for found in (largest, best) if not self._is_shown(found)), None)
            if refuted is None:
                return best
            replayed.remove(refuted)

    def _replay_likely(self, names: Iterable[str], replayed: list[Candidate]) -> list[str]:
        """Adds to ``replayed`` what may be the best next to it, and returns the rules that it left out."""
        left = []
        for name in names:
            largest_ns = max((found.nearest_gain_ns for found in replayed), default=0)
            share = verdict_thresholds.SAME_GAIN_FRACTION if self.rules[name].wall is self.wall else 1
            if self._most_ns(name) < share * largest_ns:
                left.append(name)
            elif (found := self._replay(name)) and self._is_enough(found):
                replayed.append(found)
        return left

    def _is_enough(self, candidate: Candidate) -> bool:
        """Whether the gain is worth an entry; else the reason is noted."""
        gain = Gain(None, candidate.gain_ns, candidate.gain_ns, REPLAYED)
        if is_small(gain, self.minimum_ns):
            small = describe_small(gain, self.minimum_ns)
            after = "The earlier entries save the remaining time. " if self.steps else ""
            self.left_out[candidate.finding.rule] = f"{after}{small}"
            return False
        return True

    def _is_shown(self, candidate: Candidate) -> bool:
        """Whether the rule's symptom is there, or the edits gain time at both ends."""
        rule = self.rules[candidate.finding.rule]
        if evaluate_all(rule.when, self.facts) is not Truth.FAILS or self._always_gains(candidate):
            return True
        self.left_out[rule.id] = f"The symptom is absent, and the edits may cost time. {explain(rule.when, self.facts)}"
        return False

    def _replay(self, name: str) -> Candidate | None:
        """The edits of a rule on the settings so far, at the best of the values that it proposes; None where it cannot
        follow the entries so far, or what it changes is not known."""
        found = [candidate for finding in self._list_values(name) if (candidate := self._predict(finding))]
        if not found:
            return None
        best = max(found, key=lambda candidate: candidate.gain_ns)  # of equals the nearest
        self.last_gain[name] = (best.gain_ns, len(self.steps))
        return replace(best, nearest_gain_ns=max(0, found[0].gain_ns), is_further=best is not found[0])

    def _list_values(self, name: str) -> Iterator[Finding]:
        """The rule as judged now; then, while its own edits make it propose a further value that is known to be
        allowed, with that one: twice the micro-batch, four times, ... What only a person can confirm is asked of the
        first value already."""
        rule, facts = self.rules[name], self.facts
        checked = {key for key, requirement in rule.requires.items() if requirement.check}
        edits: dict[str, FactValue] = {}
        first: Finding | None = None
        while True:
            finding = self._judge(rule, facts)
            if reason := self._reason_against(rule, finding):
                if not edits:
                    self.left_out[name] = reason
                    if self.steps and self.findings[name].outcome is Outcome.RECOMMENDED:
                        self.kept_out_by.setdefault(name, self.steps[-1].rule)
                return
            is_unknown = any(note.name in checked for note in finding.confirm_first)
            if edits and (is_unknown or {fact_of(edit) for edit in finding.edits} != edits.keys()):
                return
            first = first or finding
            yield replace(finding, reason=first.reason)
            if not any(isinstance(edit.to, FactTarget) for edit in rule.edits):
                return  # only facts that follow from the configuration give further values
            edits = {fact_of(edit): edit.to for edit in finding.edits}
            facts = self._settle(facts, {**self.settings, **edits})

    def _judge(self, rule: Rule, facts: FactSheet) -> Finding:
        """The rule on ``facts``, whatever its thresholds on something measured say."""
        gradual = [condition for condition in rule.when if is_threshold(condition)]
        finding = judge_safely(replace(rule, when=tuple(part for part in rule.when if part not in gradual)), facts)
        self._note_unlocking(finding)
        if gradual and finding.outcome is Outcome.RECOMMENDED:
            known = [condition for condition in rule.when if evaluate(condition, facts) is not Truth.UNKNOWN]
            is_little = any(evaluate(condition, facts) is Truth.FAILS for condition in gradual)
            rest = ": little, but the replay shows the gain" if is_little else ""
            finding = replace(finding, reason=f"{explain(known, facts)}{rest}")
        return finding

    def _settle(self, facts: FactSheet, settings: Settings) -> FactSheet:
        """``facts`` with ``settings`` and what follows from them."""
        return facts.with_values(settings).with_facts(self.facts_after(settings))

    def _predict(self, finding: Finding, with_rule: str = "") -> Candidate | None:
        # Judged for a further value, or as a part of a pair, an edit starts from a value that no entry sets.
        edits = tuple(replace(edit, from_value=self.facts.get(fact_of(edit)).value) for edit in finding.edits)
        finding = replace(finding, edits=edits)
        settings = {**self.settings, **{fact_of(edit): edit.to for edit in finding.edits}}
        if settings in self.refused_settings:
            return None
        difference = self.replays.compare(settings)
        if difference.unknown:
            self.left_out[finding.rule] = capitalize("; ".join(difference.unknown))
            return None
        before_ns, likely_ns = self.replays.likely_ns(self.changes), self.replays.likely_ns(difference.transformations)
        gain_ns = before_ns - likely_ns
        effects = tuple(name for name in difference.effects if name not in self.effects) or difference.effects
        changes = difference.transformations
        return Candidate(finding, settings, changes, effects, likely_ns, gain_ns, with_rule=with_rule)

    def _reason_against(self, rule: Rule, finding: Finding) -> str:
        """Why ``rule`` cannot follow the entries so far; empty if it can."""
        for step in self.steps:
            if step.finding.lever == rule.lever and step.rule != rule.continues:
                return f"{step.finding.rule} changes the same settings ({rule.lever}) and ranks higher"
            if clash := _contradiction(step.edits, finding.edits):
                return f"{step.finding.rule} already sets {clash} to another value"
        if finding.outcome is not Outcome.RECOMMENDED:
            after = ", ".join(step.finding.rule for step in self.steps)
            state = f"the rule is {finding.outcome.value.replace('_', ' ')}: {finding.reason}"
            return f"After {after}, {state}" if after else state
        settled = self.facts.with_values({fact_of(edit): edit.to for edit in finding.edits})
        for step in self.steps:
            before = failing_requirements(self.rules[step.rule], self.facts)
            broken = failing_requirements(self.rules[step.rule], settled)
            if names := ", ".join(requirement.name for requirement in broken if requirement not in before):
                return f"Its edits break a requirement of {step.rule}: {names}"
        return ""

    def _note_unlocking(self, finding: Finding) -> None:
        """Credit the last entry if it removed a blocker of the rule, and the one that the rule continues."""
        continued = self.rules[finding.rule].continues
        if any(step.rule == continued for step in self.steps):
            self.unlocked_by[finding.rule] = [continued]
            return
        before = self.blockers.get(finding.rule)
        if not before or not self.steps:
            return
        now = {note.name for note in finding.blocked_by}
        if before - now:
            self.unlocked_by.setdefault(finding.rule, []).append(self.steps[-1].finding.rule)
        self.blockers[finding.rule] = now

    def _find_pair(self, names: Iterable[str], fitting: Iterable[str]) -> Candidate | None:
        """The best two rules that gain enough together and not alone, as one candidate."""
        gains = {name: max(0, self.last_gain[name][0]) for name in names if name in self.last_gain}
        best_alone = sorted(gains, key=lambda name: (-self.last_gain[name][0], name))[:MOST_PAIRED]
        continuing = ((self.rules[name].continues, name) for name in names if self.rules[name].continues in gains)
        pairs = [*self._list_promising(best_alone, gains), *continuing, *self._list_unlocking(names, fitting)]
        found = [pair for first, second in pairs if (pair := self._join(self._judge_as_possible(first), second))]
        alone_ns = (gains.get(pair.finding.rule, 0) + gains.get(pair.with_rule, 0) for pair in found)
        least_ns = (max(self.minimum_ns, ns + self.minimum_ns / 2) for ns in alone_ns)
        enough = [pair for pair, ns in zip(found, least_ns, strict=True) if pair.gain_ns >= ns]
        best_first = sorted(enough, key=lambda pair: (-pair.gain_ns, *pair.effort))
        return next((pair for pair in best_first if self._always_gains(pair)), None)

    def _always_gains(self, candidate: Candidate) -> bool:
        """Whether it gains at both ends of its range. Without a symptom, or as a pair of which neither edit is worth an
        entry alone, only that is worth a try."""
        return self.replays.find_gain(self.changes, candidate.changes, candidate.effects).low > 0

    def _list_promising(self, names: Iterable[str], gains: Mapping[str, int]) -> Iterator[tuple[str, str]]:
        """The pairs of ``names`` that may gain more together than alone.

        A rule gains more on top of all before it than alone if it does so on top of one of them. So each is added to
        these, and is paired with every one where that gains more, or where it cannot be added.
        """
        union, gain_ns = None, 0
        before: list[str] = []
        for name in names:
            joined = self._join(union, name) if union else None
            if union is None:
                union, gain_ns = self._judge_as_possible(name), gains[name]
            elif joined is None or joined.gain_ns - gain_ns - gains[name] >= self.minimum_ns / 2:
                yield from ((first, name) for first in before)
            if joined and joined.gain_ns >= gain_ns:
                union, gain_ns = joined.finding, joined.gain_ns
            before.append(name)

    def _list_unlocking(self, names: Iterable[str], fitting: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Pairs of a rule that frees memory, and one that is blocked without it."""
        closed = [name for name in names if self._judge(self.rules[name], self.facts).outcome is Outcome.BLOCKED]
        for first in fitting if closed else ():
            finding = self._judge_as_possible(first)
            if finding is None:
                continue
            settings = {**self.settings, **{fact_of(edit): edit.to for edit in finding.edits}}
            facts = self._settle(self.facts, settings)
            yield from (
                (first, second)
                for second in closed
                if self._judge(self.rules[second], facts).outcome is Outcome.RECOMMENDED
            )

    def _judge_as_possible(self, name: str) -> Finding | None:
        """The rule whether or not its symptom is there; None where its edits cannot be made."""
        rule = self.rules[name]
        finding = judge_safely(replace(rule, when=()), self.facts)
        return None if self._reason_against(rule, finding) else finding

    def _join(self, earlier: Finding | None, name: str) -> Candidate | None:
        """A rule on top of the edits of another one, or of several."""
        if earlier is None:
            return None
        settings = {**self.settings, **{fact_of(edit): edit.to for edit in earlier.edits}}
        later = self._judge(self.rules[name], self._settle(self.facts, settings))
        if _contradiction(earlier.edits, later.edits) or self._reason_against(self.rules[name], later):
            return None
        edits = {fact_of(edit): edit for edit in (*earlier.edits, *later.edits)}
        confirm = tuple(dict.fromkeys((*earlier.confirm_first, *later.confirm_first)))
        joined = replace(later, edits=tuple(edits.values()), confirm_first=confirm)
        return self._predict(joined, with_rule=earlier.rule)

    def _take(self, candidate: Candidate) -> None:
        """Makes the candidate the next entry, unless the launcher refuses its edits."""
        finding, rule = candidate.finding, self.rules[candidate.finding.rule]
        if problems := self.validate([edit for step in self.steps for edit in step.edits] + list(finding.edits)):
            if candidate.with_rule or candidate.is_further:
                self.refused_settings.append(candidate.settings)
            else:
                self.refused[finding.rule] = problems
            return
        finding = replace(finding, sub_wall=self._find_half(candidate))
        before, after = self.replays.step(self.changes), self.replays.step(candidate.changes)
        new = tuple(change for change in candidate.changes if change not in self.changes)
        alone = self.findings[finding.rule].gain_ns
        gain = self.replays.describe_gain(rule.gain, self.changes, candidate.changes, candidate.effects)
        all_ends = self.replays.find_gain((), candidate.changes, (*self.effects, *candidate.effects))
        assert gain.likely in (None, before.likely_ns - after.likely_ns)  # so the gains sum to what the plan saves
        self.steps.append(
            PlanStep(
                order=len(self.steps) + 1,
                rule=finding.rule,
                finding=replace(finding, gain_ns=alone if alone.basis == REPLAYED else gain),
                edits=finding.edits,
                gain_ns=gain,
                step_after_ns=shorten(self.start_ns, all_ends),
                unlocked_by=", ".join(self.unlocked_by.get(finding.rule, ())),
                step_after_likely_ns=after.likely_ns,
                with_rule=candidate.with_rule,
            )
        )
        if candidate.with_rule:
            self.part_of[candidate.with_rule] = finding.rule
        # A wall takes as much.
        moved_ns = verdict_thresholds.MINIMUM_RECOVERABLE_FRACTION * self.replays.unpaused_ns(self.changes)
        is_moved = before.likely_ns - after.likely_ns >= moved_ns
        regimes = [self.replays.find_limits(changes).regime for changes in (self.changes, candidate.changes)]
        if is_moved and regimes[0] is not regimes[1]:
            # What gained little against the wall of before may gain most against the next one.
            self.last_gain = {}
        self.settings, self.changes = dict(candidate.settings), candidate.changes
        self.effects += candidate.effects
        self.facts = self._settle(self.facts, candidate.settings).with_values(_list_removed(new, self.facts))

    def _find_half(self, candidate: Candidate) -> SubWall | None:
        """Which half of the wall it shortens: what gains less than half where the host takes no time is the host's."""
        sub_wall = candidate.finding.sub_wall
        if sub_wall is None or candidate.gain_ns <= 0:
            return sub_wall
        before_ns, after_ns = (
            self.replays.likely_ns((*changes, FREE_HOST)) for changes in (self.changes, candidate.changes)
        )
        return SubWall.HOST if before_ns - after_ns < candidate.gain_ns / 2 else SubWall.COMPUTE

    def with_reason(self, finding: Finding) -> Finding:
        """``finding`` with its outcome after the search.

        In the plan it is recommended. Outside it is an alternative with its reason, or blocked, or not needed if its
        gain is small; recommended it stays only where no replay tells its gain.
        """
        rule = finding.rule
        if rule in self.refused:
            reason = "; ".join(note.text for note in self.refused[rule])
            blocked_by = (*finding.blocked_by, *self.refused[rule])
            return replace(finding, outcome=Outcome.BLOCKED, reason=reason, blocked_by=blocked_by)
        if entry := next((step for step in self.steps if step.rule == rule), None):
            if finding.outcome in (Outcome.NOT_APPLICABLE, Outcome.BLOCKED):
                return replace(finding, near="", outcome=Outcome.BLOCKED)
            # What a threshold kept out has no edits and no gain of its own.
            found = finding if finding.outcome is Outcome.RECOMMENDED else entry.finding
            return replace(found, near="", sub_wall=entry.finding.sub_wall)
        if rule in self.part_of:
            reason = f"Its edits are part of the entry of {self.part_of[rule]}"
            return replace(finding, near="", outcome=Outcome.ALTERNATIVE, reason=reason)
        if finding.outcome is not Outcome.RECOMMENDED:
            return finding
        if not self.may_enter(finding):
            needed = NEEDS_ALLOW.format(finding.applicability)
            return replace(finding, outcome=Outcome.ALTERNATIVE, reason=f"{needed} {finding.reason}")
        if is_small(finding.gain_ns, self.minimum_ns):
            small = describe_small(finding.gain_ns, self.minimum_ns)
            return replace(finding, outcome=Outcome.NOT_NEEDED, reason=small)
        is_priced = rule in self.last_gain or finding.gain_ns.basis == REPLAYED
        reason, other = self.left_out.get(rule, finding.reason), self.kept_out_by.get(rule, "")
        outcome = Outcome.ALTERNATIVE if is_priced else Outcome.RECOMMENDED
        return replace(finding, outcome=outcome, reason=reason, instead_of=other)


def shorten(step_ns: Bounds, gain_ns: Levels) -> Bounds:
    """The step after a gain: at its high end from the lowest step, and at its low end from the highest."""
    return Bounds(max(0, round(step_ns.low - gain_ns.high)), round(step_ns.high - gain_ns.low))


def _contradiction(earlier: Iterable[PlannedEdit], later: Iterable[PlannedEdit]) -> str:
    """The first key that both set to different values; empty if none. Adding to a list contradicts nothing."""
    targets = {(edit.kind, edit.key): edit.to for edit in earlier}
    for edit in later:
        place = (edit.kind, edit.key)
        if place in targets and not edit.relative and not same(targets[place], edit.to):
            return edit.key
    return ""


def _list_removed(changes: Transformations, facts: FactSheet) -> dict[str, FactValue]:
    """Times and fractions of the categories that leave the step whole, as unfused attention does: they are 0 then.

    An edit that depends on them (which module to recompute) must not be chosen for kernels that are gone.
    """
    gone = {
        f"{category}_ns"
        for change in changes
        if change.action is Action.SCALE and change.time.likely == 0
        for category in change.select.categories
        if change.select == Selection(categories=change.select.categories)
    }
    return {
        fact.name: 0
        for fact in facts.facts.values()
        if not fact.is_missing and (fact.name in gone or (fact.definition and fact.definition.numerator in gone))
    }
