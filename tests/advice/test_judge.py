"""Every outcome of a rule, with its reason."""

from __future__ import annotations

from dataclasses import replace

from tests.advice.builders import MS, requirement, rule, run, sheet_of
from three_walls.advice.decide_verdict import decide_verdict
from three_walls.advice.finding import Outcome
from three_walls.advice.format.rule import Advice, Claim, Edit, Evidence, FactTarget
from three_walls.advice.judge import judge, judge_all
from three_walls.lib.expressions import Condition, Junction
from three_walls.lib.fact import Fact, FactSheet
from three_walls.lib.plain_data import ConfigData

HERE = Condition("gpu.family", "==", "H100")
LATE = Condition("launch_starved_fraction", ">=", 0.1)
OFF = Condition("config.offload", "!=", True)


def test_a_value_that_misses_a_threshold_by_less_than_a_fifth_is_near_it() -> None:
    asks = rule("asks", when=(Condition("launch_starved_fraction", ">=", 0.1),))

    def near(fraction: float, **settings: ConfigData) -> str:
        values = {"launch_starved_fraction": fraction, **{f"config.{key}": value for key, value in settings.items()}}
        finding = judge(asks, sheet_of(values))
        assert finding.outcome is Outcome.NOT_NEEDED
        return finding.near

    assert near(0.098) == "Launch-starved time takes 9.8% of the step (threshold 10%)"
    assert near(0.079) == ""
    assert near(0.098, asks=True) == ""  # nothing is left to set


def test_a_requirement_that_is_missed_by_little_is_blocked_and_near() -> None:
    memory = Condition("memory_peak_fraction", "<=", 0.85)
    fits = rule("fits", requires=(requirement("headroom", memory),))

    def near(peak: float) -> str:
        finding = judge(fits, sheet_of({"memory_peak_fraction": peak}))
        assert finding.outcome is Outcome.BLOCKED
        return finding.near

    assert near(0.86) == "Peak memory is 86% of device memory (limit 85%)"
    assert near(0.90) == ""  # the limit leaves 15%, and a third of that is gone


def test_another_world_is_not_applicable() -> None:
    finding = judge(rule("r", applies_to=(HERE,), when=(LATE,)), run(gpu__family="A100"))
    assert finding.outcome is Outcome.NOT_APPLICABLE
    assert finding.reason == "The GPU family is A100 (must be H100)"


def test_an_absent_symptom_decides_even_where_the_world_is_unknown() -> None:
    finding = judge(rule("r", applies_to=(HERE,), when=(LATE,)), run(launch_starved_ns=0))
    assert (finding.outcome, finding.missing) == (Outcome.NOT_NEEDED, ())
    assert finding.reason == "Launch-starved time takes 0% of the step (threshold 10%)"


def test_another_world_decides_before_an_absent_symptom() -> None:
    facts = run(gpu__family="A100", launch_starved_ns=0)
    assert judge(rule("r", applies_to=(HERE,), when=(LATE,)), facts).outcome is Outcome.NOT_APPLICABLE


def test_everything_that_is_not_known_of_world_and_symptom_is_listed() -> None:
    lacking = Condition("config.graphs", "==", False)
    finding = judge(rule("r", applies_to=(HERE,), when=(lacking, LATE)), run())
    assert (finding.outcome, finding.missing) == (Outcome.UNKNOWN, ("gpu.family", "config.graphs"))


def test_an_absent_symptom_beats_an_unknown_one() -> None:
    lacking = Condition("config.graphs", "==", False)
    finding = judge(rule("r", when=(lacking, LATE)), run(launch_starved_ns=99 * MS))
    assert finding.outcome is Outcome.NOT_NEEDED
    assert finding.reason == "Launch-starved time takes 9.9% of the step (threshold 10%)"


def test_all_failing_requirements_are_listed_with_numbers_and_reason() -> None:
    blocked = rule("r", requires=(requirement("one", OFF), requirement("two", HERE)))
    finding = judge(blocked, run(config__offload=True, gpu__family="A100"))
    assert finding.outcome is Outcome.BLOCKED
    assert [note.name for note in finding.blocked_by] == ["one", "two"]
    assert finding.blocked_by[0].text == "offload is on (must be off): it must be so"
    assert finding.blocked_by[0].source == "guide:A guide"
    assert finding.gain_ns.high == 200 * MS  # what unblocking is worth at most


def test_a_requirement_that_cannot_be_checked_is_to_be_confirmed() -> None:
    finding = judge(rule("r", requires=(requirement("one", OFF), requirement("two", confirm="look"))), run())
    assert finding.outcome is Outcome.RECOMMENDED
    assert [note.text for note in finding.confirm_first] == [
        "Confirm that offload is off (not recorded): it must be so",
        "Confirm that look: it must be so",
    ]


