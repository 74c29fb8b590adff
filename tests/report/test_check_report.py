"""Numbers of a report that contradict each other are found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.report.sample_report import sample_report
from three_walls.advice.finding import Bounds, PlanStep
from three_walls.advice.verdict_rows import Counterfactual
from three_walls.report.check_report import check_report, find_other_steps, find_wrong_sums
from three_walls.report.report import Report
from three_walls.report.sections.steps import find_step_base
from three_walls.tables.buckets import SubWall, Wall


@pytest.fixture
def report() -> Report:
    """A report with one entry whose gain leads to the step after it."""
    made = sample_report()
    base = find_step_base(made)
    assert base is not None
    first, now_ns = made.plan[0], base.now_ns
    gain = first.gain_ns
    assert gain.low is not None
    assert gain.likely is not None
    assert gain.high is not None
    entry = replace(
        first,
        step_after_ns=Bounds(now_ns - gain.high, now_ns - gain.low),
        step_after_likely_ns=now_ns - gain.likely,
    )
    return replace(made, plan=(entry,))


def with_entry(report: Report, entry: PlanStep) -> Report:
    return replace(report, plan=(entry,))


def test_a_plan_that_adds_up_passes(report: Report) -> None:
    check_report(report)


def test_an_upper_bound_that_is_taken_as_certain_is_found(report: Report) -> None:
    entry = report.plan[0]
    certain = replace(entry, step_after_ns=Bounds(entry.step_after_ns.low, entry.step_after_ns.low))
    with pytest.raises(AssertionError, match="the step after entry 1"):
        check_report(with_entry(report, certain))


def test_a_likely_step_that_is_not_the_one_before_less_the_gain_is_found(report: Report) -> None:
    wrong = replace(report.plan[0], step_after_likely_ns=1)
    assert [*find_wrong_sums(with_entry(report, wrong))] == [
        f"the likely step after entry 1 ({wrong.rule}) is not the step before less its gain"
    ]


def test_a_plan_that_gains_more_than_any_wall_without_a_word_is_found(report: Report) -> None:
    gained_ns = report.plan[0].gain_ns.likely
    assert gained_ns is not None
    walls = (
        Counterfactual(("communication",), 1, gained_ns - 1),
        Counterfactual(("straggler",), 1, 10 * gained_ns),
        Counterfactual(("communication", "memory"), 1, 10 * gained_ns),
    )
    silent = replace(report, verdict=replace(report.verdict, counterfactuals=walls))
    assert "the plan gains 45.0 ms, more than any wall, without a word why" in [*find_wrong_sums(silent)]
    remark = "Together the edits gain 45.0 ms, more than the removal of any one wall."
    assert not [
        problem
        for problem in find_wrong_sums(replace(silent, verdict=replace(silent.verdict, plan_remark=remark)))
        if "more than any wall" in problem
    ]


def test_a_remark_on_the_sum_does_not_explain_a_first_entry_of_another_wall(report: Report) -> None:
    host = replace(report.verdict, wall=Wall.COMPUTE_HOST, sub_wall=SubWall.HOST, plan_remark="Together the edits gain")
    problem = f"entry 1 ({report.plan[0].rule}) is of another wall than the verdict without a word why"
    assert problem in [*find_wrong_sums(replace(report, verdict=host))]
    named = replace(host, plan_remark="Entry 1 changes communication, not the host: it gains more than entry 2.")
    assert problem not in [*find_wrong_sums(replace(report, verdict=named))]


def test_a_step_of_another_base_on_the_first_screen_is_found(report: Report) -> None:
    verdict = replace(report.verdict, reason="Communication takes 148 ms of the 933 ms step.")
    assert [*find_other_steps(replace(report, verdict=verdict))] == ["'the 933 ms step' beside a step of 612 ms"]
    verdict = replace(verdict, reason="Communication takes 148 ms of the traced 933 ms step.")
    assert [*find_other_steps(replace(report, verdict=verdict))] == []
