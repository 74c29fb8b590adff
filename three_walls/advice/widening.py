"""The printed range of a replayed gain: widened to what measured gains differ from replays by."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from three_walls.facts.fact_rows import Prediction
from three_walls.lib.fact import FactSheet
from three_walls.replay.transformation import Predictor, Transformation
from three_walls.tables.prediction_intervals import Levels, PredictionIntervals, StepLimits


def find_limits(predictor: Predictor, facts: FactSheet, changes: Sequence[Transformation] = ()) -> StepLimits:
    """What bounds the likely step after ``changes``."""
    waits_for_loader = facts.get("data_loader_sets_pace").value is True
    return StepLimits.of(predictor.limits_after(changes), waits_for_loader, predictor.absent_fraction)


@dataclass(frozen=True, slots=True)
class Widening:
    """Ranges of the gains of one run."""

    intervals: PredictionIntervals
    step_ns: int
    """The likely step as it is."""
    unpaused_ns: int
    """The same without the pauses of the host."""
    limits: StepLimits

    @staticmethod
    def of(predictor: Predictor, facts: FactSheet, intervals: PredictionIntervals | None) -> Widening | None:
        """None where there are no ``intervals``, or no step."""
        if intervals is None or predictor.missing_reason or not predictor.step_ns.likely_ns:
            return None
        step_ns = predictor.step_ns.likely_ns
        return Widening(intervals, step_ns, max(1, step_ns - predictor.paused_after(())), find_limits(predictor, facts))

    def widen(
        self, gain_ns: Levels, step_ns: int, effects: Collection[str], before: StepLimits, after: StepLimits
    ) -> tuple[int, int]:
        """Both ends of the range of a gain on a step of ``step_ns``.

        ``effects``: ids of those that give it; ``before``, ``after``: what bounds the step without and with them.
        """
        shares = Levels(*(ns / step_ns for ns in (gain_ns.low, gain_ns.likely, gain_ns.high)))
        wide = self.intervals.widen(shares, before, after, effects)
        return round(wide.low * step_ns), round(wide.high * step_ns)

    def widen_step(self, after: Prediction, effects: Collection[str], limits: StepLimits) -> Prediction:
        """The step ``after`` changes, with the range of what they gain. ``limits``: what bounds that step."""
        gain_ns = Levels(*(self.step_ns - ns for ns in (after.high_ns, after.likely_ns, after.low_ns)))
        low_ns, high_ns = self.widen(gain_ns, self.unpaused_ns, effects, self.limits, limits)
        return Prediction(max(0, self.step_ns - high_ns), after.likely_ns, self.step_ns - low_ns)

    def describe(self, effects: Collection[str]) -> str:
        """What the range of a gain of ``effects`` rests on, in a sentence."""
        regime = self.limits.regime
        count, judged = self.intervals.count_edits(effects, regime), self.intervals.inside[regime]
        known = f"{count} of the edits measured there {'changes' if count == 1 else 'change'} these settings"
        return (
            f"Such ranges hold {judged.inside} of {judged.measured} gains measured on {regime.value} runs; "
            f"{known if count else 'no edit measured there changes these settings: the gain is by replay alone'}."
        )
