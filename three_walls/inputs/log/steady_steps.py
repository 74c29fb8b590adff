"""Which iterations of a log are steady: neither warm-up, nor profiled, nor disturbed by something else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from statistics import median

from three_walls.model.training_log import LogEvent, LogIteration
from three_walls.tables.thresholds import LogThresholds, default_log_thresholds

_DISTURBING = ("evaluation", "checkpoint")


class Role(StrEnum):
    """What an iteration line shows."""

    STEADY = "steady"
    WARM_UP = "warm-up"
    PROFILED = "profiled"
    PROFILER_STOP = "profiler's stop"
    DISTURBED = "after evaluation or checkpoint"
    SKIPPED = "skipped or NaN update"
    OTHER_BATCH = "other batch size"
    OUTLIER = "outlier"


@dataclass(frozen=True, slots=True)
class ProfiledRange:
    """``profile_step_start`` and ``profile_step_end`` as the frameworks count: iterations done before.

    The profiler starts before iteration ``start + 1`` and stops after iteration ``end``; stopping is part of the
    iteration that follows.
    """

    start: int
    end: int


def classify_iterations(
    iterations: Sequence[LogIteration],
    events: Iterable[LogEvent],
    profiled: ProfiledRange | None,
    thresholds: LogThresholds | None = None,
) -> tuple[Role, ...]:
    """The role of each line, in the order given. ``profiled`` None: no iteration is known to be profiled.

    A line covers the iterations since the line before it, so it has the role of the worst of them. What is left
    after profiled, disturbed and odd ones is judged by the plateau, the median of its later half: warm-up is what
    lies above it at the start of each run in the log (another file's or process's, or training that went on from a
    checkpoint), an outlier is what lies off it later.
    """
    limits = thresholds or default_log_thresholds()
    disturbed = {event.iteration + 1 for event in events if event.kind in _DISTURBING and event.iteration is not None}
    batch = _batch_size(iterations, profiled)
    roles: list[Role] = []
    firsts = _first_covered(iterations)
    for line, first in zip(iterations, firsts, strict=True):
        covered = range(first, line.iteration + 1)
        roles.append(_role_by_itself(line, covered, profiled, disturbed, batch))
    candidates = [place for place, role in enumerate(roles) if role is Role.STEADY]
    if not candidates:
        return tuple(roles)
    low, high = _plateau([iterations[place].elapsed_ns for place in candidates], limits)
    is_warming_up, last, run = True, 0, 0
    for place, line in enumerate(iterations):
        if line.iteration <= last or line.run != run:
            is_warming_up = True  # another run begins
        last, run = line.iteration, line.run
        if roles[place] is not Role.STEADY:
            continue
        if line.elapsed_ns > high and is_warming_up:
            roles[place] = Role.WARM_UP
        elif not low <= line.elapsed_ns <= high:
            roles[place] = Role.OUTLIER
        else:
            is_warming_up = False
    return tuple(roles)


def _role_by_itself(
    line: LogIteration, covered: range, profiled: ProfiledRange | None, disturbed: set[int], batch: int | None
) -> Role:
    if profiled and covered.start <= profiled.end and covered.stop > profiled.start + 1:
        return Role.PROFILED
    if profiled and profiled.end + 1 in covered:
        return Role.PROFILER_STOP
    if line.skipped_count or line.nan_count:
        return Role.SKIPPED
    if line.global_batch_size != batch:
        return Role.OTHER_BATCH
    if len(covered) == 1 and line.iteration in disturbed:  # an average over many does not show it
        return Role.DISTURBED
    return Role.STEADY


def _first_covered(iterations: Sequence[LogIteration]) -> list[int]:
    """The first iteration that each line covers: the one after the line before.

    The first line of a run covers as many as the closest two lines are apart; a line alone covers all up to it.
    """
    gaps = [after.iteration - before.iteration for before, after in pairwise(iterations)]
    usual = min((gap for gap in gaps if gap > 0), default=None)
    firsts = []
    for line, gap in zip(iterations, [0, *gaps], strict=False):
        reach = gap if gap > 0 else line.iteration if usual is None else usual
        firsts.append(max(1, line.iteration - reach + 1))
    return firsts


def _batch_size(iterations: Sequence[LogIteration], profiled: ProfiledRange | None) -> int | None:
    """The batch size while the profiler ran, else the most frequent one (of equals, the largest)."""
    sizes = [line.global_batch_size for line in iterations]
    if profiled:
        within = [line for line in iterations if profiled.start < line.iteration <= profiled.end]
        sizes = [line.global_batch_size for line in within] or sizes
    return max(set(sizes), key=lambda size: (sizes.count(size), size or 0), default=None)


def _plateau(lengths: Sequence[int], limits: LogThresholds) -> tuple[float, float]:
    """The range that steady iterations lie in."""
    later = lengths[len(lengths) // 2 :]
    middle = median(later)
    deviation = median(abs(length - middle) for length in later)
    tolerance = max(limits.minimum_step_tolerance_fraction * middle, limits.tolerance_in_deviations * deviation)
    return middle - tolerance, middle + tolerance
