"""Facts of the training log, or why it cannot be of the traced run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median, median_low

from three_walls.facts.fact_rows import LogSummary, ProgressSummary, SlowRank, TimerSummary
from three_walls.lib.declare import artifact, duration, fact, flag
from three_walls.lib.measurement import Measurement, known, known_or_missing, missing
from three_walls.log.log_lines import log_timers
from three_walls.log.steady_steps import MINIMUM_STEADY_COUNT, Role
from three_walls.log.training_log import LogIteration, LogTimer, ProgressJob, TimerKind, TimerPrint, TrainingLog
from three_walls.megatron.parallel_layout import read_layout
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.step.joined_log import JoinedLog, measure_excess_ns
from three_walls.step.step_view import NO_STEP, StepView
from three_walls.trace.read_inputs import jobs_of_run

SLOW_RANK_RATIO = 1.1
"""A rank's own work to that of the typical rank: above it the rank is slow. Healthy H200s of one host delay each other
by up to 3.4% of a step; a rank whose own work takes a tenth longer than that of the typical rank is clearly outside of
that range."""
SLOW_RANK_PRINTS_FRACTION = 0.5
"""Of the timer prints: the part in which a rank has to be slow. A rank that is slow in less than half of the prints
takes turns with others, which is jitter."""

_BACKENDS = ("DeepEP", "HybridEP")
_REFUSED = r"\b{} is (?:not installed|supported for|only applicable)"
_NO_MEMORY_LINE = "the log holds no memory line (rank 0 prints them: give its log too)"
_UNPLACED = -1
Roles = Mapping[LogIteration, Role]
RankTimes = Sequence[Mapping[int, int]]
"""Per print: rank -> nanoseconds."""


@artifact
def log_mismatch(
    joined_log: Measurement[JoinedLog], step: Measurement[StepView], free_host_step_ns: Measurement[int]
) -> str:
    """Why the log is of another run; empty if it is not known to be."""
    traced_step_ns = step.value.step_ns if step.value else None
    return joined_log.value.find_mismatch(traced_step_ns, free_host_step_ns.value) if joined_log.value else ""


@artifact
def own_log(joined_log: JoinedLog, log_mismatch: str) -> Measurement[JoinedLog]:
    """The log of this run."""
    return missing(f"the log is of another run: {log_mismatch}") if log_mismatch else known(joined_log)


@duration("the unprofiled step length")
def unprofiled_step_ns(own_log: JoinedLog) -> Measurement[int]:
    """Median length of the log's steady iterations outside the profiler's range."""
    return _read_quartile(own_log, 1)


@duration("the lower quartile of unprofiled step lengths")
def unprofiled_step_lower_quartile_ns(own_log: JoinedLog) -> Measurement[int]:
    """A quarter of the log's steady iterations outside the profiler's range are shorter."""
    return _read_quartile(own_log, 0)


@duration("the upper quartile of unprofiled step lengths")
def unprofiled_step_upper_quartile_ns(own_log: JoinedLog) -> Measurement[int]:
    """A quarter of the log's steady iterations outside the profiler's range are longer."""
    return _read_quartile(own_log, 2)


@fact("ratio", "the longest-to-shortest unprofiled step ratio")
def unprofiled_step_spread_ratio(own_log: JoinedLog) -> Measurement[float]:
    """Longest of the log's steady, unprofiled iterations over the shortest."""
    if own_log.why_no_median:
        return missing(own_log.why_no_median)
    lengths = [line.elapsed_ns for line in own_log.steady]
    return known(max(lengths) / min(lengths)) if min(lengths) else missing("the log prints a step of 0 ms")


@duration("the range of unprofiled step lengths")
def unprofiled_step_range_ns(own_log: JoinedLog) -> Measurement[int]:
    """Longest of the log's steady, unprofiled iterations less the shortest.

    Not the same as: Time of one step: it is what differs between steps, in none of which a constant part shows.
    """
    if own_log.why_no_median:
        return missing(own_log.why_no_median)
    lengths = [line.elapsed_ns for line in own_log.steady]
    return known(max(lengths) - min(lengths))


@fact("count", "the number of unprofiled steps")
def unprofiled_steps_count(own_log: JoinedLog) -> int:
    """Iteration lines of the log that are steady and outside the profiler's range."""
    return len(own_log.steady)


@duration("the traced step length")
def traced_step_ns(step: StepView) -> int:
    """Length of the representative step, to be compared with that of unprofiled steps."""
    return step.step_ns


