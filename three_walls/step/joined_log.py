"""The training log beside the trace: which of its iterations are steady, and whether it is of the traced run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from three_walls.lib.declare import artifact
from three_walls.lib.measurement import Measurement, known_or_missing
from three_walls.lib.text import in_ms, show_time
from three_walls.log.steady_steps import (
    MINIMUM_STEADY_COUNT,
    ProfiledRange,
    Role,
    classify_iterations,
    find_moments,
    find_other_steps,
    is_within,
    list_lines_beside,
    match_captured_steps,
    number_starts,
)
from three_walls.log.training_log import LogIteration, TrainingLog
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.step.attribute_steps import Attribution
from three_walls.step.intervals import DURATION
from three_walls.trace.read_inputs import MOST_APART_ON_HOST_NS, Inputs, find_other_sizes

MINIMUM_ITERATIONS_PER_CAPTURED_STEP = 4
"""Iterations in the log per captured step from which on their median counts as unprofiled. Where the log does not show
which iterations were profiled, their median is still that of unprofiled ones if at most a quarter of them can have been
profiled."""
MINIMUM_PERTURBATION_RATIO = 1.05
"""Traced step to unprofiled iteration: above it the profiler made the step longer. Unprofiled iterations of a run
differ by up to 5% (501 to 493 ms on four H200s); a traced step that is longer than that was slowed down by the
profiler."""
MINIMUM_STEP_RATIO = 0.8
"""Traced step to unprofiled iteration: below it the log is of another run. The profiler makes no step shorter (0.97 of
the unprofiled median at least, in twelve real captures): a traced step that is a fifth shorter belongs to another run,
model or batch size."""
MAXIMUM_STEP_RATIO = 3.0
"""Traced step to unprofiled iteration: above it the log is of another run. The profiler doubled the step of a run with
7,700 kernels in 377 ms; a factor of three has not been seen and means another run, model or batch size."""
LEAST_OF_FREE_HOST_RATIO = 0.9
"""Unprofiled iteration to the traced step if the host took no time: below it the log is of another run. Kernels of two
runs on one GPU model differ by a few percent; of 30 captured runs with logs none was below 1.01."""

NO_LOG = "no training log was given (--log)"
NO_ITERATION_LINE = "the log holds no iteration line (the last rank prints them: give its log too)"
EMPTY_LOG = "no line of the log is Megatron-LM's or Megatron-Bridge's"

_IN_DUMP = re.compile(r"^profiling:\n((?:[ ].*\n)*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class JoinedLog:
    """A log with the roles of its iterations."""

    log: TrainingLog
    roles: tuple[Role, ...]
    """Of ``log.iterations``, in order."""
    steady: tuple[LogIteration, ...]
    """The iterations that are unprofiled and steady."""
    quartiles_ns: tuple[int, int, int] | None
    """Of the lengths of steady iterations; None where ``why_no_median`` states the reason."""
    why_no_median: str
    unclear_starts: str
    """Which starts of training or iterations differ, where it is not known which are the captured run's; else empty."""
    other_run: str
    """A size, or profiled iterations, that differ from the trace's, as a sentence; empty if none do."""
    shows_capture: bool
    """Whether it is known which iterations were captured, or that none was."""

    def find_mismatch(self, traced_step_ns: int | None, free_host_step_ns: int | None = None) -> str:
        """Why the log is of another run than the traced step; empty if it is not known to be.

        ``free_host_step_ns``: what that step takes at least, whatever its host does.
        """
        quartiles = self.quartiles_ns
        if self.other_run or not quartiles or not quartiles[1] or not traced_step_ns:
            return self.other_run
        if free_host_step_ns and quartiles[1] < LEAST_OF_FREE_HOST_RATIO * free_host_step_ns:
            least = in_ms(free_host_step_ns)
            return f"its steps take {in_ms(quartiles[1])}, and the traced one {least} if its host took no time at all"
        ratio = traced_step_ns / quartiles[1]
        if MINIMUM_STEP_RATIO <= ratio <= MAXIMUM_STEP_RATIO:
            return ""
        return f"its steps take {in_ms(quartiles[1])}, the traced step {ratio:.2f} times that"

    def measure_excess_ns(self, traced_step_ns: int) -> int | None:
        """What the profiler added to the traced step; None where the log does not give it."""
        if self.quartiles_ns is None or self.find_mismatch(traced_step_ns):
            return None
        return measure_excess_ns(traced_step_ns, self.quartiles_ns[1])


def measure_excess_ns(traced_step_ns: int, unprofiled_step_ns: int) -> int | None:
    """How much longer the traced step is, where that is more than iterations differ by themselves; None for no step."""
    if not traced_step_ns or not unprofiled_step_ns:
        return None
    is_perturbed = traced_step_ns / unprofiled_step_ns >= MINIMUM_PERTURBATION_RATIO
    return traced_step_ns - unprofiled_step_ns if is_perturbed else 0


