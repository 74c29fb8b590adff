"""The step that the report speaks of: the unprofiled one, where a log or a replay gives it.

The traced step is longer, because the profiler slows every launch. Head, plan and predictions are all of one step; only
what is by nature of the trace (the budget, the gaps) is of the traced one, and its heading states so.
"""

from __future__ import annotations

from dataclasses import dataclass

from three_walls.model.finding import PlanStep
from three_walls.model.report import Report
from three_walls.report.formats import format_ms


@dataclass(frozen=True, slots=True)
class StepBase:
    """The step now, and the one that the plan's times are of."""

    now_ns: int
    source: str
    """``log``, ``replay`` or ``trace``."""
    traced_ns: int
    planned_ns: int
    """The step that the plan's times are of. The log's is the same one, unless nothing was replayed: gains of a traced
    step are less what the profiler added, so they hold for the unprofiled one."""

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

    def convert(self, value_ns: int) -> int:
        """A step of the plan as one of this base: shorter by the same time."""
        return max(0, self.now_ns - (self.planned_ns - value_ns))

    def after(self, step: PlanStep) -> tuple[int, int | None, int]:
        """The step after an entry and all before it: lowest, likely, highest."""
        likely_ns, bounds = step.step_after_likely_ns, step.step_after_ns
        likely = None if likely_ns is None else self.convert(likely_ns)
        return self.convert(bounds.low), likely, self.convert(bounds.high)


def find_step_base(report: Report) -> StepBase | None:
    """The base of ``report``; None without a step."""
    verdict, log = report.verdict, report.log
    traced_ns = verdict.step_ns
    if not traced_ns:
        return None
    logged_ns = None if log is None else log.unprofiled_step_ns
    planned_ns = verdict.replayed_step_ns or traced_ns  # what the plan's times are of
    if logged_ns:
        return StepBase(logged_ns, "log", traced_ns, planned_ns)
    source = "trace" if verdict.replayed_step_ns is None else "replay"
    return StepBase(planned_ns, source, traced_ns, planned_ns)
