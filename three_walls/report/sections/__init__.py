"""The sections of the report, in the order of the page. A new section is a file of its own and its place here."""

from __future__ import annotations

from collections.abc import Callable

from three_walls.report.report import Report
from three_walls.report.section import Section
from three_walls.report.sections.budget import budget
from three_walls.report.sections.capture import capture
from three_walls.report.sections.communication import communication
from three_walls.report.sections.config import config
from three_walls.report.sections.critical_path import critical_path
from three_walls.report.sections.efficiency import efficiency
from three_walls.report.sections.facts import facts
from three_walls.report.sections.findings import findings
from three_walls.report.sections.gaps import gaps
from three_walls.report.sections.graphs import graphs
from three_walls.report.sections.history import history
from three_walls.report.sections.host_work import host_work
from three_walls.report.sections.kernels import kernels
from three_walls.report.sections.memory import memory
from three_walls.report.sections.moe import moe
from three_walls.report.sections.overlap import overlap
from three_walls.report.sections.overrides import overrides
from three_walls.report.sections.pipeline import pipeline
from three_walls.report.sections.plan import plan
from three_walls.report.sections.ranks import ranks
from three_walls.report.sections.reading import reading
from three_walls.report.sections.recipe import recipe
from three_walls.report.sections.recompute import recompute
from three_walls.report.sections.steps import steps
from three_walls.report.sections.timeline import timeline
from three_walls.report.sections.timers import timers
from three_walls.report.sections.verdict import verdict
from three_walls.report.sections.waits import waits
from three_walls.report.sections.walls import walls
from three_walls.report.sections.warnings import warnings

SECTIONS: tuple[Callable[[Report], Section | None], ...] = (
    verdict,
    warnings,
    ranks,
    plan,
    history,
    overrides,
    budget,
    gaps,
    critical_path,
    walls,
    communication,
    pipeline,
    moe,
    overlap,
    waits,
    timers,
    efficiency,
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
