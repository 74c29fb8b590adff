"""The head of a comparison, the conditions that it was to meet, and a row per run."""

from __future__ import annotations

from collections.abc import Iterator

from three_walls.lib.text import (
    NUMBER_FORMATS,
    UNKNOWN,
    capitalize,
    format_count,
    format_ms,
    format_name,
    format_setting,
    format_share,
    format_share_change,
)
from three_walls.report.comparison import Basis, ChangeOutcome, Comparison, ConditionOutcome, Pair, StepChange
from three_walls.report.section import ROW, Column, Hero, Metric, Section, Table, Terminal, Text
from three_walls.report.sections.walls import name_wall

BASES = {
    Basis.LOG: "unprofiled",
    Basis.REPLAY: "without the profiler (estimated)",
    Basis.TRACE: "as traced",
    Basis.MIXED: "unprofiled (one measured, one estimated)",
}
_OUTCOMES = {
    ConditionOutcome.HOLDS: ("holds: failed", "badge warn"),
    ConditionOutcome.DOES_NOT_HOLD: ("passed", "badge"),
    ConditionOutcome.WITHIN_SPREAD: ("passed, within the spread", "badge"),
    ConditionOutcome.UNKNOWN: ("unknown", "badge warn"),
}
_SHOWN_UNITS = ("ns", "fraction", "bytes", "bytes_per_s", "ratio")
"""Units that the values of conditions are written with."""


def compared_steps(comparison: Comparison) -> Section:
    """The head: the outcome in one sentence, with the two steps, their spread and the wall now."""
    before, pairs = comparison.before, comparison.pairs
    known = [pair for pair in pairs if pair.step.change_fraction is not None]
    best = min(known, key=lambda pair: (pair.step.change_fraction or 0, pair.after.name), default=pairs[0])
    sentence = describe_step_change(best.step)
    title, _, rest = sentence.partition(", ")
    if len(pairs) > 1:
        title = f"{best.after.name}: {title}"
    step, is_faster = best.step, best.step.outcome is ChangeOutcome.FASTER
    metrics = [
        Metric(f"Before: {before.name}", format_ms(step.before_ns), BASES.get(step.basis, "")),
        Metric(f"After: {best.after.name}", format_ms(step.after_ns), name_change(step), "after" if is_faster else ""),
    ]
    if step.spread_ns is not None:
        metrics.append(Metric("Spread of the steps", f"±{format_ms(step.spread_ns)}", step.spread_note))
    metrics.append(Metric("The wall now", name_wall(best.after)))
    roles = {ChangeOutcome.FASTER: "compute_host", ChangeOutcome.SLOWER: "communication"}
    notes = tuple(_list_notes(comparison, best))
    step_line = f"Step: {step.basis_note}." if rest else ""
    hero = Hero(
        eyebrow=f"{before.name} against {', '.join(pair.after.name for pair in pairs)}",
        title=title,
        text=f"{capitalize(rest or step.basis_note)}. {_name_changes(best)}",
        notes=notes,
        metrics=tuple(metrics),
        shares=(),
        role=roles.get(step.outcome, "comparison"),
        step_line=step_line,
        remark=" ".join(filter(None, (step_line, *notes))),
    )
    return Section("verdict", "", (hero,), terminal=Terminal.ALWAYS, role=f"hero {hero.role}")


_MOST_CHANGES = 4
"""Settings that the head names."""


def _name_changes(pair: Pair) -> str:
    """The settings that were changed, in a sentence."""
    made = [change for change in pair.settings if not change.follows]
    if not made:
        return "No setting is known to differ." if pair.settings_are_known else "Which settings differ is not known."
    named = [f"{row.key} {format_setting(row.before)} -> {format_setting(row.after)}" for row in made[:_MOST_CHANGES]]
    more = f" and {len(made) - _MOST_CHANGES} more" if len(made) > _MOST_CHANGES else ""
    return f"Changed: {', '.join(named)}{more}."


def _list_notes(comparison: Comparison, best: Pair) -> Iterator[str]:
    if best.step.spread_ns is not None:
        yield f"Spread: {best.step.spread_note}."
    if not comparison.repetitions and best.step.basis is Basis.LOG and best.step.outcome is not ChangeOutcome.UNKNOWN:
        yield (
            "Runs of one configuration may differ by more than the steps of one run: --repeat RUN counts what further "
            "runs of BEFORE differ by."
        )
    elif comparison.repetitions:
        yield f"BEFORE was repeated: {', '.join(run.name for run in comparison.repetitions)}."
        fractions = [best.step.change_fraction, *best.step.fractions_of_repetitions]
        known = [fraction for fraction in fractions if fraction is not None]
        if len(known) > 1:
            bounds = f"{format_share_change(min(known))} to {format_share_change(max(known))}"
            yield f"The step against each run of BEFORE: {bounds}."


