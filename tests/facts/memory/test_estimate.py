"""Bytes per GPU from the config, counted on paper and against what real runs printed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.facts.model_runs import toy, wide, without
from tests.facts.views import measure, run_view
from three_walls.facts import memory_estimate
from three_walls.lib.fact import FactValue
from three_walls.lib.measurement import GIVE_CONFIG, known_or_missing, missing
from three_walls.lib.plain_data import ConfigData
from three_walls.megatron.parallel_layout import read_layout
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.megatron.stage_memory import StageMemory, estimate_stages
from three_walls.trace.identity import Gpu

MIB = 1 << 20

# Per layer: projections 8 x 16 + 8 x 8, four experts of 3 x 8 x 6, router 8 x 4, two norms of 8. Two tables of 32 x 8
# and the last norm.
TOY_EXPERTS = 2 * 4 * 144
TOY_DENSE = 2 * (192 + 32 + 16) + 2 * 256 + 8


def stages(world: int = 1, **values: ConfigData) -> tuple[StageMemory, ...]:
    found = estimate_stages(toy(world, **values))
    assert found.value is not None, found.missing_reason
    return found.value


def estimate_memory(
    config: RunConfig,
    device_bytes: int | None,
    printed_bytes: int | None,
    iterations: int | None = None,
    *,
    reserved_bytes: int | None = None,
    retries: int | None = None,
) -> dict[str, tuple[FactValue, str | None]]:
    """``printed_bytes``: the log's peak, printed after ``iterations``."""
    return measure(
        memory_estimate,
        run=replace(run_view(config), device=None if device_bytes is None else Gpu("H200", "sm_90", device_bytes)),
        step=missing("no step"),
        log_peak_memory_bytes=known_or_missing(printed_bytes, "no memory line"),
        log_memory_iterations_count=known_or_missing(iterations, "no memory line"),
        log_reserved_memory_bytes=known_or_missing(reserved_bytes, "no memory line"),
        log_allocator_retries_count=known_or_missing(retries, "no memory line"),
    )


def test_the_toy_models_parameters_count_as_on_paper() -> None:
    (only,) = stages()
    assert only.parameter_count == TOY_DENSE + TOY_EXPERTS
    assert only.parameters == 2 * only.parameter_count
    assert only.gradients == 4 * only.parameter_count
    assert only.optimizer == 12 * only.parameter_count


def test_the_distributed_optimizer_shards_experts_over_their_own_replicas() -> None:
    (only,) = stages(4, use_distributed_optimizer=True, expert_model_parallel_size=2)
    assert only.parameter_count == TOY_DENSE + TOY_EXPERTS // 2
    assert only.optimizer == 12 * (TOY_DENSE / 4 + TOY_EXPERTS / 2 / 2)


def test_gradients_reduced_in_bf16_take_half() -> None:
    assert stages(grad_reduce_in_fp32=False)[0].gradients == 2 * (TOY_DENSE + TOY_EXPERTS)


def test_a_precision_aware_optimizer_keeps_what_it_is_told() -> None:
    (only,) = stages(use_precision_aware_optimizer=True, exp_avg_dtype="fp8", exp_avg_sq_dtype="bf16")
    assert only.optimizer == (1 + 2 + 2) * (TOY_DENSE + TOY_EXPERTS)


def test_each_stage_holds_its_layers_and_the_ends_the_tables() -> None:
    first, last = stages(2, pipeline_model_parallel_size=2)
    assert first.parameter_count == 192 + 32 + 16 + TOY_EXPERTS // 2 + 256
    assert last.parameter_count == first.parameter_count + 8


def test_a_tied_output_layer_is_held_once_by_one_stage_and_twice_by_two() -> None:
    tied = {"untie_embeddings_and_output_weights": False}
    assert stages(**tied)[0].parameter_count == TOY_DENSE + TOY_EXPERTS - 256
    first, last = stages(2, pipeline_model_parallel_size=2, **tied)
    assert first.parameter_count + last.parameter_count == TOY_DENSE + TOY_EXPERTS


