"""The plan: an order by gain, gains that add up to what the step is shorter by, and reasons for what is left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.advice.builders import MS, case, effect, frees_memory, read, requirement, rule, run, sheet_of
from tests.advice.fake_predictor import (
    WITHOUT_REPLAYS,
    FakePredictor,
    change,
    choose,
    names,
    plan_of,
    replayed_run,
    saving,
)
from tests.advice.test_culprit_in_plan import LATE_RANK, SLOW_RANK
from three_walls.advice.answer_what_if import ReplayedRun, answer
from three_walls.advice.edits import fact_of
from three_walls.advice.finding import Bounds, Outcome, PlannedEdit, PlanNote
from three_walls.advice.format.rule import Advice, Edit, Rule
from three_walls.advice.plan.make_plan import choose_first_trial, make_plan
from three_walls.advice.what_if import Question
from three_walls.lib.plain_data import ConfigData
from three_walls.replay.transformation import Action, NoPredictor, Selection, Transformation
from three_walls.tables.buckets import SubWall, Wall
from three_walls.tables.prediction_intervals import Levels


def test_the_edit_with_the_best_step_comes_first_whatever_its_upper_bound_is() -> None:
    wide = rule("wide", at_most="step_ns")
    narrow = rule("narrow", at_most="attention_unfused_ns")
    findings, steps = plan_of([wide, narrow], saving(wide=20, narrow=300))
    assert names(steps) == ["narrow", "wide"]
    assert [step.order for step in steps] == [1, 2]
    assert [step.gain_ns.likely for step in steps] == [300 * MS, 20 * MS]
    assert {step.gain_ns.basis for step in steps} == {"replayed"}
    assert findings["wide"].gain_ns.likely == 20 * MS


def test_of_equal_gains_the_one_with_least_to_do_comes_first_then_the_id() -> None:
    many = rule("a_many", edits=(Edit("one", True), Edit("two", True)))
    unsure = rule("b_unsure", requires=(requirement("installed", confirm="the package imports"),))
    both = effect(
        "both", case("config.one is True", change("both")), settings=("config.one",), together_with=("config.two",)
    )
    predictor = saving(both=50, b_unsure=50, d=50, c=50)
    _, steps = plan_of([many, unsure, rule("d"), rule("c")], predictor, None, both)
    assert names(steps) == ["c", "d", "a_many", "b_unsure"]


def test_of_gains_that_a_measurement_cannot_tell_apart_the_wall_of_the_verdict_goes_first() -> None:
    """Gains within a tenth of the largest one count as equal."""
    host = replace(rule("host"), wall=Wall.COMPUTE_HOST, sub_wall=SubWall.HOST)
    walls = {"memory_recoverable_ns": 0, "compute_recoverable_ns": 0, "host_recoverable_ns": 200 * MS}
    facts = run(**walls, communication_recoverable_ns=250 * MS)
    assert names(plan_of([host, rule("sends")], saving(host=100, sends=90), facts)[1]) == ["sends", "host"]
    assert names(plan_of([host, rule("sends")], saving(host=100, sends=89), facts)[1]) == ["host", "sends"]
    other_wall = run(**walls, communication_recoverable_ns=0)
    assert names(plan_of([host, rule("sends")], saving(host=90, sends=100), other_wall)[1]) == ["host", "sends"]


def test_an_entry_whose_range_includes_a_loss_has_a_negative_low_end() -> None:
    predictor = FakePredictor(lambda taken: (690, 750, 812) if taken else 800)
    findings, steps = plan_of([rule("a")], predictor)
    (step,) = steps
    assert (step.gain_ns.low, step.gain_ns.likely, step.gain_ns.high) == (-12 * MS, 50 * MS, 110 * MS)
    assert step.step_after_ns == Bounds(690 * MS, 812 * MS)  # longer at worst than the step now
    assert findings["a"].gain_ns.low == -12 * MS


def test_an_edit_that_likely_costs_time_is_not_planned_and_states_its_cost() -> None:
    predictor = FakePredictor(lambda taken: (780, 890, 900) if taken else 800)
    findings, steps = plan_of([rule("a")], predictor)
    assert not steps
    assert findings["a"].outcome is Outcome.NOT_NEEDED
    assert findings["a"].reason == "The edit likely costs 90 ms (threshold 8 ms)"
    assert findings["a"].gain_ns.likely == -90 * MS


def test_gains_add_up_to_what_the_last_step_is_shorter_by() -> None:
    """Each of the two alone saves 100 ms of the same time."""
    predictor = FakePredictor(lambda taken: 800 - min(150, 100 * len(taken)))
    findings, steps = plan_of([rule("a"), rule("b")], predictor)
    assert [step.gain_ns.likely for step in steps] == [100 * MS, 50 * MS]
    assert [step.step_after_likely_ns for step in steps] == [700 * MS, 650 * MS]
    assert findings["b"].gain_ns.likely == steps[1].finding.gain_ns.likely == 100 * MS  # alone
    assert sum(step.gain_ns.likely or 0 for step in steps) == 800 * MS - (steps[-1].step_after_likely_ns or 0)


def test_an_entry_that_another_one_makes_useless_is_left_out_with_its_reason() -> None:
    predictor = FakePredictor(lambda taken: 700 if taken else 800)
    findings, steps = plan_of([rule("a"), rule("b")], predictor)
    assert names(steps) == ["a"]
    assert findings["b"].outcome is Outcome.ALTERNATIVE
    assert findings["b"].reason == (
        "The earlier entries save the remaining time. The likely gain is 0 ms (threshold 8 ms)"
    )


def test_a_gain_below_the_minimum_or_the_error_of_the_replay_is_not_needed() -> None:
    findings, steps = plan_of([rule("tiny")], saving(tiny=7))  # the threshold is 1% of 800 ms
    assert not steps
    assert (findings["tiny"].outcome, findings["tiny"].reason) == (
        Outcome.NOT_NEEDED,
        "The likely gain is 7 ms (threshold 8 ms)",
    )
    assert names(plan_of([rule("enough")], saving(enough=8))[1]) == ["enough"]
    noisy = replace(saving(enough=8), error_fraction=0.011)
    assert not plan_of([rule("enough")], noisy)[1]


def test_what_gains_only_after_another_edit_enters_after_it() -> None:
    """Compute that is saved under an empty launch queue saves nothing before the launches are gone."""
    steps_of = {frozenset[str](): 800, frozenset({"graphs"}): 500, frozenset({"fused"}): 800}
    predictor = FakePredictor(lambda taken: steps_of.get(taken, 400))
    _, steps = plan_of([rule("fused"), rule("graphs")], predictor)
    assert names(steps) == ["graphs", "fused"]
    assert [step.gain_ns.likely for step in steps] == [300 * MS, 100 * MS]


def test_the_range_of_an_entry_is_its_own_and_not_that_of_the_entries_before_it() -> None:
    """The step as it is known from 790 to 810 ms; what edits save of it has a range of its own."""
    ranges = [(790, 800, 810), (650, 700, 780), (550, 650, 740)]
    findings, (first, second) = plan_of([rule("a"), rule("b")], FakePredictor(lambda taken: ranges[len(taken)]))
    assert (first.gain_ns.low, first.gain_ns.likely, first.gain_ns.high) == (20 * MS, 100 * MS, 150 * MS)
    assert (second.gain_ns.low, second.gain_ns.likely, second.gain_ns.high) == (40 * MS, 50 * MS, 100 * MS)
    assert second.step_after_ns == Bounds(550 * MS, 740 * MS)
    assert findings["b"].gain_ns.low == 20 * MS


def test_an_edit_whose_effect_is_not_known_stays_a_finding_with_its_upper_bound_and_the_reason() -> None:
    unknown = effect("most", case("config.most is True", unknown="the capture does not show it"))
    findings, steps = plan_of([rule("most"), rule("small")], saving(small=10), None, unknown)
    assert names(steps) == ["small"]
    most = findings["most"]
    assert (most.outcome, most.gain_ns.basis) == (Outcome.RECOMMENDED, "upper_bound")
    assert (most.gain_ns.low, most.gain_ns.likely, most.gain_ns.high) == (0, None, 200 * MS)
    assert (
        most.gain_ns.explanation == "What most=true changes is not known, because the capture does not show it. reason"
    )
    assert most.reason == "What most=true changes is not known, because the capture does not show it"


def test_a_change_that_selects_nothing_leaves_an_upper_bound_with_the_reason() -> None:
    predictor = replace(saving(), changes_nothing={"a": "no operation of this kind was found"})
    findings, steps = plan_of([rule("a")], predictor)
    assert not steps
    assert findings["a"].gain_ns.likely is None
    assert findings["a"].gain_ns.explanation.startswith(
        "What a=true changes is not known, because no operation of this kind was found."
    )


def test_an_upper_bound_is_no_more_than_the_replayed_step_and_one_too_small_to_measure_is_not_needed() -> None:
    unknown = [effect(name, case(unknown="nobody knows")) for name in ("all", "tiny")]
    rules = [rule("all", at_most="step_ns"), rule("tiny", share=0.039)]
    findings, _ = plan_of(rules, saving(800), None, *unknown)
    assert findings["all"].gain_ns.high == 800 * MS  # 1000 ms as traced
    assert (findings["tiny"].outcome, findings["tiny"].reason) == (
        Outcome.NOT_NEEDED,
        "The gain is at most 7.8 ms (threshold 8 ms)",
    )


def test_an_edit_that_no_effect_is_about_is_not_replayed() -> None:
    rules = (rule("a"),)
    findings, steps = make_plan(ReplayedRun(rules, (), run(), saving(a=100)))
    assert not steps
    assert findings[0].reason == "What a=true changes is not known, because no measurement shows it"


@pytest.mark.parametrize("little", [0, 10])
def test_what_gains_little_against_one_wall_is_judged_anew_against_the_next(little: int) -> None:
    """The least gain of an entry is 8 ms."""

    def step(names: frozenset[str]) -> float:
        saved = {"link": 300, "larger": 100 if "link" in names else little, "a": 20, "b": 15}
        return 800 - sum(saved[name] for name in names)

    rules = [rule(name) for name in ("link", "larger", "a", "b")]
    same = FakePredictor(step)
    assert names(plan_of(rules, same)[1]) == ["link", "a", "b", "larger"]  # old gains only come last
    moving = FakePredictor(step, bound_by=lambda names: "host" if "link" in names else "communication")
    assert names(plan_of(rules, moving)[1]) == ["link", "larger", "a", "b"]


def test_a_plan_asks_for_few_replays() -> None:
    """Thirty candidates that do not touch each other: each alone, a check of each entry's rank, a few together."""
    gains = {f"r{number:02}": 10.0 + number for number in range(30)}
    predictor = saving(2000, **gains)
    _, steps = plan_of([rule(name) for name in gains], predictor)
    assert len(steps) == 20  # 20 ms are 1% of the step
    assert len(predictor.asked) == 30 + 19  # each alone, and each entry but the first with its range
    together = 5  # the six best of the ten that gain too little, added to each other
    assert len(set(predictor.asked_likely)) <= 30 + together