def describe_step_change(step: StepChange) -> str:
    """``1.03 times as fast (3.1% shorter): 549 -> 532 ms unprofiled, beyond the spread of the steps (±0.8%)``.

    Up to the first comma it is a title. A step that takes half the time is twice as fast, not 50% faster.
    """
    if step.before_ns is None or step.after_ns is None:
        return f"The steps cannot be compared, {step.basis_note}"
    first, second = format_ms(step.before_ns), format_ms(step.after_ns)
    lengths = f"{first.removesuffix(' ms')} -> {second} {BASES[step.basis]}"
    spread = "" if step.spread_ns is None else f" (±{format_share(step.spread_ns / step.before_ns)})"
    per_token = work = ""
    if step.per_token_after_ns is not None:
        per_token = " per token"
        work = f", {format_ms(step.per_token_after_ns)} for as many tokens as BEFORE"
    if step.outcome is ChangeOutcome.NO_DIFFERENCE:
        if step.change_fraction == 0:
            return f"No difference{per_token}: {lengths}{work}"
        change = format_share_change(step.change_fraction)
        lengths = f"{first.removesuffix(' ms')} -> {second} ({change}) {BASES[step.basis]}"
        return f"No difference{per_token}: {lengths}{work}, not beyond the spread of the steps{spread}"
    share = f"{name_change(step)}{per_token}"
    if step.outcome is ChangeOutcome.FASTER:
        compared_ns = step.after_ns if step.per_token_after_ns is None else step.per_token_after_ns
        share = f"{step.before_ns / max(compared_ns, 1):.2f} times as fast{per_token} ({name_change(step)})"
    if step.spread_ns is None:
        return f"{share}: {lengths}{work}, but how much steps vary by themselves is {step.spread_note}"
    return f"{share}: {lengths}{work}, beyond the spread of the steps{spread}"


def name_change(step: StepChange) -> str:
    """The outcome in a few words: ``3.1% shorter``, ``no difference``."""
    word = {ChangeOutcome.FASTER: "shorter", ChangeOutcome.SLOWER: "longer"}.get(step.outcome)
    return f"{format_share(abs(step.change_fraction or 0))} {word}" if word else format_name(step.outcome.value)


def conditions(comparison: Comparison) -> Section | None:
    """What ``--fail-if`` asked, for each AFTER."""
    results = comparison.gate
    if not results:
        return None
    columns = (
        Column("Condition", "expression", role="code"),
        Column("Run", "after"),
        Column("Before", ROW, lambda row: _write_value(row.before_value, row.unit)),
        Column("After", ROW, lambda row: _write_value(row.after_value, row.unit)),
        Column("Outcome", "outcome", lambda outcome: Text(*_OUTCOMES[outcome])),
        Column("Note", "reason", role="muted", width="wide"),
    )
    table = Table("gate", columns, results, terminal_rows=len(results))
    return Section("gate", "Conditions", (table,), link="Conditions", terminal=Terminal.ALWAYS)


def _write_value(value: float | None, unit: str) -> str:
    return (NUMBER_FORMATS[unit] if unit in _SHOWN_UNITS else format_count)(value)


def compared_runs(comparison: Comparison) -> Section | None:
    """A row per AFTER; of a single one without repetitions the head states it all."""
    if len(comparison.pairs) == 1 and not comparison.repetitions:
        return None
    columns = (
        Column("Run", "after.name"),
        Column("Step", "step.after_ns", format_ms),
        Column("Basis", "step.basis", lambda basis: BASES.get(basis, UNKNOWN), role="muted"),
        Column("Change", "step.change_fraction", format_share_change),
        Column("Spread", ROW, _describe_spread, is_right=True),
        Column("Outcome", ROW, lambda pair: name_change(pair.step)),
        Column("Settings that differ", ROW, _name_settings, role="code", width="wide"),
    )
    pairs = comparison.pairs
    table = Table("runs", columns, pairs, terminal_rows=len(pairs))
    step = pairs[0].step
    basis = BASES.get(step.basis, "")
    lead = f"BEFORE is {comparison.before.name}: {' '.join(filter(None, (format_ms(step.before_ns), basis)))}."
    return Section("runs", "All runs", (table,), lead=lead, link="Runs", terminal=Terminal.ALWAYS)


def _describe_spread(pair: Pair) -> str:
    if pair.step.spread_ns is None or not pair.step.before_ns:
        return UNKNOWN
    return f"±{format_share(pair.step.spread_ns / pair.step.before_ns)}"


def _name_settings(pair: Pair) -> str:
    made = [change for change in pair.settings if not change.follows]
    return ", ".join(f"{change.key}={format_setting(change.after)}" for change in made) or "none known"
