"""The table of tuned recipes: its form, and that it holds knobs of execution only."""

from __future__ import annotations

from pathlib import Path

import pytest

from three_walls.bridge import nearest_recipe
from three_walls.bridge.tuned_recipes import RECIPES_FILE, load_tuned_recipes, tuned_recipes
from three_walls.lib.errors import RuleBaseError
from three_walls.tables.config_keys import config_keys
from three_walls.tables.environment_variables import allowed_variables
from three_walls.tables.hardware import gpu_models

TABLE = """
models:
  small:
    sizes: {hidden_size: 2048, num_layers: 48, num_moe_experts: 128, moe_router_topk: 8, moe_ffn_hidden_size: 768}
    multi_latent_attention: false
    hybrid: false
    sizes_source: a config
    settings: {manual_gc: true, cuda_graph_scope: [attn]}
    environment: {NCCL_NVLS_ENABLE: "0"}
    recipes:
      one:
        gpu: H100
        gpus: 16
        precision: bf16
        variant: ""
        source: "bridge:a.py:1"
        settings: {micro_batch_size: 1, recompute_modules: null}
        environment: {}
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "recipes.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_recipe_has_its_models_settings_and_its_own(tmp_path: Path) -> None:
    (recipe,) = load_tuned_recipes(write(tmp_path, TABLE))
    assert (recipe.name, recipe.model.name, recipe.gpu, recipe.gpus, recipe.variant) == ("one", "small", "H100", 16, "")
    assert recipe.settings == {
        "manual_gc": True,
        "cuda_graph_scope": ("attn",),
        "micro_batch_size": 1,
        "recompute_modules": None,
    }
    assert recipe.environment == {"NCCL_NVLS_ENABLE": "0"}


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("micro_batch_size: 1", "micro_batch_sise: 1", "micro_batch_sise is no key (did you mean micro_batch_size?)"),
        ("micro_batch_size: 1", "micro_batch_size: few", "micro_batch_size: few is not a whole number"),
        ("gpus: 16", "gpus: 0", "expected a number from 1 to 999999, found 0"),
        ("hidden_size: 2048, ", "", "key hidden_size is missing"),
        ("hidden_size: 2048", "hidden_size: 0", "recipes.yaml:4:26: expected a number from 1"),
        ("hybrid: false", "hybrid: 0", "expected true or false"),
    ],
)
def test_an_error_is_named_with_its_place(tmp_path: Path, before: str, after: str, message: str) -> None:
    with pytest.raises(RuleBaseError) as error:
        load_tuned_recipes(write(tmp_path, TABLE.replace(before, after)))
    assert message in str(error.value)


def test_the_shipped_table_is_small_and_its_gpus_and_variables_are_known() -> None:
    families = {model.family for model in gpu_models()}
    assert RECIPES_FILE.stat().st_size < 250_000
    assert len(tuned_recipes()) > 100
    for recipe in tuned_recipes():
        assert recipe.gpu in families
        assert recipe.gpu in nearest_recipe.GENERATIONS
        assert recipe.source.startswith("bridge:")
        assert all(allowed_variables().allows(name) for name in recipe.environment)


def test_no_recipe_holds_a_setting_that_changes_what_is_learned() -> None:
    convergence = {key.name for key in config_keys().keys.values() if "Convergence." in key.note}
    held = {key for recipe in tuned_recipes() for key in recipe.settings}
    assert "moe_aux_loss_coeff" in convergence
    assert held & convergence == {"global_batch_size"}
    assert "global_batch_size" in nearest_recipe.BATCH_SETTINGS


def test_every_gpu_of_the_hardware_table_has_a_generation() -> None:
    assert set(nearest_recipe.GENERATIONS) == {model.family for model in gpu_models()}
