"""The training log in a line or two, for the terminal and the page; its timers as a table for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from three_walls.model.report import LogSummary, ProgressSummary, Report, TimerSummary
from three_walls.model.training_log import TimerKind
from three_walls.report.formats import format_count, format_gib, format_ms, format_ratio, format_tflops
from three_walls.report.log_views import KIND_WORDS, order_timers, spread_of
from three_walls.report.text_parts import heading, indent, indent_table, make_table, plain

_MOST_TIMERS = 12


def describe_log(log: LogSummary) -> str:
    """``Log: unprofiled step 377 ms (2 of 10 iterations; 4 warm-up, 4 profiled); peak memory 29.9 GiB``."""
    others = ", ".join(f"{count} {role}" for role, count in log.roles.items() if role != "steady")
    steady = f"{format_count(log.roles.get('steady', 0))} of {format_count(log.iterations)} iterations"
    parts = [f"Log: unprofiled step {format_ms(log.unprofiled_step_ns)} ({'; '.join(filter(None, (steady, others)))})"]
    if log.peak_memory_bytes is not None:
        parts.append(
            f"peak memory {format_gib(log.peak_memory_bytes)}, reserved {format_gib(log.reserved_memory_bytes)}"
        )
    if log.device_memory_bytes is not None:
        parts.append(f"device memory in use by everything {format_gib(log.device_memory_bytes)}")
    if log.allocator_retries:
        parts.append(f"{format_count(log.allocator_retries)} allocations tried again")
    if log.ooms:
        parts.append(f"memory exhausted {format_count(log.ooms)} times")
    if log.torn_lines:
        parts.append(f"{format_count(log.torn_lines)} torn lines left out")
    return "; ".join(parts)


def describe_progress(log: LogSummary) -> str:
    """The throughput of iterations, of the job and of all jobs beside each other; empty without a progress file.

    ``Progress file: 160.2 TFLOP/s per GPU in steady iterations; 120.3 TFLOP/s from the start of the last job ...``.
    """
    progress = log.progress
    if progress is None:
        return ""
    parts = [f"{format_tflops(log.tflops_per_gpu)} per GPU in steady iterations"] if log.tflops_per_gpu else []
    parts += _describe_throughput(progress)
    parts.append(f"{_count(progress.restarts, 'restart')} with {format_count(progress.gpus)} GPUs")
    if progress.last_iteration is not None:
        parts.append(f"last checkpoint at iteration {format_count(progress.last_iteration)}")
    if progress.other_gpus:
        parts.append(f"other jobs in the file had {', '.join(map(str, progress.other_gpus))} GPUs")
    return f"Progress file: {'; '.join(parts)}"


def _describe_throughput(progress: ProgressSummary) -> list[str]:
    if progress.job_tflops_per_gpu is None:
        return ["no checkpoint of these jobs, so no throughput"]
    job = format_tflops(progress.job_tflops_per_gpu)
    all_jobs = format_tflops(progress.cumulative_tflops_per_gpu)
    return [
        f"{job} per GPU since the last job's start (start-up, evaluation and checkpoints count)",
        f"{all_jobs} since the first job's start (time between jobs counts too)",
    ]


def _count(number: int, word: str) -> str:
    return f"{format_count(number)} {word}{'' if number == 1 else 's'}"


def show_log_timers(report: Report) -> Iterator[RenderableType]:
    timers = [one for one in order_timers(report.log) if one.kind is not TimerKind.OUTSIDE]
    if not timers:
        return
    yield heading("Timers of the log", "per iteration, unprofiled steady ones; medians of their prints")
    table = make_table("timer", ">shortest", ">longest", ">spread", "slowest", "fastest", ">prints", "what it is")
    for one in timers[:_MOST_TIMERS]:
        table.add_row(plain(one.name), *_describe_timer(one), KIND_WORDS[one.kind])
    yield indent_table(table)
    rest = len(timers) - _MOST_TIMERS
    if rest > 0:
        yield indent(plain(f"{_count(rest, 'shorter timer')} in report.json and report.html", "dim"))


def _describe_timer(timer: TimerSummary) -> tuple[str, ...]:
    ranks = ("" if rank is None else f"rank {rank}" for rank in (timer.slowest_rank, timer.fastest_rank))
    lengths = (format_ms(timer.shortest_ns), format_ms(timer.longest_ns), format_ratio(spread_of(timer)))
    return (*lengths, *ranks, format_count(timer.prints))
