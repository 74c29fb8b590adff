"""Memory of one GPU: estimate and measurement against the capacity, what a snapshot of the allocator shows, and the
forward work that the backward pass repeats to save memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from three_walls.lib.text import format_count, format_gib, format_ms, format_share
from three_walls.memory_snapshot.snapshot import CATEGORIES, MemorySnapshot
from three_walls.report.charts import FREE_COLOUR, GIBIBYTES, MEMORY_COLOURS, BarRow, Bars, Lines, Piece, Series
from three_walls.report.report import Report
from three_walls.report.section import Block, Chart, Column, Legend, Note, Section, Swatch, Table
from three_walls.report.sections.efficiency import known_facts, tabulate_facts

MEMORY = {
    "memory_parameters_bytes": "Parameters",
    "memory_gradients_bytes": "Gradients",
    "memory_optimizer_bytes": "Optimizer",
    "memory_activations_bytes": "Activations",
    "memory_estimated_peak_bytes": "Estimated peak",
    "log_peak_memory_bytes": "Peak of allocated memory, by the log",
    "log_reserved_memory_bytes": "Peak of reserved memory, by the log",
    "memory_peak_fraction": "Measured peak, of device memory",
    "memory_headroom_bytes": "Headroom",
    "driver_peak_bytes": "Allocated by the driver (cudaMalloc)",
    "gpu.memory_bytes": "Device memory",
}
"""Facts of the table -> what it calls them."""

_PARTS = ("parameters", "gradients", "optimizer", "activations")


def memory(report: Report) -> Section | None:
    """Bars against the capacity, the facts, then a snapshot by category and by stack."""
    blocks: list[Block] = []
    facts = known_facts(report, MEMORY)
    if len(facts) > 1:  # more than the size of the device
        if plot := _draw(report):
            blocks += [Chart("memory", plot, "Memory of one GPU against its capacity"), _explain(plot)]
        if headroom := report.facts.number("memory_headroom_bytes"):
            capacity = report.facts.number("gpu.memory_bytes")
            share = f", {format_share(headroom / capacity)} of it" if capacity else ""
            blocks.append(
                Note(f"{format_gib(headroom)} of {format_gib(capacity)} are free at the peak{share}.", role="strong")
            )
        blocks.append(tabulate_facts("memory_per_gpu", "", MEMORY, facts))
    if report.memory_snapshot is not None:
        blocks += _show_snapshot(report.memory_snapshot, report.facts.number("gpu.memory_bytes"))
    if not blocks:
        return None
    lead = (
        "Estimates are from the config, for the fullest pipeline stage; measured values are from the log and the trace."
        if facts
        else ""
    )
    return Section("memory", "Memory", tuple(blocks), lead=lead, link="Memory")


def _draw(report: Report) -> Bars | None:
    """The estimate by part, and what was measured, each on the scale of the device's memory; None without that."""
    number = report.facts.number
    capacity = number("gpu.memory_bytes")
    if not capacity:
        return None
    parts = [(part, number(f"memory_{part}_bytes")) for part in _PARTS]
    log_peak, log_reserved = (number(f"log_{name}_memory_bytes") for name in ("peak", "reserved"))
    measured = [
        ("Measured by the log", "allocated", log_peak, log_reserved),
        ("Allocated by the driver", "driver", number("driver_peak_bytes"), None),
    ]
    if snapshot := report.memory_snapshot:
        measured.append(
            ("Peak of the snapshot", "allocated", snapshot.peak_allocated_bytes, snapshot.peak_reserved_bytes)
        )
    rows = []
    if any(value for _, value in parts):
        rows.append(_draw_row("Estimated", [(part, value or 0) for part, value in parts], capacity))
    for label, part, peak, reserved in measured:
        if peak:
            more = max(0.0, (reserved or 0) - peak)
            rows.append(_draw_row(label, [(part, peak), ("reserved", more)], capacity))
    return Bars(tuple(rows), max(capacity, *(row.end for row in rows)), GIBIBYTES) if rows else None


def _explain(plot: Bars) -> Legend:
    """What the colours are, in the order of their first appearance."""
    colours = {piece.name: piece.colour for row in plot.rows for piece in row.pieces}
    return Legend(tuple((Swatch(colour), "", name) for name, colour in colours.items() if colour != FREE_COLOUR))


