"""What is said of a rank that makes the others wait."""

from __future__ import annotations

from three_walls.facts.caveats import warn_of_stragglers
from three_walls.model.report import Straggler
from three_walls.rules.cases import sheet_of

MS = 1_000_000


def said(cause: str, late_ms: int, excess_ms: int | None) -> str:
    facts = {"step_ns": 500 * MS} | ({} if excess_ms is None else {"profiler_excess_ns": excess_ms * MS})
    found = warn_of_stragglers([Straggler(2, late_ms * MS, cause, "")], sheet_of(facts))
    return " ".join(warning.message for warning in found)


def test_a_rank_that_delays_much_of_the_step_is_named() -> None:
    assert said("slow_compute", 100, None).startswith("rank 2 makes the others wait for 20% of the step (slow compute)")
    assert said("slow_compute", 49, None) == ""


def test_a_rank_whose_launches_the_profiler_slows_may_be_late_in_traced_steps_only() -> None:
    assert "late in traced steps only" in said("launch_starved", 60, 80)


def test_the_profiler_explains_neither_more_delay_than_it_adds_nor_slow_computing() -> None:
    for cause, late_ms, excess_ms in (
        ("launch_starved", 90, 80),
        ("slow_compute", 60, 80),
        ("launch_starved", 60, None),
    ):
        assert "find out why" in said(cause, late_ms, excess_ms)
