"""What a GPU needs for parameters, gradients, optimizer and activations, from the config; and its peak of memory.

Bytes per parameter under mixed precision: 2 for the parameter; 4 for the gradient (2 where gradients are reduced in
bf16); 12 with Adam for the optimizer's fp32 copy and its moments. The distributed optimizer shards its part over the
GPUs that hold the same parameters (megatron/core/optimizer/distrib_optimizer.py): over data and context parallelism,
for experts over the replicas of the expert group, which ``compute_weight_and_optimizer_memory`` does not distinguish.
Fragmentation, NCCL's buffers, the CUDA context and library workspaces come on top.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from three_walls.facts.model_flops import projection_weights
from three_walls.lib.declare import CATALOG, artifact, fact
from three_walls.lib.measurement import Measurement, known, known_or_missing, missing, unstated
from three_walls.megatron.activations import estimate_activations
from three_walls.megatron.model_shape import ModelShape, read_model_shape
from three_walls.megatron.parallel_layout import CompleteLayout, read_layout
from three_walls.megatron.settings.run_config import ConfigValue, RunConfig
from three_walls.step.step_view import RunView

NO_DEVICE_MEMORY = "the trace does not record the GPU's memory, or ranks differ in it (TARGET_INFO_GPU)"

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


@artifact
def estimated_stages(config_as_run: RunConfig) -> Measurement[tuple[StageMemory, ...]]:
    """The memory of every pipeline stage."""
    return estimate_stages(config_as_run)


@artifact
def fullest_stage(estimated_stages: tuple[StageMemory, ...]) -> StageMemory:
    """The stage that needs most memory."""
    return find_fullest(estimated_stages)


@artifact
def usable_bytes(
    run: RunView, log_reserved_memory_bytes: Measurement[int], log_allocator_retries_count: Measurement[int]
) -> Measurement[int]:
    """Memory of the GPU that the run can have.

    Where an allocation had to be tried again, the allocator got no more than it had reserved by then, however much more
    the GPU has: a limit, or another process, holds the rest.
    """
    device_bytes, reserved_bytes = run.device.memory_bytes if run.device else None, log_reserved_memory_bytes.value
    if log_allocator_retries_count.value and reserved_bytes:
        return known(reserved_bytes if device_bytes is None else min(device_bytes, reserved_bytes))
    return known_or_missing(device_bytes or None, NO_DEVICE_MEMORY)


@artifact
def peak_without_recompute(
    config_as_run: RunConfig,
    memory_peak_bytes: int,
    estimated_stages: Measurement[tuple[StageMemory, ...]],
) -> Measurement[int]:
    """The measured peak, with the estimated activations replaced by those without recompute.

    Both estimates leave out the same (fragments, workspaces): the difference does not contain it, the peak does.
    """
    no_recompute = {"recompute_granularity": ConfigValue(None, "without recompute")}
    without = estimate_stages(replace(config_as_run, values={**config_as_run.values, **no_recompute}))
    if estimated_stages.value is None or without.value is None:
        return missing(str(estimated_stages.missing_reason or without.missing_reason))
    now, then = find_fullest(estimated_stages.value).activations, find_fullest(without.value).activations
    if now.value is None or then.value is None:
        return missing(str(now.missing_reason or then.missing_reason))
    return known(memory_peak_bytes + then.value - now.value)


@fact("count", "the number of parameters per GPU")
def parameters_per_gpu_count(fullest_stage: StageMemory) -> int:
    """Parameters on a GPU of the fullest pipeline stage, from the config."""
    return fullest_stage.parameter_count


@fact("bytes", "parameter memory per GPU")
def memory_parameters_bytes(fullest_stage: StageMemory) -> int:
    """Parameters on a GPU of the fullest pipeline stage, in the precision of the model."""
    return fullest_stage.parameters


@fact("bytes", "gradient memory per GPU")
def memory_gradients_bytes(fullest_stage: StageMemory) -> int:
    """Gradients on a GPU of the fullest pipeline stage, in the precision in which they are reduced."""
    return fullest_stage.gradients


@fact("bytes", "optimizer memory per GPU")
def memory_optimizer_bytes(fullest_stage: StageMemory) -> int:
    """The optimizer's copy of the parameters and its moments on a GPU of the fullest pipeline stage, sharded by the
    distributed optimizer."""
    return fullest_stage.optimizer


@fact("bytes", "activation memory per GPU")
def memory_activations_bytes(fullest_stage: StageMemory) -> Measurement[int]:
    """Activations that wait for the backward pass at the peak, with the working set at that moment, estimated from the
    config: micro-batches in flight, recompute, unfused scores, balanced routing.

    Not the same as: A measurement: compared with logs of unfused attention only, where it is within 3% of the peak.
    """
    return fullest_stage.activations


@fact("bytes", "the estimated peak of memory")
def memory_estimated_peak_bytes(fullest_stage: StageMemory) -> Measurement[int]:
    """Parameters, gradients, optimizer state and activations of the fullest pipeline stage together, per GPU.

    Not the same as: Memory in use: fragments of the allocator, NCCL's buffers and the CUDA context come on top.
    """
    return fullest_stage.activations.map(lambda _: fullest_stage.total)


@fact("bytes", "memory headroom per GPU")
def memory_headroom_bytes(
    usable_bytes: int,
    log_peak_memory_bytes: Measurement[int],
    memory_peak_bytes: Measurement[int],
    memory_estimated_peak_bytes: Measurement[int],
) -> Measurement[int]:
    """Device memory less the peak of allocated memory by the log, or less the estimated peak where no log printed one.
    If an allocation had to be tried again, the peak of reserved memory counts as the device memory.

    Not the same as: Memory that is free: neither peak contains fragments of the allocator, NCCL's buffers and the CUDA
    context.
    """
    used = memory_estimated_peak_bytes if log_peak_memory_bytes.value is None else memory_peak_bytes
    return used.map(lambda used_bytes: usable_bytes - used_bytes)


@fact("bytes", "the peak of allocated memory")
def memory_peak_bytes(
    log_peak_memory_bytes: Measurement[int],
    log_memory_iterations_count: Measurement[int],
    estimated_stages: Measurement[tuple[StageMemory, ...]],
) -> Measurement[int]:
    """Peak of allocated memory by the log. Where the log prints memory after its first iteration alone, the optimizer's
    moments (estimated) are added."""
    # Megatron-Bridge 0.3 prints memory once, after the first logged iteration. Measured on H200s: 6.81 GB printed after
    # iteration 1 and 9.00 GB in the end, with moments of 2.22 GB (Bridge 0.3.1); 15.81 GB after iteration 1 and 19.71
    # GB after 2, with moments of 3.92 GB (0.6.2).
    printed_bytes = log_peak_memory_bytes.value
    if printed_bytes is None:
        return missing("no training log with lines of allocated memory was given (--log)")
    if log_memory_iterations_count.value != 1:
        return known(printed_bytes)
    if estimated_stages.value is None:
        return missing("the log prints memory after its first iteration alone, before the optimizer had its moments")
    return known(printed_bytes + max(stage.moments for stage in estimated_stages.value))


@fact("fraction", "peak memory", whole="device memory")
def memory_peak_fraction(memory_peak_bytes: int, usable_bytes: int) -> float:
    """Fraction of the device memory that is allocated at the peak, by the log. If an allocation had to be tried again,
    the peak of reserved memory counts as the device memory: the run got no more."""
    return memory_peak_bytes / usable_bytes


@fact("ratio", "peak memory without recompute over device memory")
def memory_peak_without_recompute_ratio(peak_without_recompute: int, usable_bytes: int) -> float:
    """Peak of allocated memory by the log, with the estimated activations replaced by those without recompute, over
    device memory.

    Not the same as: A measured peak: above 1 such a run would not fit.
    """
    return peak_without_recompute / usable_bytes


@fact("ratio", "doubled micro-batch's peak over device memory")
def memory_peak_larger_micro_batch_ratio(
    memory_peak_bytes: int, estimated_stages: tuple[StageMemory, ...], usable_bytes: int
) -> float:
    """Peak of allocated memory by the log, with all of it doubled but parameters, gradients and optimizer state (of the
    emptiest pipeline stage), over device memory: an upper bound, because workspaces do not all grow.

    Not the same as: A measured peak: above 1 such a run may not fit.
    """
    return _peak_with_larger_micro_batch(memory_peak_bytes, estimated_stages) / usable_bytes


@fact("ratio", "doubled micro-batch's peak without recompute")
def memory_peak_larger_micro_batch_without_recompute_ratio(
    peak_without_recompute: int, estimated_stages: tuple[StageMemory, ...], usable_bytes: int
) -> float:
    """The peak without recompute, with all of it doubled but parameters, gradients and optimizer state (of the emptiest
    pipeline stage), over device memory: an upper bound, because workspaces do not all grow.

    Not the same as: A measured peak: above 1 such a run may not fit.
    """
    return _peak_with_larger_micro_batch(peak_without_recompute, estimated_stages) / usable_bytes


for _name, _label, _meaning, _part in (
    (
        "memory_parameters_fraction",
        "memory for parameters",
        "Fraction of the device memory that parameters take, from the config.",
        "memory_parameters_bytes",
    ),
    (
        "memory_optimizer_fraction",
        "memory for optimizer state",
        "Fraction of the device memory that the optimizer's state takes, from the config.",
        "memory_optimizer_bytes",
    ),
    (
        "memory_activations_fraction",
        "memory for activations",
        "Fraction of the device memory that activations take at the peak, estimated from the config.",
        "memory_activations_bytes",
    ),
):
    CATALOG.quotient(__name__, _name, _label, _meaning, (_part, "gpu.memory_bytes"), whole="device memory")


def find_fullest(stages: tuple[StageMemory, ...]) -> StageMemory:
    """The stage that needs most; of equals the first."""
    return max(stages, key=lambda stage: (stage.total, -stage.stage))


def _peak_with_larger_micro_batch(peak_bytes: int, stages: tuple[StageMemory, ...]) -> int:
    """``peak_bytes``, with everything doubled that does not stay as it is with any micro-batch.

    Megatron-LM on H200s with one and two sequences (docs/measured-pairs.md, before the optimizer has its moments):
    15,016 MB became 25,144 MB, where this gives 25,234 MB.
    """
    constant = min(stage.parameters + stage.gradients + stage.optimizer for stage in stages)
    return peak_bytes + max(0, peak_bytes - constant)


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


def count_dense_parameters(config: RunConfig) -> Measurement[int]:
    """Parameters outside experts that a GPU of the pipeline stage with most of them holds."""
    shape, layout = read_model_shape(config), read_layout(config).complete()
    if shape.value is None or layout.value is None:
        return missing(str(shape.missing_reason or layout.missing_reason))
    stages = layout.value.layers_by_stage(config, shape.value.layers)
    if stages is None:
        return missing("the pipeline's stages hold unequal numbers of layers")
    held = (count_parameters(shape.value, layout.value, config, layers, stage) for stage, layers in enumerate(stages))
    return known(max(dense for dense, _ in held))


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
    held = len(layers) + predicted
    has_biases = config.get("add_bias_linear") is True
    per_norm = 1 if config.get("normalization") == "RMSNorm" else 2  # LayerNorm has a bias too

    def mlp(hidden: int, ffn: int) -> int:
        biases = (shape.ffn_matrices - 1) * ffn + hidden if has_biases and ffn else 0
        return shape.ffn_matrices * hidden * ffn + biases

    layer_norms = 2 * per_norm * shape.hidden
    if config.get("qk_layernorm") is True and shape.latent is None:
        layer_norms += 2 * per_norm * (shape.query // shape.heads)
    replicated = held * layer_norms + moe * shape.hidden * shape.experts
    replicated += per_norm * shape.hidden if is_last else 0

    projection_biases = has_biases * shape.hidden
    if has_biases or config.get("add_qkv_bias") is True:
        projection_biases += shape.query + shape.key + shape.value
    sharded = held * (projection_weights(shape) + projection_biases)
    sharded += (held - moe) * mlp(shape.hidden, shape.dense_ffn) + moe * mlp(shape.hidden, shape.shared_ffn)
    if shape.expert_hidden != shape.hidden:
        sharded += moe * 2 * shape.hidden * shape.expert_hidden
    sharded += predicted * 2 * shape.hidden * shape.hidden
    # Embedding and output layer; a tied output layer on another stage than the embedding has a copy of its own.
    tables = 1 if is_first and is_last and shape.is_tied else is_first + is_last
    sharded += tables * shape.vocabulary * shape.hidden

    experts = moe * shape.experts * mlp(shape.expert_hidden, shape.expert_ffn)
    return replicated + sharded // layout.tensor, experts // (layout.expert * layout.expert_tensor)
