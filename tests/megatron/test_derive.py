"""What follows from settings: the same for a run as for overrides, and not known where that is not known."""

from __future__ import annotations

import json
from typing import Any

import pytest

from three_walls.bridge.merged_config import MergedConfig
from three_walls.bridge.resolve_config import resolve
from three_walls.megatron.derive import (
    KnownSettings,
    UnknownSettingError,
    derive_bridge,
    derive_core,
    derive_megatron_lm,
    overlaps_tensor_parallelism,
)
from three_walls.megatron.settings.merge_settings import merge_sources
from three_walls.megatron.settings.saved_config import read_dump

TENSOR, EXPERT, EXPERT_TENSOR = (
    "tensor_model_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
)
STAGES, VIRTUAL, LAYOUT = (
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "pipeline_model_parallel_layout",
)
BRIDGE_CASES: list[tuple[str, dict[str, Any], str, Any]] = [
    ("0.5.1", {EXPERT_TENSOR: None, TENSOR: 2, EXPERT: 4}, EXPERT_TENSOR, 2),
    ("0.6.2", {EXPERT_TENSOR: None, TENSOR: 2, EXPERT: 4}, EXPERT_TENSOR, 1),
    ("0.6.2", {EXPERT_TENSOR: None, TENSOR: 2, EXPERT: 1}, EXPERT_TENSOR, 2),
    ("0.6.2", {EXPERT_TENSOR: 2, TENSOR: 2, EXPERT: 4}, EXPERT_TENSOR, 2),
    ("0.3.1", {"sequence_parallel": True, TENSOR: 1}, "sequence_parallel", True),
    ("0.4.2", {"sequence_parallel": True, TENSOR: 1}, "sequence_parallel", False),
    ("0.4.2", {"sequence_parallel": True, TENSOR: 2}, "sequence_parallel", True),
    ("0.6.2", {"num_query_groups": None, "num_attention_heads": 8}, "num_query_groups", 8),
    ("0.6.2", {"num_query_groups": 2, "num_attention_heads": 8}, "num_query_groups", 2),
    ("0.6.2", {"kv_channels": None, "hidden_size": 64, "num_attention_heads": 4}, "kv_channels", 16),
    ("0.6.2", {"ffn_hidden_size": None, "hidden_size": 64}, "ffn_hidden_size", 256),
    (
        "0.6.2",
        {"moe_ffn_hidden_size": None, "ffn_hidden_size": 96, "num_moe_experts": 8},
        "moe_ffn_hidden_size",
        96,
    ),
    (
        "0.6.2",
        {"moe_ffn_hidden_size": None, "ffn_hidden_size": 96, "num_moe_experts": None},
        "moe_ffn_hidden_size",
        None,
    ),
    ("0.6.2", {VIRTUAL: None, STAGES: 2, LAYOUT: "Et|t|t|tL"}, VIRTUAL, 2),
    ("0.6.2", {VIRTUAL: None, STAGES: 4, LAYOUT: "Et|t|t|tL"}, VIRTUAL, None),
    ("0.6.2", {"recompute_granularity": "selective", "recompute_modules": None}, "recompute_modules", ("core_attn",)),
    ("0.6.2", {"recompute_granularity": "full", "recompute_modules": None}, "recompute_modules", None),
    (
        "0.6.2",
        {"recompute_granularity": None, "recompute_modules": None, "moe_layer_recompute": True},
        "recompute_modules",
        ("core_attn", "moe"),
    ),
    (
        "0.6.2",
        {"recompute_granularity": "full", "recompute_modules": None, "moe_layer_recompute": True},
        "recompute_granularity",
        "full",
    ),
]


@pytest.mark.parametrize(("release", "model", "name", "value"), BRIDGE_CASES)
def test_a_run_and_overrides_have_the_same_value(release: str, model: dict[str, Any], name: str, value: Any) -> None:
    resolved = resolve({f"model.{key}": found for key, found in model.items()}, MergedConfig({}), release)
    assert resolved.values[f"model.{name}"] == value
    run = merge_sources([read_dump(json.dumps({"model": model}), "config file", "x")], release)
    assert run.get(name) == value


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({EXPERT_TENSOR: None}, EXPERT_TENSOR),
        ({EXPERT_TENSOR: None, TENSOR: 2, EXPERT: 4}, EXPERT_TENSOR),  # the release decides
        ({"kv_channels": None, "hidden_size": 64}, "kv_channels"),
        ({"kv_channels": None, "hidden_size": 64, "num_attention_heads": 0}, "kv_channels"),
        ({"ffn_hidden_size": None, "hidden_size": None}, "ffn_hidden_size"),
        ({VIRTUAL: None}, VIRTUAL),
        ({VIRTUAL: None, LAYOUT: "Et|tL"}, VIRTUAL),
    ],
)
def test_what_follows_from_a_setting_that_is_not_known_is_not_known(settings: dict[str, Any], name: str) -> None:
    known = KnownSettings(dict(settings))
    derive_bridge(known, None)
    assert name not in known.values


def test_what_every_release_makes_of_a_setting_is_known_without_the_release() -> None:
    known = KnownSettings({EXPERT_TENSOR: None, TENSOR: 1, EXPERT: 4})
    derive_bridge(known, None)
    assert known.values[EXPERT_TENSOR] == 1


def test_a_fixed_value_stays_and_what_follows_from_it_follows() -> None:
    known = KnownSettings(
        {"ffn_hidden_size": None, "hidden_size": 64, EXPERT_TENSOR: None, TENSOR: 2}, {"ffn_hidden_size"}
    )
    derive_core(known)
    assert (known.values["ffn_hidden_size"], known.values[EXPERT_TENSOR]) == (None, 2)
    assert known.reasons == {EXPERT_TENSOR: TENSOR}


def test_layers_per_virtual_stage_count_the_embedding_where_it_counts_as_a_layer() -> None:
    per_stage = {VIRTUAL: None, LAYOUT: None, STAGES: 4, "num_layers_per_virtual_pipeline_stage": 2, "num_layers": 15}
    for counts, virtual in ((True, 2), (False, None)):
        known = KnownSettings({**per_stage, "account_for_embedding_in_pipeline_split": counts})
        derive_megatron_lm(known)
        assert known.values[VIRTUAL] == virtual


@pytest.mark.parametrize(
    ("settings", "overlaps"),
    [
        ({TENSOR: 2, "sequence_parallel": True}, True),
        ({TENSOR: 1}, False),
        ({"sequence_parallel": False}, False),
        ({TENSOR: 2}, None),
        ({"sequence_parallel": True}, None),
    ],
)
def test_the_overlap_of_tensor_parallelism_is_known_as_soon_as_one_setting_rules_it_out(
    settings: dict[str, Any], overlaps: bool | None
) -> None:
    if overlaps is None:
        with pytest.raises(UnknownSettingError):
            overlaps_tensor_parallelism(KnownSettings(settings))
    else:
        assert overlaps_tensor_parallelism(KnownSettings(settings)) is overlaps