def test_what_is_left_is_tried_again_after_the_last_entry_only_if_its_gain_is_older() -> None:
    predictor = saving(800, a=100, tiny=1)
    plan_of([rule("a"), rule("tiny")], predictor)
    assert sum(asked.count("tiny") for asked in predictor.asked_likely) <= 2


def test_a_log_changes_neither_the_order_nor_which_edits_are_proposed() -> None:
    """Rules are judged on the facts as traced: of 20% launch-starved time the log leaves 1%."""
    symptom = read("launch_starved_recoverable_fraction >= 0.1")
    traced = run()
    taken: dict[str, ConfigData] = {
        "launch_starved_recoverable_ns": 10 * MS,
        "launch_starved_recoverable_fraction": 0.01,
    }
    logged = replace(traced.with_values(taken), before_log={name: traced.get(name).value for name in taken})
    rules = [rule("host", when=symptom), rule("fused")]
    _, without = plan_of(rules, saving(800, host=200, fused=50), traced)
    _, with_log = plan_of(rules, saving(820, host=205, fused=51), logged)
    assert names(without) == names(with_log) == ["host", "fused"]


def test_advice_is_judged_on_what_the_log_leaves() -> None:
    advice = replace(
        rule("look", when=read("launch_starved_fraction >= 0.1")), edits=(), lever="", advice=(Advice("Look.", ()),)
    )
    logged = replace(run().with_values({"launch_starved_fraction": 0.01}), before_log={"launch_starved_fraction": 0.2})
    assert plan_of([advice], saving(), logged)[0]["look"].outcome is Outcome.NOT_NEEDED
    assert plan_of([advice], saving(), run())[0]["look"].outcome is Outcome.FOUND


