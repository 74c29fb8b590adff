"""What one GPU of each pipeline stage needs for parameters, gradients, optimizer and activations, from the config.

Bytes per parameter under mixed precision: 2 for the parameter; 4 for the gradient (2 where gradients are reduced in
bf16); 12 with Adam for the optimizer's fp32 copy and its moments. The distributed optimizer shards its part over the
GPUs that hold the same parameters (megatron/core/optimizer/distrib_optimizer.py): over data and context parallelism,
for experts over the replicas of the expert group, which ``compute_weight_and_optimizer_memory`` does not distinguish.
Fragmentation, NCCL's buffers, the CUDA context and library workspaces come on top.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from three_walls.lib.measurement import Measurement, known, missing, unstated
from three_walls.megatron.activations import estimate_activations
from three_walls.megatron.count_flops import projection_weights
from three_walls.megatron.model_shape import ModelShape, read_model_shape
from three_walls.megatron.parallel_layout import CompleteLayout, read_layout
from three_walls.megatron.settings.run_config import RunConfig

_MOMENTS = {"adam": 2, "sgd": 1}
_DTYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
_FULLY_SHARDED = ("use_megatron_fsdp", "use_torch_fsdp2")
_DECIDE_PRECISION = ("use_distributed_optimizer", "bf16", "grad_reduce_in_fp32")
"""Settings that decide how many bytes a parameter takes."""


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes on one GPU of a pipeline stage."""

    stage: int
    parameter_count: int
    parameters: int
    gradients: int
    optimizer: int
    moments: int
    """The part of ``optimizer`` that its first update creates."""
    activations: Measurement[int]

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer + (self.activations.value or 0)


def find_fullest(stages: tuple[StageMemory, ...]) -> StageMemory:
    """The stage that needs most; of equals the first."""
    return max(stages, key=lambda stage: (stage.total, -stage.stage))


def estimate_stages(config: RunConfig) -> Measurement[tuple[StageMemory, ...]]:
    """The memory of every pipeline stage; missing where the config leaves a size open, or is not modelled."""
    shape = read_model_shape(config)
    if shape.value is None:
        return missing(str(shape.missing_reason))
    unknown = [] if shape.value.is_tied is not None else ["untie_embeddings_and_output_weights"]
    unknown += [key for key in _DECIDE_PRECISION if not config.knows(key)]
    if unknown:
        return unstated(*unknown)
    layout = read_layout(config).complete()
    if layout.value is None:
        return missing(str(layout.missing_reason))
    stages = layout.value.layers_by_stage(config, shape.value.layers)
    if stages is None:
        return missing("the pipeline's stages hold unequal numbers of layers")
    reason = _why_not_counted(config)
    if reason:
        return missing(reason)
    return known(
        tuple(_estimate_stage(shape.value, layout.value, config, layers, stage) for stage, layers in enumerate(stages))
    )


