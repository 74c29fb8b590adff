"""Which step is compared, and when a difference counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.report.sample_report import MS
from tests.runs.sample_runs import make_log_run, make_run, without_steps
from three_walls.report.comparison import Basis, ChangeOutcome
from three_walls.runs.compare_runs import compare_pair
from three_walls.runs.compared_run import Run
from three_walls.runs.step_change import measure_step_change


def with_replay(run: Run, likely_ms: int, half_ms: int = 4) -> Run:
    facts = run.report.facts.with_values(
        {
            "predicted_unprofiled_step_ns": likely_ms * MS,
            "predicted_unprofiled_step_low_ns": (likely_ms - half_ms) * MS,
            "predicted_unprofiled_step_high_ns": (likely_ms + half_ms) * MS,
        }
    )
    return replace(run, report=replace(run.report, facts=facts))


def test_two_logs_give_the_unprofiled_steps_and_their_quartiles_the_spread() -> None:
    change = measure_step_change(make_run(step_ms=600), make_run("edit", step_ms=570))
    assert (change.basis, change.outcome) == (Basis.LOG, ChangeOutcome.FASTER)
    assert (change.before_ns, change.after_ns, change.change_ns) == (600 * MS, 570 * MS, -30 * MS)
    assert change.change_fraction == pytest.approx(-0.05)
    assert change.spread_ns == 10 * MS


def test_a_difference_no_larger_than_the_spread_is_none() -> None:
    assert measure_step_change(make_run(), make_run(step_ms=610)).outcome is ChangeOutcome.NO_DIFFERENCE
    assert measure_step_change(make_run(), make_run(step_ms=611)).outcome is ChangeOutcome.SLOWER


def test_a_run_against_itself_does_not_differ_even_where_the_spread_is_not_known() -> None:
    run = make_run(half_ms=None)
    change = measure_step_change(run, run)
    assert (change.spread_ns, change.outcome) == (None, ChangeOutcome.NO_DIFFERENCE)


def test_repetitions_of_before_widen_the_spread_to_their_range() -> None:
    before, after = make_run(), make_run(step_ms=575)
    assert measure_step_change(before, after).outcome is ChangeOutcome.FASTER
    change = measure_step_change(before, after, [make_run(step_ms=630)])
    assert (change.spread_ns, change.outcome) == (30 * MS, ChangeOutcome.NO_DIFFERENCE)
    assert change.fractions_of_repetitions == (pytest.approx(-55 / 630),)


def test_with_one_log_both_steps_are_replayed_and_never_mixed() -> None:
    before, after = with_replay(make_run(step_ms=600), 590), with_replay(make_run(step_ms=None), 560)
    change = measure_step_change(before, after)
    assert (change.basis, change.before_ns, change.after_ns) == (Basis.REPLAY, 590 * MS, 560 * MS)
    assert "only BEFORE has a log" in change.basis_note
    assert change.spread_ns is not None
    assert change.spread_ns >= 8 * MS  # at least the range of each estimate


def test_without_logs_and_replays_the_traced_steps_are_compared() -> None:
    change = measure_step_change(make_run(step_ms=None), make_run(step_ms=None, buckets_ms={"gemm": 102}))
    assert (change.basis, change.before_ns, change.after_ns) == (Basis.TRACE, 640 * MS, 650 * MS)
    assert "as traced" in change.basis_note


def test_a_log_alone_against_a_trace_without_log_is_marked_mixed() -> None:
    change = measure_step_change(with_replay(make_run(step_ms=None), 590), make_log_run(step_ms=550))
    assert (change.basis, change.before_ns, change.after_ns) == (Basis.MIXED, 590 * MS, 550 * MS)


def test_steps_on_no_common_basis_are_not_compared() -> None:
    change = measure_step_change(make_run(step_ms=None), make_log_run())
    assert (change.basis, change.outcome, change.change_ns) == (Basis.NONE, ChangeOutcome.UNKNOWN, None)


def test_captures_without_steps_are_compared_by_their_logs_or_not_at_all() -> None:
    """Half of a capture is no step of half the length."""
    whole, half = without_steps(make_run(step_ms=None)), without_steps(make_run("half", None, buckets_ms={"gemm": 1}))
    pair = compare_pair(whole, half)
    assert (pair.step.outcome, pair.budget, pair.communication, pair.kernels) == (ChangeOutcome.UNKNOWN, None, (), None)
    with_logs = measure_step_change(without_steps(make_run()), without_steps(make_run(step_ms=570)))
    assert (with_logs.basis, with_logs.outcome) == (Basis.LOG, ChangeOutcome.FASTER)


def test_a_log_that_prints_steps_of_no_length_gives_none() -> None:
    change = measure_step_change(make_run(step_ms=0), make_run(step_ms=0))
    assert change.basis is Basis.TRACE


def test_steps_with_other_numbers_of_tokens_are_compared_per_token() -> None:
    after = make_run("edit", step_ms=1_100, settings={"global_batch_size": 512})
    change = measure_step_change(make_run(step_ms=600), after)
    assert change.outcome is ChangeOutcome.FASTER  # 1,100 ms for twice the tokens
    assert change.per_token_after_ns == 550 * MS
    assert change.change_ns == 500 * MS
    assert change.change_fraction == pytest.approx(-50 / 600)


def test_tokens_count_per_gpu() -> None:
    """Twice the batch on twice the GPUs is as much work for each."""
    after = make_run("edit", settings={"global_batch_size": 512})
    facts = after.report.facts.with_values({"world_size": 32})
    after = replace(after, report=replace(after.report, facts=facts))
    assert measure_step_change(make_run(), after).per_token_after_ns is None
