"""Steps: the one that the report speaks of, which were kept, and what the training log adds: its step times, its
timers, and its progress file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from three_walls.advice.finding import PlanStep
from three_walls.facts.fact_rows import LogSummary, ProgressSummary, SlowRank, TimerSummary
from three_walls.lib.text import (
    count_of,
    format_count,
    format_gib,
    format_ms,
    format_ms_range,
    format_rank,
    format_ratio,
    format_tflops,
)
from three_walls.log.training_log import TimerKind
from three_walls.report.report import Report
from three_walls.report.section import ROW, Block, Card, Cell, Column, Fold, Note, PageOnly, Section, Table, Text
from three_walls.step.step_rows import RankStep


@dataclass(frozen=True, slots=True)
class StepBase:
    """The step now: the unprofiled one, where a log or a replay gives it. Head, plan and predictions are all of it.

    The traced step is longer, because the profiler slows every launch. Only what is by nature of the trace (the budget,
    the gaps) is of that one, and its heading states so.
    """

    now_ns: int
    source: str
    """``log``, ``replay`` or ``trace``."""
    traced_ns: int

    @property
    def note(self) -> str:
        """Where the step is from, and the traced one next to it."""
        traced = f"traced: {format_ms(self.traced_ns)}"
        return {
            "log": f"by the log; {traced}",
            "replay": f"estimated without the profiler; {traced}",
            "trace": "traced, so it includes the profiler",
        }[self.source]

    @property
    def name(self) -> str:
        """``the step by the log``, to follow a time of it."""
        return {
            "log": "the unprofiled step by the log",
            "replay": "the step as estimated without the profiler",
            "trace": "the traced step, which includes the profiler",
        }[self.source]


def find_step_base(report: Report) -> StepBase | None:
    """The base of ``report``; None without a step."""
    verdict, log = report.verdict, report.log
    traced_ns = verdict.step_ns
    if not traced_ns:
        return None
    logged_ns = None if log is None else log.unprofiled_step_ns
    if logged_ns:
        return StepBase(logged_ns, "log", traced_ns)
    if verdict.replayed_step_ns is not None:
        return StepBase(verdict.replayed_step_ns, "replay", traced_ns)
    return StepBase(traced_ns, "trace", traced_ns)


def step_after(step: PlanStep) -> tuple[int, int | None, int]:
    """The step after an entry and all before it: lowest, likely, highest."""
    return step.step_after_ns.low, step.step_after_likely_ns, step.step_after_ns.high


KIND_WORDS = {
    TimerKind.WORK: "a rank's own work",
    TimerKind.EXCHANGE: "exchange, waits included",
    TimerKind.STEP: "whole pass or step",
    TimerKind.OUTSIDE: "outside of steps",
    TimerKind.OTHER: "unknown timer",
}


class StepRow(NamedTuple):
    rank: int
    step: RankStep
    is_median: bool


def steps(report: Report) -> Section:
    """Every step of every rank, with why it was dropped."""
    summary = report.step
    blocks: list[Block] = [Note(note, role="muted") for note in (summary.note,) if note]
    if report.log is not None:
        blocks.append(PageOnly(tuple(map(Note, describe_log_and_progress(report.log)))))
    if summary.dropped:
        reasons = (Column("Rank", "rank"), Column("Step", "index"), Column("Why", "reason", width="wide"))
        table = Table("dropped_steps", reasons, summary.dropped, terminal_rows=0, is_compact=True)
        blocks.append(Fold(f"Dropped steps ({len(summary.dropped)})", (table,)))
    rows = [StepRow(rank.rank, step, step.index == rank.median_index) for rank in report.ranks for step in rank.steps]
    if rows:
        columns = (
            Column("Rank", "rank"),
            Column("Step", "step.index"),
            Column("Length", lambda row: row.step.end_ns - row.step.start_ns, format_ms),
            Column("Kept", ROW, _describe_kept),
            Column("Why", "step.reason", role="muted", width="wide"),
        )
        table = Table("steps", columns, rows, terminal_rows=0, is_compact=True)
        blocks.append(Fold("All steps of all ranks", (table,)))
    length = ""
    if summary.median_ns is not None:
        length = f" It takes {format_ms(summary.median_ns)}."
        if summary.kept > 1:
            bounds = format_ms_range(summary.min_ns, summary.max_ns)
            length = f" Median of the kept steps: {format_ms(summary.median_ns)} ({bounds})."
    return Section(
        "steps",
        "Steps",
        tuple(blocks),
        lead=f"{count_of(summary.kept, 'step')} kept, {format_count(len(summary.dropped))} dropped.{length} Boundaries "
        f"are from {summary.source}.",
        link="Steps",
        is_folded=True,
    )


def describe_log(log: LogSummary) -> str:
    """``Log: unprofiled step 377 ms (median of 2 of 10 iterations; left out: 8 warm-up); peak memory 29.9 GiB``."""
    if log.mismatch:
        return f"Log: not used, because it is of another run: {log.mismatch}"
    if not any((log.iterations, log.peak_memory_bytes, log.events, log.ooms, log.timers, log.progress)):
        return f"Log: {', '.join(log.files)} holds no iteration line of Megatron-LM or Megatron-Bridge"
    by_count = sorted(log.roles.items(), key=lambda item: (-item[1], item[0]))
    others = ", ".join(f"{count} {role}" for role, count in by_count if role != "steady")
    steady = f"{format_count(log.roles.get('steady', 0))} of {format_count(log.iterations)} iterations"
    steady = f"{steady} are steady" if log.unprofiled_step_ns is None else f"median of {steady}"
    if not log.iterations:
        steady = "no iteration line; the last rank prints them, so give its log too"
    left_out = f"; left out: {others}" if others else ""
    parts = [f"Log: unprofiled step {format_ms(log.unprofiled_step_ns)} ({steady}{left_out})"]
    if log.peak_memory_bytes is not None:
        peak, reserved = format_gib(log.peak_memory_bytes), format_gib(log.reserved_memory_bytes)
        parts.append(f"peak memory {peak}, reserved {reserved}")
    elif log.iterations:
        parts.append("peak memory unknown (no memory line; rank 0 prints them, so give its log too)")
    if log.device_memory_bytes is not None:
        parts.append(f"device memory in use by all processes {format_gib(log.device_memory_bytes)}")
    if log.allocator_retries:
        parts.append(f"{format_count(log.allocator_retries)} allocation retries")
    if log.ooms:
        parts.append(f"out of memory {format_count(log.ooms)} times")
    if log.torn_lines:
        parts.append(f"{format_count(log.torn_lines)} torn lines not read")
    return "; ".join(parts)


def describe_log_and_progress(log: LogSummary) -> tuple[str, ...]:
    """The same as a sentence, and one on the progress file where there is one."""
    return tuple(f"{line}." for line in (describe_log(log), describe_progress(log)) if line)


def describe_progress(log: LogSummary) -> str:
    """The throughput of iterations, of the job and of all jobs; empty without a progress file.

    ``Progress file: 160.2 TFLOP/s per GPU in steady iterations; 120.3 TFLOP/s from the start of the last job ...``.
    """
    progress = log.progress
    if progress is None:
        return ""
    parts = [f"{format_tflops(log.tflops_per_gpu)} per GPU in steady iterations"] if log.tflops_per_gpu else []
    parts += _describe_throughput(progress)
    parts.append(f"{count_of(progress.restarts, 'restart')} with {format_count(progress.gpus)} GPUs")
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


def _describe_kept(row: StepRow) -> Cell:
    kept = "kept" if row.step.kept else "dropped"
    return (kept, Text("median", "badge")) if row.is_median else kept


def timers(report: Report) -> Section | None:
    """Ranks that the timers show to be slow, then every timer."""
    rows = order_timers(report.log)
    if not rows or report.log is None:
        return None
    columns = (
        Column("Timer", "name", role="code"),
        Column("Shortest", "shortest_ns", format_ms),
        Column("Longest", "longest_ns", format_ms),
        Column("Spread", spread_of, format_ratio),
        Column("Slowest", "slowest_rank", format_rank),
        Column("Fastest", "fastest_rank", format_rank),
        Column("Prints", "prints", format_count),
        Column("What it is", lambda timer: KIND_WORDS[timer.kind], role="muted"),
    )
    return Section(
        "timers",
        "Timers of the log",
        (
            *(_describe_slow_rank(slow) for slow in report.log.slow_ranks),
            Table("timers", columns, rows, terminal_rows=12),
        ),
        lead="Megatron's own timers, per iteration: medians over the prints after unprofiled steady iterations, for "
        "the fastest and the slowest rank where the log names ranks. A long time means a slow rank only in the rank's "
        "own work; in an exchange it mostly waits. Timers of level 1 and 2 add barriers, which lengthen the step.",
        link="Timers",
        in_menu=True,
    )


def order_timers(log: LogSummary | None) -> tuple[TimerSummary, ...]:
    """Timers of steps, the longest first, then those outside of steps; none where no timer is of steps."""
    timers = () if log is None else log.timers
    if all(timer.kind is TimerKind.OUTSIDE for timer in timers):
        return ()
    return tuple(sorted(timers, key=lambda timer: (timer.kind is TimerKind.OUTSIDE, -timer.longest_ns, timer.name)))


def spread_of(timer: TimerSummary) -> float | None:
    """Longest over shortest; None where the shortest is not known, or rounds to nothing."""
    return timer.longest_ns / timer.shortest_ns if timer.shortest_ns else None


def _describe_slow_rank(slow: SlowRank) -> Card:
    ratio = format_ratio(slow.ns / slow.fastest_ns if slow.fastest_ns else None)
    stage = "" if slow.stage is None else f" of pipeline stage {slow.stage}"
    title = (
        f"Rank {slow.rank} takes {format_ms(slow.ns)} in {slow.timer}, {ratio} as long as the fastest rank{stage} "
        f"(rank {slow.fastest_rank}, {format_ms(slow.fastest_ns)})"
    )
    prints = f"{format_count(slow.prints)} of {format_count(slow.of_prints)} prints"
    evidence = f"The typical rank takes {format_ms(slow.typical_ns)}. Rank {slow.rank} stood out in {prints}."
    return Card(title=title, blocks=(Note(evidence, role="muted"),), role="callout")
