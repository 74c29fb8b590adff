"""The facts of a run without the delay of one rank: the waiting for it goes, with all that contains it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.advice.builders import MS, run
from three_walls.advice.without_culprit import without_culprit
from three_walls.facts.sheet import DEFINITIONS
from three_walls.lib.fact import FactSheet
from three_walls.lib.plain_data import ConfigData


def late(cost_ms: float, **values: ConfigData) -> FactSheet:
    """A rank that costs ``cost_ms``; the others wait 50 ms in expert-parallel exchanges and 100 in collectives."""
    waits: dict[str, ConfigData] = {"collective_wait_exposed_ns": 100 * MS, "wait_exposed_ns": 150 * MS}
    return run(**(waits | values), culprit_cost_ns=round(cost_ms * MS))


def number(facts: FactSheet, name: str) -> float:
    value = facts.number(name)
    assert value is not None
    return value


def test_a_run_without_a_rank_to_fix_stays_as_it_is() -> None:
    facts = run()
    assert without_culprit(facts) is facts
    healthy = late(0)
    assert without_culprit(healthy) is healthy


def test_its_cost_goes_from_both_kinds_of_waiting_in_proportion() -> None:
    left = without_culprit(late(90))
    assert (number(left, "ep_wait_exposed_ns"), number(left, "collective_wait_exposed_ns")) == (20 * MS, 40 * MS)
    assert number(left, "wait_exposed_ns") == 60 * MS
    assert number(left, "step_ns") == 910 * MS
    assert number(left, "culprit_cost_ns") == 0


def test_the_sums_that_contain_the_waiting_lose_it_too() -> None:
    left = without_culprit(late(90))
    assert number(left, "ep_exposed_ns") == 170 * MS  # 30 of 200 ms
    assert number(left, "collective_exposed_ns") == 40 * MS  # 60 of 100 ms
    assert number(left, "device_busy_ns") == 710 * MS
    assert number(left, "ep_transfer_exposed_ns") == 150 * MS
    assert number(left, "launch_starved_ns") == 200 * MS


def test_the_parts_of_the_waiting_lose_the_share_that_it_loses() -> None:
    left = without_culprit(late(90, pipeline_bubble_ns=50 * MS, barrier_exposed_ns=10 * MS))
    assert number(left, "collective_wait_exposed_ns") == 40 * MS  # 60 of 100 ms
    assert (number(left, "pipeline_bubble_ns"), number(left, "barrier_exposed_ns")) == (20 * MS, 4 * MS)


def test_fractions_follow() -> None:
    left = without_culprit(late(90))
    assert number(left, "launch_starved_fraction") == pytest.approx(200 / 910)
    assert number(left, "ep_exposed_fraction") == pytest.approx(170 / 910)


def test_what_its_waiting_does_not_explain_goes_from_the_step_alone() -> None:
    left = without_culprit(late(200))
    assert number(left, "step_ns") == 800 * MS
    assert number(left, "ep_wait_exposed_ns") == number(left, "collective_wait_exposed_ns") == 0


def test_of_a_logged_run_the_facts_as_traced_lose_it_too() -> None:
    facts = replace(late(90).with_values({"launch_starved_ns": 60 * MS}), before_log={"launch_starved_ns": 200 * MS})
    left = without_culprit(facts)
    assert (number(left, "launch_starved_ns"), number(left.as_traced(), "launch_starved_ns")) == (60 * MS, 200 * MS)
    assert number(left.as_traced(), "step_ns") == number(left, "step_ns") == 910 * MS
    assert number(left.as_traced(), "launch_starved_fraction") == pytest.approx(200 / 910)


@given(st.integers(1, 1000))
def test_no_time_is_made_and_the_step_loses_what_the_rank_costs(cost_ms: int) -> None:
    facts = late(cost_ms)
    left = without_culprit(facts)
    assert number(left, "step_ns") == (1000 - cost_ms) * MS
    for fact in left.facts.values():
        if fact.unit == "ns":
            assert 0 <= number(left, fact.name) <= number(facts, fact.name), fact.name
    for definition in DEFINITIONS:
        part, whole = left.number(definition.numerator), left.number(definition.denominator)
        if part is not None and whole and not left.get(definition.name).is_missing:
            assert number(left, definition.name) == pytest.approx(part / whole)
