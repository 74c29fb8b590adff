"""The kernel table: what ran in the representative step, by bucket; of a run, or of two."""

from __future__ import annotations

from three_walls.export.step_detail_rows import KernelRow
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
from three_walls.report.comparison import KernelReconciliation, Pair
from three_walls.report.palette import BUCKET_COLOURS
from three_walls.report.report import Report
from three_walls.report.section import ROW, Block, Column, Section, Swatch, Table, Text
from three_walls.report.sections.budget import BUCKET
from three_walls.tables.buckets import BUCKET_TITLES

_NAME_LENGTH = 52
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
        Column("95% below", "p95_ns", format_us, in_terminal=False),
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