def test_interleaved_chunks_go_round_the_stages() -> None:
    config = toy(4, num_layers=8, pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=2)
    layout = read_layout(config).complete().value
    assert layout is not None
    assert layout.layers_by_stage(config, 8) == ((0, 1, 4, 5), (2, 3, 6, 7))


# What Megatron Core 0.16.1 printed on H200s: "number of parameters on" and the largest "max allocated" (MiB).
@pytest.mark.parametrize(
    ("world", "values", "parameters", "peak_mib"),
    [
        (4, {}, [632459264], [17373]),
        (4, {"overlap_moe_expert_parallel_comm": True}, [632459264], [19314]),
        (4, {"micro_batch_size": 8, "global_batch_size": 32}, [632459264], [88286]),
        (4, {"use_distributed_optimizer": False, "expert_model_parallel_size": 2}, [833785856], [24533]),
        (
            4,
            {"pipeline_model_parallel_size": 2, "expert_model_parallel_size": 2},
            [416890880, 416894976],
            [16188, 12963],
        ),
        (
            4,
            {
                "pipeline_model_parallel_size": 2,
                "virtual_pipeline_model_parallel_size": 2,
                "expert_model_parallel_size": 2,
            },
            [416890880, 416894976],
            [17940, 14827],
        ),
        (
            4,
            {
                "tensor_model_parallel_size": 2,
                "sequence_parallel": True,
                "expert_model_parallel_size": 2,
                "expert_tensor_parallel_size": 2,
                "padded_vocab_size": 32256,
            },
            [417501184],
            [11281],
        ),
        (
            4,
            {
                "moe_shared_expert_intermediate_size": 2048,
                "recompute_granularity": "selective",
                "recompute_modules": ("core_attn",),
                "global_batch_size": 16,
            },
            [733122560],
            [15408],
        ),
    ],
    ids=["plain", "EP overlap", "micro-batch 8", "not sharded", "PP2", "PP2 interleaved", "TP2", "core_attn"],
)
def test_real_runs_printed_as_much(
    world: int, values: dict[str, ConfigData], parameters: list[int], peak_mib: list[int]
) -> None:
    estimated = estimate_stages(wide(world, **values))
    found = estimated.value
    assert found is not None, estimated.missing_reason
    assert [stage.parameter_count for stage in found] == parameters
    assert [stage.total / MIB for stage in found] == pytest.approx(peak_mib, rel=0.03)


def test_a_run_that_ran_out_of_memory_is_estimated_not_to_fit() -> None:
    found = estimate_stages(wide(micro_batch_size=16, global_batch_size=64)).value
    assert found is not None
    assert found[0].total > 139.8 * (1 << 30)


@pytest.mark.parametrize(
    "key", ["use_distributed_optimizer", "bf16", "grad_reduce_in_fp32", "untie_embeddings_and_output_weights"]
)
def test_what_decides_bytes_per_parameter_is_not_guessed(key: str) -> None:
    facts = estimate_memory(without(toy(), key), 1 << 30, None)
    assert facts["memory_gradients_bytes"] == (None, f"the config does not state {key} {GIVE_CONFIG}")


def test_full_recompute_keeps_the_layers_inputs_and_replays_one_layer() -> None:
    plain = (estimate_stages(wide()).value or ())[0].activations.value
    full = wide(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1)
    again = (estimate_stages(full).value or ())[0].activations.value
    assert plain is not None
    assert again is not None
    # Of four layers' activations one layer and four inputs of 32 MiB are left.
    layer = 1024 + 4 * 32 + 4 * 32 + 4 * 32 + 4 * 32 + 4 * 16
    assert plain - again == (3 * layer - 4 * 32) * MIB


