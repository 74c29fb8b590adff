"""Injected clock errors are recovered within the reported residual."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lockstep import MS, Behaviour, simulate

from tests.measured import measure
from three_walls import analyze
from three_walls.step.ranks.align_clocks import (
    FITTED,
    FITTED_WITH_DRIFT,
    NOT_RESOLVABLE,
    SESSION_CLOCKS,
    ClockSource,
    align_clocks,
)
from three_walls.step.ranks.match_calls import MatchedCalls

pytestmark = pytest.mark.slow

USUAL = Behaviour()


def matched_ends(offset_ns: int, drift: float, jitter: list[int], name: str = "all_reduce") -> MatchedCalls:
    """Calls of two ranks, 20 ms apart; the clock of the second is ahead by ``offset_ns`` and gains ``drift``."""
    rows = []
    for order, late in enumerate(jitter):
        end = (order + 1) * 20 * MS
        own = end + offset_ns + round(end * drift) + late
        rows += [(order, 0, name, True, end - MS, end), (order, 1, name, True, own - MS, own)]
    schema = ["instance", "rank_index", "class", "sure", "start_ns", "end_ns"]
    calls = pl.DataFrame(rows, schema=schema, orient="row")
    return MatchedCalls(calls, calls, calls.clear())


def sources(hosts: tuple[str, str] = ("a", "b"), second_session: int | None = None) -> list[ClockSource]:
    return [ClockSource(0, 0, 0, hosts[0], 0), ClockSource(1, 1, 1, hosts[1], second_session)]


@settings(max_examples=60, deadline=None)
@given(
    offset=st.integers(-20 * MS, 20 * MS),
    drift=st.floats(-50e-6, 50e-6),
    jitter=st.lists(st.integers(-5_000, 5_000), min_size=30, max_size=90),
)
def test_an_injected_offset_and_drift_is_recovered_within_the_residual(
    offset: int, drift: float, jitter: list[int]
) -> None:
    clock = align_clocks(sources(), matched_ends(offset, drift, jitter))
    assert clock.alignment is not None
    assert clock.alignment.residual_ns_p95 is not None
    probe = [(order + 1) * 20 * MS for order in range(len(jitter))]
    own = pl.DataFrame({"rank_index": 1, "start_ns": [at + offset + round(at * drift) for at in probe]})
    found = clock.add_common_times(own.with_columns(end_ns="start_ns"))["common_start_ns"]
    errors = (found - pl.Series(probe)).abs().sort()
    # The residual includes the jitter of the ends: the error of the fit is within it.
    assert errors[int(0.95 * (len(jitter) - 1))] <= clock.alignment.residual_ns_p95 + 5_000


def test_exact_clocks_are_recovered_exactly() -> None:
    clock = align_clocks(sources(), matched_ends(-17 * MS, 0.0, [0] * 20))
    assert clock.alignment is not None
    assert (clock.alignment.method, clock.error_ns) == (FITTED, 0)


def test_a_drift_is_fitted_where_it_matters() -> None:
    clock = align_clocks(sources(), matched_ends(20 * MS, 50e-6, [0] * 500))
    assert clock.alignment is not None
    assert clock.alignment.method == FITTED_WITH_DRIFT
    assert clock.error_ns < 100


def test_captures_of_one_host_are_aligned_by_their_session_clocks() -> None:
    clock = align_clocks(sources(("a", "a"), 3 * MS), matched_ends(-3 * MS, 0.0, [0] * 20))
    assert clock.alignment is not None
    assert (clock.alignment.method, clock.error_ns) == (SESSION_CLOCKS, 0)


def test_two_hosts_with_the_same_name_are_detected() -> None:
    # Containers often share a name; their sessions then disagree by milliseconds and the ends decide.
    clock = align_clocks(sources(("vm", "vm"), 0), matched_ends(15 * MS, 0.0, [0] * 20))
    assert clock.alignment is not None
    assert (clock.alignment.method, clock.error_ns) == (FITTED, 0)


def test_too_few_calls_in_common_cannot_be_resolved() -> None:
    clock = align_clocks(sources(), matched_ends(15 * MS, 0.0, [0] * 3))
    assert clock.alignment is not None
    assert clock.alignment.method == NOT_RESOLVABLE
    assert not clock.is_resolved


@pytest.mark.parametrize("odd", [{}, {"drift": 50e-6}])
def test_other_hosts_give_the_same_waits(tmp_path: Path, odd: dict[str, float]) -> None:
    wrong = Behaviour(host="node1", clock_ahead_ns=-20 * MS, **odd)
    run = simulate([USUAL, Behaviour(slow=1.4), wrong, wrong])
    report = measure(run.write(tmp_path))
    assert report.alignment is not None
    assert report.alignment.method in (FITTED, FITTED_WITH_DRIFT)
    residual = report.alignment.residual_ns_p95
    assert residual is not None
    assert residual <= (2_000 if odd else 0)
    for wait in report.waits:
        truth = run.truth.waits[(wait.rank, 2)][wait.communication_class]
        assert wait.wait_ns is not None
        assert abs(wait.wait_ns - truth) <= 7 * residual
    assert [straggler.rank for straggler in report.stragglers] == [1]


def test_clocks_that_cannot_be_aligned_resolve_no_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("three_walls.step.ranks.align_clocks.MINIMUM_COMMON_ENDS", 1_000)
    report = measure(simulate([USUAL, Behaviour(slow=1.4, host="node1")]).write(tmp_path))
    assert report.alignment is not None
    assert report.alignment.method == NOT_RESOLVABLE
    assert report.stragglers == ()
    assert {wait.note for wait in report.waits} == {"shortest participant: the ranks' clocks could not be aligned"}


def test_one_rank_has_nothing_to_align(tmp_path: Path) -> None:
    report = measure(simulate([USUAL]).write(tmp_path))
    assert report.alignment is None
    assert report.stragglers == ()


def test_processes_of_one_report_are_on_one_clock_however_uneven_their_ends() -> None:
    both = [ClockSource(0, 0, 0, "a", None), ClockSource(1, 1, 0, "a", None)]
    # Calls of two groups that were matched by order: no clock is wrong, and none must be fitted to hide it.
    clock = align_clocks(both, matched_ends(0, 0.0, [5 * MS, -5 * MS] * 10))
    assert clock.alignment is not None
    assert (clock.alignment.method, clock.error_ns) == (SESSION_CLOCKS, 5 * MS)


@pytest.mark.parametrize("jump_ns", [0, 60 * MS])
def test_where_a_replay_is_off_a_clock_that_jumped_is_named(tmp_path: Path, jump_ns: int) -> None:
    run = simulate([Behaviour(), Behaviour()], steps=0, layers=6)
    for step in range(5):
        run.behaviours = [Behaviour(), Behaviour(capture_delay_ns=-jump_ns if step > 2 else 0)]
        run.run_step()
    replayed = analyze(run.write(tmp_path)).replay
    assert replayed
    assert ("a clock jumped" in replayed.predictor.missing_reason) is bool(jump_ns)
