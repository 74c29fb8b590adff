"""What limits the claims of a report, or of a comparison."""

from __future__ import annotations

from three_walls.report.comparison import Pair, Severity, Unlikeness
from three_walls.report.report import Report
from three_walls.report.section import ROW, Cell, Column, Section, Table, Terminal, Text


def warnings(report: Report) -> Section | None:
    """Every warning, above the numbers that it limits."""
    if not report.warnings:
        return None
    columns = (Column("Warning", "code", role="code"), Column("Meaning", "message"))
    rows = report.warnings
    table = Table("warnings", columns, rows, terminal_rows=len(rows), anchor=lambda row: f"warning-{row.code}")
    return Section(
        "warnings",
        "Warnings",
        (table,),
        lead="They limit what the numbers below can claim.",
        terminal=Terminal.ALWAYS,
        role="warnings",
        is_folded=True,
    )


def unlike(pair: Pair) -> Section | None:
    """Why the two runs of a comparison may not be comparable."""
    if not pair.unlike:
        return None
    columns = (Column("Warning", ROW, _mark_unlike), Column("Meaning", "message", width="wide"))
    table = Table("unlike", columns, pair.unlike, terminal_rows=len(pair.unlike))
    return Section("unlike", "What limits the comparison", (table,), terminal=Terminal.ALWAYS, role="warnings")


def _mark_unlike(unlike: Unlikeness) -> Cell:
    code = Text(unlike.code, "code")
    return (code, Text("forced", "badge warn")) if unlike.severity is Severity.REFUSAL else code
