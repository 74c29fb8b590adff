"""What limits the claims of a report: its warnings, and what the capture holds; and those of a comparison."""

from __future__ import annotations

from three_walls.lib.text import format_count, format_known, format_ms
from three_walls.report.comparison import Pair, Severity, Unlikeness
from three_walls.report.report import Report
from three_walls.report.section import ROW, Block, Cell, Column, Note, Section, Table, Terminal, Text


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
        on_paper=True,
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


def capture(report: Report) -> Section:
    """Capabilities, inputs, unclassified kernels."""
    capabilities = (
        Column("The capture holds", lambda row: row[0]),
        Column("", lambda row: row[1], _describe_state, width="wide"),
    )
    inputs = (
        Column("File", "path_name", role="code"),
        Column("SHA-256", "sha256", lambda value: Text(value[:12], "code", value)),
        Column("Nsight Systems", "nsys_version", format_known),
        Column("Schema", "schema", format_known),
    )
    kernels = (
        Column("Kernel", "name", role="code long", width="wide"),
        Column("Time, summed", "kernel_ns", format_ms),
        Column("Launches", "count", format_count),
    )
    title = "Unclassified kernels"
    lead = "Their names match no pattern; their time is in the bucket unclassified. --kernel-names says what they are."
    blocks: list[Block] = [
        Table("capabilities", capabilities, sorted(report.capabilities.items())),
        Table("inputs", inputs, report.inputs, "Inputs"),
    ]
    if names := report.kernel_names:
        source = f"{names.path_name} (SHA-256 {names.sha256[:12]})"
        blocks.append(Note(f"{source} says what kernels are, before the program's names."))
    if report.unclassified:
        blocks.append(Table("unclassified", kernels, report.unclassified, title, lead, is_compact=True))
    else:
        blocks += [Note(title, role="heading"), Note("None.", role="empty")]
    return Section(
        "capture",
        "Capture health",
        tuple(blocks),
        link="Capture",
        is_folded=True,
        terminal=Terminal.NEVER,
    )


def _describe_state(state: str) -> Cell:
    return Text("yes", "badge good") if state == "yes" else (Text("no", "badge warn"), state)
