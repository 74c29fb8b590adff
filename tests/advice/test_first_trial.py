"""Which edit to try first, and what must be seen if it worked."""

from __future__ import annotations

import pytest

from tests.advice.builders import MS, rule, run
from three_walls.advice.first_trial import choose_first_trial
from three_walls.advice.plan import make_plan
from three_walls.render.first_trial import describe_expectation

TRANSFER = "ep_transfer_exposed_ns"  # 150 of 1000 ms


def test_shares_come_from_the_trace_and_time_from_the_log() -> None:
    facts = run(unprofiled_step_ns=800 * MS)
    _, plan = make_plan([rule("first", pool=TRANSFER, low=0.0, likely=0.5, high=1.0)], facts)
    trial = choose_first_trial(plan, facts)
    assert trial is not None
    assert (trial.rule, trial.unprofiled_step_ns) == ("first", 800 * MS)
    assert (trial.saved_low_fraction, trial.saved_high_fraction) == (0.0, pytest.approx(0.15))
    assert (trial.unprofiled_step_after_low_ns, trial.unprofiled_step_after_high_ns) == (680 * MS, 800 * MS)
    assert describe_expectation(trial) == (
        "The unprofiled step time in the log, 800 ms now, should fall to 680-800 ms (by 0% to 15.0%)."
    )


def test_without_a_log_only_shares_are_told() -> None:
    _, plan = make_plan([rule("first", pool=TRANSFER, low=0.2, likely=0.5, high=1.0)], run())
    trial = choose_first_trial(plan, run())
    assert trial is not None
    assert trial.unprofiled_step_after_high_ns is None
    assert describe_expectation(trial) == "The unprofiled step time in the log should fall by 3.0% to 15.0%."


def test_an_empty_plan_has_nothing_to_try() -> None:
    assert choose_first_trial((), run()) is None
