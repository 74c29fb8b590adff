"""A plan from replays: greedy on the graph that earlier entries left, ceilings last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.advice.builders import MS, frees_memory, requirement, rule, run, sheet_of, upper_bound, with_replay
from tests.advice.fake_predictor import FakePredictor, replayed, saving
from tests.advice.test_culprit_in_plan import LATE_RANK, SLOW_RANK
from three_walls.advice.finding import Bounds, Finding, Outcome, PlannedEdit, PlanNote, PlanStep
from three_walls.advice.format.rule import Edit, Rule
from three_walls.advice.plan.make_plan import choose_first_trial, make_plan, make_validated_plan
from three_walls.advice.plan.replays import Replays
from three_walls.lib.expressions import Condition
from three_walls.lib.fact import FactSheet
from three_walls.replay.transformation import Action, Levels, Selection, Transformation


def plan_of(
    rules: list[Rule], predictor: FakePredictor, facts: FactSheet | None = None
) -> tuple[dict[str, Finding], tuple[PlanStep, ...]]:
    findings, steps = make_plan(rules, facts or run(), replays=Replays.of(predictor))
    return {finding.rule: finding for finding in findings}, steps


def names(steps: tuple[PlanStep, ...]) -> list[str]:
    return [step.rule for step in steps]


def test_the_edit_with_the_best_step_comes_first_whatever_its_pool_is() -> None:
    wide = replayed(rule("wide-pool", likely=0.9))
    narrow = replayed(rule("narrow-pool", pool="attention_unfused_ns", likely=0.1))
    findings, steps = plan_of([wide, narrow], saving(**{"wide-pool": 20, "narrow-pool": 300}))
    assert names(steps) == ["narrow-pool", "wide-pool"]
    assert [step.gain_ns.likely for step in steps] == [300 * MS, 20 * MS]
    assert {step.gain_ns.basis for step in steps} == {"replayed"}
    assert findings["wide-pool"].gain_ns.likely == 20 * MS


def test_an_entry_whose_range_includes_a_loss_has_a_negative_low_end() -> None:
    predictor = FakePredictor(lambda taken: (690, 750, 812) if taken else 800)
    findings, steps = plan_of([replayed(rule("a"))], predictor)
    (step,) = steps
    assert (step.gain_ns.low, step.gain_ns.likely, step.gain_ns.high) == (-12 * MS, 50 * MS, 110 * MS)
    assert step.step_after_ns == Bounds(690 * MS, 812 * MS)  # longer at worst than the step now
    assert findings["a"].gain_ns.low == -12 * MS


def test_an_edit_that_likely_costs_time_is_not_planned_and_states_its_cost() -> None:
    predictor = FakePredictor(lambda taken: (780, 890, 900) if taken else 800)
    findings, steps = plan_of([replayed(rule("a"))], predictor)
    assert not steps
    assert findings["a"].reason == "The edit likely costs 90 ms (threshold 8 ms)"
    assert findings["a"].gain_ns.likely == -90 * MS


def test_a_first_trial_that_may_cost_time_gives_a_longer_step_at_worst() -> None:
    predictor = FakePredictor(lambda taken: (720, 760, 816) if taken else 800)
    _, steps = plan_of([replayed(rule("a"))], predictor)
    trial = choose_first_trial(steps, sheet_of({"step_ns": 900 * MS, "unprofiled_step_ns": 800 * MS}), predictor)
    assert trial is not None
    assert trial.saved_low_fraction == pytest.approx(-0.02)
    assert trial.unprofiled_step_after_high_ns == 816 * MS


def test_gains_add_up_to_what_the_last_step_is_shorter_by() -> None:
    """Each of the two alone saves 100 ms of the same time."""
    predictor = FakePredictor(lambda taken: 800 - min(150, 100 * len(taken)))
    findings, steps = plan_of([replayed(rule("a")), replayed(rule("b"))], predictor)
    assert [step.gain_ns.likely for step in steps] == [100 * MS, 50 * MS]
    assert [step.step_after_likely_ns for step in steps] == [700 * MS, 650 * MS]
    assert findings["b"].gain_ns.likely == 100 * MS  # alone
    assert sum(step.gain_ns.likely or 0 for step in steps) == 800 * MS - (steps[-1].step_after_likely_ns or 0)


def test_an_entry_that_another_one_makes_useless_is_left_out_with_its_reason() -> None:
    predictor = FakePredictor(lambda taken: 700 if taken else 800)
    findings, steps = plan_of([replayed(rule("a")), replayed(rule("b"))], predictor)
    assert names(steps) == ["a"]
    assert findings["b"].outcome is Outcome.ALTERNATIVE
    assert findings["b"].reason == (
        "The earlier entries save the remaining time. The likely gain is 0 ms (threshold 8 ms)"
    )


def test_a_gain_below_the_minimum_or_the_error_of_the_replay_is_not_planned() -> None:
    findings, steps = plan_of([replayed(rule("tiny"))], saving(tiny=7))  # the threshold is 1% of 800 ms
    assert not steps
    assert (findings["tiny"].outcome, findings["tiny"].near) == (
        Outcome.NOT_NEEDED,
        "The likely gain is 7 ms (threshold 8 ms)",
    )
    assert names(plan_of([replayed(rule("enough"))], saving(enough=8))[1]) == ["enough"]
    noisy = replace(saving(enough=8), error_fraction=0.011)
    assert not plan_of([replayed(rule("enough"))], noisy)[1]


def test_what_gains_only_after_another_edit_enters_after_it() -> None:
    """Compute that is saved under an empty launch queue saves nothing before the launches are gone."""
    steps_of = {frozenset[str](): 800, frozenset({"graphs"}): 500, frozenset({"fused"}): 800}
    predictor = FakePredictor(lambda taken: steps_of.get(taken, 400))
    _, steps = plan_of([replayed(rule("fused")), replayed(rule("graphs"))], predictor)
    assert names(steps) == ["graphs", "fused"]
    assert [step.gain_ns.likely for step in steps] == [300 * MS, 100 * MS]


def test_the_range_of_an_entry_is_its_own_and_not_that_of_the_entries_before_it() -> None:
    """The step as it is known from 790 to 810 ms; what edits save of it has a range of its own."""
    ranges = [(790, 800, 810), (650, 700, 780), (550, 650, 740)]
    findings, (first, second) = plan_of(
        [replayed(rule("a")), replayed(rule("b"))], FakePredictor(lambda taken: ranges[len(taken)])
    )
    assert (first.gain_ns.low, first.gain_ns.likely, first.gain_ns.high) == (20 * MS, 100 * MS, 150 * MS)
    assert (second.gain_ns.low, second.gain_ns.likely, second.gain_ns.high) == (40 * MS, 50 * MS, 100 * MS)
    assert second.step_after_ns == Bounds(550 * MS, 740 * MS)
    assert findings["b"].gain_ns.low == 20 * MS


def test_a_rule_without_transformation_is_a_ceiling_behind_every_replayed_entry() -> None:
    rules = [
        rule("modelled", likely=0.9),
        upper_bound("most", pool="dp_exposed_ns"),
        replayed(rule("small", pool="attention_unfused_ns")),
    ]
    findings, steps = plan_of(rules, saving(small=10))
    assert names(steps) == ["small", "modelled", "most"]
    ceiling = steps[1].gain_ns
    assert (ceiling.low, ceiling.likely, ceiling.high, ceiling.basis) == (0, None, 200 * MS, "upper_bound")
    assert ceiling.explanation.startswith("Not replayed: no transformation of the step is known for these edits. At mo")
    assert steps[1].step_after_ns == Bounds(590 * MS, 790 * MS)
    assert steps[2].step_after_ns == Bounds(490 * MS, 790 * MS)
    assert [step.step_after_likely_ns for step in steps] == [790 * MS] * 3
    assert findings["modelled"].gain_ns.basis == "upper_bound"


def test_a_transformation_that_changes_nothing_leaves_a_ceiling_with_the_reason() -> None:
    predictor = replace(saving(), changes_nothing={"a": "no operation of this kind was found"})
    _, (entry,) = plan_of([replayed(rule("a"))], predictor)
    assert entry.gain_ns.likely is None
    assert entry.gain_ns.explanation.startswith("Not replayed: no operation of this kind was found.")


def test_a_plan_asks_for_few_replays() -> None:
    """Thirty candidates that do not touch each other: each once alone, and a check of each entry's rank."""
    gains = {f"r{number:02}": 10.0 + number for number in range(30)}
    predictor = saving(2000, **gains)
    _, steps = plan_of([replayed(rule(name)) for name in gains], predictor)
    assert len(steps) == 20  # 20 ms are 1% of the step
    assert len(predictor.asked) == 30 + 19  # each alone, and each entry but the first with its range
    assert len(predictor.asked_likely) <= 30


