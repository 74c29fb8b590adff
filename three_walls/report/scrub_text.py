"""What scrubbing left out, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from three_walls.model.scrubbed import Scrubbed
from three_walls.report.formats import format_count, show_control_characters

_MOST_NAMES = 12


def describe_scrubbed(export: Scrubbed) -> Iterator[str]:
    """Lines: what went (names and counts), how sizes changed, what was searched for."""
    yield f"Wrote {export.target} ({format_count(export.target_bytes)} bytes, from {format_count(export.source_bytes)})"
    yield f"  tables left out: {_counts(export.tables)}"
    yield f"  columns left out: {len(export.columns)} ({_names(export.columns)})"
    yield f"  rows left out of {_counts(export.pairs)}"
    yield f"  strings left out: {format_count(export.strings)}, {export.blocks} of them environments of whole processes"
    yield f"  environment variables left out: {len(export.variables)} ({_names(export.variables)})"
    yield f"  words of the command line left out: {export.arguments}"
    yield f"  texts replaced: {_counts(export.texts)}"
    if export.host is not None:
        yield f"  the host is called {export.host} now"
    yield f"  searched its bytes for {export.searched} removed values: none is left"
    yield "  still in it: times (also the date), sizes, names of kernels, calls and ranges, settings of the run"


def _counts(counted: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({format_count(count)})" for name, count in counted.items()) or "none"


def _names(names: tuple[str, ...]) -> str:
    shown = ", ".join(show_control_characters(name) for name in names[:_MOST_NAMES])
    return f"{shown}, ..." if len(names) > _MOST_NAMES else shown or "none"
