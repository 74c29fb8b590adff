"""Which iterations of a log are steady: neither warm-up, nor profiled, nor disturbed by something else."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from statistics import median

from three_walls.log.training_log import LogEvent, LogIteration

DISTURBING_EVENTS = frozenset({"evaluation", "checkpoint"})
"""Kinds of lines (log-lines.yaml) after whose iteration the next one is not steady: it follows an evaluation, or runs
while an asynchronous checkpoint is still being written."""
PLATEAU_FRACTION = 0.5
"""Of the undisturbed iterations: the last part, whose median is the length of a steady iteration. Warm-up is over in
the later half of a log, however long it took."""
MINIMUM_STEP_TOLERANCE_FRACTION = 0.03
"""Of the median iteration: one that differs by less is steady. Unprofiled iterations of one run lie within 1-2% of each
other (measured on H200s); one that differs by more is warm-up at the start of a run and an outlier later."""
TOLERANCE_IN_DEVIATIONS = 5.0
"""Times the run's own median deviation: the tolerance of a run that jitters more. Runs with more jitter (full
recompute: 870 to 1059 ms) get five times their own median deviation, so that their spread is reported instead of cut
off."""
MINIMUM_STEADY_COUNT = 2
"""Steady iterations needed for a spread: a single one has none, so nothing shows that it is typical."""
CAPTURED_STEP_TOLERANCE_FRACTION = 0.05
"""Of a captured step: an iteration of the log that differs by less may be this step. The log measures from the end of
one iteration to the end of the next, the trace between optimizer phases. Where the host decides, it reaches them at
other times in every step; profiled iterations are longer than others by 5% or more."""
CAPTURED_STEPS_TOLERANCE_FRACTION = 0.01
"""The same of all captured steps together, in which only the first and the last boundary differ. On two H200s the
lengths of the same iterations differ by 0.4% at most."""
OTHER_STEPS_TOLERANCE_FRACTIONS = 0.03, 0.1
"""Of all captured steps together, and of one: if the log's profiled iterations differ by more, the log is of another
run. Of 70 captured runs their own iterations differ by 1.5% at most together and by 5.9% alone."""
SAME_MOMENT_TOLERANCE_FRACTIONS = 0.15, 0.5
"""The same where they were printed when the capture was taken: few other runs print in just these seconds. A host that
waited for a batch behind the last captured step took 565 ms for an iteration of 486 captured ones; the two before
differed by 0.1%."""
QUARTER_NS = 900_000_000_000
"""An hour's quarter: local times differ from UTC by whole ones."""
MOST_BEHIND_UTC_NS, MOST_AHEAD_OF_UTC_NS = 12 * 4 * QUARTER_NS, 14 * 4 * QUARTER_NS
STAMP_NS = 1_000_000_000
"""What a time stamp cuts off at most."""
SHORTEST_START_NS = 5_000_000_000
"""Between two iteration lines beyond the time of the iteration: training was started again, where no evaluation and no
checkpoint is between them. Of 124 pairs of captured runs none began less than 8.6 s after the other had ended."""


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
    OTHER_START = "of another start"


@dataclass(frozen=True, slots=True)
class ProfiledRange:
    """``profile_step_start`` and ``profile_step_end``, which the frameworks count in completed iterations.

    The profiler starts before iteration ``start + 1`` and stops after iteration ``end``. The time that it takes to stop
    is part of the next iteration.
    """

    start: int
    end: int

    def holds(self, iteration: int) -> bool:
        """Whether ``iteration``, counted from 1, is profiled."""
        return self.start < iteration <= self.end


def number_starts(iterations: Sequence[LogIteration], events: Iterable[LogEvent]) -> tuple[LogIteration, ...]:
    """``iterations``, with the number of its start as the run of each line: training is started anew where numbers go
    back, where the log says so, and where lines are further apart than an iteration takes."""
    disturbed = _list_disturbed(events)
    run, numbered = 0, list(iterations[:1])
    for before, line in pairwise(iterations):
        apart_ns = 0
        if before.printed_ns is not None and line.printed_ns is not None and line.iteration not in disturbed:
            expected_ns = (line.iteration - before.iteration) * line.elapsed_ns + STAMP_NS
            apart_ns = line.printed_ns - before.printed_ns - expected_ns
        run += line.iteration <= before.iteration or line.run != before.run or apart_ns > SHORTEST_START_NS
        numbered.append(replace(line, run=run))
    return tuple(numbered)


def _list_disturbed(events: Iterable[LogEvent]) -> frozenset[int]:
    return frozenset(
        event.iteration + 1 for event in events if event.kind in DISTURBING_EVENTS and event.iteration is not None
    )