def test_a_requirement_of_certain_runs_counts_for_no_other() -> None:
    on_h100 = rule(
        "r",
        requires=(
            replace(requirement("look", confirm="look"), only_if=(HERE,)),
            replace(requirement("off", OFF), only_if=(HERE,)),
        ),
    )
    elsewhere = judge(on_h100, run(config__offload=True, gpu__family="A100"))
    assert (elsewhere.outcome, elsewhere.confirm_first) == (Outcome.RECOMMENDED, ())
    here = judge(on_h100, run(config__offload=True, gpu__family="H100"))
    assert ([note.name for note in here.blocked_by], [note.name for note in here.confirm_first]) == (["off"], ["look"])


def test_one_alternative_that_holds_is_enough() -> None:
    either = requirement("either", Junction("or", (OFF, HERE)))
    assert judge(rule("r", requires=(either,)), run(gpu__family="H100")).confirm_first == ()
    finding = judge(rule("r", requires=(either,)), run(config__offload=True, gpu__family="A100"))
    assert finding.outcome is Outcome.BLOCKED
    assert "(must be off), or the GPU family is A100" in finding.reason


def test_settings_that_are_there_already_are_dropped() -> None:
    edits = (Edit("a", True), Edit("b", False), Edit("c", "x"), Edit(env="D", to="1"))
    finding = judge(rule("r", edits=edits), run(config__a=True, config__b=None, config__c="y", env__D="1"))
    assert [(edit.key, edit.from_value, edit.to) for edit in finding.edits] == [("c", "y", "x")]
    done = judge(rule("r", edits=edits), run(config__a=True, config__b=False, config__c="x", env__D="1"))
    assert done.outcome is Outcome.NOT_NEEDED
    assert "already has" in done.reason


def test_an_edit_stays_unless_its_condition_is_known_not_to_hold() -> None:
    edits = (Edit("a", True), Edit("b", True, only_if=(HERE,)))
    assert len(judge(rule("r", edits=edits), run()).edits) == 2
    assert len(judge(rule("r", edits=edits), run(gpu__family="A100")).edits) == 1


def test_of_two_edits_of_a_key_the_one_that_fits_remains() -> None:
    first = Edit("modules", ("a",), only_if=(Condition("config.x", "==", 1),))
    second = Edit("modules", ("b",), only_if=(Condition("config.x", "==", 2),))
    both = rule("r", edits=(first, second))
    assert [edit.to for edit in judge(both, run(config__x=2)).edits] == [("b",)]
    assert [edit.to for edit in judge(both, run()).edits] == [("a",)]  # not known: the first
    assert judge(both, run(config__x=3)).outcome is Outcome.NOT_NEEDED


def test_a_rule_that_fails_is_a_finding_and_the_others_come_out() -> None:
    twice = rule("twice", edits=(Edit("a", 1), Edit("a", 2)))
    text = rule("text", when=(Condition("config.n", ">=", 1),))
    findings = judge_all([twice, text, rule("fine")], run(config__n="many"))
    assert [(finding.rule, finding.outcome) for finding in findings] == [
        ("fine", Outcome.RECOMMENDED),
        ("text", Outcome.ERROR),
        ("twice", Outcome.ERROR),
    ]
    assert "a is set twice" in findings[2].reason


def test_a_target_may_come_from_a_fact() -> None:
    edits = (Edit(env="RANKS", to=FactTarget("config.ep")),)
    assert judge(rule("r", edits=edits), run(config__ep=8)).edits[0].to == "8"  # a variable is text
    finding = judge(rule("r", edits=edits), run())
    assert (finding.outcome, finding.missing) == (Outcome.UNKNOWN, ("config.ep",))


def test_evidence_for_and_against_is_kept_apart() -> None:
    finding = judge(replace(rule("r"), evidence=Evidence(against=(Claim("it did nothing", "guide:A guide"),))), run())
    assert finding.evidence_for == ()
    assert [(note.text, note.source) for note in finding.evidence_against] == [("it did nothing", "guide:A guide")]


def test_evidence_that_the_run_shows_comes_first_with_its_figures() -> None:
    claims = (Claim("it helped", "guide:A guide"), Claim("here it helps", "guide:A guide", (HERE,)))
    helps = replace(rule("r"), evidence=Evidence(for_=claims))
    shown = judge(helps, run(gpu__family="H100")).evidence_for
    assert [note.text for note in shown] == ["here it helps. The GPU family is H100", "it helped"]
    for facts in (run(gpu__family="A100"), run()):
        assert [note.text for note in judge(helps, facts).evidence_for] == ["it helped"]


def test_what_was_measured_rules_a_symptom_out_only_where_it_is_known() -> None:
    excepted = replace(rule("r", when=(LATE,)), unless=(HERE,))
    finding = judge(excepted, run(gpu__family="H100"))
    assert (finding.outcome, finding.reason) == (Outcome.NOT_NEEDED, "The GPU family is H100")
    assert judge(excepted, run(gpu__family="A100")).outcome is Outcome.RECOMMENDED
    assert judge(excepted, run()).outcome is Outcome.RECOMMENDED


def test_elements_join_a_list_at_its_end_and_only_once() -> None:
    grow = rule("r", edits=(Edit("cuda_graph_scope", add=("moe_router", "attn")),))
    edit = judge(grow, run(config__cuda_graph_scope=("moe_router",))).edits[0]
    assert (edit.to, edit.relative) == (("moe_router", "attn"), True)
    assert judge(grow, run(config__cuda_graph_scope=None)).edits[0].to == ("moe_router", "attn")
    assert judge(grow, run(config__cuda_graph_scope=("attn", "moe_router"))).outcome is Outcome.NOT_NEEDED


