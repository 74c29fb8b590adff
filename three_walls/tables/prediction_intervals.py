"""How far measured gains lie from replayed ones: ``tables/prediction-intervals.yaml``.

Shares are of the step as it is, between 0 and 1; gains may be negative.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from math import ceil, hypot

from three_walls.lib.load_documents import load_table
from three_walls.lib.resources import TABLES_DIR
from three_walls.tables.buckets import Group

_HOST = ("host", "gap")


class Regime(StrEnum):
    """What sets the pace of a step: what its critical path is mostly made of, or its data loader."""

    LOADER = "loader-bound"
    HOST = "host-bound"
    COMMUNICATION = "communication-bound"
    DEVICE = "device-bound"


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What the critical path of a step is made of, and what it waits for."""

    host_fraction: float
    communication_fraction: float
    waits_for_loader: bool = False
    absent_fraction: float = 0.0
    """In which its ranks wait for ranks that were not captured."""

    @staticmethod
    def of(limits_ns: Mapping[str, int], waits_for_loader: bool = False, absent_fraction: float = 0.0) -> StepLimits:
        """``limits_ns``: as ``Predictor.limits_after`` gives them."""
        total_ns = max(1, sum(limits_ns.values()))
        host_ns = sum(limits_ns.get(name, 0) for name in _HOST)
        communication_ns = limits_ns.get(Group.COMMUNICATION.value, 0)
        return StepLimits(host_ns / total_ns, communication_ns / total_ns, waits_for_loader, absent_fraction)

    @property
    def regime(self) -> Regime:
        if self.waits_for_loader:
            return Regime.LOADER
        device_fraction = 1 - self.host_fraction - self.communication_fraction
        shares = {
            Regime.HOST: self.host_fraction,
            Regime.COMMUNICATION: self.communication_fraction,
            Regime.DEVICE: device_fraction,
        }
        return max(shares, key=shares.__getitem__)


@dataclass(frozen=True, slots=True)
class Levels:
    """A number with its range: ``low`` and ``high`` are those of the smallest and the largest gain, or these gains."""

    low: float
    likely: float
    high: float


@dataclass(frozen=True, slots=True)
class MeasuredGain:
    """An edit that was predicted and measured."""

    replayed: Levels
    measured: float
    limits: StepLimits
    """Of the step as it is."""
    after: StepLimits
    """Of the step with the edit."""
    effects: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Inside:
    """How many measured gains are inside the ranges that the edits of all other bases give."""

    inside: int
    measured: int


@dataclass(frozen=True, slots=True)
class PredictionIntervals:
    """``prediction-intervals.yaml``: what a replayed gain is widened by. The file explains the fields."""

    floor_fraction: float
    host_fraction: float
    communication_fraction: float
    loader_fraction: float
    absent_fraction: float
    gain_ratio: float
    effect_fraction: float
    least_left_ratio: float
    coverage_fraction: float
    step_coverage_fraction: float
    step_ratio: float
    """What the range of the unprofiled step is widened by."""
    quantile: float
    inside: Mapping[Regime, Inside]
    edits: Mapping[Regime, Mapping[str, int]]
    """How many edits of each effect were measured."""

    def widen(self, gain: Levels, limits: StepLimits, after: StepLimits, effects: Collection[str] = ()) -> Levels:
        """``gain`` with the range that ``coverage_fraction`` of the measured gains were in.

        ``limits``: of the step as it is, ``after``: of the step with the edits. Where no edit of one of the ``effects``
        was measured, it is at least the range of the parameters.
        """
        off = self._deviation(gain, limits, after, effects) * self.quantile
        most = 1 - self.least_left_ratio * (1 - gain.likely)
        wide = Levels(gain.likely - off, gain.likely, min(gain.likely + off, most))
        if any(self.count_edits(effects, regime) for regime in Regime):
            return wide
        return Levels(min(wide.low, gain.low), gain.likely, max(wide.high, gain.high))

    def learn(self, gains: Iterable[MeasuredGain]) -> float:
        """The quantile at which the range of ``coverage_fraction`` of new gains, if they are like ``gains``, holds."""
        return find_quantile((self._score(gain) for gain in gains), self.coverage_fraction)

    def count_edits(self, effects: Collection[str], regime: Regime) -> int:
        """How many edits of one of ``effects`` were measured on runs of ``regime``."""
        counts = self.edits.get(regime, {})
        return sum(counts.get(effect, 0) for effect in effects)

    def _score(self, gain: MeasuredGain) -> float:
        deviation = self._deviation(gain.replayed, gain.limits, gain.after, gain.effects)
        return abs(gain.measured - gain.replayed.likely) / deviation

    def _deviation(self, gain: Levels, limits: StepLimits, after: StepLimits, effects: Collection[str]) -> float:
        left = 1 - gain.likely
        return hypot(
            self.floor_fraction,
            self.host_fraction * hypot(limits.host_fraction, after.host_fraction) * left,
            self.communication_fraction * limits.communication_fraction,
            self.loader_fraction * limits.waits_for_loader,
            min(self.absent_fraction * limits.absent_fraction, (gain.high - gain.low) / 2),
            self.gain_ratio * gain.likely,
            self.effect_fraction * max(0, len({*effects}) - 1) * left,
        )


def find_quantile(scores: Iterable[float], coverage_fraction: float) -> float:
    """The score that a new one stays below with a probability of ``coverage_fraction``, if it is like ``scores``."""
    ordered = sorted(scores)
    return ordered[min(len(ordered), ceil((len(ordered) + 1) * coverage_fraction)) - 1]


@cache
def prediction_intervals() -> PredictionIntervals:
    """What ships with the program."""
    return load_table(TABLES_DIR / "prediction-intervals.yaml", PredictionIntervals)
