"""Joins the training log with the trace: facts of the log, or why it says nothing about this trace."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from three_walls.facts.log_progress import PROGRESS_FACTS, progress_facts, summarize_progress
from three_walls.facts.log_timers import find_slow_ranks, summarize_timers
from three_walls.inputs.config.parallel_layout import read_layout
from three_walls.inputs.log.same_run import find_other_sizes
from three_walls.inputs.log.steady_steps import ProfiledRange, Role, classify_iterations
from three_walls.model.config import RunConfig
from three_walls.model.fact import FactValue
from three_walls.model.report import LogSummary
from three_walls.model.training_log import LogIteration, TrainingLog
from three_walls.model.units import ns_to_ms
from three_walls.tables.thresholds import LogThresholds, default_log_thresholds

Known = tuple[FactValue, str | None]

NO_LOG = "no training log was given (--log)"

FACTS_OF_LOG = (
    "unprofiled_step_ns",
    "unprofiled_step_spread_ratio",
    "unprofiled_step_range_ns",
    "unprofiled_steps_count",
    "profiler_perturbation_ratio",
    "profiler_excess_ns",
    "log_tflops_per_gpu",
    *PROGRESS_FACTS,
    "log_peak_memory_bytes",
    "log_reserved_memory_bytes",
    "log_memory_iterations_count",
    "log_oom_count",
    "log_allocator_retries_count",
    "log_deepep_unavailable",
    "log_hybridep_unavailable",
    "log_unavailable_dispatchers",
)
_BACKENDS = ("DeepEP", "HybridEP")
_REFUSED = r"\b{} is (?:not installed|supported for|only applicable)"
_IN_DUMP = re.compile(r"^profiling:\n((?:[ ].*\n)*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class JoinedLog:
    """What the log adds to the report. ``mismatch``: why it is of another run; empty if it is not."""

    facts: Mapping[str, Known]
    summary: LogSummary | None
    mismatch: str = ""

    def whole(self, name: str) -> int | None:
        """The whole number of fact ``name``; None where the log does not say."""
        value, _ = self.facts[name]
        return value if isinstance(value, int) else None


def join_log(
    log: TrainingLog | None,
    config: RunConfig,
    merged: RunConfig,
    traced_step_ns: int | None,
    captured_steps: int,
) -> JoinedLog:
    """Facts, summary and mismatch of ``log`` beside a trace.

    ``config``: what the trace itself says of its run; ``merged``: what all sources say. ``traced_step_ns``: the
    representative step; ``captured_steps``: how many steps the capture holds, kept or not.
    """
    traced: dict[str, Known] = {"traced_step_ns": (traced_step_ns, None)} if traced_step_ns else {}
    if log is None:
        return JoinedLog({**dict.fromkeys(FACTS_OF_LOG, (None, NO_LOG)), **traced}, None)
    limits = default_log_thresholds()
    profiled, is_known = find_profiled_range(log, config)
    roles = classify_iterations(log.iterations, log.events, profiled, limits)
    steady = [line for line, role in zip(log.iterations, roles, strict=True) if role is Role.STEADY]
    progress = summarize_progress(log.jobs, read_layout(merged).world)
    facts = {
        **_step_facts(steady, _why_no_median(log, steady, is_known, captured_steps, limits)),
        **_memory_facts(log),
        "log_tflops_per_gpu": _tflops(log, steady),
        **progress_facts(log.jobs, progress),
        "log_oom_count": (len(log.ooms), None),
        **_dispatcher_facts(log),
    }
    facts |= _perturbation(facts["unprofiled_step_ns"], traced_step_ns, limits)
    mismatch = find_other_sizes(log, config) or _other_length(facts, limits)
    if mismatch:
        facts = dict.fromkeys(FACTS_OF_LOG, (None, f"the log is of another run: {mismatch}"))
    summary = _summarize(log, roles, facts)
    if not mismatch:
        role_of = dict(zip(log.iterations, roles, strict=True))
        summary = replace(
            summary,
            timers=summarize_timers(log.timers, role_of),
            slow_ranks=find_slow_ranks(log.timers, role_of, merged, limits),
            progress=progress,
        )
    return JoinedLog({**facts, **traced}, summary, mismatch)


def find_profiled_range(log: TrainingLog, config: RunConfig) -> tuple[ProfiledRange | None, bool]:
    """The profiler's range, and whether that is known (a run without profiler has none, and that is known).

    The log's own arguments come before the trace's settings: the log may be of a run that was not profiled.
    """
    said = dict(log.argument_block)
    if said:
        start, end, is_on = said.get("profile_step_start"), said.get("profile_step_end"), said.get("profile") == "True"
    elif log.config_dump and (section := _IN_DUMP.search(log.config_dump)):
        start, end = _setting(section[1], "profile_step_start"), _setting(section[1], "profile_step_end")
        is_on = _setting(section[1], "use_nsys_profiler") == "true"
    else:
        start, end = (_text(config, key) for key in ("profile_step_start", "profile_step_end"))
        is_on = True
    if not is_on:
        return None, True
    if start and end and start.isdecimal() and end.isdecimal():
        return ProfiledRange(int(start), int(end)), True
    return None, False


def _setting(section: str, name: str) -> str | None:
    found = re.search(rf"^ +{name}: (\w+)$", section, re.MULTILINE)
    return found[1] if found else None


def _text(config: RunConfig, key: str) -> str | None:
    value = config.get(key)
    return None if value is None else str(value)


def _why_no_median(
    log: TrainingLog, steady: Sequence[LogIteration], is_known: bool, captured_steps: int, limits: LogThresholds
) -> str:
    """Why no unprofiled median can be told; empty if it can."""
    if not log.iterations:
        return "the log holds no iteration line"
    if len(steady) < limits.minimum_steady_count:
        return f"only {len(steady)} of the log's {len(log.iterations)} iteration lines are unprofiled and steady"
    if not is_known and len(steady) < limits.minimum_iterations_per_captured_step * captured_steps:
        return "neither log nor trace says which iterations were profiled (profile_step_start, profile_step_end)"
    return ""


def _step_facts(steady: Sequence[LogIteration], reason: str) -> dict[str, Known]:
    if reason:
        return {
            "unprofiled_step_ns": (None, reason),
            "unprofiled_step_spread_ratio": (None, reason),
            "unprofiled_step_range_ns": (None, reason),
            "unprofiled_steps_count": (len(steady), None),
        }
    lengths = [line.elapsed_ns for line in steady]
    return {
        "unprofiled_step_ns": (round(median(lengths)), None),
        "unprofiled_step_spread_ratio": (max(lengths) / min(lengths), None)
        if min(lengths)
        else (None, "a step of 0 ms"),
        "unprofiled_step_range_ns": (max(lengths) - min(lengths), None),
        "unprofiled_steps_count": (len(steady), None),
    }


def _tflops(log: TrainingLog, steady: Sequence[LogIteration]) -> Known:
    said = [line.tflops_per_gpu for line in steady if line.tflops_per_gpu is not None]
    said = said or [line.tflops_per_gpu for line in log.step_times]
    return (median(said), None) if said else (None, "the log prints no throughput (--log-throughput)")


def _dispatcher_facts(log: TrainingLog) -> dict[str, Known]:
    """Which dispatchers' packages are not there, or not for this GPU; a log that says nothing proves nothing."""
    said = [event.text for event in log.events if event.kind == "dispatcher"]
    lacking = [name for name in _BACKENDS if any(re.search(_REFUSED.format(name), text) for text in said)]

    def about(name: str) -> Known:
        return (True, None) if name in lacking else (None, f"the log does not say whether {name} is there")

    return {
        "log_deepep_unavailable": about("DeepEP"),
        "log_hybridep_unavailable": about("HybridEP"),
        "log_unavailable_dispatchers": (", ".join(lacking) or None, None),
    }