@fact("ratio", "the traced-to-unprofiled step ratio")
def profiler_perturbation_ratio(unprofiled_step_ns: int, step: StepView) -> Measurement[float]:
    """Length of the traced step over that of unprofiled steps: how much longer the profiler made it."""
    if not unprofiled_step_ns or not step.step_ns:
        return missing(NO_STEP)
    return known(step.step_ns / unprofiled_step_ns)


@duration("time per step added by the profiler")
def profiler_excess_ns(unprofiled_step_ns: int, step: StepView) -> Measurement[int]:
    """Length of the traced step less that of unprofiled steps, where it is more than iterations differ by themselves;
    else 0.

    Not the same as: A part of the budget: which bucket it lies in is not measured.
    """
    return known_or_missing(measure_excess_ns(step.step_ns, unprofiled_step_ns), NO_STEP)


@flag(
    "whether the log reports DeepEP unavailable",
    if_true="The log reports that DeepEP is unavailable",
    if_false="The log does not report that DeepEP is unavailable",
)
def log_deepep_unavailable(own_log: JoinedLog) -> Measurement[bool]:
    """Whether the log reports that DeepEP is not installed or does not run on this GPU.

    Not the same as: Proof that it is there: where the log reports nothing the fact is missing.
    """
    return _find_unavailable(own_log.log, "DeepEP")


@flag(
    "whether the log reports HybridEP unavailable",
    if_true="The log reports that HybridEP is unavailable",
    if_false="The log does not report that HybridEP is unavailable",
)
def log_hybridep_unavailable(own_log: JoinedLog) -> Measurement[bool]:
    """Whether the log reports that HybridEP is not installed or does not run on this GPU.

    Not the same as: Proof that it is there: where the log reports nothing the fact is missing.
    """
    return _find_unavailable(own_log.log, "HybridEP")


@fact("text", "the list of unavailable dispatchers")
def log_unavailable_dispatchers(own_log: JoinedLog) -> str | None:
    """The dispatchers that the log reports as unavailable; unset where it reports none."""
    return ", ".join(name for name in _BACKENDS if _find_unavailable(own_log.log, name).value) or None


@fact("count", "the number of training logs")
def log_files_count(training_log: Measurement[TrainingLog]) -> int:
    """Files of the training log that were given and read."""
    return len(training_log.value.files) if training_log.value else 0


@fact("tflops", "logged TFLOP/s per GPU")
def log_tflops_per_gpu(own_log: JoinedLog) -> Measurement[float]:
    """Model TFLOP/s per GPU as the log prints it: median of the steady, unprofiled iterations."""
    printed = [line.tflops_per_gpu for line in own_log.steady if line.tflops_per_gpu is not None]
    printed = printed or [line.tflops_per_gpu for line in own_log.log.step_times]
    return known(median(printed)) if printed else missing("the log prints no throughput (--log-throughput)")


@fact("bytes", "the logged peak of allocated memory")
def log_peak_memory_bytes(own_log: JoinedLog) -> Measurement[int]:
    """Largest peak of allocated memory among the ranks that printed it."""
    return _find_largest([line.max_allocated_bytes for line in own_log.log.memory], _NO_MEMORY_LINE)


@fact("bytes", "the logged peak of reserved memory")
def log_reserved_memory_bytes(own_log: JoinedLog) -> Measurement[int]:
    """Largest peak of reserved memory among the ranks that printed it."""
    return _find_largest([line.max_reserved_bytes for line in own_log.log.memory], _NO_MEMORY_LINE)


@fact("count", "the number of iterations before memory was printed")
def log_memory_iterations_count(own_log: JoinedLog) -> Measurement[int]:
    """Iterations of the run before the log's last memory line. After one, the peak lacks the optimizer's moments, which
    the first update creates."""
    log = own_log.log
    printed = [line.after_iterations_count for line in log.memory if line.after_iterations_count is not None]
    if not printed:
        return missing("no memory line of the log names its iteration")
    # Counted from the iteration at which the loop of this run started.
    last = max(printed)
    starts = [event.iteration for event in log.events if event.kind == "training_start"]
    return known(last - max((start for start in starts if start is not None and start < last), default=0))


@fact("count", "the number of out-of-memory errors")
def log_oom_count(own_log: JoinedLog) -> int:
    """Different out-of-memory errors in the log."""
    return len(own_log.log.ooms)


