"""CUDA graphs: how many kernels they launch, and which they leave out."""

from __future__ import annotations

from three_walls.lib.text import UNKNOWN, format_count, format_ms, format_share
from three_walls.report.report import Report
from three_walls.report.section import Column, Section, Table


def graphs(report: Report) -> Section | None:
    """Coverage of the representative step, and what is launched outside graphs."""
    coverage = report.graph_coverage
    if coverage is None:
        return None
    columns = (
        Column("Outside graphs", "category", role="code"),
        Column("Kernels", "calls", format_count, sums=True),
        Column("Launch calls", "host_ns", format_ms),
    )
    if coverage.reason:
        lead = f"Share of the kernels inside graphs: {UNKNOWN} ({coverage.reason})."
    else:
        total = format_count(coverage.kernels_inside + coverage.kernels_outside)
        lead = (
            f"{format_share(coverage.fraction)} of the representative step's kernels run inside CUDA graphs: "
            f"{format_count(coverage.kernels_inside)} of {total}."
        )
    table = Table("graphs", columns, coverage.outside, terminal_rows=5, is_compact=True)
    return Section("graphs", "CUDA graphs", (table,), lead=lead, link="CUDA graphs", in_menu=True)
