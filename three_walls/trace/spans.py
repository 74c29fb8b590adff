"""The spans of time of which a long capture is read: those of some steps, and what is known of the other steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from three_walls.trace.schemas import AnyTable

Span = tuple[int, int]
"""From a number to before another one: instants in ns, or ids."""

Device = tuple[int, int]
"""What a rank is within a capture: its process (globalPid) and device."""


@dataclass(frozen=True, slots=True)
class StepsToRead:
    """Which steps are read of a rank."""

    steps: AnyTable
    """Every step of the rank as step_tables.STEPS, with numbers that mean the same on all ranks. Where NVTX ranges
    mark them, the times are those of the host."""
    are_marked: bool
    """Whether NVTX ranges mark the steps, not optimizer phases."""
    attributed: frozenset[int]
    """Numbers of the steps that are to be attributed."""
    read: frozenset[int]
    """Numbers of these and of the steps next to them: all that they launched is read."""
    spans: tuple[Span, ...]
    """When all this ran: in order, without overlaps."""
    begins: Span
    """The earliest start and the earliest end of a kernel of the rank in the whole capture."""


@dataclass(frozen=True, slots=True)
class SampledSteps:
    """Which steps of every rank of a surveyed run are attributed, as the first rank shows them."""

    numbers: frozenset[int]
    are_marked: bool
    """Whether NVTX ranges mark the steps, so that a number means the same on all ranks."""
    spans: tuple[Span, ...] | None
    """When the steps ran, in UTC; None where the capture does not state when it began."""
    all_count: int
    """How many steps could be."""


def list_spans(to_read: Mapping[Device, StepsToRead]) -> tuple[Span, ...]:
    """When the steps ran that are read of any rank of a capture: in order, without overlaps; empty where all are."""
    return join_spans(span for read in to_read.values() for span in read.spans)


def join_spans(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The times in any of ``spans``: in order, without overlaps."""
    joined: list[Span] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return tuple(joined)


def condition_of(spans: Sequence[Span]) -> str:
    """SQLite's condition for rows whose ``start`` lies in one of ``spans``: a search, which few comparisons decide."""
    bounds = [bound for span in spans for bound in span]

    def search(first: int, after: int) -> str:
        if first == after:
            return str(first % 2)  # after as many bounds, every other time within a span
        middle = (first + after) // 2
        return f"CASE WHEN start < {bounds[middle]:d} THEN {search(first, middle)} ELSE {search(middle + 1, after)} END"

    return f"start IS NOT NULL AND {search(0, len(bounds))}"


def are_within(spans: Sequence[Span], numbers: pl.Series) -> pl.Series:
    """Which of ``numbers`` lie in one of ``spans``."""
    bounds = pl.Series([bound for span in spans for bound in span], dtype=pl.Int64)
    return (bounds.search_sorted(numbers.fill_null(-(2**63)), "right") % 2 == 1).alias("is_within")