@fact("count", "the number of allocator retries")
def log_allocator_retries_count(own_log: JoinedLog) -> Measurement[int]:
    """Allocations that failed at first, most of any rank: the allocator released its cache and tried again."""
    reason = "the log does not count allocator retries (Megatron-Bridge does, Megatron-LM does not)"
    return _find_largest([line.allocator_retries_count for line in own_log.log.memory], reason)


def _read_quartile(log: JoinedLog, place: int) -> Measurement[int]:
    return known(log.quartiles_ns[place]) if log.quartiles_ns else missing(log.why_no_median)


def _find_unavailable(log: TrainingLog, backend: str) -> Measurement[bool]:
    """Whether ``backend`` is not installed, or not for this GPU. A log that reports nothing proves nothing."""
    refused = re.compile(_REFUSED.format(backend))
    if any(event.kind == "dispatcher" and refused.search(event.text) for event in log.events):
        return known(True)
    return missing(f"the log does not report whether {backend} is available")


def _find_largest(values: Sequence[int | None], reason: str) -> Measurement[int]:
    return known_or_missing(max((value for value in values if value is not None), default=None), reason)


@artifact
def log_summary(
    joined_log: JoinedLog,
    log_mismatch: str,
    config: RunConfig,
    unprofiled_step_ns: Measurement[int],
    log_peak_memory_bytes: Measurement[int],
    log_reserved_memory_bytes: Measurement[int],
    log_allocator_retries_count: Measurement[int],
    log_tflops_per_gpu: Measurement[float],
) -> LogSummary:
    """What the report shows of the log: its numbers and timers unless it is of another run."""
    log, roles = joined_log.log, joined_log.roles
    counts = Counter(role.value for role in roles)
    events: Counter[str] = Counter()
    for event in log.events:
        events[event.kind] += event.count
    theory, role_of = log.theoretical_memory, dict(zip(log.iterations, roles, strict=True))
    is_own = not log_mismatch
    return LogSummary(
        files=log.files,
        iterations=len(log.iterations) + log.left_out_count,
        roles={role.value: counts[role.value] for role in Role if counts[role.value]},
        torn_lines=log.torn_lines_count,
        unprofiled_step_ns=unprofiled_step_ns.value,
        peak_memory_bytes=log_peak_memory_bytes.value,
        reserved_memory_bytes=log_reserved_memory_bytes.value,
        allocator_retries=log_allocator_retries_count.value,
        theoretical_memory_bytes=None if theory is None else theory.total_bytes or theory.weight_and_optimizer_bytes,
        parameters=log.parameters_count,
        ooms=len(log.ooms),
        events=dict(sorted(events.items())),
        tflops_per_gpu=log_tflops_per_gpu.value,
        device_memory_bytes=max((line.device_bytes for line in log.memory if line.device_bytes), default=None),
        timers=summarize_timers(log.timers, role_of) if is_own else (),
        slow_ranks=find_slow_ranks(log.timers, role_of, config) if is_own else (),
        progress=summarize_progress(log.jobs, read_layout(config).world) if is_own else None,
        unread_files=log.unread,
        mismatch=log_mismatch,
        began_at=next(iter(log.printed_at), None),
    )


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


def summarize_timers(prints: Iterable[TimerPrint], roles: Roles) -> tuple[TimerSummary, ...]:
    """One row per timer, by name; none for a timer of steps that was printed after no steady iteration."""
    return tuple(_summarize(name, timers) for name, timers in _timers_of_steady_steps(prints, roles).items())


def find_slow_ranks(prints: Iterable[TimerPrint], roles: Roles, config: RunConfig) -> tuple[SlowRank, ...]:
    """Ranks that take longer than the typical one for work of their own, print after print; the slowest first.

    Only ranks of one pipeline stage (from ``config``) have the same work, and are compared. No rank is named where
    there are several stages and ranks cannot be placed in them.
    """
    stage_of = _stages(config)
    slow_ranks: list[SlowRank] = []
    for name, timers in _timers_of_steady_steps(prints, roles).items():
        times = [dict(timer.ranks_ns) for timer in timers if timer.ranks_ns]
        if log_timers().kind_of(name) is TimerKind.WORK and len(times) >= MINIMUM_STEADY_COUNT:
            for stage in dict.fromkeys(stage_of(rank) for ranks_ns in times for rank in ranks_ns):
                of_stage = [{rank: ns for rank, ns in each.items() if stage_of(rank) == stage} for each in times]
                if stage != _UNPLACED:
                    slow_ranks += _slow_ranks_of(name, stage, [ranks_ns for ranks_ns in of_stage if ranks_ns])
    return tuple(sorted(slow_ranks, key=lambda slow: (-slow.ns / slow.typical_ns, slow.rank, slow.timer)))