def test_where_nothing_can_be_replayed_the_findings_stand_with_upper_bounds_and_there_is_no_plan() -> None:
    rules = [rule("a"), rule("tiny", share=0.049), rule("enough", share=0.05), frees_memory("frees")]
    findings, steps = plan_of(rules, WITHOUT_REPLAYS)
    assert steps == ()
    assert {name: found.outcome for name, found in findings.items()} == {
        "a": Outcome.RECOMMENDED,
        "enough": Outcome.RECOMMENDED,
        "frees": Outcome.RECOMMENDED,
        "tiny": Outcome.NOT_NEEDED,
    }
    assert (findings["a"].gain_ns.basis, findings["a"].gain_ns.high) == ("upper_bound", 200 * MS)
    assert findings["tiny"].near == "The gain is at most 9.8 ms (threshold 10 ms)"


def test_a_predictor_that_withholds_is_no_predictor() -> None:
    rules = [rule("a"), rule("b")]
    withheld = replace(saving(a=1), missing_reason="no API rows were recorded")
    assert plan_of(rules, withheld) == plan_of(rules, NoPredictor("no API rows were recorded"))


def test_without_a_step_there_is_no_plan() -> None:
    findings, steps = plan_of([rule("r")], saving(r=100), sheet_of({"launch_starved_ns": 100}))
    assert (steps, findings["r"].outcome) == ((), Outcome.RECOMMENDED)


