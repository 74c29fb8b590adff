"""Capture health: what the traces hold, which files they are, which kernels no pattern knows."""

from __future__ import annotations

from three_walls.lib.text import format_count, format_known, format_ms
from three_walls.report.report import Report
from three_walls.report.section import Cell, Column, Note, Section, Table, Terminal, Text


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
    given = [
        Note(f"{names.path_name} (SHA-256 {names.sha256[:12]}) says what kernels are, before the program's names.")
        for names in (report.kernel_names,)
        if names
    ]
    last = (
        (Table("unclassified", kernels, report.unclassified, title, lead, is_compact=True),)
        if report.unclassified
        else (Note(title, role="heading"), Note("None.", role="empty"))
    )
    return Section(
        "capture",
        "Capture health",
        (
            Table("capabilities", capabilities, sorted(report.capabilities.items())),
            Table("inputs", inputs, report.inputs, "Inputs"),
            *given,
            *last,
        ),
        link="Capture",
        is_folded=True,
        terminal=Terminal.NEVER,
    )


def _describe_state(state: str) -> Cell:
    return Text("yes", "badge good") if state == "yes" else (Text("no", "badge warn"), state)
