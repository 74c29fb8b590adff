"""The plan: its entries in order, each with gain, edits, what to check before, how to verify it, and evidence.

Then the overrides of the whole plan, for each launcher.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from three_walls.advice.finding import (
    FREES_MEMORY,
    NEEDS_ALLOW,
    UPPER_BOUND,
    Finding,
    FirstTrial,
    Gain,
    Outcome,
    PlannedEdit,
    PlanNote,
    PlanStep,
)
from three_walls.lib.report_warning import SETTINGS_UNKNOWN
from three_walls.lib.text import (
    UNKNOWN,
    count_of,
    format_ms,
    format_ms_range,
    format_name,
    format_setting,
    format_share,
    in_percent,
    plural,
    show_control_characters,
)
from three_walls.report.charts import AFTER_COLOUR, MILLISECONDS, NOW_COLOUR, TICK_COLOUR, BarRow, Bars, Piece
from three_walls.report.formats import (
    describe_gain,
    describe_loss,
    format_cost,
    format_gain,
    format_gain_bounds,
    format_likely,
    format_wall,
)
from three_walls.report.overrides_file import list_entry_files, list_forms, slug
from three_walls.report.report import Report
from three_walls.report.section import (
    ROW,
    Block,
    Card,
    Cell,
    Chart,
    Column,
    Copyable,
    Fold,
    Inline,
    Items,
    Metric,
    Note,
    PageOnly,
    Range,
    Section,
    Table,
    Terminal,
    Text,
    TopEdit,
)
from three_walls.report.sections.config import SETTING
from three_walls.report.sections.steps import StepBase, find_step_base, step_after
from three_walls.report.sections.timeline import format_clock, link_of, name_cause

SHOWN_PLACES = 3
NO_SETTING = "no setting does it: see the finding"
CONFIRM_TITLE = "Before you apply it"
BELOW_NOISE = "too small to measure alone: apply it together with others"
IF_NOT = "If it cannot be applied:"
BY_HAND = "by hand: see the entry"


def plan(report: Report) -> Section:
    """The entries of the plan, and which to apply first."""
    blocks: list[Block] = []
    base = find_step_base(report)
    if report.plan and base is not None:
        title = f"From {base.name} ({format_ms(base.now_ns)}) to the step after the plan"
        blocks.append(Chart("plan", _draw(report, base), title))
    if report.first_trial is not None:
        must_show = Text(f"To verify: {report.first_trial.must_show}", "muted")
        label = "Apply entry 1 first, on its own."
        if report.plan and report.plan[0].order == 0:
            rank = report.verdict.culprit.named if report.verdict.culprit else "the slow rank"
            label = f"Fix {rank} first (entry 0), then trace again: every edit below is judged on the step without it."
        blocks.append(Note((describe_expectation(report.first_trial), must_show, *_name_file(report)), label))
    widest_ns = max((step.gain_ns.high or 0 for step in report.plan), default=0)
    blocks += [_describe_step(report, step, base, widest_ns) for step in report.plan]
    return Section(
        "plan",
        "The plan",
        tuple(blocks),
        lead=_lead(report) if report.plan else "",
        link="Plan",
        empty=explain_empty(report),
        terminal=Terminal.ALWAYS,
        on_paper=True,
    )


def overrides(report: Report) -> Section | None:
    """All edits of the plan as lines to copy, and notes on what no line can express."""
    blocks: list[Block] = [*_offer_forms(report, list_forms(report.overrides))]
    blocks += _list_notes(report, report.overrides.notes)
    if not blocks:
        return None
    return Section(
        "overrides",
        "Overrides to apply",
        tuple(blocks),
        lead="The whole plan, as in overrides.txt. Use the lines of your launcher: those for Megatron-Bridge and "
        "Megatron-LM are quoted for a shell.",
        link="Overrides",
        is_folded=True,
        terminal=Terminal.ALWAYS,
    )


def _offer_forms(
    report: Report,
    forms: Iterable[tuple[str, str, tuple[str, ...]]],
    prefix: str = "",
    *,
    only_bridge_in_terminal: bool = False,
) -> Iterator[Block]:
    """The forms of overrides; those of the launcher that the run is known not to use are folded."""
    others: list[Block] = []
    for name, title, lines in forms:
        block = Copyable(f"{prefix}{name}", title, lines, in_terminal=name == "bridge" or not only_bridge_in_terminal)
        if title.startswith(_OTHER_LAUNCHER.get(report.config.dialect, ())):
            others.append(block)
        else:
            yield block
    if others:
        yield Fold("For another launcher than the run's", tuple(others), role="inner")


_OTHER_LAUNCHER: dict[str, tuple[str, ...]] = {
    "bridge": ("Megatron-LM",),
    "megatron_bridge": ("Megatron-LM",),
    "megatron_lm": ("Megatron-Bridge", "Python"),
}
"""How a run was launched -> how the titles of the other launcher's forms begin."""


