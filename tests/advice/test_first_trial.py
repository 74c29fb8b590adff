"""Which edit to try first, and what must be seen if it worked."""

from __future__ import annotations

import pytest

from tests.advice.builders import MS, frees_memory, rule, run
from tests.advice.fake_predictor import WITHOUT_REPLAYS, FakePredictor, plan_of, saving
from three_walls.advice.finding import FirstTrial
from three_walls.advice.format.rule import Rule
from three_walls.advice.plan.make_plan import choose_first_trial
from three_walls.lib.fact import FactSheet
from three_walls.report.sections.plan import describe_expectation


def first_of(facts: FactSheet, predictor: FakePredictor, *rules: Rule) -> FirstTrial:
    trial = choose_first_trial(plan_of(rules, predictor, facts)[1], facts, predictor)
    assert trial is not None
    return trial


def test_with_a_log_the_replayed_gain_is_a_share_of_its_step() -> None:
    predictor = FakePredictor(lambda taken: (650, 725, 800) if taken else 800)
    trial = first_of(run(unprofiled_step_ns=800 * MS), predictor, rule("first"))
    assert (trial.rule, trial.basis, trial.unprofiled_step_ns) == ("first", "replayed", 800 * MS)
    assert trial.saved_low_fraction == 0
    assert trial.saved_high_fraction == pytest.approx(0.1875)
    assert (trial.unprofiled_step_after_low_ns, trial.unprofiled_step_after_high_ns) == (650 * MS, 800 * MS)
    assert describe_expectation(trial) == (
        "The log's unprofiled step time should fall from 800 ms to 650-800 ms (by 0% to 18.8%)."
    )


def test_without_a_log_only_shares_are_known() -> None:
    trial = first_of(run(), FakePredictor(lambda taken: (850, 900, 970) if taken else 1000), rule("first"))
    assert trial.unprofiled_step_after_high_ns is None
    assert describe_expectation(trial) == "The log's unprofiled step time should fall by 3.0% to 15.0%."


def test_an_empty_plan_has_nothing_to_try() -> None:
    assert choose_first_trial((), run()) is None
    assert choose_first_trial(plan_of([rule("a")], WITHOUT_REPLAYS)[1], run(), WITHOUT_REPLAYS) is None


@pytest.mark.parametrize(("cost_ms", "words"), [(12, "about 1.5% of the step"), (48, "about 6.0% of the step")])
def test_what_frees_memory_is_tried_for_the_memory(cost_ms: float, words: str) -> None:
    predictor = saving(800, fits=-cost_ms, gains=100)
    trial = first_of(run(), predictor, frees_memory("fits"), rule("gains"))
    assert describe_expectation(trial) == f"It frees memory: the log's memory peak should fall. It costs {words}."
