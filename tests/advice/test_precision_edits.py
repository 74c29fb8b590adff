"""What a change of precision does to steps that differ in what they are bound by: it gains, and it costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.advice.builders import sheet_of
from tests.replay.built_steps import Step
from tests.replay.test_transform import labelled, step_us
from tests.trace_builder import ADAM, GEMM
from three_walls.advice.compare_settings import SettingsDifference, compare_settings
from three_walls.advice.format.load_rules import load_rule_base
from three_walls.advice.plan.replays import Transformations
from three_walls.facts.sheet import DEFINITIONS
from three_walls.lib.plain_data import ConfigData
from three_walls.replay.step_graph import StepGraph
from three_walls.replay.transformation import ALL, Level

EFFECTS = load_rule_base(DEFINITIONS).effects
LARGE: dict[str, ConfigData] = {
    "linear_inputs_read_fraction": 0.02,
    "expert_gemm_efficiency_fraction": 0.7,
    "gemm_efficiency_fraction": 0.7,
    "inner_layers_fraction": 0.5,
    "weight_casts_ratio": 5.0,
    "inner_weight_casts_ratio": 2.5,
    "config.pipeline_model_parallel_size": 1,
    "config.mixed_precision": "bf16_mixed",
    "config.bf16": True,
    "config.fp8": None,
    "config.fp4": None,
}


def compare(recipe: str, **facts: ConfigData) -> SettingsDifference:
    settings = {"config.fp8": "hybrid", "config.fp8_recipe": recipe}
    return compare_settings(EFFECTS, sheet_of({**LARGE, **facts}), settings)


def changes(recipe: str, **facts: ConfigData) -> Transformations:
    found = compare(recipe, **facts)
    assert not found.unknown
    return found.transformations


def step_of(tmp_path: Path, gemm_us: int, apart_us: int, update_us: int = 10) -> StepGraph:
    """An expert GEMM in each of four layers, launched ``apart_us`` apart, and the optimizer's update."""
    step, at = Step(), 110
    for place in range(4):
        step.run(at, at + gemm_us, launched=105 + apart_us * place, name=GEMM)
        at = max(at + gemm_us + 1, 110 + apart_us * (place + 1))
    step.run(at, at + update_us, launched=105 + apart_us * 4, name=ADAM)
    graph = step.graph_between(tmp_path, 110, 9000)
    return labelled(graph, part=[*["expert_gemm"] * 4, "optimizer"], layer=[0, 1, 2, 3, None])


CURRENT, DELAYED = "tensorwise", "delayed"


def test_padding_by_the_router_that_comes_with_fp8_adds_nothing_to_it_and_alone_is_unknown() -> None:
    padding = {"config.moe_router_padding_for_quantization": True}
    before = sheet_of({**LARGE, "config.moe_router_padding_for_quantization": False})
    fp8 = {"config.fp8": "hybrid", "config.fp8_recipe": DELAYED}
    both = compare_settings(EFFECTS, before, fp8 | padding)
    assert both.transformations == compare_settings(EFFECTS, before, fp8).transformations
    assert both.unknown == ()
    running = sheet_of({**LARGE, "config.fp8": "hybrid", "config.moe_router_padding_for_quantization": False})
    assert compare_settings(EFFECTS, running, padding, lambda _: "no such kernels").unknown


def test_settings_of_experts_change_nothing_in_a_dense_model() -> None:
    settings: dict[str, ConfigData] = {
        f"config.moe_{name}": True for name in ("permute_fusion", "router_fusion", "grouped_gemm")
    }
    of_model = {
        name: sheet_of({**LARGE, "config.num_moe_experts": count}) for name, count in (("dense", None), ("moe", 8))
    }
    found = {
        name: compare_settings(EFFECTS, sheet, settings, lambda _: "no such kernels")
        for name, sheet in of_model.items()
    }
    assert (found["dense"].transformations, found["dense"].unknown) == ((), ())
    assert len(found["moe"].unknown) == 3


def test_weights_that_stay_in_bf16_are_cast_in_the_forward_pass_and_gathered_in_twice_the_bytes() -> None:
    shared = {"config.fp8": "hybrid", "data_parallel_size": 2, "weight_recasts_ratio": 0.03}
    kept = {**LARGE, **shared, "config.fp8_param_gather": True}
    in_bf16: dict[str, ConfigData] = {"config.fp8_param_gather": False}
    casts, gathers = compare_settings(
        EFFECTS, sheet_of({**kept, "config.fp8_recipe": CURRENT}), in_bf16
    ).transformations
    assert (casts.select.categories, casts.select.modules) == (("quantize",), ("outside",))
    assert (casts.time.likely, gathers.time.likely) == (0.03, 1.2)
    assert compare_settings(EFFECTS, sheet_of({**kept, "config.fp8_recipe": "blockwise"}), in_bf16).unknown
    alone = sheet_of({**kept, "config.fp8_recipe": CURRENT, "data_parallel_size": 1})
    assert compare_settings(EFFECTS, alone, in_bf16).transformations == (casts,)


def test_weights_that_are_kept_in_fp8_are_cast_after_the_update() -> None:
    kept: dict[str, ConfigData] = {"config.fp8_param_gather": True}
    before = {**LARGE, "config.fp8": "hybrid", "config.fp8_param_gather": False, "data_parallel_size": 2}
    gathers, casts = compare_settings(EFFECTS, sheet_of({**before, "config.fp8_recipe": CURRENT}), kept).transformations
    assert (gathers.time.likely, casts.select.work, casts.added_time.likely) == (0.83, ("optimizer",), 5.0)
    by_blocks = compare_settings(EFFECTS, sheet_of({**before, "config.fp8_recipe": "blockwise"}), kept)
    assert [change.select.categories for change in by_blocks.transformations] == [("data_parallel",)]