def classify_iterations(
    iterations: Sequence[LogIteration],
    events: Iterable[LogEvent],
    profiled: ProfiledRange | None,
) -> tuple[Role, ...]:
    """The role of each line, in the order given. ``profiled`` None: no iteration is known to be profiled.

    A line covers the iterations since the line before it, so it has the role of the worst of them. The lines that are
    neither profiled nor disturbed nor otherwise different are compared with the plateau, the median of the later ones.
    Lines above it at the start of a run are warm-up; a run starts with another file or process, and where training
    continues from a checkpoint. Later lines that are off the plateau are outliers.
    """
    disturbed = _list_disturbed(events)
    batch = usual_batch_size(iterations, profiled)
    roles: list[Role] = []
    for line, covered in zip(iterations, _covered_iterations(iterations), strict=True):
        roles.append(_role_without_plateau(line, covered, profiled, disturbed, batch))
    candidates = [line.elapsed_ns for line, role in zip(iterations, roles, strict=True) if role is Role.STEADY]
    if not candidates:
        return tuple(roles)
    low, high = _plateau(candidates)
    is_warming_up, last, run = True, 0, 0
    for position, line in enumerate(iterations):
        if line.iteration <= last or line.run != run:
            is_warming_up = True  # another run begins
        last, run = line.iteration, line.run
        if roles[position] is not Role.STEADY:
            continue
        if line.elapsed_ns > high and is_warming_up:
            roles[position] = Role.WARM_UP
        elif not low <= line.elapsed_ns <= high:
            roles[position] = Role.OUTLIER
        else:
            is_warming_up = False
    return tuple(roles)


def list_lines_beside(
    iterations: Sequence[LogIteration], roles: Sequence[Role], profiled: ProfiledRange | None
) -> tuple[LogIteration, ...]:
    """The lines right before the ``profiled`` iterations and all after them, where there are several and each is an
    outlier: the others may be of another job, though numbers and dates go on."""
    if profiled is None:
        return ()
    beside = [
        (line, role)
        for line, role in zip(iterations, roles, strict=True)
        if line.iteration == profiled.start or line.iteration > profiled.end + 1
    ]
    are_other = len(beside) >= MINIMUM_STEADY_COUNT and all(role is Role.OUTLIER for _, role in beside)
    return tuple(line for line, _ in beside) if are_other else ()


def match_captured_steps(iterations: Sequence[LogIteration], lengths: Sequence[int | None]) -> ProfiledRange | None:
    """The iterations that a capture holds, found by their lengths; None where not exactly one place of the log fits.

    ``lengths``: of every step of one captured rank in order, in ns; None for a step that the capture cuts off, whose
    length cannot be compared. Profiled iterations are usually longer than the others, so that few places fit.
    """
    offsets = [offset for offset, length in enumerate(lengths) if length is not None]
    if len(offsets) < MINIMUM_STEADY_COUNT:
        return None
    by_number = {(line.run, line.iteration): line.elapsed_ns for line in iterations}
    starts = []
    for run, number in by_number:
        elapsed_ns = [by_number.get((run, number + offset - offsets[0])) for offset in offsets]
        if _are_same(elapsed_ns, [lengths[offset] or 0 for offset in offsets]):
            starts.append(number - offsets[0])
    if len(starts) != 1:
        return None
    return ProfiledRange(start=starts[0] - 1, end=starts[0] - 1 + len(lengths))


def find_other_steps(
    iterations: Sequence[LogIteration], profiled: ProfiledRange, lengths: Sequence[int | None], *, is_then: bool = False
) -> tuple[list[int], list[int]] | None:
    """The profiled iterations and the captured steps in ns, where no run of the log has iterations as long as these.

    None where they are the same, or the log does not print each of the profiled iterations by itself. ``lengths``: as
    for ``match_captured_steps``. ``is_then``: whether they were printed when the capture was taken.
    """
    tolerances = SAME_MOMENT_TOLERANCE_FRACTIONS if is_then else OTHER_STEPS_TOLERANCE_FRACTIONS
    numbers = range(profiled.start + 1, profiled.end + 1)
    alone = {
        (line.run, line.iteration): line.elapsed_ns
        for line, covered in zip(iterations, _covered_iterations(iterations), strict=True)
        if len(covered) == 1
    }
    kept = [offset for offset, length in enumerate(lengths) if length is not None]
    captured_ns, other_ns = [length for length in lengths if length is not None], None
    skipped = len(numbers) - len(lengths)  # a capture may begin late or end early
    for run in {run for run, _ in alone}:
        elapsed_ns = [alone[run, number] for number in numbers if (run, number) in alone]
        if skipped < 0 or not kept or len(elapsed_ns) < len(numbers):
            continue
        for first in range(skipped + 1):
            profiled_ns = [elapsed_ns[first + offset] for offset in kept]
            if _are_same(profiled_ns, captured_ns, *tolerances):
                return None
        other_ns = elapsed_ns if skipped else profiled_ns
    return (other_ns, captured_ns) if other_ns else None


