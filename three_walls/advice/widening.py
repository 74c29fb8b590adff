"""The printed range of a replayed gain: widened to what measured gains differ from replays by."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from three_walls.facts.fact_rows import Prediction
from three_walls.replay.transformation import Predictor
from three_walls.tables.prediction_intervals import PredictionIntervals, ReplayedGain, StepLimits


@dataclass(frozen=True, slots=True)
class Widening:
    """Ranges of the gains of one run."""

    intervals: PredictionIntervals
    step_ns: int
    """The likely step as it is."""
    limits: StepLimits

    @staticmethod
    def of(predictor: Predictor, intervals: PredictionIntervals | None) -> Widening | None:
        """None where there are no ``intervals``, or no step."""
        if intervals is None or predictor.missing_reason or not predictor.step_ns.likely_ns:
            return None
        return Widening(intervals, predictor.step_ns.likely_ns, StepLimits.of(predictor.limits_after(())))

    def widen(self, low_ns: int, likely_ns: int, high_ns: int, step_ns: int) -> tuple[int, int]:
        """Both ends of the range of a gain on a step of ``step_ns``.

        By replay it is ``low_ns`` to ``high_ns`` at the ends of the parameters.
        """
        wide = self.intervals.widen(ReplayedGain(low_ns / step_ns, likely_ns / step_ns, high_ns / step_ns), self.limits)
        return round(wide.low * step_ns), round(wide.high * step_ns)

    def widen_step(self, after: Prediction) -> Prediction:
        """The step ``after`` changes, with the range of what they gain."""
        now_ns = self.step_ns
        low_ns, high_ns = self.widen(now_ns - after.high_ns, now_ns - after.likely_ns, now_ns - after.low_ns, now_ns)
        return Prediction(max(0, now_ns - high_ns), after.likely_ns, now_ns - low_ns)

    def describe(self, effects: Collection[str]) -> str:
        """What the range of a gain rests on, in a sentence. ``effects``: ids of those that give the gain."""
        count, regime = self.intervals.count_edits(effects, self.limits.regime), self.limits.regime.value
        known = f"{count} of them {'was' if count == 1 else 'were'} of these settings on {regime} runs" if count else ""
        return (
            f"The range holds {self.intervals.coverage_fraction:.0%} of the measured edits; "
            f"{known or f'none of them was of these settings on a {regime} run: the gain is by replay alone'}."
        )
