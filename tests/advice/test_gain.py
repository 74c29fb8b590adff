"""Gains and the facts they leave behind."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.advice.builders import MS, frees_memory, rule, run, sheet_of, upper_bound
from three_walls.advice.finding import UPPER_BOUND
from three_walls.advice.format.rule import GainTerm, Rule
from three_walls.advice.format.rule_fields import OneMinusFact
from three_walls.advice.judge import judge
from three_walls.advice.plan.gain import apply_gain, estimate, remove_from_pool
from three_walls.facts.sheet import DEFINITIONS
from three_walls.lib.fact import FactSheet
from three_walls.replay.transformation import Level


def after(judged_rule: Rule, facts: FactSheet) -> FactSheet:
    finding = judge(judged_rule, facts)
    return apply_gain(judged_rule, finding.gain_ns, finding.edits, facts)


def number(facts: FactSheet, name: str) -> float:
    value = facts.number(name)
    assert value is not None
    return value


def test_a_gain_is_a_share_of_its_pool() -> None:
    gain = estimate(rule("r", low=0.25, likely=0.5, high=0.75).gain, run())
    assert (gain.low, gain.likely, gain.high) == (50 * MS, 100 * MS, 150 * MS)


def test_terms_add_up() -> None:
    model = replace(
        rule("r").gain,
        terms=(
            GainTerm(pool="launch_starved_ns", low=0, likely=0.5, high=1),
            GainTerm(pool="host_blocked_ns", low=0, likely=0.5, high=1),
        ),
    )
    assert estimate(model, run(host_blocked_ns=40 * MS)).likely == 120 * MS


def test_a_missing_pool_leaves_the_gain_unknown_and_named() -> None:
    gain = estimate(rule("r", pool="offload_copy_exposed_ns").gain, run())
    assert (gain.low, gain.likely, gain.high) == (None, None, None)
    assert gain.explanation.startswith("Unknown: exposed host copy time per step")


def test_nothing_hides_under_more_compute_than_there_is() -> None:
    hiding_rule = rule("r", pool="ep_transfer_exposed_ns", hidden_under="compute_busy_ns")
    assert estimate(hiding_rule.gain, run(compute_busy_ns=60 * MS)).high == 60 * MS


def test_of_an_upper_bound_only_the_most_is_known() -> None:
    gain = estimate(upper_bound("r", high=0.75).gain, run())
    assert (gain.low, gain.likely, gain.high, gain.basis) == (0, None, 150 * MS, "upper_bound")


def test_an_upper_bound_goes_at_the_high_end_alone() -> None:
    hiding_rule = upper_bound("r", pool="ep_transfer_exposed_ns", hidden_under="compute_busy_ns")
    gain = estimate(hiding_rule.gain, run())
    left = {level: apply_gain(hiding_rule, gain, (), run(), level) for level in Level}
    assert left[Level.LOW] == left[Level.LIKELY] == run()
    assert number(left[Level.HIGH], "step_ns") == 850 * MS
    assert number(left[Level.HIGH], "ep_hidden_ns") == 150 * MS


def test_what_hides_and_what_limits_an_upper_bound_keep_it_low() -> None:
    hidden = upper_bound("r", pool="ep_transfer_exposed_ns", hidden_under="compute_busy_ns", at_most="dp_exposed_ns")
    assert estimate(hidden.gain, run()).high == 100 * MS
    assert estimate(hidden.gain, run(compute_busy_ns=60 * MS)).high == 60 * MS
    assert estimate(hidden.gain, run(dp_exposed_ns=50 * MS)).high == 50 * MS


def test_an_upper_bound_without_its_limit_stays_one_and_an_estimate_does_not() -> None:
    loose = estimate(upper_bound("r", hidden_under="gemm_ns", at_most="permute_ns").gain, run())
    assert (loose.high, loose.explanation) == (
        200 * MS,
        "The bound would be lower if these were known: GEMM time per step, token permutation time per step. reason",
    )
    told = estimate(rule("r", hidden_under="gemm_ns").gain, run())
    assert (told.high, told.explanation) == (None, "Unknown: GEMM time per step. reason")


def test_an_upper_bound_without_its_pool_is_unknown() -> None:
    gain = estimate(upper_bound("r", pool="gemm_ns").gain, run())
    assert (gain.low, gain.high, gain.explanation) == (None, None, "Unknown: GEMM time per step. reason")


def test_what_frees_memory_gains_no_time_and_names_its_cost() -> None:
    gain = estimate(frees_memory("r", 0.015).gain, run())
    assert (gain.likely, gain.basis, gain.cost_fraction, gain.cost_is_estimated) == (None, "frees_memory", 0.015, False)
    assert apply_gain(frees_memory("r", 0.015), gain, (), run()) == run()


def test_the_high_end_may_come_from_a_fact() -> None:
    high = OneMinusFact("ep_internode_unique_copies_fraction")
    term = GainTerm(pool="ep_transfer_exposed_ns", low=0.0, high=high)
    model = replace(rule("r").gain, terms=(term,))
    gain = estimate(model, run(ep_internode_unique_copies_fraction=0.2))
    assert (gain.low, gain.likely, gain.high) == (0, 60 * MS, 120 * MS)
    assert estimate(model, run()).likely is None
    most = replace(model, basis=UPPER_BOUND, terms=(GainTerm(pool=term.pool, high=high),))
    gain = estimate(most, run(ep_internode_unique_copies_fraction=0.2))
    assert (gain.low, gain.likely, gain.high) == (0, None, 120 * MS)


def test_removing_a_transfer_keeps_the_sums_it_belongs_to() -> None:
    facts = after(rule("r", pool="ep_transfer_exposed_ns", likely=1.0), run())
    assert number(facts, "step_ns") == 850 * MS
    assert number(facts, "ep_transfer_exposed_ns") == 0
    assert number(facts, "ep_exposed_ns") == number(facts, "ep_wait_exposed_ns") == 50 * MS
    assert number(facts, "communication_recoverable_ns") == 100 * MS
    assert number(facts, "ep_busy_ns") == 50 * MS
    assert number(facts, "device_busy_ns") == 650 * MS
    assert number(facts, "launch_starved_fraction") == pytest.approx(200 / 850)
    assert facts.get("config.r").value is True


def test_hiding_a_transfer_moves_it_under_compute() -> None:
    facts = after(rule("r", pool="ep_transfer_exposed_ns", likely=1.0, hidden_under="compute_busy_ns"), run())
    assert number(facts, "ep_busy_ns") == number(facts, "ep_hidden_ns") + number(facts, "ep_exposed_ns") == 200 * MS
    assert number(facts, "ep_hidden_of_busy_fraction") == pytest.approx(150 / 200)


def test_launching_earlier_shrinks_idle_time_and_leaves_the_device_as_busy() -> None:
    facts = after(rule("r", likely=0.5), run())
    assert number(facts, "idle_ns") == number(facts, "host_idle_ns") == number(facts, "host_recoverable_ns") == 100 * MS
    assert number(facts, "device_busy_ns") == 800 * MS


def test_dropping_recompute_shrinks_everything_by_the_same_share() -> None:
    facts = after(rule("r", pool="recompute_ns", likely=0.5, shrinks_all_pools=True), run())
    assert number(facts, "step_ns") == 900 * MS
    assert number(facts, "recompute_ns") == number(facts, "memory_recoverable_ns") == 100 * MS
    assert number(facts, "ep_transfer_exposed_ns") == 135 * MS
    assert number(facts, "ep_transfer_exposed_fraction") == pytest.approx(0.15)


def test_an_unknown_gain_still_sets_what_the_edits_set() -> None:
    facts = after(rule("r", pool="offload_copy_exposed_ns"), run())
    assert facts.get("config.r").value is True
    assert number(facts, "step_ns") == 1000 * MS


def test_the_optimizers_starved_time_is_part_of_the_launch_starved() -> None:
    facts = after(rule("r", pool="optimizer_launch_starved_ns", likely=1.0), run(optimizer_launch_starved_ns=50 * MS))
    for name in ("launch_starved_ns", "launch_starved_recoverable_ns", "host_idle_ns", "idle_ns"):
        assert number(facts, name) == 150 * MS


def test_a_bubble_is_waiting_in_collectives() -> None:
    facts = after(rule("r", pool="pipeline_bubble_ns", likely=0.5), run(pipeline_bubble_ns=80 * MS))
    assert number(facts, "collective_exposed_ns") == 60 * MS
    assert number(facts, "collective_transfer_exposed_ns") == 100 * MS
    assert number(facts, "device_busy_ns") == 760 * MS


POOLS = ("launch_starved_ns", "ep_transfer_exposed_ns", "dp_exposed_ns", "attention_unfused_ns", "recompute_ns")


@given(st.sampled_from(POOLS), st.floats(0, 1), st.sampled_from(list(Level)), st.booleans())
def test_no_time_is_made_and_fractions_follow(pool: str, share: float, level: Level, slice_of_all: bool) -> None:
    facts = run()
    slice_rule = rule("r", pool=pool, low=share, likely=share, high=share, shrinks_all_pools=slice_of_all)
    gain = estimate(slice_rule.gain, facts)
    left = apply_gain(slice_rule, gain, (), facts, level)
    assert gain.likely is not None
    assert number(left, "step_ns") == number(facts, "step_ns") - gain.likely
    for fact in left.facts.values():
        if fact.unit == "ns" and fact.name != "ep_hidden_ns":
            assert 0 <= number(left, fact.name) <= number(facts, fact.name)
    for definition in DEFINITIONS:
        part, whole = left.number(definition.numerator), left.number(definition.denominator)
        if part is not None and whole and not left.get(definition.name).is_missing:
            assert number(left, definition.name) == pytest.approx(part / whole)


PARTS_OF_A_STEP = {
    "step_ns": 1_000,
    "device_busy_ns": 800,
    "idle_ns": 200,
    "host_idle_ns": 100,
    "launch_starved_ns": 100,
    "launch_starved_recoverable_ns": 80,
    "compute_busy_ns": 500,
    "elementwise_ns": 60,
    "rope_kernels_ns": 40,
    "rope_launch_starved_ns": 20,
    "rope_ns": 60,
    "rope_fraction": 0.06,
}


def after_removing(pool: str, removed_ns: int) -> dict[str, float | None]:
    facts = remove_from_pool(sheet_of(PARTS_OF_A_STEP), pool, removed_ns, hides=False)
    return {name: facts.number(name) for name in PARTS_OF_A_STEP}


def test_the_sums_that_hold_a_pool_lose_what_it_loses() -> None:
    left = after_removing("rope_kernels_ns", 30)
    assert (left["rope_kernels_ns"], left["rope_ns"], left["elementwise_ns"], left["compute_busy_ns"]) == (
        10,
        30,
        30,
        470,
    )
    assert (left["step_ns"], left["device_busy_ns"]) == (970, 770)


def test_the_parts_of_a_pool_lose_the_share_that_it_loses() -> None:
    left = after_removing("launch_starved_recoverable_ns", 40)  # half of it
    assert (left["launch_starved_recoverable_ns"], left["launch_starved_ns"], left["idle_ns"]) == (40, 60, 160)
    assert (left["rope_launch_starved_ns"], left["rope_ns"]) == (10, 50)
    assert left["rope_kernels_ns"] == 40


def test_fractions_follow() -> None:
    assert after_removing("launch_starved_recoverable_ns", 40)["rope_fraction"] == 50 / 960


def test_a_pool_never_goes_below_nothing() -> None:
    assert after_removing("launch_starved_recoverable_ns", 500)["rope_launch_starved_ns"] == 0