@artifact
def config(inputs: Inputs) -> RunConfig:
    """The run's settings, merged from all sources."""
    return inputs.config


@artifact
def config_without_log(inputs: Inputs) -> RunConfig:
    """The run's settings by trace and saved configuration."""
    return inputs.config_without_log


@artifact
def training_log(inputs: Inputs) -> Measurement[TrainingLog]:
    """The log that was given."""
    return known_or_missing(inputs.log, NO_LOG)


@artifact
def captured_lengths(attribution: Attribution) -> tuple[int | None, ...]:
    """Length of every step, in order, of the rank that has most of them; None for a step that is not kept."""
    by_rank = attribution.steps.sort("rank_index", "start_ns").partition_by("rank_index", maintain_order=True)
    longest = max(by_rank, key=lambda steps: steps.height, default=None)
    if longest is None:
        return ()
    rows = longest.select("kept", length_ns=DURATION).rows()
    return tuple(int(length) if kept else None for kept, length in rows)


@artifact
def joined_log(
    training_log: TrainingLog,
    config_without_log: RunConfig,
    config: RunConfig,
    captured_lengths: tuple[int | None, ...],
    inputs: Measurement[Inputs],
) -> JoinedLog:
    """The log with the roles of its iterations."""
    iterations = number_starts(training_log.iterations, training_log.events)
    profiled, is_known = find_profiled_range(training_log, config_without_log, config)
    if profiled is None and (matched := match_captured_steps(iterations, captured_lengths)):
        profiled, is_known = matched, True
    roles, unclear = _classify_starts(training_log, iterations, profiled, captured_lengths, inputs.value)
    steady = tuple(line for line, role in zip(iterations, roles, strict=True) if role is Role.STEADY)
    unclear = unclear or _describe_beside(list_lines_beside(iterations, roles, profiled), steady)
    reason = unclear or _why_no_median(training_log, len(steady), is_known, len(captured_lengths))
    lengths = [line.elapsed_ns for line in steady]
    quartiles = quantiles(lengths, n=4, method="inclusive") if len(lengths) > 1 else lengths * 3
    return JoinedLog(
        log=training_log,
        roles=roles,
        steady=steady,
        quartiles_ns=None if reason else (round(quartiles[0]), round(quartiles[1]), round(quartiles[2])),
        why_no_median=reason,
        unclear_starts=unclear,
        other_run=find_other_sizes(training_log, config_without_log)
        or _describe_other_run(iterations, profiled, captured_lengths, inputs.value),
        shows_capture=is_known,
    )


def _classify_starts(
    log: TrainingLog,
    iterations: Sequence[LogIteration],
    profiled: ProfiledRange | None,
    lengths: Sequence[int | None],
    inputs: Inputs | None,
) -> tuple[tuple[Role, ...], str]:
    """The roles of ``iterations``, and why none counts; empty where some do.

    Where training was started several times and its steps differ, those of the start that was captured count alone.
    """
    runs = sorted({line.run for line in iterations})
    of_starts = {run: [line for line in iterations if line.run == run] for run in runs}
    steady_ns = {}
    for run, lines in of_starts.items():
        roles = classify_iterations(lines, log.events, profiled)
        timed = list(zip(lines, roles, strict=True))[1:]  # the first line of a start is its warm-up
        steady_ns[run] = [line.elapsed_ns for line, role in timed if role is Role.STEADY]
    captured = _find_captured_start(of_starts, profiled, lengths, inputs)
    medians_ns = [
        median(each) for run, each in steady_ns.items() if len(each) >= (1 if run == captured else MINIMUM_STEADY_COUNT)
    ]
    joint = classify_iterations(iterations, log.events, profiled)
    if not medians_ns or max(medians_ns) <= MINIMUM_PERTURBATION_RATIO * min(medians_ns):
        return joint, ""
    if captured is None:
        bounds = f"{in_ms(min(medians_ns))} to {in_ms(max(medians_ns))}"
        return (
            joint,
            f"training was started {len(runs)} times, with steps of {bounds}, and which was captured is unknown",
        )
    own = iter(classify_iterations(of_starts[captured], log.events, profiled))
    return tuple(next(own) if line.run == captured else Role.OTHER_START for line in iterations), ""


def _describe_beside(beside: Sequence[LogIteration], steady: Sequence[LogIteration]) -> str:
    """Why steady iterations may be of another job than the profiled ones; empty where nothing tells it."""
    if not beside or not steady:
        return ""
    lengths = ([line.elapsed_ns for line in lines] for lines in (steady, beside))
    others, own = (f"{in_ms(min(each))} to {in_ms(max(each))}" for each in lengths)
    return (
        f"the unprofiled iterations beside the profiled ones take {own}, and the others {others}, which may be of "
        "another job"
    )


