"""Report -> the terminal: verdict first, warnings above the numbers they spoil, then budget, walls, plan."""

from __future__ import annotations

import io
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from three_walls.model.finding import Finding, Note, Outcome, PlannedEdit, PlanStep
from three_walls.model.report import Report
from three_walls.report.first_trial import describe_expectation
from three_walls.report.formats import (
    UNKNOWN,
    describe_gain,
    format_ms,
    format_ms_range,
    format_setting,
    format_share,
    format_wall,
)
from three_walls.report.overrides_file import quote_bridge, quote_env, quote_megatron_lm
from three_walls.report.palette import BUCKET_COLOURS
from three_walls.report.text_bar import Bar
from three_walls.report.text_diagnosis import (
    show_gap_causes,
    show_graph_coverage,
    show_moe_layers,
    show_overlap_slowdown,
    show_pipeline,
    show_recompute,
    show_waits,
)
from three_walls.report.text_efficiency import show_efficiency, show_memory
from three_walls.report.text_log import describe_log, describe_progress, show_log_timers
from three_walls.report.text_parts import heading, indent, indent_table, make_table, plain
from three_walls.report.text_recipe import show_recipe
from three_walls.report.text_snapshot import show_memory_snapshot
from three_walls.report.views import (
    MissingFacts,
    WallReading,
    explain_empty_plan,
    find_representative_rank,
    group_missing_facts,
    is_set_in_run,
    order_communication,
    read_walls,
    rows_with_time,
)

WIDTH = 100
"""Columns of the report where no terminal says otherwise."""

MOST_REASONS = 8
MOST_NAMES = 4
"""Why rules are undecided: reasons shown, and facts or rules named in each; report.json holds all."""


def print_report(report: Report, console: Console) -> None:
    """Print ``report`` on ``console``; plain text of :data:`WIDTH` columns when that is not a terminal."""
    if console.is_terminal:
        console.print(Group(*_sections(report)), width=min(console.width, WIDTH))
        return
    page = Console(file=io.StringIO(), width=WIDTH, force_terminal=False, color_system=None, legacy_windows=False)
    page.print(Group(*_sections(report)))
    lines = page.file.getvalue().splitlines()  # type: ignore[attr-defined]  # it is the StringIO above
    console.print(
        "\n".join(line.rstrip() for line in lines), soft_wrap=True, markup=False, highlight=False, emoji=False
    )


def _sections(report: Report) -> Iterator[RenderableType]:
    yield from _show_verdict(report)
    yield from _show_warnings(report)
    yield from _show_budget(report)
    yield from show_gap_causes(report)
    yield from _show_walls(report)
    yield from _show_communication(report)
    yield from show_waits(report)
    yield from show_log_timers(report)
    yield from show_pipeline(report)
    yield from show_moe_layers(report)
    yield from show_recompute(report)
    yield from show_overlap_slowdown(report)
    yield from show_memory_snapshot(report)
    yield from show_graph_coverage(report)
    yield from show_efficiency(report)
    yield from show_memory(report)
    yield from _show_plan(report)
    yield from _show_overrides(report)
    yield from show_recipe(report)
    yield from _show_found(report)
    yield from _show_undecided(report)


def _show_verdict(report: Report) -> Iterator[RenderableType]:
    verdict = report.verdict
    if verdict.abstained:
        yield plain("ABSTAINED: no wall is named", "bold yellow")
    else:
        yield plain(format_wall(verdict.wall, verdict.sub_wall).upper(), "bold red")
    yield plain(verdict.reason)
    if verdict.runner_up_wall is not None:
        runner_up = format_wall(verdict.runner_up_wall, verdict.runner_up_sub_wall)
        yield plain(f"Runner-up: {runner_up}, {format_share(verdict.margin_fraction)} of the step behind.", "dim")
    yield plain(_describe_step(report))
    if report.log is not None:
        yield plain(describe_log(report.log))
        if report.log.progress is not None:
            yield plain(describe_progress(report.log))


