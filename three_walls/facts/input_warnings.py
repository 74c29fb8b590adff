"""What limits the report's claims: warnings with stable codes about the inputs and about single steps.

Each names a file, a line of the log, a setting or a step. Warnings that only compare facts with thresholds are in
``rules/warnings/``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median_low

import polars as pl

from three_walls.facts.fact_rows import LogSummary, SlowRank
from three_walls.facts.moe_ledger import MoeLedger
from three_walls.facts.weight_updates import MINIMUM_OUTLIER_EXCESS_FRACTION
from three_walls.lib import limits
from three_walls.lib.declare import artifact
from three_walls.lib.measurement import Measurement
from three_walls.lib.report_warning import ReportWarning
from three_walls.lib.text import (
    capitalize,
    format_gib,
    format_setting,
    in_ms,
    in_percent,
    shorten,
    show_time,
    write_times,
)
from three_walls.log.steady_steps import CAPTURED_STEP_TOLERANCE_FRACTION, is_within
from three_walls.log.training_log import TrainingLog
from three_walls.megatron.parallel_layout import find_contradictions
from three_walls.megatron.settings.run_config import ConfigConflict, RunConfig
from three_walls.megatron.settings.setting_sources import USER, SourceSettings
from three_walls.step.attribute_steps import Attribution
from three_walls.step.build_timeline import Timeline
from three_walls.step.joined_log import JoinedLog
from three_walls.step.ranks.matched_ranks import MatchedRanks
from three_walls.step.step_rows import StepSource, UnclassifiedKernel
from three_walls.step.step_view import RunView
from three_walls.trace.capabilities import YES
from three_walls.trace.identity import Rank
from three_walls.trace.read_inputs import Inputs
from three_walls.trace.read_trace import Capture

MINIMUM_UNCLASSIFIED_FRACTION = 0.05
"""Of the step: from here on kernels of unknown kind are named. Budget rows of less decide nothing."""
MINIMUM_OUTLIER_STEPS = 5
"""Kept steps that a rank needs before one of them is reported as an outlier. With fewer kept steps of a rank a median
does not show what is usual."""
MINIMUM_OUTLIER_DEVIATIONS = 3
"""Median absolute deviations above the median of the rank's steps from which on a step is an outlier: the usual bound
for a robust one."""

_RANK_VARIABLES = frozenset(
    [
        "RANK",
        "LOCAL_RANK",
        "GROUP_RANK",
        "NODE_RANK",
        "CUDA_VISIBLE_DEVICES",
        "SLURM_PROCID",
        "SLURM_LOCALID",
        "SLURM_NODEID",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
    ]
)
"""Environment variables that differ between the ranks of one run."""
_EVENTS_PASSED_ON = ("dispatcher", "overlap", "override_skipped", "straggler")
_NO_GRAPHS = "No graphable layers"
_NOTHING_TO_OVERLAP = "due to TP size < 2"
"""Recipes of Megatron-Bridge 0.6 ask for tensor-parallel overlap in every layout, even without anything to overlap."""
_MOST_SETTINGS_NAMED = 8
_MOST_ALIKE = 32
"""Warnings with one code that are listed: as many as ranks that are all read in full."""
_MOST_LOG_ENTRIES_NAMED = 5
"""Of each kind: log files that could not be read, slow ranks, and the log's own warnings."""
_MOST_KERNELS_NAMED, _LONGEST_KERNEL = 3, 80
_BLOCKS = {
    "argument_block": "Megatron-LM's arguments",
    "config_dump": "the configuration",
    "non_default_settings": "the non-default settings",
    "rank_timers": "the timers of every rank",
    "timers": "timers",
    "traceback": "tracebacks",
}
"""Kind of a log's block -> what it holds."""