def test_an_empty_rule_base_gives_an_empty_plan() -> None:
    assert plan_of([], saving()) == ({}, ())


def test_rules_of_one_lever_do_not_enter_together() -> None:
    findings, steps = plan_of([rule("a", lever="graphs"), rule("b", lever="graphs")], saving(a=100, b=200))
    assert names(steps) == ["b"]
    assert findings["a"].outcome is Outcome.ALTERNATIVE
    assert findings["a"].reason == "b changes the same settings (graphs) and ranks higher"


def attention_after_router(continues: str = "") -> list[Rule]:
    """Two rules of one lever: the second one applies to runs with graphs only."""
    router = rule("router", lever="graphs")
    attention = rule("attention", lever="graphs", applies_to=read("config.router == True"), continues=continues)
    return [router, attention]


def test_a_rule_that_continues_an_entry_follows_it_with_its_own_gain() -> None:
    rules = attention_after_router(continues="router")
    findings, steps = plan_of(rules, saving(router=100, attention=50), run(config__router=False))
    assert [(step.rule, step.unlocked_by) for step in steps] == [("router", ""), ("attention", "router")]
    assert [step.gain_ns.likely for step in steps] == [100 * MS, 50 * MS]
    assert findings["attention"].outcome is Outcome.BLOCKED


def test_a_rule_that_continues_another_one_stays_out_without_it() -> None:
    rules = attention_after_router(continues="router")
    findings, steps = plan_of(rules, saving(router=-100, attention=50), run(config__router=False))
    assert names(steps) == []
    assert findings["attention"].outcome is Outcome.NOT_APPLICABLE


def test_a_rule_of_the_same_lever_that_continues_nothing_stays_out() -> None:
    _, steps = plan_of(attention_after_router(), saving(router=100, attention=50), run(config__router=False))
    assert names(steps) == ["router"]


def test_a_blocked_rule_enters_after_the_one_that_unlocks_it() -> None:
    locked = rule("locked", requires=(requirement("key", *read("config.opens == True")),))
    findings, steps = plan_of([locked, rule("opens")], saving(locked=500, opens=100), run(config__opens=False))
    assert [(step.rule, step.unlocked_by) for step in steps] == [("opens", ""), ("locked", "opens")]
    assert findings["locked"].outcome is Outcome.BLOCKED
    assert steps[1].finding.outcome is Outcome.RECOMMENDED


def test_a_blocked_rule_that_nothing_unlocks_stays_blocked() -> None:
    locked = rule("locked", requires=(requirement("key", *read("config.opens == True")),))
    findings, steps = plan_of([locked, rule("other")], saving(locked=500, other=100), run(config__opens=False))
    assert names(steps) == ["other"]
    assert findings["locked"].outcome is Outcome.BLOCKED
    assert findings["locked"].blocked_by[0].name == "key"