def _list_notes(report: Report, notes: tuple[str, ...]) -> Iterator[Items]:
    """What no line can express, without what is only of the launcher that the run is known not to use."""
    of_run = [note for note in notes if not note.startswith(_OTHER_LAUNCHER.get(report.config.dialect, ()))]
    if of_run:
        yield Items(tuple(f"note: {note}" for note in of_run), role="warning")


def explain_empty(report: Report) -> str:
    """What an empty plan means."""
    if not report.findings:
        return "Empty: no rule could be evaluated."
    if unpriced := explain_unpriced(report):
        return f"No plan: {unpriced}"
    asks = [warning.message for warning in report.warnings if warning.code == SETTINGS_UNKNOWN]
    if asks:
        return f"Empty: no rule recommends an edit by what is known of this run. {asks[0]}"
    return "Empty: no rule recommends an edit for this run."


def explain_unpriced(report: Report) -> str:
    """How many edits may help although no replay tells by how much, and why; empty if none does."""
    unpriced = list_unpriced(report)
    if not unpriced:
        return ""
    why = "no edit gains enough by replay"
    if reason := report.verdict.no_replay_reason:
        why = f"gains are not known, because the step cannot be replayed ({reason})"
    edits = count_of(len(unpriced), "edit")
    return f"{why}. {edits} may help: the findings list them with the most that each can gain."


def list_unpriced(report: Report) -> list[Finding]:
    """The findings that may help although no replay tells by how much; the largest upper bound first."""
    found = (finding for finding in report.findings if finding.outcome is Outcome.RECOMMENDED)
    planned = {step.rule for step in report.plan}
    outside = (finding for finding in found if finding.rule not in planned)
    return sorted(outside, key=lambda finding: (-(finding.gain_ns.high or 0), finding.rule))


def list_without_plan(report: Report) -> list[Finding]:
    """What helps where there is no plan: edits without a price, and what no setting fixes; what gains most first.

    What costs the shown step nothing, as a pause of another step, is among the findings alone.
    """
    found = [each for each in report.findings if each.outcome is Outcome.FOUND and each.gain_ns.high != 0]

    def most_ns(gain: Gain) -> int:
        return (gain.high or 0) if gain.likely is None else gain.likely

    return sorted([*found, *list_unpriced(report)], key=lambda finding: -most_ns(finding.gain_ns))


def explain_apart(finding: Finding) -> str:
    """Why a finding beside the plan cannot be applied right away; empty where its edits can."""
    if needs_allow(finding):
        return f"needs --allow {finding.applicability}"
    return "" if finding.edits else NO_SETTING


def needs_allow(finding: Finding) -> bool:
    """Whether its applicability alone keeps the finding out of the plan."""
    return finding.reason.startswith(NEEDS_ALLOW.format(finding.applicability))


def _name_file(report: Report) -> Iterator[Inline]:
    """Where the overrides of the first entry are, for the run's launcher if it has lines for it."""
    files = list_entry_files(report.plan[0]) if report.plan else {}
    for path in [files[form] for form in order_forms(report) if form in files][:1]:
        yield from ("Its overrides:", Text(path, "code"))


def order_forms(report: Report) -> tuple[str, ...]:
    """The forms of overrides, that of the run's launcher first."""
    if report.config.dialect == "megatron_lm":
        return "megatron-lm", "bridge", "env", "python"
    return "bridge", "megatron-lm", "env", "python"


def describe_top_edit(report: Report, step: PlanStep) -> TopEdit:
    """An entry of the plan in a line, with what its buttons copy."""
    gain = step.gain_ns
    note, copies = "", []
    if step.overrides is None:
        needed = [str(entry.order) for entry in report.plan if entry.rule in step.needs]
        entries = f"{plural(len(needed), 'entry', 'entries')} {', '.join(needed)}"
        note = f"together with {entries}" if needed else ""
    else:
        others = _OTHER_LAUNCHER.get(report.config.dialect, ())
        forms = {form for form, title, _ in list_forms(step.overrides) if not title.startswith(others)}
        main = next((form for form in order_forms(report) if form in forms and form != "env"), "")
        copies = [(_SHORT_NAMES[form], f"entry-{step.order}-{form}") for form in (main, "env") if form in forms]
        note = "" if copies else BY_HAND
    if step.is_below_noise and not note:
        note = BELOW_NOISE
    return TopEdit(str(step.order), step.finding.title, anchor_of(step), format_gain(gain), note, tuple(copies))


