"""Overlap slowdown: how much longer GEMMs take while communication runs concurrently."""

from __future__ import annotations

from three_walls.facts.fact_rows import OverlapSlowdown
from three_walls.lib.text import format_count, format_ms, format_ratio
from three_walls.report.report import Report
from three_walls.report.section import Column, Note, Section, Table


def overlap(report: Report) -> Section:
    """GEMMs that ran both alone and concurrently with communication, the largest slowdown first."""
    rows = order_slowdowns(report)
    columns = (
        Column("Kernel", "kernel", role="code", width="wide"),
        Column("Grid", "grid", role="muted"),
        Column("Alone", "alone_ns", format_ms),
        Column("Concurrent", "concurrent_ns", format_ms),
        Column("Slower", lambda row: row.concurrent_ns / row.alone_ns if row.alone_ns else None, format_ratio),
        Column("Calls alone", "calls_alone", format_count, in_terminal=False),
        Column("Calls concurrent", "concurrent_calls", format_count),
        Column("Per step", "slowdown_ns", format_ms, sums=True),
    )
    total = format_ms(sum(row.slowdown_ns for row in rows))
    blocks = (
        Table("overlap", columns, rows, terminal_rows=3),
        Note(
            "Alone and Concurrent are median durations. Per step is their difference times the concurrent calls.",
            role="muted",
        ),
    )
    return Section(
        "overlap",
        "Overlap slowdown",
        blocks if rows else (),
        lead="Communication takes SMs and memory bandwidth from GEMMs that run at the same time. GEMMs of the same "
        f"name and grid take {total} longer per step concurrently with communication than alone.",
        link="Overlap",
        in_menu=True,
        empty="Unknown, or none: no GEMM ran both alone and concurrently with communication.",
    )


def order_slowdowns(report: Report) -> tuple[OverlapSlowdown, ...]:
    """The most time per step first."""
    return tuple(sorted(report.overlap_slowdown, key=lambda row: (-row.slowdown_ns, row.kernel, row.grid)))
