"""Timers of the training log: how long each part of an iteration takes, and on which rank it takes longest."""

from __future__ import annotations

from three_walls.facts.fact_rows import LogSummary, SlowRank, TimerSummary
from three_walls.lib.text import format_count, format_ms, format_rank, format_ratio
from three_walls.log.training_log import TimerKind
from three_walls.report.report import Report
from three_walls.report.section import Card, Column, Note, Section, Table

KIND_WORDS = {
    TimerKind.WORK: "a rank's own work",
    TimerKind.EXCHANGE: "exchange, waits included",
    TimerKind.STEP: "whole pass or step",
    TimerKind.OUTSIDE: "outside of steps",
    TimerKind.OTHER: "unknown timer",
}


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
    found = () if log is None else log.timers
    if all(timer.kind is TimerKind.OUTSIDE for timer in found):
        return ()
    return tuple(sorted(found, key=lambda timer: (timer.kind is TimerKind.OUTSIDE, -timer.longest_ns, timer.name)))


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
