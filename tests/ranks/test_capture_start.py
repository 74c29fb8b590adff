"""Profilers that start at different moments make nobody a straggler."""

from __future__ import annotations

from pathlib import Path

from lockstep import MS, Behaviour, simulate

from three_walls import analyze

LATE = Behaviour(capture_delay_ns=900 * MS)


def test_a_late_profiler_is_a_warning_and_no_straggler(tmp_path: Path) -> None:
    run = simulate([Behaviour(), LATE, Behaviour()])
    report = analyze(run.write(tmp_path))
    (said,) = [one.message for one in report.warnings if one.code == "capture-start-skew"]
    assert "begin 900 ms apart" in said
    assert "waits up to 900 ms" in said
    assert "all are dropped already" in said
    assert report.stragglers == ()
    assert all(one.wait_ns == 0 for one in report.waits)


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
    report = analyze(run.write(tmp_path))
    assert report.step.source == "nvtx training_step"
    touched = [(one.rank, one.index) for one in report.step.dropped if "last rank's capture" in one.because]
    assert touched == [(0, 0), (2, 0)]
    assert all(one.wait_ns == 0 for one in report.waits)
    assert report.stragglers == ()


def test_profilers_that_start_together_are_not_mentioned(tmp_path: Path) -> None:
    report = analyze(simulate([Behaviour(), Behaviour(slow=1.3)]).write(tmp_path))
    assert "capture-start-skew" not in {one.code for one in report.warnings}
