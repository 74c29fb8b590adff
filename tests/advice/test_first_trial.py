"""Which edit to try first, and what must be seen if it worked."""

from __future__ import annotations

import pytest

from tests.advice.builders import MS, frees_memory, rule, run, upper_bound
from three_walls.advice.format.rule import Rule
from three_walls.advice.plan.make_plan import choose_first_trial, make_plan
from three_walls.lib.plain_data import ConfigData
from three_walls.report.sections.plan import describe_expectation

TRANSFER = "ep_transfer_exposed_ns"  # 150 of 1000 ms


def test_with_a_log_a_gain_is_taken_from_the_unprofiled_step_and_is_a_larger_share_of_it() -> None:
    """The profiler makes steps longer, not gains: 150 of 1000 ms as traced are 150 of 800 ms without the profiler."""
    facts = run(unprofiled_step_ns=800 * MS)
    _, plan = make_plan([rule("first", pool=TRANSFER, low=0.0, likely=0.5, high=1.0)], facts)
    trial = choose_first_trial(plan, facts)
    assert trial is not None
    assert (trial.rule, trial.unprofiled_step_ns) == ("first", 800 * MS)
    assert (trial.saved_low_fraction, trial.saved_high_fraction) == (0.0, pytest.approx(0.1875))
    assert (trial.unprofiled_step_after_low_ns, trial.unprofiled_step_after_high_ns) == (650 * MS, 800 * MS)
    assert describe_expectation(trial) == (
        "The log's unprofiled step time should fall from 800 ms to 650-800 ms (by 0% to 18.8%)."
    )


def test_without_a_log_only_shares_are_known() -> None:
    _, plan = make_plan([rule("first", pool=TRANSFER, low=0.2, likely=0.5, high=1.0)], run())
    trial = choose_first_trial(plan, run())
    assert trial is not None
    assert trial.unprofiled_step_after_high_ns is None
    assert describe_expectation(trial) == "The log's unprofiled step time should fall by 3.0% to 15.0%."


def test_an_empty_plan_has_nothing_to_try() -> None:
    assert choose_first_trial((), run()) is None


def expectation(*rules: Rule, **facts: ConfigData) -> str:
    plan = make_plan(rules, run(**facts))[1]
    trial = choose_first_trial(plan, run(**facts))
    assert trial is not None
    return describe_expectation(trial)


def test_a_likely_gain_is_tried_before_a_larger_upper_bound() -> None:
    _, plan = make_plan([upper_bound("most", pool=TRANSFER), rule("likely", pool="dp_exposed_ns", likely=0.2)], run())
    trial = choose_first_trial(plan, run())
    assert trial is not None
    assert (trial.rule, trial.basis) == ("likely", "range")


def test_where_only_upper_bounds_are_known_they_are_named_as_such() -> None:
    start = "No entry has a likely gain. At best the log's unprofiled step time"
    assert expectation(upper_bound("most", pool=TRANSFER)) == f"{start} falls by 15.0% (upper bound)."
    assert expectation(upper_bound("most", pool=TRANSFER), unprofiled_step_ns=800 * MS) == (
        f"{start} falls from 800 ms to 650 ms (by 18.8%, upper bound)."
    )


def test_what_frees_memory_is_tried_for_the_memory() -> None:
    start = "It frees memory: the log's memory peak should fall. It costs"
    assert expectation(frees_memory("fits", 0.015), rule("gains", likely=1.0)) == f"{start} about 1.5% of the step."
    assert expectation(frees_memory("fits", 0.06, True)) == f"{start} about 6.0% of the step (estimated)."
    assert expectation(frees_memory("fits", 0.0)) == f"{start} no time."
