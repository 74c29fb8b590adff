"""The report in brief: one screen of a terminal, or a comment in a ticket. It has no section of the page."""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter

from three_walls.advice.finding import FREES_MEMORY, PlanStep
from three_walls.lib.report_warning import ReportWarning
from three_walls.lib.text import (
    count_of,
    format_ms,
    format_ms_estimate,
    format_ms_range,
    format_share,
    keep_sentences,
    plural,
)
from three_walls.report.formats import format_gain
from three_walls.report.overrides_file import list_entry_files, list_forms
from three_walls.report.report import Report
from three_walls.report.section import (
    Block,
    Card,
    Column,
    Copyable,
    Hero,
    Items,
    Metric,
    Note,
    Section,
    Table,
    Text,
)
from three_walls.report.sections.budget import bar_column, order_buckets, title_budget
from three_walls.report.sections.plan import (
    BELOW_NOISE,
    CONFIRM_TITLE,
    describe_expectation,
    explain_apart,
    explain_empty,
    list_unpriced,
    list_without_plan,
    order_forms,
)
from three_walls.report.sections.steps import find_step_base, step_after
from three_walls.report.sections.verdict import NO_EDIT, describe_pauses, list_weighty, verdict
from three_walls.step.step_rows import BudgetRow
from three_walls.tables.buckets import BUCKET_TITLES

MOST_BUDGET_ROWS = 10
"""Rows of the budget, the one that sums the rest included."""
MOST_PLAN_LINES = 12
"""Lines that the plan takes on the terminal."""
LEAST_OVERRIDES = 3
"""Entries whose first override is shown before more entries or warnings are."""
MOST_WARNINGS = 3
_LONGEST_NOTE = 190
"""Characters of a warning on the terminal: two lines."""
_LONGEST_ADVICE = 75

_REMARKS = frozenset(
    {
        "capture-start-skew",
        "command-line",
        "config-source",
        "log-blocks-left-out",
        "log-dispatcher",
        "log-memory-early",
        "log-overlap",
        "log-override-skipped",
        "log-processes-left-out",
        "long-names",
        "one-step",
        "outlier-step",
        "rank-not-in-trace",
        "secrets-in-trace",
        "untimed-operations",
    }
)
"""Codes of warnings that change neither the verdict nor the plan. In brief they are counted."""


def make_screen(report: Report, plan_lines: int, most_warnings: int) -> tuple[Section, ...]:
    """The sections for a terminal: verdict, warnings, budget, and a plan of at most ``plan_lines`` lines."""
    hero = _find_hero(report)
    hero = replace(hero, notes=(*([hero.remark] if hero.remark else []), *describe_pauses(report)))
    limiting, hidden = _split_warnings(report, most_warnings)
    warned = tuple(f"{keep_sentences(warning.message, _LONGEST_NOTE)} ({warning.code})" for warning in limiting)
    blocks: tuple[Block, ...] = (Items(warned, role="list"),) if warned else ()
    if hidden:
        blocks = (*blocks, Note(f"{hidden}: --full", role="muted"))
    return (
        Section("verdict", "", (hero,)),
        *((Section("warnings", "Warnings", blocks),) if blocks else ()),
        Section("budget", title_budget(report), _tabulate_budget(report), empty="Unknown: no step was kept."),
        Section(
            "plan", "The plan", _tabulate_plan(report, plan_lines), lead=_lead(report), empty=explain_empty(report)
        ),
    )


def make_ticket(report: Report) -> tuple[Section, ...]:
    """The sections for a ticket, a chat or the summary of a CI job: the same with the overrides of every entry."""
    limiting, hidden = _split_warnings(report, len(report.warnings))
    warned = tuple((warning.message, Text(warning.code, "source")) for warning in limiting)
    blocks: list[Block] = [Items(warned)] if warned else []
    if hidden:
        blocks.append(Note(f"{hidden} in the full report.", role="muted"))
    return (
        Section("verdict", "", (replace(_find_hero(report), edits=()), *_name_first(report))),
        Section(
            "plan",
            "The plan",
            tuple(_describe_entry(report, step) for step in report.plan) or _tabulate_unpriced(report, MOST_PLAN_LINES),
            lead=_lead(report),
            empty=explain_empty(report),
        ),
        Section("budget", title_budget(report), _tabulate_budget(report), empty="Unknown: no step was kept."),
        *((Section("warnings", "Warnings", tuple(blocks)),) if blocks else ()),
    )