@artifact
def measured_warnings(
    inputs: Inputs,
    timeline: Timeline,
    matched_ranks: MatchedRanks,
    attribution: Attribution,
    run: RunView,
    log_warnings: Measurement[tuple[ReportWarning, ...]],
    moe_ledger: Measurement[MoeLedger],
    unclassified: Measurement[tuple[UnclassifiedKernel, ...]],
    unclassified_fraction: Measurement[float],
) -> tuple[ReportWarning, ...]:
    """Every warning that no rule states, in a fixed order.

    The traces and their steps come first, then the log, the settings, the matching of ranks and the measurements (their
    own warnings are passed on), and the outlier steps last.
    """
    timeline = timeline.with_steps(matched_ranks.steps)
    warnings = (
        *inputs.warnings,
        *_warn_of_traces(inputs.captures, timeline, run.capabilities),
        *(log_warnings.value or ()),
        *_warn_of_settings(inputs.explicit, inputs.config, inputs.ranks),
        *matched_ranks.warnings,
        *_warn_of_slow_kernels(attribution, matched_ranks.rank_of),
        *(moe_ledger.value.warnings if moe_ledger.value else ()),
        *_warn_of_unclassified(unclassified.value or (), unclassified_fraction.value or 0.0),
        *_warn_of_outlier_steps(attribution, matched_ranks.rank_of),
    )
    return tuple(_fold_alike(warnings))


def _fold_alike(warnings: Sequence[ReportWarning]) -> Iterator[ReportWarning]:
    """``warnings`` with the many of one kind that a run of many ranks has counted instead of listed."""
    counts = Counter(warning.code for warning in warnings)
    places: Counter[str] = Counter()
    for warning in warnings:
        places[warning.code] += 1
        rest = counts[warning.code] - _MOST_ALIKE
        if rest <= 1 or places[warning.code] <= _MOST_ALIKE:
            yield warning
        elif places[warning.code] == _MOST_ALIKE + 1:
            yield ReportWarning(warning.code, f"{rest:,} more warnings of this kind ({warning.code}).")


def _warn_of_unclassified(kernels: Sequence[UnclassifiedKernel], fraction: float) -> Iterator[ReportWarning]:
    if fraction >= MINIMUM_UNCLASSIFIED_FRACTION:
        names = ", ".join(shorten(kernel.name, _LONGEST_KERNEL) for kernel in kernels[:_MOST_KERNELS_NAMED])
        yield ReportWarning(
            "unclassified-kernels",
            f"Kernels of unknown kind take {in_percent(fraction)} of the step; those that take most: {names}. "
            "--kernel-names FILE says what they are (docs/troubleshooting.md has an example).",
        )


def _warn_of_traces(
    traces: Sequence[Capture], timeline: Timeline, capabilities: Mapping[str, str]
) -> tuple[ReportWarning, ...]:
    """Warnings of the readers, of traces that do not belong together, and of the steps found; each once."""
    warnings = [warning for trace in traces for warning in trace.warnings]
    warnings += _warn_of_ranks(traces)
    warnings += _warn_of_different_environments([trace.config for trace in traces if trace.ranks])
    warnings += _warn_of_few_steps(timeline)
    if capabilities.get("inside_cuda_graphs") != YES:
        reason = capabilities["inside_cuda_graphs"]
        warnings.append(ReportWarning("inside-cuda-graphs", f"{capitalize(reason)}."))
    return tuple(dict.fromkeys(warnings))


def _warn_of_ranks(traces: Sequence[Capture]) -> list[ReportWarning]:
    warnings = [
        ReportWarning("no-kernels", f"{trace.input.path_name} has no CUDA kernels. It is left out.")
        for trace in traces
        if not trace.ranks
    ]
    first_of: dict[str, str] = {}
    for trace in traces:
        first = first_of.setdefault(trace.input.sha256, trace.input.path_name)
        if first != trace.input.path_name:
            message = (
                f"{trace.input.path_name} is the same capture as {first}, and counts as ranks of its own. Give it once."
            )
            warnings.append(ReportWarning("same-capture", message))
    ranks = [rank for trace in traces for rank in trace.ranks]
    if any(rank.rank_source == "order" for rank in ranks):
        message = (
            "The trace does not hold the launcher's RANK, or one report holds several processes. Ranks are therefore "
            "numbered in the order in which they were found."
        )
        warnings.append(ReportWarning("rank-not-in-trace", message))
    return warnings


def _warn_of_different_environments(configs: Sequence[RunConfig]) -> list[ReportWarning]:
    """Ranks of one run share their environment, but for what tells them apart."""
    first = configs[0]
    variables = {
        name
        for other in configs[1:]
        for name in {*first.environment, *other.environment}
        if first.environment.get(name) != other.environment.get(name) and name not in _RANK_VARIABLES
    }
    if not variables:
        return []
    names = ", ".join(sorted(variables)[:_MOST_SETTINGS_NAMED])
    message = f"The traces were launched with different variables ({names}). Check that they belong to one run."
    return [ReportWarning("environments-differ", message)]