def test_the_order_does_not_flip_when_a_log_is_given() -> None:
    traced = run()
    logged = replace(
        traced.with_values({"launch_starved_recoverable_ns": 10 * MS, "launch_starved_ns": 10 * MS}),
        before_log={"launch_starved_recoverable_ns": 200 * MS, "launch_starved_ns": 200 * MS},
    )
    rules = [
        replayed(rule("host", likely=0.9)),
        replayed(rule("fused", pool="attention_unfused_ns")),
        upper_bound("z-starved"),
        upper_bound("y-data", pool="dp_exposed_ns", high=0.5),
    ]
    _, without = plan_of(rules, saving(800, host=200, fused=50), traced)
    _, with_log = plan_of(rules, saving(820, host=205, fused=51), logged)
    assert names(without)[:2] == names(with_log)[:2] == ["host", "fused"]


def test_no_predictor_and_one_that_withholds_plan_alike() -> None:
    rules = [replayed(rule("a")), upper_bound("b")]
    withheld = replace(saving(a=1), missing_reason="no API rows were recorded")
    assert make_plan(rules, run(), replays=Replays.of(withheld)) == make_plan(rules, run())


def test_an_edit_that_frees_memory_comes_first_and_costs_what_the_replay_says() -> None:
    repeat = replayed(frees_memory("repeat", 0.02))
    _, steps = plan_of([replayed(rule("a")), repeat], saving(800, a=100, repeat=-40))
    assert names(steps) == ["repeat", "a"]
    assert steps[0].gain_ns.cost_fraction == pytest.approx(0.05)
    assert steps[0].step_after_likely_ns == 840 * MS
    assert steps[1].step_after_likely_ns == 740 * MS


