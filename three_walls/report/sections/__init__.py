"""The sections of a report and of a comparison, in the order of the page: a new section has its place here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from three_walls.report.comparison import Comparison, Pair
from three_walls.report.report import Report
from three_walls.report.section import Section, Table
from three_walls.report.sections.budget import budget, changed_buckets
from three_walls.report.sections.communication import changed_communication, communication, overlap, pipeline
from three_walls.report.sections.compared_steps import compared_runs, compared_steps, conditions
from three_walls.report.sections.config import changed_settings, config, recipe
from three_walls.report.sections.efficiency import efficiency, hardware
from three_walls.report.sections.facts import facts, reading
from three_walls.report.sections.findings import configured, findings
from three_walls.report.sections.gaps import gaps
from three_walls.report.sections.history import history
from three_walls.report.sections.kernels import changed_kernels, graphs, host_work, kernels, synchronizations
from three_walls.report.sections.memory import memory, recompute
from three_walls.report.sections.moe import moe
from three_walls.report.sections.plan import overrides, plan
from three_walls.report.sections.steps import steps, timers
from three_walls.report.sections.timeline import timeline
from three_walls.report.sections.verdict import verdict
from three_walls.report.sections.waits import ranks, waits
from three_walls.report.sections.walls import critical_path, wall_now, walls
from three_walls.report.sections.warnings import capture, unlike, warnings

SECTIONS: tuple[Callable[[Report], Section | None], ...] = (
    verdict,
    warnings,
    ranks,
    plan,
    history,
    overrides,
    configured,
    budget,
    gaps,
    synchronizations,
    critical_path,
    walls,
    communication,
    pipeline,
    moe,
    overlap,
    waits,
    timers,
    efficiency,
    hardware,
    recompute,
    graphs,
    memory,
    timeline,
    kernels,
    host_work,
    recipe,
    findings,
    facts,
    config,
    steps,
    capture,
    reading,
)


def make_sections(report: Report) -> tuple[Section, ...]:
    """The sections that have something to show of ``report``, or that state why they have nothing."""
    made = (section(report) for section in SECTIONS)
    return tuple(section for section in made if section is not None and (section.blocks or section.empty))


def make_comparison_sections(comparison: Comparison) -> tuple[Section, ...]:
    """The sections that have something to show of ``comparison``: of all runs, then of each pair."""
    made = [compared_steps(comparison), conditions(comparison), compared_runs(comparison)]
    for number, pair in enumerate(comparison.pairs, 1):
        of_pair = [
            unlike(pair),
            changed_settings(pair),
            changed_buckets(pair),
            changed_communication(pair),
            changed_kernels(pair),
            wall_now(comparison.before, pair),
        ]
        made += of_pair if len(comparison.pairs) == 1 else [_name_apart(section, number, pair) for section in of_pair]
    return tuple(section for section in made if section is not None)


def _name_apart(section: Section | None, number: int, pair: Pair) -> Section | None:
    """``section`` as one of several pairs: its names end with the number of the pair, and its title names AFTER."""
    if section is None:
        return None
    blocks = tuple(
        replace(block, name=f"{block.name}-{number}") if isinstance(block, Table) else block for block in section.blocks
    )
    title = f"{pair.after.name}: {section.title}"
    return replace(section, name=f"{section.name}-{number}", title=title, blocks=blocks, link="")