def test_elements_leave_a_list_that_has_them() -> None:
    shrink = rule("r", edits=(Edit("recompute_modules", remove=("core_attn",)),))
    assert judge(shrink, run(config__recompute_modules=("core_attn", "moe_act"))).edits[0].to == ("moe_act",)
    assert judge(shrink, run(config__recompute_modules=("moe_act",))).outcome is Outcome.NOT_NEEDED


def test_a_list_that_is_not_known_cannot_be_changed() -> None:
    grow = rule("r", edits=(Edit("recompute_modules", add=("moe_act",)),))
    finding = judge(grow, run())
    assert (finding.outcome, finding.missing) == (Outcome.UNKNOWN, ("config.recompute_modules",))


def test_a_failing_requirement_with_a_fix_brings_its_edits_along() -> None:
    off = requirement("no_offload", OFF)
    mended = rule("r", requires=(replace(off, fix=(Edit("offload", False),)),))
    finding = judge(mended, run(config__offload=True))
    assert finding.outcome is Outcome.RECOMMENDED
    assert [(edit.key, edit.to, edit.reason) for edit in finding.edits] == [
        ("r", True, ""),
        ("offload", False, "it must be so"),
    ]
    assert [edit.key for edit in judge(mended, run(config__offload=False)).edits] == ["r"]
    assert judge(rule("r", requires=(off,)), run(config__offload=True)).outcome is Outcome.BLOCKED


def test_a_fix_that_does_not_make_it_hold_is_no_fix() -> None:
    useless = replace(requirement("no_offload", OFF), fix=(Edit("something_else", 1),))
    assert judge(rule("r", requires=(useless,)), run(config__offload=True)).outcome is Outcome.BLOCKED


def test_a_rule_without_edits_says_what_to_do() -> None:
    imbalance = replace(rule("r", when=(LATE,)), edits=(), lever="", advice=(Advice("Look at the router.", ()),))
    finding = judge(imbalance, run())
    assert (finding.outcome, finding.advice, finding.edits) == (Outcome.FOUND, "Look at the router.", ())
    assert judge(imbalance, run(launch_starved_ns=0)).outcome is Outcome.NOT_NEEDED


def test_a_program_without_a_sign_of_megatron_gets_no_edit_and_no_wall() -> None:
    signs = {name: Fact(name, None, "text", "no sign was found") for name in ("training_sign", "megatron_sign")}
    facts = run()
    foreign = FactSheet.of([*facts.facts.values(), *signs.values()])
    finding = judge(rule("r"), foreign)
    assert (finding.outcome, finding.missing) == (Outcome.UNKNOWN, ("training_sign", "megatron_sign"))
    assert decide_verdict(foreign).abstained
    assert judge(rule("r"), facts).outcome is Outcome.RECOMMENDED


def test_advice_that_fits_the_facts_comes_first() -> None:
    fits, other = Condition("late_cause", "==", "gpu"), Condition("late_cause", "==", "host")
    advice = (Advice("Look at the host.", (other,)), Advice("Look at the GPU.", (fits,)), Advice("Capture again.", ()))
    late = replace(rule("r", when=(LATE,)), edits=(), lever="", advice=advice)
    facts: dict[str, ConfigData] = {"launch_starved_fraction": 0.2, "step_ns": 1000 * MS}
    known_cause = judge(late, sheet_of({**facts, "late_cause": "gpu"}))
    assert known_cause.advice == "Look at the GPU. Capture again. Should that not be it: Look at the host."
    unknown_cause = judge(late, sheet_of(facts))
    assert unknown_cause.advice == "Capture again. Look at the host. Look at the GPU."


def test_advice_that_the_run_follows_already_is_left_out() -> None:
    done = Condition("late_cause", "==", "gpu")
    advice = (Advice("Look at the GPU.", (), unless=(done,)), Advice("Capture again.", ()))
    late = replace(rule("r", when=(LATE,)), edits=(), lever="", advice=advice)
    facts: dict[str, ConfigData] = {"launch_starved_fraction": 0.2, "step_ns": 1000 * MS}
    assert judge(late, sheet_of({**facts, "late_cause": "gpu"})).advice == "Capture again."
    assert judge(late, sheet_of({**facts, "late_cause": "host"})).advice == "Look at the GPU. Capture again."
    assert judge(late, sheet_of(facts)).advice == "Look at the GPU. Capture again."


def test_advice_for_any_program_needs_no_sign_of_megatron() -> None:
    sign = Fact("megatron_sign", None, "text", "no sign was found")
    foreign = FactSheet.of([*run().facts.values(), sign])
    generic = replace(rule("r"), edits=(), lever="", advice=(Advice("look", ()),), any_program=True)
    assert judge(generic, foreign).outcome is Outcome.FOUND
    assert judge(replace(generic, any_program=False), foreign).outcome is Outcome.UNKNOWN
