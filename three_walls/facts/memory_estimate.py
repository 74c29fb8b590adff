"""What a GPU needs for parameters, gradients, optimizer and activations, from the config; beside what was measured.

Bytes per parameter under mixed precision: 2 of the parameter; 4 of the gradient (2 where gradients are reduced in
bf16); the optimizer's fp32 copy and its moments, 12 with Adam. The distributed optimizer shards its part over the GPUs
that hold the same parameters (megatron/core/optimizer/distrib_optimizer.py): over data and context parallelism, for
experts over the replicas of the expert group, which ``compute_weight_and_optimizer_memory`` does not tell apart.
Fragmentation, NCCL's buffers, the CUDA context and library workspaces come on top.
"""

from __future__ import annotations

from dataclasses import dataclass

from three_walls.facts.activation_bytes import estimate_activations
from three_walls.facts.model_shape import ModelShape, read_model_shape
from three_walls.facts.parameter_counts import count_parameters
from three_walls.inputs.config.parallel_layout import CompleteLayout, read_layout
from three_walls.model.config import RunConfig
from three_walls.model.fact import FactValue

Known = tuple[FactValue, str | None]

_MOMENTS = {"adam": 2, "sgd": 1}
_DTYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
_FULLY_SHARDED = ("use_megatron_fsdp", "use_torch_fsdp2")


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes on one GPU of a pipeline stage; ``activations`` None for the reason ``reason``."""

    stage: int
    parameter_count: int
    parameters: int
    gradients: int
    optimizer: int
    moments: int
    """The part of ``optimizer`` that its first update creates."""
    activations: int | None
    reason: str | None

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer + (self.activations or 0)


def estimate_memory(
    config: RunConfig, gpu_memory_bytes: int | None, printed_bytes: int | None, iterations: int | None = None
) -> dict[str, Known]:
    """The glossary's memory facts.

    ``printed_bytes``: the largest peak of allocated memory that the log printed, ``iterations`` of the run before.
    """
    stages, reason = estimate_stages(config)
    facts: dict[str, Known] = {}
    if stages is None:
        missing = (None, reason)
        names = ("parameters_per_gpu_count", *(f"memory_{part}_bytes" for part in _PARTS))
        facts.update(dict.fromkeys(names, missing))
        estimated: Known = missing
    else:
        most = max(stages, key=lambda one: (one.total, -one.stage))
        estimated = (most.total, None) if most.activations is not None else (None, most.reason)
        facts |= {
            "parameters_per_gpu_count": (most.parameter_count, None),
            "memory_parameters_bytes": (most.parameters, None),
            "memory_gradients_bytes": (most.gradients, None),
            "memory_optimizer_bytes": (most.optimizer, None),
            "memory_activations_bytes": (most.activations, most.reason),
        }
    facts["memory_estimated_peak_bytes"] = estimated
    peak = _later_peak(printed_bytes, iterations, stages)
    facts["memory_peak_bytes"] = peak
    facts["memory_peak_fraction"] = _fraction(peak, gpu_memory_bytes)
    facts["memory_headroom_bytes"] = _headroom(gpu_memory_bytes, estimated if printed_bytes is None else peak)
    return facts


def _later_peak(printed_bytes: int | None, iterations: int | None, stages: tuple[StageMemory, ...] | None) -> Known:
    """The peak of later iterations. Megatron-Bridge 0.3 prints memory once, after the first logged iteration.

    Measured on H200s: 6.81 GB printed after iteration 1 and 9.00 GB in the end, with moments of 2.22 GB (Bridge 0.3.1);
    15.81 GB after iteration 1 and 19.71 GB after 2, with moments of 3.92 GB (0.6.2).
    """
    if printed_bytes is None:
        return None, "no training log printed the peak of allocated memory"
    if iterations != 1:
        return printed_bytes, None
    if stages is None:
        return None, "the log prints memory after its first iteration alone, before the optimizer had its moments"
    return printed_bytes + max(one.moments for one in stages), None


_PARTS = ("parameters", "gradients", "optimizer", "activations")


def estimate_stages(config: RunConfig) -> tuple[tuple[StageMemory, ...] | None, str | None]:
    """The memory of every pipeline stage, or (None, why it cannot be told)."""
    read = read_model_shape(config)
    shape = read.value
    if shape is None:
        return None, read.missing_reason
    if shape.is_tied is None:
        return None, "the config does not say untie_embeddings_and_output_weights"
    complete = read_layout(config).complete()
    layout = complete.value
    if layout is None:
        return None, complete.missing_reason
    stages = layout.layers_by_stage(config, shape.layers)
    if stages is None:
        return None, "the pipeline's stages hold unequal numbers of layers"
    reason = _why_not_counted(config)
    if reason:
        return None, reason
    return tuple(_of_stage(shape, layout, config, layers, stage) for stage, layers in enumerate(stages)), None


def _of_stage(
    shape: ModelShape, layout: CompleteLayout, config: RunConfig, layers: tuple[int, ...], stage: int
) -> StageMemory:
    counts = count_parameters(shape, layout, config, layers, stage)
    is_mixed = config.get("bf16") is True or config.get("fp16") is True
    gradient = 4 if not is_mixed or config.get("grad_reduce_in_fp32") is not False else 2
    state, moments = _optimizer_bytes_per_parameter(config, is_mixed)
    shards, expert_shards = 1, 1
    if config.get("use_distributed_optimizer") is True:
        instances = config.whole_number("num_distributed_optimizer_instances") or 1
        shards, expert_shards = (max(1, n // instances) for n in (layout.dense_replicas, layout.expert_data))
    sharded = counts.dense / shards + counts.experts / expert_shards
    activations, reason = estimate_activations(shape, layout, config, layers, stage)
    return StageMemory(
        stage=stage,
        parameter_count=counts.total,
        parameters=counts.total * (2 if is_mixed else 4),
        gradients=counts.total * gradient,
        optimizer=round(state * sharded),
        moments=round(moments * sharded),
        activations=activations,
        reason=reason,
    )


def _optimizer_bytes_per_parameter(config: RunConfig, is_mixed: bool) -> tuple[float, float]:
    """(all that the optimizer keeps, its moments alone)."""
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
    for key in ("use_distributed_optimizer", "bf16", "grad_reduce_in_fp32"):
        if not config.knows(key):
            return f"the config does not say {key}"
    return None


def _fraction(peak: Known, gpu_memory_bytes: int | None) -> Known:
    used, reason = peak
    if not isinstance(used, int):
        return None, reason
    if not gpu_memory_bytes:
        return None, "the trace does not say how much memory the GPU has"
    return used / gpu_memory_bytes, None


def _headroom(gpu_memory_bytes: int | None, peak: Known) -> Known:
    if not gpu_memory_bytes:
        return None, "the trace does not say how much memory the GPU has"
    used, reason = peak
    return (gpu_memory_bytes - used, None) if isinstance(used, int) else (None, reason)
