"""The history of a tuning: runs in the order in which they were made, each judged against the one it builds on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from three_walls.advice.finding import PlannedEdit, PlanStep
from three_walls.lib.text import format_setting
from three_walls.lib.version import VERSION
from three_walls.report.comparison import (
    ChangeOutcome,
    Decision,
    History,
    Judgement,
    NextTrial,
    Pair,
    Severity,
    TriedRun,
)
from three_walls.runs.changed_settings import compare_settings, judge_stated, judge_trial, values_of
from three_walls.runs.comparability import comparison_rules
from three_walls.runs.compare_runs import compare_pair
from three_walls.runs.compared_run import Run
from three_walls.runs.step_change import choose_basis, measure_step_change, saved_ns_of, step_on


@dataclass(frozen=True, slots=True)
class TriedWith:
    """A run of a history. ``entries``: rules that it is known to apply, where its settings may not show them."""

    run: Run
    entries: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Try:
    """A run of the history with what it was compared with."""

    run: Run
    described: TriedRun
    configuration: int
    """Index of the first run with the same settings."""


def judge_history(tries: Sequence[TriedWith]) -> History:
    """What each of ``tries`` gave, and what to try next. The first run is the base.

    A run is compared with the earlier run that it differs least from in settings: with the best one where several do,
    or where its settings are not known. It is accepted where it is faster beyond the spread. One that differs from it
    in nothing repeats it: what repetitions differ by counts as spread. The best run is the fastest that was accepted.

    Raises ValueError without a run.
    """
    if not tries:
        raise ValueError("a history has at least its base")
    runs = [each.run for each in tries]
    parents, configurations = _find_parents(tries)
    judged = [_Try(runs[0], _describe_base(runs[0]), 0)]
    best = 0
    for index, (each, nearest) in enumerate(zip(tries[1:], parents[1:], strict=True), start=1):
        parent = best if nearest is None else nearest
        same = [i for i, first in enumerate(configurations) if first == configurations[parent] and i != parent]
        repetitions = [runs[i] for i in same if i != index]
        pair = compare_pair(runs[parent], each.run, repetitions)
        planner = _find_planner([runs[i] for i in (parent, *same)], judged)
        pair = replace(pair, trial=judge_trial(planner.report.plan, pair.settings, each.run.report.config, pair.step))
        if each.entries and not any(entry.is_whole for entry in pair.trial.entries):
            pair = replace(pair, trial=judge_stated(planner.report.plan, each.entries, pair.step))
        decision, reason = _decide(pair)
        if configurations[index] == configurations[parent] and decision is not Decision.NOT_COMPARABLE:
            decision, reason = Decision.REPEATED, f"a repetition of {runs[parent].name}"
        described = _describe(pair, runs[parent], decision, reason)
        described = replace(described, rules=described.rules or each.entries)
        judged.append(_Try(each.run, described, configurations[index]))
        if decision is Decision.ACCEPTED and (saved_ns_of(measure_step_change(runs[best], each.run)) or 0) > 0:
            best = index
    return _propose(judged, judged[best])


def _find_parents(tries: Sequence[TriedWith]) -> tuple[list[int | None], list[int]]:
    """For each run the earlier one that it differs least from, and the first run with its settings.

    No parent: the best run at that time, because nothing is known of the settings or several differ as little. The
    latest of several runs with the same settings is the parent of later ones.
    """
    parents: list[int | None] = [None]
    configurations = [0]
    for index, (run, entries) in enumerate(((each.run, each.entries) for each in tries[1:]), start=1):
        distances = {i: _count_differences(tries[i].run, run) for i in range(index)}
        known = {i: distance for i, distance in distances.items() if distance is not None}
        configurations.append(index)
        if not known or entries:
            parents.append(None)
            continue
        least = min(known.values())
        nearest = [i for i, distance in known.items() if distance == least]
        is_one = len({configurations[i] for i in nearest}) == 1
        parents.append(nearest[-1] if is_one else None)
        if least == 0 and not _states_more(run, tries[nearest[-1]].run):
            configurations[index] = configurations[nearest[0]]
            parents[index] = nearest[-1]
    return parents, configurations


def _states_more(run: Run, earlier: Run) -> bool:
    """Whether a source of ``run`` states a setting that is not known of ``earlier``: it may have been changed."""
    known, ignores = earlier.report.config.values, comparison_rules().ignores
    stated = (key for key, value in run.report.config.values.items() if value.is_stated and not ignores(key))
    return any(key not in known for key in stated)


def _count_differences(before: Run, after: Run) -> int | None:
    """Settings that differ and were set; None where those of a run are not known."""
    if not before.report.config.values or not after.report.config.values:
        return None
    return sum(not change.follows for change in compare_settings(before, after))


def _find_planner(runs: Sequence[Run], judged: Sequence[_Try]) -> Run:
    """The run that plans for the first of ``runs``, which have the same settings: one of them, or the last accepted."""
    decisions = (Decision.ACCEPTED, Decision.BASE, Decision.REPEATED)
    accepted = (each.run for each in reversed(judged) if each.described.decision in decisions)
    return next((run for run in (*runs, *accepted) if run.report.plan), runs[0])


def _propose(judged: Sequence[_Try], best: _Try) -> History:
    """The history, with the entry to try after the best run."""
    base = judged[0].run
    basis, _ = choose_basis(base, best.run)
    same = (each.run for each in judged if each.configuration == best.configuration)
    planner = _find_planner([best.run, *same], judged)
    rules = {rule for each in judged for rule in each.described.rules}
    settings = {
        (change.kind, change.key, change.after)
        for each in judged[1:]
        for change in compare_settings(base, each.run)
        if not change.follows
    }
    next_trial, skipped, reason = _find_next(planner, best.run, rules, settings)
    return History(
        tool_version=VERSION,
        runs=tuple(each.described for each in judged),
        best=best.run.name,
        best_step_ns=step_on(basis, best.run),
        first_step_ns=step_on(basis, base),
        next_trial=next_trial,
        no_next_reason=reason,
        planned_by=planner.name,
        skipped=skipped,
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


def _describe(pair: Pair, parent: Run, decision: Decision, reason: str) -> TriedRun:
    step, trial = pair.step, pair.trial
    made = [change for change in pair.settings if not change.follows]
    return TriedRun(
        name=pair.after.name,
        decision=decision,
        against=parent.name,
        step_ns=step.after_ns,
        basis=step.basis,
        change_ns=step.change_ns,
        change_fraction=step.change_fraction,
        spread_ns=step.spread_ns,
        rules=tuple(entry.rule for entry in trial.entries if entry.is_whole),
        settings=tuple(f"{row.key}: {format_setting(row.before)} -> {format_setting(row.after)}" for row in made),
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
        unknown = "no run has a plan: trace the best run and analyze it"
        return None, (), "the plan is empty" if planner.has_trace else unknown
    skipped = []
    for entry in planner.report.plan:
        if not entry.edits:
            continue
        if entry.rule in rules or all((edit.kind, edit.key, edit.to) in settings for edit in entry.edits):
            skipped.append(entry.rule)
        elif planner is best or not all(_has_value(best, edit) for edit in entry.edits):
            return _describe_next(entry), tuple(skipped), ""
    return None, tuple(skipped), "every entry of the plan was tried"


def _has_value(run: Run, edit: PlannedEdit) -> bool:
    known = values_of(run.report.config, edit.kind).get(edit.key)
    return known is not None and known.value == edit.to


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
