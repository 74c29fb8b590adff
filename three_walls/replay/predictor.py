"""The replay of a run's representative step: whether it can be trusted, and what the step would be after changes.

All predictions are of the step that nobody profiled. What the profiler added to the host is an estimate with a range
(``profiler_cost.py``); with a training log the unprofiled step is known, and the estimate is scaled so that the replay
meets it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from three_walls.model.transformation import Action, Level, Prediction, Transformation
from three_walls.replay.budget import measure_replayed_budget
from three_walls.replay.critical_path import CriticalPath, find_critical_path
from three_walls.replay.graph import Fractions, StepGraph, Times, Work, find_steady, replay, replay_steady
from three_walls.replay.transform import select_operations, transform
from three_walls.tables.thresholds import replay_thresholds


@dataclass(frozen=True, slots=True)
class ProfilerCost:
    """How many times the estimated cost of the profiler is taken out of the host's pieces."""

    least: float
    likely: float
    most: float

    @property
    def is_known(self) -> bool:
        """Whether a log gave it."""
        return self.least == self.most


@dataclass(frozen=True, slots=True)
class StepReplay:
    """The graph of one step with what the profiler added to it; a ``model.transformation.Predictor``."""

    graph: StepGraph
    added_ns: Fractions
    """Per host point what the profiler is taken to have added."""
    tail_ns: int
    """From the end of the last operation to the end of the step, on the representative rank."""
    error_fraction: float
    """The largest error of an unchanged replay over all kept steps and ranks."""
    cost: ProfilerCost
    reason_withheld: str = ""
    log_step_ns: int | None = None
    place: int = 0
    """Of the representative rank in the graph."""
    _known: dict[tuple[tuple[Transformation, ...], Level, float], int] = field(default_factory=dict, compare=False)
    _unprofiled_work: dict[float, Work] = field(default_factory=dict, compare=False)

    @property
    def step_ns(self) -> Prediction:
        """The step as it is, unprofiled; the log's where one was given."""
        likely = self._step_after((), Level.LIKELY, self.cost.likely)
        if self.log_step_ns is not None:
            return Prediction(self.log_step_ns, self.log_step_ns, self.log_step_ns)
        low = self._step_after((), Level.LIKELY, self.cost.most)
        high = self._step_after((), Level.LIKELY, self.cost.least)
        error_ns = round(self.error_fraction * likely)
        return Prediction(min(low, likely) - error_ns, likely, max(high, likely) + error_ns)

    def predict(self, transformations: Sequence[Transformation]) -> Prediction:
        """The step with all ``transformations`` applied in their order, from the likely step as it is.

        The range is that of the gain: over the ends of the parameters, and over what the profiler may have added; the
        replay's error widens it in proportion to what changes.
        """
        changes = tuple(transformations)
        now_ns = self.step_ns.likely_ns
        gains = {
            (level, cost): self._gain(changes, level, cost)
            for level, cost in (
                (Level.LIKELY, self.cost.likely),
                *((level, cost) for level in (Level.LOW, Level.HIGH) for cost in {self.cost.least, self.cost.most}),
            )
        }
        likely = gains[Level.LIKELY, self.cost.likely]
        low = min(likely, *(gain for (level, _), gain in gains.items() if level is Level.LOW))
        high = max(likely, *(gain for (level, _), gain in gains.items() if level is Level.HIGH))
        error_ns = round(self.error_fraction * abs(likely))
        return Prediction(max(0, now_ns - high - error_ns), max(0, now_ns - likely), now_ns - low + error_ns)

    def explain(self, transformation: Transformation) -> str:
        """Why ``transformation`` changes nothing here, or empty."""
        if transformation.action is Action.HOST or select_operations(self.graph, transformation.select).any():
            return ""
        return "no operation of the step is known to be what these edits change"

    def budget_after(self, transformations: Sequence[Transformation]) -> Mapping[str, int]:
        """Bucket to its time in the likely step of the representative rank after ``transformations``.

        The buckets sum to that rank's step in the replay. A log's step may differ from it by what the estimate of the
        profiler's cost cannot explain.
        """
        work, times = find_steady(self.graph, self.work_after(transformations))
        return measure_replayed_budget(self.graph, work, times, self.place)

    def limits_after(self, transformations: Sequence[Transformation]) -> Mapping[str, int]:
        """What the critical path of the likely step after ``transformations`` is made of."""
        return self.critical_path(transformations).sum_by_limit()

    def critical_path(self, transformations: Sequence[Transformation] = ()) -> CriticalPath:
        """What the length of the likely step after ``transformations`` hangs on."""
        work, times = find_steady(self.graph, self.work_after(transformations))
        return find_critical_path(self.graph, work, times)

    @property
    def error_ns(self) -> int:
        """How far a predicted step may be off: the error of the unchanged replay."""
        return round(self.error_fraction * self.step_ns.likely_ns)

    def predict_likely_ns(self, transformations: Sequence[Transformation]) -> int:
        """The likely step alone, from one replay."""
        gain_ns = self._gain(tuple(transformations), Level.LIKELY, self.cost.likely)
        return max(0, self.step_ns.likely_ns - gain_ns)

    def work_after(self, transformations: Sequence[Transformation], level: Level = Level.LIKELY) -> Work:
        """The unprofiled work of the step after ``transformations``."""
        return self._changed(transformations, level, self.cost.likely)

    def times_after(self, transformations: Sequence[Transformation], level: Level = Level.LIKELY) -> Times:
        """When everything happens in that step."""
        return replay_steady(self.graph, self.work_after(transformations, level))

    def _gain(self, changes: tuple[Transformation, ...], level: Level, cost: float) -> int:
        before, after = self._step_after((), Level.LIKELY, cost), self._step_after(changes, level, cost)
        if self.log_step_ns is None or not before:
            return before - after
        # What the estimate of the profiler's cost cannot explain is spread over the whole step.
        return round((before - after) * self.log_step_ns / before)

    def _step_after(self, changes: tuple[Transformation, ...], level: Level, cost: float) -> int:
        key = (changes, level if changes else Level.LIKELY, cost)
        if key not in self._known:
            work = self._changed(changes, level, cost)
            self._known[key] = replay_steady(self.graph, work).longest_ns + self.tail_ns
        return self._known[key]

    def _changed(self, changes: Sequence[Transformation], level: Level, cost: float) -> Work:
        work = transform(self.graph, self._unprofiled(cost), changes, level)
        if not changes or not work.wait_ns.any():
            return work
        return settle_waits(
            self.graph, work, self._step_after((), Level.LIKELY, cost) - self.tail_ns, _SHRINKING[level]
        )

    def _unprofiled(self, cost: float) -> Work:
        if cost not in self._unprofiled_work:
            work = without_profiler(self.graph, self.added_ns, cost)
            self._unprofiled_work[cost] = find_steady(self.graph, work)[0]
        return self._unprofiled_work[cost]


