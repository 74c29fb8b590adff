"""Profilers that start at different times make no rank a straggler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from lockstep import MS, Behaviour, Run, simulate

from tests.measured import measure
from three_walls import analyze
from three_walls.report.report import Report
from three_walls.step.ranks.align_clocks import SESSION_CLOCKS

pytestmark = pytest.mark.slow

LATE = Behaviour(capture_delay_ns=900 * MS)


def test_a_late_profiler_is_a_warning_and_no_straggler(tmp_path: Path) -> None:
    run = simulate([Behaviour(), LATE, Behaviour()])
    report = measure(run.write(tmp_path))
    (message,) = [warning.message for warning in report.warnings if warning.code == "capture-start-skew"]
    assert "begin 900 ms apart" in message
    assert "waits up to 900 ms" in message
    assert "none of them is kept" in message
    assert report.stragglers == ()
    assert all(wait.wait_ns == 0 for wait in report.waits)


def test_a_kept_step_that_it_touches_is_dropped(tmp_path: Path) -> None:
    # A range names the steps and something ran before the first: it would be kept.
    run = simulate([Behaviour(), LATE, Behaviour()], steps=4)
    for rank, builder in enumerate(run.builders):
        if rank != 1:
            builder.kernel("void at::native::vectorized_elementwise_kernel<4>", 100, 200, launched=50)
        length = (run.now[rank] - MS - (900 * MS)) // 4
        opened = run.own(rank, MS)
        for step in range(4):
            closed = run.own(rank, MS + 900 * MS + (step + 1) * length) - 60_000
            builder.nvtx(f"training_step_{step}", opened - 45_000, closed)
            opened = closed + 45_001
    report = measure(run.write(tmp_path))
    assert report.step.source == "nvtx training_step"
    touched = [(step.rank, step.index) for step in report.step.dropped if "last rank's capture" in step.reason]
    assert touched == [(0, 0), (2, 0)]
    assert all(wait.wait_ns == 0 for wait in report.waits)
    assert report.stragglers == ()


def test_profilers_that_start_together_are_not_mentioned(tmp_path: Path) -> None:
    report = measure(simulate([Behaviour(), Behaviour(slow=1.3)]).write(tmp_path))
    assert "capture-start-skew" not in {warning.code for warning in report.warnings}


FOUR = (0, 1000, 2000, 3000)
EIGHT = (0, 0, 0, 500, 1000, 1500, 2000, 3000)


def delayed(delays_ms: Sequence[int], steps: int, slow: int | None = None) -> Run:
    """Ranks whose profilers start with these delays, in expert groups of four; ``slow`` computes 1.3 times as long."""
    ranks = [Behaviour(capture_delay_ns=delay * MS) for delay in delays_ms]
    if slow is not None:
        ranks[slow] = replace(ranks[slow], slow=1.3)
    return simulate(ranks, steps=steps, group=4)


def kept(report: Report) -> list[list[int]]:
    return [[step.index for step in rank.steps if step.kept] for rank in report.ranks]


@pytest.mark.parametrize(
    ("delays", "steps", "usable"),
    [
        (FOUR, 2, [1]),
        *(
            pytest.param(*run, marks=pytest.mark.exhaustive)
            for run in ((FOUR, 3, [1]), (FOUR, 4, [1, 2]), (EIGHT, 2, [1]), (EIGHT, 3, [1]), (EIGHT, 4, [1, 2]))
        ),
    ],
)
def test_captures_that_begin_seconds_apart_give_the_answer_of_those_that_begin_together(
    tmp_path: Path, delays: Sequence[int], steps: int, usable: list[int]
) -> None:
    report = analyze(delayed(delays, steps).write(tmp_path / "apart"))
    together = analyze(delayed([0] * len(delays), steps).write(tmp_path / "together"))
    (message,) = [warning.message for warning in report.warnings if warning.code == "capture-start-skew"]
    assert "begin 3000 ms apart" in message
    assert "capture-start-skew" not in {warning.code for warning in together.warnings}
    assert kept(report) == [usable] * len(delays)
    assert report.stragglers == ()
    assert (report.waits, report.budget) == (together.waits, together.budget)
    assert (report.verdict, report.step.median_ns) == (together.verdict, together.step.median_ns)


def test_a_slow_rank_is_found_behind_a_late_profiler(tmp_path: Path) -> None:
    run = delayed(FOUR, steps=3, slow=1)
    (straggler,) = measure(run.write(tmp_path)).stragglers
    assert (straggler.rank, straggler.cause) == (1, "slow_compute")
    assert straggler.late_ns == run.truth.late[(1, 1)]


def cut(run: Run, starts: Sequence[float]) -> Run:
    """Leaves out what each rank did before its capture began, at this many steps into the run."""
    length = (run.now[0] - MS) / run.step
    for builder, start in zip(run.builders, starts, strict=True):
        for table, rows in builder.rows.items():
            builder.rows[table] = [row for row in rows if row["start"] >= MS + round(start * length)]
    return run


def test_a_first_step_that_is_cut_elsewhere_on_each_rank_is_dropped_on_all(tmp_path: Path) -> None:
    run = cut(simulate([Behaviour(), Behaviour(slow=1.3), Behaviour(), Behaviour()], steps=4), (0.3, 0.6, 0.1, 0.8))
    report = measure(run.write(tmp_path))
    assert kept(report) == [[1, 2]] * 4
    assert [(straggler.rank, straggler.late_ns) for straggler in report.stragglers] == [(1, run.truth.late[(1, 1)])]


def test_captures_that_begin_in_different_steps_compare_the_same_steps(tmp_path: Path) -> None:
    # The last capture to begin has 0.6 of the third step and two more: the fourth is complete on all ranks.
    run = simulate([Behaviour(), Behaviour(), Behaviour(slow=1.3), Behaviour()], steps=5)
    report = measure(cut(run, (0.3, 0.6, 1.1, 2.4)).write(tmp_path))
    assert report.alignment is not None
    assert (report.alignment.method, report.alignment.residual_ns_p95) == (SESSION_CLOCKS, 0)
    assert kept(report) == [[3]] * 4
    assert [(straggler.rank, straggler.late_ns) for straggler in report.stragglers] == [(2, run.truth.late[(2, 3)])]
    waits = [wait for wait in report.waits if wait.communication_class == "ep_all_to_all"]
    assert [wait.wait_ns for wait in waits] == [run.truth.waits[(rank, 3)]["ep_all_to_all"] for rank in range(4)]


def test_a_step_that_one_rank_did_not_capture_is_not_compared(tmp_path: Path) -> None:
    run = cut(simulate([Behaviour()] * 4, steps=3), (0.3, 1.6, 0.1, 0.8))
    report = measure(run.write(tmp_path))
    assert report.stragglers == ()
    assert kept(report)[1] == [2]
    assert not any(
        wait.resolved for wait in report.waits if wait.communication_class == "ep_all_to_all" and wait.rank != 1
    )


def test_the_order_of_captures_that_begin_in_one_step_is_left_alone(tmp_path: Path) -> None:
    # A clock that is wrong by many steps shows no other step: the ends coincide under no numbering.
    run = simulate([Behaviour(), Behaviour(clock_ahead_ns=700 * MS)], steps=5)
    report = measure(run.write(tmp_path))
    assert kept(report) == [[1, 2, 3]] * 2
    assert all(wait.resolved for wait in report.waits)
