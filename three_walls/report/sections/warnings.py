"""What limits the claims of the report."""

from __future__ import annotations

from three_walls.report.report import Report
from three_walls.report.section import Column, Section, Table, Terminal


def warnings(report: Report) -> Section | None:
    """Every warning, above the numbers that it limits."""
    if not report.warnings:
        return None
    columns = (Column("Warning", "code", role="code"), Column("Meaning", "message"))
    table = Table(
        "warnings",
        columns,
        report.warnings,
        terminal_rows=len(report.warnings),
        anchor=lambda row: f"warning-{row.code}",
    )
    return Section(
        "warnings",
        "Warnings",
        (table,),
        lead="They limit what the numbers below can claim.",
        terminal=Terminal.ALWAYS,
        role="warnings",
        is_folded=True,
    )
