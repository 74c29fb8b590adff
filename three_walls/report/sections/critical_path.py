"""The critical path: what the length of the step hangs on, and how much later everything else may end."""

from __future__ import annotations

from three_walls.facts.fact_rows import CriticalPathRow
from three_walls.lib.text import format_count, format_ms, format_share
from three_walls.report.report import Report
from three_walls.report.section import Block, Column, Section, Table
from three_walls.tables.buckets import BUCKET_TITLES

UNKNOWN_MODULE = "unknown"

_CATEGORIES = {**BUCKET_TITLES, "host": "host (CUDA calls and between)", "gap": "launch latency and gaps"}


def critical_path(report: Report) -> Section | None:
    """Time on the critical path by category and by module, with the slack of operations that are not on it."""
    path = report.critical_path
    if path is None:
        return None
    by_category = Column("Category", "name", lambda name: _CATEGORIES.get(name, name))
    blocks: list[Block] = [_tabulate("critical_path", "By what runs", by_category, path.by_category)]
    if any(row.name != UNKNOWN_MODULE for row in path.by_module):
        by_module = Column("Module", "name")
        blocks.append(_tabulate("critical_path_modules", "By module of the model", by_module, path.by_module))
    return Section(
        "critical-path",
        "Critical path",
        tuple(blocks),
        lead="What the length of the step hangs on: the longest chain of dependencies in its replay "
        f"({format_ms(path.step_ns)} on rank {path.rank}), without what the profiler is taken to have added. Making "
        "anything else faster does not shorten the step. Slack: how much later the operations that are not on the path "
        "may end before the step grows, by their median.",
        link="Path",
    )


def _tabulate(name: str, title: str, first: Column, rows: tuple[CriticalPathRow, ...]) -> Table:
    columns = (
        first,
        Column("On the path", "ns", format_ms, sums=True),
        Column("Share", "fraction", format_share, sums=True),
        Column("Operations", "operations_on_path", format_count, sums=True),
        Column("Of", "operations", format_count, sums=True),
        Column("Slack of the rest", "median_slack_ns", lambda ns: "" if ns is None else format_ms(ns)),
    )
    return Table(name, columns, rows, title=title, is_compact=True)
