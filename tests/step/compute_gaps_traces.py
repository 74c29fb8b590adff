"""Traces with one gap per step, and the causes that an analysis gives it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from trace_builder import ADAM, GEMM, TraceBuilder

from tests.measured import measure
from three_walls.step.step_rows import RankReport
from three_walls.tables.buckets import BUCKET_BY_NAME, Group

US = 1_000
STEP = 1_000 * US
BUSY = 300 * US
"""Every step computes until here, and again from NEXT to its end."""
NEXT = 800 * US

Causes = dict[tuple[str, str], int]


def three_steps(next_launched: int | None, stream: int = 7) -> TraceBuilder:
    """Per step a GEMM, a gap of 500 us, and an update launched at ``next_launched`` on ``stream``."""
    builder = TraceBuilder()
    for at in (1, 1 + STEP, 1 + 2 * STEP):
        builder.kernel(GEMM, at, at + BUSY, launched=max(at - 5 * US, 0))
        launched = None if next_launched is None else at + next_launched
        builder.kernel(ADAM, at + NEXT, at + STEP, launched=launched, stream=stream)
    return builder


def begins() -> tuple[int, ...]:
    return (1, 1 + STEP, 1 + 2 * STEP)


def causes(tmp_path: Path, builder: TraceBuilder, without: tuple[str, ...] = ()) -> Causes:
    """Causes in the only kept step, the second, in us."""
    report = measure(builder.write(tmp_path / "trace.sqlite", without=without))
    rank = report.ranks[0]
    assert [(step.start_ns, step.end_ns) for step in rank.steps if step.kept] == [(1 + STEP, 1 + 2 * STEP)]
    assert sum(gap.ns for gap in rank.gap_causes) == absent_ns(rank)
    found: Counter[tuple[str, str]] = Counter()
    for gap in rank.gap_causes:  # the places of host work are tested in tests/export/test_host_work.py
        found[gap.cause, "" if gap.cause == "starved_nothing_visible" else gap.detail] += gap.ns
    return {key: round(ns / US) for key, ns in found.items() if ns >= US}


def absent_ns(rank: RankReport) -> int:
    return sum(ns for name, ns in rank.budget.items() if BUCKET_BY_NAME[name].group is not Group.COMPUTE)
