"""Writes docs/sample-report, part of ``make docs``: the report of a bundled trace as ``analyze`` makes it."""

from __future__ import annotations

from pathlib import Path

from three_walls import analyze
from three_walls.report.html_report import render_html
from three_walls.report.report import Report

REPOSITORY = Path(__file__).resolve().parent.parent
SAMPLE = REPOSITORY / "sample_traces" / "te-host-bound"
OUT = REPOSITORY / "docs" / "sample-report" / "report.html"


def analyze_sample() -> Report:
    """The run of the tutorial."""
    return analyze(SAMPLE, logs=[SAMPLE / "train.log"], config=SAMPLE / "run_config.yaml")


if __name__ == "__main__":
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(render_html(analyze_sample()), encoding="utf-8")