def test_a_rule_whose_setting_an_earlier_entry_made_unfit_stays_out_with_its_reason() -> None:
    late = rule("late", when=read("config.cure is not True"))
    findings, steps = plan_of([rule("cure"), late], saving(cure=100, late=50), run(config__cure=False))
    assert names(steps) == ["cure"]
    assert findings["late"].outcome is Outcome.ALTERNATIVE
    assert findings["late"].reason == "After cure, the rule is not needed: cure is on (must be off)"


def test_edits_that_contradict_the_plan_stay_out() -> None:
    rules = [rule("one", edits=(Edit("queues", "many"),)), rule("other", edits=(Edit("queues", "single"),))]
    findings, steps = plan_of(rules, saving(many=100, single=50), None, choose("queues", many="many", single="single"))
    assert names(steps) == ["one"]
    assert findings["other"].reason == "one already sets queues to another value"


def test_edits_that_break_what_the_plan_requires_stay_out() -> None:
    one = rule("one", requires=(requirement("no_graphs", *read("config.graphs != True")),))
    facts = run(config__graphs=False)
    findings, steps = plan_of([one, rule("graphs")], saving(one=100, graphs=50), facts)
    assert names(steps) == ["one"]
    assert findings["graphs"].reason == "Its edits break a requirement of one: no_graphs"
    assert names(plan_of([rule("one"), rule("graphs")], saving(one=100, graphs=50), facts)[1]) == ["one", "graphs"]


def test_a_requirement_that_an_entry_broke_before_is_no_reason_against_a_later_one() -> None:
    """The run breaks it already; nothing that the later edit does changes that."""
    one = rule("one", requires=(requirement("no_graphs", *read("config.graphs != True")),))
    findings, steps = plan_of([one, rule("two")], saving(one=100, two=50), run(config__graphs=True))
    assert names(steps) == ["two"]
    assert findings["one"].outcome is Outcome.BLOCKED


def test_a_later_edit_may_build_on_an_earlier_list() -> None:
    scopes = ("moe_router", "moe_preprocess")
    first = rule("first", edits=(Edit("cuda_graph_scope", scopes),))
    wider = rule("wider", edits=(Edit("cuda_graph_scope", add=("attn",)),))
    effects = [
        effect(name, case(f"'{name}' in config.cuda_graph_scope", change(name)), settings=SCOPE, elements=elements)
        for name, elements in (("moe_router", scopes), ("attn", ("attn",)))
    ]
    _, steps = plan_of([first, wider], saving(moe_router=100, attn=50), run(config__cuda_graph_scope=None), *effects)
    assert [step.edits[0].to for step in steps] == [scopes, (*scopes, "attn")]


SCOPE = ("config.cuda_graph_scope",)


def test_edits_that_change_convergence_are_planned_only_when_allowed() -> None:
    precise = replace(rule("fp8"), applicability="convergence-changing")
    findings, steps = plan_of([precise], saving(fp8=100))
    assert steps == ()
    assert findings["fp8"].outcome is Outcome.ALTERNATIVE
    assert findings["fp8"].gain_ns.likely == 100 * MS
    assert findings["fp8"].reason.startswith(
        "The rule is convergence-changing, so it needs --allow convergence-changing"
    )
    assert names(plan_of([precise], saving(fp8=100), allowed=["convergence-changing"])[1]) == ["fp8"]
    assert names(plan_of([precise], saving(fp8=100), allowed=["benchmark-only"])[1]) == []


def test_an_edit_that_frees_memory_comes_first_and_costs_what_the_replay_says() -> None:
    _, steps = plan_of([rule("a"), frees_memory("repeat")], saving(800, a=100, repeat=-40))
    assert names(steps) == ["repeat", "a"]
    assert (steps[0].gain_ns.likely, steps[0].gain_ns.basis) == (None, "frees_memory")
    assert steps[0].gain_ns.cost_fraction == pytest.approx(0.05)
    assert [step.step_after_likely_ns for step in steps] == [840 * MS, 740 * MS]


def test_of_edits_that_cost_time_the_cheapest_makes_the_run_fit_first() -> None:
    rules = [frees_memory("a_dear"), frees_memory("b_cheap")]
    _, steps = plan_of(rules, saving(a_dear=-160, b_cheap=-16))
    assert names(steps) == ["b_cheap", "a_dear"]


