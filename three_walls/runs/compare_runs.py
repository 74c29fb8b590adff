"""Compares runs: BEFORE with each AFTER, and the change of the step bucket by bucket and kernel by kernel.

All sums are exact, and asserted here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from three_walls.export.step_detail_rows import KernelRow
from three_walls.lib.errors import UnlikeRunsError, UsageError
from three_walls.lib.version import VERSION
from three_walls.report.comparison import (
    BucketChange,
    BucketReconciliation,
    CommunicationChange,
    Comparison,
    KernelBucket,
    KernelChange,
    KernelReconciliation,
    Pair,
    Severity,
    StepChange,
)
from three_walls.report.report import Report
from three_walls.runs.changed_settings import compare_settings, describe_known_settings, judge_trial
from three_walls.runs.comparability import find_unlikeness
from three_walls.runs.compared_run import Run, summarize_run
from three_walls.runs.step_change import measure_step_change
from three_walls.step.step_rows import CommunicationTime
from three_walls.tables.buckets import in_precedence


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
    settings, owned = compare_settings(before, after), owned_times(before.report, after.report)
    are_steps = not (before.is_one_window or after.is_one_window)
    return Pair(
        after=summarize_run(after),
        step=step,
        unlike=find_unlikeness(before, after),
        settings=settings,
        settings_are_known=bool(before.report.config.values) and bool(after.report.config.values),
        settings_note=describe_known_settings(before, after),
        trial=judge_trial(before.report.plan, settings, after.report.config, step),
        budget=reconcile_buckets(before, after, step),
        communication=compare_communication(before.report, after.report) if are_steps else (),
        kernels=reconcile_kernels(before.report.kernels, after.report.kernels, owned) if are_steps else None,
    )


MOST_KERNELS = 40
"""Kernels that are listed; those with smaller changes are summed, in a row per bucket."""

REST = ""
"""Name of the row that sums the kernels of a bucket which are not listed."""


def reconcile_buckets(before: Run, after: Run, step: StepChange) -> BucketReconciliation | None:
    """The change of the compared step as the sum of its buckets' changes less that of the profiler's part.

    None where a run has no budget, or no step is compared.
    """
    traced = before.traced_step_ns, after.traced_step_ns
    if traced[0] is None or traced[1] is None or step.before_ns is None or step.after_ns is None:
        return None
    budgets = owned_times(before.report, after.report)
    groups = {row.bucket: row.group for run in (before, after) for row in run.report.budget}
    rows = [
        BucketChange(
            bucket=name,
            group=groups[name],
            before_ns=budgets[0].get(name, 0),
            after_ns=budgets[1].get(name, 0),
            change_ns=budgets[1].get(name, 0) - budgets[0].get(name, 0),
        )
        for name in groups
        if budgets[0].get(name) or budgets[1].get(name)
    ]
    profiler = traced[0] - step.before_ns, traced[1] - step.after_ns
    reconciliation = BucketReconciliation(
        rows=tuple(sorted(rows, key=lambda row: (-abs(row.change_ns), in_precedence(row.bucket)))),
        traced_before_ns=traced[0],
        traced_after_ns=traced[1],
        traced_change_ns=traced[1] - traced[0],
        profiler_before_ns=profiler[0],
        profiler_after_ns=profiler[1],
        profiler_change_ns=profiler[1] - profiler[0],
        step_change_ns=step.after_ns - step.before_ns,
    )
    assert sum(row.before_ns for row in rows) == traced[0]
    assert sum(row.after_ns for row in rows) == traced[1]
    assert sum(row.change_ns for row in rows) - reconciliation.profiler_change_ns == reconciliation.step_change_ns
    return reconciliation


def compare_communication(before: Report, after: Report) -> tuple[CommunicationChange, ...]:
    """The communication classes of the representative steps, the largest change of exposed time first."""
    ranks = before.representative_rank, after.representative_rank
    if ranks[0] is None or ranks[1] is None:
        return ()
    none = CommunicationTime(0, 0, 0)
    changes = []
    for name in sorted(ranks[0].communication.keys() | ranks[1].communication.keys()):
        times = ranks[0].communication.get(name, none), ranks[1].communication.get(name, none)
        exposed_change_ns = times[1].exposed_ns - times[0].exposed_ns
        changes.append(
            CommunicationChange(
                name, times[0].busy_ns, times[1].busy_ns, times[0].exposed_ns, times[1].exposed_ns, exposed_change_ns
            )
        )
    return tuple(sorted(changes, key=lambda row: (-abs(row.exposed_change_ns), row.communication_class)))


def reconcile_kernels(
    before: Sequence[KernelRow], after: Sequence[KernelRow], owned: tuple[Mapping[str, int], Mapping[str, int]]
) -> KernelReconciliation | None:
    """The change of kernel time by kernel, and per bucket against the time it owns (``owned``, of both runs).

    A kernel that only one run lists is new or gone; where the other run sums the rest of that bucket, it may be small
    and in that sum. None where one of the runs lists no kernels.
    """
    if not before or not after:
        return None
    sums = _sum_kernels(before), _sum_kernels(after)
    changes = []
    for bucket, name in sorted(sums[0].keys() | sums[1].keys()):
        was, now = sums[0].get((bucket, name)), sums[1].get((bucket, name))
        status = "changed"
        if was is None:
            status = "small_before" if (bucket, REST) in sums[0] else "new"
        elif now is None:
            status = "small_after" if (bucket, REST) in sums[1] else "gone"
        (old_calls, old_ns), (new_calls, new_ns) = was or (0, 0), now or (0, 0)
        changes.append(KernelChange(bucket, name, status, old_calls, new_calls, old_ns, new_ns, new_ns - old_ns))
    named = [row for row in changes if row.name != REST]
    named.sort(key=lambda row: (-abs(row.change_ns), row.bucket, row.name))
    listed, rest = named[:MOST_KERNELS], [*named[MOST_KERNELS:], *(row for row in changes if row.name == REST)]
    rest_rows = [
        _sum_rest(bucket, [row for row in rest if row.bucket == bucket])
        for bucket in sorted({row.bucket for row in rest}, key=in_precedence)
    ]
    buckets = []
    for bucket in sorted({row.bucket for row in changes}, key=in_precedence):
        kernel_change_ns = sum(row.change_ns for row in changes if row.bucket == bucket)
        owned_change_ns = owned[1].get(bucket, 0) - owned[0].get(bucket, 0)
        buckets.append(KernelBucket(bucket, kernel_change_ns, kernel_change_ns - owned_change_ns, owned_change_ns))
    reconciliation = KernelReconciliation((*listed, *rest_rows), tuple(buckets))
    for row in buckets:
        listed_ns = sum(kernel.change_ns for kernel in reconciliation.rows if kernel.bucket == row.bucket)
        assert listed_ns == row.kernel_change_ns == row.owned_change_ns + row.overlap_change_ns
    return reconciliation


def owned_times(before: Report, after: Report) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """The budgets of both runs by bucket."""
    return {row.bucket: row.ns for row in before.budget}, {row.bucket: row.ns for row in after.budget}


def _sum_kernels(kernels: Sequence[KernelRow]) -> dict[tuple[str, str], tuple[int, int]]:
    """Calls and nanoseconds by bucket and name."""
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for kernel in kernels:
        key = kernel.bucket, REST if kernel.is_rest else kernel.name
        calls, ns = sums.get(key, (0, 0))
        sums[key] = calls + kernel.calls, ns + kernel.ns
    return sums


def _sum_rest(bucket: str, rows: Sequence[KernelChange]) -> KernelChange:
    summed = ("before_calls", "after_calls", "before_ns", "after_ns", "change_ns")
    return KernelChange(bucket, REST, "rest", *(sum(getattr(row, name) for row in rows) for name in summed))