def _describe_step(report: Report) -> str:
    step = report.step
    if step.median_ns is None:
        return "; ".join(part for part in (f"Step: {UNKNOWN}", step.note) if part)
    length_ns = step.median_ns if report.verdict.step_ns is None else report.verdict.step_ns
    kept = f"{step.kept} kept last {format_ms_range(step.min_ns, step.max_ns)}, median {format_ms(step.median_ns)}"
    parts = (f"Step {format_ms(length_ns)}", kept, f"{len(step.dropped)} dropped", f"found by {step.source}", step.note)
    return "; ".join(part for part in parts if part)


def _show_warnings(report: Report) -> Iterator[RenderableType]:
    if not report.warnings:
        return
    yield heading("Warnings", "they limit what the numbers below can claim")
    table = make_table("", "")
    table.show_header = False
    for warning in report.warnings:
        table.add_row(plain(f"! {warning.code}", "yellow"), plain(warning.message))
    yield indent_table(table)


def _show_budget(report: Report) -> Iterator[RenderableType]:
    rows = rows_with_time(report)
    yield heading("Where the step goes")
    if not rows:
        yield indent(f"{UNKNOWN}: no step was kept")
        return
    yield indent(plain(report.budget_of, "dim"))
    table = make_table("bucket", "group", ">time", ">share", "")
    longest = max(row.fraction for row in rows)
    for row in rows:
        bar = Bar(row.fraction / longest, BUCKET_COLOURS.get(row.bucket, ""))
        table.add_row(row.bucket, row.group, format_ms(row.ns), format_share(row.fraction), bar)
    yield indent_table(table)


def _show_walls(report: Report) -> Iterator[RenderableType]:
    yield heading("What each wall could give back", "ceilings, not promises")
    table = make_table("wall", ">at most", ">of the step", "")
    for reading in read_walls(report):
        mark = "<- the wall" if reading.is_verdict else "runner-up" if reading.is_runner_up else ""
        _add_ceiling(table, format_wall(reading.wall), reading, mark)
        for half in reading.halves:
            _add_ceiling(table, f"  {half.sub_wall} half", half, "<- this half" if half.is_verdict else "")
    yield indent_table(table)


def _add_ceiling(table: Table, name: str, reading: WallReading, mark: str) -> None:
    style = "bold" if reading.is_verdict else ""
    table.add_row(name, format_ms(reading.recoverable_ns), format_share(reading.fraction), mark, style=style)


def _show_communication(report: Report) -> Iterator[RenderableType]:
    rank = find_representative_rank(report)
    if rank is None or not rank.communication:
        return
    yield heading("Communication", f"rank {rank.rank}; exposed: no compute kernel runs beside it")
    table = make_table("class", ">busy", ">exposed", ">hidden", ">exposed of busy")
    for name, time in order_communication(rank):
        share = format_share(time.exposed_ns / time.busy_ns if time.busy_ns else None)
        table.add_row(name, format_ms(time.busy_ns), format_ms(time.exposed_ns), format_ms(time.hidden_ns), share)
    yield indent_table(table)


def _show_plan(report: Report) -> Iterator[RenderableType]:
    yield heading("Plan", "in this order; each gain is on the step that the entries above leave")
    if not report.plan:
        yield indent(explain_empty_plan(report))
    for step in report.plan:
        yield from _show_plan_step(report, step)
    if report.first_trial is not None:
        trial = report.first_trial
        yield indent(plain("Try entry 1 first, alone. ", "bold").append(describe_expectation(trial), "not bold"))
        yield indent(f"If it worked: {trial.must_show}")


def _show_plan_step(report: Report, step: PlanStep) -> Iterator[RenderableType]:
    finding = step.finding
    yield indent(plain(f"{step.order}. {finding.title}", "bold").append(f"  [{finding.rule}]", "dim not bold"))
    yield indent(plain(describe_gain(step.gain_ns), "green"), 5)
    yield indent(f"step after it {format_ms_range(step.step_after_low_ns, step.step_after_high_ns)}", 5)
    yield indent(finding.reason, 5)
    for edit in step.edits:
        yield indent(_describe_edit(report, edit), 5)
    yield from _show_notes("confirm first", finding.confirm_first)
    if step.unlocked_by:
        yield indent(f"possible only after {step.unlocked_by}", 5)


