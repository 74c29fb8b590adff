"""Facts of the latest rank and of captures that began apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from lockstep import MS, Behaviour, simulate
from paused import pause_before

from tests.measured import measure

pytestmark = pytest.mark.slow

USUAL = Behaviour()
SLOW = Behaviour(slow=1.3)


def test_the_latest_rank_gives_the_facts(tmp_path: Path) -> None:
    run = simulate([USUAL, USUAL, SLOW, USUAL])
    facts = measure(run.write(tmp_path)).facts
    late_ns = run.truth.late[(2, 2)]
    assert facts.number("straggler_late_ns") == facts.number("straggler_late_recoverable_ns") == late_ns
    assert facts.number("straggler_late_fraction") == pytest.approx(late_ns / (facts.number("step_ns") or 0))
    assert facts.get("straggler_cause").value == "slow_compute"


def test_pauses_of_all_ranks_make_none_a_smaller_part_of_the_step_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = simulate([USUAL, SLOW]).write(tmp_path)
    even = measure(traces).facts
    fraction = even.number("culprit_cost_fraction")
    assert fraction is not None
    for module in ("step.step_view", "facts.rank_facts"):
        monkeypatch.setattr(f"three_walls.{module}.MINIMUM_LATE_FRACTION", 0.95 * fraction)
    paused = []
    for trace in traces:
        path = trace
        for launch in range(43, 145, 29):  # in the middle of each step but the first
            path = pause_before(path, tmp_path / f"{launch}-{trace.name}", launch, 10 * MS)
        paused.append(path)
    facts = measure(paused).facts
    assert facts.number("host_pause_ns") == pytest.approx(10 * MS, rel=0.01)
    assert facts.number("culprit_rank") == even.number("culprit_rank") == 1


def test_ranks_that_keep_up_are_late_by_nothing(tmp_path: Path) -> None:
    facts = measure(simulate([USUAL, USUAL, USUAL]).write(tmp_path)).facts
    assert facts.number("straggler_late_ns") == 0
    assert facts.get("straggler_cause").missing_reason == "no rank was late"


def test_one_rank_alone_says_nothing_of_lateness(tmp_path: Path) -> None:
    trace, *_ = simulate([USUAL, SLOW]).write(tmp_path)
    facts = measure(trace).facts
    for name in ("straggler_late_ns", "straggler_cause", "capture_start_skew_ns", "capture_start_skewed_steps_count"):
        assert facts.get(name).missing_reason == "one rank alone was captured (give the traces of several ranks)"


def test_the_only_rank_of_a_run_is_not_late(tmp_path: Path) -> None:
    trace, *_ = simulate([USUAL, SLOW]).write(tmp_path)
    facts = measure(trace, settings=["env_vars.WORLD_SIZE=1"]).facts
    assert facts.number("straggler_late_ns") == 0
    assert facts.get("straggler_cause").missing_reason == "no rank was late"


def test_profilers_that_start_apart_are_measured(tmp_path: Path) -> None:
    run = simulate([USUAL, replace(USUAL, capture_delay_ns=900 * MS), USUAL])
    facts = measure(run.write(tmp_path)).facts
    assert facts.number("capture_start_skew_ns") == 900 * MS
    assert facts.number("capture_start_skewed_steps_count") == 0


def test_profilers_that_start_together_are_not_apart(tmp_path: Path) -> None:
    facts = measure(simulate([USUAL, SLOW]).write(tmp_path)).facts
    assert facts.number("capture_start_skew_ns") == 0
    assert facts.number("capture_start_skewed_steps_count") == 0
