"""What was tried, with the gain predicted and the gain measured: in a history, and by the two runs of a comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from three_walls.lib.text import (
    capitalize,
    format_count,
    format_ms,
    format_ms_range,
    format_name,
    format_saved,
    format_setting,
    format_share,
    format_share_change,
)
from three_walls.report.comparison import Decision, History, Judgement, Pair, TriedEntry, TriedRun
from three_walls.report.formats import describe_gain
from three_walls.report.overrides_file import quote_bridge, quote_env, quote_megatron_lm
from three_walls.report.report import Report
from three_walls.report.section import (
    ROW,
    Block,
    Cell,
    Column,
    Copyable,
    Hero,
    Items,
    Metric,
    Note,
    Section,
    Table,
    Terminal,
    Text,
)

_SHORT_JUDGEMENTS = {
    Judgement.INSIDE: "inside",
    Judgement.BELOW: "less",
    Judgement.ABOVE: "more",
    Judgement.UNKNOWN: "",
}
_JUDGEMENTS = {
    Judgement.INSIDE: "inside the predicted range",
    Judgement.BELOW: "less than predicted",
    Judgement.ABOVE: "more than predicted",
    Judgement.UNKNOWN: "not comparable with a prediction",
}


def history(report: Report) -> Section | None:
    """The section of a report: what was tried before this run."""
    return None if report.history is None else replace(tabulate_history(report.history), terminal=Terminal.FULL)


def make_history_sections(history: History) -> tuple[Section, ...]:
    """The sections of ``three-walls plan next``: the proposal, the entry, and the table of runs."""
    return (_head(history), *_next(history), tabulate_history(history))


def tabulate_history(history: History) -> Section:
    """The edits that were tried, each with the gain predicted and the gain measured; a section of a report too."""
    columns = (
        Column("Run", "name"),
        Column("Edit", ROW, _name_edit, width="wide"),
        Column("Decision", "decision", _mark_decision),
        Column("Step", "step_ns", format_ms),
        Column("Change", ROW, _describe_change, is_right=True),
        Column("Predicted", ROW, _describe_prediction, is_right=True),
        Column("Measured", "measured_ns", lambda ns: "" if ns is None else format_saved(ns), is_right=True),
        Column("Prediction", "judgement", _SHORT_JUDGEMENTS.__getitem__, in_terminal=False),
        Column("Against", "against", role="muted", in_terminal=False),
        Column("Reason", "reason", role="muted", width="third", in_terminal=False),
    )
    rows = history.runs
    table = Table("history", columns, rows, terminal_rows=len(rows), emphasis=lambda row: row.name == history.best)
    order = (
        "The runs are in the order in which they began"
        if history.is_by_time
        else ("Not every run states when it began: the runs are in the order of their names")
    )
    lead = (
        f"{order}. Each run is compared with the earlier one that it differs least from, and accepted where it is "
        "faster beyond the spread. What repetitions differ by counts as spread."
    )
    return Section("history", "What was tried", (table,), lead=lead, link="Tried", terminal=Terminal.ALWAYS)


def _head(history: History) -> Section:
    no_try = (Decision.BASE, Decision.REPEATED)
    tried = sum(run.decision not in no_try for run in history.runs)
    accepted = sum(run.decision is Decision.ACCEPTED for run in history.runs)
    following = history.next_trial
    title = f"Try next: {following.title}" if following else "Nothing to try next"
    best = history.best
    if history.best_step_ns and history.first_step_ns:
        speedup = history.first_step_ns / history.best_step_ns
        gain = f", {speedup:.2f} times as fast as the base" if speedup > 1 else ""
        best = f"{best}: {format_ms(history.best_step_ns)}{gain}"
    metrics = [
        Metric("Base", format_ms(history.first_step_ns), history.runs[0].name),
        Metric("Best", format_ms(history.best_step_ns), history.best, "after"),
    ]
    if following:
        gain = describe_gain(following.gain).removeprefix("gain ")
        metrics.append(Metric("Next", gain, following.rule))
    why = f"No entry: {history.no_next_reason}." if history.no_next_reason else ""
    hero = Hero(
        eyebrow=f"{len(history.runs)} runs",
        title=title,
        text=f"{tried} tried, {accepted} accepted. The best run is {best}.",
        notes=(why,) if why else (),
        remark=why,
        metrics=tuple(metrics),
        shares=(),
        role="history",
        step_line=f"Base {format_ms(history.first_step_ns)}, best {format_ms(history.best_step_ns)}.",
    )
    return Section("verdict", "", (hero,), terminal=Terminal.ALWAYS, role="hero history")


def _next(history: History) -> Sequence[Section]:
    following = history.next_trial
    if following is None:
        return ()
    forms = (
        ("bridge", "Megatron-Bridge overrides", quote_bridge(following.bridge)),
        ("megatron-lm", "Megatron-LM flags", quote_megatron_lm(following.megatron_lm)),
        ("env", "Environment", quote_env(dict(following.env))),
    )
    blocks: list[Block] = [
        Note((f"{following.title}:", f"{describe_gain(following.gain)}.", Text(following.rule, "code"))),
        Items(tuple(f"{key} = {format_setting(value)}" for key, value in following.edits), "Settings"),
        *(Copyable(f"next-{name}", title, lines) for name, title, lines in forms if lines),
    ]
    if history.planned_by != history.best:
        blocks.append(Note(f"By the plan of {history.planned_by}: trace {history.best} for a plan of its own."))
    if history.skipped:
        blocks.append(Note(f"Tried already: {', '.join(history.skipped)}.", role="muted"))
    return (Section("next", "The next entry", tuple(blocks), link="Next", terminal=Terminal.ALWAYS),)


def _name_edit(run: TriedRun) -> Cell:
    if run.decision is Decision.BASE:
        return Text("base", "muted")
    if run.decision is Decision.REPEATED:
        return Text(f"none: repeats {run.against}", "muted")
    if run.rules:
        return Text(", ".join(run.rules), "code")
    return "; ".join(run.settings) or Text("no setting known to differ", "muted")


def _describe_change(run: TriedRun) -> str:
    """The change, and what counts as the spread: ``-10.0% (±1.5%)``."""
    if run.change_fraction is None:
        return ""
    before_ns = None if run.step_ns is None or run.change_ns is None else run.step_ns - run.change_ns
    if run.spread_ns is None or not before_ns:
        return format_share_change(run.change_fraction)
    return f"{format_share_change(run.change_fraction)} (±{format_share(run.spread_ns / before_ns)})"


def _mark_decision(decision: Decision) -> Text:
    return Text(format_name(decision.value), "badge" if decision is not Decision.REVERTED else "badge warn")


def _describe_prediction(run: TriedRun) -> str:
    if run.predicted_low_ns is None or run.predicted_high_ns is None:
        return ""
    return format_ms_range(run.predicted_low_ns, run.predicted_high_ns)


def describe_trial(pair: Pair) -> Iterator[Block]:
    """What the plan of BEFORE predicted, and what was measured."""
    trial = pair.trial
    if trial.entries:
        columns = (
            Column("Entry", "order", format_count),
            Column("Edit", ROW, lambda entry: (entry.title, Text(entry.rule, "code"))),
            Column("Predicted", "predicted", lambda gain: describe_gain(gain).removeprefix("gain ")),
            Column("Measured alone", ROW, _describe_measured, is_right=True),
            Column("Judgement", ROW, _judge_entry),
        )
        yield Table(
            "trial",
            columns,
            trial.entries,
            title="What the plan of BEFORE predicted for them",
            terminal_rows=len(trial.entries),
        )
    if trial.measured_ns is None:
        return
    saved, low_ns, high_ns = describe_saved(trial.measured_ns), trial.predicted_low_ns, trial.predicted_high_ns
    predicted = ""
    if low_ns is not None and high_ns is not None:
        is_one = len([entry for entry in trial.entries if entry.is_whole]) == 1
        subject = "the entry" if is_one else "the entries together"
        predicted = f" Predicted for {subject}: {format_ms_range(low_ns, high_ns)}."
    if predicted and not trial.other_settings:
        judgement = capitalize(describe_judgement(trial.judgement, low_ns, high_ns, trial.measured_ns))
        yield Note(f"Measured: {saved}.{predicted} {judgement}.")
    elif trial.other_settings and len(trial.other_settings) + len(trial.entries) > 1:
        yield Note(f"Measured for all differences together: {saved}. It cannot be divided between them.{predicted}")
    elif trial.other_settings:
        planned = [each for each in pair.settings if each.key in trial.other_settings and each.rules and not each.note]
        word = "An entry of BEFORE's plan sets it to another value" if planned else "No entry of BEFORE's plan sets it"
        yield Note(f"Measured: {saved}. {word}.")


def _describe_measured(entry: TriedEntry) -> str:
    if entry.measured_ns is not None:
        return describe_saved(entry.measured_ns)
    return "together with others" if entry.is_whole else "applied in part"


def _judge_entry(entry: TriedEntry) -> str:
    if entry.measured_ns is None:
        return ""
    return describe_judgement(entry.judgement, entry.predicted.low or 0, entry.predicted.high, entry.measured_ns)


def describe_judgement(judgement: Judgement, low_ns: int | None, high_ns: int | None, measured_ns: int | None) -> str:
    """A measured gain against the predicted range; what is outside by less than the spread is called so."""
    if judgement is not Judgement.INSIDE or low_ns is None or high_ns is None or measured_ns is None:
        return _JUDGEMENTS[judgement]
    if low_ns <= measured_ns <= high_ns:
        return _JUDGEMENTS[judgement]
    return f"{'less' if measured_ns < low_ns else 'more'} than predicted, by no more than the spread"


def describe_saved(saved_ns: int) -> str:
    """``12.3 ms saved``, ``12.3 ms lost`` or ``no change``."""
    if saved_ns == 0:
        return "no change"
    return f"{format_ms(abs(saved_ns))} {'saved' if saved_ns > 0 else 'lost'}"
