"""The script that makes the table: what a recipe comes to after its base, its assignments and its calls."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.paths import REPOSITORY
from three_walls.bridge.tuned_recipes import load_tuned_recipes

TOOLS = REPOSITORY / "tools"
NAME = "small_pretrain_8gpu_h100_bf16_config"
SIZES = dict.fromkeys(("hidden_size", "num_layers", "num_moe_experts", "moe_router_topk", "moe_ffn_hidden_size"), 8)
BASE = {"ddp.overlap_grad_reduce": True, "comm_overlap.tp_comm_overlap": True, "model.recompute_granularity": "full"}
SOURCES: dict[str, Any] = {
    "models": {"small": {"sizes": SIZES, "multi_latent_attention": False, "hybrid": False, "source": "a config"}},
    "gpus": {"h100": "H100"},
    "precision": {"bf16": "bf16"},
    "left_out": ["moe_aux_loss_coeff"],
    "counts_with": {"recompute_modules": {"recompute_granularity": ["selective"]}},
    "common_environment": {"TORCH_NCCL_HIGH_PRIORITY": "1"},
    "helpers": {"_common": {"train.manual_gc_interval": 100, "train.manual_gc": True}},
    "bases": {"small_config": {"source": "here", "values": BASE}},
}


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TOOLS))
    import tuned_recipes

    return tuned_recipes


def recipe(base: str = "small_config()", name: str = NAME, **assigned: Any) -> dict[str, Any]:
    paths = {path.replace("__", "."): value for path, value in assigned.items()}
    return {"name": name, "file": "small.py", "line": 7, "base": base, "set": paths, "env_vars": {}}


def settings_of(tool: ModuleType, tmp_path: Path, *recipes: dict[str, Any]) -> dict[str, Any]:
    lines, _ = tool.write_table(list(recipes), SOURCES)
    file = tmp_path / "recipes.yaml"
    file.write_text("\n".join(lines), encoding="utf-8")
    return {entry.name: dict(entry.settings) for entry in load_tuned_recipes(file)}


def test_assignments_go_over_the_base_and_calls_add_to_them(tool: ModuleType, tmp_path: Path) -> None:
    changed = recipe(model__recompute_granularity="None", _calls=["_common(cfg)"])
    assert settings_of(tool, tmp_path, changed)[NAME] == {
        "overlap_grad_reduce": True,
        "tp_comm_overlap": True,
        "recompute_granularity": None,
        "manual_gc": True,
        "manual_gc_interval": 100,
    }


def test_what_a_call_contradicts_and_what_is_no_literal_is_left_out(tool: ModuleType, tmp_path: Path) -> None:
    changed = recipe(train__manual_gc_interval="5", ddp__overlap_grad_reduce="not debug", _calls=["_common(cfg)"])
    found = settings_of(tool, tmp_path, changed)[NAME]
    assert "manual_gc_interval" not in found
    assert "overlap_grad_reduce" not in found
    assert found["manual_gc"] is True


def test_a_new_overlap_object_forgets_the_bases_one(tool: ModuleType, tmp_path: Path) -> None:
    changed = recipe(comm_overlap="CommOverlapConfig(overlap_moe_expert_parallel_comm=True)")
    found = settings_of(tool, tmp_path, changed)[NAME]
    assert found["overlap_moe_expert_parallel_comm"] is True
    assert found["delay_wgrad_compute"] is False
    assert "tp_comm_overlap" not in found


def test_convergence_and_settings_without_effect_are_left_out(tool: ModuleType, tmp_path: Path) -> None:
    changed = recipe(model__moe_aux_loss_coeff="0.1", model__recompute_modules="['moe_act']")
    assert not {"moe_aux_loss_coeff", "recompute_modules"} & set(settings_of(tool, tmp_path, changed)[NAME])
    changed["set"]["model.recompute_granularity"] = "'selective'"
    assert settings_of(tool, tmp_path, changed)[NAME]["recompute_modules"] == ("moe_act",)


def test_a_recipe_made_of_another_has_its_settings(tool: ModuleType, tmp_path: Path) -> None:
    first = recipe(train__micro_batch_size="2")
    name = "small_pretrain_64gpu_h100_bf16_config"
    found = settings_of(tool, tmp_path, first, recipe(f"_with_global_batch_size({NAME}(), 512)", name))
    assert found[name] == {**found[NAME], "global_batch_size": 512}


def test_unknown_bases_and_models_are_listed_and_unknown_calls_refused(tool: ModuleType) -> None:
    other = recipe(name="large_pretrain_8gpu_h100_bf16_config")
    assert tool.write_table([other, recipe("somewhere()")], SOURCES)[1] == [other["name"], NAME]
    with pytest.raises(KeyError, match="_surprise"):
        tool.write_table([recipe(_calls=["_surprise(cfg)"])], SOURCES)


def test_the_reviewed_sources_name_known_settings(tool: ModuleType) -> None:
    sources = yaml.safe_load((TOOLS / "recipe-sources.yaml").read_text(encoding="utf-8"))
    for values in (*sources["helpers"].values(), *(base["values"] for base in sources["bases"].values())):
        assert set(values) <= set(tool.keys_by_path()) | {"model.cuda_graph_modules"}
        tool.to_keys(values, sources)
