"""The log of a real run next to its trace; what is expected stands in sample_traces/README.md."""

from __future__ import annotations

import pytest

from tests.analyzed_samples import analyze_sample, reads_sample
from three_walls.advice.judge import minimum_gain_ns

TRACE, LOG = "wide-nvlink-alltoall.sqlite", "wide-nvlink-alltoall.train.log.xz"
pytestmark = [pytest.mark.slow, reads_sample(TRACE)]


def test_a_real_log_shows_what_the_profiler_added() -> None:
    report = analyze_sample(TRACE, LOG)
    assert report.log is not None
    assert report.log.roles == {"steady": 6, "warm-up": 2, "profiled": 2, "profiler's stop": 1}
    assert report.facts.number("unprofiled_step_ns") == pytest.approx(232e6, rel=0.02)
    assert report.facts.number("profiler_perturbation_ratio") == pytest.approx(1.12, abs=0.02)
    assert "profiler-perturbation" in {warning.code for warning in report.warnings}
    assert "log-mismatch" not in {warning.code for warning in report.warnings}
    assert report.verdict.sub_wall == "compute"


def test_the_log_of_a_trace_leaves_its_plan_in_order() -> None:
    alone, report = analyze_sample(TRACE), analyze_sample(TRACE, LOG)
    without = [step.rule for step in alone.plan]
    planned = [step.rule for step in report.plan]
    likely_ns = {step.rule: step.gain_ns.likely or 0 for step in (*report.plan, *alone.plan)}
    step_ns = alone.verdict.replayed_step_ns or 0
    # What is hardly worth an entry may be one with the log alone.
    assert all(likely_ns[rule] < 2 * minimum_gain_ns(step_ns) for rule in set(planned) ^ set(without))
    for place, rule in enumerate(planned):
        later = [likely_ns[other] for other in planned[place + 1 :]]
        # Gains that differ by less than a plan's least gain are the same gain.
        assert likely_ns[rule] >= max(later, default=0) - minimum_gain_ns(step_ns), rule
    assert report.verdict.replayed_step_ns == report.facts.number("unprofiled_step_ns")