def name_verdict(report: Report) -> str:
    """The verdict in a few words."""
    hero = _find_hero(report)
    return "No wall named" if hero.role == "abstained" else hero.title


def _find_hero(report: Report) -> Hero:
    return next(block for block in verdict(report).blocks if isinstance(block, Hero))


def _split_warnings(report: Report, most: int) -> tuple[tuple[ReportWarning, ...], str]:
    """At most ``most`` of the warnings that limit the verdict or the plan, and in words how many others there are."""
    remarks = _REMARKS | {"straggler"} if report.verdict.culprit is not None else _REMARKS  # the verdict names it
    limiting = tuple(warning for warning in report.warnings if warning.code not in remarks)
    notes_count = len(report.warnings) - len(limiting)
    hidden = [count_of(len(limiting) - most, "more warning")] if len(limiting) > most else []
    if notes_count:
        hidden.append(count_of(notes_count, "note" if hidden or not limiting else "more note"))
    return limiting[:most], " and ".join(hidden)


def _tabulate_budget(report: Report) -> tuple[Table, ...]:
    """The longest buckets, and the sum of all others."""
    rows = order_buckets(report)
    if not rows:
        return ()
    if len(rows) > MOST_BUDGET_ROWS:
        rest = rows[MOST_BUDGET_ROWS - 1 :]
        ns, fraction = sum(row.ns for row in rest), sum(row.fraction for row in rest)
        rows = [*rows[: MOST_BUDGET_ROWS - 1], BudgetRow(f"{len(rest)} others", "", ns, fraction, "")]
    columns = (
        Column("Bucket", "bucket", lambda bucket: BUCKET_TITLES.get(bucket, bucket)),
        Column("Time", "ns", format_ms),
        Column("Share", "fraction", format_share),
        bar_column(rows),
    )
    return (Table("budget", columns, rows, terminal_rows=len(rows), has_head=False),)


def _lead(report: Report) -> str:
    """From which step to which the whole plan leads."""
    base = find_step_base(report)
    if not report.plan:
        if list_unpriced(report):
            return explain_empty(report)
        return f"{NO_EDIT}:" if list_without_plan(report) else ""
    if base is None:
        return ""
    low_ns, likely_ns, high_ns = step_after(report.plan[-1])
    after = format_ms_range(low_ns, high_ns)
    if likely_ns is not None:
        after = f"{format_ms_estimate(likely_ns, high_ns)} ({after})"
    small = f" *: {BELOW_NOISE}." if any(step.is_below_noise for step in report.plan) else ""
    return f"{format_ms(base.now_ns)} now ({base.note}), {after} with all entries. Apply them in order.{small}"


def _tabulate_unpriced(report: Report, lines: int) -> tuple[Block, ...]:
    """Without a plan: a line for each edit that may help, and for what no setting fixes, with its upper bound."""
    found = list_without_plan(report)
    rows = [
        (format_gain(finding.gain_ns), f"{finding.title}{f' ({why})' if (why := explain_apart(finding)) else ''}")
        for finding in found[:lines]
    ]
    if len(found) > len(rows):
        rows[-1] = ("", f"{len(found) - len(rows) + 1} more: --full")
    columns = (Column("Gain", itemgetter(0)), Column("Change", itemgetter(1)))
    return (Table("plan", columns, rows, terminal_rows=len(rows), has_head=False),) if rows else ()


