"""A memory snapshot of PyTorch's allocator: how much was allocated at the peak, and by what."""

from __future__ import annotations

from collections.abc import Iterator

from three_walls.model.memory_snapshot import CATEGORIES, MemorySnapshot
from three_walls.model.report import Report
from three_walls.report.formats import format_count, format_gib, format_share
from three_walls.report.section import Block, Column, Note, Section, Table


def memory(report: Report) -> Section | None:
    """Memory by category, then the stacks that allocated most."""
    snapshot = report.memory_snapshot
    if snapshot is None:
        return None
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
    blocks: tuple[Block, ...] = (
        *map(Note, _describe(snapshot)),
        Table("memory", shares, snapshot.shares),
        Table("memory_stacks", sites, snapshot.sites, "Largest stacks", terminal_rows=10, is_compact=True),
    )
    lead = f"{snapshot.path_name}, device {snapshot.device}: allocated memory {moment}."
    return Section("memory", "Memory snapshot", blocks, lead=lead, link="Memory")


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
