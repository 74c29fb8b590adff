"""What new settings change in a step: by the two configurations alone, whatever the order and the repetition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.advice.builders import case, effect, entry_of, read, sheet_of
from tests.advice.fake_predictor import change, choose, name_of, turns_on
from three_walls.advice.compare_settings import SettingsDifference, compare_settings
from three_walls.advice.edits import is_set
from three_walls.advice.format.effect import Effect
from three_walls.advice.format.load_rules import load_rule_base
from three_walls.advice.format.replay_entries import FactNumber, ReplayEntry, SelectionEntry
from three_walls.facts.sheet import DEFINITIONS
from three_walls.lib.fact import FactSheet
from three_walls.lib.plain_data import ConfigData
from three_walls.replay.transformation import Action, Transformation
from three_walls.tables.prediction_intervals import Levels

SHIPPED = load_rule_base(DEFINITIONS).effects


def configured(**values: ConfigData) -> FactSheet:
    """A run with these settings; other facts with two underscores for a dot."""
    return sheet_of(
        {name.replace("__", ".") if "__" in name else f"config.{name}": each for name, each in values.items()}
    )


def compare(effects: Sequence[Effect], facts: FactSheet, **settings: ConfigData) -> SettingsDifference:
    """What ``settings`` change: config keys, and variables in capitals."""
    named = {f"env.{name}" if name.isupper() else f"config.{name}": value for name, value in settings.items()}
    return compare_settings(effects, facts, named)


def made(found: SettingsDifference) -> list[str]:
    """The names of the changes, in order, of a difference that is known."""
    assert not found.unknown
    return [name_of(transformation) for transformation in found.transformations]


ROPE, ROUTER = turns_on("rope"), turns_on("router")


def test_a_setting_changes_what_its_effect_states() -> None:
    assert compare([ROPE], configured(rope=False), rope=True) == SettingsDifference(
        (change("rope"),), effects=("rope",)
    )


def test_effects_apply_in_their_order_and_not_in_that_of_the_settings() -> None:
    facts = configured(rope=False, router=False)
    assert made(compare([ROPE, ROUTER], facts, rope=True, router=True)) == ["rope", "router"]
    assert made(compare([ROPE, ROUTER], facts, router=True, rope=True)) == ["rope", "router"]


def test_shipped_effects_are_in_the_order_of_their_phases() -> None:
    phases = list(dict.fromkeys(each.phase for each in SHIPPED))
    assert phases == ["work", "recompute", "overlap", "launches", "passes"]


def test_a_value_that_the_run_has_changes_nothing() -> None:
    assert compare([ROPE], configured(rope=True), rope=True) == SettingsDifference()


@pytest.mark.parametrize(
    ("now", "value", "same"),
    [
        (None, False, True),
        (False, None, True),
        (None, "none", True),
        ("none", False, True),
        (None, True, False),
        (True, 1, False),
        (2, 2.0, True),
        (None, 0, False),
        ((), None, True),
        (None, (), True),
        (("a", "b"), ("b", "a"), True),
        (("a",), "a", True),
        (("a", "b"), ("a",), False),
        (("a",), None, False),
        ("a", "b", False),
    ],
)
def test_off_is_unset_and_lists_are_sets(now: ConfigData, value: ConfigData, same: bool) -> None:
    assert is_set("config.x", value, configured(x=now)) is same


def test_a_setting_that_is_not_known_is_not_set() -> None:
    assert not is_set("config.x", None, configured())
    assert not is_set("config.x", False, configured())


def test_a_variable_is_text() -> None:
    facts = configured(env__CUDA_DEVICE_MAX_CONNECTIONS="32")
    assert is_set("env.CUDA_DEVICE_MAX_CONNECTIONS", 32, facts)
    assert not is_set("env.CUDA_DEVICE_MAX_CONNECTIONS", 1, facts)


def test_what_no_effect_is_about_is_unknown() -> None:
    found = compare([ROPE], configured(rope=False), hidden_size=8192, rope=True)
    assert found.unknown == ("what hidden_size=8192 changes is not known, because no measurement shows it",)
    assert found.transformations == (change("rope"),)


def test_turning_off_what_the_capture_does_not_show_is_unknown() -> None:
    fused = effect("rope", *ROPE.cases, otherwise="the capture does not show the kernels that the fusion replaced")
    (reason,) = compare([fused], configured(rope=True), rope=False).unknown
    assert reason.endswith("because the capture does not show the kernels that the fusion replaced")


def test_a_case_may_state_that_nobody_can_tell() -> None:
    doubtful = effect("rope", case("config.rope is True", unknown="nobody ran it"))
    assert compare([doubtful], configured(rope=False), rope=True).unknown == (
        "what rope=true changes is not known, because nobody ran it",
    )


def test_a_case_may_state_that_nothing_changes() -> None:
    idle = effect("rope", case("config.rope is True", nothing="the device waits anyway"))
    found = compare([idle], configured(rope=False), rope=True)
    assert found == SettingsDifference(notes=("rope=true changes nothing: the device waits anyway.",))


def test_the_first_case_that_may_hold_counts_if_it_changes_something_and_only_a_certain_one_if_not() -> None:
    """Whether the run spans nodes is not known."""
    across = case("", change("across"), from_="ep_spans_nodes is True")
    nothing = case(nothing="nothing crosses", from_="ep_spans_nodes is True")
    inside = case("", change("inside"))
    assert made(compare([effect("x", across, inside)], configured(), x=True)) == ["across"]
    assert made(compare([effect("x", nothing, inside)], configured(), x=True)) == ["inside"]
    known = sheet_of({"ep_spans_nodes": False})
    assert made(compare([effect("x", across, inside)], known, x=True)) == ["inside"]


def test_conditions_on_the_run_are_not_those_on_the_new_settings() -> None:
    back = effect(
        "kind",
        case("config.kind == 'flex'", change("there"), from_="config.kind != 'flex'"),
        case("config.kind != 'flex'", change("back"), from_="config.kind == 'flex'"),
    )
    assert made(compare([back], configured(kind="alltoall"), kind="flex")) == ["there"]
    assert made(compare([back], configured(kind="flex"), kind="alltoall")) == ["back"]


def test_a_companion_changes_nothing_of_its_own() -> None:
    overlap = effect("overlap", case("config.overlap is True", change("hide")), together_with=("env.QUEUES",))
    facts = configured(overlap=False, env__QUEUES="1")
    assert made(compare([overlap], facts, overlap=True, QUEUES="32")) == ["hide"]
    assert made(compare([overlap], facts, overlap=True)) == ["hide"]
    (reason,) = compare([overlap], facts, QUEUES="32").unknown
    assert reason == "what QUEUES=32 changes is not known, because it is known only together with overlap"


def test_a_companion_that_another_effect_is_about_counts_beside_what_needs_it() -> None:
    """Alone nobody knows what the queues do; beside the overlap they are part of what was measured."""
    overlap = effect("overlap", case("config.overlap is True", change("hide")), together_with=("env.QUEUES",))
    queues = effect("queues", case(unknown="nobody measured the queues"), settings=("env.QUEUES",))
    facts = configured(overlap=False, env__QUEUES="1")
    assert made(compare([overlap, queues], facts, overlap=True, QUEUES="32")) == ["hide"]
    assert compare([overlap, queues], facts, QUEUES="32").unknown == (
        "what QUEUES=32 changes is not known, because nobody measured the queues",
    )


def test_a_companion_of_a_setting_that_stays_is_unknown() -> None:
    overlap = effect("overlap", case("config.overlap is True", change("hide")), together_with=("env.QUEUES",))
    facts = configured(overlap=True, env__QUEUES="1")
    assert compare([overlap], facts, overlap=True, QUEUES="32").unknown


def test_a_companion_of_what_changes_nothing_is_unknown() -> None:
    cases = (case("config.overlap is True", nothing="there is nothing to hide"),)
    overlap = effect("overlap", *cases, together_with=("env.QUEUES",))
    found = compare([overlap], configured(overlap=False, env__QUEUES="1"), overlap=True, QUEUES="32")
    assert found.unknown == ("what QUEUES=32 changes is not known, because it is known only together with overlap",)


def scopes(*elements: str) -> list[Effect]:
    """An effect for each element of a list of graph scopes, which take effect with an implementation alone."""
    on = "config.graphs is True and '{0}' in config.scope"
    off = "config.graphs is not True or '{0}' not in config.scope"
    return [
        effect(
            element,
            case(on.format(element), change(element), from_=off.format(element)),
            case("config.graphs is not True", nothing="no graphs", from_="config.graphs is not True"),
            settings=("config.scope", "config.graphs"),
            elements=(element,),
        )
        for element in elements
    ]


GRAPHS = scopes("attn", "moe")


def test_of_a_list_every_new_element_counts_by_itself() -> None:
    facts = configured(scope=("attn",), graphs=True)
    assert made(compare(GRAPHS, facts, scope=("attn", "moe"))) == ["moe"]
    assert made(compare(GRAPHS, facts, scope=("moe", "attn"))) == ["moe"]
    assert made(compare(GRAPHS, configured(scope=None, graphs=True), scope=("moe", "attn"))) == ["attn", "moe"]


def test_an_element_that_leaves_a_list_is_a_change_too() -> None:
    (reason,) = compare(GRAPHS, configured(scope=("attn", "moe"), graphs=True), scope=("attn",)).unknown
    assert reason == "what scope=[attn] changes is not known, because nobody measured it"


def test_an_element_that_no_effect_is_about_is_unknown() -> None:
    (reason,) = compare(GRAPHS, configured(scope=("attn",), graphs=True), scope=("attn", "moe", "mlp")).unknown
    assert (
        reason
        == "what scope=[attn,moe,mlp] changes is not known, because no measurement shows what mlp changes in a step"
    )


def test_elements_that_stay_count_where_another_setting_turns_them_on() -> None:
    facts = configured(scope=("attn",), graphs=False)
    assert made(compare(GRAPHS, facts, graphs=True)) == ["attn"]
    assert made(compare(GRAPHS, facts, graphs=True, scope=("attn", "moe"))) == ["attn", "moe"]


def test_what_takes_no_effect_is_noted_only_where_the_setting_changes_nothing_at_all() -> None:
    found = compare(GRAPHS, configured(scope=None, graphs=False), scope=("attn",))
    assert found.notes == ("scope=[attn] changes nothing: no graphs.",)
    one_counts = [*GRAPHS, effect("scope", case("'attn' in config.scope", change("other")))]
    assert compare(one_counts, configured(scope=None, graphs=False), scope=("attn",)).notes == ()


def test_facts_give_the_numbers_of_the_run_as_it_is() -> None:
    entry = ReplayEntry(scale=SelectionEntry(), time=FactNumber("gemm_efficiency_fraction"), reason="")
    scaled = effect("x", case("config.x is True", entry))
    facts = sheet_of({"config.x": False, "gemm_efficiency_fraction": 0.4})
    (found,) = compare([scaled], facts, x=True).transformations
    assert found.time == Levels(0.4, 0.4, 0.4)
    (reason,) = compare([scaled], configured(x=False), x=True).unknown
    assert (
        reason
        == "what x=true changes is not known, because it depends on what is not known: the efficiency of the GEMMs"
    )


def test_changes_that_select_nothing_are_unknown_with_the_reason() -> None:
    found = compare_settings([ROPE], configured(rope=False), {"config.rope": True}, lambda _: "no such kernels")
    assert (found.transformations, found.unknown) == (
        (),
        ("what rope=true changes is not known, because no such kernels",),
    )
    two = turns_on("rope", "a", "b")
    one_left = compare_settings(
        [two], configured(rope=False), {"config.rope": True}, lambda each: "gone" if name_of(each) == "a" else ""
    )
    assert made(one_left) == ["a", "b"]


def test_entries_whose_conditions_all_fail_are_unknown() -> None:
    entry = entry_of(change("a"), *read("gpu.family == 'H100'"))
    found = compare([effect("x", case("", entry))], sheet_of({"gpu.family": "B200"}), x=True)
    assert found.unknown == (
        "what x=true changes is not known, because none of its transformations applies to this run",
    )


def test_a_case_that_cannot_be_told_does_not_hide_what_another_effect_knows() -> None:
    found = compare([ROPE, effect("router", case(unknown="why"))], configured(), rope=True, router=True)
    assert (found.transformations, found.unknown) == (
        (change("rope"),),
        ("what router=true changes is not known, because why",),
    )


def shipped(facts: FactSheet, **settings: ConfigData) -> SettingsDifference:
    return compare(SHIPPED, facts, **settings)


def micro_batches_of(facts: FactSheet, size: ConfigData) -> Transformation:
    (found,) = shipped(facts, micro_batch_size=size).transformations
    assert found.action is Action.MICRO_BATCH
    return found


TWO_SAMPLES = sheet_of({"config.micro_batch_size": 2, "num_microbatches": 8})


@pytest.mark.parametrize(("size", "factor"), [(1, 0.5), (4, 2), (8, 4), (16, 8)])
def test_a_micro_batch_has_any_size_that_splits_the_samples(size: int, factor: float) -> None:
    assert micro_batches_of(TWO_SAMPLES, size).factor == factor


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        (3, "the samples of a step cannot be split into micro-batches of this size"),  # 16 by 3
        (32, "the samples of a step cannot be split into micro-batches of this size"),
        (0, "a micro-batch has at least one sample"),
        (-1, "a micro-batch has at least one sample"),
    ],
)
def test_a_size_that_does_not_split_the_samples_is_unknown(size: int, reason: str) -> None:
    assert shipped(TWO_SAMPLES, micro_batch_size=size).unknown == (
        f"what micro_batch_size={size} changes is not known, because {reason}",
    )


@pytest.mark.parametrize("size", ["many", True, (4,)])
def test_a_size_that_is_no_number_is_unknown(size: ConfigData) -> None:
    found = shipped(TWO_SAMPLES, micro_batch_size=size)
    assert found.transformations == ()
    assert found.unknown[0].endswith("because how the new micro-batch size compares with the run's is not known")


def test_the_size_that_the_run_has_changes_nothing() -> None:
    assert shipped(TWO_SAMPLES, micro_batch_size=2) == SettingsDifference()


def test_how_the_sizes_compare_has_to_be_known() -> None:
    found = shipped(sheet_of({"num_microbatches": 8}), micro_batch_size=4)
    assert (found.transformations, len(found.unknown)) == ((), 1)


RECOMPUTES: dict[str, ConfigData] = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}


def actions(found: SettingsDifference) -> list[tuple[Action, tuple[str, ...]]]:
    """What is done to which work, of a difference that is known."""
    assert not found.unknown, found.unknown
    return [
        (each.action, each.select.directions or each.select.work or each.select.categories or each.select.modules)
        for each in found.transformations
    ]


LESS = [(Action.SCALE, ("recompute",)), (Action.UNWAIT, ("recompute",))]
ALL_MODULES = ("attention", "router", "dispatch", "experts", "combine")


def test_without_full_recompute_nothing_is_computed_again() -> None:
    run = configured(**RECOMPUTES, num_layers=4, recompute_modules=None)
    for off in (None, "none", False):
        assert actions(shipped(run, recompute_granularity=off)) == LESS
    off_with_its_method: dict[str, ConfigData] = dict.fromkeys(RECOMPUTES)
    assert actions(shipped(run, **off_with_its_method)) == LESS


def test_modules_in_place_of_full_recompute_are_no_recompute_and_what_each_of_them_costs() -> None:
    run = configured(**RECOMPUTES, num_layers=4, recompute_modules=None)
    to: dict[str, ConfigData] = {"recompute_granularity": "selective", "recompute_method": None}
    core = (Action.REPEAT, ("attention_core",))
    assert actions(shipped(run, **to, recompute_modules=("core_attn",))) == [core, *LESS]
    assert actions(shipped(run, **to)) == [core, *LESS]  # what Megatron recomputes where no list is given
    both = actions(shipped(run, **to, recompute_modules=("layernorm", "core_attn")))
    assert both == [core, (Action.REPEAT, ("norm",)), *LESS]


def test_modules_of_a_run_without_recompute_only_add_what_they_cost() -> None:
    run = configured(
        recompute_granularity=None, recompute_method=None, recompute_num_layers=None, recompute_modules=None
    )
    one = actions(shipped(run, recompute_granularity="selective", recompute_modules=("moe_act",)))
    two = actions(shipped(run, recompute_granularity="selective", recompute_modules=("layernorm", "moe_act")))
    assert one == [(Action.REPEAT, ("expert",))]
    assert two == [*one, (Action.REPEAT, ("norm",))]


def test_a_run_that_recomputes_selectively_without_a_list_recomputes_core_attention() -> None:
    run = configured(recompute_granularity="selective", recompute_modules=None)
    for same in (("core_attn",), None):
        assert shipped(run, recompute_modules=same) == SettingsDifference(), same
    assert actions(shipped(run, recompute_granularity=None)) == [(Action.SCALE, ("recompute",))]
    assert actions(shipped(run, recompute_modules=("core_attn", "moe_act"))) == [(Action.REPEAT, ("expert",))]


def test_modules_without_selective_recompute_change_nothing() -> None:
    run = configured(recompute_granularity=None, recompute_modules=None)
    found = shipped(run, recompute_modules=("moe_act", "layernorm"))
    assert (found.transformations, found.unknown) == ((), ())
    assert found.notes[0].startswith("recompute_modules=[moe_act,layernorm] changes nothing: ")


@pytest.mark.parametrize("is_latent", [True, False])
def test_up_projections_are_recomputed_where_attention_is_latent(is_latent: bool) -> None:
    run = configured(recompute_granularity=None, recompute_modules=None, multi_latent_attention=is_latent)
    found = shipped(run, recompute_granularity="selective", recompute_modules=("mla_up_proj",))
    assert bool(found.transformations) is is_latent
    assert is_latent or any("no multi-latent attention" in note for note in found.notes)


def block(layers: ConfigData, of: int = 4) -> dict[str, ConfigData]:
    return {**RECOMPUTES, "recompute_method": "block", "recompute_num_layers": layers, "num_layers": of}


@pytest.mark.parametrize(
    ("now", "settings", "action", "share"),
    [
        (block(1), {"recompute_method": "uniform"}, Action.REPEAT, 0.75),
        (block(1), {"recompute_num_layers": 4}, Action.REPEAT, 0.75),
        (block(1), {"recompute_num_layers": 3}, Action.REPEAT, 0.5),
        (block(4), {"recompute_num_layers": 1}, Action.SCALE, 0.25),
        (block(4), {"recompute_num_layers": 2}, Action.SCALE, 0.5),
        (
            {**RECOMPUTES, "num_layers": 4},
            {"recompute_method": "block", "recompute_num_layers": 3},
            Action.SCALE,
            0.75,
        ),
        (
            {"recompute_granularity": None, "num_layers": 4},
            {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 2},
            Action.REPEAT,
            0.5,
        ),
    ],
)
def test_any_number_of_layers_may_be_recomputed(
    now: Mapping[str, ConfigData], settings: Mapping[str, ConfigData], action: Action, share: float
) -> None:
    found = shipped(configured(**now), **settings)
    assert not found.unknown
    assert found.transformations[0].action is action
    assert found.transformations[0].time.likely == pytest.approx(share)


def test_as_many_layers_as_before_change_nothing() -> None:
    found = shipped(configured(**block(4)), recompute_method="uniform", recompute_num_layers=1)
    assert (found.transformations, found.unknown, len(found.notes)) == ((), (), 1)
    more_than_there_are = shipped(configured(**block(4)), recompute_num_layers=8)
    assert (more_than_there_are.transformations, more_than_there_are.unknown) == ((), ())


def test_the_layers_are_those_of_a_model_chunk() -> None:
    """Eight layers on two stages of two chunks each are two layers a chunk."""
    stages: dict[str, ConfigData] = {
        "pipeline_model_parallel_size": 2,
        "virtual_pipeline_model_parallel_size": 2,
    }
    (more, *_) = shipped(configured(**block(1, of=8), **stages), recompute_num_layers=2).transformations
    assert more.time.likely == 0.5


@pytest.mark.parametrize(
    "now",
    [
        {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 1},
        {**block(1, of=4), "num_layers_in_first_pipeline_stage": 1},
        block(1, of=5) | {"pipeline_model_parallel_size": 2},
        block(0),
    ],
)
def test_an_unknown_number_of_layers_is_said(now: Mapping[str, ConfigData]) -> None:
    found = shipped(configured(**now), recompute_num_layers=2)
    assert found.transformations == ()
    assert found.unknown == (
        "what recompute_num_layers=2 changes is not known, because it depends on what is not known: "
        "share of the layers recomputed in full in addition",
    )


GRAPH_ACTIONS = {
    "attn": (Action.GRAPH, ("attention",)),
    "moe": (Action.GRAPH, ("router", "dispatch", "experts", "combine")),
    "moe_router": (Action.GRAPH, ("router", "router_topk")),
    "moe_preprocess": (Action.GRAPH, ("preprocess",)),
}


@pytest.mark.parametrize(
    "scope", [("attn",), ("moe",), ("moe_router",), ("attn", "moe_router"), ("attn", "moe_preprocess")]
)
def test_graphs_have_any_set_of_scopes(scope: tuple[str, ...]) -> None:
    run = configured(cuda_graph_impl="none", cuda_graph_scope=())
    for order in (scope, scope[::-1]):
        found = shipped(run, cuda_graph_impl="transformer_engine", cuda_graph_scope=order)
        assert actions(found) == [GRAPH_ACTIONS[element] for element in sorted(scope)]


def test_router_and_preprocessing_in_graphs_are_one_module() -> None:
    run = configured(cuda_graph_impl="none", cuda_graph_scope=())
    found = shipped(run, cuda_graph_impl="local", cuda_graph_scope=("attn", "moe_router", "moe_preprocess"))
    assert actions(found) == [GRAPH_ACTIONS["attn"], (Action.GRAPH, ("router",))]


def test_a_further_scope_is_the_only_change_and_the_newer_name_of_scopes_means_the_same() -> None:
    run = configured(cuda_graph_impl="local", cuda_graph_scope=("moe_router", "moe_preprocess"))
    scope = ("attn", "moe_router", "moe_preprocess")
    assert actions(shipped(run, cuda_graph_scope=scope)) == [GRAPH_ACTIONS["attn"]]
    assert shipped(run, cuda_graph_modules=scope) == shipped(run, cuda_graph_scope=scope)


def test_of_two_names_of_a_setting_with_two_values_the_same_one_counts_in_any_order() -> None:
    run = configured(cuda_graph_impl="local", cuda_graph_scope=())
    scope: dict[str, ConfigData] = {"cuda_graph_scope": ("attn",)}
    modules: dict[str, ConfigData] = {"cuda_graph_modules": ("moe",)}
    assert shipped(run, **scope, **modules) == shipped(run, **modules, **scope) == shipped(run, **scope)


GRAPHED = {"cuda_graph_impl": "transformer_engine", "hybrid_override_pattern": None}


@pytest.mark.parametrize("off", [{"cuda_graph_impl": "none"}, {"cuda_graph_scope": ()}])
def test_graphs_that_the_run_has_are_taken_apart(off: dict[str, ConfigData]) -> None:
    run = configured(cuda_graph_scope=("attn", "moe_router", "moe_preprocess"), **GRAPHED)
    apart = shipped(run, **off)
    assert apart.unknown == ()
    assert {change.action for change in apart.transformations} == {Action.UNGRAPH}
    assert [change.select.modules for change in apart.transformations] == [("attention",), ("router", "dispatch")]


def test_a_narrower_scope_takes_apart_what_it_leaves_out() -> None:
    run = configured(cuda_graph_scope=("attn", "moe_router", "moe_preprocess"), **GRAPHED)
    (apart,) = shipped(run, cuda_graph_scope=("moe_router", "moe_preprocess")).transformations
    assert (apart.action, apart.select.modules) == (Action.UNGRAPH, ("attention",))


def test_what_moves_from_one_graph_to_another_is_not_known() -> None:
    run = configured(cuda_graph_scope=("moe_router", "moe_preprocess"), **GRAPHED)
    assert shipped(run, cuda_graph_scope=("moe",)).unknown


def test_layers_of_mamba_have_graphs_of_their_own() -> None:
    run = configured(cuda_graph_impl="none", cuda_graph_scope=None, hybrid_override_pattern="MEM*E")
    graphs = shipped(run, cuda_graph_impl="transformer_engine", cuda_graph_scope=("attn", "mamba"))
    kinds = [change.select.layers_with for change in graphs.transformations]
    assert kinds == [("attention", "attention_unfused"), ("linear_attention",)]


def test_a_model_without_layers_of_mamba_gains_no_graphs_of_them() -> None:
    run = configured(cuda_graph_impl="none", cuda_graph_scope=None, hybrid_override_pattern=None)
    graphs = shipped(run, cuda_graph_impl="transformer_engine", cuda_graph_scope=("mamba",))
    assert graphs.transformations == ()
    assert any("only hybrid models have layers of Mamba" in note for note in graphs.notes)


def test_a_hybrid_model_with_another_linear_attention_does_not_tell_which_layers_are_captured() -> None:
    run = configured(cuda_graph_impl="none", cuda_graph_scope=None, hybrid_override_pattern="MG*E")
    assert shipped(run, cuda_graph_impl="transformer_engine", cuda_graph_scope=("mamba",)).unknown


def test_ep_overlap_that_is_on_is_taken_away_with_its_companions() -> None:
    run = configured(overlap_moe_expert_parallel_comm=True, delay_wgrad_compute=True)
    alone = shipped(run, overlap_moe_expert_parallel_comm=False, delay_wgrad_compute=False)
    assert alone.unknown == ()
    assert Action.EXPOSE in {change.action for change in alone.transformations}
    assert shipped(run, delay_wgrad_compute=False).unknown


def test_a_precision_recipe_stands_for_the_formats_that_it_sets() -> None:
    run = configured(fp8=None, fp4=None, bf16=True, fp16=False, mixed_precision="bf16_mixed")
    by_recipe = shipped(run, mixed_precision="bf16_with_fp8_subchannel_scaling_mixed")
    by_formats = shipped(run, fp8="e4m3", fp8_recipe="blockwise")
    assert by_recipe.transformations == by_formats.transformations != ()
    assert by_recipe.unknown == by_formats.unknown == ()
    with_hyphens = shipped(run, mixed_precision="bf16-with-fp8-subchannel-scaling-mixed")
    assert with_hyphens.transformations == by_formats.transformations


@pytest.mark.parametrize(("experts", "likely"), [(64, 4.5), (16, 3.0), (4, 1.3)])
def test_experts_one_by_one_cost_the_host_more_the_more_there_are(experts: int, likely: float) -> None:
    run = configured(moe_grouped_gemm=True, transformer_impl="transformer_engine")
    apart = shipped(run.with_values({"experts_per_rank_count": experts}), moe_grouped_gemm=False)
    assert (apart.unknown, apart.transformations[0].host.likely) == ((), likely)


def test_experts_of_the_local_implementation_were_not_measured_one_by_one() -> None:
    run = configured(moe_grouped_gemm=True, transformer_impl="local").with_values({"experts_per_rank_count": 64})
    assert shipped(run, moe_grouped_gemm=False).unknown


RECIPES = ("tensorwise", "delayed", "blockwise")


@pytest.mark.parametrize("now", RECIPES)
def test_one_recipe_of_fp8_is_predicted_from_another_and_off(now: str) -> None:
    run = configured(fp8="hybrid", fp8_recipe=now, fp4=None, mixed_precision="x", pipeline_model_parallel_size=1)
    casts = {"weight_casts_ratio": 5.0, "inner_weight_casts_ratio": 2.5}
    run = run.with_values({"inner_layers_fraction": 0.5, "layers_per_inner_layer_ratio": 2.0, **casts})
    for recipe in RECIPES:
        found = shipped(run, fp8_recipe=recipe)
        assert (found.unknown, bool(found.transformations)) == ((), recipe != now)
    assert shipped(run, fp8=None).transformations


@pytest.mark.parametrize("recipe", RECIPES)
def test_another_format_of_fp8_with_the_same_recipe_changes_nothing(recipe: str) -> None:
    found = shipped(configured(fp8="hybrid", fp8_recipe=recipe, fp4=None), fp8="e4m3")
    assert (found.transformations, found.unknown, len(found.notes)) == ((), (), 1)


@pytest.mark.parametrize(("now", "then"), [("tensorwise", "mxfp8"), ("mxfp8", "blockwise")])
def test_mxfp8_beside_another_recipe_was_not_measured(now: str, then: str) -> None:
    (reason,) = shipped(configured(fp8="e4m3", fp8_recipe=now, fp4=None), fp8_recipe=then).unknown
    assert reason.endswith("a capture of a step with each, on one Blackwell GPU, would show it")


@pytest.mark.parametrize(
    ("recipe", "gpus"),
    [
        ("tensorwise", {"sm_89", "sm_90", "sm_100", "sm_120"}),
        ("delayed", {"sm_89", "sm_90", "sm_100", "sm_120"}),
        ("blockwise", {"sm_90", "sm_100", "sm_120"}),
        ("mxfp8", {"sm_100"}),
        ("nvfp4", set()),
    ],
)
def test_a_recipe_is_predicted_on_the_gpus_that_run_it(recipe: str, gpus: set[str]) -> None:
    settings = {"fp4": "e2m1"} if recipe == "nvfp4" else {"fp8": "e4m3", "fp8_recipe": recipe}
    run = configured(fp8=None, fp4=None, bf16=True, mixed_precision="x", pipeline_model_parallel_size=1)
    run = run.with_values({"linear_inputs_read_fraction": 0.1, "gemm_efficiency_fraction": 0.5})
    run = run.with_values({"inner_layers_fraction": 0.5, "weight_casts_ratio": 5.0, "inner_weight_casts_ratio": 2.5})
    known = set()
    for gpu in ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120"):
        found = shipped(run.with_values({"gpu.sm": gpu}), **settings)
        known |= {gpu} if found.transformations and not found.unknown else set()
    assert known == gpus


@pytest.mark.parametrize(
    ("embedding", "latent", "fuses"), [("rope", False, True), ("yarn", False, False), ("yarn", True, True)]
)
def test_the_fused_rotary_embedding_does_not_run_where_yarn_scales(embedding: str, latent: bool, fuses: bool) -> None:
    run = configured(apply_rope_fusion=False, position_embedding_type=embedding, multi_latent_attention=latent)
    found = shipped(run, apply_rope_fusion=True)
    assert (bool(found.transformations), bool(found.notes)) == (fuses, not fuses)


def test_a_format_that_is_given_beside_a_recipe_counts() -> None:
    run = configured(fp8=None, fp4=None, bf16=True, mixed_precision="bf16_mixed")
    beside = shipped(run, mixed_precision="bf16_with_fp8_subchannel_scaling_mixed", fp8_recipe="delayed")
    assert beside.transformations == shipped(run, fp8="e4m3", fp8_recipe="delayed").transformations


def test_a_recipe_that_nobody_knows_is_unknown() -> None:
    run = configured(fp8=None, fp4=None, bf16=True, mixed_precision="bf16_mixed")
    assert shipped(run, mixed_precision="my_own").unknown


def test_what_is_left_of_the_loss_depends_on_its_implementation_and_that_alone_changes_nothing() -> None:
    off = configured(cross_entropy_loss_fusion=False, cross_entropy_fusion_impl="native")
    on = configured(cross_entropy_loss_fusion=True, cross_entropy_fusion_impl="native")
    by_te = shipped(off, cross_entropy_loss_fusion=True, cross_entropy_fusion_impl="te")
    native = shipped(off, cross_entropy_loss_fusion=True)
    assert (by_te.transformations[0].time.likely, native.transformations[0].time.likely) == (0.19, 0.38)
    assert shipped(off, cross_entropy_fusion_impl="te").notes
    assert shipped(on, cross_entropy_fusion_impl="te").unknown


def test_sizes_of_parallelism_are_not_predicted() -> None:
    found = shipped(configured(expert_model_parallel_size=8), expert_model_parallel_size=4)
    assert found.unknown[0].startswith(
        "what expert_model_parallel_size=4 changes is not known, because sizes of parallelism change every GEMM"
    )


SETTINGS = {
    "rope": (True, False, None),
    "router": (True, False, None),
    "kind": ("a", "b", None),
    "scope": (None, (), ("attn",), ("moe", "attn"), ("attn", "moe"), ("mlp",)),
    "graphs": (True, False),
    "nonsense": (1, 2),
}
ANY = [ROPE, ROUTER, choose("kind", a="kind a", b="kind b"), *GRAPHS]
assignments = st.lists(
    st.sampled_from([(name, value) for name, values in SETTINGS.items() for value in values]), max_size=8
)


@given(assignments, assignments, st.randoms(use_true_random=False))
def test_neither_order_nor_repetition_nor_what_is_set_already_changes_the_difference(
    now: list[tuple[str, ConfigData]], new: list[tuple[str, ConfigData]], random: Random
) -> None:
    run, wanted = configured(**dict(now)), dict(new)
    expected = compare(ANY, run, **wanted)
    shuffled = [*wanted.items(), *wanted.items()]
    random.shuffle(shuffled)
    assert compare(ANY, run, **dict(shuffled)) == expected
    no_ops = {name: value for name, value in dict(now).items() if name not in wanted}
    assert compare(ANY, run, **no_ops, **wanted) == expected
    effective = {name: value for name, value in wanted.items() if not is_set(f"config.{name}", value, run)}
    assert compare(ANY, run, **effective) == expected
