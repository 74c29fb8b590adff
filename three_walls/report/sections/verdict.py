"""The head of the report: the wall that holds the run back, the step's length now and after the plan."""

from __future__ import annotations

from collections.abc import Iterator

from three_walls.model.buckets import Group
from three_walls.model.report import Report
from three_walls.report.formats import (
    UNKNOWN,
    count_of,
    format_count,
    format_ms,
    format_ms_range,
    format_share,
    format_wall,
)
from three_walls.report.palette import GROUP_COLOURS
from three_walls.report.section import Hero, Metric, Section, Terminal
from three_walls.report.sections.steps import describe_log, describe_progress
from three_walls.report.sections.walls import recoverable_of


def verdict(report: Report) -> Section:
    """The verdict with its reason."""
    result = report.verdict
    hero = Hero(
        eyebrow="Abstained" if result.abstained else "The wall that holds this run back",
        title=format_wall(None) if result.abstained else format_wall(result.wall, result.sub_wall),
        text=result.reason,
        notes=tuple(_list_notes(report)),
        metrics=tuple(_list_metrics(report)),
        shares=tuple(_sum_groups(report)),
        role="abstained" if result.wall is None or result.abstained else result.wall.value,
        step_line=describe_steps(report),
    )
    return Section("verdict", "", (hero,), terminal=Terminal.ALWAYS, role=f"hero {hero.role}")


def _list_notes(report: Report) -> Iterator[str]:
    if report.log is not None:
        yield f"{describe_log(report.log)}."
        if report.log.progress is not None:
            yield f"{describe_progress(report.log)}."


def describe_steps(report: Report) -> str:
    """``Step 640 ms; 48 of 64 steps complete, 631-655 ms (boundaries from optimizer kernels)``."""
    step = report.step
    if step.median_ns is None:
        return "; ".join(part for part in (f"Step: {UNKNOWN}", step.note) if part)
    length_ns = step.median_ns if report.verdict.step_ns is None else report.verdict.step_ns
    spread = f", {format_ms_range(step.min_ns, step.max_ns)}" if step.kept > 1 else ""
    return f"Step {format_ms(length_ns)}; {count_complete(report)}{spread} (boundaries from {step.source})"


def count_complete(report: Report) -> str:
    """``48 of 64 steps complete``."""
    found = report.step.kept + len(report.step.dropped)
    return f"{format_count(report.step.kept)} of {count_of(found, 'step')} complete"


def _list_metrics(report: Report) -> Iterator[Metric]:
    result, step = report.verdict, report.step
    length_ns = step.median_ns if result.step_ns is None else result.step_ns
    if step.median_ns is None:
        note = "no complete step"
    else:
        bounds = f": {format_ms_range(step.min_ns, step.max_ns)}" if step.kept > 1 else ""
        note = f"{count_complete(report)}{bounds}"
    yield Metric("Step", format_ms(length_ns), note)
    if result.wall is not None and not result.abstained:
        recoverable_ns = recoverable_of(report, result.wall, None)
        fraction = format_share(report.fraction_of_step(recoverable_ns))
        yield Metric("Recoverable", f"up to {format_ms(recoverable_ns)}", f"{fraction} of the step")
    if report.plan:
        after = report.plan[-1].step_after_ns
        entries = f"{len(report.plan)} {'entry' if len(report.plan) == 1 else 'entries'}"
        yield Metric("After the plan", format_ms_range(after.low, after.high), f"{entries}, estimated", "after")


def _sum_groups(report: Report) -> Iterator[tuple[str, float, str]]:
    """Shares of the step by group: compute, communication, copy, graph, idle."""
    for group in Group:
        rows = [row for row in report.budget if row.group == group.value]
        if sum(row.ns for row in rows):
            yield group.value, sum(row.fraction for row in rows), GROUP_COLOURS[group]
