"""Warnings with data of their own: a step that took much longer than the others is listed with its own cause."""

from __future__ import annotations

from pathlib import Path

from trace_builder import ADAM, GEMM, TraceBuilder

from three_walls import analyze
from three_walls.lib.report_warning import ReportWarning


def outlier_warnings(tmp_path: Path, pauses: list[int]) -> list[ReportWarning]:
    """Steps of 1000 ns, each with an extra pause of the host before its update."""
    builder, at = TraceBuilder(), 1
    for pause in pauses:
        builder.kernel(GEMM, at, at + 800, launched=max(at - 5, 0))
        builder.kernel(ADAM, at + 800 + pause, at + 1000 + pause, launched=at + 790 + pause)
        at += 1000 + pause
    report = analyze(builder.write(tmp_path / "trace.sqlite"))
    assert report.step.median_ns == 1000
    return [warning for warning in report.warnings if warning.code == "outlier-step"]


def test_a_long_step_is_named_with_what_made_it_long(tmp_path: Path) -> None:
    (warning,) = outlier_warnings(tmp_path, [0, 0, 0, 0, 400, 0, 0, 0])
    assert "Step 4 of rank 0" in warning.message
    assert "The largest part of the difference is launch_starved" in warning.message


def test_steps_within_a_few_percent_are_not_outliers(tmp_path: Path) -> None:
    assert outlier_warnings(tmp_path, [0, 0, 0, 0, 40, 0, 0, 0]) == []


def test_with_few_steps_nothing_is_usual(tmp_path: Path) -> None:
    assert outlier_warnings(tmp_path, [0, 0, 400, 0, 0]) == []
