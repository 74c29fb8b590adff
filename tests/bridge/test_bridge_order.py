"""Overrides are read as Hydra reads them, and judged after what Bridge copies over them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.bridge.cases import RELEASE, recipe_config
from three_walls.bridge.check_overrides import check_overrides
from three_walls.bridge.merged_config import PRESET_ARGUMENTS, MergedConfig, config_of_paths
from three_walls.bridge.resolve_config import resolve
from three_walls.tables.bridge_releases import bridge_schema


@pytest.mark.parametrize("value", ["foo", "[1,2]", "[foo]", "{a:1}"])
@pytest.mark.parametrize("size", ["tensor", "pipeline", "context", "expert"])
def test_a_size_of_a_wrong_kind_is_refused_without_a_crash(size: str, value: str) -> None:
    check = check_overrides(
        [f"model.{size}_model_parallel_size={value}".replace("context_model", "context")], recipe_config(), RELEASE
    )
    assert check.is_accepted is False


def test_a_setting_that_mixed_precision_resets_is_not_judged_before_the_reset() -> None:
    assert check_overrides(["model.fp8_param=true"], recipe_config(), RELEASE).is_accepted
    assert (
        check_overrides(["mixed_precision=null", "model.fp8_param=true"], recipe_config(), RELEASE).is_accepted is False
    )


def with_section(**fields: Any) -> MergedConfig:
    """The recipe with a comm_overlap section that overlaps tensor parallelism with a userbuffers preset."""
    names = bridge_schema(RELEASE).sections["comm_overlap"].fields
    given = {"tp_comm_overlap": True, "tp_comm_overlap_cfg": "TransformerLayerTPOverlapCfg(...)", **fields}
    paths: dict[str, Any] = {**dict(recipe_config().paths), "comm_overlap": "CommOverlapConfig"}
    paths |= {f"comm_overlap.{name}": given.get(name) for name in names}
    return replace(config_of_paths(paths), platform=recipe_config().platform)


def accepts(*overrides: str) -> bool | None:
    return check_overrides(overrides, with_section(), RELEASE).is_accepted


OVERLAP = "megatron.bridge.training.comm_overlap.CommOverlapConfig"


def test_a_preset_is_kept_by_fields_and_lost_where_the_section_is_built_anew() -> None:
    assert accepts("comm_overlap.bucket_size=40000000")
    assert accepts("++comm_overlap.tp_comm_overlap_cfg={}")
    assert accepts(f"++comm_overlap._target_={OVERLAP}") is False
    assert accepts(f"++comm_overlap._target_={OVERLAP}", "comm_overlap.tp_comm_overlap=false")


PRESET = "megatron.bridge.training.comm_overlap.TransformerLayerTPOverlapCfg"


def test_a_preset_without_its_arguments_cannot_be_made_and_takes_the_section_with_it() -> None:
    preset = f"++comm_overlap.tp_comm_overlap_cfg={{_target_:{PRESET}}}"
    section = f"++comm_overlap={{_target_:{OVERLAP},tp_comm_overlap:false}}"
    assert check_overrides([section], recipe_config(), RELEASE).is_accepted
    assert check_overrides([section, preset], recipe_config(), RELEASE).is_accepted is False
    arguments = ",".join(f"{name}:null" for name in sorted(PRESET_ARGUMENTS))
    whole = preset.replace("}", f",{arguments}}}")
    assert check_overrides([section, whole], recipe_config(), RELEASE).is_accepted


def test_a_preset_stays_where_the_section_is_unset_and_gets_fields_again() -> None:
    assert accepts("comm_overlap=null", "++comm_overlap.tp_comm_overlap_cfg={}")
    assert accepts("comm_overlap=null", f"++comm_overlap.tp_comm_overlap_cfg={{_target_:{PRESET}}}")
    assert accepts("comm_overlap=null", "++comm_overlap.tp_comm_overlap_cfg=foo") is False


def test_a_removal_discards_the_overrides_before_it_and_hides_the_section_from_those_after_it() -> None:
    assert accepts("comm_overlap.tp_comm_overlap_cfg=foo") is False
    assert accepts("comm_overlap.tp_comm_overlap_cfg=foo", "~comm_overlap")
    assert accepts("~comm_overlap", "comm_overlap.tp_comm_overlap=false") is False
    assert accepts("~comm_overlap", "++comm_overlap.tp_comm_overlap=false")


def test_a_section_that_is_an_object_takes_a_class_only_from_appended_overrides() -> None:
    built = f"comm_overlap={{_target_:{OVERLAP},tp_comm_overlap:false,tp_comm_overlap_cfg:null}}"
    saved = replace(with_section(), paths={**with_section().paths, "comm_overlap._target_": OVERLAP})
    assert check_overrides([built], saved, RELEASE).is_accepted is False
    appended = [f"++comm_overlap._target_={OVERLAP}", "++comm_overlap.tp_comm_overlap_cfg=null", built]
    assert check_overrides(appended, saved, RELEASE).is_accepted


def test_a_mapping_that_overrides_make_has_no_other_fields_to_remove() -> None:
    made = ["++comm_overlap.tp_comm_overlap=false"]
    assert check_overrides([*made, "~comm_overlap.tp_comm_overlap_cfg"], recipe_config(), RELEASE).is_accepted is False
    assert accepts(*made, "~comm_overlap.tp_comm_overlap_cfg")


def test_a_preset_that_is_no_object_is_refused_only_where_tensor_parallelism_is_overlapped() -> None:
    assert accepts("comm_overlap.tp_comm_overlap_cfg=foo") is False
    assert accepts("comm_overlap.tp_comm_overlap_cfg=foo", "comm_overlap.tp_comm_overlap=false")


def test_a_field_that_bridge_sets_again_from_its_twin_is_ignored() -> None:
    recipe = config_of_paths({**dict(recipe_config().paths), "mixed_precision": "MixedPrecisionConfig"} | GATHERED)
    (check,) = check_overrides(["mixed_precision.fp8_param=foo"], recipe, RELEASE).overrides
    assert check.failure_mode == "ignored"
    both = ["mixed_precision.fp8_param=true", "mixed_precision.fp8_param_gather=true"]
    assert not any(check.message for check in check_overrides(both, recipe, RELEASE).overrides)


GATHERED = {"mixed_precision.fp8_param": False, "mixed_precision.fp8_param_gather": False}


@pytest.mark.parametrize("switch", ["fast_cache_load", "defer_npy_index_mmap"])
def test_cached_datasets_need_a_folder(switch: str) -> None:
    assert accepts(f"dataset.{switch}=true") is False
    assert accepts(f"dataset.{switch}=true", "dataset.path_to_cache=/cache")


def test_an_output_gate_is_refused_for_latent_attention_alone() -> None:
    latent = replace(recipe_config(), paths={**recipe_config().paths, "model.kv_lora_rank": 512})
    gated = ["model.multi_latent_attention=true", "model.attention_output_gate=true"]
    assert "latent_attention_has_no_output_gate" in names_of_broken(gated, latent)
    assert "latent_attention_has_no_output_gate" not in names_of_broken(gated[1:], latent)
    assert "latent_attention_has_no_output_gate" not in names_of_broken(gated, recipe_config())


def test_a_number_is_no_function_that_fusion_knows() -> None:
    fused = ["model.bias_activation_fusion=true", "model.activation_func=1.5"]
    assert check_overrides(fused, recipe_config(), "0.6.2").is_accepted is False


def names_of_broken(overrides: list[str], base: MergedConfig) -> set[str]:
    return {note.name for note in check_overrides(overrides, base, RELEASE).broken}


def test_an_appended_field_that_the_class_lacks_is_not_judged_by_its_value() -> None:
    fused = check_overrides(["++model.cache_mla_latents=true"], recipe_config(), RELEASE)
    assert "cached_latents_exclude_fused_rope" not in {note.name for note in fused.broken}
    assert accepts("model.num_layers.foo=1") is False


def test_overlap_of_experts_needs_stated_virtual_stages_even_where_a_layout_gives_them() -> None:
    layout = 'model.pipeline_model_parallel_layout="Et*12|t*12|t*12|t*12L"'
    check = check_overrides(
        [
            "model.pipeline_model_parallel_size=2",
            "model.virtual_pipeline_model_parallel_size=null",
            layout,
            "comm_overlap.overlap_moe_expert_parallel_comm=true",
        ],
        with_section(),
        RELEASE,
    )
    assert "requested_ep_overlap_needs_virtual_stages_with_pipeline" in {note.name for note in check.broken}


def test_a_function_of_pytorch_is_named_as_a_built_in_or_not() -> None:
    for name in ("<function gelu at 0x7f>", "<built-in function gelu>", "torch._C._nn.gelu"):
        paths: dict[str, Any] = {**dict(recipe_config().paths), "model.activation_func": name}
        assert resolve(paths, MergedConfig({}), RELEASE).derived["activation"] == "gelu"


def test_moe_layer_recompute_comes_after_the_checks_of_recompute() -> None:
    none = [f"model.recompute_{name}=null" for name in ("granularity", "method", "num_layers")]
    distributed = ["model.distribute_saved_activations=true", "model.sequence_parallel=true"]
    name = "distributed_activations_exclude_sequence_parallelism"
    for last, is_broken in (("model.moe_layer_recompute=true", False), ("model.recompute_granularity=selective", True)):
        check = check_overrides([*none, *distributed, last], recipe_config(), RELEASE)
        assert (name in {note.name for note in check.broken}) is is_broken