def without_profiler(graph: StepGraph, added_ns: Fractions, cost: float) -> Work:
    """The captured work less ``cost`` times what the profiler is taken to have added to every host piece."""
    left = np.maximum(graph.piece_ns * replay_thresholds().least_host_fraction, graph.piece_ns - added_ns * cost)
    piece_ns = np.minimum(graph.piece_ns, np.rint(left)).astype(np.int64)
    return settle_waits(graph, replace(graph.work, piece_ns=piece_ns), int(graph.measured_ns.max()), 1.0)


def settle_waits(graph: StepGraph, work: Work, before_ns: int, share: float) -> Work:
    """``work`` in which waiting for ranks that were not captured shrinks with the step, from ``before_ns`` on.

    What delays a rank delays those that were not captured too: the profiler on all of them, and an edit is made on
    all. How much of the waiting comes from that is not known: ``share`` of it shrinks, the rest stays.
    """
    transfer_ns, captured_ns = work.duration_ns - work.wait_ns, work.wait_ns
    for _ in range(_REPEATS if share and captured_ns.any() else 0):
        shrunk = min(1.0, replay(graph, work).longest_ns / max(1, before_ns))
        wait_ns = np.rint(captured_ns * (1 - share * (1 - shrunk))).astype(np.int64)
        work = replace(work, duration_ns=transfer_ns + wait_ns, wait_ns=wait_ns)
    return work


def fit_profiler_cost(graph: StepGraph, added_ns: Fractions, tail_ns: int, log_step_ns: int | None) -> ProfilerCost:
    """The cost at which the replayed step is the log's; without a log the range that runs with logs have shown.

    The log's step may be out of reach: then the nearest end of a wide range.
    """
    limits = replay_thresholds()
    if log_step_ns is None:
        return ProfilerCost(
            limits.least_profiler_cost_ratio, limits.likely_profiler_cost_ratio, limits.most_profiler_cost_ratio
        )
    least, most = 0.0, 2 * limits.most_profiler_cost_ratio
    for _ in range(_HALVINGS):
        middle = (least + most) / 2
        step_ns = replay_steady(graph, without_profiler(graph, added_ns, middle)).longest_ns + tail_ns
        least, most = (middle, most) if step_ns > log_step_ns else (least, middle)
    return ProfilerCost(most, most, most)


_SHRINKING = {Level.LOW: 0.0, Level.LIKELY: 0.5, Level.HIGH: 1.0}
"""The share of waiting for ranks that were not captured that shrinks with the step: not known, so all or nothing."""

_REPEATS = 2
"""The step shrinks with the waiting, and the waiting with the step; a third repeat changes less than a percent."""

_HALVINGS = 8
"""Of the range of costs: to within 0.02 of what the capture shows."""
