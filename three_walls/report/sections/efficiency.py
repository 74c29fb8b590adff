"""Efficiency: what GEMMs, attention and copies reach of the machine's limits, and what the GPU's counters measured."""

from __future__ import annotations

from collections.abc import Callable

from three_walls.facts.fact_rows import HardwareUse
from three_walls.lib.fact import Fact
from three_walls.lib.text import (
    format_bandwidth,
    format_count,
    format_flops,
    format_flops_rate,
    format_known,
    format_moved,
    format_ms,
    format_share,
    shorten,
)
from three_walls.report.charts import WALL_COLOURS, Point, Roofline
from three_walls.report.formats import format_fact, format_gemm
from three_walls.report.report import Report
from three_walls.report.section import MANY_ROWS, ROW, Bar, Block, Chart, Column, Section, Table, Text
from three_walls.tables.buckets import BUCKET_TITLES, Wall

UTILIZATION = {"mfu_fraction": "MFU of unprofiled steps", "mfu_traced_fraction": "MFU of the traced step"}
"""Facts of the table -> what it calls them."""

_KERNEL_LENGTH = 50


def efficiency(report: Report) -> Section:
    """Utilization, GEMMs and attention against the peak, GEMMs by shape, copies."""
    blocks: list[Block] = []
    utilization = known_facts(report, UTILIZATION)
    if utilization:
        blocks.append(tabulate_facts("utilization", "Utilization", UTILIZATION, utilization))
    if report.efficiency:
        blocks.append(_tabulate_roles(report))
    if report.gemm_shapes:
        if plot := _draw_roofline(report):
            title = "GEMMs by shape below the roof of the GPU: a larger dot takes more time"
            blocks.append(Chart("roofline", plot, title))
        blocks.append(_tabulate_shapes(report))
    if report.copies:
        blocks.append(_tabulate_copies(report))
    return Section(
        "efficiency",
        "Efficiency",
        tuple(blocks),
        lead="The traced step, compared with the limits of the machine.",
        link="Efficiency",
        empty="Unknown: the config does not state the model's sizes. Facts below lists the missing settings.",
    )


def known_facts(report: Report, names: dict[str, str]) -> list[Fact]:
    """Those of ``names`` that are known."""
    return [fact for fact in map(report.facts.get, names) if not fact.is_missing]


def tabulate_facts(name: str, title: str, names: dict[str, str], facts: list[Fact]) -> Table:
    """Facts with their values and definitions."""
    columns = (
        Column("Quantity", lambda fact: names[fact.name]),
        Column("Value", ROW, format_fact, is_right=True),
        Column(
            "What it is",
            lambda fact: fact.definition.meaning if fact.definition else "",
            role="muted",
            width="wide",
            in_terminal=False,
        ),
    )
    return Table(name, columns, facts, title)


def _tabulate_roles(report: Report) -> Table:
    colour = WALL_COLOURS[Wall.COMPUTE_HOST]
    columns = (
        Column("Role", "role"),
        Column("Operations", "flops", format_flops),
        Column("Time", "ns", format_ms),
        Column("Achieved", "achieved_flops_per_s", format_flops_rate),
        Column("Peak", "peak_flops_per_s", format_flops_rate),
        Column("Of peak", "fraction", format_share),
        Column(
            "", "fraction", lambda value: Bar(((value, colour),) if value else ()), width="shape", in_terminal=False
        ),
        Column("Note", "note", role="muted", in_terminal=False),
    )
    lead = (
        "Operations are counted from the config. Time is the time in which they run. The peak is the GPU's dense peak "
        "at the run's precision."
    )
    return Table("roles", columns, report.efficiency, "GEMMs and attention", lead)


_BYTES = {"fp32": 4, "tf32": 4, "fp8": 1, "mxfp8": 1, "nvfp4": 0.5625}
"""Bytes of an operand's element; 2 for every other number format. NVFP4 has a byte of scale for 16 elements."""


