"""Which rows of an export belong to some of its steps: a copy of these alone is a shorter capture of the same run."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from three_walls.lib.errors import UsageError
from three_walls.step.ranks.steps_to_read import UnknownStepsError, find_step_times
from three_walls.trace.nsys_export import NsysExport
from three_walls.trace.read_tables import API, EVENTS, KERNELS, MEMORY_USAGE, THREADS_PER_PROCESS
from three_walls.trace.spans import Span

MARGIN_FRACTION = 0.03
"""Of a step: what is kept before the first step and after the last one. The update that ends the step before and the
work that follows the last one show that both were captured whole."""


def find_span(path: Path, export: NsysExport, steps: Span) -> Span:
    """When ``steps`` of ``export``, the one at ``path``, ran: in its ns, from the first launch of what ran in them.

    ``steps``: their numbers in a report, from the first to before the last. Raises UsageError where the capture does
    not hold all of them whole.
    """
    wanted = range(*steps)
    try:
        ranks = [rank.steps for rank in find_step_times(path, None, with_shared_gpus=True).ranks]
    except UnknownStepsError:
        raise UsageError(f"{path}: expected a capture that shows its steps, to choose among them") from None
    whole = set.intersection(*(set(rank.filter("kept")["step"]) for rank in ranks)) if ranks else set()
    if not wanted or not set(wanted) <= whole:
        holds = ", ".join(map(str, sorted(whole))) or "none"
        raise UsageError(f"{path}: expected steps that it holds whole ({holds}), found {steps[0]}-{steps[1] - 1}")
    times = pl.concat(ranks).filter(pl.col("step").is_in(wanted))
    begin_ns, until_ns = times.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    margin_ns = round(MARGIN_FRACTION * (until_ns - begin_ns) / len(wanted))
    begin_ns, until_ns = begin_ns - margin_ns, until_ns + margin_ns
    return min(begin_ns, _find_first_launch(export, begin_ns, margin_ns)), until_ns


def _find_first_launch(export: NsysExport, begin_ns: int, margin_ns: int) -> int:
    """When the first of the kernels that start around ``begin_ns`` was launched; that itself where no call is recorded.

    The host of a step is ahead of its GPU.
    """
    if not export.has(API, "start", "correlationId") or not export.has(KERNELS, "start", "correlationId"):
        return begin_ns
    kernels = f'SELECT correlationId FROM "{KERNELS}" WHERE start BETWEEN ? AND ?'
    query = f'SELECT min(start) FROM "{API}" WHERE correlationId IN ({kernels})'
    first = export.rows(query, (begin_ns, begin_ns + 2 * margin_ns))[0][0]
    return begin_ns if first is None else int(first)


def condition_of(export: NsysExport, table: str, span: Span) -> str:
    """Of which rows of ``original.table`` the copy consists: of those open at some time of ``span``, or without a time.

    Allocations count whenever they were made, recorded events with their calls, and calls with the kernels that they
    launched: those in the queue when the first step begins hold its launches up.
    """
    begin_ns, until_ns = span
    columns = export.columns[table]
    if table == EVENTS and export.has(API, "start", "end", "correlationId"):
        return f'correlationId IN (SELECT correlationId FROM original."{API}" WHERE {condition_of(export, API, span)})'
    if table == MEMORY_USAGE:
        return "1"
    start = next((name for name in ("start", "timestamp") if name in columns), None)
    end = "end" if "end" in columns else start
    if start is None:
        return "1"
    is_open = f'coalesce("{start}" <= {until_ns:d}, 1) AND coalesce("{end}" >= {begin_ns:d}, 1)'
    has_launches = export.has(API, "correlationId", "globalTid") and export.has(KERNELS, "correlationId", "globalPid")
    if table != API or not has_launches:
        return is_open
    kernels = f'SELECT correlationId, globalPid FROM original."{KERNELS}" WHERE {condition_of(export, KERNELS, span)}'
    process = f"globalTid / {THREADS_PER_PROCESS} * {THREADS_PER_PROCESS}"
    return f"({is_open}) OR (correlationId, {process}) IN ({kernels})"
