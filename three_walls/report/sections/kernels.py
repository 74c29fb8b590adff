"""What ran in the representative step: kernels by bucket, of a run or of two; and on the host what launches them,
where it waits for the device, and what CUDA graphs launch for it.
"""

from __future__ import annotations

from bisect import bisect_right

from three_walls.export.step_detail_rows import LEAST_FRAME_FRACTION, HostWorkRow, KernelRow
from three_walls.lib.text import (
    UNKNOWN,
    count_of,
    format_count,
    format_ms,
    format_ms_change,
    format_share,
    format_us,
    shorten,
    show_control_characters,
)
from three_walls.report.charts import BUCKET_COLOURS, MILLISECONDS, BarRow, Bars, Piece
from three_walls.report.comparison import KernelReconciliation, Pair
from three_walls.report.report import Report
from three_walls.report.section import ROW, Block, Chart, Column, Fold, Note, PageOnly, Section, Swatch, Table, Text
from three_walls.report.sections.budget import BUCKET
from three_walls.tables.buckets import BUCKET_TITLES

_NAME_LENGTH = 52
_FLAME_COLOURS = ("#60a5fa", "#fb923c", "#4ade80", "#c084fc", "#facc15", "#2dd4bf", "#f472b6")
_PLACE_LENGTH = 48
_SHOWN_KERNELS = 12
_STATES = {
    "new": "new",
    "gone": "gone",
    "small_before": "before: small or none",
    "small_after": "after: small or none",
}


def kernels(report: Report) -> Section | None:
    """Kernels by bucket, the bucket with the most kernel time first."""
    if not report.kernels:
        return None
    peak = Column(
        "Of peak", "fraction_of_peak", lambda value: "" if value is None else format_share(value), unit="fraction"
    )
    has_peak = any(row.fraction_of_peak is not None for row in report.kernels)
    columns = (
        Column("Kernel", ROW, _name),
        Column("Bucket", "bucket", lambda bucket: (Swatch(BUCKET_COLOURS[bucket]), BUCKET_TITLES[bucket])),
        Column("Time", "ns", format_ms, sums=True),
        Column("Of step", lambda row: report.fraction_of_step(row.ns), format_share),
        Column("Calls", "calls", format_count, sums=True),
        Column("Mean", "mean_ns", format_us),
        Column("Most from", ROW, _name_places, in_terminal=False),
        Column("Launch", lambda row: None if row.launch_ns is None else round(row.launch_ns / row.calls), format_us),
        *((peak,) if has_peak else ()),
        Column("Fastest", "fastest_ns", format_us, in_terminal=False),
        Column("95% take at most", "p95_ns", format_us, in_terminal=False),
        Column("Grid x block", ROW, _write_launch, role="muted", in_terminal=False),
    )
    lead = (
        "Kernels, copies and fills that start in the representative step. Time is the sum of their durations: where "
        "several run at once it is more than the time that the bucket owns in the budget. All rows of a bucket sum to "
        "its kernel time. Launch: mean host time of the launch call; nodes of CUDA graphs have none. Of peak: "
        "GEMMs whose shapes were recorded."
    )
    return Section("kernels", "Kernels", (Table("kernels", columns, report.kernels),), lead=lead, link="Kernels")


def _name(row: KernelRow) -> Text:
    if row.is_rest:
        return Text(row.name, "muted", "The kernels of this bucket that take least time, summed")
    return Text(show_control_characters(shorten(row.name, _NAME_LENGTH)), "code", row.full_name)


def _write_launch(row: KernelRow) -> str:
    if row.grid is None:
        return ""
    sides = [f"({', '.join(map(str, size))})" for size in (row.grid, row.block) if size is not None]
    more = f" + {count_of(row.variants - 1, 'variant')}" if row.variants > 1 else ""
    return " x ".join(sides) + more


def _name_places(row: KernelRow) -> Text:
    """The place that launches most of it; the other ones on hover."""
    if not any(place.module or place.operator for place in row.places):
        return Text(UNKNOWN)
    names = [describe_part(place.module, place.direction, place.operator) for place in row.places]
    lines = [f"{name}: {format_ms(place.ns)}" for name, place in zip(names, row.places, strict=True)]
    rest_ns = row.ns - sum(place.ns for place in row.places)
    if rest_ns:
        lines.append(f"{count_of(row.other_places, 'other place')}: {format_ms(rest_ns)}")
    others = len(row.places) - 1 + row.other_places
    more = f" + {others}" if others else ""
    return Text(f"{shorten(names[0], _PLACE_LENGTH)}{more}", title="\n".join(lines))


