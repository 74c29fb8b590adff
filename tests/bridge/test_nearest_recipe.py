"""The nearest recipe of a toy table, by head: three models, two GPU generations."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.try_each import try_each
from three_walls.advice.finding import Bounds, Finding, Gain, Outcome, PlannedEdit, PlanStep
from three_walls.bridge.nearest_recipe import find_nearest_recipe, model_distance, precision_of
from three_walls.bridge.tuned_recipes import (
    BATCH_SIZE,
    BENCHMARK_SETTING,
    KnownGoodRecipe,
    TunedModel,
    TunedRecipe,
    tuned_recipes,
)
from three_walls.lib.fact import Fact, FactSheet
from three_walls.lib.plain_data import ConfigData
from three_walls.megatron.settings.run_config import ConfigValue, RunConfig
from three_walls.tables.buckets import SubWall, Wall

SHAPE = {
    "hidden_size": 2048,
    "num_layers": 48,
    "num_moe_experts": 128,
    "moe_router_topk": 8,
    "moe_ffn_hidden_size": 768,
}
SMALL = TunedModel("small", SHAPE, multi_latent_attention=False, hybrid=False)
WIDE = TunedModel("wide", {**SHAPE, "hidden_size": 4096, "moe_ffn_hidden_size": 1536}, False, False)
LATENT = TunedModel("latent", SHAPE, multi_latent_attention=True, hybrid=False)


def recipe(name: str, model: TunedModel = SMALL, **changes: object) -> TunedRecipe:
    plain = {"gpu": "H100", "gpus": 16, "precision": "bf16", "variant": "", "source": "bridge:a.py:1"}
    return TunedRecipe(name=name, model=model, **{"settings": {}, "environment": {}, **plain, **changes})  # type: ignore[arg-type]


def config(**values: ConfigData) -> RunConfig:
    stated: dict[str, ConfigData] = {**SHAPE, "bf16": True, "multi_latent_attention": False, **values}
    return RunConfig({key: ConfigValue(value, "config file") for key, value in stated.items()})


def facts(gpu: str | None = "H100", gpus: int = 16, **environment: str) -> FactSheet:
    variables = [Fact(f"env.{name}", value, "config") for name, value in environment.items()]
    missing = None if gpu else "no GPU is named"
    return FactSheet.of(
        [Fact("gpu.family", gpu, "text", missing), Fact("world_size", gpus, "count"), *variables],
        environment_is_known=True,
    )


def find(*table: TunedRecipe, run: RunConfig | None = None, **known: object) -> KnownGoodRecipe | None:
    return find_nearest_recipe(run or config(), facts(**known), recipes=lambda: table)[0]  # type: ignore[arg-type]


def name_of(found: KnownGoodRecipe | None) -> str | None:
    return None if found is None else found.name


def plan_of(*edits: PlannedEdit) -> tuple[PlanStep, ...]:
    gain = Gain(0, 0, 0, "range")
    finding = Finding(
        "a-rule", "", Outcome.RECOMMENDED, Wall.COMPUTE_HOST, SubWall.HOST, "", "", (), (), (), edits, gain
    )
    return (PlanStep(1, finding.rule, finding, edits, gain, Bounds(0, 0)),)


def test_the_same_gpu_comes_before_a_nearer_model() -> None:
    assert name_of(find(recipe("a", WIDE), recipe("b", SMALL, gpu="B200"))) == "a"
    assert name_of(find(recipe("a", WIDE), recipe("b", SMALL, gpu="B200"), gpu="B200")) == "b"


def test_without_the_same_gpu_the_nearest_generation_comes_first_and_the_note_states_it() -> None:
    table = (recipe("a", gpu="B200"), recipe("b", gpu="H100"))
    found = find(*table, gpu="H200")
    assert found is not None
    assert found.name == "b"
    assert "no recipe for H200; H100 is of the same generation" in found.distance_note
    assert "B200 is 1 generation away" in str(find(table[0], gpu="H200"))
    assert "the same GPU, H100" in str(find(table[1]))


def test_within_a_generation_the_same_kind_of_nvlink_domain_comes_first() -> None:
    table = (recipe("a", gpu="B200"), recipe("b", gpu="GB200"))
    assert name_of(find(*table, gpu="GB300")) == "b"
    assert name_of(find(*table, gpu="B300")) == "a"


def test_then_the_model_then_the_gpus_then_the_precision_then_the_plain_one() -> None:
    assert name_of(find(recipe("a", WIDE), recipe("b", gpus=1024))) == "b"
    assert name_of(find(recipe("a", gpus=64), recipe("b", gpus=8, precision="mxfp8"))) == "b"
    assert name_of(find(recipe("a", precision="mxfp8"), recipe("b"))) == "b"
    assert name_of(find(recipe("a", variant="dev"), recipe("b"))) == "b"
    assert name_of(find(recipe("a"), recipe("b"))) == "a"


def test_another_kind_of_attention_is_a_distance_and_an_unknown_kind_is_none() -> None:
    assert model_distance(LATENT, config(), SHAPE) > model_distance(SMALL, config(), SHAPE) == 0
    unknown = RunConfig({key: value for key, value in config().values.items() if key != "multi_latent_attention"})
    assert model_distance(LATENT, unknown, SHAPE) == 0
    assert "multi-latent attention (run no, recipe yes)" in str(find(recipe("a", LATENT)))


def test_few_layers_never_keep_a_recipe_away_but_a_size_beyond_the_factor_does() -> None:
    assert name_of(find(recipe("a"), run=config(num_layers=2))) == "a"
    assert name_of(find(recipe("a"), run=config(num_moe_experts=64))) == "a"  # a factor of 2 exactly
    found, reason = find_nearest_recipe(config(num_moe_experts=8), facts(), recipes=lambda: (recipe("a"),))
    assert found is None
    assert reason == (
        "no recipe is near: the closest model, small, differs by more than a factor of 2 in experts (run 8, recipe 128)"
    )


@pytest.mark.parametrize(
    ("run", "gpu", "reason"),
    [
        (config(hidden_size=None), "H100", "hidden_size missing from the config"),
        (config(moe_ffn_hidden_size=None), "H100", "moe_ffn_hidden_size missing from the config"),
        (config(num_moe_experts=None), "H100", "the model has no experts"),
        (RunConfig(), "H100", "hidden_size, num_layers, num_moe_experts"),
        (config(), None, "the GPU is not known"),
        (config(), "X1", "the generation of X1 is not known"),
    ],
)
def test_a_run_that_is_not_known_has_no_recipe_and_a_reason(run: RunConfig, gpu: str | None, reason: str) -> None:
    def forbidden() -> tuple[TunedRecipe, ...]:
        raise AssertionError("the table is not needed")

    found, explanation = find_nearest_recipe(run, facts(gpu), recipes=forbidden)
    assert found is None
    assert reason in explanation


def test_an_unset_expert_ffn_is_the_dense_one() -> None:
    assert name_of(find(recipe("a"), run=config(moe_ffn_hidden_size=None, ffn_hidden_size=768))) == "a"


@pytest.mark.parametrize(
    ("values", "precision"),
    [
        ({}, "bf16"),
        ({"fp8": "e4m3", "fp8_recipe": "mxfp8"}, "mxfp8"),
        ({"fp8": "hybrid", "fp8_recipe": "blockwise"}, "fp8 blockwise"),
        ({"fp8": "hybrid"}, None),
        ({"fp4": "e2m1"}, "nvfp4"),
        ({"bf16": False}, None),
    ],
)
def test_precisions_have_the_names_that_recipes_have(values: dict[str, ConfigData], precision: str | None) -> None:
    assert precision_of(config(**values)) == precision


def test_differences_put_the_plan_first_then_the_verdicts_wall_and_marked_ones_last() -> None:
    settings: dict[str, ConfigData] = {
        "apply_rope_fusion": True,
        "moe_router_force_load_balancing": True,
        "global_batch_size": 512,
        "overlap_grad_reduce": True,
        "recompute_granularity": None,
        "manual_gc": True,
        "moe_permute_fusion": True,
    }
    tuned = recipe("a", settings=settings, environment={"CUDA_DEVICE_MAX_CONNECTIONS": "32"})
    run = config(
        apply_rope_fusion=False,
        moe_router_force_load_balancing=False,
        global_batch_size=16,
        overlap_grad_reduce=False,
        recompute_granularity="full",
        moe_permute_fusion=True,
    )
    plan = plan_of(PlannedEdit("overlap_grad_reduce", False, True, "config", False))
    found, reason = find_nearest_recipe(
        run, facts(CUDA_DEVICE_MAX_CONNECTIONS="1"), plan, Wall.COMPUTE_HOST, lambda: (tuned,)
    )
    assert found is not None
    assert reason == ""
    assert [difference.key for difference in found.differences] == [
        "overlap_grad_reduce",
        "apply_rope_fusion",
        "recompute_granularity",
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "moe_router_force_load_balancing",
        "global_batch_size",
    ]
    assert [difference.in_plan for difference in found.differences] == [True] + [False] * 5
    assert [difference.mark for difference in found.differences] == [""] * 4 + [BENCHMARK_SETTING, BATCH_SIZE]
    assert (found.same_count, found.unknown_count) == (1, 1)  # moe_permute_fusion; manual_gc


def test_an_unset_setting_equals_what_it_amounts_to() -> None:
    tuned = recipe("a", settings={"moe_router_fusion": None, "cuda_graph_scope": None, "cuda_graph_impl": "none"})
    run = config(moe_router_fusion=False, cuda_graph_scope=(), cuda_graph_impl=None)
    found = find(tuned, run=run)
    assert found is not None
    assert (found.differences, found.same_count) == ((), 3)


def test_a_newer_name_of_a_setting_is_the_setting() -> None:
    tuned = recipe("a", settings={"cuda_graph_scope": ("attn",)})
    same = find(tuned, run=config(cuda_graph_modules=("attn",)))
    other = find(tuned, run=config(cuda_graph_modules=("moe",)))
    assert same is not None
    assert other is not None
    assert (same.differences, len(other.differences)) == ((), 1)


def test_a_variable_is_unset_only_where_the_environment_is_known() -> None:
    tuned = recipe("a", environment={"NCCL_NVLS_ENABLE": "0"})
    known = find(tuned)
    assert known is not None
    assert (len(known.differences), known.unknown_count) == (1, 0)
    unknown, _ = find_nearest_recipe(config(), replace(facts(), environment_is_known=False), recipes=lambda: (tuned,))
    assert unknown is not None
    assert (len(unknown.differences), unknown.unknown_count) == (0, 1)


@pytest.mark.slow
@given(st.permutations(tuned_recipes()), st.sampled_from(["H100", "H200", "B300"]), st.sampled_from([4, 64, 1000]))
def test_the_order_of_the_recipes_does_not_matter(table: list[TunedRecipe], gpu: str, gpus: int) -> None:
    assert find(*table, gpu=gpu, gpus=gpus) == find(*tuned_recipes(), gpu=gpu, gpus=gpus)


@try_each(tuned_recipes(), lambda tuned: tuned.name)
def test_a_run_that_is_the_recipe_has_no_differences(tuned: TunedRecipe) -> None:
    kinds: dict[str, ConfigData] = {"multi_latent_attention": tuned.model.multi_latent_attention}
    run = config(**{**tuned.model.sizes, **kinds, **tuned.settings})
    found, _ = find_nearest_recipe(run, facts(tuned.gpu, tuned.gpus, **tuned.environment), recipes=lambda: (tuned,))
    assert found is not None
    assert found.differences == ()
    assert found.same_count == len(tuned.settings) + len(tuned.environment)


def test_qwen3_30b_and_deepseek_v3_find_themselves() -> None:
    qwen, _ = find_nearest_recipe(config(), facts("H100", 16))
    assert name_of(qwen) == "qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config"
    sizes = {"hidden_size": 7168, "num_layers": 61, "num_moe_experts": 256, "moe_ffn_hidden_size": 2048}
    deepseek, _ = find_nearest_recipe(config(multi_latent_attention=True, **sizes), facts("GB200", 256))
    assert name_of(deepseek) == "deepseek_v3_pretrain_256gpu_gb200_bf16_config"