@pytest.mark.parametrize("pressure", ["allocator_retries", "near_limit", "fragmented"])
def test_where_the_run_fits_an_edit_that_frees_memory_comes_after_what_the_replay_gains(pressure: str) -> None:
    rules = [rule("gains"), frees_memory("a_frees")]
    predictor = saving(800, gains=100, a_frees=-40)
    _, steps = plan_of(rules, predictor, run(memory_pressure=pressure))
    assert names(steps) == ["gains", "a_frees"]
    assert steps[1].step_after_likely_ns == 740 * MS
    assert names(plan_of(rules, predictor, run(memory_pressure="out_of_memory"))[1]) == ["a_frees", "gains"]


def test_an_edit_that_frees_memory_stays_out_where_its_symptom_is_absent() -> None:
    frees = frees_memory("frees", when=read("memory_pressure in ('near_limit', 'out_of_memory')"))
    findings, steps = plan_of([frees], saving(frees=-40), run(memory_pressure="none"))
    assert (steps, findings["frees"].outcome) == ((), Outcome.NOT_NEEDED)
    assert names(plan_of([frees], saving(frees=-40), run(memory_pressure="near_limit"))[1]) == ["frees"]


def test_a_rank_to_fix_first_is_healed_in_every_replay() -> None:
    late = with_advice_replayed(LATE_RANK)
    predictor = saving(900, heal=300, a=100)
    _, steps = plan_of([late, rule("a")], predictor, sheet_of(SLOW_RANK))
    assert [(step.order, step.rule) for step in steps] == [(0, "late-rank"), (1, "a")]
    assert (steps[0].gain_ns.likely, steps[0].gain_ns.basis) == (300 * MS, "replayed")
    assert [step.step_after_likely_ns for step in steps] == [600 * MS, 500 * MS]
    assert all(asked[0] == "heal" for asked in predictor.asked)


def with_advice_replayed(advising: Rule) -> Rule:
    """``advising``, following whose advice makes the change ``heal``."""
    (heal,) = case("", change("heal")).changes
    return replace(advising, gain=replace(advising.gain, replay=(heal,), no_replay=""))


def test_the_first_trial_is_a_share_of_the_replayed_step() -> None:
    predictor = saving(800, a=80)
    _, steps = plan_of([rule("a")], predictor)
    trial = choose_first_trial(steps, run(), predictor)
    assert trial is not None
    assert (trial.saved_low_fraction, trial.saved_high_fraction) == (0.1, 0.1)


def refuse_b(edits: Sequence[PlannedEdit]) -> tuple[PlanNote, ...]:
    return tuple(PlanNote("refused", "it is refused") for edit in edits if edit.key == "b")


def test_edits_that_the_launcher_refuses_are_blocked_with_its_message_and_the_rest_is_planned() -> None:
    predictor = saving(800, a=80, b=200)
    findings, steps = plan_of([rule("a"), rule("b")], predictor, validate=refuse_b)
    assert names(steps) == ["a"]
    assert (findings["b"].outcome, findings["b"].reason) == (Outcome.BLOCKED, "it is refused")
    assert [note.name for note in findings["b"].blocked_by] == ["refused"]
    assert len(predictor.asked) == len(set(predictor.asked))


def test_edits_are_checked_together_with_those_of_the_entries_before() -> None:
    def refuse_both(edits: Sequence[PlannedEdit]) -> tuple[PlanNote, ...]:
        return (PlanNote("pair", "not both"),) if {edit.key for edit in edits} == {"a", "b"} else ()

    findings, steps = plan_of([rule("a"), rule("b")], saving(a=100, b=50), validate=refuse_both)
    assert names(steps) == ["a"]
    assert findings["b"].outcome is Outcome.BLOCKED
    assert names(plan_of([rule("b")], saving(b=50), validate=refuse_both)[1]) == ["b"]


