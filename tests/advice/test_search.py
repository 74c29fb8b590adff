"""What the search for a plan tries beyond single rules: further values of one rule, and pairs of rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.advice.builders import MS, case, effect, frees_memory, read, requirement, rule, run
from tests.advice.fake_predictor import FakePredictor, change, names, plan_of, saving
from three_walls.advice.finding import Outcome, PlanNote
from three_walls.advice.format.effect import Effect
from three_walls.advice.format.rule import Edit, FactTarget, Rule
from three_walls.lib.fact import Fact, FactSheet, FactValue
from three_walls.lib.plain_data import ConfigData
from three_walls.replay.transformation import Selection, Transformation
from three_walls.tables.buckets import SubWall, Wall

LARGER = rule(
    "larger",
    edits=(Edit("micro_batch_size", FactTarget("larger_micro_batch_size")),),
    requires=(
        requirement("splits", *read("larger_micro_batch_size is not None")),
        requirement("fits", *read("memory_peak_larger_micro_batch_ratio <= 0.9")),
    ),
)
SIZES = (1, 2, 4, 8)


def changes_of_sizes() -> Effect:
    return effect(
        "micro_batch_size", *(case(f"config.micro_batch_size == {size}", change(f"size {size}")) for size in SIZES)
    )


def facts_after(settings: Mapping[str, FactValue], fits: int = 8) -> Mapping[str, Fact]:
    """The next size of a run of eight samples a step, and whether it fits: up to ``fits`` samples do."""
    size = settings.get("config.micro_batch_size", 1)
    assert isinstance(size, int)
    then = 2 * size if 2 * size <= SIZES[-1] else None
    return {
        "larger_micro_batch_size": Fact("larger_micro_batch_size", then, "count"),
        "memory_peak_larger_micro_batch_ratio": Fact(
            "memory_peak_larger_micro_batch_ratio", 0.9 if then and then <= fits else 1.8, "ratio"
        ),
    }


def run_of_one_sample(**values: ConfigData) -> FactSheet:
    return run(
        config__micro_batch_size=1, larger_micro_batch_size=2, memory_peak_larger_micro_batch_ratio=0.9, **values
    )


def step_by_size(**step_ms: float) -> FakePredictor:
    """The step at a size is the one of its word, else the one as it is."""
    return FakePredictor(lambda taken: step_ms.get(max(taken).replace(" ", ""), 800) if taken else 800)


@pytest.mark.parametrize(
    ("steps_ms", "size"),
    [
        ({"size2": 500, "size4": 300, "size8": 400}, 4),
        ({"size2": 500, "size4": 600, "size8": 700}, 2),
        ({"size2": 790, "size4": 700, "size8": 100}, 8),  # the nearest alone gains too little
    ],
)
def test_of_the_values_that_a_rule_proposes_the_best_one_enters(steps_ms: Mapping[str, float], size: int) -> None:
    _, (step,) = plan_of(
        [LARGER], step_by_size(**steps_ms), run_of_one_sample(), changes_of_sizes(), facts_after=facts_after
    )
    assert [(edit.key, edit.from_value, edit.to) for edit in step.edits] == [("micro_batch_size", 1, size)]
    assert step.gain_ns.likely == (800 - steps_ms[f"size{size}"]) * MS


@pytest.mark.parametrize(("free_host_ms", "half"), [(0, SubWall.HOST), (60, SubWall.HOST), (120, SubWall.COMPUTE)])
def test_an_entry_is_the_hosts_where_it_gains_less_than_half_once_the_host_takes_no_time(
    free_host_ms: float, half: SubWall
) -> None:
    def step_ms(taken: frozenset[str]) -> float:
        saved_ms = free_host_ms if "host" in taken else 150
        return (400 if "host" in taken else 800) - saved_ms * ("fuses" in taken)

    fuses = replace(rule("fuses"), wall=Wall.COMPUTE_HOST, sub_wall=SubWall.COMPUTE)
    found, (step,) = plan_of([fuses], FakePredictor(step_ms))
    assert (step.finding.sub_wall, found["fuses"].sub_wall) == (half, half)


def test_values_are_tried_as_far_as_the_requirements_hold() -> None:
    predictor = step_by_size(size2=700, size4=600, size8=100)
    _, (step,) = plan_of(
        [LARGER],
        predictor,
        run_of_one_sample(),
        changes_of_sizes(),
        facts_after=lambda settings: facts_after(settings, fits=4),
    )
    assert step.edits[0].to == 4
    assert ("size 8",) not in predictor.asked_likely


def test_a_further_value_of_which_it_is_not_known_that_it_is_allowed_is_not_tried() -> None:
    def without_peak(settings: Mapping[str, FactValue]) -> Mapping[str, Fact]:
        known = facts_after(settings)
        unknown = Fact("memory_peak_larger_micro_batch_ratio", None, "ratio", missing_reason="no log")
        return {**known, "memory_peak_larger_micro_batch_ratio": unknown}

    predictor = step_by_size(size2=700, size4=300)
    _, (step,) = plan_of([LARGER], predictor, run_of_one_sample(), changes_of_sizes(), facts_after=without_peak)
    assert step.edits[0].to == 2


def test_what_only_a_person_can_confirm_is_asked_of_the_first_value_and_keeps_no_further_one() -> None:
    asks = replace(LARGER, requires={**LARGER.requires, "asked": requirement("asked", confirm="a person agrees")})
    predictor = step_by_size(size2=700, size4=300, size8=400)
    _, (step,) = plan_of([asks], predictor, run_of_one_sample(), changes_of_sizes(), facts_after=facts_after)
    assert step.edits[0].to == 4
    assert [note.name for note in step.finding.confirm_first] == ["asked"]


def test_a_value_that_stays_the_same_ends_the_search() -> None:
    _, (step,) = plan_of([LARGER], step_by_size(size2=700), run_of_one_sample(), changes_of_sizes())
    assert step.edits[0].to == 2


def test_the_nearest_value_ranks_the_entry_and_the_best_one_is_taken() -> None:
    """Twice the size gains 50 ms, four times 400: the other edit with its 100 ms goes first."""
    predictor = FakePredictor(
        lambda taken: 800 - 100 * ("other" in taken) - 50 * ("size 2" in taken) - 400 * ("size 4" in taken)
    )
    _, steps = plan_of(
        [LARGER, rule("other")], predictor, run_of_one_sample(), changes_of_sizes(), facts_after=facts_after
    )
    assert names(steps) == ["other", "larger"]
    assert steps[1].edits[0].to == 4


MEMORY = rule(
    "uses",
    edits=(Edit("micro_batch_size", 2),),
    requires=(requirement("fits", *read("config.frees is True")),),
)


def uses_memory() -> Effect:
    return effect("micro_batch_size", case("config.micro_batch_size == 2", change("uses")))


def fitting(**values: ConfigData) -> FactSheet:
    return run(memory_pressure="near_limit", config__frees=False, **values)


def test_a_rule_that_frees_memory_and_one_that_uses_it_become_one_entry() -> None:
    unneeded = frees_memory("frees", when=read("memory_pressure == 'out_of_memory'"))
    findings, steps = plan_of([unneeded, MEMORY], saving(800, frees=-40, uses=200), fitting(), uses_memory())
    (step,) = steps
    assert (step.rule, step.with_rule) == ("uses", "frees")
    assert {edit.key: edit.to for edit in step.edits} == {"frees": True, "micro_batch_size": 2}
    assert (step.gain_ns.likely, step.step_after_likely_ns) == (160 * MS, 640 * MS)
    assert findings["frees"].outcome is Outcome.ALTERNATIVE
    assert findings["frees"].reason == "Its edits are part of the entry of uses"
    assert findings["uses"].outcome is Outcome.BLOCKED


@pytest.mark.parametrize("cost_ms", [193, 250])
def test_a_pair_whose_memory_costs_what_it_gains_stays_out(cost_ms: float) -> None:
    unneeded = frees_memory("frees", when=read("memory_pressure == 'out_of_memory'"))
    _, steps = plan_of([unneeded, MEMORY], saving(800, frees=-cost_ms, uses=200), fitting(), uses_memory())
    assert steps == ()


def test_memory_that_lets_nothing_follow_is_not_freed() -> None:
    unneeded = frees_memory("frees", when=read("memory_pressure == 'out_of_memory'"))
    stays_blocked = replace(MEMORY, requires={"fits": requirement("fits", *read("config.other is True"))})
    predictor = saving(800, frees=-40, uses=200)
    _, steps = plan_of([unneeded, stays_blocked], predictor, fitting(config__other=False), uses_memory())
    assert steps == ()


def together(*pair: str, saved_ms: float, **alone_ms: float) -> FakePredictor:
    """What two changes save is ``saved_ms`` where both are made, else what each saves alone."""

    def step_of(taken: frozenset[str]) -> float:
        rest = sum(alone_ms.get(name, 0) for name in taken)
        return 800 - (saved_ms if taken >= set(pair) else rest)

    return FakePredictor(step_of)


def test_two_edits_that_gain_only_together_become_one_entry() -> None:
    findings, steps = plan_of([rule("a"), rule("b")], together("a", "b", saved_ms=60, a=2, b=2))
    (step,) = steps
    assert {step.rule, step.with_rule} == {"a", "b"}
    assert {edit.key for edit in step.edits} == {"a", "b"}
    assert step.gain_ns.likely == 60 * MS
    assert findings[step.with_rule].outcome is Outcome.ALTERNATIVE
    assert findings[step.rule].outcome is Outcome.RECOMMENDED


def test_a_pair_that_is_only_the_sum_of_its_parts_does_not_enter() -> None:
    """Seven and seven milliseconds make fourteen: each alone is below the threshold of eight, and so stays out."""
    findings, steps = plan_of([rule("a"), rule("b")], saving(800, a=7, b=7))
    assert steps == ()
    assert {finding.outcome for finding in findings.values()} == {Outcome.NOT_NEEDED}


@pytest.mark.parametrize("others", [{"c": 6, "d": 5}, {"c": -30, "d": -40}, {"c": 6, "d": -40}])
def test_a_pair_is_found_among_edits_that_gain_or_lose_on_their_own(others: dict[str, float]) -> None:
    def step_of(taken: frozenset[str]) -> float:
        return 800 - sum(others.get(name, 0) for name in taken) - (60 if taken >= {"a", "b"} else 0)

    _, steps = plan_of([rule(name) for name in ("a", "b", "c", "d")], FakePredictor(step_of))
    assert [{step.rule, step.with_rule} for step in steps] == [{"a", "b"}]


def test_a_loss_of_one_part_does_not_make_a_pair_of_the_other() -> None:
    """Together they gain 9 ms, 5 of them by one alone: what is more than that is half of the threshold of 8 ms."""
    assert len(plan_of([rule("a"), rule("b")], together("a", "b", saved_ms=9, a=5, b=-20))[1]) == 1
    assert plan_of([rule("a"), rule("b")], together("a", "b", saved_ms=8.5, a=5, b=-20))[1] == ()


@pytest.mark.parametrize(("worst_ms", "is_entered"), [(5, True), (-5, False)])
def test_a_pair_that_may_cost_time_does_not_enter(worst_ms: float, is_entered: bool) -> None:
    def step_of(taken: frozenset[str]) -> tuple[float, float, float]:
        return (700, 740, 800 - worst_ms) if taken >= {"a", "b"} else (800, 800, 800)

    assert bool(plan_of([rule("a"), rule("b")], FakePredictor(step_of))[1]) is is_entered


def test_what_enters_alone_is_no_part_of_a_pair() -> None:
    _, steps = plan_of([rule("a"), rule("b")], together("a", "b", saved_ms=300, a=100, b=2))
    assert [(step.rule, step.with_rule) for step in steps] == [("a", ""), ("b", "")]
    assert [step.gain_ns.likely for step in steps] == [100 * MS, 200 * MS]


def test_two_rules_of_one_setting_are_no_pair() -> None:
    other = rule("other", edits=(Edit("a", False),))
    predictor = together("on", "off", saved_ms=300)
    switch = effect("a", case("config.a is True", change("on")), case("config.a is False", change("off")))
    _, steps = plan_of([rule("a"), other], predictor, None, switch)
    assert steps == ()


THRESHOLD = read("permute_fraction >= 0.1")


def test_a_measured_threshold_keeps_no_edit_out_that_gains_at_every_end() -> None:
    absent = rule("fused", when=THRESHOLD)
    gains = FakePredictor(lambda taken: (700, 750, 799) if taken else 800)
    findings, steps = plan_of([absent], gains, run(permute_fraction=0.01))
    assert names(steps) == ["fused"]
    fused = findings["fused"]
    assert (fused.outcome, fused.gain_ns.likely) == (Outcome.RECOMMENDED, 50 * MS)
    assert [edit.key for edit in fused.edits] == ["fused"]
    assert fused.reason.endswith("takes 1% of the step (threshold 10%): little, but the replay shows the gain")
    findings, _ = plan_of([absent], gains, run(permute_fraction=0.2))
    assert findings["fused"].reason.endswith("takes 20% of the step (threshold 10%)")


def test_an_edit_whose_threshold_is_absent_and_that_may_cost_time_stays_out() -> None:
    may_lose = FakePredictor(lambda taken: (700, 750, 800) if taken else 800)
    findings, steps = plan_of([rule("fused", when=THRESHOLD)], may_lose, run(permute_fraction=0.01))
    assert steps == ()
    assert findings["fused"].outcome is Outcome.NOT_NEEDED
    assert names(plan_of([rule("fused", when=THRESHOLD)], may_lose, run(permute_fraction=0.1))[1]) == ["fused"]


def test_a_threshold_on_something_unknown_is_no_absent_symptom() -> None:
    may_lose = FakePredictor(lambda taken: (700, 750, 810) if taken else 800)
    findings, steps = plan_of([rule("fused", when=THRESHOLD)], may_lose, run())
    assert names(steps) == ["fused"]
    assert (findings["fused"].outcome, findings["fused"].missing) == (Outcome.RECOMMENDED, ())


def test_a_symptom_that_is_no_threshold_keeps_an_edit_out() -> None:
    findings, steps = plan_of(
        [rule("fused", when=read("config.other is not True"))], saving(fused=100), run(config__other=True)
    )
    assert (steps, findings["fused"].outcome) == ((), Outcome.NOT_NEEDED)


def test_the_search_ends_the_same_way_every_time() -> None:
    rules = [rule("a"), rule("b"), rule("c")]
    predictor = together("a", "b", saved_ms=60, a=2, b=2, c=30)
    assert plan_of(rules, predictor) == plan_of(rules, predictor) == plan_of(rules[::-1], predictor)


def test_a_pair_that_the_launcher_refuses_stays_out_and_blocks_neither_of_its_rules() -> None:
    findings, steps = plan_of(
        [rule("a"), rule("b"), rule("c")],
        FakePredictor(lambda taken: 800 - (50 if taken >= {"a", "c"} else 60 if taken >= {"a", "b"} else 0)),
        validate=lambda edits: (PlanNote("pair", "not both"),) if {edit.key for edit in edits} >= {"a", "b"} else (),
    )
    assert [{step.rule, step.with_rule} for step in steps] == [{"a", "c"}]
    assert findings["b"].outcome is Outcome.NOT_NEEDED


def test_where_the_launcher_refuses_the_best_value_a_nearer_one_enters() -> None:
    _, (step,) = plan_of(
        [LARGER],
        step_by_size(size2=700, size4=500, size8=300),
        run_of_one_sample(),
        changes_of_sizes(),
        facts_after=facts_after,
        validate=lambda edits: tuple(PlanNote("size", "too large") for edit in edits if edit.to == 8),
    )
    assert step.edits[0].to == 4


def test_a_rule_whose_values_the_launcher_refuses_all_is_blocked() -> None:
    findings, steps = plan_of(
        [LARGER],
        step_by_size(size2=700, size4=500, size8=300),
        run_of_one_sample(),
        changes_of_sizes(),
        facts_after=facts_after,
        validate=lambda edits: tuple(PlanNote("size", "too large") for _ in edits),
    )
    assert (steps, findings["larger"].outcome) == ((), Outcome.BLOCKED)


def test_a_rule_that_gains_too_little_alone_enters_with_the_one_that_continues_it() -> None:
    rules = [rule("router", lever="graphs"), attention_with_graphs()]
    findings, (step,) = plan_of(rules, saving(800, router=1, attention=50), run(config__router=False))
    assert (step.rule, step.with_rule) == ("attention", "router")
    assert step.gain_ns.likely == 51 * MS
    assert {edit.key for edit in step.edits} == {"attention", "router"}
    assert findings["router"].reason == "Its edits are part of the entry of attention"


def attention_with_graphs() -> Rule:
    return rule("attention", lever="graphs", applies_to=read("config.router == True"), continues="router")


def test_what_fits_after_memory_was_freed_follows_from_the_new_configuration() -> None:
    """The peak is known of the run as it is, and of the run with less memory in use."""
    full = rule(
        "larger",
        edits=(Edit("micro_batch_size", 2),),
        requires=(requirement("fits", *read("memory_peak_larger_micro_batch_ratio <= 0.9")),),
    )
    unneeded = frees_memory("frees", when=read("memory_pressure == 'out_of_memory'"))

    def peak_after(settings: Mapping[str, FactValue]) -> Mapping[str, Fact]:
        peak = 0.8 if settings.get("config.frees") else 1.1
        name = "memory_peak_larger_micro_batch_ratio"
        return {name: Fact(name, peak, "ratio")}

    facts = run(memory_pressure="near_limit", memory_peak_larger_micro_batch_ratio=1.1)
    sizes = effect("micro_batch_size", case("config.micro_batch_size == 2", change("uses")))
    _, steps = plan_of([unneeded, full], saving(800, frees=-40, uses=200), facts, sizes, facts_after=peak_after)
    assert [(step.rule, step.with_rule) for step in steps] == [("larger", "frees")]
    _, steps = plan_of([unneeded, full], saving(800, frees=-40, uses=200), facts, sizes)
    assert steps == ()


def test_a_change_that_many_settings_share_is_made_once() -> None:
    """A setting that takes effect only together with another one adds nothing of its own."""
    fuse = Transformation(change("a").action, Selection(kernels="a"), reason="fused")
    loss = effect(
        "loss", case("config.loss is True", fuse), settings=("config.loss",), together_with=("config.implementation",)
    )
    two = rule("loss", edits=(Edit("loss", True), Edit("implementation", "te")))
    _, (step,) = plan_of([two], saving(800, a=100), None, loss)
    assert step.gain_ns.likely == 100 * MS
    assert step.gain_ns.explanation == "By replaying the step without the profiler. Fused."