def _draw_row(label: str, parts: list[tuple[str, float]], capacity: float) -> BarRow:
    """One bar: ``parts`` from the left, then what is free."""
    pieces, start = [], 0.0
    for name, size in parts:
        if size > 0:
            colour, label_of_part = MEMORY_COLOURS[name]
            pieces.append(Piece(start, size, colour, label_of_part, format_gib(size), label_of_part))
            start += size
    if capacity > start:
        free = capacity - start
        pieces.append(Piece(start, free, FREE_COLOUR, "free", format_gib(free), "free"))
    return BarRow(label, tuple(pieces), f"{format_gib(start)} of {format_gib(capacity)}")


def _show_snapshot(snapshot: MemorySnapshot, capacity: float | None) -> list[Block]:
    """Memory by category, then the stacks that allocated most."""
    shares = (
        Column("Allocated by", "category", role="code"),
        Column("Memory", "bytes", format_gib, sums=True),
        Column("Share", "fraction", format_share, sums=True),
        Column("What it is", lambda row: CATEGORIES[row.category], role="muted", width="wide", in_terminal=False),
    )
    sites = (
        Column(
            "Stack, innermost first", lambda row: " < ".join(row.stack) or "no stack", role="code long", width="wide"
        ),
        Column("Memory", "bytes", format_gib),
        Column("Blocks", "count", format_count),
        Column("Category", "category", role="code"),
    )
    moment = "when the snapshot was taken" if snapshot.peak_allocated_bytes is None else "at the peak"
    lead = f"{snapshot.path_name}, device {snapshot.device}: allocated memory {moment}."
    return [
        Note("Memory snapshot", role="heading"),
        *_draw_history(snapshot, capacity),
        *map(Note, _describe(snapshot)),
        Table("memory", shares, snapshot.shares, lead=lead),
        Table("memory_stacks", sites, snapshot.sites, "Largest stacks", terminal_rows=10, is_compact=True),
    ]


def _draw_history(snapshot: MemorySnapshot, capacity: float | None) -> Iterator[Chart]:
    """Reserved and allocated memory, event by event; nothing without a recorded history."""
    if len(snapshot.history) < 2:
        return
    series = tuple(
        Series(name, MEMORY_COLOURS[name][0], tuple(getattr(moment, f"{name}_bytes") for moment in snapshot.history))
        for name in ("reserved", "allocated")
    )
    events = tuple(float(moment.events) for moment in snapshot.history)
    last = format_count(snapshot.history[-1].events)
    plot = Lines(events, series, GIBIBYTES, f"{last} events of the allocator", capacity, "memory of the device")
    yield Chart("memory_history", plot, "Memory over the recorded history of the allocator")


def _describe(snapshot: MemorySnapshot) -> Iterator[str]:
    if snapshot.no_peak_reason is not None:
        yield f"Peak unknown: {snapshot.no_peak_reason}. The tables show the moment of the snapshot."
    else:
        allocated, reserved = format_gib(snapshot.peak_allocated_bytes), format_gib(snapshot.reserved_at_peak_bytes)
        yield (
            f"At the peak: {allocated} allocated of {reserved} reserved, so "
            f"{format_share(snapshot.fragmentation_fraction)} of the reserved memory was not in use. Most reserved at "
            f"any time: {format_gib(snapshot.peak_reserved_bytes)}."
        )
    yield (
        f"At the snapshot: {format_gib(snapshot.allocated_bytes)} allocated of {format_gib(snapshot.reserved_bytes)} "
        f"reserved; largest free block {format_gib(snapshot.largest_free_block_bytes)}."
    )
    for failure in snapshot.failures:
        free = format_gib(failure.device_free_bytes)
        yield f"Out of memory: {format_gib(failure.requested_bytes)} requested, {free} free on the device."
    if snapshot.release_count:
        times = format_count(snapshot.release_count)
        yield f"Memory was returned to the driver {times} times, by allocation retries or empty_cache."


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
        "whole layer. Selective: a part of it.",
        link="Recompute",
        in_menu=True,
    )