def _find_captured_start(
    of_starts: Mapping[int, Sequence[LogIteration]],
    profiled: ProfiledRange | None,
    lengths: Sequence[int | None],
    inputs: Inputs | None,
) -> int | None:
    """The start that was captured, by its iterations, its dates, and their lengths; None where several may be."""
    possible = list(of_starts)
    window_ns = inputs.window_ns if inputs else None
    if profiled:
        possible = [run for run in possible if any(profiled.holds(line.iteration) for line in of_starts[run])]
    if inputs and window_ns:
        spans = {run: find_moments(of_starts[run], profiled or _whole(of_starts[run])) for run in possible}
        dated = [
            run for run in possible if any(is_within(window_ns, span, inputs.most_apart_ns) for span in spans[run])
        ]
        possible = dated or possible
    if profiled and len(possible) > 1:
        possible = [run for run in possible if find_other_steps(of_starts[run], profiled, lengths) is None]
    return possible[0] if len(possible) == 1 else None


def _whole(lines: Sequence[LogIteration]) -> ProfiledRange:
    return ProfiledRange(lines[0].iteration - 1, lines[-1].iteration)


def _describe_other_run(
    iterations: Sequence[LogIteration],
    profiled: ProfiledRange | None,
    captured_lengths: Sequence[int | None],
    inputs: Inputs | None,
) -> str:
    """By which lengths or times the profiled iterations are not the captured steps; empty where they may be."""
    if profiled is None:
        return ""
    window_ns = inputs.window_ns if inputs else None
    moments = find_moments(iterations, profiled) if window_ns else []
    is_then = any(is_within(window_ns, moment, MOST_APART_ON_HOST_NS) for moment in moments if window_ns)
    if other := find_other_steps(iterations, profiled, captured_lengths, is_then=is_then):
        logged, captured = (" and ".join(map(in_ms, lengths_ns)) for lengths_ns in other)
        return f"its profiled iterations take {logged}, and the captured steps {captured}"
    if not inputs or not window_ns or not moments:
        return ""
    if any(is_within(window_ns, moment, inputs.most_apart_ns) for moment in moments):
        return ""
    first, last, taken = map(show_time, (*moments[-1], window_ns[0]))
    has_them = any(profiled.holds(line.iteration) for line in iterations)
    printed = "were printed" if has_them else "would have been printed"
    return f"its profiled iterations {printed} from {first} to {last}, and the capture is of {taken} UTC"


def find_profiled_range(
    log: TrainingLog, trace_config: RunConfig, config: RunConfig
) -> tuple[ProfiledRange | None, bool]:
    """The profiler's range, and whether it is known: that a run without profiler has none is known.

    The log's own arguments come first, because the log may be of a run that was not profiled. Then come the trace's
    settings (``trace_config``), then those of all sources (``config``), such as a saved configuration.
    """
    arguments = dict(log.argument_block)
    if arguments:
        start, end = arguments.get("profile_step_start"), arguments.get("profile_step_end")
        is_on = arguments.get("profile") == "True"
    elif log.config_dump and (section := _IN_DUMP.search(log.config_dump)):
        settings = dict(re.findall(r"^ +(\w+): (\w+)$", section[1], re.MULTILINE))
        start, end = settings.get("profile_step_start"), settings.get("profile_step_end")
        is_on = settings.get("use_nsys_profiler") == "true"
    else:
        start, end = _profiled_steps(trace_config)
        if start is None or end is None:
            start, end = _profiled_steps(config)
        is_on = config.get("use_nsys_profiler") is not False
    if not is_on:
        return None, True
    if start and end and start.isdecimal() and end.isdecimal():
        return ProfiledRange(int(start), int(end)), True
    return None, False


def _profiled_steps(config: RunConfig) -> tuple[str | None, str | None]:
    values = (config.get(key) for key in ("profile_step_start", "profile_step_end"))
    start, end = (None if value is None else str(value) for value in values)
    return start, end


def _why_no_median(log: TrainingLog, steady_count: int, is_known: bool, captured_steps: int) -> str:
    if log.is_empty:
        return EMPTY_LOG
    if not log.iterations:
        return NO_ITERATION_LINE
    if steady_count < MINIMUM_STEADY_COUNT:
        return f"only {steady_count} of the log's {len(log.iterations)} iteration lines are unprofiled and steady"
    if not is_known and steady_count < MINIMUM_ITERATIONS_PER_CAPTURED_STEP * captured_steps:
        return "neither log nor trace states which iterations were profiled (profile_step_start, profile_step_end)"
    return ""
