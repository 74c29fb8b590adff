"""The step that the report speaks of: the unprofiled one, where a log or a replay gives it.

The traced step is longer, because the profiler slows every launch. Head, plan and predictions are all of one step; only
what is by nature of the trace (the budget, the gaps) is of the traced one, and its heading states so.
"""

from __future__ import annotations

from dataclasses import dataclass

from three_walls.model.finding import Gain, PlanStep
from three_walls.model.report import Report
from three_walls.report.formats import format_ms

_SAME_FRACTION = 0.005
"""A replayed step that is this near to the log's is the log's."""


@dataclass(frozen=True, slots=True)
class StepBase:
    """The step now, and what converts times of the plan to it."""

    now_ns: int
    source: str
    """``log``, ``replay`` or ``trace``."""
    traced_ns: int
    factor: float
    """Of a time in the plan, to be a time of this step."""

    @property
    def note(self) -> str:
        """Where the step is from, and the traced one next to it."""
        traced = f"traced: {format_ms(self.traced_ns)}"
        return {
            "log": f"by the log; {traced}",
            "replay": f"estimated without the profiler; {traced}",
            "trace": "traced, so it includes the profiler",
        }[self.source]

    @property
    def name(self) -> str:
        """``the step by the log``, to follow a time of it."""
        return {
            "log": "the unprofiled step by the log",
            "replay": "the step as estimated without the profiler",
            "trace": "the traced step, which includes the profiler",
        }[self.source]

    def scale(self, value_ns: int | None) -> int | None:
        """A time of the plan on this base."""
        return value_ns if value_ns is None or self.factor == 1 else round(value_ns * self.factor)

    def scale_gain(self, gain: Gain) -> Gain:
        """A gain of the plan on this base."""
        if self.factor == 1:
            return gain
        low, likely, high = (self.scale(value) for value in (gain.low, gain.likely, gain.high))
        return Gain(low, likely, high, gain.basis, gain.explanation, gain.cost_fraction, gain.cost_is_estimated)

    def after(self, step: PlanStep) -> tuple[int, int | None, int]:
        """The step after an entry and all before it: lowest, likely, highest."""
        low, likely, high = (
            self.scale(value) for value in (step.step_after_ns.low, step.step_after_likely_ns, step.step_after_ns.high)
        )
        assert low is not None and high is not None
        return low, likely, high


def find_step_base(report: Report) -> StepBase | None:
    """The base of ``report``; None without a step."""
    verdict, log = report.verdict, report.log
    traced_ns = verdict.step_ns
    if not traced_ns:
        return None
    logged_ns = None if log is None else log.unprofiled_step_ns
    planned_ns = verdict.replayed_step_ns or traced_ns  # what the plan's times are of
    if logged_ns:
        is_same = abs(logged_ns - planned_ns) <= _SAME_FRACTION * logged_ns
        return StepBase(logged_ns, "log", traced_ns, 1.0 if is_same else logged_ns / planned_ns)
    source = "trace" if verdict.replayed_step_ns is None else "replay"
    return StepBase(planned_ns, source, traced_ns, 1.0)
