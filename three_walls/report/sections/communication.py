"""Communication: how much of it is exposed, how much compute hides, and how much longer GEMMs take next to it; and
the bubble of pipeline stages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from three_walls.facts.fact_rows import OverlapSlowdown, PipelinePhase
from three_walls.lib.text import (
    format_bandwidth,
    format_count,
    format_known,
    format_ms,
    format_ms_change,
    format_ms_range,
    format_ratio,
    format_share,
)
from three_walls.report.charts import (
    EXPOSED_COLOUR,
    FREE_COLOUR,
    GIGABYTES_PER_S,
    HIDDEN_COLOUR,
    TRANSFER_COLOUR,
    BarRow,
    Bars,
    Piece,
    Segment,
    draw_bars,
)
from three_walls.report.comparison import Pair
from three_walls.report.report import Report
from three_walls.report.section import MANY_ROWS, Block, Chart, Column, Fold, Legend, Note, Section, Swatch, Table
from three_walls.report.sections.moe import is_lower_bound, sum_parts
from three_walls.step.step_rows import CommunicationTime, RankReport
from three_walls.tables.buckets import BUCKET_BY_NAME, BUCKET_TITLES

_EXPOSED_ONLY = " while no compute kernel runs"
"""The part of a bucket's definition that does not hold for a communication class, where hidden time counts too."""


class ClassRow(NamedTuple):
    rank: int
    name: str
    time: CommunicationTime


def communication(report: Report) -> Section:
    """Communication classes of the representative rank, then of every rank."""
    rank = report.representative_rank
    rows = () if rank is None else order_classes(rank)
    blocks: list[Block] = []
    if rows:
        blocks += [
            Legend(
                (
                    (Swatch(EXPOSED_COLOUR), "exposed", "no compute kernel runs"),
                    (Swatch(HIDDEN_COLOUR), "hidden", "some compute kernel runs"),
                )
            ),
            Chart("communication", _draw(rows), "Exposed and hidden time of each communication class"),
            Table(
                "communication",
                (*_columns(report), Column("What it is", _define, role="muted", width="wide", in_terminal=False)),
                rows,
            ),
        ]
    if rates := _draw_rates(report):
        blocks.append(Chart("bandwidth", rates, "Bandwidth of token exchanges against the limit of the link"))
    if report.ranks:
        all_rows = [row for other in report.ranks for row in order_classes(other)]
        columns = (Column("Rank", "rank"), *_columns(report)[:-1])
        table = Table("communication_of_ranks", columns, all_rows, terminal_rows=0, is_compact=True)
        blocks.append(Fold("Every rank", (table,)))
    return Section(
        "communication",
        "Communication: exposed and hidden",
        tuple(blocks) if rows else (),
        lead="" if rank is None else f"The traced step of rank {rank.rank}. Only exposed time can be saved.",
        link="Communication",
        empty="Unknown, or none: no communication was measured in a kept step.",
    )


def order_classes(rank: RankReport) -> tuple[ClassRow, ...]:
    """Communication classes of ``rank``, the most exposed first."""
    rows = (ClassRow(rank.rank, name, time) for name, time in rank.communication.items())
    return tuple(sorted(rows, key=lambda row: (-row.time.exposed_ns, row.name)))


def _draw_rates(report: Report) -> Bars | None:
    """Dispatch and combine in each direction, with the link's limit; None where no rate is known.

    A lower bound is that of the fastest exchange of the step, so it is drawn once.
    """
    parts = [part for part in sum_parts(report.moe_layers) if part.bytes_per_s and part.limit_bytes_per_s]
    if not parts:
        return None
    is_bound = is_lower_bound(report)
    at_least = "at least " if is_bound else ""
    if is_bound:
        parts = [max(parts, key=lambda part: part.bytes_per_s or 0)]
    rows = []
    for part in parts:
        rate, limit = part.bytes_per_s or 0.0, part.limit_bytes_per_s or 0.0
        name = "fastest exchange" if is_bound else f"{part.direction} {part.part}"
        share = format_share(rate / limit)
        pieces = (
            Piece(0, rate, TRANSFER_COLOUR, name, format_bandwidth(rate)),
            Piece(rate, max(0.0, limit - rate), FREE_COLOUR, "limit", format_bandwidth(limit)),
        )
        rows.append(BarRow(name, pieces, f"{at_least}{format_bandwidth(rate)} ({share} of {format_bandwidth(limit)})"))
    return Bars(tuple(rows), max(row.end for row in rows), GIGABYTES_PER_S)


def _columns(report: Report) -> tuple[Column, ...]:
    return (
        Column("Class", "name", role="code"),
        Column("Busy", "time.busy_ns", format_ms),
        Column("Exposed", "time.exposed_ns", format_ms),
        Column("Hidden", "time.hidden_ns", format_ms),
        Column("Exposed of step", lambda row: report.fraction_of_step(row.time.exposed_ns), format_share),
    )


def _define(row: ClassRow) -> str:
    meaning = BUCKET_BY_NAME[row.name].definition if row.name in BUCKET_BY_NAME else ""
    return meaning.replace(_EXPOSED_ONLY, "")


