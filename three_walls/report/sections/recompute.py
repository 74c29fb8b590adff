"""Recompute: forward work that the backward pass repeats."""

from __future__ import annotations

from three_walls.lib.text import format_count, format_ms
from three_walls.report.report import Report
from three_walls.report.section import Column, Section, Table


def recompute(report: Report) -> Section | None:
    """One row per recomputed layer."""
    if not report.recompute_layers:
        return None
    columns = (
        Column("Layer", lambda row: "all together" if row.layer is None else str(row.layer)),
        Column("Kind", "kind"),
        Column("Time", "ns", format_ms, sums=True),
        Column("Replays", "calls", format_count, sums=True),
    )
    total = format_ms(sum(row.ns for row in report.recompute_layers))
    return Section(
        "recompute",
        "Recompute",
        (Table("recompute", columns, report.recompute_layers, is_compact=True),),
        lead=f"The backward pass of the representative step spends {total} on recomputing forward work. Full: the "
        "whole layer. Selective: its core attention only.",
        link="Recompute",
        in_menu=True,
    )
