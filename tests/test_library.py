"""The package as a library."""

from __future__ import annotations

from pathlib import Path

from trace_builder import TraceBuilder

import three_walls
from three_walls import analyze


def test_ten_lines_are_enough(tmp_path: Path) -> None:
    path = TraceBuilder().steps(4).write(tmp_path / "trace.sqlite")
    report = analyze(str(path), settings=["num_moe_experts=8"])
    assert report.verdict.wall == "compute_host"
    assert report.step.median_ns == 1000
    assert three_walls.__all__ == ["Report", "ThreeWallsError", "__version__", "analyze", "plotly_figures", "tune"]


def test_progress_is_told_stage_by_stage(tmp_path: Path) -> None:
    said: list[str] = []
    analyze(TraceBuilder().steps(4).write(tmp_path / "trace.sqlite"), progress=said.append)
    assert said[0] == "reading trace.sqlite (1 of 1)"
    assert len(said) >= 4
