"""Host work: where the threads that launch work wait for the device, where they are outside of CUDA calls, and what
CUDA graphs launch for them."""

from __future__ import annotations

from three_walls.export.step_detail_rows import HostWorkRow
from three_walls.lib.text import UNKNOWN, count_of, format_count, format_ms, format_share, show_control_characters
from three_walls.report.report import Report
from three_walls.report.section import ROW, Block, Column, Note, Section, Table, Text
from three_walls.report.sections.kernels import describe_part

RECORD_RANGES = (
    "No NVTX range names the code. Record ranges: capture with -t cuda,nvtx, and have PyTorch write its operators "
    "(--profile of Megatron-LM; profiling.use_nsys_profiler and profiling.record_shapes of Megatron-Bridge; "
    "torch.autograd.profiler.emit_nvtx() elsewhere)."
)


def host_work(report: Report) -> Section | None:
    """Host time outside of CUDA calls, what starves the GPU first."""
    rows = report.host_work
    if not rows:
        return None
    columns = (
        Column("Next launch", ROW, _name),
        Column("NVTX range", ROW, _name_code),
        Column("Thread", "thread", str, role="muted"),
        Column("Starves the GPU", "starved_ns", format_ms, sums=True),
        Column("Of the step", lambda row: report.fraction_of_step(row.starved_ns), format_share),
        Column("Device idle", "idle_ns", format_ms, sums=True),
        Column("Host time", "ns", format_ms, sums=True),
        Column("Ranges", "calls", lambda calls: format_count(calls) if calls else "", unit="count", in_terminal=False),
    )
    starved_ns = sum(row.starved_ns for row in rows)
    blocks: list[Block] = [Table("host_work", columns, rows)]
    if not any(row.range or row.operator for row in rows):
        blocks.insert(0, Note(RECORD_RANGES, role="warning"))
    return Section(
        "host_work",
        "Host work",
        tuple(blocks),
        lead="Threads that launch work, outside of CUDA calls: Python, PyTorch's dispatch, data loading, locks. "
        f"Starves the GPU ({format_ms(starved_ns)} in all): no compute kernel ran because the thread had not launched "
        "the next one. Device idle: nothing ran at all. Next launch: the part of the model whose operation it launched "
        "next.",
        link="Host work",
    )


def _name(row: HostWorkRow) -> Text | str:
    if row.places > 1:
        return Text(f"{count_of(row.places, 'other place')}", "muted")
    return describe_part(row.module, row.direction, "")


def _name_code(row: HostWorkRow) -> Text | str:
    if row.places > 1:
        return ""
    code = " > ".join(word for word in (row.range, row.operator) if word)
    return Text(show_control_characters(code), "code") if code else Text("outside of ranges", "muted")


def synchronizations(report: Report) -> Section | None:
    """Where the host waits for the device, and the step without it."""
    found = report.synchronizations
    if found is None or not found.sites:
        return None
    columns = (
        Column("Site", "name", lambda name: Text(show_control_characters(name), "code")),
        Column("Waits in", "function", role="code", in_terminal=False),
        Column("Next launch", ROW, lambda row: describe_part(row.module, row.direction, "") if row.module else ""),
        Column("Thread", "thread", str, role="muted"),
        Column("Calls", "calls", format_count, sums=True),
        Column("Blocked", "blocked_ns", format_ms, sums=True),
        Column("Drained after", "drained_ns", format_ms, sums=True),
        Column("Gain without", "gain_ns", format_ms),
        Column("Of the step", lambda row: _fraction(row.gain_ns, found.step_ns), format_share),
    )
    notes = [
        f"{count_of(found.calls, 'call')} per step wait for the device: {format_ms(found.blocked_ns)} of host time in "
        f"them (blocked), and then {format_ms(found.drained_ns)} in which the GPU idles until the thread's next kernel "
        "starts (drained after)."
    ]
    if found.gain_ns is not None:
        of_all = format_ms(found.gain_ns)
        notes.append(f"Gain without: how much shorter the step is, by replay, if they return at once; of all {of_all}.")
    if found.other_sites:
        notes.append(f"Left out: {count_of(found.other_sites, 'site')} with less time.")
    return Section(
        "synchronizations",
        "Host synchronizations",
        (Table("synchronizations", columns, found.sites, terminal_rows=5),),
        lead=" ".join(notes),
        link="Syncs",
    )


def _fraction(gain_ns: int | None, step_ns: int | None) -> float | None:
    return None if gain_ns is None or not step_ns else max(0, gain_ns) / step_ns


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
