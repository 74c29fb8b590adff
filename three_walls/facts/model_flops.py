"""Floating point operations of a training step, counted from the model's sizes, and the utilization they give (MFU)."""

from __future__ import annotations

from three_walls.facts.run_layout import UNKNOWN_GPU
from three_walls.lib.declare import artifact, fact
from three_walls.lib.measurement import GIVE_CONFIG, NS_PER_S, Measurement, known, known_or_missing, missing, unstated
from three_walls.megatron.count_flops import count_forward, precision_of, step_flops
from three_walls.megatron.model_shape import ModelShape, read_model_shape
from three_walls.step.step_view import NO_STEP, RunView


@artifact
def model_shape(run: RunView) -> Measurement[ModelShape]:
    """The sizes of the model."""
    return read_model_shape(run.config)


@artifact
def step_tokens(model_shape: ModelShape, run: RunView) -> Measurement[int]:
    """Tokens of one step on all GPUs."""
    batch = run.config.whole_number("global_batch_size")
    return known(batch * model_shape.sequence) if batch else unstated("global_batch_size")


@fact("flops", "model FLOPs per step")
def model_flops_per_step(model_shape: ModelShape, step_tokens: int) -> int:
    """Floating point operations of the model in one step on all GPUs: three times the forward pass of its GEMMs and of
    causal attention, from the config.

    Not the same as: What the GPUs run: recompute, and the masked half of unfused scores, are no model work.
    """
    return step_flops(count_forward(model_shape).total, step_tokens)


@fact("flops", "model FLOPs as Megatron counts them")
def megatron_flops_per_step(model_shape: ModelShape, step_tokens: int) -> int:
    """Floating point operations of the model in one step on all GPUs as Megatron counts them for the TFLOP/s/GPU of its
    log: without the router."""
    return step_flops(count_forward(model_shape).as_logged, step_tokens)


@fact("flops", "model FLOPs per GPU and step")
def flops_per_gpu_step(model_flops_per_step: int, run: RunView) -> Measurement[int]:
    """Floating point operations of the model in one step over the number of GPUs."""
    world = run.layout.world
    return known(model_flops_per_step // world) if world else missing(f"the number of GPUs is not known {GIVE_CONFIG}")


@fact("flops_per_s", "the GPU's peak FLOP rate")
def peak_flops_per_s(run: RunView) -> Measurement[int]:
    """The GPU's peak in dense GEMMs at the run's precision (tables/hardware.yaml)."""
    precision = precision_of(run.config)
    if precision.value is None:
        return missing(str(precision.missing_reason))
    if run.gpu is None:
        return missing(UNKNOWN_GPU)
    no_peak = f"tables/hardware.yaml has no peak in {precision.value} for {run.gpu.family}"
    return known_or_missing(run.gpu.peak_flops(precision.value), no_peak)


@fact("fraction", "model FLOPs utilization")
def mfu_fraction(
    flops_per_gpu_step: int, peak_flops_per_s: int, unprofiled_step_ns: Measurement[int]
) -> Measurement[float]:
    """Model FLOPs utilization of unprofiled steps: model FLOPs per GPU over the log's step time, as a fraction of the
    GPU's peak.

    Not the same as: Utilization across precisions: the peak is that of the run's precision, and FP8 doubles it.
    """
    if not unprofiled_step_ns.value:
        return missing("no training log with unprofiled steps was given (--log)")
    return known(flops_per_gpu_step * NS_PER_S / unprofiled_step_ns.value / peak_flops_per_s)


@fact("fraction", "traced model FLOPs utilization")
def mfu_traced_fraction(flops_per_gpu_step: int, peak_flops_per_s: int, step_ns: int) -> Measurement[float]:
    """Model FLOPs utilization of the representative step as traced: model FLOPs per GPU over its length, as a fraction
    of the GPU's peak.

    Not the same as: Utilization of the run: profiling slows steps.
    """
    return known(flops_per_gpu_step * NS_PER_S / step_ns / peak_flops_per_s) if step_ns else missing(NO_STEP)