def _warn_of_few_steps(timeline: Timeline) -> list[ReportWarning]:
    warnings = []
    if StepSource.ONE_WINDOW in timeline.sources.values():
        message = (
            "No training steps were found: the trace has no training_step_N range and no recurring optimizer kernels. "
            "The whole capture is analyzed as one window. Name the NVTX ranges that are steps with --step-range REGEX."
        )
        warnings.append(ReportWarning("one-window", message))
    kept_per_rank = timeline.steps.filter("kept").group_by("rank_index").len()["len"]
    if kept_per_rank.len() and int(kept_per_rank.sort()[0]) == 1:
        message = (
            "At least one rank has only one usable step, so the spread of its steps is unknown. "
            "Capture four steps or more."
        )
        warnings.append(ReportWarning("one-step", message))
    return warnings


@artifact
def log_warnings(
    training_log: TrainingLog,
    inputs: Inputs,
    timeline: Timeline,
    matched_ranks: MatchedRanks,
    log_summary: LogSummary,
    perturbation_warning: Measurement[ReportWarning | None],
    early_memory_warning: Measurement[ReportWarning | None],
    joined_log: JoinedLog,
    captured_lengths: tuple[int | None, ...],
) -> tuple[ReportWarning, ...]:
    """Warnings about the log, then those that the log itself holds."""
    log, mismatch = training_log, log_summary.mismatch
    names = ", ".join(log.files)
    unread = log.unread[:_MOST_LOG_ENTRIES_NAMED]
    warnings = [ReportWarning("log-unreadable", f"A log was left out: {problem}") for problem in unread]
    warnings += _warn_of_many_processes(log)
    if log.is_empty:
        message = (
            f"{names}: no line of Megatron-LM or Megatron-Bridge was found. "
            "Check that this is the output of the training itself."
        )
        return (*warnings, ReportWarning("log-says-nothing", message))
    if mismatch:
        warnings.append(
            ReportWarning("log-mismatch", f"The log ({names}) is of another run and is not used: {mismatch}.")
        )
    else:
        stepped = timeline.with_steps(matched_ranks.steps)
        differences = (
            ("log-date", _find_other_times(log, inputs)),
            ("log-iterations", _find_other_iterations(log, stepped)),
            ("log-steps", _find_unseen_steps(joined_log, captured_lengths)),
        )
        warnings += [
            ReportWarning(code, f"{difference}. Check that they are of one run.")
            for code, difference in differences
            if difference
        ]
    if joined_log.unclear_starts and not mismatch:
        message = f"The steps of the log ({names}) are not used: {joined_log.unclear_starts}."
        warnings.append(ReportWarning("log-starts", message))
    warnings += [perturbation_warning.value] if perturbation_warning.value else []
    warnings += _warn_of_exhausted_memory(log)
    warnings += [early_memory_warning.value] if early_memory_warning.value else []
    warnings += _warn_of_slow_ranks(log_summary.slow_ranks, inputs.config)
    events = [
        event
        for event in log.events
        if (event.kind in _EVENTS_PASSED_ON or event.text == _NO_GRAPHS)
        and not event.text.endswith(_NOTHING_TO_OVERLAP)
    ]
    warnings += [
        ReportWarning(f"log-{event.kind.replace('_', '-')}", f"The log reports: {event.text}")
        for event in events[:_MOST_LOG_ENTRIES_NAMED]
    ]
    return tuple(warnings)


def _find_other_times(log: TrainingLog, inputs: Inputs) -> str:
    """Both times, where the trace was recorded before or after the log's iterations; empty if it was not.

    A log of the same settings that was printed at other times may still be what the user means, so it stays in use.
    """
    times = [(at, line.elapsed_ns) for line in log.iterations if (at := line.printed_ns) is not None]
    window_ns = inputs.window_ns
    if not times or window_ns is None:
        return ""
    printed_ns = min(at - elapsed_ns for at, elapsed_ns in times), max(at for at, _ in times)
    if is_within(window_ns, printed_ns, inputs.most_apart_ns):
        return ""
    first, last = map(show_time, printed_ns)
    return f"The log's iterations are of {first} to {last}, and the trace is of {show_time(window_ns[0])} UTC"


