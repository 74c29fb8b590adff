"""A report that can still answer what-if questions."""

from __future__ import annotations

from dataclasses import dataclass, field

from three_walls.advice.what_if import ReplayedRun
from three_walls.report.report import Report


@dataclass(frozen=True, slots=True)
class LiveReport(Report):
    """A report in the process that made it: the step of its run can be replayed with changes."""

    replay: ReplayedRun | None = field(default=None, compare=False, repr=False)
    """Not part of report.json."""