_SHORT_NAMES = {"bridge": "Bridge overrides", "megatron-lm": "Megatron-LM flags", "env": "env", "python": "Python"}


def describe_share(gain: Gain, base: StepBase | None) -> str:
    """A gain as a share of the step now: ``18.2-29%``, or ``4.2%`` for an upper bound; empty where it is not known."""
    if base is None or gain.high is None or gain.basis == FREES_MEMORY:
        return ""
    low, high = (gain.low or 0) / base.now_ns, gain.high / base.now_ns
    if gain.basis == UPPER_BOUND:
        return format_share(high)
    texts = [in_percent(fraction) if round(fraction, 3) else "0%" for fraction in (low, high)]
    return texts[0] if texts[0] == texts[1] else f"{texts[0].removesuffix('%')}{' to ' if low < 0 else '-'}{texts[1]}"


def _lead(report: Report) -> str:
    """How to read the entries, and what their gains rest on."""
    lead = "Apply the entries in this order. Each gain is relative to the step that the entries above it leave."
    if any(describe_loss(step.gain_ns) for step in report.plan):
        lead += " A gain with a negative low end may cost time."
    verdict = report.verdict
    if verdict.no_replay_reason and (unpriced := explain_unpriced(report)):
        return f"No entry follows: {unpriced}"
    if verdict.replayed_step_ns is not None:
        return (
            f"{lead} Gains are by replaying the step without what the profiler added, "
            f"{format_ms(verdict.replayed_step_ns)} now."
        )
    return lead


def describe_expectation(trial: FirstTrial) -> str:
    """What the log must show if the first entry works, or the rank was fixed."""
    if trial.basis == FREES_MEMORY:
        cost = format_cost(trial.cost_fraction)
        return f"It frees memory: the log's memory peak should fall. It {cost}."
    if trial.saved_low_fraction is None or trial.saved_high_fraction is None:
        return "Its gain is not known: compare the log's unprofiled step time before and after."
    high = format_share(trial.saved_high_fraction)
    now = format_ms(trial.unprofiled_step_ns)
    if trial.basis == UPPER_BOUND:
        start = "At best the log's unprofiled step time"
        if trial.unprofiled_step_ns is None:
            return f"{start} falls by {high} (upper bound)."
        return f"{start} falls from {now} to {format_ms(trial.unprofiled_step_after_low_ns)} (by {high}, upper bound)."
    share = f"{format_share(trial.saved_low_fraction)} to {high}"
    if trial.saved_low_fraction < 0:
        share = f"up to {high}, or it rises by up to {format_share(-trial.saved_low_fraction)}"
    if trial.unprofiled_step_ns is None:
        return f"The log's unprofiled step time should fall by {share}."
    after = format_ms_range(trial.unprofiled_step_after_low_ns, trial.unprofiled_step_after_high_ns)
    return f"The log's unprofiled step time should fall from {now} to {after} (by {share})."


def _draw(report: Report, base: StepBase) -> Bars:
    """A waterfall: the step now, what each entry takes away (pale: what it may), and the step after all of them."""
    now_ns = base.now_ns
    rows = [BarRow("Step now", (Piece(0, now_ns, NOW_COLOUR, "Step now", format_ms(now_ns)),), format_ms(now_ns))]
    before_ns = now_ns
    for step in report.plan:
        low_ns, likely_ns, high_ns = step_after(step)
        is_bound = step.gain_ns.basis == UPPER_BOUND
        after_ns = before_ns if is_bound else (low_ns + high_ns) // 2 if likely_ns is None else likely_ns
        rows.append(_draw_gain(step, before_ns, after_ns))
        before_ns = min(before_ns, after_ns)
    low_ns, likely_ns, high_ns = step_after(report.plan[-1])
    after = format_ms_range(low_ns, high_ns)
    pieces = (
        Piece(0, low_ns, AFTER_COLOUR, "After the plan", after),
        Piece(low_ns, high_ns - low_ns, AFTER_COLOUR, "After the plan", after, opacity=0.35),
    )
    likely = "" if likely_ns is None else f"{format_ms(likely_ns)} ("
    rows.append(BarRow("After the plan", pieces, f"{likely}{after}{')' if likely else ''}"))
    return Bars(tuple(rows), max(now_ns, high_ns), MILLISECONDS)