def _estimate_stage(
    shape: ModelShape, layout: CompleteLayout, config: RunConfig, layers: tuple[int, ...], stage: int
) -> StageMemory:
    dense, experts = count_parameters(shape, layout, config, layers, stage)
    is_mixed = config.get("bf16") is True or config.get("fp16") is True
    gradient_bytes = 4 if not is_mixed or config.get("grad_reduce_in_fp32") is not False else 2
    state_bytes, moment_bytes = _optimizer_bytes_per_parameter(config, is_mixed)
    shards, expert_shards = 1, 1
    if config.get("use_distributed_optimizer") is True:
        instances = config.whole_number("num_distributed_optimizer_instances") or 1
        shards, expert_shards = (max(1, n // instances) for n in (layout.dense_replicas, layout.expert_data))
    parameters_per_shard = dense / shards + experts / expert_shards
    return StageMemory(
        stage=stage,
        parameter_count=dense + experts,
        parameters=(dense + experts) * (2 if is_mixed else 4),
        gradients=(dense + experts) * gradient_bytes,
        optimizer=round(state_bytes * parameters_per_shard),
        moments=round(moment_bytes * parameters_per_shard),
        activations=estimate_activations(shape, layout, config, layers, stage),
    )


def _optimizer_bytes_per_parameter(config: RunConfig, is_mixed: bool) -> tuple[float, float]:
    """(all of the optimizer's state, its moments alone)."""
    moments = _MOMENTS[str(config.get("optimizer") or "adam")]
    if config.get("use_precision_aware_optimizer") is True:
        states = [_DTYPE_BYTES.get(str(config.get(key)), 4) for key in ("exp_avg_dtype", "exp_avg_sq_dtype")]
        # Of an fp32 copy only the half that the bf16 parameter lacks is kept (store_param_remainders, on by default).
        of_moments, copy = sum(states[:moments]), 2
    else:
        of_moments, copy = 4 * moments, 4 if is_mixed else 0
    offloaded = config.get("optimizer_offload_fraction")
    if config.get("optimizer_cpu_offload") is True and isinstance(offloaded, int | float):
        return (of_moments + copy) * (1 - offloaded), of_moments * (1 - offloaded)
    return of_moments + copy, of_moments


def _why_not_counted(config: RunConfig) -> str | None:
    for key in _FULLY_SHARDED:
        if config.get(key) is True:
            return f"parameters sharded by {key} are not counted"
    if config.get("fp8_param_gather") is True:
        return "parameters kept in FP8 are not counted"
    optimizer = config.get("optimizer") or "adam"
    if optimizer not in _MOMENTS:
        return f"the states of optimizer {optimizer} are not counted"
    return None


def count_parameters(
    shape: ModelShape, layout: CompleteLayout, config: RunConfig, layers: Collection[int], stage: int
) -> tuple[int, int]:
    """(parameters outside experts, parameters of experts) of one GPU of ``stage`` that holds ``layers``.

    Tensor parallelism shards matrices, expert and expert tensor parallelism shard experts; every GPU holds norms and
    routers whole. ``compute_weight_and_optimizer_memory`` of Megatron Core 0.16.1 (theoretical_memory_usage.py) leaves
    out routers and expert parallelism.
    """
    is_first, is_last = stage == 0, stage == layout.pipeline - 1
    predicted = shape.prediction_layers if is_last else 0
    moe = sum(number in shape.moe_layers for number in layers) + predicted * shape.last_layer_is_moe
    layers_count = len(layers) + predicted
    has_biases = config.get("add_bias_linear") is True
    per_norm = 1 if config.get("normalization") == "RMSNorm" else 2  # LayerNorm has a bias too

    def mlp(hidden: int, ffn: int) -> int:
        biases = (shape.ffn_matrices - 1) * ffn + hidden if has_biases and ffn else 0
        return shape.ffn_matrices * hidden * ffn + biases

    layer_norms = 2 * per_norm * shape.hidden
    if config.get("qk_layernorm") is True and shape.latent is None:
        layer_norms += 2 * per_norm * (shape.query // shape.heads)
    replicated = layers_count * layer_norms + moe * shape.hidden * shape.experts
    replicated += per_norm * shape.hidden if is_last else 0

    projection_biases = has_biases * shape.hidden
    if has_biases or config.get("add_qkv_bias") is True:
        projection_biases += shape.query + shape.key + shape.value
    sharded = layers_count * (projection_weights(shape) + projection_biases)
    sharded += (layers_count - moe) * mlp(shape.hidden, shape.dense_ffn) + moe * mlp(shape.hidden, shape.shared_ffn)
    if shape.expert_hidden != shape.hidden:
        sharded += moe * 2 * shape.hidden * shape.expert_hidden
    sharded += predicted * 2 * shape.hidden * shape.hidden
    # Embedding and output layer; a tied output layer on another stage than the embedding has a copy of its own.
    tables = 1 if is_first and is_last and shape.is_tied else is_first + is_last
    sharded += tables * shape.vocabulary * shape.hidden

    experts = moe * shape.experts * mlp(shape.expert_hidden, shape.expert_ffn)
    return replicated + sharded // layout.tensor, experts // (layout.expert * layout.expert_tensor)
