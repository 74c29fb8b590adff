"""What shrinks with a pool of time: the sums that hold it, and the parts that it holds."""

from __future__ import annotations

from tests.rules.builders import sheet_of
from three_walls.rules.pools import remove_from_pool

FACTS = {
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


def after(pool: str, removed_ns: int) -> dict[str, float | None]:
    facts = remove_from_pool(sheet_of(FACTS), pool, removed_ns, hides=False)
    return {name: facts.number(name) for name in FACTS}


def test_the_sums_that_hold_a_pool_lose_what_it_loses() -> None:
    left = after("rope_kernels_ns", 30)
    assert (left["rope_kernels_ns"], left["rope_ns"], left["elementwise_ns"], left["compute_busy_ns"]) == (
        10,
        30,
        30,
        470,
    )
    assert (left["step_ns"], left["device_busy_ns"]) == (970, 770)


def test_the_parts_of_a_pool_lose_the_share_that_it_loses() -> None:
    left = after("launch_starved_recoverable_ns", 40)  # half of it
    assert (left["launch_starved_recoverable_ns"], left["launch_starved_ns"], left["idle_ns"]) == (40, 60, 160)
    assert (left["rope_launch_starved_ns"], left["rope_ns"]) == (10, 50)
    assert left["rope_kernels_ns"] == 40


def test_fractions_follow() -> None:
    assert after("launch_starved_recoverable_ns", 40)["rope_fraction"] == 50 / 960


def test_a_pool_never_goes_below_nothing() -> None:
    assert after("launch_starved_recoverable_ns", 500)["rope_launch_starved_ns"] == 0
