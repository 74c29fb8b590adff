"""The history of a tuning: runs in the order in which they were made, each judged against the best before it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from three_walls.compare.compare import compare_pair
from three_walls.compare.run import Run, write_value
from three_walls.compare.settings import judge_stated, judge_trial
from three_walls.compare.step_change import choose_basis, step_on
from three_walls.model.comparison import (
    ChangeOutcome,
    Decision,
    History,
    Judgement,
    NextTrial,
    Pair,
    SettingChange,
    Severity,
    TriedRun,
)
from three_walls.model.finding import PlannedEdit, PlanStep
from three_walls.version import VERSION


@dataclass(frozen=True, slots=True)
class TriedWith:
    """A run of a history. ``entries``: rules that it is known to apply, where its settings may not show them."""

    run: Run
    entries: tuple[str, ...] = ()


def judge_history(tries: Sequence[TriedWith]) -> History:
    """What each of ``tries`` gave, and what to try next. The first run is the base.

    A run is accepted where it is faster than the best run before it, beyond the spread; the next run is then compared
    with it. Raises ValueError without a run.
    """
    if not tries:
        raise ValueError("a history has at least its base")
    runs = [each.run for each in tries]
    best = planner = runs[0]
    tried = [_describe_base(best)]
    rules: set[str] = set()
    settings: set[tuple[str, str, object]] = set()
    for each in tries[1:]:
        run, pair = each.run, compare_pair(best, each.run)
        decision, reason = _decide(pair)
        made = [change for change in pair.settings if not change.follows]
        if planner is not best:
            trial = judge_trial(planner.report.plan, pair.settings, run.report.config, pair.step)
            pair = replace(pair, trial=trial)
        if each.entries and not any(entry.is_whole for entry in pair.trial.entries):
            pair = replace(pair, trial=judge_stated(planner.report.plan, each.entries, pair.step))
        tried.append(_describe(pair, best, decision, reason, made))
        rules.update(each.entries, (entry.rule for entry in pair.trial.entries if entry.is_whole))
        settings.update((change.kind, change.key, change.after) for change in made)
        if each.entries and not tried[-1].rules:
            tried[-1] = replace(tried[-1], rules=each.entries)
        if decision is Decision.ACCEPTED:
            best = run
            planner = run if run.report.plan else planner  # a run of which only a log is there has no plan
    basis, _ = choose_basis(runs[0], best)
    next_trial, skipped, reason = _find_next(planner, best, rules, settings)
    return History(
        tool_version=VERSION,
        runs=tuple(tried),
        best=best.name,
        best_step_ns=step_on(basis, best),
        first_step_ns=step_on(basis, runs[0]),
        next_trial=next_trial,
        no_next_reason=reason,
        skipped=skipped,
        planned_by=planner.name,
    )


def _describe_base(run: Run) -> TriedRun:
    basis, _ = choose_basis(run, run)
    return TriedRun(
        name=run.name,
        decision=Decision.BASE,
        against="",
        step_ns=step_on(basis, run),
        basis=basis,
        change_ns=None,
        change_fraction=None,
        spread_ns=None,
        rules=(),
        settings=(),
        predicted_low_ns=None,
        predicted_high_ns=None,
        measured_ns=None,
        judgement=Judgement.UNKNOWN,
        reason="",
    )


def _decide(pair: Pair) -> tuple[Decision, str]:
    refusals = [unlike.message for unlike in pair.unlike if unlike.severity is Severity.REFUSAL]
    if refusals:
        return Decision.NOT_COMPARABLE, refusals[0]
    match pair.step.outcome:
        case ChangeOutcome.UNKNOWN:
            return Decision.NOT_COMPARABLE, f"{pair.step.basis_note}."
        case ChangeOutcome.FASTER:
            known = "beyond the spread" if pair.step.spread_ns is not None else "the spread is not known"
            return Decision.ACCEPTED, f"faster, {known}"
        case ChangeOutcome.SLOWER:
            return Decision.REVERTED, "slower"
    return Decision.REVERTED, "no difference beyond the spread"


def _describe(pair: Pair, best: Run, decision: Decision, reason: str, made: Sequence[SettingChange]) -> TriedRun:
    step, trial = pair.step, pair.trial
    return TriedRun(
        name=pair.after.name,
        decision=decision,
        against=best.name,
        step_ns=step.after_ns,
        basis=step.basis,
        change_ns=step.change_ns,
        change_fraction=step.change_fraction,
        spread_ns=step.spread_ns,
        rules=tuple(entry.rule for entry in trial.entries if entry.is_whole),
        settings=tuple(f"{change.key}: {write_value(change.before)} -> {write_value(change.after)}" for change in made),
        predicted_low_ns=trial.predicted_low_ns,
        predicted_high_ns=trial.predicted_high_ns,
        measured_ns=trial.measured_ns,
        judgement=trial.judgement,
        reason=reason,
    )


def _find_next(
    planner: Run, best: Run, rules: Collection[str], settings: Collection[tuple[str, str, object]]
) -> tuple[NextTrial | None, tuple[str, ...], str]:
    """The first entry of the plan that was not tried, the entries before it, and why there is none.

    ``rules``: entries that were applied; ``settings``: kind, key and value of every setting that was tried. An entry
    whose edits were all tried counts as tried, also where no plan proposed them then.
    """
    if not planner.report.plan:
        reason = (
            "no run has a plan: trace the best run and analyze it" if not planner.has_trace else "the plan is empty"
        )
        return None, (), reason
    skipped = []
    for entry in planner.report.plan:
        if not entry.edits:
            continue
        was_tried = entry.rule in rules or all((edit.kind, edit.key, edit.to) in settings for edit in entry.edits)
        if was_tried:
            skipped.append(entry.rule)
            continue
        if planner is not best and all(_has_value(best, edit) for edit in entry.edits):
            continue
        return _describe_next(entry), tuple(skipped), ""
    return None, tuple(skipped), "every entry of the plan was tried"


def _has_value(run: Run, edit: PlannedEdit) -> bool:
    config = run.report.config
    found = (config.environment if edit.kind == "env" else config.values).get(edit.key)
    return found is not None and found.value == edit.to


def _describe_next(entry: PlanStep) -> NextTrial:
    overrides = entry.overrides
    return NextTrial(
        rule=entry.rule,
        title=entry.finding.title,
        gain=entry.gain_ns,
        edits=tuple((edit.key, edit.to) for edit in (*entry.edits, *entry.differing_edits)),
        bridge=overrides.bridge if overrides else (),
        megatron_lm=overrides.megatron_lm if overrides else (),
        env=tuple(sorted(overrides.env.items())) if overrides else (),
    )
