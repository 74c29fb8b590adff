"""Gaps without compute: what the device waited for while no compute kernel ran."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from three_walls.lib.text import format_ms, format_share
from three_walls.report.charts import draw_whole
from three_walls.report.report import Report
from three_walls.report.section import Amounts, Block, Chart, Column, Fold, PageOnly, Section, Swatch, Table, Text
from three_walls.step.step_rows import RankReport

MOST_DETAILS = 5
"""So many details are listed per cause; the rest is summed."""


class CauseLook(NamedTuple):
    label: str
    colour: str
    meaning: str


_LATE = "The next compute kernel was not launched yet; its thread"

CAUSES: dict[str, CauseLook] = {
    "blocking": CauseLook(
        "waiting for an operation", "#d97706", "The next compute kernel had to wait for an operation that was running."
    ),
    "profiler": CauseLook("profiler", "#dfe3e8", "The profiler delayed the thread that launches the next kernel."),
    "paused": CauseLook("host paused", "#0f172a", f"{_LATE} did nothing, for far longer than it usually does there."),
    "starved_synchronizing": CauseLook("host synchronizing", "#4b5563", f"{_LATE} waited for the device."),
    "starved_allocating": CauseLook("host allocating", "#7c6a9c", f"{_LATE} allocated memory or loaded code."),
    "starved_copying": CauseLook("host launching copies", "#a78bda", f"{_LATE} launched copies or fills."),
    "starved_launching": CauseLook("host launching other work", "#5b7fa6", f"{_LATE} launched other work."),
    "starved_nothing_visible": CauseLook(
        "host busy outside CUDA", "#94a3b8", f"{_LATE} made no CUDA call: Python, data loading, locks."
    ),
    "dependency_stalled": CauseLook(
        "waiting for an event or graph",
        "#b45f5f",
        "The next compute kernel was launched, but an event or a graph held it; what that waited for is not known.",
    ),
    "launch_latency": CauseLook(
        "launched but not started",
        "#5fb3c9",
        "The next compute kernel was launched and did not start yet, for no visible cause.",
    ),
    "unexplained": CauseLook("unexplained", "#c3cad4", "No launch was recorded, or nothing visible held the kernel."),
}
"""Cause of a gap -> how it is shown. A cause that is not listed is shown by its name."""

_FREE_COLOURS = ("#0d9488", "#8b5cf6", "#c2577a", "#7c9a3e", "#2f6ec4", "#a0765b")
_GREY = "#a9b2bf"


@dataclass(frozen=True, slots=True)
class CauseRow:
    """All time of one cause on one rank; ``details`` are its named parts, longest first."""

    cause: str
    ns: int
    fraction: float | None
    """Of the rank's median step."""
    details: tuple[tuple[str, int], ...]


def gaps(report: Report) -> Section:
    """The median step of the representative rank, by cause; then every rank."""
    rank = report.representative_rank
    by_rank = {other.rank: sum_causes(other) for other in report.ranks}
    rows = () if rank is None else by_rank[rank.rank]
    colours = colour_causes(dict.fromkeys(row.cause for part in (rows, *by_rank.values()) for row in part))
    blocks: list[Block] = []
    plot = draw_whole([(label_cause(row.cause), row.ns, colours[row.cause]) for row in rows])
    if plot is not None:
        blocks = [Chart("gaps", plot, "Time without a compute kernel, a segment per cause"), _tabulate(rows, colours)]
    if colours and len(report.ranks) > 1:
        times = [(number, {row.cause: row.ns for row in part}) for number, part in by_rank.items()]
        columns = (
            Column("Rank", lambda row: row[0]),
            *(Column(label_cause(cause), _time_of(cause), format_ms) for cause in colours),
        )
        table = Table("gaps_of_ranks", columns, times, terminal_rows=0, is_compact=True)
        blocks.append(PageOnly((Fold("Every rank", (table,)),)))
    total_ns = sum(row.ns for row in rows)
    return Section(
        "gaps",
        "Gaps without compute",
        tuple(blocks),
        lead=""
        if rank is None
        else f"In its median step, rank {rank.rank} runs no compute kernel for {format_ms(total_ns)}. What the GPU was "
        "waiting for:",
        link="Gaps",
        empty="Unknown, or none: no time without a compute kernel was explained.",
    )


def sum_causes(rank: RankReport) -> tuple[CauseRow, ...]:
    """Causes of ``rank``, one row per cause, longest first."""
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for gap in rank.gap_causes:
        sums[gap.cause][gap.detail] += gap.ns
    step_ns = sum(rank.budget.values())
    rows = []
    for cause, details in sums.items():
        total_ns = sum(details.values())
        named = ((detail, ns) for detail, ns in details.items() if detail and ns > 0)
        longest_first = tuple(sorted(named, key=lambda item: (-item[1], item[0])))
        if total_ns > 0:
            rows.append(CauseRow(cause, total_ns, total_ns / step_ns if step_ns else None, longest_first))
    return tuple(sorted(rows, key=lambda row: (-row.ns, row.cause)))


def colour_causes(causes: Iterable[str]) -> dict[str, str]:
    """Cause -> colour. Causes that :data:`CAUSES` lacks take the free colours in turn, then share a grey."""
    free = iter(_FREE_COLOURS)
    return {cause: CAUSES[cause].colour if cause in CAUSES else next(free, _GREY) for cause in causes}


def label_cause(cause: str) -> str:
    """What a reader calls ``cause``."""
    return CAUSES[cause].label if cause in CAUSES else cause


def _tabulate(rows: tuple[CauseRow, ...], colours: dict[str, str]) -> Table:
    def name(cause: str) -> tuple[Swatch, Text]:
        return Swatch(colours[cause]), Text(label_cause(cause))

    columns = (
        Column("Cause", "cause", name),
        Column("Time", "ns", format_ms, sums=True),
        Column("Of the step", "fraction", format_share, sums=True),
        Column(
            "What it is",
            lambda row: CAUSES[row.cause].meaning if row.cause in CAUSES else "",
            role="muted",
            in_terminal=False,
        ),
        Column("Largest parts", "details", _list_details, width="third"),
    )
    return Table("gaps", columns, rows)


def _list_details(details: tuple[tuple[str, int], ...]) -> Amounts:
    lines = [(detail, format_ms(ns)) for detail, ns in details[:MOST_DETAILS]]
    rest = details[MOST_DETAILS:]
    if rest:
        lines.append((f"{len(rest)} more", format_ms(sum(ns for _, ns in rest))))
    return Amounts(tuple(lines))


def _time_of(cause: str) -> Callable[[tuple[int, dict[str, int]]], int | None]:
    return lambda row: row[1].get(cause, 0) if row[1] else None