def _stages(config: RunConfig) -> Callable[[int], int | None]:
    """Rank -> its pipeline stage; None without a pipeline, ``_UNPLACED`` where ranks cannot be placed in it.

    Megatron numbers stages slowest (``megatron/core/parallel_state.py``), unless ``use_tp_pp_dp_mapping``.
    """
    layout = read_layout(config)
    if not layout.pipeline or layout.pipeline == 1:
        return lambda _: None
    if config.get("use_tp_pp_dp_mapping") or not layout.world or layout.world % layout.pipeline:
        return lambda _: _UNPLACED
    width = layout.world // layout.pipeline
    return lambda rank: rank // width


def _timers_of_steady_steps(prints: Iterable[TimerPrint], roles: Roles) -> dict[str, list[LogTimer]]:
    """Timers by name, of the prints that count: those after a steady iteration.

    Timers outside of steps count wherever they stand. Where no iteration line stands before any print of a timer (in
    a file of its own), all of them count.
    """
    of_steps: dict[str, list[tuple[Role | None, LogTimer]]] = {}
    for timer_print in prints:
        role = roles.get(timer_print.after) if timer_print.after else None
        for timer in timer_print.timers:
            of_steps.setdefault(timer.name, []).append((role, timer))
    steady = {}
    for name, timers in sorted(of_steps.items()):
        is_outside = log_timers().kind_of(name) is TimerKind.OUTSIDE
        is_unplaced = all(role is None for role, _ in timers)
        steady[name] = [timer for role, timer in timers if is_outside or is_unplaced or role is Role.STEADY]
    return {name: timers for name, timers in steady.items() if timers}


def _summarize(name: str, timers: Sequence[LogTimer]) -> TimerSummary:
    of_ranks = [dict(timer.ranks_ns) for timer in timers if timer.ranks_ns]
    typical = _medians(of_ranks)
    kind = log_timers().kind_of(name)
    if typical:
        fastest, slowest = _extremes(typical)
        return TimerSummary(name, kind, len(of_ranks), typical[fastest], typical[slowest], fastest, slowest)
    shortest = [timer.min_ns for timer in timers if timer.min_ns is not None]
    longest_ns = round(median(timer.max_ns for timer in timers))
    return TimerSummary(name, kind, len(timers), round(median(shortest)) if shortest else None, longest_ns)


def _slow_ranks_of(name: str, stage: int | None, times: RankTimes) -> list[SlowRank]:
    typical = _medians(times)
    if len(typical) < 2:
        return []
    fastest, _ = _extremes(typical)
    middle_ns = median_low(typical.values())
    outstanding = _count_outstanding(times, SLOW_RANK_RATIO)
    return [
        SlowRank(
            rank=rank,
            timer=name,
            ns=ns,
            fastest_rank=fastest,
            fastest_ns=typical[fastest],
            typical_ns=middle_ns,
            prints=outstanding[rank],
            of_prints=len(times),
            stage=stage,
        )
        for rank, ns in sorted(typical.items())
        if middle_ns and ns >= SLOW_RANK_RATIO * middle_ns
        if outstanding[rank] > SLOW_RANK_PRINTS_FRACTION * len(times)
    ]


def _medians(times: RankTimes) -> dict[int, int]:
    """Median time of each rank that at least half of the prints hold: the others are left out of most prints."""
    counts = Counter(rank for ranks_ns in times for rank in ranks_ns)
    ranks = sorted(rank for rank, count in counts.items() if 2 * count >= len(times))
    return {rank: round(median(ranks_ns[rank] for ranks_ns in times if rank in ranks_ns)) for rank in ranks}


def _extremes(typical: Mapping[int, int]) -> tuple[int, int]:
    """The fastest and the slowest rank; of equals, the lowest number."""
    return min(typical, key=lambda rank: (typical[rank], rank)), min(typical, key=lambda rank: (-typical[rank], rank))


def _count_outstanding(times: RankTimes, ratio: float) -> Counter[int]:
    """In how many prints each rank took ``ratio`` times the typical rank of that print."""
    counted: Counter[int] = Counter()
    for ranks_ns in times:
        middle_ns = median_low(ranks_ns.values())
        counted.update(rank for rank, ns in ranks_ns.items() if middle_ns and ns >= ratio * middle_ns)
    return counted
