"""The head of the report: the wall that holds the run back, the step's length now and after the plan."""

from __future__ import annotations

from collections.abc import Iterator

from three_walls.model.buckets import Group
from three_walls.model.report import Culprit, Report
from three_walls.report.formats import (
    UNKNOWN,
    count_of,
    format_count,
    format_ms,
    format_ms_range,
    format_name,
    format_share,
    format_wall,
)
from three_walls.report.palette import GROUP_COLOURS
from three_walls.report.section import Hero, Inline, Metric, Section, Terminal, Text
from three_walls.report.sections.plan import anchor_of
from three_walls.report.sections.steps import describe_log, describe_progress
from three_walls.report.sections.walls import (
    find_counterfactual,
    judged_step,
    recoverable_of,
    share_of_judged_step,
)

_CULPRIT_TITLES = {
    "slow_compute": ("is slow", "are slow"),
    "launch_starved": ("launches late", "launch late"),
    "host_blocked": ("waits for its host", "wait for their hosts"),
}


def verdict(report: Report) -> Section:
    """The verdict with its reason: the rank to fix first, else the wall."""
    result = report.verdict
    title = format_wall(None) if result.abstained else format_wall(result.wall, result.sub_wall)
    eyebrow = "Abstained" if result.abstained else "The wall that holds this run back"
    role = "abstained" if result.wall is None or result.abstained else result.wall.value
    text, notes = result.reason, tuple(_list_notes(report))
    if result.culprit is not None:
        text, notes = _describe_culprit(report, result.culprit), (f"{title}. {result.reason}", *notes)
        eyebrow, role = "The rank that holds this run back", "culprit"
        named, is_alone = result.culprit.named, len(result.culprit.ranks) == 1
        state = _CULPRIT_TITLES.get(result.culprit.cause, ("is late", "are late"))[0 if is_alone else 1]
        title = f"{named[:1].upper()}{named[1:]} {state}: fix {'it' if is_alone else 'them'} before tuning"
    hero = Hero(
        eyebrow=eyebrow,
        title=title,
        text=text,
        notes=notes,
        metrics=tuple(_list_metrics(report)),
        shares=tuple(_sum_groups(report)),
        role=role,
        step_line=describe_steps(report),
        pointer=_point_to_first(report),
    )
    return Section("verdict", "", (hero,), terminal=Terminal.ALWAYS, role=f"hero {hero.role}")


def _point_to_first(report: Report) -> tuple[Inline, ...]:
    """A link to the entry of the plan to apply first; nothing for an empty plan."""
    if report.first_trial is None or not report.plan:
        return ()
    first = report.plan[0]
    return (Text("First trial:", "strong"), Text(report.first_trial.title, link=anchor_of(first)))


def _describe_culprit(report: Report, culprit: Culprit) -> str:
    """What the rank costs, why it is late, and with what evidence."""
    share = format_share(report.fraction_of_step(culprit.cost_ns))
    evidence = f"{culprit.evidence[:1].upper()}{culprit.evidence[1:]}." if culprit.evidence else ""
    costs = "It costs" if len(culprit.ranks) == 1 else "They cost"
    return (
        f"{costs} the others {format_ms(culprit.cost_ns)} of the {format_ms(report.verdict.step_ns)} step ({share}; "
        f"{format_name(culprit.cause)}). {evidence}".strip()
    )


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
    if result.culprit is not None:
        lost = f"{format_ms(result.culprit.cost_ns)} less"
        yield Metric(f"Without the delay of {result.culprit.named}", format_ms(result.culprit.step_without_it_ns), lost)
    if result.replayed_step_ns is not None:
        is_logged = report.log is not None and report.log.unprofiled_step_ns == result.replayed_step_ns
        source = "by the log" if is_logged else "by replay"
        yield Metric("Without the profiler", format_ms(result.replayed_step_ns), source)
    if result.wall is not None and not result.abstained:
        recoverable_ns = recoverable_of(report, result.wall, None)
        fraction = format_share(share_of_judged_step(report, recoverable_ns))
        removed = find_counterfactual(report, result.wall, result.sub_wall)
        if removed is None:
            yield Metric("Recoverable", f"up to {format_ms(recoverable_ns)}", f"{fraction} {judged_step(report)}")
        else:
            share = format_share(removed.saved_ns / max(1, removed.step_ns + removed.saved_ns))
            yield Metric("Without this wall", format_ms(removed.step_ns), f"{share} less, by replay")
    if report.plan:
        after = report.plan[-1].step_after_ns
        entries = f"{len(report.plan)} {'entry' if len(report.plan) == 1 else 'entries'}"
        basis = "estimated" if result.replayed_step_ns is None else "without the profiler"
        yield Metric("After the plan", format_ms_range(after.low, after.high), f"{entries}, {basis}", "after")


def _sum_groups(report: Report) -> Iterator[tuple[str, float, str]]:
    """Shares of the step by group: compute, communication, copy, graph, idle."""
    for group in Group:
        rows = [row for row in report.budget if row.group == group.value]
        if sum(row.ns for row in rows):
            yield group.value, sum(row.fraction for row in rows), GROUP_COLOURS[group]