def _draw_gain(step: PlanStep, before_ns: int, after_ns: int) -> BarRow:
    """What an entry takes away, on top of the entries before it: dark up to its low end, pale up to its high end."""
    title, gain = f"{step.order}. {step.finding.title}", step.gain_ns
    text = describe_gain(gain)
    if gain.high is None:
        return BarRow(title, (), format_gain(gain))
    low, high = max(0, gain.low or 0), max(0, gain.high)
    start = max(0, before_ns - high)
    pieces = [Piece(start, before_ns - low - start, AFTER_COLOUR, title, text, opacity=0.35)]
    if low:
        pieces.append(Piece(before_ns - low, low, AFTER_COLOUR, title, text))
    if gain.likely is not None and 0 < after_ns < before_ns:
        pieces.append(Piece(after_ns, 0, TICK_COLOUR, title, f"likely {format_likely(gain)}"))
    return BarRow(title, tuple(pieces), format_gain(gain))


def _describe_step(report: Report, step: PlanStep, base: StepBase | None, widest_ns: int) -> Card:
    finding, gain = step.finding, step.gain_ns
    low_ns, likely_ns, high_ns = step_after(step)
    scale = None
    if widest_ns and gain.low is not None and gain.high is not None:
        likely = None if gain.likely is None else gain.likely / widest_ns
        scale = Range(max(0, gain.low) / widest_ns, gain.high / widest_ns, likely, describe_gain(gain))
    share = describe_share(gain, base)
    metrics = [Metric("Gain", format_gain_bounds(gain), f"{share} of the step now" if share else "")]
    if gain.cost_fraction is not None:
        metrics.append(Metric("Cost", format_cost(gain.cost_fraction).removeprefix("costs ")))
    elif gain.likely is not None:
        metrics.append(Metric("Likely", format_likely(gain)))
    likely_after = "" if likely_ns is None else f"likely {format_ms(likely_ns)}"
    metrics.append(Metric("Step after it", format_ms_range(low_ns, high_ns), likely_after))
    metrics.append(Metric("Basis", format_name(gain.basis)))
    return Card(
        title=finding.title,
        marker=str(step.order),
        tag=finding.rule,
        subtitle=(format_wall(finding.wall, finding.sub_wall),),
        metrics=tuple(metrics),
        scale=scale,
        blocks=tuple(_list_blocks(report, step)),
        role="plan-step",
        anchor=anchor_of(step),
    )


def anchor_of(step: PlanStep) -> str:
    """The entry's anchor in the page: ``edit-grouped-gemm``."""
    return f"edit-{slug(step.rule)}"


def _offer_overrides(report: Report, step: PlanStep) -> Iterator[Block]:
    """The overrides of this entry alone, those of the run's launcher first, or which entries it needs."""
    if step.needs:
        yield Note(step.no_overrides_reason, "Not on its own.")
        needed = [entry for entry in report.plan if entry.rule in step.needs]
        if links := tuple(Text(f"entry {entry.order} ({entry.rule})", link=anchor_of(entry)) for entry in needed):
            yield PageOnly((Note(links, "Apply first:"),))
    if step.overrides is None:
        return
    blocks: list[Block] = []
    if step.differing_edits:
        values = ", ".join(f"{edit.key} to {format_setting(edit.to)}" for edit in step.differing_edits)
        blocks.append(Note(f"It sets {values}, because it cannot build on earlier entries.", "Not as in the plan:"))
    order = order_forms(report)
    forms = sorted(
        list_forms(step.overrides), key=lambda form: order.index(form[0]) if form[0] in order else len(order)
    )
    blocks += _offer_forms(report, forms, f"entry-{step.order}-", only_bridge_in_terminal=True)
    blocks += _list_notes(report, step.overrides.notes)
    if blocks:
        is_first = step is report.plan[0]
        yield Fold("Overrides of this entry alone", tuple(blocks), is_open=is_first, in_full_terminal=True)