def is_within(window_ns: tuple[int, int], printed_ns: tuple[int, int], apart_ns: int) -> bool:
    """Whether something between two times in UTC may have happened between two of local time, in any time zone.

    ``apart_ns``: what the clocks differ by at most.
    """
    least_ns = printed_ns[0] - apart_ns - window_ns[1]
    most_ns = printed_ns[1] + STAMP_NS + apart_ns - window_ns[0]
    ahead_ns = -(-max(least_ns, -MOST_BEHIND_UTC_NS) // QUARTER_NS) * QUARTER_NS
    return ahead_ns <= min(most_ns, MOST_AHEAD_OF_UTC_NS)


def find_moments(iterations: Sequence[LogIteration], profiled: ProfiledRange) -> list[tuple[int, int]]:
    """When the profiled iterations of each run were printed, in local time; none where a run prints no times.

    Where a run has no line before or after them, the lines that it lacks took as long as the longest of the others.
    """
    found = []
    for run in {line.run for line in iterations}:
        timed = [
            (line.iteration, at, line.elapsed_ns)
            for line in iterations
            if line.run == run and (at := line.printed_ns) is not None
        ]
        if not timed:
            return []
        gaps = [(after[1] - before[1]) // max(1, after[0] - before[0]) for before, after in pairwise(timed)]
        longest_ns = max([*gaps, *(elapsed_ns for _, _, elapsed_ns in timed)])
        (first, first_ns, _), (last, last_ns, _) = min(timed), max(timed)
        before = [at for number, at, _ in timed if number <= profiled.start]
        after = [at for number, at, _ in timed if number >= profiled.end]
        found.append(
            (
                max(before, default=first_ns - (first - profiled.start) * longest_ns),
                min(after, default=last_ns + (profiled.end - last) * longest_ns),
            )
        )
    return found


def _are_same(
    elapsed_ns: Sequence[int | None],
    lengths: Sequence[int],
    of_all: float = CAPTURED_STEPS_TOLERANCE_FRACTION,
    of_one: float = CAPTURED_STEP_TOLERANCE_FRACTION,
) -> bool:
    """Whether iterations are the captured steps: each may be cut at another place of the host's work, all together
    not."""
    known_ns = [elapsed for elapsed in elapsed_ns if elapsed]
    return len(known_ns) == len(lengths) and all(
        abs(elapsed - length) <= tolerance * length
        for elapsed, length, tolerance in (
            *((*pair, of_one) for pair in zip(known_ns, lengths, strict=True)),
            (sum(known_ns), sum(lengths), of_all),
        )
    )


def _role_without_plateau(
    line: LogIteration, covered: range, profiled: ProfiledRange | None, disturbed: Collection[int], batch: int | None
) -> Role:
    if profiled and covered.start <= profiled.end and covered.stop > profiled.start + 1:
        return Role.PROFILED
    if profiled and profiled.end + 1 in covered:
        return Role.PROFILER_STOP
    if line.skipped_count or line.nan_count:
        return Role.SKIPPED
    if line.global_batch_size != batch:
        return Role.OTHER_BATCH
    if len(covered) == 1 and line.iteration in disturbed:  # an average over many hides it
        return Role.DISTURBED
    return Role.STEADY


def _covered_iterations(lines: Sequence[LogIteration]) -> Iterator[range]:
    """The iterations that each line covers: those after the iteration of the line before.

    The first line of a run covers as many iterations as the two closest lines are apart. A single line covers all
    iterations up to its own.
    """
    gaps = [after.iteration - before.iteration for before, after in pairwise(lines)]
    smallest_gap = min((gap for gap in gaps if gap > 0), default=None)
    for line, gap in zip(lines, [0, *gaps], strict=False):
        count = gap if gap > 0 else line.iteration if smallest_gap is None else smallest_gap
        yield range(max(1, line.iteration - count + 1), line.iteration + 1)


def usual_batch_size(iterations: Sequence[LogIteration], profiled: ProfiledRange | None = None) -> int | None:
    """The batch size while the profiler ran; else the most frequent one, the largest of equally frequent ones."""
    sizes = [line.global_batch_size for line in iterations]
    if profiled:
        within = [line for line in iterations if profiled.start < line.iteration <= profiled.end]
        sizes = [line.global_batch_size for line in within] or sizes
    return max(set(sizes), key=lambda size: (sizes.count(size), size or 0), default=None)


def _plateau(lengths: Sequence[int]) -> tuple[float, float]:
    """The shortest and the longest a steady iteration may be, in ns."""
    later = lengths[int(len(lengths) * (1 - PLATEAU_FRACTION)) :]
    middle = median(later)
    deviation = median(abs(length - middle) for length in later)
    tolerance = max(MINIMUM_STEP_TOLERANCE_FRACTION * middle, TOLERANCE_IN_DEVIATIONS * deviation)
    return middle - tolerance, middle + tolerance