def test_where_the_run_fits_an_edit_that_frees_memory_comes_after_what_the_replay_gains() -> None:
    rules = [replayed(rule("a")), replayed(frees_memory("repeat", 0.02)), upper_bound("at-most")]
    replays = Replays.of(saving(800, a=100, repeat=-40))
    _, steps = make_plan(rules, run(memory_pressure="near_limit"), replays=replays)
    assert names(steps) == ["a", "repeat", "at-most"]
    assert steps[1].step_after_likely_ns == 740 * MS


def test_rules_of_one_lever_do_not_enter_together() -> None:
    rules = [replayed(rule("a", lever="graphs")), replayed(rule("b", lever="graphs"))]
    findings, steps = plan_of(rules, saving(a=100, b=200))
    assert names(steps) == ["b"]
    assert "changes the same settings (graphs)" in findings["a"].reason


def attention_after_router(**changes: str) -> list[Rule]:
    """Two rules of one lever: the second one applies to runs with graphs only."""
    router = replayed(rule("router", lever="graphs", edits=(Edit("graphs", True),)))
    with_graphs = (Condition("config.graphs", "==", True),)
    attention = replayed(rule("attention", lever="graphs", edits=(Edit("attention", True),)))
    return [router, replace(attention, applies_to=with_graphs, **changes)]


def test_a_rule_that_continues_an_entry_follows_it_with_its_own_gain() -> None:
    rules = attention_after_router(continues="router")
    findings, steps = plan_of(rules, saving(router=100, attention=50), run(config__graphs=False))
    assert [(step.rule, step.unlocked_by) for step in steps] == [("router", ""), ("attention", "router")]
    assert [step.gain_ns.likely for step in steps] == [100 * MS, 50 * MS]
    assert findings["attention"].outcome is Outcome.BLOCKED


