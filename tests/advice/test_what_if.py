"""What asked changes mean for the step: settings by the rules, factors, dropped kernels, another network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from tests.advice.builders import MS, entry_of, requirement, rule, sheet_of, with_replay
from three_walls.advice.answer_what_if import ReplayedRun, answer
from three_walls.advice.answer_what_if import find_changes as find_changes_by
from three_walls.advice.finding import FREES_MEMORY
from three_walls.advice.format.replay_entries import ReplayEntry
from three_walls.advice.format.rule import Edit, Rule
from three_walls.advice.what_if import Changes, Question
from three_walls.facts.fact_rows import Prediction
from three_walls.lib.errors import UsageError
from three_walls.lib.expressions import Condition
from three_walls.lib.fact import FactSheet
from three_walls.lib.plain_data import ConfigData
from three_walls.replay.transformation import Action, Levels, NoPredictor, Selection, Transformation


def find_changes(question: Question, rules: Sequence[Rule], facts: FactSheet) -> Changes:
    return find_changes_by(question, rules, facts, FakePredictor())


FUSE_ROPE = Transformation(Action.FUSE, Selection(work=("rope",)))
HIDE = Transformation(Action.HIDE, Selection(categories=("communication",)))


def sets(identifier: str, key: str, to: ConfigData, *replays: Transformation | ReplayEntry, lever: str = "") -> Rule:
    """A rule that sets ``key`` and changes the step by ``replays``."""
    made = rule(identifier, lever=lever, edits=(Edit(key, to),))
    return with_replay(made, *replays)


def facts_of(**values: ConfigData) -> FactSheet:
    return sheet_of({name.replace("__", "."): value for name, value in values.items()})


@dataclass
class FakePredictor:
    """Every transformation saves 10 ms of a step of 100 ms."""

    missing_reason: str = ""
    asked: list[tuple[Transformation, ...]] = field(default_factory=list)

    @property
    def step_ns(self) -> Prediction:
        return Prediction(95 * MS, 100 * MS, 105 * MS)

    def predict(self, transformations: Sequence[Transformation]) -> Prediction:
        self.asked.append(tuple(transformations))
        likely = 100 * MS - 10 * MS * len(transformations)
        return Prediction(likely - MS, likely, likely + MS)

    def explain(self, transformation: Transformation) -> str:
        return "no kernel is named so" if transformation.select.kernels == "nothing" else ""

    def budget_after(self, transformations: Sequence[Transformation]) -> Mapping[str, int]:
        return {"gemm": 60 * MS, "launch_starved": 40 * MS - 10 * MS * len(transformations)}

    def limits_after(self, transformations: Sequence[Transformation]) -> Mapping[str, int]:
        return {"compute": 100 * MS - 10 * MS * len(transformations)}


ROPE = sets("fused-rope", "apply_rope_fusion", True, FUSE_ROPE)


def test_a_setting_stands_for_the_transformations_of_the_rule_that_proposes_it() -> None:
    found = find_changes(Question({"config.apply_rope_fusion": True}), [ROPE], facts_of())
    assert found.transformations == (FUSE_ROPE,)
    assert not found.unknown
    assert not found.notes


def test_a_setting_that_the_run_has_changes_nothing() -> None:
    facts = facts_of(config__apply_rope_fusion=True)
    found = find_changes(Question({"config.apply_rope_fusion": True}), [ROPE], facts)
    assert found.transformations == ()
    assert found.notes == ("apply_rope_fusion=true is set already: it changes nothing.",)


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("config.apply_rope_fusion", False, "--set apply_rope_fusion=false: no rule knows what this value changes"),
        ("config.apply_rope_fusio", True, "did you mean apply_rope_fusion"),
        ("config.seq_length", 1024, "no rule knows what this setting changes"),
    ],
)
def test_a_setting_that_no_rule_proposes_is_refused_in_one_line(setting: str, value: ConfigData, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        find_changes(Question({setting: value}), [ROPE], facts_of())
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_edit_without_a_replay_is_not_predicted_and_says_so() -> None:
    virtual = sets("virtual-pipeline", "virtual_pipeline_model_parallel_size", 2)
    found = find_changes(Question({"config.virtual_pipeline_model_parallel_size": 2}), [virtual], facts_of())
    assert found.transformations == ()
    assert found.unknown == (
        "virtual_pipeline_model_parallel_size=2: not predicted by rule virtual-pipeline: "
        "no transformation of the step is known for these edits",
    )


def test_of_two_rules_with_the_same_lever_the_one_whose_symptom_is_there_counts() -> None:
    for_this = replace(
        sets("b", "moe_token_dispatcher_type", "flex", HIDE, lever="dispatcher"),
        when=(Condition("ep_exposed_ns", ">", 0),),
    )
    for_others = replace(
        sets("a", "moe_token_dispatcher_type", "flex", FUSE_ROPE, lever="dispatcher"),
        when=(Condition("ep_exposed_ns", ">", 10),),
    )
    found = find_changes(
        Question({"config.moe_token_dispatcher_type": "flex"}), [for_others, for_this], facts_of(ep_exposed_ns=5)
    )
    assert found.transformations == (HIDE,)


def test_a_rule_for_another_run_does_not_count_where_one_fits() -> None:
    elsewhere = replace(sets("a", "fp8", "hybrid", FUSE_ROPE), applies_to=(Condition("step_ns", ">=", 10),))
    here = sets("b", "fp8", "hybrid", HIDE)
    found = find_changes(Question({"config.fp8": "hybrid"}), [elsewhere, here], facts_of(step_ns=1))
    assert found.transformations == (HIDE,)


def test_a_rule_that_contradicts_another_asked_setting_does_not_count_where_one_fits() -> None:
    def scoped(identifier: str, scope: ConfigData, change: Transformation) -> Rule:
        made = rule(identifier, lever="graphs", edits=(Edit("cuda_graph_impl", "te"), Edit("cuda_graph_scope", scope)))
        return with_replay(made, change)

    rules = [scoped("a", ("moe",), HIDE), scoped("b", ("attn",), FUSE_ROPE)]
    asked: dict[str, ConfigData] = {"config.cuda_graph_impl": "te"}
    assert find_changes(Question(asked), rules, facts_of()).transformations == (HIDE,)
    asked["config.cuda_graph_scope"] = ("attn",)
    assert find_changes(Question(asked), rules, facts_of()).transformations == (FUSE_ROPE,)


def test_two_settings_are_answered_by_the_rule_that_proposes_both() -> None:
    def backend(name: str, family: str, change: Transformation, *more: Edit) -> Rule:
        made = rule(name, lever="dispatcher", edits=(Edit("moe_flex_dispatcher_backend", name), *more))
        made = replace(made, applies_to=(Condition("gpu.family", "==", family),))
        return with_replay(made, change)

    flex = Edit("moe_token_dispatcher_type", "flex")
    unwait = Transformation(Action.UNWAIT)
    rules = [backend("deepep", "H200", HIDE, flex), backend("hybridep", "GB200", FUSE_ROPE, flex)]
    rules.append(replace(backend("hybridep", "H200", unwait), id="a-switch-of-backends"))
    facts = facts_of(gpu__family="H200")
    asked: dict[str, ConfigData] = {"config.moe_flex_dispatcher_backend": "hybridep"}
    assert find_changes(Question(asked), rules, facts).transformations == (unwait,)
    asked["config.moe_token_dispatcher_type"] = "flex"
    assert find_changes(Question(asked), rules, facts).transformations == (FUSE_ROPE,)
    asked["config.moe_flex_dispatcher_backend"] = "deepep"
    assert find_changes(Question(asked), rules, facts).transformations == (HIDE,)


def test_an_edit_that_the_rule_would_not_propose_here_is_answered_with_a_note() -> None:
    elsewhere = replace(ROPE, applies_to=(Condition("config.fp16", "==", True),))
    found = find_changes(Question({"config.apply_rope_fusion": True}), [elsewhere], facts_of(config__fp16=False))
    assert found.transformations == (FUSE_ROPE,)
    assert found.notes[0].startswith("apply_rope_fusion=true is not meant for this run: ")
    blocked = replace(ROPE, requires={"fp16": requirement("fp16", Condition("config.fp16", "==", True))})
    (note,) = find_changes(Question({"config.apply_rope_fusion": True}), [blocked], facts_of(config__fp16=False)).notes
    assert note.startswith("apply_rope_fusion=true is blocked: ")


def test_the_other_edits_of_a_rule_are_named_unless_they_are_made() -> None:
    overlap = rule(
        "ep-overlap",
        edits=(Edit("overlap_moe_expert_parallel_comm", True), Edit("delay_wgrad_compute", True)),
    )
    overlap = with_replay(overlap, HIDE)
    question = Question({"config.overlap_moe_expert_parallel_comm": True})
    found = find_changes(question, [overlap], facts_of())
    assert found.notes == (
        "overlap_moe_expert_parallel_comm=true is taken together with delay_wgrad_compute=true, "
        "as rule ep-overlap proposes.",
    )
    assert not find_changes(question, [overlap], facts_of(config__delay_wgrad_compute=True)).notes


def test_two_settings_of_one_rule_change_the_step_once() -> None:
    two = rule("two", edits=(Edit("a_key", True), Edit("b_key", True)))
    two = with_replay(two, HIDE)
    found = find_changes(Question({"config.a_key": True, "config.b_key": True}), [two], facts_of())
    assert found.transformations == (HIDE,)


def test_host_is_scaled_whole_and_other_names_select_operations() -> None:
    changes = find_changes(Question(scales=(("host", 0.5), ("gemms", 0.8), ("norm", 2.0))), [], facts_of())
    host, gemms, norm = changes.transformations
    assert (host.action, host.host.likely, host.select) == (Action.HOST, 0.5, Selection())
    assert gemms.select.categories == ("gemm", "grouped_gemm")
    assert gemms.time == Levels(0.8, 0.8, 0.8)
    assert norm.select.categories == ("norm",)


def test_nccl_is_communication_by_nccl_kernels_alone() -> None:
    (nccl,) = find_changes(Question(scales=(("nccl", 0.5),)), [], facts_of()).transformations
    assert "ep_all_to_all" in nccl.select.categories
    assert nccl.select.kernels


def test_a_misspelt_scale_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UsageError, match=r"--scale gem: .*did you mean gem"):
        find_changes(Question(scales=(("gem", 0.5),)), [], facts_of())


def test_dropped_kernels_go_with_their_launches() -> None:
    (dropped,) = find_changes(Question(dropped_kernels=("softmax",)), [], facts_of()).transformations
    assert (dropped.select.kernels, dropped.time.likely, dropped.host.likely) == ("softmax", 0.0, 0.0)


def test_another_network_scales_transfers_by_measured_over_asked_bandwidth() -> None:
    facts = facts_of(
        ep_achieved_bytes_per_s=20e9, ep_fastest_bytes_per_s=30e9, ep_within_nvlink_domain=False, dp_spans_nodes=False
    )
    (exchange,) = find_changes(Question(network_bytes_per_s=100e9), [], facts).transformations
    assert exchange.select.categories == ("ep_all_to_all", "ep_dispatch_combine")
    assert exchange.time == Levels(0.3, 0.25, 0.2)  # low: the smallest gain


def test_exchanges_over_nvlink_do_not_change_with_the_network() -> None:
    facts = facts_of(
        ep_achieved_bytes_per_s=200e9,
        ep_fastest_bytes_per_s=300e9,
        ep_within_nvlink_domain=True,
        dp_spans_nodes=False,
        nvlink_achieved_fraction=0.7,
    )
    found = find_changes(Question(network_bytes_per_s=100e9), [], facts)
    assert not found.transformations
    assert "no communication of this run is known to use the network" in found.unknown[0]


def test_exchanges_that_should_run_over_nvlink_and_do_not_change_with_the_network() -> None:
    facts = facts_of(
        ep_achieved_bytes_per_s=4e9,
        ep_fastest_bytes_per_s=4e9,
        ep_within_nvlink_domain=True,
        dp_spans_nodes=False,
        nvlink_achieved_fraction=0.01,
    )
    assert find_changes(Question(network_bytes_per_s=40e9), [], facts).transformations[0].time.likely == 0.1


def run(predictor: FakePredictor | NoPredictor, *rules: Rule, **values: ConfigData) -> ReplayedRun:
    return ReplayedRun(rules, facts_of(**values), predictor)


def test_the_answer_holds_the_step_the_budget_and_the_limit_after_all_changes() -> None:
    predictor = FakePredictor()
    found = answer(Question({"config.apply_rope_fusion": True}, scales=(("host", 0.5),)), run(predictor, ROPE))
    assert found.step is not None
    assert found.after == Prediction(79 * MS, 80 * MS, 81 * MS)
    assert [change.action for change in predictor.asked[0]] == [Action.FUSE, Action.HOST]
    assert found.budget_after == {"gemm": 60 * MS, "launch_starved": 20 * MS}
    assert found.budget == {"gemm": 60 * MS, "launch_starved": 40 * MS}
    assert found.limits_after == {"compute": 80 * MS}
    assert found.because_unknown == ""


def test_what_changes_nothing_is_noted() -> None:
    found = answer(Question(dropped_kernels=("nothing",)), run(FakePredictor()))
    assert found.notes == ("no kernel is named so",)


def test_a_withheld_prediction_gives_the_reason_and_the_step_that_the_log_knows() -> None:
    withheld = NoPredictor("the capture has no API rows")
    question = Question(scales=(("host", 0.5),))
    assert answer(question, run(withheld)).because_unknown == "the capture has no API rows"
    assert answer(question, run(withheld)).step is None
    logged = answer(question, run(withheld, unprofiled_step_ns=90 * MS))
    assert logged.step == Prediction(90 * MS, 90 * MS, 90 * MS)
    assert logged.after is None


def test_one_edit_without_a_replay_makes_the_whole_answer_unknown() -> None:
    plain = sets("plain", "fp8", "hybrid")
    found = answer(Question({"config.fp8": "hybrid"}, scales=(("host", 0.5),)), run(FakePredictor(), plain))
    assert found.after is None
    assert found.because_unknown.startswith("fp8=hybrid")
    assert found.step is not None


def test_the_budget_sums_to_the_likely_step_where_a_log_decides_its_length() -> None:
    class Logged(FakePredictor):
        @property
        def step_ns(self) -> Prediction:
            return Prediction(107 * MS + 1, 107 * MS + 1, 107 * MS + 1)

        def predict(self, transformations: Sequence[Transformation]) -> Prediction:
            assert transformations
            return Prediction(95 * MS + 3, 95 * MS + 3, 95 * MS + 3)

    found = answer(Question(scales=(("host", 0.5),)), run(Logged()))
    assert sum(found.budget.values()) == 107 * MS + 1
    assert sum(found.budget_after.values()) == 95 * MS + 3


def test_the_rule_for_the_value_that_is_set_now_answers_before_those_for_other_runs() -> None:
    # From nothing, selective recompute adds work; from full recompute it takes work away.
    adds = replace(sets("adds", "recompute", "selective", HIDE), when=(Condition("config.recompute", "!=", "full"),))
    relaxes = replace(
        sets("relaxes", "recompute", "selective", FUSE_ROPE),
        when=(Condition("config.recompute", "==", "full"),),
        edits=(Edit("recompute", "selective", only_if=(Condition("memory", ">", 1),)), Edit("recompute", None)),
    )
    question = Question(settings={"config.recompute": "selective"})
    from_full, from_none = facts_of(config__recompute="full", memory=0), facts_of(config__recompute=None, memory=0)
    assert find_changes(question, [adds, relaxes], from_full).transformations == (FUSE_ROPE,)
    assert find_changes(question, [adds, relaxes], from_none).transformations == (HIDE,)


@pytest.mark.parametrize(("asked", "expected"), [("selective", FUSE_ROPE), (None, HIDE)])
def test_who_asks_for_one_of_several_values_takes_it_to_be_the_one_for_the_run(
    asked: ConfigData, expected: Transformation
) -> None:
    """Whether the run fits without recompute is not known; the transformations are those of the value asked for."""
    tight, ample = Condition("memory", ">", 0.8), Condition("memory", "<=", 0.8)
    relaxes = replace(
        sets("relaxes", "recompute", "selective", entry_of(FUSE_ROPE, tight), entry_of(HIDE, ample)),
        edits=(Edit("recompute", "selective", only_if=(tight,)), Edit("recompute", None, only_if=(ample,))),
    )
    question = Question(settings={"config.recompute": asked})
    assert find_changes(question, [relaxes], facts_of(config__recompute="full")).transformations == (expected,)


HALF, FIFTH = Levels(0.5, 0.5, 0.5), Levels(0.2, 0.2, 0.2)
FUSED_LOSS = replace(FUSE_ROPE, select=Selection(work=("loss",)))


def fuses_loss() -> Rule:
    """Compiled, or with another package, by a setting that does nothing else."""
    fuse = sets(
        "fused-loss",
        "loss_fusion",
        True,
        entry_of(replace(FUSED_LOSS, time=HALF), Condition("config.loss_impl", "!=", "te")),
        entry_of(replace(FUSED_LOSS, time=FIFTH), Condition("config.loss_impl", "==", "te")),
    )
    return replace(fuse, gain=replace(fuse.gain, chosen_by=("config.loss_impl",)))


@pytest.mark.parametrize(("more", "expected"), [({}, HALF), ({"config.loss_impl": "te"}, FIFTH)])
def test_a_setting_that_chooses_how_an_edit_works_is_taken_with_it(
    more: Mapping[str, ConfigData], expected: Levels
) -> None:
    run = facts_of(config__loss_fusion=False, config__loss_impl="native")
    for asked in ({"config.loss_fusion": True, **more}, {**more, "config.loss_fusion": True}):
        found = find_changes(Question(asked), [fuses_loss()], run)
        assert found == Changes((replace(FUSED_LOSS, time=expected),))


def test_what_a_setting_that_chooses_how_an_edit_works_does_alone_is_not_known() -> None:
    choice: dict[str, ConfigData] = {"config.loss_impl": "te"}
    unfused = facts_of(config__loss_fusion=False, config__loss_impl="native")
    fused = facts_of(config__loss_fusion=True, config__loss_impl="native")
    other = sets("fused-rope", "apply_rope_fusion", True, FUSE_ROPE)
    for asked, run in (
        (choice, unfused),
        ({**choice, "config.apply_rope_fusion": True}, unfused),
        ({**choice, "config.loss_fusion": True}, fused),
    ):
        with pytest.raises(UsageError) as refused:
            find_changes(Question(asked), [fuses_loss(), other], run)
        assert str(refused.value) == (
            "--set loss_impl=te: no rule knows what it changes by itself, only together with loss_fusion=true "
            "where that is not set yet"
        )


def test_a_choice_that_the_run_has_made_changes_nothing() -> None:
    run = facts_of(config__loss_fusion=False, config__loss_impl="te")
    found = find_changes(Question({"config.loss_fusion": True, "config.loss_impl": "te"}), [fuses_loss()], run)
    assert found.transformations == (replace(FUSED_LOSS, time=FIFTH),)
    assert found.notes == ("loss_impl=te is set already: it changes nothing.",)


def recomputes(module: str) -> Rule:
    """Frees memory in a run without full recompute."""
    made = replace(
        sets(module, "recompute_modules", (module,), Transformation(Action.REPEAT, Selection(work=(module,)))),
        lever="recompute",
        when=(Condition("config.recompute_granularity", "!=", "full"),),
        edits=(
            Edit("recompute_granularity", "selective"),
            Edit("recompute_modules", add=(module,)),
        ),
    )
    return replace(made, gain=replace(made.gain, basis=FREES_MEMORY, terms=(), cost_fraction=0.1))


def relaxes(*modules: str) -> Rule:
    """From full recompute to ``modules``, or to none."""
    to: ConfigData = "selective" if modules else None
    edits = [Edit("recompute_granularity", to)]
    if modules:
        edits.append(Edit("recompute_modules", modules))
    return replace(
        sets("relaxes", "recompute_granularity", to, RECOMPUTES_LESS),
        lever="recompute",
        when=(Condition("config.recompute_granularity", "==", "full"),),
        edits=tuple(edits),
    )


RECOMPUTES_LESS = Transformation(Action.SCALE, Selection(directions=("recompute",)))
TO_MODULE: dict[str, ConfigData] = {
    "config.recompute_granularity": "selective",
    "config.recompute_modules": ("core_attn",),
    "config.recompute_method": None,
}
IN_FULL = facts_of(config__recompute_granularity="full", config__recompute_method="uniform")


def test_modules_in_place_of_full_recompute_are_no_recompute_and_what_each_of_them_costs() -> None:
    rules = [recomputes("core_attn"), recomputes("moe_act"), relaxes()]
    core_attention, experts = (one.gain.replay[0].fill(IN_FULL) for one in rules[:2])
    assert find_changes(Question(TO_MODULE), rules, IN_FULL) == Changes((RECOMPUTES_LESS, core_attention))
    both = {**TO_MODULE, "config.recompute_modules": ("core_attn", "moe_act")}
    assert find_changes(Question(both), rules, IN_FULL).transformations == (RECOMPUTES_LESS, core_attention, experts)


def test_modules_that_a_rule_proposes_for_this_run_are_answered_by_it() -> None:
    asked = {name: TO_MODULE[name] for name in ("config.recompute_granularity", "config.recompute_modules")}
    found = find_changes(Question(asked), [recomputes("core_attn"), relaxes("core_attn")], IN_FULL)
    assert found.transformations == (RECOMPUTES_LESS,)


def test_modules_of_a_run_without_full_recompute_only_add_what_they_cost() -> None:
    rules = [recomputes("core_attn"), relaxes()]
    run = facts_of(config__recompute_granularity=None, config__recompute_method=None)
    assert find_changes(Question(TO_MODULE), rules, run).transformations == (rules[0].gain.replay[0].fill(run),)


def test_any_number_of_recomputed_layers_may_be_asked_for() -> None:
    full = sets("full", "recompute_granularity", "full", Transformation(Action.REPEAT, Selection(modules=("experts",))))
    run = facts_of(
        config__recompute_granularity="full",
        config__recompute_method="block",
        config__recompute_num_layers=1,
        config__num_layers=4,
    )
    for asked in ({"config.recompute_method": "uniform"}, {"config.recompute_num_layers": 4}):
        (more,) = find_changes(Question(asked), [full], run).transformations
        assert more.time == Levels(0.75, 0.75, 0.75)
