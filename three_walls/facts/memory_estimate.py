"""What a GPU needs for parameters, gradients, optimizer and activations, from the config; and its peak of memory."""

from __future__ import annotations

from dataclasses import replace

from three_walls.lib.declare import CATALOG, artifact, fact
from three_walls.lib.measurement import Measurement, known, known_or_missing, missing
from three_walls.megatron.settings.run_config import ConfigValue, RunConfig
from three_walls.megatron.stage_memory import StageMemory, estimate_stages, find_fullest
from three_walls.step.step_view import RunView

LOW_PRECISION = ("fp8", "fp4", "fp8_param_gather")
"""Settings with which activations or parameters are not counted, and without which they are those of BF16."""
NO_DEVICE_MEMORY = "the trace does not record the GPU's memory, or ranks differ in it (TARGET_INFO_GPU)"


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
def peak_without_recompute(config_as_run: RunConfig, memory_peak_bytes: int) -> Measurement[int]:
    """The measured peak, with the estimated activations replaced by those without recompute.

    Both estimates leave out the same (fragments, workspaces): the difference does not contain it, the peak does. Both
    are of BF16. In FP8 linear layers keep no more than that, so there it is an upper bound.
    """
    in_bf16 = {key: ConfigValue(None, "in BF16") for key in LOW_PRECISION}
    no_recompute = in_bf16 | {"recompute_granularity": ConfigValue(None, "without recompute")}
    stages, without = (
        estimate_stages(replace(config_as_run, values={**config_as_run.values, **changed}))
        for changed in (in_bf16, no_recompute)
    )
    if stages.value is None or without.value is None:
        return missing(str(stages.missing_reason or without.missing_reason))
    now, then = find_fullest(stages.value).activations, find_fullest(without.value).activations
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
    return peak_with_larger_micro_batch(memory_peak_bytes, estimated_stages) / usable_bytes


@fact("ratio", "doubled micro-batch's peak without recompute")
def memory_peak_larger_micro_batch_without_recompute_ratio(
    peak_without_recompute: int, estimated_stages: tuple[StageMemory, ...], usable_bytes: int
) -> float:
    """The peak without recompute, with all of it doubled but parameters, gradients and optimizer state (of the emptiest
    pipeline stage), over device memory: an upper bound, because workspaces do not all grow.

    Not the same as: A measured peak: above 1 such a run may not fit.
    """
    return peak_with_larger_micro_batch(peak_without_recompute, estimated_stages) / usable_bytes


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


def peak_with_larger_micro_batch(peak_bytes: int, stages: tuple[StageMemory, ...], times: float = 2) -> int:
    """``peak_bytes``, with everything ``times`` as large that does not stay as it is with any micro-batch.

    Megatron-LM on H200s with one and two sequences (docs/measured-pairs.md, before the optimizer has its moments):
    15,016 MB became 25,144 MB, where this gives 25,234 MB.
    """
    constant = min(stage.parameters + stage.gradients + stage.optimizer for stage in stages)
    return peak_bytes + round((times - 1) * max(0, peak_bytes - constant))