def _draw(rows: tuple[ClassRow, ...]) -> Bars:
    exposed = tuple(row.time.exposed_ns for row in rows)
    hidden = tuple(row.time.hidden_ns for row in rows)
    segments = (
        Segment("exposed", EXPOSED_COLOUR, exposed, tuple(map(format_ms, exposed))),
        Segment("hidden", HIDDEN_COLOUR, hidden, tuple(map(format_ms, hidden))),
    )
    values = [f"{format_ms(row.time.exposed_ns)} exposed" for row in rows]
    names = [BUCKET_TITLES.get(row.name, row.name) for row in rows]
    return draw_bars(names, segments, values=values)


def overlap(report: Report) -> Section:
    """GEMMs that ran both alone and concurrently with communication, the largest slowdown first."""
    rows = order_slowdowns(report)
    columns = (
        Column("Kernel", "kernel", role="code", width="wide"),
        Column("Grid", "grid", role="muted"),
        Column("Alone", "alone_ns", format_ms),
        Column("Concurrent", "concurrent_ns", format_ms),
        Column("Slower", lambda row: row.concurrent_ns / row.alone_ns if row.alone_ns else None, format_ratio),
        Column("Calls alone", "calls_alone", format_count, in_terminal=False),
        Column("Calls concurrent", "concurrent_calls", format_count),
        Column("Per step", "slowdown_ns", format_ms, sums=True),
    )
    total = format_ms(sum(row.slowdown_ns for row in rows))
    blocks = (
        Table("overlap", columns, rows, terminal_rows=3),
        Note(
            "Alone and Concurrent are median durations. Per step is their difference times the concurrent calls.",
            role="muted",
        ),
    )
    return Section(
        "overlap",
        "Overlap slowdown",
        blocks if rows else (),
        lead="Communication takes SMs and memory bandwidth from GEMMs that run at the same time. GEMMs of the same "
        f"name and grid take {total} longer per step concurrently with communication than alone.",
        link="Overlap",
        in_menu=True,
        empty="Unknown, or none: no GEMM ran both alone and concurrently with communication.",
    )


def order_slowdowns(report: Report) -> tuple[OverlapSlowdown, ...]:
    """The most time per step first."""
    return tuple(sorted(report.overlap_slowdown, key=lambda row: (-row.slowdown_ns, row.kernel, row.grid)))


def changed_communication(pair: Pair) -> Section | None:
    """Communication classes of two runs."""
    if not pair.communication:
        return None
    columns = (
        Column("Communication", "communication_class", role="code"),
        Column("Exposed before", "before_exposed_ns", format_ms),
        Column("Exposed after", "after_exposed_ns", format_ms),
        Column("Change", "exposed_change_ns", format_ms_change),
        Column("Busy before", "before_busy_ns", format_ms),
        Column("Busy after", "after_busy_ns", format_ms),
    )
    table = Table("communication", columns, pair.communication)
    return Section(
        "communication",
        "Communication",
        (table,),
        lead="Exposed: while no compute kernel runs. In the representative steps as traced.",
        link="Communication",
    )


PHASES = ("warm-up", "steady", "cool-down", "update", "step")
"""In the order of time."""


def pipeline(report: Report) -> Section | None:
    """One row per stage and phase, as ranges over the ranks of the stage."""
    rows = group_stages(report.pipeline_phases)
    if not rows:
        return None
    bubble, expected = (
        format_share(report.facts.number(name))
        for name in ("pipeline_bubble_fraction", "pipeline_bubble_expected_fraction")
    )
    columns = (
        Column("Stage", lambda ranks: ranks[0].stage, format_known),
        Column("Phase", lambda ranks: ranks[0].phase),
        Column("Time", bounds_of("ns"), _range, is_right=True),
        Column("P2P exposed", bounds_of("p2p_exposed_ns"), _range, is_right=True),
        Column("Bubble", bounds_of("bubble_ns"), _range, is_right=True),
        Column("Ranks", len, format_count),
        Column("Note", lambda ranks: "; ".join(sorted({rank.note for rank in ranks if rank.note})), role="muted"),
    )
    return Section(
        "pipeline",
        "Pipeline",
        (Table("pipeline", columns, rows, terminal_rows=MANY_ROWS, is_compact=True),),
        lead=f"The bubble is {bubble} of the representative step; an even 1F1B schedule would leave {expected}. Each "
        "row is one phase of the median step, as a range over the ranks of the stage.",
        link="Pipeline",
        in_menu=True,
    )


def group_stages(phases: Sequence[PipelinePhase]) -> tuple[tuple[PipelinePhase, ...], ...]:
    """The ranks of each stage and phase, in order of stage and of time."""
    groups: dict[tuple[int, str], list[PipelinePhase]] = {}
    for phase in phases:
        groups.setdefault((-1 if phase.stage is None else phase.stage, phase.phase), []).append(phase)
    order = sorted(groups, key=lambda key: (key[0], PHASES.index(key[1]) if key[1] in PHASES else len(PHASES)))
    return tuple(tuple(groups[key]) for key in order)


def bounds_of(field: str) -> Callable[[Sequence[PipelinePhase]], tuple[int | None, int | None]]:
    """Lowest and highest of the ranks where ``field`` is known."""

    def bounds(ranks: Sequence[PipelinePhase]) -> tuple[int | None, int | None]:
        known = [value for rank in ranks if (value := getattr(rank, field)) is not None]
        return min(known, default=None), max(known, default=None)

    return bounds


def _range(bounds: tuple[int | None, int | None]) -> str:
    return format_ms_range(*bounds)
