"""Of a long capture only some steps are read: which, and what is known of the others."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from three_walls.model.record import dataclass

Span = tuple[int, int]
"""From an instant to before another one, in ns."""


@dataclass(frozen=True, slots=True)
class StepsToRead:
    """Which steps are read of a capture of a single rank."""

    steps: pl.DataFrame
    """Every step of the capture as timeline.steps.STEPS, all of rank index 0. Where NVTX ranges mark them, the times
    are those of the host."""
    are_marked: bool
    """Whether NVTX ranges mark the steps, not optimizer phases."""
    attributed: frozenset[int]
    """Numbers of the steps that are to be attributed."""
    read: frozenset[int]
    """Numbers of these and of the steps next to them: all that they launched is read."""
    spans: tuple[Span, ...]
    """When all this ran: in order, and apart."""
    begins: Span
    """The earliest start and the earliest end of a kernel in the whole capture."""


def condition_of(spans: Sequence[Span]) -> str:
    """SQLite's condition for rows whose ``start`` lies in one of ``spans``: a search, which few comparisons decide."""
    bounds = [bound for span in spans for bound in span]

    def search(first: int, after: int) -> str:
        if first == after:
            return str(first % 2)  # after as many bounds, every other time within a span
        middle = (first + after) // 2
        return f"CASE WHEN start < {bounds[middle]:d} THEN {search(first, middle)} ELSE {search(middle + 1, after)} END"

    return f"start IS NOT NULL AND {search(0, len(bounds))}"


def are_within(spans: Sequence[Span], starts_ns: pl.Series) -> pl.Series:
    """Which of ``starts_ns`` lie in one of ``spans``."""
    bounds = pl.Series([bound for span in spans for bound in span], dtype=pl.Int64)
    return (bounds.search_sorted(starts_ns.fill_null(-(2**63)), "right") % 2 == 1).alias("is_within")
