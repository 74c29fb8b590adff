"""Printed ranges of gains: by what measured gains differed from replayed ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from three_walls.tables.prediction_intervals import (
    Inside,
    Levels,
    MeasuredGain,
    PredictionIntervals,
    Regime,
    StepLimits,
    prediction_intervals,
)

DEVICE, HOST = StepLimits(0.0, 0.0), StepLimits(1.0, 0.0)
INTERVALS = PredictionIntervals(
    floor_fraction=0.02,
    host_fraction=0.08,
    communication_fraction=0.06,
    loader_fraction=0.3,
    absent_fraction=0.1,
    gain_ratio=0.1,
    effect_fraction=0.03,
    least_left_ratio=0.5,
    coverage_fraction=0.8,
    step_coverage_fraction=0.9,
    step_ratio=1.0,
    quantile=1.0,
    inside={Regime.HOST: Inside(15, 20)},
    edits={Regime.HOST: {"fused-rope": 3, "micro-batch": 2}},
)


def gain(likely: float, low: float | None = None, high: float | None = None) -> Levels:
    return Levels(likely if low is None else low, likely, likely if high is None else high)


def widen(gained: Levels, limits: StepLimits, effects: tuple[str, ...] = ()) -> Levels:
    """Of an edit that leaves the limits as they are."""
    return INTERVALS.widen(gained, limits, limits, effects)


def test_a_gain_of_nothing_is_as_uncertain_as_two_runs_differ() -> None:
    wide = widen(gain(0.0), DEVICE)
    assert (wide.low, wide.high) == pytest.approx((-0.02, 0.02))


def test_a_host_bound_run_is_less_certain_than_a_device_bound_one() -> None:
    assert widen(gain(0.0), HOST).high == pytest.approx((0.02**2 + 2 * 0.08**2) ** 0.5)  # both runs have a host


def test_a_run_that_waits_for_its_data_loader_is_less_certain_than_a_host_bound_one() -> None:
    waits = replace(HOST, waits_for_loader=True)
    assert widen(Levels(0, 0, 0), waits).high > 2 * widen(Levels(0, 0, 0), HOST).high


def test_a_host_counts_by_the_part_of_the_step_that_is_left() -> None:
    assert widen(gain(0.5), HOST).low == pytest.approx(0.5 - (0.02**2 + 2 * 0.04**2 + 0.05**2) ** 0.5)
    assert widen(gain(-0.5), HOST).high == pytest.approx(-0.5 + (0.02**2 + 2 * 0.12**2 + 0.05**2) ** 0.5)


def test_an_edit_after_which_the_device_sets_the_pace_is_surer_than_one_that_leaves_it_to_the_host() -> None:
    assert INTERVALS.widen(gain(0.0), HOST, DEVICE).high == pytest.approx((0.02**2 + 0.08**2) ** 0.5)
    assert INTERVALS.widen(gain(0.0), HOST, DEVICE).high < widen(gain(0.0), HOST).high


def test_a_large_gain_or_loss_is_less_certain_than_a_small_one() -> None:
    assert widen(gain(0.3), DEVICE).low == pytest.approx(0.3 - (0.02**2 + 0.03**2) ** 0.5)
    assert widen(gain(-0.3), DEVICE).high == pytest.approx(-0.3 + (0.02**2 + 0.03**2) ** 0.5)


def test_every_further_effect_makes_a_gain_less_certain_and_one_twice_does_not() -> None:
    three = widen(gain(0.0), DEVICE, ("fused-rope", "micro-batch", "precision"))
    assert three.high == pytest.approx((0.02**2 + 0.06**2) ** 0.5)
    half_left = widen(gain(0.5), DEVICE, ("fused-rope", "micro-batch", "precision"))
    assert half_left.high == pytest.approx(0.5 + (0.02**2 + 0.05**2 + 0.03**2) ** 0.5)
    assert widen(gain(0.0), DEVICE, ("fused-rope", "fused-rope")).high == pytest.approx(0.02)


def test_what_was_measured_is_as_uncertain_as_measurements_were_whatever_its_parameters() -> None:
    wide = widen(gain(0.0, low=0.0, high=0.5), DEVICE, ("micro-batch",))
    assert (wide.low, wide.high) == pytest.approx((-0.02, 0.02))


def test_what_was_never_measured_is_at_least_as_uncertain_as_its_parameters() -> None:
    wide = widen(gain(0.0, low=-0.01, high=0.5), DEVICE, ("ep-overlap",))
    assert (wide.low, wide.high) == pytest.approx((-0.02, 0.5), abs=0.001)


def test_the_learnt_quantile_holds_as_many_gains_as_it_states() -> None:
    off = [MeasuredGain(gain(0.0), 0.02 * score, DEVICE, DEVICE) for score in (1, -2, 3, -4)]
    assert INTERVALS.learn(off) == pytest.approx(4)  # four of five, and the next gain is the fifth
    assert replace(INTERVALS, coverage_fraction=0.5).learn(off) == pytest.approx(3)


@given(st.lists(st.floats(-0.9, 0.9), min_size=4), st.floats(-0.5, 0.5))
def test_what_was_learnt_from_is_inside_as_often(measured: list[float], likely: float) -> None:
    gains = [MeasuredGain(gain(likely), each, HOST, HOST) for each in measured]
    learnt = replace(INTERVALS, quantile=INTERVALS.learn(gains) * (1 + 1e-9), least_left_ratio=0.0)
    wide = learnt.widen(gain(likely), HOST, HOST)
    assert sum(wide.low <= each <= wide.high for each in measured) >= 0.8 * len(measured)


def test_a_step_is_bound_by_the_largest_part_of_its_critical_path() -> None:
    assert StepLimits.of({"host": 5, "gap": 1, "compute": 4}).regime is Regime.HOST
    assert StepLimits.of({"host": 2, "compute": 3, "communication": 5}).regime is Regime.COMMUNICATION
    assert StepLimits.of({"host": 2, "compute": 5, "communication": 3}).regime is Regime.DEVICE
    assert StepLimits.of({}).regime is Regime.DEVICE
    assert StepLimits.of({"host": 5, "compute": 4}, waits_for_loader=True).regime is Regime.LOADER


def test_edits_count_for_their_effects_and_their_regime() -> None:
    assert INTERVALS.count_edits(("fused-rope", "micro-batch", "other"), Regime.HOST) == 5
    assert INTERVALS.count_edits(("fused-rope",), Regime.DEVICE) == 0


def test_the_shipped_intervals_rest_on_edits_in_every_regime() -> None:
    shipped = prediction_intervals()
    assert all(shipped.edits[regime] for regime in Regime)
    assert all(0 < shipped.inside[regime].inside <= shipped.inside[regime].measured for regime in Regime)


def test_what_changes_the_work_of_hosts_is_less_certain_where_ranks_wait_for_ranks_that_were_not_captured() -> None:
    alone, measured = replace(DEVICE, absent_fraction=0.5), ("fused-rope",)
    on_the_device, on_the_host = gain(0.0, -0.001, 0.001), gain(0.0, -0.1, 0.1)
    assert widen(on_the_device, alone, measured).high < 0.021
    assert widen(on_the_host, alone, measured).high == pytest.approx((0.02**2 + 0.05**2) ** 0.5)
    assert widen(on_the_host, DEVICE, measured).high == pytest.approx(0.02)


def test_a_gain_of_nearly_all_of_the_step_leaves_half_of_the_likely_rest_at_least() -> None:
    wide = widen(gain(0.98), DEVICE)
    assert wide.high == pytest.approx(0.99)
    assert wide.low < 0.9