def test_a_rule_that_continues_an_entry_stays_out_without_it() -> None:
    rules = attention_after_router(continues="router")
    findings, steps = plan_of(rules, saving(router=1, attention=50), run(config__graphs=False))
    assert names(steps) == []
    assert findings["attention"].outcome is Outcome.NOT_APPLICABLE


def test_a_rule_of_the_same_lever_that_continues_nothing_stays_out() -> None:
    _, steps = plan_of(attention_after_router(), saving(router=100, attention=50), run(config__graphs=False))
    assert names(steps) == ["router"]


def test_an_unlocked_rule_is_replayed_too() -> None:
    locked = replayed(rule("locked", requires=(requirement("key", Condition("config.key", "==", True)),)))
    key = replayed(rule("opens", edits=(Edit("key", True),)))
    _, steps = plan_of([locked, key], saving(locked=50, opens=100), run(config__key=False))
    assert names(steps) == ["opens", "locked"]
    assert steps[1].unlocked_by == "opens"


def test_a_rank_to_fix_first_is_healed_in_every_replay() -> None:
    late = replayed(LATE_RANK, "heal")
    predictor = saving(900, heal=300, a=100)
    _, steps = plan_of([late, replayed(rule("a"))], predictor, sheet_of(SLOW_RANK))
    assert [(step.order, step.rule) for step in steps] == [(0, "late-rank"), (1, "a")]
    assert (steps[0].gain_ns.likely, steps[0].gain_ns.basis) == (300 * MS, "replayed")
    assert [step.step_after_likely_ns for step in steps] == [600 * MS, 500 * MS]
    assert all(asked[0] == "heal" for asked in predictor.asked)


def test_the_first_trial_is_a_share_of_the_replayed_step() -> None:
    predictor = saving(800, a=80)
    _, steps = plan_of([replayed(rule("a"))], predictor)
    trial = choose_first_trial(steps, run(), predictor)
    assert trial is not None
    assert (trial.saved_low_fraction, trial.saved_high_fraction) == (0.1, 0.1)


def test_replays_are_kept_when_the_plan_is_made_again() -> None:
    predictor = saving(800, a=80, b=200)

    def refuse_b(edits: Sequence[PlannedEdit]) -> tuple[PlanNote, ...]:
        return tuple(PlanNote("refused", "it is refused") for edit in edits if edit.key == "b")

    rules = [replayed(rule("a")), replayed(rule("b"))]
    findings, steps = make_validated_plan(rules, run(), refuse_b, predictor=predictor)
    assert names(steps) == ["a"]
    assert len(predictor.asked) == len(set(predictor.asked))
    assert next(finding for finding in findings if finding.rule == "b").outcome is Outcome.BLOCKED


@pytest.mark.parametrize(("left", "module"), [(0.0, "layernorm"), (0.5, "core_attn")])
def test_a_later_edit_is_chosen_for_the_kernels_that_are_left(left: float, module: str) -> None:
    """Once attention is fused, recomputing it saves nothing; a change that leaves half of its kernels fuses nothing."""
    fuse = Transformation(Action.SCALE, Selection(categories=("attention_unfused",)), Levels(left, left, left))
    attention = with_replay(rule("attention"), fuse)
    recompute = replayed(
        rule(
            "recompute",
            edits=(
                Edit("recompute_modules", "layernorm", only_if=(unfused("<="),)),
                Edit("recompute_modules", "core_attn", only_if=(unfused(">"),)),
            ),
        )
    )
    predictor = FakePredictor(lambda taken: 800 - 200 * ("scale" in taken) - 100 * ("recompute" in taken))
    _, steps = plan_of([attention, recompute], predictor, run(attention_unfused_fraction=0.1))
    assert names(steps) == ["attention", "recompute"]
    assert [edit.to for edit in steps[1].edits] == [module]


def unfused(test: str) -> Condition:
    return Condition("attention_unfused_fraction", test, 0.02)
