"""The training log's summary, as report.json holds it."""

from __future__ import annotations

from typing import Any

from three_walls.model.report import LogSummary, ProgressSummary, SlowRank, TimerSummary
from three_walls.model.units import known_ns_to_ms, ns_to_ms

Json = dict[str, Any]


def log_as_json(log: LogSummary) -> Json:
    """The object ``log``; the same numbers with their reasons are facts."""
    length_ns = log.unprofiled_step_ns
    return {
        "files": list(log.files),
        "unread_files": list(log.unread_files),
        "iterations": log.iterations,
        "steady_count": log.roles.get("steady", 0),
        "roles": dict(log.roles),
        "torn_lines": log.torn_lines,
        "unprofiled_step_ms": known_ns_to_ms(length_ns),
        "tflops_per_gpu": log.tflops_per_gpu,
        "peak_memory_bytes": log.peak_memory_bytes,
        "reserved_memory_bytes": log.reserved_memory_bytes,
        "device_memory_bytes": log.device_memory_bytes,
        "allocator_retries": log.allocator_retries,
        "theoretical_memory_bytes": log.theoretical_memory_bytes,
        "parameters": log.parameters,
        "ooms": log.ooms,
        "events": dict(log.events),
        "timers": [_timer(one) for one in log.timers],
        "slow_ranks": [_slow_rank(one) for one in log.slow_ranks],
        "progress": None if log.progress is None else _progress(log.progress),
    }


def _timer(timer: TimerSummary) -> Json:
    return {
        "name": timer.name,
        "kind": timer.kind,
        "prints": timer.prints,
        "shortest_ms": known_ns_to_ms(timer.shortest_ns),
        "longest_ms": ns_to_ms(timer.longest_ns),
        "fastest_rank": timer.fastest_rank,
        "slowest_rank": timer.slowest_rank,
    }


def _slow_rank(one: SlowRank) -> Json:
    return {
        "rank": one.rank,
        "timer": one.timer,
        "ms": ns_to_ms(one.ns),
        "fastest_rank": one.fastest_rank,
        "fastest_ms": ns_to_ms(one.fastest_ns),
        "typical_ms": ns_to_ms(one.typical_ns),
        "prints": one.prints,
        "of_prints": one.of_prints,
        "stage": one.stage,
    }


def _progress(progress: ProgressSummary) -> Json:
    return {
        "gpus": progress.gpus,
        "jobs": progress.jobs,
        "restarts": progress.restarts,
        "saves": progress.saves,
        "last_iteration": progress.last_iteration,
        "tokens": progress.tokens,
        "job_tflops_per_gpu": progress.job_tflops_per_gpu,
        "cumulative_tflops_per_gpu": progress.cumulative_tflops_per_gpu,
        "other_gpus": list(progress.other_gpus),
    }