def _draw_roofline(report: Report) -> Roofline | None:
    """Each shape by its operations per byte, if operands and result cross memory once; None without a peak."""
    peaks = {
        shape.precision or "": float(shape.peak_flops_per_s) for shape in report.gemm_shapes if shape.peak_flops_per_s
    }
    if not peaks:
        return None
    total_ns = sum(shape.ns for shape in report.gemm_shapes) or 1
    points = []
    for shape in report.gemm_shapes:
        m, k, n = (sum(bounds) / 2 for bounds in (shape.m, shape.k, shape.n))
        element = _BYTES.get(shape.precision or "", 2)
        moved = shape.batch * ((m * k + k * n) * element + m * n * max(2, element))
        if not moved or not shape.achieved_flops_per_s:
            continue
        name = f"{format_known(shape.role)}, {shape.direction}"
        rate = format_flops_rate(shape.achieved_flops_per_s)
        intensity = 2 * shape.batch * m * k * n / moved
        detail = f"{format_gemm(shape)}: {rate}, {format_count(intensity)} FLOP per byte, {format_ms(shape.ns)}"
        points.append(
            Point(intensity, shape.achieved_flops_per_s, shape.ns / total_ns, name, detail, shape.precision or "")
        )
    if not points:
        return None
    points.sort(key=lambda point: (-point.weight, point.name, point.detail))
    in_order = tuple(sorted(peaks.items(), key=lambda item: (-item[1], item[0])))
    return Roofline(tuple(points), in_order, report.facts.number("gpu.memory_bytes_per_s"))


def _tabulate_shapes(report: Report) -> Table:
    def name_kernel(name: str) -> Text:
        return Text(shorten(name.removeprefix("void "), _KERNEL_LENGTH), "source", name)

    columns = (
        Column("Weight", "role", format_known),
        Column("Direction", "direction"),
        Column("Shape", ROW, format_gemm, is_right=True),
        Column("Calls", "calls", format_count, sums=True),
        Column("Time", "ns", format_ms, sums=True),
        Column("Achieved", "achieved_flops_per_s", format_flops_rate),
        Column("Format", "precision", format_known, in_terminal=False),
        Column("Of peak", "fraction", format_share),
        Column("Kernel with the most time", "kernel", name_kernel, in_terminal=False),
    )
    known = format_fact(report.facts.get("gemm_shapes_known_fraction"))
    lead = (
        "Shapes are m x k x n, as PyTorch recorded them in NVTX ranges; a dimension is a range where the number of "
        f"tokens differs between calls. They are known for {known} of the GEMM time. The peak is that of the kernels' "
        "number format."
    )
    return Table("gemm_shapes", columns, report.gemm_shapes, "GEMMs by shape", lead)


def _tabulate_copies(report: Report) -> Table:
    columns = (
        Column("Copies", "copy_class", role="code"),
        Column("Calls", "calls", format_count),
        Column("1 MiB and more", "large_calls", format_count),
        Column("Moved", "bytes_moved", format_moved),
        Column("Time", "ns", format_ms),
        Column("Bandwidth", "bytes_per_s", format_bandwidth),
        Column("Limit", "limit_bytes_per_s", format_bandwidth),
    )
    lead = (
        "Bandwidth counts copies of 1 MiB and more only: smaller ones mostly measure the cost of starting a copy. The "
        "limit is the link's, in one direction."
    )
    return Table("copies", columns, report.copies, "Copies between host and device", lead)


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
        _tabulate_counters(report, "bucket", "hardware", "By bucket"),
        _tabulate_counters(report, "module", "hardware_modules", "By module of a layer"),
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


def _tabulate_counters(report: Report, kind: str, name: str, title: str) -> Table | None:
    """The rows of ``kind``, then the step, without counters that were not recorded."""
    rows = [row for row in report.hardware if row.kind == kind]
    if not rows:
        return None
    used = [counter for counter in _COUNTERS if any(getattr(row, counter) is not None for row in report.hardware)]
    columns = (
        Column(kind.capitalize(), _name_owner, format_known),
        Column("Sampled", "ns", format_ms),
        *(
            Column(_COUNTERS[name], _read_where_alone(name), format_share, in_terminal=not name.startswith("pcie"))
            for name in used
        ),
        Column("In own samples", "alone_fraction", format_share),
    )
    step = [row for row in report.hardware if row.kind == "step"]
    return Table(name, columns, (*rows, *step), title, terminal_rows=MANY_ROWS, emphasis=lambda row: row.kind == "step")


def _name_owner(row: HardwareUse) -> str:
    return "the step" if row.kind == "step" else BUCKET_TITLES.get(row.name, row.name)


def _read_where_alone(counter: str) -> Callable[[HardwareUse], float | None]:
    """The value of ``counter``; None where all samples describe something else too."""
    return lambda row: getattr(row, counter) if row.alone_fraction else None