def _find_other_iterations(log: TrainingLog, timeline: Timeline) -> str:
    """Both ranges, where the log has none of the iterations whose numbers the trace states; empty if it has one.

    It may be a part of the run's log, so it stays in use. NVTX counts steps from 0, the log from 1.
    """
    if set(timeline.sources.values()) != {StepSource.TRAINING_STEP} or not log.iterations or log.left_out_count:
        return ""
    numbers = timeline.steps["step"].to_list()
    logged = {line.iteration for line in log.iterations}
    if not numbers or logged & {near for number in numbers for near in (number, number + 1)}:
        return ""
    return (
        f"The log holds iterations {min(logged)} to {max(logged)}, and the trace steps {min(numbers)} to {max(numbers)}"
    )


def _find_unseen_steps(joined: JoinedLog, captured_lengths: Sequence[int | None]) -> str:
    """A captured step as long as which the log prints no iteration, where nothing states which it profiled; else empty.

    The log may be of a run of the same settings without the profiler, so it stays in use.
    """
    numbers = [line.iteration for line in joined.log.iterations]
    if joined.shows_capture or joined.quartiles_ns is None or len(numbers) <= max(numbers) - min(numbers):
        return ""  # known, not used, or lines that stand for several iterations
    tolerance = CAPTURED_STEP_TOLERANCE_FRACTION
    for length in filter(None, captured_lengths):
        if all(abs(line.elapsed_ns - length) > tolerance * length for line in joined.log.iterations):
            return f"No iteration of the log is as long as the captured step of {in_ms(length)}"
    return ""


def _warn_of_many_processes(log: TrainingLog) -> list[ReportWarning]:
    """What was left out of a log because too many processes wrote it at the same time."""
    remedy = "Give the logs of the first and the last rank alone."
    warnings = []
    if log.left_out_blocks:
        kinds = ", ".join(f"{count:,} of {_BLOCKS[kind]}" for kind, count in log.left_out_blocks)
        message = (
            "Blocks of the log that were left out, because more than "
            f"{limits.MOST_OPEN_BLOCK_BYTES >> 20} MiB of them were open at the same time: {kinds}. {remedy}"
        )
        warnings.append(ReportWarning("log-blocks-left-out", message))
    if log.unplaced_lines_count:
        message = (
            f"The log is of more than {limits.MOST_PROCESSES:,} processes. Of {log.unplaced_lines_count:,} iteration "
            f"lines and tracebacks it is not known which timers and which memory errors follow them. {remedy}"
        )
        warnings.append(ReportWarning("log-processes-left-out", message))
    return warnings


@artifact
def perturbation_warning(
    traced_step_ns: int,
    unprofiled_step_ns: int,
    profiler_excess_ns: int,
    host_idle_ns: Measurement[int],
    host_recoverable_ns: Measurement[int],
    idle_other_ns: Measurement[int],
    wait_exposed_ns: Measurement[int],
) -> ReportWarning | None:
    """The profiler lengthens time without device work; None where it added nothing that shows."""
    excess_ns, idle_ns, counted_ns = profiler_excess_ns, host_idle_ns.value, host_recoverable_ns.value
    if not excess_ns:
        return None
    if idle_ns is None or counted_ns is None:
        effect = "Host time is inflated. This trace does not show how much of the step it is."
    elif excess_ns > (waiting_ns := idle_ns + (idle_other_ns.value or 0) + (wait_exposed_ns.value or 0)):
        effect = (
            f"All of its host time ({in_ms(idle_ns)}) is attributed to the profiler, and so are its waits for other "
            f"slowed ranks. Another {in_ms(excess_ns - waiting_ns)} is elsewhere, in differences between steps. Every "
            "other share of the step may be too small or too large by as much."
        )
    else:
        effect = (
            f"{in_ms(idle_ns - counted_ns)} of its host time ({in_ms(idle_ns)}) is attributed to the profiler and does "
            "not count as recoverable; the rest is in waits for other slowed ranks and in unexplained idle time."
        )
    message = (
        f"The profiler slows every launch: the traced step takes {in_ms(traced_step_ns)}, and unprofiled steps "
        f"take {in_ms(unprofiled_step_ns)} by the log ({traced_step_ns / unprofiled_step_ns:.2f} times). {effect}"
    )
    return ReportWarning("profiler-perturbation", message)