def describe_part(module: str | None, direction: str | None, code: str) -> str:
    """A place of the model and of the code: ``experts backward: aten::mm``."""
    words = (direction, "outside of layers") if module == "outside" else (module, direction)
    part = " ".join(word for word in words if word)
    return show_control_characters(": ".join(word for word in (part, code) if word) or UNKNOWN)


def changed_kernels(pair: Pair) -> Section | None:
    """Kernels of two runs, and the way from their durations to the buckets."""
    kernels = pair.kernels
    if kernels is None:
        return None
    columns = (
        BUCKET,
        Column("Kernel", ROW, lambda row: row.name or "all other kernels", role="code"),
        Column("", "status", lambda status: Text(_STATES[status], "badge") if status in _STATES else ""),
        Column("Calls before", "before_calls", format_count, in_terminal=False),
        Column("Calls after", "after_calls", format_count, in_terminal=False),
        Column("Before", "before_ns", format_ms, sums=True),
        Column("After", "after_ns", format_ms, sums=True),
        Column("Change", "change_ns", format_ms_change, sums=True),
    )
    blocks: list[Block] = [
        Table("kernels", columns, kernels.rows, terminal_rows=_SHOWN_KERNELS),
        _reconcile(kernels),
    ]
    return Section(
        "kernels",
        "Kernels",
        tuple(blocks),
        lead="Sums of kernel durations in the representative steps as traced.",
        link="Kernels",
    )


def _reconcile(kernels: KernelReconciliation) -> Table:
    columns = (
        Column("Bucket", "bucket", role="code"),
        Column("Change of its kernels", "kernel_change_ns", format_ms_change, sums=True),
        Column("of that overlapped", "overlap_change_ns", format_ms_change, sums=True),
        Column("Change of the bucket", "owned_change_ns", format_ms_change, sums=True),
    )
    return Table(
        "kernel_buckets",
        columns,
        kernels.buckets,
        title="From kernels to buckets",
        lead="Kernels may run concurrently, and a bucket owns only the time in which no earlier bucket is active.",
        is_compact=True,
    )


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
        Column("Next launch", ROW, _name_next_launch),
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
    blocks += _draw_frames(report)
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


def _draw_frames(report: Report) -> list[Block]:
    """A flame graph per thread: a bar per depth, each piece below the one around it."""
    frames, blocks = report.host_frames, list[Block]()
    for thread in dict.fromkeys(frame.thread for frame in frames):
        own = [frame for frame in frames if frame.thread == thread]
        parts = [frame.start_ns for frame in own if frame.depth == 0]
        rows = []
        for depth in range(max(frame.depth for frame in own) + 1):
            pieces = [
                Piece(
                    frame.start_ns,
                    frame.ns,
                    _FLAME_COLOURS[(bisect_right(parts, frame.start_ns) - 1) % len(_FLAME_COLOURS)],
                    show_control_characters(frame.name),
                    f"{format_ms(frame.ns)}, {format_ms(frame.self_ns)} of it in no range inside, "
                    f"{count_of(frame.calls, 'range')}",
                    show_control_characters(shorten(frame.name.rpartition(": ")[2], _NAME_LENGTH)),
                    opacity=1.0 - 0.06 * depth,
                )
                for frame in own
                if frame.depth == depth
            ]
            rows.append(BarRow("next launch" if depth == 0 else "", tuple(pieces)))
        bars = Bars(tuple(rows), max(row.end for row in rows), MILLISECONDS)
        blocks.append(Chart(f"host_flame_{thread}", bars, f"Thread {thread} by its NVTX ranges, calls included"))
    if not blocks:
        return []
    columns = (
        Column("Thread", "thread", str, role="muted"),
        Column("Range", ROW, lambda frame: Text(f"{'. ' * frame.depth}{show_control_characters(frame.name)}", "code")),
        Column("Host time", "ns", format_ms),
        Column("In no range inside", "self_ns", format_ms),
        Column("Ranges", "calls", format_count),
    )
    lead = (
        "The uppermost bar is what the thread launches next. Below it are the ranges around that, merged over layers "
        "and micro-batches. Blank below a bar is time in no range: Python, or waiting for another "
        f"thread. Ranges of less than {LEAST_FRAME_FRACTION:.1%} of the step are left out."
    )
    return [
        PageOnly((Note("Where the host's time is", role="heading"), Note(lead, role="lead"), *blocks)),
        PageOnly((Fold("Every range of the picture", (Table("host_frames", columns, frames, is_compact=True),)),)),
    ]


def _name_next_launch(row: HostWorkRow) -> Text | str:
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
