"""The step of a run with other settings, by replays: what the plan asks of a predictor, and remembers.

All times are of the step that nobody profiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from three_walls.advice.compare_settings import Settings, SettingsDifference, compare_settings, fill_known
from three_walls.advice.finding import FREES_MEMORY, REPLAYED, Gain
from three_walls.advice.format.effect import Effect
from three_walls.advice.format.rule import GainModel, Rule
from three_walls.advice.widening import Widening, find_limits
from three_walls.facts.fact_rows import Prediction
from three_walls.lib.fact import FactSheet
from three_walls.lib.text import capitalize
from three_walls.replay.transformation import Predictor, Transformation
from three_walls.tables.prediction_intervals import Levels, PredictionIntervals, StepLimits

Transformations = tuple[Transformation, ...]


@dataclass(slots=True)
class Replays:
    """A predictor whose replays are trusted, with everything that it answered so far."""

    predictor: Predictor
    effects: Sequence[Effect] = ()
    facts: FactSheet = field(default_factory=lambda: FactSheet({}))
    """Of the run as it is."""
    base: Transformations = ()
    """What every prediction starts from: the rank to fix first is healed."""
    widening: Widening | None = None
    """Without it, ranges are those of the parameters alone."""
    answers: dict[Transformations, Prediction] = field(default_factory=dict)
    limits: dict[Transformations, StepLimits] = field(default_factory=dict)

    @staticmethod
    def of(
        predictor: Predictor | None,
        effects: Sequence[Effect],
        facts: FactSheet,
        intervals: PredictionIntervals | None = None,
    ) -> Replays | None:
        """None where there is no predictor, or it predicts nothing."""
        if predictor is None or predictor.missing_reason:
            return None
        return Replays(predictor, effects, facts, widening=Widening.of(predictor, facts, intervals))

    def compare(self, settings: Settings) -> SettingsDifference:
        """What ``settings`` change in the step of the run."""
        return compare_settings(self.effects, self.facts, settings, self.predictor.explain)

    def follow_advice(self, rule: Rule, facts: FactSheet) -> tuple[Transformations, str]:
        """What following the advice of a ``rule`` without edits changes, or nothing and why that is not known."""
        if not rule.gain.replay:
            return (), rule.gain.no_replay or "no transformation of the step is known for this advice"
        return fill_known(rule.gain.replay, facts, self.predictor.explain)

    def step(self, transformations: Transformations = ()) -> Prediction:
        """The step after ``transformations``, with the range of what they gain; the likely step after none."""
        changes = (*self.base, *transformations)
        if not changes:
            now = self.predictor.step_ns
            return replace(now, low_ns=now.likely_ns, high_ns=now.likely_ns)
        if changes not in self.answers:
            self.answers[changes] = self.predictor.predict(changes)
        return self.answers[changes]

    def unpaused_ns(self, transformations: Transformations = ()) -> int:
        """The likely step after ``transformations`` without the pauses of the host: what fractions of a step are of."""
        paused_ns = self.predictor.paused_after((*self.base, *transformations))
        return max(1, self.step(transformations).likely_ns - paused_ns)

    def find_limits(self, transformations: Transformations = ()) -> StepLimits:
        """What bounds the likely step after ``transformations``."""
        changes = (*self.base, *transformations)
        if changes not in self.limits:
            self.limits[changes] = find_limits(self.predictor, self.facts, changes)
        return self.limits[changes]

    def likely_ns(self, transformations: Transformations) -> int:
        """The likely step after ``transformations``, from one replay."""
        changes = (*self.base, *transformations)
        known = self.answers.get(changes)
        return known.likely_ns if known else self.predictor.predict_likely_ns(changes)

    def find_gain(self, earlier: Transformations, changes: Transformations, effects: Sequence[str] = ()) -> Levels:
        """What the step after ``changes`` gains over that after ``earlier`` ones, as it is printed.

        ``effects``: ids of what gains it. Both steps hold the uncertainty of earlier edits, so their ends are compared.
        """
        before, after = self.step(earlier), self.step(changes)
        likely_ns = before.likely_ns - after.likely_ns
        ends = (before.high_ns - after.high_ns, likely_ns, before.low_ns - after.low_ns)
        gain = Levels(min(ends), likely_ns, max(ends))
        if self.widening is None:
            return gain
        limits = self.find_limits(earlier), self.find_limits(changes)
        low_ns, high_ns = self.widening.widen(gain, self.unpaused_ns(earlier), effects, *limits)
        return Levels(low_ns, likely_ns, high_ns)

    def describe_gain(
        self,
        model: GainModel,
        earlier: Transformations,
        changes: Transformations,
        effects: Sequence[str] = (),
    ) -> Gain:
        """What the step after ``changes`` gains over that after ``earlier`` ones, at the ends of all parameters.

        ``effects``: ids of the edits'. An end where the edit costs time is negative. Edits that free memory gain no
        time: the share of the step that they cost is predicted.
        """
        before, after = self.step(earlier), self.step(changes)
        if model.frees_memory:
            cost = max(0.0, after.likely_ns / before.likely_ns - 1) if before.likely_ns else 0.0
            return Gain(None, None, None, FREES_MEMORY, f"The cost is by replay. {model.explanation}", cost)
        gain = self.find_gain(earlier, changes, effects)
        reasons = [
            f"{capitalize(part.reason.rstrip('.'))}{f' ({part.source})' if part.source else ''}."
            for part in changes
            if part not in earlier
        ]
        if self.widening is not None:
            reasons.append(self.widening.describe(effects))
        return Gain(
            low=round(gain.low),
            likely=round(gain.likely),
            high=round(gain.high),
            basis=REPLAYED,
            explanation=f"By replaying the step without the profiler. {' '.join(dict.fromkeys(reasons))}",
        )
