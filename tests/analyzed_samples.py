"""The bundled traces, each analyzed once by a process that runs tests."""

from __future__ import annotations

from functools import cache

import pytest

from tests.paths import SAMPLES
from three_walls import analyze
from three_walls.report.report import LiveReport


@cache
def analyze_sample(trace: str, *logs: str) -> LiveReport:
    """The report on ``trace`` of sample_traces, with ``logs`` of the folder and nothing else."""
    return analyze(SAMPLES / trace, logs=[SAMPLES / log for log in logs])


def reads_sample(trace: str) -> pytest.MarkDecorator:
    """Marks a test of that report: one worker runs all tests of a trace."""
    return pytest.mark.xdist_group(trace.partition(".")[0])