def _describe_edit(report: Report, edit: PlannedEdit) -> Text:
    now = format_setting(edit.from_value) if is_set_in_run(report, edit) else UNKNOWN
    line = plain(f"set {edit.key}: {now} -> {format_setting(edit.to)}", "cyan")
    return line.append("  changes numerics", "yellow") if edit.changes_numerics else line


def _show_notes(label: str, notes: tuple[Note, ...]) -> Iterator[RenderableType]:
    for note in notes:
        yield indent(f"{label}: {note.text or note.name}", 5)


def _show_overrides(report: Report) -> Iterator[RenderableType]:
    overrides = report.overrides
    forms = (
        ("Environment", quote_env(overrides)),
        (f"Megatron-Bridge {overrides.bridge_version}", quote_bridge(overrides)),
        ("Megatron-LM", quote_megatron_lm(overrides)),
        ("Python, in the recipe", overrides.python),
    )
    if not overrides.notes and not any(lines for _, lines in forms):
        return
    yield heading("The whole plan, to paste", "also in overrides.txt; use your launcher's form")
    for title, lines in forms:
        if lines:
            yield indent(plain(title, "dim"))
        for line in lines:
            yield indent(line, 4)
    for note in overrides.notes:
        yield indent(plain(f"mind: {note}", "yellow"))


def _show_undecided(report: Report) -> Iterator[RenderableType]:
    """Blocked and failed rules: what stands in the way; and what to capture to decide the open ones."""
    planned = {step.finding.rule for step in report.plan}
    shown = (Outcome.BLOCKED, Outcome.ERROR)
    findings = [f for outcome in shown for f in report.findings if f.outcome is outcome and f.rule not in planned]
    missing = group_missing_facts(report)
    if not findings and not missing:
        return
    yield heading("Not decided, or not possible now")
    if findings:
        table = make_table("outcome", "rule", "why")
        for finding in findings:
            table.add_row(finding.outcome.value, plain(finding.rule), plain(_describe_obstacle(finding)))
        yield indent_table(table)
    if missing:
        yield indent("To decide more rules, give or capture:")
    for group in missing[:MOST_REASONS]:
        yield indent(_describe_missing(group), 4)
    if len(missing) > MOST_REASONS:
        more = sum(len(group.names) for group in missing[MOST_REASONS:])
        yield indent(plain(f"{more} more facts, each with its reason, in report.json and report.html", "dim"), 4)


def _describe_missing(group: MissingFacts) -> str:
    """``a, b and 3 more (for rule): why``; of settings also what tells them."""
    names = _name_some(group.names, MOST_NAMES)
    where = "; the training log (--log), --config or --set tell them" if group.are_settings else ""
    return f"{names} (for {_name_some(group.rules, MOST_NAMES)}): {group.reason}{where}"


def _name_some(names: tuple[str, ...], most: int) -> str:
    """All of ``names``, or the first and how many are left."""
    rest = len(names) - most
    return ", ".join(names) if rest <= 1 else f"{', '.join(names[:most])} and {rest} more"


def _show_found(report: Report) -> Iterator[RenderableType]:
    """What the run shows and no setting mends."""
    findings = [finding for finding in report.findings if finding.outcome is Outcome.FOUND]
    if findings:
        yield heading("Also found", "no edit of the configuration mends these")
    for finding in findings:
        yield indent(plain(finding.title, "bold").append(f"  [{finding.rule}]", "dim not bold"))
        yield indent(finding.reason, 5)
        yield indent(f"what to do: {finding.advice}", 5)


def _describe_obstacle(finding: Finding) -> str:
    if finding.outcome is Outcome.BLOCKED and finding.blocked_by:
        return "; ".join(f"{note.name}: {note.text}" for note in finding.blocked_by)
    return finding.reason