def _list_blocks(report: Report, step: PlanStep) -> Iterator[Block]:
    finding, gain = step.finding, step.gain_ns
    yield Note(finding.reason)
    if loss := describe_loss(gain):
        yield Note(f"It {loss}: measure the step before and after.")
    if step.beyond_wall:
        yield Note(step.beyond_wall, role="muted")
    if step.with_rule:
        yield Note(f"It makes the edits of {step.with_rule}, too, which gain too little alone.", "Together:")
    if finding.why_it_matters:
        yield PageOnly((Note(finding.why_it_matters, role="muted"),))
    if step.unlocked_by:
        yield Note(f"blocked until {step.unlocked_by} is applied.", "Prerequisite:")
    if step.edits:
        yield tabulate_edits(report, step.edits, f"plan_{step.order}_edits")
    elif finding.advice:
        yield Note(finding.advice, "What to look at:")
    yield from _offer_overrides(report, step)
    if step.is_below_noise:
        yield Note(f"{BELOW_NOISE[0].upper()}{BELOW_NOISE[1:]}, and compare the steps before and after all of them.")
    others = [other for other in report.findings if other.instead_of == step.rule]
    for other in sorted(others, key=lambda other: (-(other.gain_ns.likely or 0), other.rule)):
        aside = f"({other.rule}; {describe_gain(other.gain_ns)})."
        yield Note((Text(other.title, link=f"rule-{slug(other.rule)}"), aside), IF_NOT)
    if finding.confirm_first:
        yield list_confirmations(finding.confirm_first)
    if finding.side_effects:
        yield Items(finding.side_effects, "Side effects", "aside")
    yield from _show_places(report, step)
    rest: list[Block] = []
    if finding.how_to_verify:
        rest.append(Items((finding.how_to_verify,), "How to verify", "plain"))
    evidence = list_evidence(finding, step.gain_ns.explanation)
    if evidence:
        rest.append(Fold("Evidence for and against", tuple(replace(items, title="") for items in evidence)))
    if rest:
        yield PageOnly(tuple(rest))


def _show_places(report: Report, step: PlanStep) -> Iterator[Block]:
    """The longest stretches of what the entry changes, else gains from, with times to paste into Nsight Systems."""
    if report.timeline is None:
        return
    own = [each for entry in report.timeline.entries if entry.order == step.order for each in entry.longest]
    stretches = own or [each for each in report.timeline.longest if each.cause in step.seen_in]
    stretches.sort(key=lambda each: (-each.ns, each.start_ns))
    items = tuple(
        (
            Text(f"{format_ms(stretch.ns)} of {name_cause(stretch.cause)}", link=link_of(stretch)),
            f"at {format_clock(stretch.clock_ns)} in Nsight Systems (rank {stretch.rank})",
            Text(show_control_characters(stretch.detail), "muted"),
        )
        for stretch in stretches[:SHOWN_PLACES]
    )
    if items:
        yield PageOnly((Items(items, "Where it was seen", "plain aside"),))


def list_confirmations(notes: tuple[PlanNote, ...]) -> Items:
    """What to confirm before an entry is applied, each with its source."""
    items = tuple((note.text or note.name, Text(note.source, "source")) for note in notes)
    return Items(items, CONFIRM_TITLE, "checklist")


def list_evidence(finding: Finding, explanation: str = "") -> list[Items]:
    """How the gain was estimated, then the evidence for the edit and against it."""
    claims = [(Text("Estimate:", "strong"), explanation, Text("", "source"))] if explanation else []
    for side, notes in (("For", finding.evidence_for), ("Against", finding.evidence_against)):
        word = Text(f"{side}:", side.lower())
        claims += [(word, note.text or note.name, Text(note.source, "source")) for note in notes]
    return [Items(tuple(claims), "Evidence", "evidence")] if claims else []


def tabulate_edits(report: Report, edits: tuple[PlannedEdit, ...], name: str) -> Table:
    """Settings, each with its value in the run where it is known, and its new value."""

    def value_now(edit: PlannedEdit) -> Cell:
        known = report.config.environment if edit.kind == "env" else report.config.values
        is_known = edit.from_value is not None or edit.key in known
        return Text(format_setting(edit.from_value), "from") if is_known else UNKNOWN

    columns = (
        SETTING,
        Column("From", ROW, value_now),
        Column("To", "to", lambda value: Text(format_setting(value), "to")),
        Column("", ROW, _remark, width="third"),
    )
    return Table(name, columns, edits, terminal_rows=len(edits), is_compact=True)


def _remark(edit: PlannedEdit) -> Cell:
    reason = Text(edit.reason, "muted")
    return (Text("changes numerics", "badge warn"), reason) if edit.changes_numerics else reason
