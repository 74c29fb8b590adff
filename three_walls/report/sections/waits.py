"""The ranks: all of a large run, which ones arrive late, and how much of the communication is waiting for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from three_walls.lib.text import (
    UNKNOWN,
    count_of,
    format_count,
    format_ms,
    format_ms_range,
    format_name,
    format_rank,
    write_times,
)
from three_walls.report.charts import TRANSFER_COLOUR, WAIT_COLOUR, Bars, Segment, draw_bars
from three_walls.report.report import Report
from three_walls.report.section import (
    FEW_ROWS,
    ROW,
    Bar,
    Block,
    Card,
    Cell,
    Chart,
    Column,
    Fold,
    Items,
    Legend,
    Note,
    Section,
    Swatch,
    Table,
    Terminal,
    Text,
)
from three_walls.step.step_rows import Alignment, Straggler, Wait
from three_walls.step.survey.survey_rows import Survey
from three_walls.tables.buckets import in_precedence

MOST_NAMED = 12
"""Ranks, hosts, stages and lost traces that are shown each; report.json has all."""


def ranks(report: Report) -> Section | None:
    """Lost traces, then how ranks differ in each time, the ranks that stand out, hosts and stages."""
    survey = report.survey
    if survey is None:
        return None
    blocks: list[Block] = []
    if survey.lost:
        named = [f"{lost.input_name}: {lost.reason}" for lost in survey.lost[:MOST_NAMED]]
        if len(survey.lost) > MOST_NAMED:
            named.append(f"{format_count(len(survey.lost) - MOST_NAMED)} more")
        blocks.append(Items(tuple(named), title="Traces that could not be read"))
    spreads = (
        Column("Time per step", "quantity", role="code"),
        Column("Least", "least_ns", format_ms),
        Column("on", "least_rank", format_rank),
        Column("Median", "median_ns", format_ms),
        Column("95th percentile", "p95_ns", format_ms),
        Column("Most", "most_ns", format_ms),
        Column("on", "most_rank", format_rank),
        Column("Ranks", "ranks_count", format_count),
    )
    times = (
        Column("Step", "step_ns", format_ms),
        Column("Compute", "compute_ns", format_ms),
        Column("Communication", "communication_ns", format_ms),
        Column("of it waiting", "wait_ns", format_ms),
        Column("Idle", "idle_ns", format_ms),
    )
    remarkable = [row for row in survey.ranks if row.remark]
    remarkable.sort(key=lambda row: (not row.remark.startswith("late"), -row.compute_ns, row.rank))
    blocks.append(Table("rank_spreads", spreads, survey.spreads, terminal_rows=len(survey.spreads)))
    blocks.append(Note(_explain(survey), role="muted"))
    described = (Column("Rank", "rank"), Column("Host", "host"), *times, Column("Remark", "remark", width="wide"))
    title = "Ranks that stand out, and those read in full"
    blocks.append(Table("surveyed_ranks", described, remarkable, title, terminal_rows=FEW_ROWS, is_compact=True))
    for kind, plural in (("host", "hosts"), ("stage", "pipeline stages")):
        groups = [group for group in survey.groups if group.kind == kind]
        if groups:
            columns = (Column(kind.capitalize(), "name"), Column("Ranks", "ranks_count", format_count), *times)
            shown = groups[:MOST_NAMED]
            table = Table(f"rank_{kind}s", columns, shown, terminal_rows=0, is_compact=True)
            blocks.append(Fold(f"{plural.capitalize()} with most compute ({len(shown)} of {len(groups)})", (table,)))
    return Section(
        "ranks",
        "All ranks",
        tuple(blocks),
        lead=describe_survey(survey),
        link="All ranks",
        terminal=Terminal.ALWAYS,
    )


def describe_survey(survey: Survey) -> str:
    """``1,024 ranks were surveyed, 12 of them read in full (...)``."""
    lost = f" {count_of(len(survey.lost), 'trace')} could not be read." if survey.lost else ""
    late = f" {count_of(survey.late_ranks_count, 'rank')} made the others wait." if survey.late_ranks_count else ""
    return (
        f"{count_of(survey.ranks_count, 'rank')} were surveyed, {format_count(len(survey.in_full))} of them read in "
        f"full.{lost}{late} Clocks, waits and late ranks are from all ranks; the budget, the gaps and the replay are "
        "from those read in full."
    )


def _explain(survey: Survey) -> str:
    text = "Each rank counts with its median kept step."
    compute = next((spread for spread in survey.spreads if spread.quantity == "compute"), None)
    if compute is None or not compute.median_ns:
        return text
    times = write_times(compute.most_ns / compute.median_ns)
    return f"{text} Rank {compute.most_rank} computes longest, {times} as long as the median rank."


MOST_ROWS_UNFOLDED = 40
"""The table of every class and rank is folded when it is longer."""


@dataclass(frozen=True, slots=True)
class ClassWait:
    """Waits of one communication class, over all ranks."""

    communication_class: str
    wait_ns: tuple[int, ...]
    """On each rank where it is known."""
    transfer_ns: tuple[int, ...]
    late_rank: int | None
    """The rank that the others wait for longest, as far as known."""
    rank_count: int
    resolved_count: int
    unknown_count: int
    notes: tuple[str, ...]

    @property
    def is_without_wait(self) -> bool:
        return max(self.wait_ns, default=None) == 0 and not self.unknown_count


def waits(report: Report) -> Section:
    """Stragglers, then waiting and transfer by class."""
    rows = order_waits(report)
    blocks: list[Block] = [_describe_straggler(straggler) for straggler in order_stragglers(report)]
    if report.alignment is not None:
        blocks.append(Note(_describe_alignment(report.alignment), role="muted"))
    if rows:
        if plot := _draw_ranks(rows):
            blocks += [
                Chart("waits", plot, "Communication of each rank: waiting for peers, then transfer"),
                Legend(((Swatch(WAIT_COLOUR), "wait", "for peers"), (Swatch(TRANSFER_COLOUR), "transfer", ""))),
            ]
        blocks += [_tabulate_classes(report), _tabulate_ranks(rows)]
    return Section(
        "waits",
        "Waiting for peers",
        tuple(blocks),
        lead="A collective moves data once its last rank has arrived. The time before that is waiting, which only an "
        "earlier arrival of that rank shortens.",
        link="Ranks",
        empty="Unknown, or none: no communication could be split into waiting and transfer.",
    )


def order_stragglers(report: Report) -> tuple[Straggler, ...]:
    """The rank that delays the others most comes first."""
    return tuple(sorted(report.stragglers, key=lambda straggler: (-straggler.late_ns, straggler.rank, straggler.cause)))


def order_waits(report: Report) -> tuple[Wait, ...]:
    """By class in order of precedence, then by rank."""
    return tuple(sorted(report.waits, key=lambda wait: (*in_precedence(wait.communication_class), wait.rank)))


def summarize_classes(report: Report) -> tuple[ClassWait, ...]:
    """One row per communication class, in order of precedence."""
    by_class: dict[str, list[Wait]] = {}
    for wait in order_waits(report):
        by_class.setdefault(wait.communication_class, []).append(wait)
    return tuple(
        ClassWait(
            communication_class=name,
            wait_ns=tuple(wait.wait_ns for wait in members if wait.wait_ns is not None),
            transfer_ns=tuple(wait.transfer_ns for wait in members if wait.transfer_ns is not None),
            late_rank=_find_late_rank(members),
            rank_count=len(members),
            resolved_count=sum(wait.resolved for wait in members),
            unknown_count=sum(wait.wait_ns is None for wait in members),
            # What a rank adds after the semicolon is a share of its own time: the table of ranks shows it.
            notes=tuple(sorted({wait.note.partition(";")[0] for wait in members if wait.note})),
        )
        for name, members in by_class.items()
    )


def _find_late_rank(members: list[Wait]) -> int | None:
    awaited: dict[int, int] = {}
    for wait in members:
        if wait.awaited_rank is not None and wait.wait_ns:
            awaited[wait.awaited_rank] = awaited.get(wait.awaited_rank, 0) + wait.wait_ns
    return min(awaited, key=lambda rank: (-awaited[rank], rank), default=None)


def _describe_straggler(straggler: Straggler) -> Card:
    is_unknown = straggler.cause == UNKNOWN
    cause = "cause unknown" if is_unknown else format_name(straggler.cause)
    return Card(
        title=(
            f"Rank {straggler.rank} made the others wait {format_ms(straggler.late_ns)} per step",
            Text(cause, "badge" if is_unknown else "badge warn"),
        ),
        blocks=(Note(straggler.evidence, role="muted"),) if straggler.evidence else (),
        role="callout",
    )


def _describe_alignment(alignment: Alignment) -> str:
    how = f"Clock alignment of the ranks: {alignment.method}"
    if alignment.residual_ns_p50 is None and alignment.residual_ns_p95 is None:
        return f"{how}; how well the clocks agree is {UNKNOWN}."
    median, most = format_ms(alignment.residual_ns_p50), format_ms(alignment.residual_ns_p95)
    return f"{how}. The ends of matched collectives are {median} apart in the median, {most} at the 95th percentile."


def _tabulate_classes(report: Report) -> Table:
    columns = (
        Column("Class", "communication_class", role="code"),
        Column("Wait", "wait_ns", _bounds, is_right=True),
        Column("Transfer", "transfer_ns", _bounds, is_right=True),
        Column("Late rank", ROW, lambda row: _name_late_rank(row.late_rank, row.is_without_wait)),
        Column("Resolved on", lambda row: f"{row.resolved_count} of {count_of(row.rank_count, 'rank')}"),
        Column("How", lambda row: "; ".join(_list_notes(row)), role="muted"),
    )
    return Table("waits", columns, summarize_classes(report))


def _list_notes(row: ClassWait) -> Iterator[str]:
    yield from row.notes
    if 0 < row.unknown_count < row.rank_count:
        yield f"{UNKNOWN} on {row.unknown_count}"


def _bounds(times: tuple[int, ...]) -> str:
    return format_ms_range(min(times, default=None), max(times, default=None))


def _name_late_rank(rank: int | None, nothing_waits: bool) -> str:
    return format_rank(rank) or ("none" if nothing_waits else UNKNOWN)


def _draw_ranks(rows: tuple[Wait, ...]) -> Bars | None:
    """Waits and transfers of each rank, summed over the classes where both are known; None for a single rank."""
    sums: dict[int, tuple[int, int]] = {}
    for wait in rows:
        if wait.wait_ns is not None and wait.transfer_ns is not None:
            wait_ns, transfer_ns = sums.get(wait.rank, (0, 0))
            sums[wait.rank] = wait_ns + wait.wait_ns, transfer_ns + wait.transfer_ns
    if len(sums) < 2:
        return None
    ranks = sorted(sums)
    waits, transfers = (tuple(sums[rank][place] for rank in ranks) for place in (0, 1))
    segments = (
        Segment("wait", WAIT_COLOUR, waits, tuple(map(format_ms, waits))),
        Segment("transfer", TRANSFER_COLOUR, transfers, tuple(map(format_ms, transfers))),
    )
    values = [f"waits {format_ms(sums[rank][0])}" for rank in ranks]
    return draw_bars([format_rank(rank) for rank in ranks], segments, values=values)


def _tabulate_ranks(rows: tuple[Wait, ...]) -> Fold:
    longest_ns = max((wait.wait_ns or 0) + (wait.transfer_ns or 0) for wait in rows)

    def draw(wait: Wait) -> Bar:
        if not longest_ns or wait.wait_ns is None:
            return Bar(())
        parts = ((wait.wait_ns, WAIT_COLOUR), (wait.transfer_ns or 0, TRANSFER_COLOUR))
        return Bar(tuple((ns / longest_ns, colour) for ns, colour in parts))

    columns = (
        Column("Class", "communication_class", role="code", groups=True),
        Column("Rank", "rank"),
        Column("Wait", "wait_ns", format_ms),
        Column("Transfer", "transfer_ns", format_ms),
        Column("", ROW, draw, width="shape"),
        Column("Late rank", lambda wait: _name_late_rank(wait.awaited_rank, wait.wait_ns == 0)),
        Column("Split", ROW, _describe_split),
        Column("How", "note", role="muted"),
    )
    legend = Legend(
        (
            (Swatch(WAIT_COLOUR), "wait", "for peers that arrive later"),
            (Swatch(TRANSFER_COLOUR), "transfer", "the rest of its time"),
            (Text("resolved", "badge good"), "", "from matched calls of all ranks"),
            (Text("estimated", "badge"), "", "without them"),
        )
    )
    table = Table("waits_of_ranks", columns, rows, terminal_rows=0, is_compact=True)
    return Fold("Every class and rank", (legend, table), is_open=len(rows) <= MOST_ROWS_UNFOLDED)


def _describe_split(wait: Wait) -> Cell:
    if wait.resolved:
        return Text("resolved", "badge good")
    return Text("estimated", "badge") if wait.wait_ns is not None else UNKNOWN
