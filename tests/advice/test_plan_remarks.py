"""Sentences for where verdict and plan would seem to disagree."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.report.sample_report import sample_report
from three_walls.advice.finding import PlanStep
from three_walls.advice.reconcile import measure_noise_ns, reconcile
from three_walls.advice.verdict_rows import Counterfactual, Verdict
from three_walls.lib.fact import FactSheet
from three_walls.step.step_rows import StepSummary
from three_walls.tables.buckets import SubWall, Wall

MS = 1_000_000


@pytest.fixture
def step() -> PlanStep:
    """An entry against communication that likely gains some ms."""
    first = sample_report().plan[0]
    return replace(first, gain_ns=replace(first.gain_ns, low=0, likely=45 * MS, high=89 * MS))


def verdict_of(saved_ms: int, wall: Wall = Wall.COMMUNICATION, sub_wall: SubWall | None = None) -> Verdict:
    without = (Counterfactual(("communication",), 600 * MS - saved_ms * MS, saved_ms * MS),)
    return Verdict(wall, sub_wall, False, "", 640 * MS, None, None, 0.1, {}, None, 600 * MS, without)


def test_an_entry_within_its_wall_needs_no_word(step: PlanStep) -> None:
    verdict, (entry,) = reconcile(verdict_of(100), [step])
    assert (verdict.plan_remark, entry.beyond_wall, entry.is_below_noise) == ("", "", False)


def test_a_high_end_above_the_wall_is_explained(step: PlanStep) -> None:
    (entry,) = reconcile(verdict_of(60), [step])[1]
    assert entry.beyond_wall.startswith("Its high end is above the 60.0 ms of the replay without communication:")


def test_a_likely_gain_above_the_wall_is_explained_and_so_is_the_plan_s(step: PlanStep) -> None:
    verdict, (entry,) = reconcile(verdict_of(30), [step])
    assert entry.beyond_wall.startswith("It gains more than the 30.0 ms of the replay without communication,")
    assert verdict.plan_remark.startswith("Together the edits gain 45.0 ms, more than the removal of any one wall")


def test_the_delay_of_a_rank_is_no_wall_that_a_plan_stays_below(step: PlanStep) -> None:
    verdict = verdict_of(30)
    delay = Counterfactual(("straggler",), 100 * MS, 500 * MS)
    verdict, _ = reconcile(replace(verdict, counterfactuals=(delay, *verdict.counterfactuals)), [step])
    assert verdict.plan_remark.startswith("Together the edits gain 45.0 ms, more than the removal of any one wall")


def test_a_plan_that_begins_at_another_wall_says_so(step: PlanStep) -> None:
    verdict, _ = reconcile(verdict_of(100, Wall.COMPUTE_HOST, SubWall.HOST), [step])
    remark = "Entry 1 changes communication, not the host: no edit against the host alone gains enough for an entry."
    assert verdict.plan_remark == remark


def test_what_is_less_than_the_steps_differ_by_is_marked(step: PlanStep) -> None:
    summary = StepSummary("nvtx", 4, (), 600 * MS, 550 * MS, 650 * MS)
    noise_ns = measure_noise_ns(FactSheet({}), summary)
    assert noise_ns == 50 * MS
    assert reconcile(verdict_of(100), [step], noise_ns)[1][0].is_below_noise
