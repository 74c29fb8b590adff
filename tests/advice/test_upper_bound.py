"""Upper bounds: sums of shares of times, and what keeps them low."""

from __future__ import annotations

from dataclasses import replace

from tests.advice.builders import MS, frees_memory, rule, run
from three_walls.advice.finding import Gain
from three_walls.advice.format.rule import Rule, TimeShare
from three_walls.advice.format.rule_fields import OneMinusFact
from three_walls.advice.upper_bound import bound_gain, no_gain
from three_walls.lib.plain_data import ConfigData

TRANSFER = "ep_transfer_exposed_ns"  # 150 of 1000 ms


def bound(of: Rule, **facts: ConfigData) -> Gain:
    return bound_gain(of.gain, run(**facts))


def test_of_an_upper_bound_only_the_most_is_known() -> None:
    gain = bound(rule("r", share=0.75))
    assert (gain.low, gain.likely, gain.high, gain.basis) == (0, None, 150 * MS, "upper_bound")


def test_times_add_up() -> None:
    both = (TimeShare(time="launch_starved_ns", share=0.5), TimeShare(time="host_blocked_ns"))
    model = replace(rule("r").gain, at_most=both)
    assert bound_gain(model, run(host_blocked_ns=40 * MS)).high == 140 * MS


def test_no_more_than_the_step_can_go() -> None:
    model = replace(rule("r").gain, at_most=(TimeShare(time="step_ns"), TimeShare(time="launch_starved_ns")))
    assert bound_gain(model, run()).high == 1000 * MS


def test_nothing_hides_under_more_compute_than_there_is() -> None:
    hiding = rule("r", at_most=TRANSFER, within=("compute_busy_ns", "dp_exposed_ns"))
    assert bound(hiding).high == 100 * MS
    assert bound(hiding, compute_busy_ns=60 * MS).high == 60 * MS
    assert bound(hiding, dp_exposed_ns=50 * MS).high == 50 * MS


def test_without_what_limits_it_it_stays_a_bound_and_says_that_it_is_loose() -> None:
    loose = bound(rule("r", within=("gemm_ns", "permute_ns")))
    assert (loose.high, loose.explanation) == (
        200 * MS,
        "The bound would be lower if these were known: GEMM time per step, token permutation time per step. reason",
    )


def test_without_its_time_it_is_unknown_and_the_time_is_named() -> None:
    gain = bound(rule("r", at_most="offload_copy_exposed_ns"))
    assert (gain.low, gain.likely, gain.high, gain.basis) == (None, None, None, "upper_bound")
    assert gain.explanation == "Unknown: exposed host copy time per step. reason"


def test_the_share_may_come_from_a_fact() -> None:
    most = rule("r", at_most=TRANSFER, share=OneMinusFact("ep_internode_unique_copies_fraction"))
    assert bound(most, ep_internode_unique_copies_fraction=0.2).high == 120 * MS
    assert bound(most).high is None


def test_a_model_without_a_bound_gains_nothing_that_is_known() -> None:
    freeing = bound(frees_memory("r"))
    assert (freeing.high, freeing.basis, freeing.explanation) == (None, "frees_memory", "saves memory")
    nothing = bound_gain(replace(rule("r").gain, at_most=()), run())
    assert (nothing.high, nothing.basis, nothing.explanation) == (None, "none", "reason")
    assert no_gain(rule("r").gain, "why") == Gain(None, None, None, "upper_bound", "why")