@pytest.mark.parametrize(("left", "module"), [(0.0, "layernorm"), (0.5, "core_attn")])
def test_a_later_edit_is_chosen_for_the_kernels_that_are_left(left: float, module: str) -> None:
    """Once attention is fused, recomputing it saves nothing; a change that leaves half of its kernels fuses nothing."""
    fuse = Transformation(Action.SCALE, Selection(categories=("attention_unfused",)), Levels(left, left, left))
    attention = effect("attention", case("config.attention is True", fuse))
    recompute = rule(
        "recompute",
        edits=(
            Edit("recompute_modules", "layernorm", only_if=read("attention_unfused_fraction <= 0.02")),
            Edit("recompute_modules", "core_attn", only_if=read("attention_unfused_fraction > 0.02")),
        ),
    )
    modules = effect("recompute_modules", case("", change("recompute")))
    predictor = FakePredictor(lambda taken: 800 - 200 * ("scale" in taken) - 100 * ("recompute" in taken))
    facts = run(attention_unfused_fraction=0.1)
    _, steps = plan_of([rule("attention"), recompute], predictor, facts, attention, modules)
    assert names(steps) == ["attention", "recompute"]
    assert [edit.to for edit in steps[1].edits] == [module]


def test_a_rule_that_fails_does_not_cost_the_plan() -> None:
    twice = rule("twice", edits=(Edit("a", True), Edit("a", False)))
    findings, steps = plan_of([twice, rule("b")], saving(a=100, b=50))
    assert names(steps) == ["b"]
    assert findings["twice"].outcome is Outcome.ERROR


IDS = (
    "apply_rope_fusion",
    "bias_dropout_fusion",
    "delay_wgrad_compute",
    "moe_permute_fusion",
    "moe_shared_expert_overlap",
    "overlap_grad_reduce",
)
"""Switches that a question may name."""


@st.composite
def random_runs(draw: st.DrawFn) -> tuple[list[Rule], FakePredictor]:
    """Rules whose edits shorten the step or not, alone and in pairs, some of one lever and some that free memory."""
    made = []
    for identifier in IDS[: draw(st.integers(0, len(IDS)))]:
        lever = draw(st.sampled_from(["", "shared"]))
        made.append(frees_memory(identifier, lever=lever) if draw(st.booleans()) else rule(identifier, lever=lever))
    saved = draw(st.fixed_dictionaries({name: st.integers(-100, 100) for name in IDS}))
    together = draw(st.dictionaries(st.frozensets(st.sampled_from(IDS), min_size=2, max_size=2), st.integers(-50, 50)))

    def step_of(taken: frozenset[str]) -> tuple[float, float, float]:
        likely = 800 - sum(saved[name] for name in taken) - sum(ms for pair, ms in together.items() if pair <= taken)
        return likely - 7 * len(taken), likely, likely + 9 * len(taken)

    return made, FakePredictor(step_of)


@given(random_runs())
def test_the_first_entries_of_a_plan_are_what_whatif_says_of_their_settings(
    found: tuple[list[Rule], FakePredictor],
) -> None:
    made = replayed_run(*found, run(memory_pressure="near_limit"))
    _, steps = make_plan(made)
    settings: dict[str, ConfigData] = {}
    before_ns = made.predictor.step_ns.likely_ns
    for step in steps:
        settings |= {fact_of(edit): edit.to for edit in step.edits}
        after = answer(Question(settings), made).after
        assert after is not None
        assert after.likely_ns == step.step_after_likely_ns
        assert step.step_after_ns == Bounds(after.low_ns, after.high_ns)
        assert step.gain_ns.likely in (None, before_ns - after.likely_ns)
        before_ns = after.likely_ns


@pytest.mark.slow
@given(random_runs(), st.randoms(use_true_random=False))
def test_the_order_of_the_rules_does_not_matter(found: tuple[list[Rule], FakePredictor], random: Random) -> None:
    rules, predictor = found
    shuffled = list(rules)
    random.shuffle(shuffled)
    assert plan_of(shuffled, predictor) == plan_of(rules, predictor)


def test_a_first_trial_that_may_cost_time_gives_a_longer_step_at_worst() -> None:
    predictor = FakePredictor(lambda taken: (720, 760, 816) if taken else 800)
    _, steps = plan_of([rule("a")], predictor)
    trial = choose_first_trial(steps, sheet_of({"step_ns": 900 * MS, "unprofiled_step_ns": 800 * MS}), predictor)
    assert trial is not None
    assert trial.saved_low_fraction == pytest.approx(-0.02)
    assert trial.unprofiled_step_after_high_ns == 816 * MS