def _memory_facts(log: TrainingLog) -> dict[str, Known]:
    def largest(values: list[int | None], reason: str) -> Known:
        known = [value for value in values if value is not None]
        return (max(known), None) if known else (None, reason)

    no_line = "the log holds no memory line"
    return {
        "log_peak_memory_bytes": largest([one.max_allocated_bytes for one in log.memory], no_line),
        "log_reserved_memory_bytes": largest([one.max_reserved_bytes for one in log.memory], no_line),
        "log_memory_iterations_count": _memory_iterations(log),
        "log_allocator_retries_count": largest(
            [one.allocator_retries_count for one in log.memory],
            "the log does not count them (Megatron-Bridge does, Megatron-LM does not)",
        ),
    }


def _memory_iterations(log: TrainingLog) -> Known:
    """Iterations of this run before its last memory line; the one that the loop started at counts from there."""
    printed = [one.after_iterations_count for one in log.memory if one.after_iterations_count is not None]
    if not printed:
        return None, "no memory line of the log names its iteration"
    started = [one.iteration for one in log.events if one.kind == "training_start" and one.iteration is not None]
    return max(printed) - max((one for one in started if one < max(printed)), default=0), None


def _perturbation(unprofiled: Known, traced_step_ns: int | None, limits: LogThresholds) -> dict[str, Known]:
    length, reason = unprofiled
    if not isinstance(length, int) or not length or not traced_step_ns:
        missing = (None, reason or "no step could be kept")
        return {"profiler_perturbation_ratio": missing, "profiler_excess_ns": missing}
    ratio = traced_step_ns / length
    excess_ns = traced_step_ns - length if ratio >= limits.minimum_perturbation_ratio else 0
    return {"profiler_perturbation_ratio": (ratio, None), "profiler_excess_ns": (excess_ns, None)}


