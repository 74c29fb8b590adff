"""Where the step goes: one owner for every nanosecond; and where the difference between two steps is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from three_walls.lib.text import format_ms, format_ms_change, format_share
from three_walls.report.charts import BUCKET_COLOURS, Segment, draw_bars, draw_whole
from three_walls.report.comparison import Basis, BucketReconciliation, Pair
from three_walls.report.report import Report
from three_walls.report.section import (
    ROW,
    Bar,
    Block,
    Chart,
    Column,
    Fold,
    Note,
    Section,
    Swatch,
    Table,
    Terminal,
    Text,
)
from three_walls.report.sections.compared_steps import BASES
from three_walls.step.step_rows import BudgetRow, RankReport
from three_walls.tables.buckets import BUCKET_BY_NAME, BUCKETS

_UNLISTED_COLOUR = "#888888"
_LESS_COLOUR, _MORE_COLOUR = "#22a05a", "#ea580c"
_SHOWN_BUCKETS = 10


def _mark_bucket(bucket: str) -> tuple[Swatch, Text]:
    return Swatch(BUCKET_COLOURS.get(bucket, _UNLISTED_COLOUR)), Text(bucket, "code")


BUCKET = Column("Bucket", "bucket", _mark_bucket)


def budget(report: Report) -> Section:
    """The representative step by bucket, then the same of every rank."""
    rows = order_buckets(report)
    blocks: list[Block] = []
    times = {row.bucket: row.ns for row in rows}
    plot = draw_whole([(b.title, times[b.name], BUCKET_COLOURS[b.name]) for b in BUCKETS if b.name in times])
    if plot is not None:
        blocks.append(Chart("budget", plot, "The traced step as one bar, a segment per bucket"))
    if rows:
        columns = (
            BUCKET,
            Column("Group", "group", role="muted"),
            Column("Time", "ns", format_ms, sums=True),
            Column("Share", "fraction", format_share, sums=True),
            bar_column(rows),
            Column("What it counts", "definition", role="muted", width="wide", in_terminal=False),
        )
        blocks += [
            Note(f"The step shown: {report.budget_of}.", role="muted"),
            Table("budget", columns, rows, terminal_rows=len(rows)),
            *_compare_ranks(report, rows),
        ]
    return Section(
        "budget",
        title_budget(report),
        tuple(blocks),
        lead="Every nanosecond of the step belongs to exactly one bucket.",
        link="Budget",
        empty="Unknown: no step was kept.",
        terminal=Terminal.ALWAYS,
    )


def title_budget(report: Report) -> str:
    """The heading: the budget is of the traced step, whatever other sections speak of."""
    has_rows = any(row.ns > 0 for row in report.budget)
    return f"Where the traced step goes ({format_ms(report.verdict.step_ns)})" if has_rows else "Where the step goes"


def order_buckets(report: Report) -> list[BudgetRow]:
    """The buckets that have time, the longest first."""
    return sorted((row for row in report.budget if row.ns > 0), key=lambda row: (-row.ns, row.bucket))


def bar_column(rows: Sequence[BudgetRow]) -> Column:
    """The shares of ``rows`` as bars of the terminal."""
    longest = max(row.fraction for row in rows)

    def draw(row: BudgetRow) -> Bar:
        return Bar(((row.fraction / longest, BUCKET_COLOURS.get(row.bucket, _UNLISTED_COLOUR)),))

    return Column("", ROW, draw, in_page=False)


def _compare_ranks(report: Report, rows: Sequence[BudgetRow]) -> list[Block]:
    """The median step of each rank, as bars on one scale where there are several, and as a table."""
    ranks = [rank for rank in report.ranks if any(rank.budget.values())]
    names = [b.name for b in BUCKETS if any(rank.budget.get(b.name) for rank in ranks)]
    blocks: list[Block] = []
    if len(ranks) > 1:
        segments = [
            Segment(
                BUCKET_BY_NAME[name].title,
                BUCKET_COLOURS[name],
                tuple(rank.budget.get(name, 0) for rank in ranks),
                tuple(_describe_share(rank, name) for rank in ranks),
            )
            for name in names
        ]
        steps = [format_ms(sum(rank.budget.values())) for rank in ranks]
        plot = draw_bars([f"rank {rank.rank}" for rank in ranks], segments, values=steps)
        blocks.append(Chart("ranks", plot, "Median step of each rank, a segment per bucket"))
    columns = (
        Column("Rank", "rank"),
        Column("GPU", _describe_gpu, role="muted"),
        *(Column(row.bucket, _time_in(row.bucket), format_ms) for row in rows),
    )
    if report.ranks:
        table = Table("budget_of_ranks", columns, report.ranks, terminal_rows=0, is_compact=True)
        blocks.append(Fold("Budget of the median step of every rank", (table,)))
    return blocks


def _describe_share(rank: RankReport, bucket: str) -> str:
    ns = rank.budget.get(bucket, 0)
    return f"{format_ms(ns)}, {format_share(ns / sum(rank.budget.values()))}"


def _describe_gpu(rank: RankReport) -> str:
    return f"{rank.host or 'unknown host'}, device {rank.device}, {rank.gpu or 'unknown GPU'}"


def _time_in(bucket: str) -> Callable[[RankReport], int | None]:
    return lambda rank: rank.budget.get(bucket, 0) if rank.budget else None


def changed_buckets(pair: Pair) -> Section | None:
    """The buckets of two runs, and the way from their sum to the change of the step."""
    budget = pair.budget
    if budget is None:
        return None
    longest = max((abs(row.change_ns) for row in budget.rows), default=0) or 1

    def draw(change_ns: int) -> Bar:
        return Bar(((abs(change_ns) / longest, _LESS_COLOUR if change_ns < 0 else _MORE_COLOUR),) if change_ns else ())

    columns = (
        BUCKET,
        Column("Group", "group", role="muted", in_terminal=False),
        Column("Before", "before_ns", format_ms, sums=True),
        Column("After", "after_ns", format_ms, sums=True),
        Column("Change", "change_ns", format_ms_change, sums=True),
        Column("", "change_ns", draw, width="shape"),
    )
    changed = [row for row in budget.rows if row.change_ns]
    blocks: list[Block] = [Table("buckets", columns, budget.rows, terminal_rows=_SHOWN_BUCKETS)]
    if not changed:
        blocks = [Note(f"Each of the {len(budget.rows)} buckets takes as long as before.")]
    blocks.append(_reconcile(pair, budget))
    return Section(
        "buckets",
        "Where the change is",
        tuple(blocks),
        lead=f"The traced step changes by {format_ms_change(budget.traced_change_ns)}: the sum of these rows.",
        link="Buckets",
        terminal=Terminal.ALWAYS,
    )


def _reconcile(pair: Pair, budget: BucketReconciliation) -> Table:
    """From the traced to the compared step."""
    rows = [("traced step", budget.traced_before_ns, budget.traced_after_ns, budget.traced_change_ns)]
    if pair.step.basis is not Basis.TRACE:
        added = budget.profiler_before_ns, budget.profiler_after_ns, budget.profiler_change_ns
        rows += [
            ("added by the profiler", -added[0], -added[1], -added[2]),
            (
                f"step {BASES[pair.step.basis]}",
                budget.traced_before_ns - added[0],
                budget.traced_after_ns - added[1],
                budget.step_change_ns,
            ),
        ]

    def write(ns: int) -> str:
        return format_ms(ns) if ns >= 0 else format_ms_change(ns)

    columns = (
        Column("", lambda row: row[0]),
        Column("Before", lambda row: row[1], write, unit="ns"),
        Column("After", lambda row: row[2], write, unit="ns"),
        Column("Change", lambda row: row[3], format_ms_change),
    )
    return Table(
        "reconciliation",
        columns,
        rows,
        title="From the traced to the compared step",
        terminal_rows=len(rows),
        is_compact=True,
        emphasis=lambda row: row is rows[-1],
    )
