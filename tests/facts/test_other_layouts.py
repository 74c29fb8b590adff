"""Other parallel sizes on the same GPUs: where they are possible, and what a GPU then holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.facts import views
from tests.facts.model_runs import toy
from tests.facts.views import run_view
from three_walls.facts import other_layouts
from three_walls.lib.fact import FactValue
from three_walls.lib.measurement import Measurement, known, missing
from three_walls.lib.plain_data import ConfigData
from three_walls.megatron.settings.run_config import ConfigValue
from three_walls.megatron.stage_memory import estimate_stages
from three_walls.tables.hardware import find_gpu

DEVICE_BYTES, PEAK_BYTES = 1_000_000, 100_000
DEVICE: Measurement[int] = known(DEVICE_BYTES)
LOGGED: Measurement[int] = known(PEAK_BYTES)
NO_LOG: Measurement[int] = missing("no log")


def measure(
    world: int = 2,
    per_node: int = 8,
    peak: Measurement[int] = LOGGED,
    usable: Measurement[int] = DEVICE,
    **values: ConfigData,
) -> dict[str, tuple[FactValue, str | None]]:
    config = toy(world, **values)
    environment = {**config.environment, "LOCAL_WORLD_SIZE": ConfigValue(str(per_node), "test")}
    run = run_view(replace(config, environment=environment), find_gpu("NVIDIA H200"))
    estimated = known(total(world, **values)) if peak.value else NO_LOG
    return views.measure(
        other_layouts,
        run=run,
        config_as_run=config,
        memory_peak_bytes=peak,
        memory_estimated_peak_bytes=estimated,
        usable_bytes=usable,
    )


def total(world: int = 2, **values: ConfigData) -> int:
    found = estimate_stages(toy(world, **values)).value
    return max(stage.total for stage in found) if found else 0


def test_tensor_parallelism_is_halved_where_its_micro_batches_can_be_spread() -> None:
    split: dict[str, Any] = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
    assert measure(**split)["half_tensor_parallel_size"] == (1, None)
    assert measure(**split, global_batch_size=3)["half_tensor_parallel_size"][0] is None
    assert measure(world=1)["half_tensor_parallel_size"][0] is None


def test_context_parallelism_and_stages_are_halved_where_their_micro_batches_can_be_spread() -> None:
    assert measure(context_parallel_size=2)["half_context_parallel_size"] == (1, None)
    assert measure(pipeline_model_parallel_size=2)["half_pipeline_parallel_size"] == (1, None)
    halved: list[dict[str, Any]] = [{"context_parallel_size": 2}, {"pipeline_model_parallel_size": 2}]
    for sizes in halved:
        facts = measure(**sizes, global_batch_size=3)
        assert facts["half_context_parallel_size"][0] is facts["half_pipeline_parallel_size"][0] is None


def test_stages_are_not_halved_where_settings_state_what_they_hold() -> None:
    facts = measure(pipeline_model_parallel_size=2, num_layers_in_first_pipeline_stage=1)
    assert facts["half_pipeline_parallel_size"][0] is None


def test_an_even_number_of_virtual_stages_is_halved_down_to_none() -> None:
    for stages, half in ((4, 2), (2, 1), (3, None)):
        split = {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": stages}
        assert measure(**split)["half_virtual_pipeline_size"][0] == half


def test_one_stage_has_no_virtual_ones() -> None:
    facts = measure(world=2, num_layers=4, pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=2)
    assert facts["memory_peak_half_pipeline_parallel_ratio"][0] is not None


def test_the_peak_changes_by_what_the_estimates_differ_by() -> None:
    now, then = (total(tensor_model_parallel_size=size, sequence_parallel=size > 1) for size in (2, 1))
    facts = measure(tensor_model_parallel_size=2, sequence_parallel=True)
    expected = (PEAK_BYTES + then - now) / DEVICE_BYTES
    assert facts["memory_peak_half_tensor_parallel_ratio"][0] == pytest.approx(expected)
    assert measure(tensor_model_parallel_size=2, peak=NO_LOG)["memory_peak_half_tensor_parallel_ratio"][0] is None


@pytest.mark.parametrize(
    ("fact", "setting"),
    [
        ("memory_peak_half_context_parallel_ratio", "context_parallel_size"),
        ("memory_peak_half_pipeline_parallel_ratio", "pipeline_model_parallel_size"),
        ("memory_peak_half_expert_parallel_ratio", "expert_model_parallel_size"),
    ],
)
def test_half_of_any_size_leaves_more_on_a_rank(fact: str, setting: str) -> None:
    size: dict[str, Any] = {setting: 2}
    ratio, reason = measure(**size)[fact]
    assert reason is None
    assert isinstance(ratio, float)
    assert ratio > PEAK_BYTES / DEVICE_BYTES


@pytest.mark.parametrize(
    ("dispatcher", "ranks", "sent"),
    [
        ("alltoall", 2, 0.0),
        ("alltoall", 4, (1 / 2) / (3 / 4)),
        ("flex", 4, 1 * (1 - (1 / 2) ** 2) / (3 * (1 - (3 / 4) ** 2))),  # a copy per rank, not per chosen expert
    ],
)
def test_half_the_ranks_send_fewer_copies(dispatcher: str, ranks: int, sent: float) -> None:
    facts = measure(world=4, expert_model_parallel_size=ranks, moe_token_dispatcher_type=dispatcher)
    assert facts["half_expert_sent_fraction"][0] == pytest.approx(sent)


def test_what_an_unknown_dispatcher_sends_is_not_known() -> None:
    assert measure(world=4, expert_model_parallel_size=4)["half_expert_sent_fraction"][0] is None


def test_a_tensor_parallel_group_of_two_hosts_becomes_two_stages() -> None:
    sizes: dict[str, Any] = {"world": 4, "tensor_model_parallel_size": 4, "num_layers": 4, "num_attention_heads": 4}
    facts = measure(per_node=2, **sizes)
    assert facts["nvlink_tensor_parallel_size"] == (2, None)
    assert facts["nvlink_tensor_pipeline_size"] == (2, None)
    assert measure(per_node=2, **{**sizes, "num_layers": 3})["nvlink_tensor_pipeline_size"][0] is None
    assert measure(per_node=2, **sizes, global_batch_size=1)["nvlink_tensor_pipeline_size"][0] is None


def test_experts_that_fit_on_one_host_need_no_stages() -> None:
    facts = measure(world=4, per_node=2, expert_model_parallel_size=4)
    assert facts["nvlink_expert_pipeline_size"] == (1, None)
    assert isinstance(facts["memory_peak_nvlink_expert_ratio"][0], float)


def test_experts_that_do_not_fit_get_as_many_more_stages_as_hosts_shared_them() -> None:
    full = measure(world=4, per_node=2, peak=known(DEVICE_BYTES), expert_model_parallel_size=4)
    assert full["nvlink_expert_pipeline_size"] == (2, None)
    many: dict[str, Any] = {
        "num_moe_experts": 8,
        "expert_model_parallel_size": 8,
        "num_layers": 8,
        "global_batch_size": 8,
    }
    assert measure(world=8, per_node=1, peak=NO_LOG, **many)["nvlink_expert_pipeline_size"] == (8, None)
    uneven: dict[str, Any] = many | {"num_layers": 6}
    assert measure(world=8, per_node=1, peak=NO_LOG, **uneven)["nvlink_expert_pipeline_size"][0] is None
    assert measure(world=3, per_node=2, expert_model_parallel_size=3)["nvlink_expert_pipeline_size"][0] is None


FULL: dict[str, Any] = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
MODULES = ("moe_act", "mla_up_proj", "layernorm", "mlp")


def deep(**values: ConfigData) -> dict[str, Any]:
    """Eight layers of latent attention, the first of which is dense, recomputed in full."""
    latent = {"q_lora_rank": 6, "kv_lora_rank": 5, "qk_head_dim": 3, "qk_pos_emb_head_dim": 1, "v_head_dim": 2}
    layers = {"num_layers": 8, "moe_layer_freq": "([0]*1+[1]*7)", "moe_grouped_gemm": True}
    return {**FULL, **latent, **layers, "multi_latent_attention": True, **values}


def peak_at(ratio: float, modules: tuple[str, ...]) -> Measurement[int]:
    """The peak by the log of a run in full recompute that would take ``ratio`` of the device with ``modules``."""
    then = total(**deep(recompute_granularity="selective", recompute_modules=modules))
    return known(round(ratio * DEVICE_BYTES) + total(**deep()) - then)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_no_more_modules_are_recomputed_than_it_takes_to_fit(count: int) -> None:
    facts = measure(peak=peak_at(0.90, MODULES[:count]), **deep())
    assert facts["sufficient_recompute_modules"] == (MODULES[:count], None)
    assert facts["memory_peak_sufficient_recompute_ratio"][0] == pytest.approx(0.90)


def test_all_narrow_modules_are_recomputed_where_they_do_not_suffice() -> None:
    facts = measure(peak=peak_at(1.2, MODULES), **deep())
    assert facts["sufficient_recompute_modules"] == (MODULES, None)
    assert facts["memory_peak_sufficient_recompute_ratio"][0] == pytest.approx(1.2)


def test_only_modules_that_the_model_has_are_recomputed() -> None:
    no_latent = {"multi_latent_attention": False, "moe_grouped_gemm": False, "moe_layer_freq": 1}
    assert measure(peak=known(10 * DEVICE_BYTES), **deep(**no_latent))["sufficient_recompute_modules"][0] == (
        "layernorm",
    )


def test_what_the_run_cannot_have_of_its_device_does_not_count() -> None:
    peak = peak_at(0.90, MODULES[:1])
    assert measure(peak=peak, **deep())["sufficient_recompute_modules"] == (MODULES[:1], None)
    limited = measure(peak=peak, usable=known(DEVICE_BYTES - 1000), **deep())
    assert limited["sufficient_recompute_modules"] != (MODULES[:1], None)
    unknown = measure(peak=peak, usable=missing("no device"), **deep())
    assert unknown["memory_peak_sufficient_recompute_ratio"] == (None, "no device")


def test_without_a_peak_the_cheapest_module_is_recomputed() -> None:
    facts = measure(peak=NO_LOG, **deep())
    assert facts["sufficient_recompute_modules"] == (("moe_act",), None)
    assert facts["memory_peak_sufficient_recompute_ratio"][0] is None