@pytest.mark.parametrize("recipe", [CURRENT, DELAYED])
def test_large_gemms_win_more_than_their_casts_cost(tmp_path: Path, recipe: str) -> None:
    graph = step_of(tmp_path, gemm_us=1000, apart_us=5)
    assert step_us(graph, *changes(recipe)) < step_us(graph) - 300
    assert step_us(graph, *changes(recipe), level=Level.HIGH) < step_us(graph, *changes(recipe))


@pytest.mark.parametrize("recipe", [CURRENT, DELAYED])
def test_small_gemms_lose_to_the_launches_of_their_casts(tmp_path: Path, recipe: str) -> None:
    graph = step_of(tmp_path, gemm_us=5, apart_us=10)
    small = changes(recipe, expert_gemm_efficiency_fraction=0.1)
    assert step_us(graph, *small) > step_us(graph)


def test_current_scaling_needs_more_launches_than_delayed_scaling(tmp_path: Path) -> None:
    graph = step_of(tmp_path, gemm_us=5, apart_us=10, update_us=0)
    added = {recipe: changes(recipe)[0].added_kernels.likely for recipe in (CURRENT, DELAYED)}
    assert added[CURRENT] == 3 * added[DELAYED]
    assert graph.calls.height == 5


def test_the_host_casts_for_experts_together_and_for_each_linear_layer(tmp_path: Path) -> None:
    graph = step_of(tmp_path, gemm_us=5, apart_us=2000)
    linear = labelled(graph, part=[*["projection"] * 4, "optimizer"])
    experts = labelled(graph, micro_batch=[*[0] * 4, None], direction=[*["forward"] * 4, None])
    blocks = changes("blockwise")
    assert step_us(linear, *blocks) == pytest.approx(step_us(linear) + 4 * 125, abs=15)
    assert step_us(experts, *blocks) == pytest.approx(step_us(experts) + 4 * (400 + 24), abs=15)


@pytest.mark.parametrize("recipe", ["blockwise", CURRENT, DELAYED])
def test_nothing_is_asked_of_experts_that_a_dense_model_has_not(recipe: str) -> None:
    of_experts = {
        count: [
            each
            for each in changes(recipe, **{"config.num_moe_experts": count})
            if each.select.work[:1] == ("expert_gemm",)
        ]
        for count in (None, 8)
    }
    assert all("projection" in each.select.work for each in of_experts[None])
    assert len(of_experts[8]) > len(of_experts[None])


def test_casting_the_parameters_can_cost_more_than_all_gemms_win(tmp_path: Path) -> None:
    graph = step_of(tmp_path, gemm_us=100, apart_us=5, update_us=200)
    assert step_us(graph, *changes(CURRENT)) > step_us(graph)
    as_flags = changes(CURRENT, **{"config.mixed_precision": None})  # no recipe keeps the parameters in FP8
    assert step_us(graph, *as_flags) < step_us(graph)


def test_current_scaling_leaves_the_first_and_the_last_layer_in_bf16(tmp_path: Path) -> None:
    graph = step_of(tmp_path, gemm_us=1000, apart_us=5)
    all_layers = changes(CURRENT, **{"config.pipeline_model_parallel_size": 2})
    inner, every = (
        step_us(graph) - step_us(graph, *(part for part in found if part.select.work != ("optimizer",)))
        for found in (changes(CURRENT), all_layers)
    )
    assert every == pytest.approx(2 * inner, rel=0.01)


def test_blockwise_scaling_multiplies_the_outer_layers_in_fp8_too_which_only_current_scaling_leaves(
    tmp_path: Path,
) -> None:
    """Outer layers take 0.65 of BF16, inner ones 0.65 in place of 0.54: of four layers of 1,000 us, 300 us less."""
    graph = step_of(tmp_path, gemm_us=1000, apart_us=5)
    before = {"config.fp8": "hybrid", "layers_per_inner_layer_ratio": 2.0}
    from_current, from_delayed = (
        changes("blockwise", **before, **{"config.fp8_recipe": recipe}) for recipe in (CURRENT, DELAYED)
    )
    assert step_us(graph, *from_current) == pytest.approx(
        step_us(graph) - 2 * 350 + 2 * 1000 * (0.65 * 1.85 - 1), abs=5
    )
    assert step_us(graph, *from_delayed) > step_us(graph)
    casts = [change for change in from_current if change.select.categories == ("quantize",)]
    assert [change.time.likely for change in casts if change.time != ALL] == [
        0.0,
        2.0,
    ]  # of two layers that were cast, four are
    assert [change.host.likely for change in casts if change.time == ALL] == [0.65]  # experts are cast together


def test_unknown_sizes_leave_the_edit_without_a_prediction() -> None:
    facts = {name: value for name, value in LARGE.items() if name != "linear_inputs_read_fraction"}
    settings = {"config.fp8": "hybrid", "config.fp8_recipe": CURRENT}
    found = compare_settings(EFFECTS, sheet_of(facts), settings)
    assert found.transformations == ()
    assert found.unknown[0].endswith(f"not known: {sheet_of(LARGE).get('linear_inputs_read_fraction').label}")