@pytest.mark.parametrize("module", ["moe_act", "layernorm", "moe", "core_attn"])
def test_selective_recompute_frees_something(module: str) -> None:
    plain, less = stages(), stages(recompute_granularity="selective", recompute_modules=(module,))
    assert (less[0].activations.value or 0) <= (plain[0].activations.value or 0)
    unfused = {"attention_backend": "unfused", "num_layers": 8}
    plain, less = stages(**unfused), stages(recompute_granularity="selective", recompute_modules=(module,), **unfused)
    assert (less[0].activations.value or 0) < (plain[0].activations.value or 0)


def test_recomputed_up_projections_leave_what_they_expand() -> None:
    latent: dict[str, ConfigData] = {
        "multi_latent_attention": True,
        "q_lora_rank": 6,
        "kv_lora_rank": 5,
        "qk_head_dim": 3,
        "qk_pos_emb_head_dim": 1,
        "v_head_dim": 2,
        "num_layers": 8,
    }
    plain = stages(**latent)[0].activations.value
    less = stages(**latent, recompute_granularity="selective", recompute_modules=("mla_up_proj",))[0].activations.value
    assert plain is not None
    assert less is not None
    # Queries and keys of 4 heads of 4, values of 4 of 2, in 16 tokens of 2 bytes; ranks of 6 and 5 and a rotary channel
    # stay, and those of the layer that runs backward are there again.
    assert plain - less == 7 * 16 * 2 * (16 + 16 + 8 - (6 + 5 + 1))


@given(layers=st.integers(1, 30))
def test_parameters_grow_by_a_layer_at_a_time(layers: int) -> None:
    one, more = stages(num_layers=1)[0].parameter_count, stages(num_layers=1 + layers)[0].parameter_count
    assert more - one == layers * (stages(num_layers=2)[0].parameter_count - one)


@given(batch=st.integers(1, 8))
def test_activations_are_proportional_to_the_micro_batch(batch: int) -> None:
    single = stages()[0].activations.value
    assert single is not None
    assert stages(micro_batch_size=batch, global_batch_size=batch)[0].activations.value == batch * single


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"fp8": "hybrid"}, "fp8"),
        ({"recompute_granularity": "selective", "recompute_modules": ("gdn_norm_out",)}, "gdn_norm_out"),
        ({"fine_grained_activation_offloading": True}, "offloading"),
    ],
)
def test_activations_that_are_not_modelled_are_unknown_and_so_is_the_peak(
    values: dict[str, ConfigData], reason: str
) -> None:
    facts = estimate_memory(toy(**values), 1 << 30, None)
    assert facts["memory_parameters_bytes"][0] is not None
    for name in ("memory_activations_bytes", "memory_estimated_peak_bytes", "memory_headroom_bytes"):
        assert facts[name][0] is None
        assert reason in str(facts[name][1])


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"use_megatron_fsdp": True}, "use_megatron_fsdp"),
        ({"optimizer": "muon"}, "muon"),
        ({"pipeline_model_parallel_size": 2, "num_layers": 3}, "unequal"),
        ({"expert_model_parallel_size": 3}, "do not divide"),
        ({"global_batch_size": 5, "micro_batch_size": 2}, "does not divide"),
    ],
)
def test_what_cannot_be_counted_is_said(values: dict[str, ConfigData], reason: str) -> None:
    facts = estimate_memory(toy(2, **values), 1 << 30, None)
    assert facts["memory_parameters_bytes"][0] is None
    assert reason in str(facts["memory_parameters_bytes"][1])


@pytest.mark.parametrize(
    ("retries", "reserved", "usable"),
    [(1, 500, 500), (0, 500, 1000), (None, 500, 1000), (1, None, 1000), (1, 2000, 1000)],
)
def test_a_run_that_had_to_try_again_got_no_more_than_it_reserved(
    retries: int | None, reserved: int | None, usable: int
) -> None:
    found = estimate_memory(toy(), 1000 * MIB, 400 * MIB, reserved_bytes=reserved and reserved * MIB, retries=retries)
    assert found["memory_peak_fraction"] == (400 / usable, None)
    assert found["memory_headroom_bytes"] == ((usable - 400) * MIB, None)


