"""Facts of the training log, or why it cannot be of the traced run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median, quantiles

from three_walls.facts.fact_rows import LogSummary, ProgressSummary
from three_walls.facts.log_timers import find_slow_ranks, summarize_timers
from three_walls.lib.fact import FactDefinition, FactGroup, FactValue, Measurements, Pool
from three_walls.lib.measurement import Measurement, known, known_or_missing, missing
from three_walls.lib.text import in_ms, write_times
from three_walls.log import log_thresholds
from three_walls.log.steady_steps import ProfiledRange, Role, classify_iterations, match_captured_steps
from three_walls.log.training_log import LogIteration, ProgressJob, TrainingLog
from three_walls.megatron.parallel_layout import read_layout
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.step.step_view import NO_STEP
from three_walls.trace.read_inputs import find_other_sizes, jobs_of_run

NO_LOG = "no training log was given (--log)"
NO_ITERATION_LINE = "the log holds no iteration line (the last rank prints them: give its log too)"
EMPTY_LOG = "no line of the log is Megatron-LM's or Megatron-Bridge's"

facts = FactGroup()

UNPROFILED_STEP = facts.duration(
    "unprofiled_step_ns",
    "the unprofiled step length",
    "Median length of the log's steady iterations outside the profiler's range.",
)
UNPROFILED_STEP_LOW = facts.duration(
    "unprofiled_step_lower_quartile_ns",
    "the lower quartile of unprofiled step lengths",
    "A quarter of the log's steady iterations outside the profiler's range are shorter.",
)
UNPROFILED_STEP_HIGH = facts.duration(
    "unprofiled_step_upper_quartile_ns",
    "the upper quartile of unprofiled step lengths",
    "A quarter of the log's steady iterations outside the profiler's range are longer.",
)
UNPROFILED_STEP_SPREAD = facts.fact(
    "unprofiled_step_spread_ratio",
    "ratio",
    "the longest-to-shortest unprofiled step ratio",
    "Longest of the log's steady, unprofiled iterations over the shortest.",
)
UNPROFILED_STEP_RANGE = facts.duration(
    "unprofiled_step_range_ns",
    "the range of unprofiled step lengths",
    "Longest of the log's steady, unprofiled iterations less the shortest.",
    "Time of one step: it is what differs between steps, in none of which a constant part shows.",
    pool=Pool(is_device_busy=False),
)
UNPROFILED_STEPS = facts.fact(
    "unprofiled_steps_count",
    "count",
    "the number of unprofiled steps",
    "Iteration lines of the log that are steady and outside the profiler's range.",
)
TRACED_STEP = facts.duration(
    "traced_step_ns",
    "the traced step length",
    "Length of the representative step, to be compared with that of unprofiled steps.",
)
PROFILER_PERTURBATION = facts.fact(
    "profiler_perturbation_ratio",
    "ratio",
    "the traced-to-unprofiled step ratio",
    "Length of the traced step over that of unprofiled steps: how much longer the profiler made it.",
)
PROFILER_EXCESS = facts.duration(
    "profiler_excess_ns",
    "time per step added by the profiler",
    "Length of the traced step less that of unprofiled steps, where it is more than iterations differ by themselves; "
    "else 0.",
    "A part of the budget: which bucket it lies in is not measured.",
)
DEEPEP_UNAVAILABLE = facts.flag(
    "log_deepep_unavailable",
    "whether the log reports DeepEP unavailable",
    "Whether the log reports that DeepEP is not installed or does not run on this GPU.",
    "Proof that it is there: where the log reports nothing the fact is missing.",
    if_true="The log reports that DeepEP is unavailable",
    if_false="The log does not report that DeepEP is unavailable",
)
HYBRIDEP_UNAVAILABLE = facts.flag(
    "log_hybridep_unavailable",
    "whether the log reports HybridEP unavailable",
    "Whether the log reports that HybridEP is not installed or does not run on this GPU.",
    "Proof that it is there: where the log reports nothing the fact is missing.",
    if_true="The log reports that HybridEP is unavailable",
    if_false="The log does not report that HybridEP is unavailable",
)
UNAVAILABLE_DISPATCHERS = facts.fact(
    "log_unavailable_dispatchers",
    "text",
    "the list of unavailable dispatchers",
    "The dispatchers that the log reports as unavailable; unset where it reports none.",
)
LOG_FILES = facts.fact(
    "log_files_count",
    "count",
    "the number of training logs",
    "Files of the training log that were given and read.",
)
LOG_TFLOPS = facts.fact(
    "log_tflops_per_gpu",
    "tflops",
    "logged TFLOP/s per GPU",
    "Model TFLOP/s per GPU as the log prints it: median of the steady, unprofiled iterations.",
)
LOG_PEAK_MEMORY = facts.fact(
    "log_peak_memory_bytes",
    "bytes",
    "the logged peak of allocated memory",
    "Largest peak of allocated memory among the ranks that printed it.",
)
LOG_RESERVED_MEMORY = facts.fact(
    "log_reserved_memory_bytes",
    "bytes",
    "the logged peak of reserved memory",
    "Largest peak of reserved memory among the ranks that printed it.",
)
LOG_MEMORY_ITERATIONS = facts.fact(
    "log_memory_iterations_count",
    "count",
    "the number of iterations before memory was printed",
    "Iterations of the run before the log's last memory line. After one, the peak lacks the optimizer's moments, which "
    "the first update creates.",
)
LOG_OOMS = facts.fact(
    "log_oom_count", "count", "the number of out-of-memory errors", "Different out-of-memory errors in the log."
)
LOG_ALLOCATOR_RETRIES = facts.fact(
    "log_allocator_retries_count",
    "count",
    "the number of allocator retries",
    "Allocations that failed at first, most of any rank: the allocator released its cache and tried again.",
)

_BACKENDS = ("DeepEP", "HybridEP")
_REFUSED = r"\b{} is (?:not installed|supported for|only applicable)"
_IN_DUMP = re.compile(r"^profiling:\n((?:[ ].*\n)*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class JoinedLog:
    """What the log adds to the report. ``mismatch``: why it is of another run; empty if it is not."""

    facts: Measurements
    summary: LogSummary | None
    mismatch: str = ""

    def whole(self, definition: FactDefinition) -> int | None:
        """The whole number of a fact; None where the log does not give it."""
        return self.facts[definition].whole


def join_log(
    log: TrainingLog | None,
    config_without_log: RunConfig,
    config: RunConfig,
    traced_step_ns: int | None,
    captured_lengths: Sequence[int | None],
) -> JoinedLog:
    """Facts, summary and mismatch of ``log`` for a trace.

    ``config_without_log``: the run's settings by trace and saved configuration; ``config``: by all sources.
    ``traced_step_ns``: the representative step; ``captured_lengths``: of every step that the capture holds, None for
    those not kept.
    """
    traced = {TRACED_STEP: known_or_missing(traced_step_ns, NO_STEP)}
    if log is None:
        return JoinedLog({**dict.fromkeys(facts.definitions, missing(NO_LOG)), LOG_FILES: known(0), **traced}, None)
    traced[LOG_FILES] = known(len(log.files))
    profiled, is_known = find_profiled_range(log, config_without_log, config)
    if not is_known and (matched := match_captured_steps(log.iterations, captured_lengths)):
        profiled, is_known = matched, True
    roles = classify_iterations(log.iterations, log.events, profiled)
    steady = [line for line, role in zip(log.iterations, roles, strict=True) if role is Role.STEADY]
    measured: Measurements = {
        **_measure_steps(steady, _why_no_median(log, steady, is_known, len(captured_lengths))),
        **_measure_memory(log),
        LOG_TFLOPS: _median_tflops(log, steady),
        LOG_OOMS: known(len(log.ooms)),
        **_measure_dispatchers(log),
    }
    measured = {**measured, **_measure_perturbation(measured[UNPROFILED_STEP], traced_step_ns)}
    mismatch = find_other_sizes(log, config_without_log)
    ratio, length_ns = measured[PROFILER_PERTURBATION].value, measured[UNPROFILED_STEP].whole
    least, most = log_thresholds.MINIMUM_STEP_RATIO, log_thresholds.MAXIMUM_STEP_RATIO
    if not mismatch and isinstance(ratio, float) and length_ns and not least <= ratio <= most:
        mismatch = f"its steps take {in_ms(length_ns)}, the traced step {write_times(ratio)} that"
    if mismatch:
        measured = dict.fromkeys(facts.definitions, missing(f"the log is of another run: {mismatch}"))
    summary = replace(_summarize(log, roles, measured), mismatch=mismatch)
    if not mismatch:
        role_of = dict(zip(log.iterations, roles, strict=True))
        layout = read_layout(config)
        summary = replace(
            summary,
            timers=summarize_timers(log.timers, role_of),
            slow_ranks=find_slow_ranks(log.timers, role_of, config),
            progress=summarize_progress(log.jobs, layout.world),
        )
    return JoinedLog({**measured, **traced}, summary, mismatch)


def find_profiled_range(
    log: TrainingLog, trace_config: RunConfig, config: RunConfig | None = None
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
        if (start is None or end is None) and config is not None:
            start, end = _profiled_steps(config)
        is_on = True
    if not is_on:
        return None, True
    if start and end and start.isdecimal() and end.isdecimal():
        return ProfiledRange(int(start), int(end)), True
    return None, False


def _profiled_steps(config: RunConfig) -> tuple[str | None, str | None]:
    values = (config.get(key) for key in ("profile_step_start", "profile_step_end"))
    start, end = (None if value is None else str(value) for value in values)
    return start, end


def _why_no_median(log: TrainingLog, steady: Sequence[LogIteration], is_known: bool, captured_steps: int) -> str:
    """Why there is no unprofiled median; empty if there is one."""
    if log.is_empty:
        return EMPTY_LOG
    if not log.iterations:
        return NO_ITERATION_LINE
    if len(steady) < log_thresholds.MINIMUM_STEADY_COUNT:
        return f"only {len(steady)} of the log's {len(log.iterations)} iteration lines are unprofiled and steady"
    if not is_known and len(steady) < log_thresholds.MINIMUM_ITERATIONS_PER_CAPTURED_STEP * captured_steps:
        return "neither log nor trace states which iterations were profiled (profile_step_start, profile_step_end)"
    return ""


def _measure_steps(steady: Sequence[LogIteration], reason: str) -> Measurements:
    if reason:
        times = (
            UNPROFILED_STEP, UNPROFILED_STEP_LOW, UNPROFILED_STEP_HIGH, UNPROFILED_STEP_SPREAD, UNPROFILED_STEP_RANGE,
        )  # fmt: skip
        return {**dict.fromkeys(times, missing(reason)), UNPROFILED_STEPS: known(len(steady))}
    lengths = [line.elapsed_ns for line in steady]
    shortest, longest = min(lengths), max(lengths)
    low, middle, high = quantiles(lengths, n=4, method="inclusive") if len(lengths) > 1 else lengths * 3
    return {
        UNPROFILED_STEP: known(round(middle)),
        UNPROFILED_STEP_LOW: known(round(low)),
        UNPROFILED_STEP_HIGH: known(round(high)),
        UNPROFILED_STEP_SPREAD: known(longest / shortest) if shortest else missing("the log prints a step of 0 ms"),
        UNPROFILED_STEP_RANGE: known(longest - shortest),
        UNPROFILED_STEPS: known(len(steady)),
    }


def _median_tflops(log: TrainingLog, steady: Sequence[LogIteration]) -> Measurement[float]:
    printed = [line.tflops_per_gpu for line in steady if line.tflops_per_gpu is not None]
    printed = printed or [line.tflops_per_gpu for line in log.step_times]
    return known(median(printed)) if printed else missing("the log prints no throughput (--log-throughput)")


def _measure_dispatchers(log: TrainingLog) -> Measurements:
    """Which dispatchers are not installed, or not for this GPU. A log that reports nothing proves nothing."""
    texts = [event.text for event in log.events if event.kind == "dispatcher"]
    refused = [name for name in _BACKENDS if any(re.search(_REFUSED.format(name), text) for text in texts)]

    def unavailable(name: str) -> Measurement[bool]:
        return known(True) if name in refused else missing(f"the log does not report whether {name} is available")

    return {
        DEEPEP_UNAVAILABLE: unavailable("DeepEP"),
        HYBRIDEP_UNAVAILABLE: unavailable("HybridEP"),
        UNAVAILABLE_DISPATCHERS: known(", ".join(refused) or None),
    }


def _measure_memory(log: TrainingLog) -> Measurements:
    def largest(values: list[int | None], reason: str) -> Measurement[int]:
        return known_or_missing(max((value for value in values if value is not None), default=None), reason)

    printed = [line.after_iterations_count for line in log.memory if line.after_iterations_count is not None]
    iterations: Measurement[int] = missing("no memory line of the log names its iteration")
    if printed:  # counted from the iteration at which the loop of this run started
        last = max(printed)
        starts = [event.iteration for event in log.events if event.kind == "training_start"]
        iterations = known(last - max((start for start in starts if start is not None and start < last), default=0))
    no_line = "the log holds no memory line (rank 0 prints them: give its log too)"
    return {
        LOG_PEAK_MEMORY: largest([line.max_allocated_bytes for line in log.memory], no_line),
        LOG_RESERVED_MEMORY: largest([line.max_reserved_bytes for line in log.memory], no_line),
        LOG_MEMORY_ITERATIONS: iterations,
        LOG_ALLOCATOR_RETRIES: largest(
            [line.allocator_retries_count for line in log.memory],
            "the log does not count allocator retries (Megatron-Bridge does, Megatron-LM does not)",
        ),
    }


def _measure_perturbation(unprofiled: Measurement[FactValue], traced_step_ns: int | None) -> Measurements:
    length = unprofiled.whole
    if not length or not traced_step_ns:
        reason = unprofiled.missing_reason or NO_STEP
        return dict.fromkeys((PROFILER_PERTURBATION, PROFILER_EXCESS), missing(reason))
    ratio = traced_step_ns / length
    excess_ns = traced_step_ns - length if ratio >= log_thresholds.MINIMUM_PERTURBATION_RATIO else 0
    return {PROFILER_PERTURBATION: known(ratio), PROFILER_EXCESS: known(excess_ns)}


def summarize_progress(jobs: Sequence[ProgressJob], world: int | None) -> ProgressSummary | None:
    """The jobs with as many GPUs as the run has, together, from the progress file; None where there is none.

    Megatron starts its cumulative throughput anew when the number of GPUs changes, so jobs before such a change count
    as others of the same number of GPUs do: what the last checkpoint prints is Megatron's own sum.
    """
    run_jobs = jobs_of_run(jobs, world)
    if not run_jobs:
        return None
    saved = [job for job in run_jobs if job.saves_count]
    last = saved[-1] if saved else run_jobs[-1]
    return ProgressSummary(
        gpus=run_jobs[0].gpus,
        jobs=len(run_jobs),
        restarts=len(run_jobs) - 1,
        saves=sum(job.saves_count for job in run_jobs),
        last_iteration=last.last_iteration,
        tokens=last.tokens_count,
        job_tflops_per_gpu=last.job_tflops_per_gpu,
        cumulative_tflops_per_gpu=last.cumulative_tflops_per_gpu,
        other_gpus=tuple(sorted({job.gpus for job in jobs} - {run_jobs[0].gpus})),
    )


def _summarize(log: TrainingLog, roles: Sequence[Role], measured: Measurements) -> LogSummary:
    counts = Counter(role.value for role in roles)
    events: Counter[str] = Counter()
    for event in log.events:
        events[event.kind] += event.count
    theory, tflops = log.theoretical_memory, measured[LOG_TFLOPS].value
    return LogSummary(
        files=log.files,
        iterations=len(log.iterations) + log.left_out_count,
        roles={role.value: counts[role.value] for role in Role if counts[role.value]},
        torn_lines=log.torn_lines_count,
        unprofiled_step_ns=measured[UNPROFILED_STEP].whole,
        peak_memory_bytes=measured[LOG_PEAK_MEMORY].whole,
        reserved_memory_bytes=measured[LOG_RESERVED_MEMORY].whole,
        allocator_retries=measured[LOG_ALLOCATOR_RETRIES].whole,
        theoretical_memory_bytes=None if theory is None else theory.total_bytes or theory.weight_and_optimizer_bytes,
        parameters=log.parameters_count,
        ooms=len(log.ooms),
        events=dict(sorted(events.items())),
        tflops_per_gpu=tflops if isinstance(tflops, float) else None,
        device_memory_bytes=max((line.device_bytes for line in log.memory if line.device_bytes), default=None),
        unread_files=log.unread,
    )
