"""Pipeline stages: the phases of their schedule, and the bubble in each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from three_walls.facts.fact_rows import PipelinePhase
from three_walls.lib.text import format_count, format_known, format_ms_range, format_share
from three_walls.report.report import Report
from three_walls.report.section import MANY_ROWS, Column, Section, Table

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