def test_a_measured_peak_replaces_the_estimate() -> None:
    facts = estimate_memory(toy(), 1000, 600)
    assert facts["memory_peak_fraction"] == (0.6, None)
    assert facts["memory_headroom_bytes"] == (400, None)
    assert estimate_memory(without(toy(), "seq_length"), 1000, 600)["memory_headroom_bytes"] == (400, None)
    assert estimate_memory(toy(), None, 600)["memory_peak_fraction"][0] is None


def test_a_doubled_micro_batch_doubles_all_but_parameters_gradients_and_optimizer() -> None:
    constant = 18 * (TOY_DENSE + TOY_EXPERTS)
    facts = estimate_memory(toy(), 2 * constant, constant + 500, iterations=2)
    assert facts["memory_peak_larger_micro_batch_ratio"] == ((constant + 1000) / (2 * constant), None)
    assert (
        facts["memory_peak_larger_micro_batch_without_recompute_ratio"] == facts["memory_peak_larger_micro_batch_ratio"]
    )
    less = estimate_memory(toy(), constant, constant // 2, iterations=2)
    assert less["memory_peak_larger_micro_batch_ratio"] == (0.5, None)
    assert estimate_memory(toy(), 1000, None)["memory_peak_larger_micro_batch_ratio"][0] is None
    assert estimate_memory(without(toy(), "num_layers"), 1000, 600)["memory_peak_larger_micro_batch_ratio"][0] is None


def test_a_doubled_micro_batch_without_recompute_doubles_the_activations_that_return() -> None:
    config = toy(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1)
    facts = estimate_memory(config, 1_000_000, 100_000, iterations=2)
    peak, without_recompute, doubled = (
        facts[f"memory_peak_{name}_ratio"][0]
        for name in ("larger_micro_batch", "without_recompute", "larger_micro_batch_without_recompute")
    )
    assert isinstance(peak, float) and isinstance(without_recompute, float) and isinstance(doubled, float)
    assert without_recompute > 0.1
    assert doubled - peak == pytest.approx(2 * (without_recompute - 0.1))


def test_twice_the_activations_are_the_measured_peak_of_a_doubled_micro_batch() -> None:
    """15,016 MB with one sequence and 25,144 MB with two (docs/measured-pairs.md), both before the moments exist."""
    moments_bytes = estimate_stages(wide(global_batch_size=16)).value[0].moments  # type: ignore[index]
    facts = estimate_memory(wide(global_batch_size=16), 1 << 37, 15_016 * MIB, iterations=1)
    ratio = facts["memory_peak_larger_micro_batch_ratio"][0]
    assert isinstance(ratio, float)
    assert ratio * (1 << 37) == pytest.approx(25_144 * MIB + moments_bytes, rel=0.01)


def test_a_peak_of_the_first_iteration_lacks_the_moments_that_its_update_creates() -> None:
    parameters = TOY_DENSE + TOY_EXPERTS
    first = estimate_memory(toy(), 1_000_000, 600, iterations=1)
    assert first["memory_peak_bytes"] == (600 + 8 * parameters, None)
    assert first["memory_headroom_bytes"] == (1_000_000 - 600 - 8 * parameters, None)
    assert estimate_memory(toy(), 1000, 600, iterations=2)["memory_peak_bytes"] == (600, None)
    unknown = estimate_memory(without(toy(), "seq_length"), 1000, 600, iterations=1)
    for name in ("memory_peak_bytes", "memory_peak_fraction", "memory_headroom_bytes"):
        value, reason = unknown[name]
        assert value is None
        assert "after its first iteration alone" in str(reason)


def test_moments_are_what_the_optimizer_keeps_beside_its_copy_of_the_parameters() -> None:
    parameters = TOY_DENSE + TOY_EXPERTS
    assert stages()[0].moments == 8 * parameters
    assert stages(optimizer="sgd")[0].moments == 4 * parameters
    offloaded = stages(optimizer_cpu_offload=True, optimizer_offload_fraction=0.5)[0]
    assert (offloaded.moments, offloaded.optimizer) == (4 * parameters, 6 * parameters)