def _tabulate_plan(report: Report, lines: int) -> tuple[Block, ...]:
    """A line per entry, and below the first ones a line with an override, as long as ``lines`` last."""
    if not report.plan:
        return _tabulate_unpriced(report, lines)
    shown = report.plan if len(report.plan) < lines else report.plan[: max(1, lines - 1 - LEAST_OVERRIDES)]
    spare = lines - len(shown) - (len(shown) < len(report.plan))
    rows: list[tuple[str, str, str]] = []
    for step in shown:
        mark = " *" if step.is_below_noise else ""
        rows.append((f"{step.order}.", format_gain(step.gain_ns), f"{step.finding.title}{mark}"))
        override = _name_override(report, step) if spare > 0 else ""
        if override:
            rows.append(("", "", override))
            spare -= 1
    if left := len(report.plan) - len(shown):
        rows.append(("", "", f"{left} more {plural(left, 'entry', 'entries')}: --full"))
    rows += [
        ("", format_gain(finding.gain_ns), f"{finding.title} ({explain_apart(finding)})")
        for finding in list_weighty(report)[: max(1, spare)]
    ]
    columns = (Column("", itemgetter(0)), Column("Gain", itemgetter(1)), Column("Change", itemgetter(2)))
    return (Table("plan", columns, rows, terminal_rows=len(rows), has_head=False, emphasis=itemgetter(0)),)


def _name_override(report: Report, step: PlanStep) -> str:
    """The first override of the entry alone, or why it has none; of an entry without edits how its advice begins."""
    if not step.edits:
        return keep_sentences(step.finding.advice, _LONGEST_ADVICE)
    if step.needs:
        needed = ", ".join(str(earlier.order) for earlier in report.plan if earlier.rule in step.needs)
        return f"only together with entry {needed}"
    forms, notes = _list_overrides(report, step)
    lines = [line for _, _, lines in forms for line in lines] or list(notes)
    more = f"  (and {count_of(len(lines) - 1, 'more line')})" if len(lines) > 1 else ""
    return f"{lines[0]}{more}" if lines else ""


def _list_overrides(
    report: Report, step: PlanStep
) -> tuple[tuple[tuple[str, str, tuple[str, ...]], ...], tuple[str, ...]]:
    """Id, title and lines of the entry's overrides for the run's launcher, and notes on what no line can express.

    Where the launcher is not known, or nothing can be set there, they are those for the other one.
    """
    if step.overrides is None:
        return (), ()
    forms = {form[0]: form for form in list_forms(step.overrides)}
    for form in order_forms(report)[:2]:
        launcher = "Megatron-LM:" if form == "megatron-lm" else "Megatron-Bridge:"
        notes = tuple(note for note in step.overrides.notes if note.startswith((launcher, "Applied alone")))
        if form in forms or any("remove" in note for note in notes):
            break
    return tuple(forms[part] for part in (form, "env") if part in forms), notes


def _name_first(report: Report) -> tuple[Block, ...]:
    """Which entry to apply first. A ticket has no anchors, so the entry is named by its number."""
    if report.first_trial is None or not report.plan:
        return ()
    first = report.plan[0]
    files = list_entry_files(first)
    forms, _ = _list_overrides(report, first)
    path = next((files[name] for name, _, _ in forms if name in files), "")
    where = ("Its overrides are below, and in", Text(path, "code")) if path else ()
    text = f"entry {first.order}, {report.first_trial.title}."
    return (Note((text, describe_expectation(report.first_trial), *where), "First trial:"),)


def _describe_entry(report: Report, step: PlanStep) -> Card:
    finding, gain = step.finding, step.gain_ns
    blocks: list[Block] = [Note(finding.reason)]
    if step.beyond_wall:
        blocks.append(Note(step.beyond_wall, role="muted"))
    if not step.edits and finding.advice:
        blocks.append(Note(finding.advice, "What to look at:"))
    if step.needs:
        blocks.append(Note(step.no_overrides_reason, "Not on its own."))
    forms, notes = _list_overrides(report, step)
    blocks += [Copyable(f"entry-{step.order}-{name}", title, lines) for name, title, lines in forms]
    if notes:
        blocks.append(Items(notes))
    if finding.confirm_first:
        texts = tuple(note.text or note.name for note in finding.confirm_first)
        blocks.append(Items(texts, CONFIRM_TITLE, "checklist"))
    metrics = [Metric("Gain", format_gain(gain).removeprefix("gain "))]
    if find_step_base(report) is not None and gain.basis != FREES_MEMORY:
        low_ns, _, high_ns = step_after(step)
        metrics.append(Metric("Step after it", format_ms_range(low_ns, high_ns)))
    return Card(finding.title, tuple(blocks), marker=str(step.order), tag=finding.rule, metrics=tuple(metrics))
