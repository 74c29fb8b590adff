"""The sections of a comparison: did the step change, by which settings, in which buckets and kernels, what is next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from three_walls.advice.finding import Gain
from three_walls.lib.text import (
    UNKNOWN,
    count_of,
    format_bandwidth,
    format_count,
    format_gib,
    format_ms,
    format_ms_change,
    format_ms_range,
    format_name,
    format_ratio,
    format_saved,
    format_setting,
    format_share,
    format_share_change,
)
from three_walls.report.formats import describe_gain, format_wall
from three_walls.report.palette import BUCKET_COLOURS
from three_walls.report.section import (
    ROW,
    Bar,
    Block,
    Cell,
    Column,
    Hero,
    Inline,
    Items,
    Metric,
    Note,
    Section,
    Swatch,
    Table,
    Terminal,
    Text,
)
from three_walls.report.tuning_rows import Basis, Judgement, TriedEntry
from three_walls.runs.comparison import (
    BucketReconciliation,
    ChangeOutcome,
    ComparedRun,
    Comparison,
    ConditionOutcome,
    ConditionResult,
    KernelReconciliation,
    Pair,
    Severity,
    StepChange,
)

_BASES = {
    Basis.LOG: "unprofiled",
    Basis.REPLAY: "without the profiler (estimated)",
    Basis.TRACE: "as traced",
    Basis.MIXED: "unprofiled (one measured, one estimated)",
}
_JUDGEMENTS = {
    Judgement.INSIDE: "inside the predicted range",
    Judgement.BELOW: "less than predicted",
    Judgement.ABOVE: "more than predicted",
    Judgement.UNKNOWN: "not comparable with a prediction",
}
_OUTCOMES = {
    ConditionOutcome.HOLDS: "holds: failed",
    ConditionOutcome.DOES_NOT_HOLD: "passed",
    ConditionOutcome.WITHIN_SPREAD: "passed, within the spread",
    ConditionOutcome.UNKNOWN: "unknown",
}
_KERNEL_STATES = {
    "new": "new",
    "gone": "gone",
    "small_before": "before: small or none",
    "small_after": "after: small or none",
}
_LESS_COLOUR, _MORE_COLOUR, _PROFILER_COLOUR = "#22a05a", "#ea580c", "#94a3b8"
_SHOWN_BUCKETS, _SHOWN_KERNELS, _SHOWN_SETTINGS = 10, 12, 12


def make_comparison_sections(comparison: Comparison) -> tuple[Section, ...]:
    """The sections of ``comparison`` that have something to show: the head, the gate, then those of each pair."""
    pairs = comparison.pairs
    made: list[Section | None] = [_head(comparison), _gate(comparison.gate), _runs(comparison)]
    for place, pair in enumerate(pairs):
        suffix = f"-{place + 1}" if len(pairs) > 1 else ""
        title = f"{pair.after.name}: " if len(pairs) > 1 else ""
        made += [
            _limits(pair, suffix, title),
            _settings(pair, suffix, title),
            _buckets(pair, suffix, title),
            _communication(pair, suffix, title),
            _kernels(pair, suffix, title),
            _next(comparison.before, pair, suffix, title),
        ]
    return tuple(section for section in made if section is not None)


def describe_step_change(step: StepChange) -> str:
    """``3.1% faster: 549 -> 532 ms unprofiled, beyond the spread of the steps (±0.8%)``.

    Up to the first comma it is a title.
    """
    if step.before_ns is None or step.after_ns is None:
        return f"The steps cannot be compared, {step.basis_note}"
    first, second = format_ms(step.before_ns), format_ms(step.after_ns)
    lengths = f"{first.removesuffix(' ms')} -> {second} {_BASES[step.basis]}"
    spread = "" if step.spread_ns is None else f" (±{format_share(step.spread_ns / step.before_ns)})"
    per_token = work = ""
    if step.per_token_after_ns is not None:
        per_token = " per token"
        work = f", {format_ms(step.per_token_after_ns)} for as many tokens as BEFORE"
    if step.outcome is ChangeOutcome.NO_DIFFERENCE:
        if step.change_fraction == 0:
            return f"No difference{per_token}: {lengths}{work}"
        change = format_share_change(step.change_fraction)
        lengths = f"{first.removesuffix(' ms')} -> {second} ({change}) {_BASES[step.basis]}"
        return f"No difference{per_token}: {lengths}{work}, not beyond the spread of the steps{spread}"
    share = f"{format_share(abs(step.change_fraction or 0))} {step.outcome.value}{per_token}"
    if step.spread_ns is None:
        return f"{share}: {lengths}{work}, but how much steps vary by themselves is {step.spread_note}"
    return f"{share}: {lengths}{work}, beyond the spread of the steps{spread}"


def name_change(step: StepChange) -> str:
    """The outcome in a few words: ``3.1% faster``, ``no difference``."""
    if step.outcome in (ChangeOutcome.FASTER, ChangeOutcome.SLOWER):
        return f"{format_share(abs(step.change_fraction or 0))} {step.outcome.value}"
    return format_name(step.outcome.value)


def _head(comparison: Comparison) -> Section:
    before, pairs = comparison.before, comparison.pairs
    ranked = sorted(
        (pair for pair in pairs if pair.step.change_fraction is not None),
        key=lambda pair: (pair.step.change_fraction or 0, pair.after.name),
    )
    best = ranked[0] if ranked else pairs[0]
    sentence = describe_step_change(best.step)
    title, _, rest = sentence.partition(", ")
    if len(pairs) > 1:
        title = f"{best.after.name}: {title}"
    step, is_faster = best.step, best.step.outcome is ChangeOutcome.FASTER
    metrics = [
        Metric(f"Before: {before.name}", format_ms(step.before_ns), _BASES.get(step.basis, "")),
        Metric(f"After: {best.after.name}", format_ms(step.after_ns), name_change(step), "after" if is_faster else ""),
    ]
    if step.spread_ns is not None:
        metrics.append(Metric("Spread of the steps", f"±{format_ms(step.spread_ns)}", step.spread_note))
    metrics.append(Metric("The wall now", _name_wall(best.after)))
    roles = {ChangeOutcome.FASTER: "compute_host", ChangeOutcome.SLOWER: "communication"}
    notes = tuple(_list_notes(comparison, best))
    step_line = f"Step: {step.basis_note}." if rest else ""
    hero = Hero(
        eyebrow=f"{before.name} against {', '.join(pair.after.name for pair in pairs)}",
        title=title,
        text=f"{_capitalize(rest or step.basis_note)}.",
        notes=notes,
        metrics=tuple(metrics),
        shares=(),
        role=roles.get(step.outcome, "comparison"),
        step_line=step_line,
        remark=" ".join(filter(None, (step_line, *notes))),
    )
    return Section("verdict", "", (hero,), terminal=Terminal.ALWAYS, role=f"hero {hero.role}")


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


def _name_wall(run: ComparedRun) -> str:
    return format_wall(run.wall, run.sub_wall) if run.has_trace else UNKNOWN


def _gate(results: Sequence[ConditionResult]) -> Section | None:
    if not results:
        return None
    columns = (
        Column("Condition", "expression", role="code"),
        Column("Run", "after"),
        Column("Before", ROW, lambda row: format_value(row.before_value, row.unit)),
        Column("After", ROW, lambda row: format_value(row.after_value, row.unit)),
        Column("Outcome", "outcome", lambda outcome: Text(_OUTCOMES[outcome], _outcome_role(outcome))),
        Column("Note", "reason", role="muted", width="wide"),
    )
    table = Table("gate", columns, results, terminal_rows=len(results))
    return Section("gate", "Conditions", (table,), link="Conditions", terminal=Terminal.ALWAYS)


def _outcome_role(outcome: ConditionOutcome) -> str:
    return "badge warn" if outcome in (ConditionOutcome.HOLDS, ConditionOutcome.UNKNOWN) else "badge"


def format_value(value: float | None, unit: str) -> str:
    """A value of a condition in its unit."""
    formats = {
        "ns": format_ms,
        "fraction": format_share,
        "bytes": format_gib,
        "bytes_per_s": format_bandwidth,
        "ratio": format_ratio,
    }
    return formats.get(unit, format_count)(value)


def _runs(comparison: Comparison) -> Section | None:
    """A row per AFTER; of a single one without repetitions the head states it all."""
    if len(comparison.pairs) == 1 and not comparison.repetitions:
        return None
    columns = (
        Column("Run", "after.name"),
        Column("Step", "step.after_ns", format_ms),
        Column("Basis", "step.basis", lambda basis: _BASES.get(basis, UNKNOWN), role="muted"),
        Column("Change", "step.change_fraction", format_share_change),
        Column("Spread", ROW, _describe_spread, is_right=True),
        Column("Outcome", ROW, lambda pair: name_change(pair.step)),
        Column("Settings that differ", ROW, _name_settings, role="code", width="wide"),
    )
    pairs = comparison.pairs
    table = Table("runs", columns, pairs, terminal_rows=len(pairs))
    step = pairs[0].step
    basis = _BASES.get(step.basis, "")
    lead = f"BEFORE is {comparison.before.name}: {' '.join(filter(None, (format_ms(step.before_ns), basis)))}."
    return Section("runs", "All runs", (table,), lead=lead, link="Runs", terminal=Terminal.ALWAYS)


def _describe_spread(pair: Pair) -> str:
    if pair.step.spread_ns is None or not pair.step.before_ns:
        return UNKNOWN
    return f"±{format_share(pair.step.spread_ns / pair.step.before_ns)}"


def _name_settings(pair: Pair) -> str:
    made = [change for change in pair.settings if not change.follows]
    return ", ".join(f"{change.key}={format_setting(change.after)}" for change in made) or "none known"


def _limits(pair: Pair, suffix: str, title: str) -> Section | None:
    if not pair.unlike:
        return None
    columns = (
        Column("Warning", ROW, _mark_unlike),
        Column("Meaning", "message", width="wide"),
    )
    table = Table(f"unlike{suffix}", columns, pair.unlike, terminal_rows=len(pair.unlike))
    return Section(
        f"unlike{suffix}",
        f"{title}What limits the comparison",
        (table,),
        terminal=Terminal.ALWAYS,
        role="warnings",
    )


def _mark_unlike(unlike: object) -> Cell:
    code, severity = unlike.code, unlike.severity  # type: ignore[attr-defined]  # a row of the table is an Unlikeness
    return (Text(code, "code"), Text("forced", "badge warn")) if severity is Severity.REFUSAL else Text(code, "code")


def _settings(pair: Pair, suffix: str, title: str) -> Section:
    blocks: list[Block] = []
    made = [change for change in pair.settings if not change.follows]
    following = [change for change in pair.settings if change.follows]
    is_proposed, has_notes = any(change.rules for change in made), any(change.note for change in made)
    columns = (
        Column("Setting", ROW, lambda row: _name_setting(row.key, row.kind)),
        Column("Before", "before", lambda value: Text(format_setting(value), "from")),
        Column("After", "after", lambda value: Text(format_setting(value), "to")),
        *([Column("Proposed by", ROW, lambda row: ", ".join(row.rules), role="code")] if is_proposed else []),
        *([Column("Note", "note", role="muted", width="third", in_terminal=False)] if has_notes else []),
    )
    if made:
        blocks.append(Table(f"settings{suffix}", columns, made, terminal_rows=_SHOWN_SETTINGS))
    elif pair.settings_are_known:
        blocks.append(Note("No setting that both runs state differs."))
    if following:
        names = ", ".join(change.key for change in following)
        blocks.append(Note(f"{count_of(len(following), 'default')} differ with them: {names}.", role="muted"))
    if pair.settings_note:
        blocks.append(Note(pair.settings_note, role="muted"))
    blocks += _describe_trial(pair, suffix)
    return Section(
        f"settings{suffix}",
        f"{title}Settings that differ",
        tuple(blocks),
        link="" if suffix else "Settings",
        terminal=Terminal.ALWAYS,
    )


def _name_setting(key: str, kind: str) -> Cell:
    return (Text(key, "code"), Text("environment", "badge")) if kind == "env" else Text(key, "code")


def _describe_trial(pair: Pair, suffix: str) -> Iterator[Block]:
    """What the plan of BEFORE predicted, and what was measured."""
    trial = pair.trial
    if trial.entries:
        columns = (
            Column("Entry", "order", format_count),
            Column("Edit", ROW, lambda entry: (entry.title, Text(entry.rule, "code"))),
            Column("Predicted", "predicted", _describe_prediction),
            Column("Measured alone", ROW, _describe_measured, is_right=True),
            Column("Judgement", ROW, lambda entry: _judge_entry(entry)),
        )
        yield Table(
            f"trial{suffix}",
            columns,
            trial.entries,
            title="What the plan of BEFORE predicted for them",
            terminal_rows=len(trial.entries),
        )
    if trial.measured_ns is None:
        return
    saved, low_ns, high_ns = format_saved(trial.measured_ns), trial.predicted_low_ns, trial.predicted_high_ns
    predicted = ""
    if low_ns is not None and high_ns is not None:
        is_one = len([entry for entry in trial.entries if entry.is_whole]) == 1
        subject = "the entry" if is_one else "the entries together"
        predicted = f" Predicted for {subject}: {format_ms_range(low_ns, high_ns)}."
    if predicted and not trial.other_settings:
        judgement = _capitalize(describe_judgement(trial.judgement, low_ns, high_ns, trial.measured_ns))
        yield Note(f"Measured: {saved}.{predicted} {judgement}.")
    elif trial.other_settings and len(trial.other_settings) + len(trial.entries) > 1:
        yield Note(f"Measured for all differences together: {saved}. It cannot be divided between them.{predicted}")
    elif trial.other_settings:
        yield Note(f"Measured: {saved}. No entry of BEFORE's plan makes this change.")


def _describe_prediction(gain: Gain) -> str:
    return describe_gain(gain).removeprefix("gain ")


def _describe_measured(entry: TriedEntry) -> str:
    if entry.measured_ns is not None:
        return format_saved(entry.measured_ns)
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


def _capitalize(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _buckets(pair: Pair, suffix: str, title: str) -> Section | None:
    budget = pair.budget
    if budget is None:
        return None
    longest = max((abs(row.change_ns) for row in budget.rows), default=0) or 1

    def draw(change_ns: int) -> Bar:
        return Bar(((abs(change_ns) / longest, _LESS_COLOUR if change_ns < 0 else _MORE_COLOUR),) if change_ns else ())

    columns = (
        Column("Bucket", "bucket", lambda name: (Swatch(BUCKET_COLOURS.get(name, "#888888")), Text(name, "code"))),
        Column("Group", "group", role="muted", in_terminal=False),
        Column("Before", "before_ns", format_ms, sums=True),
        Column("After", "after_ns", format_ms, sums=True),
        Column("Change", "change_ns", format_ms_change, sums=True),
        Column("", "change_ns", draw, width="shape"),
    )
    changed = [row for row in budget.rows if row.change_ns]
    blocks: list[Block] = [Table(f"buckets{suffix}", columns, budget.rows, terminal_rows=_SHOWN_BUCKETS)]
    if not changed:
        blocks = [Note(f"Each of the {len(budget.rows)} buckets takes as long as before.")]
    blocks.append(_reconcile(pair, budget, suffix))
    return Section(
        f"buckets{suffix}",
        f"{title}Where the change is",
        tuple(blocks),
        lead=f"The traced step changes by {format_ms_change(budget.traced_change_ns)}: the sum of these rows.",
        link="" if suffix else "Buckets",
        terminal=Terminal.ALWAYS,
    )


def _reconcile(pair: Pair, budget: BucketReconciliation, suffix: str) -> Table:
    """From the traced to the compared step."""
    rows = [("traced step", budget.traced_before_ns, budget.traced_after_ns, budget.traced_change_ns)]
    if pair.step.basis is not Basis.TRACE:
        rows += [
            (
                "added by the profiler",
                -budget.profiler_before_ns,
                -budget.profiler_after_ns,
                -budget.profiler_change_ns,
            ),
            (
                f"step {_BASES[pair.step.basis]}",
                budget.traced_before_ns - budget.profiler_before_ns,
                budget.traced_after_ns - budget.profiler_after_ns,
                budget.step_change_ns,
            ),
        ]
    columns = (
        Column("", lambda row: row[0]),
        Column("Before", lambda row: row[1], lambda ns: format_ms(ns) if ns >= 0 else format_ms_change(ns), unit="ns"),
        Column("After", lambda row: row[2], lambda ns: format_ms(ns) if ns >= 0 else format_ms_change(ns), unit="ns"),
        Column("Change", lambda row: row[3], format_ms_change),
    )
    return Table(
        f"reconciliation{suffix}",
        columns,
        rows,
        title="From the traced to the compared step",
        terminal_rows=len(rows),
        is_compact=True,
        emphasis=lambda row: row is rows[-1],
    )


def _communication(pair: Pair, suffix: str, title: str) -> Section | None:
    if not pair.communication:
        return None
    columns = (
        Column("Communication", "communication_class", role="code"),
        Column("Exposed before", "before_exposed_ns", format_ms),
        Column("Exposed after", "after_exposed_ns", format_ms),
        Column("Change", "exposed_change_ns", format_ms_change),
        Column("Busy before", "before_busy_ns", format_ms),
        Column("Busy after", "after_busy_ns", format_ms),
    )
    table = Table(f"communication{suffix}", columns, pair.communication)
    return Section(
        f"communication{suffix}",
        f"{title}Communication",
        (table,),
        lead="Exposed: while no compute kernel runs. In the representative steps as traced.",
        link="" if suffix else "Communication",
    )


def _kernels(pair: Pair, suffix: str, title: str) -> Section | None:
    kernels = pair.kernels
    if kernels is None:
        return None
    columns = (
        Column("Bucket", "bucket", lambda name: (Swatch(BUCKET_COLOURS.get(name, "#888888")), Text(name, "code"))),
        Column("Kernel", ROW, lambda row: row.name or "all other kernels", role="code"),
        Column("", "status", lambda status: Text(_KERNEL_STATES[status], "badge") if status in _KERNEL_STATES else ""),
        Column("Calls before", "before_calls", format_count, in_terminal=False),
        Column("Calls after", "after_calls", format_count, in_terminal=False),
        Column("Before", "before_ns", format_ms, sums=True),
        Column("After", "after_ns", format_ms, sums=True),
        Column("Change", "change_ns", format_ms_change, sums=True),
    )
    blocks: list[Block] = [
        Table(f"kernels{suffix}", columns, kernels.rows, terminal_rows=_SHOWN_KERNELS),
        _reconcile_kernels(kernels, suffix),
    ]
    return Section(
        f"kernels{suffix}",
        f"{title}Kernels",
        tuple(blocks),
        lead="Sums of kernel durations in the representative steps as traced.",
        link="" if suffix else "Kernels",
    )


def _reconcile_kernels(kernels: KernelReconciliation, suffix: str) -> Table:
    columns = (
        Column("Bucket", "bucket", role="code"),
        Column("Change of its kernels", "kernel_change_ns", format_ms_change, sums=True),
        Column("of that overlapped", "overlap_change_ns", format_ms_change, sums=True),
        Column("Change of the bucket", "owned_change_ns", format_ms_change, sums=True),
    )
    return Table(
        f"kernel_buckets{suffix}",
        columns,
        kernels.buckets,
        title="From kernels to buckets",
        lead="Kernels may run concurrently, and a bucket owns only the time in which no earlier bucket is active.",
        is_compact=True,
    )


def _next(before: ComparedRun, pair: Pair, suffix: str, title: str) -> Section:
    after = pair.after
    items: list[tuple[Inline, ...]] = []
    if after.has_trace:
        is_same = before.has_trace and (after.wall, after.sub_wall) == (before.wall, before.sub_wall)
        same = ", as before" if is_same else ""
        items.append((Text(f"The wall{same}:", "strong"), f"{_name_wall(after)}. {after.verdict}"))
        if after.next_gain is not None:
            gain = describe_gain(after.next_gain)
            items.append((Text("Next entry:", "strong"), f"{after.next_entry} ({after.next_rule}): {gain}."))
        else:
            items.append((Text("Next entry:", "strong"), "none: the plan of AFTER is empty."))
    else:
        items.append(("AFTER was not traced: capture it to learn its wall, and analyze it for the next edit.",))
    return Section(
        f"next{suffix}",
        f"{title}What is the wall now",
        (Items(tuple(items)),),
        link="" if suffix else "Next",
        terminal=Terminal.ALWAYS,
    )
