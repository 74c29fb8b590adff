"""Gains by replaying the step: what a rule's transformations are on a run, and what they take from a step.

:class:`Replays` asks a predictor (``replay/transformation.py``) and remembers what it answered. All times are
of the step that nobody profiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from three_walls.advice.finding import FREES_MEMORY, REPLAYED, UPPER_BOUND, Gain
from three_walls.advice.format.conditions import evaluate_all
from three_walls.advice.format.replay_entries import ReplayEntry, SelectionEntry
from three_walls.advice.format.rule import GainModel, Rule
from three_walls.advice.wording import list_labels
from three_walls.facts.fact_rows import Prediction
from three_walls.lib.expressions import Truth, list_names
from three_walls.lib.fact import FactSheet
from three_walls.lib.text import capitalize
from three_walls.replay.transformation import Action, Predictor, Transformation

Transformations = tuple[Transformation, ...]

NO_TRANSFORMATION = "no transformation of the step is known for these edits"


@dataclass(slots=True)
class Replays:
    """A predictor whose replays are trusted, with everything that it answered so far."""

    predictor: Predictor
    base: Transformations = ()
    """What every prediction starts from: the rank to fix first is healed."""
    answers: dict[Transformations, Prediction] = field(default_factory=dict)
    explained: dict[Transformation, str] = field(default_factory=dict)

    @staticmethod
    def of(predictor: Predictor | None) -> Replays | None:
        """None where there is no predictor, or it predicts nothing."""
        return None if predictor is None or predictor.missing_reason else Replays(predictor)

    def starting_from(self, base: Transformations) -> Replays:
        """The same predictor with ``base`` applied before everything."""
        return replace(self, base=base)

    @property
    def error_fraction(self) -> float:
        return self.predictor.error_fraction

    def step(self, earlier: Transformations = ()) -> Prediction:
        """The step after ``taken``, with the range of what that gains; the likely step where nothing changes."""
        transformations = (*self.base, *earlier)
        if not transformations:
            now = self.predictor.step_ns
            return replace(now, low_ns=now.likely_ns, high_ns=now.likely_ns)
        if transformations not in self.answers:
            self.answers[transformations] = self.predictor.predict(transformations)
        return self.answers[transformations]

    def find(self, rule: Rule, facts: FactSheet) -> tuple[Transformations, str]:
        """The transformations of ``rule`` on this run, or none and why its gain cannot be predicted."""
        if not rule.gain.replay:
            return (), rule.gain.no_replay or NO_TRANSFORMATION
        transformations, missing_names = resolve(rule.gain.replay, facts)
        if missing_names:
            return (), f"unknown: {list_labels(missing_names, facts)}"
        reasons = [self.explain(transformation) for transformation in transformations]
        if all(reasons):  # also where none is left
            reason = reasons[0] if reasons else "none of its transformations applies to this run"
            symptoms = (facts.get(name) for condition in rule.when for name in list_names(condition))
            missing = next((fact.missing_reason for fact in symptoms if fact.missing_reason), "")
            return (), f"{reason}: {missing}" if missing else reason
        return transformations, ""

    def likely_ns(self, earlier: Transformations) -> int:
        """The likely step after ``taken``, from one replay."""
        transformations = (*self.base, *earlier)
        known = self.answers.get(transformations)
        return known.likely_ns if known else self.predictor.predict_likely_ns(transformations)

    def explain(self, transformation: Transformation) -> str:
        """Why ``transformation`` changes nothing; empty if it does."""
        if transformation not in self.explained:
            self.explained[transformation] = self.predictor.explain(transformation)
        return self.explained[transformation]

    def gain_of(
        self, rule: Rule, facts: FactSheet, earlier: Transformations = ()
    ) -> tuple[Gain | None, Transformations]:
        """What ``rule`` gains on the step that ``taken`` leaves, with its transformations; None if nobody can tell."""
        transformations, _ = self.find(rule, facts)
        if not transformations:
            return None, ()
        before, after = self.step(earlier), self.step((*earlier, *transformations))
        if before.because_unknown or after.because_unknown:
            return None, ()
        return describe_gain(rule.gain, transformations, before, after), transformations

    def why_unknown(self, rule: Rule, facts: FactSheet, earlier: Transformations = ()) -> str:
        """Why the gain of ``rule`` is not predicted."""
        transformations, reason = self.find(rule, facts)
        return reason or self.step((*earlier, *transformations)).because_unknown or self.step(earlier).because_unknown


def describe_gain(model: GainModel, transformations: Transformations, before: Prediction, after: Prediction) -> Gain:
    """The step before less the step after, at the ends of all parameters.

    Both steps hold the uncertainty of earlier edits, so the ends are compared with each other. An end where the edit
    costs time is negative. Edits that free memory gain no time: the share of the step that they cost is predicted.
    """
    if model.frees_memory:
        cost = max(0.0, after.likely_ns / before.likely_ns - 1) if before.likely_ns else 0.0
        return Gain(None, None, None, FREES_MEMORY, f"The cost is by replay. {model.explanation}", cost, True)
    likely_ns = before.likely_ns - after.likely_ns
    ends = (before.high_ns - after.high_ns, likely_ns, before.low_ns - after.low_ns)
    reasons = " ".join(
        dict.fromkeys(
            f"{_sentence(part.reason)}{f' ({part.source})' if part.source else ''}." for part in transformations
        )
    )
    return Gain(
        low=min(ends),
        likely=likely_ns,
        high=max(ends),
        basis=REPLAYED,
        explanation=f"By replaying the step without the profiler. {reasons}",
    )


def as_ceiling(gain: Gain, why: str) -> Gain:
    """``gain`` by shares of measured times as an upper bound, because ``why`` no replay gives it."""
    if gain.high is None or gain.basis == FREES_MEMORY:
        return gain
    explanation = f"Not replayed: {why}. At most the share of measured times. {gain.explanation}"
    return replace(gain, low=0, likely=None, basis=UPPER_BOUND, explanation=explanation)


def resolve(entries: Sequence[ReplayEntry], facts: FactSheet) -> tuple[Transformations, tuple[str, ...]]:
    """The transformations of the entries that apply to the run; else none, and the facts that are missing.

    As with edits, of several for the same work whose conditions are not known the first one counts.
    """
    transformations: list[Transformation] = []
    missing: list[str] = []
    uncertain: set[tuple[Action, SelectionEntry]] = set()
    for entry in entries:
        answer = evaluate_all(entry.only_if, facts)
        work = (entry.action, entry.selection)
        if answer is Truth.FAILS or (answer is Truth.UNKNOWN and work in uncertain):
            continue
        if answer is Truth.UNKNOWN:
            uncertain.add(work)
        missing += [name for name in entry.list_facts() if facts.number(name) is None]
        transformations.append(entry.fill(facts))
    return ((), tuple(dict.fromkeys(missing))) if missing else (tuple(transformations), ())


def _sentence(text: str) -> str:
    return capitalize(text.rstrip("."))
