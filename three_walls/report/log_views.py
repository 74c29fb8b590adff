"""Read-only views of the training log's timers: which are shown, in which order."""

from __future__ import annotations

from three_walls.model.report import LogSummary, TimerSummary
from three_walls.model.training_log import TimerKind

KIND_WORDS = {
    TimerKind.WORK: "a rank's own work",
    TimerKind.EXCHANGE: "exchange, waits included",
    TimerKind.STEP: "whole pass or step",
    TimerKind.OUTSIDE: "outside of steps",
    TimerKind.OTHER: "not known here",
}


def order_timers(log: LogSummary | None) -> tuple[TimerSummary, ...]:
    """Timers of steps, the longest first, then those outside of steps; none where no timer is of steps."""
    timers = () if log is None else log.timers
    if all(one.kind is TimerKind.OUTSIDE for one in timers):
        return ()
    return tuple(sorted(timers, key=lambda one: (one.kind is TimerKind.OUTSIDE, -one.longest_ns, one.name)))


def spread_of(timer: TimerSummary) -> float | None:
    """Longest over shortest; None where the shortest is not known, or rounds to nothing."""
    return timer.longest_ns / timer.shortest_ns if timer.shortest_ns else None
