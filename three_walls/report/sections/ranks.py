"""All ranks of a run of many: which were read in full, how they differ, and which stand out."""

from __future__ import annotations

from three_walls.lib.text import count_of, format_count, format_ms, format_rank, write_times
from three_walls.report.report import Report
from three_walls.report.section import FEW_ROWS, Block, Column, Fold, Items, Note, Section, Table, Terminal
from three_walls.step.survey.survey_rows import Survey

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
