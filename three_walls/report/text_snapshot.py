"""A memory snapshot for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from three_walls.model.memory_snapshot import MemorySnapshot
from three_walls.model.report import Report
from three_walls.report.formats import format_count, format_gib, format_share, shorten
from three_walls.report.text_parts import heading, indent, indent_table, make_table, plain

_STACK_COLUMNS = 52
_FRAMES = 2
_LEAST_FRACTION = 0.001
"""Smaller categories are in report.json."""


def show_memory_snapshot(report: Report) -> Iterator[RenderableType]:
    """Nothing where no snapshot was given."""
    snapshot = report.memory_snapshot
    if snapshot is None:
        return
    moment = "at the snapshot" if snapshot.peak_allocated_bytes is None else "at the peak"
    yield heading("Memory", f"{snapshot.path_name}, device {snapshot.device}; {moment}")
    for line in _describe(snapshot):
        yield indent(line)
    table = make_table("allocated by", ">memory", ">share")
    for share in snapshot.shares:
        if share.fraction >= _LEAST_FRACTION:
            table.add_row(share.category, format_gib(share.bytes), format_share(share.fraction))
    yield indent_table(table)
    sites = make_table("largest stacks", ">memory", ">blocks", "category")
    for site in snapshot.sites:
        stack = shorten(" < ".join(site.stack[:_FRAMES]) or "no stack", _STACK_COLUMNS)
        sites.add_row(plain(stack), format_gib(site.bytes), format_count(site.count), site.category)
    yield indent_table(sites)


def _describe(snapshot: MemorySnapshot) -> Iterator[str]:
    if snapshot.because_no_peak is not None:
        yield f"Peak unknown: {snapshot.because_no_peak}"
    else:
        peak, held = format_gib(snapshot.peak_allocated_bytes), format_gib(snapshot.reserved_at_peak_bytes)
        yield (
            f"Peak: {peak} allocated of {held} reserved, {format_share(snapshot.fragmentation_fraction)} of that "
            f"not in use; at most {format_gib(snapshot.peak_reserved_bytes)} reserved"
        )
    yield (
        f"At the snapshot: {format_gib(snapshot.allocated_bytes)} allocated of {format_gib(snapshot.reserved_bytes)} "
        f"reserved; largest free block {format_gib(snapshot.largest_free_block_bytes)}"
    )
    for failure in snapshot.failures:
        free = format_gib(failure.device_free_bytes)
        yield f"Out of memory: {format_gib(failure.requested_bytes)} asked for, {free} free on the device"
    if snapshot.release_count:
        yield (
            f"Memory was given back to the driver {format_count(snapshot.release_count)} times: "
            "allocations that were tried again, or empty_cache"
        )
