"""The rank to fix first in the plan: entry 0, before edits that are judged on the step without its delay."""

from __future__ import annotations

from collections.abc import Sequence

from tests.advice.builders import MS, read, rule, sheet_of
from tests.advice.fake_predictor import WITHOUT_REPLAYS, plan_of, saving
from three_walls.advice.finding import Bounds, Outcome, PlannedEdit, PlanNote
from three_walls.advice.format.load_rules import load_rule_base
from three_walls.advice.plan.make_plan import choose_first_trial
from three_walls.facts.sheet import DEFINITIONS
from three_walls.lib.plain_data import ConfigData

LATE_RANK = next(each for each in load_rule_base(DEFINITIONS).rules if each.id == "late-rank")
STARVED = rule("graphs", when=read("launch_starved_fraction >= 0.15"))
SLOW_RANK: dict[str, ConfigData] = {
    "step_ns": 1000 * MS,
    "launch_starved_ns": 100 * MS,
    "launch_starved_fraction": 0.1,
    "straggler_cause": "slow_compute",
    "straggler_late_recoverable_ns": 450 * MS,
    "straggler_late_recoverable_fraction": 0.45,
    "culprit_rank": 2,
    "culprit_cause": "slow_compute",
    "culprit_cost_ns": 400 * MS,
    "culprit_cost_fraction": 0.4,
    "wait_exposed_ns": 400 * MS,
    "ep_wait_exposed_ns": 300 * MS,
    "collective_wait_exposed_ns": 100 * MS,
}


def test_the_rank_to_fix_is_entry_0_and_the_other_rules_see_the_step_without_its_delay() -> None:
    findings, plan = plan_of([STARVED, LATE_RANK], saving(900, heal=300, graphs=50), sheet_of(SLOW_RANK))
    assert [(step.order, step.rule) for step in plan] == [(0, "late-rank"), (1, "graphs")]
    assert plan[0].step_after_ns == Bounds(600 * MS, 600 * MS)
    assert plan[1].step_after_ns == Bounds(550 * MS, 550 * MS)
    assert plan[0].edits == ()
    assert plan[1].finding.reason == "Launch-starved time takes 16.7% of the step (threshold 15%)"
    assert findings["late-rank"].outcome is Outcome.FOUND


def test_without_replays_the_rank_to_fix_is_entry_0_alone_and_gains_at_most_what_it_costs() -> None:
    findings, plan = plan_of([STARVED, LATE_RANK], WITHOUT_REPLAYS, sheet_of(SLOW_RANK))
    assert [(step.order, step.rule) for step in plan] == [(0, "late-rank")]
    assert plan[0].step_after_ns == Bounds(600 * MS, 1000 * MS)
    assert (plan[0].gain_ns.likely, plan[0].gain_ns.high) == (None, 400 * MS)
    assert findings["graphs"].outcome is Outcome.RECOMMENDED


def test_a_rank_whose_delay_no_replay_shows_keeps_what_it_costs_in_the_traces() -> None:
    _, plan = plan_of([LATE_RANK], saving(900, heal=1), sheet_of(SLOW_RANK))
    assert [(step.order, step.gain_ns.high) for step in plan] == [(0, 400 * MS)]
    assert plan[0].step_after_ns == Bounds(500 * MS, 900 * MS)  # of the step that nobody profiles, as all gains


def test_the_first_trial_is_to_fix_the_rank() -> None:
    facts = sheet_of(SLOW_RANK)
    trial = choose_first_trial(plan_of([STARVED, LATE_RANK], WITHOUT_REPLAYS, facts)[1], facts)
    assert trial is not None
    assert (trial.rule, trial.saved_high_fraction) == ("late-rank", 0.4)


def test_without_such_a_rank_the_plan_begins_with_entry_1() -> None:
    healthy = {**SLOW_RANK, "culprit_cost_ns": 0, "culprit_cost_fraction": 0.0, "launch_starved_fraction": 0.2}
    findings, plan = plan_of([STARVED, LATE_RANK], saving(900, graphs=50), sheet_of(healthy))
    assert [(step.order, step.rule) for step in plan] == [(1, "graphs")]
    assert findings["late-rank"].outcome is Outcome.FOUND


def test_a_rank_that_does_not_hold_the_run_back_stays_a_finding() -> None:
    facts = sheet_of(SLOW_RANK | {"launch_starved_fraction": 0.2})
    predictor = saving(900, heal=300, graphs=50)
    findings, plan = plan_of([STARVED, LATE_RANK], predictor, facts, fixes_rank_first=False)
    assert [(step.order, step.rule) for step in plan] == [(1, "graphs")]
    assert plan[0].step_after_ns.high == 850 * MS  # its delay is still in the step
    assert findings["late-rank"].outcome is Outcome.FOUND


def test_an_entry_without_edits_is_nothing_to_validate() -> None:
    def refuse(_: Sequence[PlannedEdit]) -> tuple[PlanNote, ...]:
        return (PlanNote("conflict", "refused"),)

    _, plan = plan_of([LATE_RANK], WITHOUT_REPLAYS, sheet_of(SLOW_RANK), validate=refuse)
    assert [step.order for step in plan] == [0]
