"""The step of two runs on one basis: which one, how it changed, and whether that is more than steps vary by."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from three_walls.report.comparison import Basis, ChangeOutcome, StepChange
from three_walls.runs.compared_run import Run

_PREDICTED = ("predicted_unprofiled_step_low_ns", "predicted_unprofiled_step_high_ns")
_SPREADS = {
    Basis.LOG: "the range of the middle half of the steps in each log",
    Basis.TRACE: "the range of the kept steps in each trace",
    Basis.REPLAY: "the range of each estimate, or of the kept steps where that is wider",
    Basis.MIXED: "the range of the middle half of the steps in the log, and of the estimate",
}
"""What half of counts as the spread of a run."""
_QUARTILES = ("unprofiled_step_lower_quartile_ns", "unprofiled_step_upper_quartile_ns")


def measure_step_change(before: Run, after: Run, repetitions: Sequence[Run] = ()) -> StepChange:
    """The change of the step from ``before`` to ``after``. ``repetitions``: further runs of ``before``."""
    basis, note = choose_basis(before, after)
    before_ns, after_ns = step_on(basis, before), step_on(basis, after)
    if before_ns is None or after_ns is None:
        return StepChange(basis, note, None, None, None, None, None, None, note, ChangeOutcome.UNKNOWN)
    work = compare_work(before, after)
    compared_ns = after_ns if work is None else round(after_ns * work)
    spread_ns, spread_note = _measure_spread(basis, before, after, compared_ns / after_ns)
    drift_ns = _measure_drift(basis, before, repetitions)
    if drift_ns is not None and drift_ns > (spread_ns or 0):
        spread_ns, spread_note = drift_ns, "what the runs of BEFORE differ by"
    change_ns = compared_ns - before_ns
    repeated = [length for run in repetitions if (length := step_on(basis, run)) is not None]
    outcome = ChangeOutcome.FASTER if change_ns < 0 else ChangeOutcome.SLOWER
    if abs(change_ns) <= (spread_ns or 0):
        outcome = ChangeOutcome.NO_DIFFERENCE
    return StepChange(
        basis=basis,
        basis_note=note,
        before_ns=before_ns,
        after_ns=after_ns,
        change_ns=after_ns - before_ns,
        per_token_after_ns=None if work is None else compared_ns,
        change_fraction=change_ns / before_ns,
        spread_ns=spread_ns,
        spread_note=spread_note,
        outcome=outcome,
        fractions_of_repetitions=tuple((compared_ns - length) / length for length in repeated),
    )


def saved_ns_of(change: StepChange) -> int | None:
    """Time that the step lost, per token where the tokens differ; negative where it grew."""
    if change.before_ns is None or change.after_ns is None:
        return None
    return change.before_ns - (change.after_ns if change.per_token_after_ns is None else change.per_token_after_ns)


def choose_basis(before: Run, after: Run) -> tuple[Basis, str]:
    """The best basis on which the steps of both runs are known, and why it is that one."""
    with_log = [run.unprofiled_step_ns is not None for run in (before, after)]
    only = "" if with_log[0] == with_log[1] else f"only {'BEFORE' if with_log[0] else 'AFTER'} has a log with its steps"
    if all(with_log):
        return Basis.LOG, "the median of the unprofiled steps in each log"
    if before.replayed_step_ns is not None and after.replayed_step_ns is not None:
        reason = only or "no log gives the unprofiled steps"
        return Basis.REPLAY, f"estimated by replaying each traced step without the profiler ({reason})"
    if before.traced_step_ns is not None and after.traced_step_ns is not None:
        reason = f"{only}, and " if only else ""
        return Basis.TRACE, f"as traced, with what the profiler added ({reason}not both steps could be replayed)"
    if step_on(Basis.MIXED, before) is not None and step_on(Basis.MIXED, after) is not None:
        return Basis.MIXED, f"measured in one run and estimated in the other: {only}, and not both have a trace"
    sides = (("BEFORE", before), ("AFTER", after))
    if windows := [name for name, run in sides if run.is_one_window and not _has_step(run)]:
        hint = "analyze with --step-range, or give the logs"
        return Basis.NONE, f"no training steps were found in the trace of {' and '.join(windows)}: {hint}"
    names = [name for name, run in sides if not _has_step(run)]
    return Basis.NONE, f"the step of {' and '.join(names) or 'both runs'} is not known on a common basis"


def step_on(basis: Basis, run: Run) -> int | None:
    """The step of ``run`` on ``basis``."""
    lengths = {
        Basis.LOG: run.unprofiled_step_ns,
        Basis.REPLAY: run.replayed_step_ns,
        Basis.TRACE: run.traced_step_ns,
        Basis.MIXED: run.replayed_step_ns if run.unprofiled_step_ns is None else run.unprofiled_step_ns,
    }
    return lengths.get(basis)


def _has_step(run: Run) -> bool:
    return any(length is not None for length in (run.unprofiled_step_ns, run.replayed_step_ns, run.traced_step_ns))


def compare_work(before: Run, after: Run) -> Fraction | None:
    """Tokens per step and GPU of ``before`` over those of ``after``; None where they are equal or not known."""
    if before.tokens_per_step is None or after.tokens_per_step is None:
        return None
    work = Fraction(before.tokens_per_step, after.tokens_per_step)
    if before.world_size and after.world_size:
        work *= Fraction(after.world_size, before.world_size)
    return None if work == 1 else work


def _measure_spread(basis: Basis, before: Run, after: Run, scale: float) -> tuple[int | None, str]:
    """What the steps of both runs vary by, and of what; ``scale`` is the factor on the time of ``after``."""
    spreads = [_spread_of(basis, before), _spread_of(basis, after)]
    if spreads[0] is None or spreads[1] is None:
        names = [name for name, spread in zip(("BEFORE", "AFTER"), spreads, strict=True) if spread is None]
        reason = "the log has too few steps" if basis is Basis.LOG else "fewer than two steps were kept"
        return None, f"not known for {' and '.join(names)}: {reason}"
    return round(spreads[0] + spreads[1] * scale), f"half of {_SPREADS[basis]}, added up"


def _spread_of(basis: Basis, run: Run) -> float | None:
    if basis is Basis.LOG or (basis is Basis.MIXED and run.unprofiled_step_ns is not None):
        low, high = (run.report.facts.number(name) for name in _QUARTILES)
        return None if low is None or high is None else (high - low) / 2
    rank, length_ns = run.report.representative_rank, step_on(basis, run)
    lengths = [step.end_ns - step.start_ns for step in rank.steps if step.kept] if rank else []
    kept_ns = None
    if len(lengths) > 1 and run.traced_step_ns and length_ns is not None:
        kept_ns = (max(lengths) - min(lengths)) / 2 * length_ns / run.traced_step_ns
    if basis is Basis.TRACE:
        return kept_ns
    low, high = (run.report.facts.number(name) for name in _PREDICTED)
    estimate_ns = None if low is None or high is None else (high - low) / 2
    return max((spread for spread in (kept_ns, estimate_ns) if spread is not None), default=None)


def _measure_drift(basis: Basis, before: Run, repetitions: Sequence[Run]) -> int | None:
    """The range of the steps of ``before`` and its repetitions; None without one that has a step on ``basis``."""
    lengths = [step_on(basis, run) for run in (before, *repetitions)]
    known_ns = [length for length in lengths if length is not None]
    return max(known_ns) - min(known_ns) if len(known_ns) > 1 else None
