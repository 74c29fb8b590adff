"""The log of a real run next to its trace; what is expected stands in sample_traces/README.md."""

from __future__ import annotations

import pytest

from tests.paths import SAMPLES
from three_walls import analyze


def test_a_real_log_shows_what_the_profiler_added() -> None:
    report = analyze(SAMPLES / "wide-nvlink-alltoall.sqlite", logs=SAMPLES / "wide-nvlink-alltoall.train.log.xz")
    assert report.log is not None
    assert report.log.roles == {"steady": 6, "warm-up": 2, "profiled": 2, "profiler's stop": 1}
    assert report.facts.number("unprofiled_step_ns") == pytest.approx(232e6, rel=0.02)
    assert report.facts.number("profiler_perturbation_ratio") == pytest.approx(1.12, abs=0.02)
    assert "profiler-perturbation" in {warning.code for warning in report.warnings}
    assert "log-mismatch" not in {warning.code for warning in report.warnings}
    assert report.verdict.sub_wall == "compute"