def _other_length(facts: Mapping[str, Known], limits: LogThresholds) -> str:
    """Why the log's steps are not the traced ones, by their length; empty if they may be."""
    ratio = facts["profiler_perturbation_ratio"][0]
    if isinstance(ratio, float) and not limits.minimum_step_ratio <= ratio <= limits.maximum_step_ratio:
        length = facts["unprofiled_step_ns"][0]
        assert isinstance(length, int)
        return f"its steps take {ns_to_ms(length):.1f} ms, the traced one {ratio:.2f} times that"
    return ""


def _summarize(log: TrainingLog, roles: Sequence[Role], facts: Mapping[str, Known]) -> LogSummary:
    counts = Counter(role.value for role in roles)
    theory = log.theoretical_memory

    def whole(name: str) -> int | None:
        value = facts[name][0]
        return value if isinstance(value, int) else None

    tflops = facts["log_tflops_per_gpu"][0]
    return LogSummary(
        files=log.files,
        iterations=len(log.iterations) + log.left_out_count,
        roles={role.value: counts[role.value] for role in Role if counts[role.value]},
        torn_lines=log.torn_lines_count,
        unprofiled_step_ns=whole("unprofiled_step_ns"),
        peak_memory_bytes=whole("log_peak_memory_bytes"),
        reserved_memory_bytes=whole("log_reserved_memory_bytes"),
        allocator_retries=whole("log_allocator_retries_count"),
        theoretical_memory_bytes=None if theory is None else theory.total_bytes or theory.weight_and_optimizer_bytes,
        parameters=log.parameters_count,
        ooms=len(log.ooms),
        events=_count_events(log),
        tflops_per_gpu=tflops if isinstance(tflops, float) else None,
        device_memory_bytes=max((one.device_bytes for one in log.memory if one.device_bytes), default=None),
        unread_files=log.unread,
    )


def _count_events(log: TrainingLog) -> dict[str, int]:
    counted: Counter[str] = Counter()
    for event in log.events:
        counted[event.kind] += event.count
    return dict(sorted(counted.items()))
