"""Compares runs: BEFORE with each AFTER."""

from __future__ import annotations

from collections.abc import Sequence

from three_walls.lib.errors import UnlikeRunsError, UsageError
from three_walls.lib.version import VERSION
from three_walls.report.comparison import Comparison, Pair, Severity
from three_walls.runs.changed_settings import compare_settings, describe_known_settings, judge_trial
from three_walls.runs.comparability import find_unlikeness
from three_walls.runs.compared_run import Run, summarize_run
from three_walls.runs.reconcile import compare_communication, owned_times, reconcile_buckets, reconcile_kernels
from three_walls.runs.step_change import measure_step_change


def compare(before: Run, afters: Sequence[Run], repetitions: Sequence[Run] = (), *, force: bool = False) -> Comparison:
    """``before`` against each of ``afters``. ``repetitions``: further runs of ``before``, whose drift counts as spread.

    Raises UnlikeRunsError for runs of different models or GPUs, unless ``force`` is set, and UsageError for a
    repetition whose settings differ from those of ``before``.
    """
    for repetition in repetitions:
        _check_repetition(before, repetition)
    pairs = tuple(compare_pair(before, after, repetitions) for after in afters)
    refusals = [
        f"{pair.after.name}: {unlike.message}"
        for pair in pairs
        for unlike in pair.unlike
        if unlike.severity is Severity.REFUSAL
    ]
    if refusals and not force:
        raise UnlikeRunsError(f"not compared: {' '.join(refusals)} --force compares them all the same")
    return Comparison(VERSION, summarize_run(before), pairs, tuple(map(summarize_run, repetitions)))


def _check_repetition(before: Run, repetition: Run) -> None:
    refused = (item for item in find_unlikeness(before, repetition) if item.severity is Severity.REFUSAL)
    if (unlike := next(refused, None)) is not None:
        raise UsageError(f"--repeat {repetition.name}: expected a run of BEFORE's configuration. {unlike.message}")
    if changed := [change.key for change in compare_settings(before, repetition) if not change.follows]:
        names = ", ".join(changed)
        raise UsageError(f"--repeat {repetition.name}: expected a run of BEFORE's configuration, found other {names}")


def compare_pair(before: Run, after: Run, repetitions: Sequence[Run] = ()) -> Pair:
    """``before`` against ``after``, whatever they differ in."""
    step = measure_step_change(before, after, repetitions)
    settings = compare_settings(before, after)
    return Pair(
        after=summarize_run(after),
        step=step,
        unlike=find_unlikeness(before, after),
        settings=settings,
        settings_are_known=bool(before.report.config.values) and bool(after.report.config.values),
        settings_note=describe_known_settings(before, after),
        trial=judge_trial(before.report.plan, settings, after.report.config, step),
        budget=reconcile_buckets(before, after, step),
        communication=compare_communication(before.report, after.report),
        kernels=reconcile_kernels(
            before.report.kernels, after.report.kernels, owned_times(before.report, after.report)
        ),
    )
