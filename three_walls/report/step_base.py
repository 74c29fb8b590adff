"""The step that the report speaks of: the unprofiled one, where a log or a replay gives it.

The traced step is longer, because the profiler slows every launch. Head, plan and predictions are all of one step; only
what is by nature of the trace (the budget, the gaps) is of the traced one, and its heading states so.
"""

from __future__ import annotations

from dataclasses import dataclass

from three_walls.advice.finding import PlanStep
from three_walls.lib.text import format_ms
from three_walls.report.report import Report


@dataclass(frozen=True, slots=True)
class StepBase:
    """The step now. The times of the plan are of it too."""

    now_ns: int
    source: str
    """``log``, ``replay`` or ``trace``."""
    traced_ns: int

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


def find_step_base(report: Report) -> StepBase | None:
    """The base of ``report``; None without a step."""
    verdict, log = report.verdict, report.log
    traced_ns = verdict.step_ns
    if not traced_ns:
        return None
    logged_ns = None if log is None else log.unprofiled_step_ns
    if logged_ns:
        return StepBase(logged_ns, "log", traced_ns)
    if verdict.replayed_step_ns is not None:
        return StepBase(verdict.replayed_step_ns, "replay", traced_ns)
    return StepBase(traced_ns, "trace", traced_ns)


def step_after(step: PlanStep) -> tuple[int, int | None, int]:
    """The step after an entry and all before it: lowest, likely, highest."""
    return step.step_after_ns.low, step.step_after_likely_ns, step.step_after_ns.high
