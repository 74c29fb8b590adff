"""What the hardware counters of the GPU measured, by bucket and by module of a layer."""

from __future__ import annotations

from collections.abc import Callable

from three_walls.facts.fact_rows import HardwareUse
from three_walls.lib.text import format_known, format_ms, format_share
from three_walls.report.report import Report
from three_walls.report.section import MANY_ROWS, Column, Section, Table
from three_walls.tables.buckets import BUCKET_TITLES

_COUNTERS = {
    "tensor_active": "Tensor pipes",
    "sm_active": "SMs",
    "memory_read": "Memory read",
    "memory_write": "Memory write",
    "nvlink_receive": "NVLink received",
    "nvlink_send": "NVLink sent",
    "pcie_receive": "PCIe received",
    "pcie_send": "PCIe sent",
}


def hardware(report: Report) -> Section | None:
    """A table for the buckets and one for the modules; None where no counters were recorded."""
    if not report.hardware and report.capabilities.get("gpu_metrics") != "yes":
        return None
    tables = (
        _tabulate(report, "bucket", "hardware", "By bucket"),
        _tabulate(report, "module", "hardware_modules", "By module of a layer"),
    )
    reason = report.facts.get("sm_active_fraction").missing_reason
    return Section(
        "hardware",
        "What the hardware measured",
        tuple(table for table in tables if table is not None),
        lead="Averages of the GPU's sampled counters, as fractions of the peak, over the time that each bucket or "
        "module owns, whatever ran at the same time. The last column is the part of that time in samples which it owns "
        "throughout: where it is small, the averages are mostly those of what ran before and after, and without any "
        "such sample none is shown. An SM that waits for memory or for a peer counts as active; NVLink includes its "
        "protocol.",
        link="Hardware",
        empty=f"Unknown: {reason}." if reason else "",
        in_menu=True,
    )


def _tabulate(report: Report, kind: str, name: str, title: str) -> Table | None:
    """The rows of ``kind``, then the step, without counters that were not recorded."""
    rows = [row for row in report.hardware if row.kind == kind]
    if not rows:
        return None
    counters = {
        counter: head
        for counter, head in _COUNTERS.items()
        if any(getattr(row, counter) is not None for row in report.hardware)
    }
    columns = (
        Column(kind.capitalize(), _name, format_known),
        Column("Sampled", "ns", format_ms),
        *(
            Column(head, _read_where_alone(counter), format_share, in_terminal=not counter.startswith("pcie"))
            for counter, head in counters.items()
        ),
        Column("In own samples", "alone_fraction", format_share),
    )
    step = [row for row in report.hardware if row.kind == "step"]
    return Table(name, columns, (*rows, *step), title, terminal_rows=MANY_ROWS, emphasis=lambda row: row.kind == "step")


def _name(row: HardwareUse) -> str:
    return "the step" if row.kind == "step" else BUCKET_TITLES.get(row.name, row.name)


def _read_where_alone(counter: str) -> Callable[[HardwareUse], float | None]:
    """The value of ``counter``; None where all samples describe something else too."""
    return lambda row: getattr(row, counter) if row.alone_fraction else None
