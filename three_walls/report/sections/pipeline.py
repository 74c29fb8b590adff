"""Pipeline stages: the phases of their schedule, and the bubble in each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from three_walls.facts.fact_rows import PipelinePhase
from three_walls.lib.text import format_count, format_known, format_ms_range, format_share
from three_walls.report.report import Report
from three_walls.report.section import MANY_ROWS, Column, Section, Table

PHASES = ("warm-up", "steady", "cool-down", "update", "step")
"""In the order of time."""


@dataclass(frozen=True, slots=True)
class StagePhase:
    """One phase of one pipeline stage, on all its ranks."""

    stage: int | None
    phase: str
    phases: tuple[PipelinePhase, ...]

    def bounds(self, field: str) -> tuple[int | None, int | None]:
        """Lowest and highest of the ranks where ``field`` is known."""
        known = [value for phase in self.phases if (value := getattr(phase, field)) is not None]
        return min(known, default=None), max(known, default=None)


def pipeline(report: Report) -> Section | None:
    """One row per stage and phase, as ranges over the ranks of the stage."""
    rows = summarize_stages(report.pipeline_phases)
    if not rows:
        return None
    found, expected = (
        format_share(report.facts.number(name))
        for name in ("pipeline_bubble_fraction", "pipeline_bubble_expected_fraction")
    )
    columns = (
        Column("Stage", "stage", format_known),
        Column("Phase", "phase"),
        Column("Time", _bounds_of("ns"), _range, is_right=True),
        Column("P2P exposed", _bounds_of("p2p_exposed_ns"), _range, is_right=True),
        Column("Bubble", _bounds_of("bubble_ns"), _range, is_right=True),
        Column("Ranks", lambda row: len(row.phases), format_count),
        Column("Note", lambda row: "; ".join(sorted({phase.note for phase in row.phases if phase.note})), role="muted"),
    )
    return Section(
        "pipeline",
        "Pipeline",
        (Table("pipeline", columns, rows, terminal_rows=MANY_ROWS, is_compact=True),),
        lead=f"The bubble is {found} of the representative step; an even 1F1B schedule would leave {expected}. Each "
        "row is one phase of the median step, as a range over the ranks of the stage.",
        link="Pipeline",
        in_menu=True,
    )


def summarize_stages(phases: Sequence[PipelinePhase]) -> tuple[StagePhase, ...]:
    """One row per stage and phase, in order of stage and of time."""
    groups: dict[tuple[int, str], list[PipelinePhase]] = {}
    for phase in phases:
        groups.setdefault((-1 if phase.stage is None else phase.stage, phase.phase), []).append(phase)
    order = sorted(groups, key=lambda key: (key[0], PHASES.index(key[1]) if key[1] in PHASES else len(PHASES)))
    return tuple(StagePhase(groups[key][0].stage, key[1], tuple(groups[key])) for key in order)


def _bounds_of(field: str) -> Callable[[StagePhase], tuple[int | None, int | None]]:
    return lambda row: row.bounds(field)


def _range(bounds: tuple[int | None, int | None]) -> str:
    return format_ms_range(*bounds)