def _warn_of_exhausted_memory(log: TrainingLog) -> list[ReportWarning]:
    if not log.ooms:
        return []
    largest = max(log.ooms, key=lambda oom: (oom.requested_bytes, oom.reserved_unallocated_bytes or 0, oom.gpu or 0))
    raised_in = f", raised in {largest.raised_in}" if largest.raised_in else ""
    message = (
        f"Out-of-memory errors in the log: {len(log.ooms)}. The largest request was "
        f"{format_gib(largest.requested_bytes)}{raised_in}."
    )
    unallocated_bytes = largest.reserved_unallocated_bytes
    if unallocated_bytes is not None:
        is_fragmented = unallocated_bytes >= largest.requested_bytes
        conclusion = "memory was fragmented" if is_fragmented else "memory was in use, not fragmented"
        message += f" {format_gib(unallocated_bytes)} was reserved but unallocated: {conclusion}."
    return [ReportWarning("log-out-of-memory", message)]


@artifact
def early_memory_warning(
    log_peak_memory_bytes: int, log_memory_iterations_count: int, memory_peak_bytes: Measurement[int]
) -> ReportWarning | None:
    """What the printed peak of memory lacks; None where it was printed after more than one iteration."""
    printed_bytes, later_bytes = log_peak_memory_bytes, memory_peak_bytes.value
    if log_memory_iterations_count != 1:
        return None
    message = (
        f"The log prints memory only after its first iteration ({format_gib(printed_bytes)} at most). While that "
        "iteration computed its gradients the optimizer had no moments yet, so later peaks are higher."
    )
    if later_bytes is not None:
        message += f" {format_gib(later_bytes - printed_bytes)} of moments, estimated from the config, is added here."
    return ReportWarning("log-memory-early", message)


def _warn_of_slow_ranks(slow_ranks: Sequence[SlowRank], config: RunConfig) -> list[ReportWarning]:
    """One warning for all of them: a rank that is slow in several timers is named once."""
    if not slow_ranks:
        return []
    ranks = list(dict.fromkeys(slow.rank for slow in slow_ranks))
    descriptions = "; ".join(
        _describe_slow_rank([slow for slow in slow_ranks if slow.rank == rank])
        for rank in ranks[:_MOST_LOG_ENTRIES_NAMED]
    )
    unnamed_count = len(ranks) - _MOST_LOG_ENTRIES_NAMED
    more = f"; and {unnamed_count:,} more ranks" if unnamed_count > 0 else ""
    message = f"By the log's timers, {descriptions}{more}. Find out why before you change the config."
    if (config.whole_number("expert_model_parallel_size") or 0) > 1:
        message += " The ranks of an expert group wait for each other in this time, so a slow one makes all take long."
    if config.whole_number("pipeline_model_parallel_size") is None:
        message += " It is not known whether there are pipeline stages, whose ranks do different work."
    return [ReportWarning("log-slow-rank", message)]


def _describe_slow_rank(timers: Sequence[SlowRank]) -> str:
    ratios = ", ".join(
        f"{write_times(timer.ns / timer.fastest_ns)} as long as rank {timer.fastest_rank} in {timer.timer} "
        f"({timer.prints} of {timer.of_prints} prints)"
        for timer in timers
        if timer.fastest_ns
    )
    return f"rank {timers[0].rank} takes {ratios or 'longest'}"


def _warn_of_settings(
    sources: Sequence[SourceSettings], config: RunConfig, ranks: Iterable[Rank]
) -> list[ReportWarning]:
    """``sources``: those other than the trace, whose own notes are passed on."""
    warnings = [ReportWarning("config-source", note) for settings in sources for note in settings.warnings]
    # A saved configuration or log of another launcher than the command line's is of another run.
    warnings += [
        ReportWarning(
            "config-of-another-run",
            f"{settings.source} is of {settings.dialect}, but {config.dialect} launched the run. "
            "Check that they belong to one run.",
        )
        for settings in sources
        if settings.dialect not in ("unknown", config.dialect)
    ]
    warnings += _warn_of_conflicts(config.conflicts)
    captured = [rank.rank for rank in ranks if rank.rank_source == "environment"]
    warnings += [
        ReportWarning("layout-contradiction", capitalize(contradiction) + ("" if contradiction.endswith("?") else "."))
        for contradiction in find_contradictions(config, captured)
    ]
    return warnings


