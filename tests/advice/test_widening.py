"""The range of a gain as it is printed, and what it rests on."""

from __future__ import annotations

from dataclasses import replace

from tests.tables.test_prediction_intervals import DEVICE, HOST, INTERVALS
from three_walls.advice.widening import Widening
from three_walls.facts.fact_rows import Prediction
from three_walls.tables.prediction_intervals import Levels

ROPE = ("fused-rope",)
WIDENING = Widening(replace(INTERVALS, host_fraction=0.0, gain_ratio=0.0), 1000, 1000, HOST)


def test_a_gain_is_widened_in_shares_of_the_step() -> None:
    gain_ns = Levels(100, 100, 100)
    assert WIDENING.widen(gain_ns, 1000, ROPE, HOST, HOST) == (80, 120)
    assert WIDENING.widen(gain_ns, 500, ROPE, HOST, HOST) == (90, 110)  # an entry of a plan, on the step before it


def test_a_gain_is_as_sure_in_a_step_that_pauses() -> None:
    paused = replace(WIDENING, step_ns=3000)
    assert paused.widen_step(Prediction(2900, 2900, 2900), ROPE, HOST) == Prediction(2880, 2900, 2920)


def test_a_step_has_the_range_of_what_it_gains() -> None:
    assert WIDENING.widen_step(Prediction(900, 900, 900), ROPE, HOST) == Prediction(880, 900, 920)


def test_a_step_takes_no_less_than_half_of_what_is_likely_left() -> None:
    assert WIDENING.widen_step(Prediction(10, 10, 10), ROPE, HOST) == Prediction(5, 10, 30)


def test_a_step_that_the_host_no_longer_bounds_is_surer() -> None:
    widening = Widening(INTERVALS, 1000, 1000, HOST)
    bound, free = (widening.widen_step(Prediction(900, 900, 900), ROPE, limits) for limits in (HOST, DEVICE))
    assert free.high_ns - free.low_ns < bound.high_ns - bound.low_ns


def test_the_sentence_counts_the_measured_edits_of_these_settings() -> None:
    assert WIDENING.describe(ROPE) == (
        "Such ranges hold 15 of 20 gains measured on host-bound runs; "
        "3 of the edits measured there change these settings."
    )


def test_the_sentence_says_where_nothing_was_measured() -> None:
    assert WIDENING.describe(("ep-overlap",)).endswith(
        "no edit measured there changes these settings: the gain is by replay alone."
    )