def _warn_of_conflicts(conflicts: Sequence[ConfigConflict]) -> list[ReportWarning]:
    """A setting of the user's that overrides another source is intended, and no conflict."""
    unintended = [conflict for conflict in conflicts if conflict.values[0].source != USER]
    if not unintended:
        return []
    settings = "; ".join(
        f"{conflict.key} {', '.join(f'{format_setting(value.value)} ({value.source})' for value in conflict.values)}"
        for conflict in unintended[:_MOST_SETTINGS_NAMED]
    )
    unnamed_count = len(unintended) - _MOST_SETTINGS_NAMED
    more = f"; and {unnamed_count:,} more" if unnamed_count > 0 else ""
    message = (
        f"Sources disagree on settings: {settings}{more}. The source named first counts. "
        "Check that the sources belong to one run."
    )
    return [ReportWarning("config-conflict", message)]


def _warn_of_slow_kernels(attribution: Attribution, rank_of: Mapping[int, int]) -> list[ReportWarning]:
    """Ranks that are slow at the same kernels, where no call shows how late that makes them."""
    late = {straggler.rank for straggler in attribution.stragglers}
    return [
        ReportWarning(
            "slow-kernels",
            f"Rank {rank_of[rank_index]} takes {write_times(ratio)} as long as its peers for the same kernels, so its "
            "GPU is likely slow: look at its clocks, throttle reasons and processes (nvidia-smi). The matched calls do "
            "not show what that costs the others: capture every rank of the group.",
        )
        for rank_index, ratio in sorted(attribution.slow_ranks.items())
        if rank_of[rank_index] not in late
    ]


def _warn_of_outlier_steps(attribution: Attribution, rank_of: Mapping[int, int]) -> list[ReportWarning]:
    """One warning per kept step that is much longer than its rank's median, by rank and step.

    A garbage collection, an evaluation or a checkpoint makes one step long. Medians leave that step out of every other
    figure, so it is reported by itself, with the bucket that grew most.
    """
    warnings = []
    for rank_index in sorted(rank_of, key=lambda index: (rank_of[index], index)):
        steps = attribution.steps.filter((pl.col("rank_index") == rank_index) & pl.col("kept"))
        lengths_ns = {
            int(step): int(end - start) for step, start, end in steps.select("step", "start_ns", "end_ns").rows()
        }
        if len(lengths_ns) < MINIMUM_OUTLIER_STEPS:
            continue
        median_ns = median_low(lengths_ns.values())
        deviation_ns = median_low(abs(length_ns - median_ns) for length_ns in lengths_ns.values())
        excess_ns = max(
            MINIMUM_OUTLIER_DEVIATIONS * deviation_ns,
            MINIMUM_OUTLIER_EXCESS_FRACTION * median_ns,
        )
        typical_step = min(lengths_ns, key=lambda step: (abs(lengths_ns[step] - median_ns), step))
        for step, length_ns in lengths_ns.items():
            if length_ns > median_ns + excess_ns:
                bucket, growth_ns = _find_grown_bucket(attribution, rank_index, step, typical_step)
                message = (
                    f"Step {step} of rank {rank_of[rank_index]} took {in_ms(length_ns)}; the rank's median step takes "
                    f"{in_ms(median_ns)}. The largest part of the difference is {bucket}: "
                    f"{in_ms(growth_ns)} more than in a typical step. All other figures rest on medians, without this "
                    "step."
                )
                warnings.append(ReportWarning("outlier-step", message))
    return warnings


def _find_grown_bucket(attribution: Attribution, rank_index: int, step: int, typical_step: int) -> tuple[str, int]:
    """The bucket that exceeds that of ``typical_step`` most, and by how many ns."""
    rank_budget = attribution.budget.filter(pl.col("rank_index") == rank_index)
    long_ns, typical_ns = (
        dict(rank_budget.filter(pl.col("step") == number).select("bucket", "ns").rows())
        for number in (step, typical_step)
    )
    growth_ns = {bucket: ns - typical_ns.get(bucket, 0) for bucket, ns in long_ns.items()}
    bucket = min(growth_ns, key=lambda name: (-growth_ns[name], name))
    return bucket, growth_ns[bucket]
