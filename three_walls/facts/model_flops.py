"""Floating point operations of a training step, counted from the model's sizes, and the utilization they give (MFU).

A GEMM of an m x n and an n x k matrix takes 2mnk operations. The backward pass takes two GEMMs for each one of the
forward pass, so a step takes three times the forward pass. What recompute runs again is no model work.

The terms are those of ``num_floating_point_operations`` (megatron/training/training.py of Megatron Core 0.16.1, and
megatron/bridge/training/utils/flop_utils.py of Megatron-Bridge), from which the ``TFLOP/s/GPU`` of training logs comes:
attention counts the half of the scores that a causal mask leaves. Those functions leave the router out; here it is a
term of its own.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields

from three_walls.facts.run_layout import UNKNOWN_GPU
from three_walls.lib.fact import FactDefinition, FactGroup, Measurements
from three_walls.lib.measurement import GIVE_CONFIG, Measurement, known, known_or_missing, missing, unstated
from three_walls.lib.units import NS_PER_S
from three_walls.megatron.model_shape import ModelShape, read_model_shape
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.step.step_view import NO_STEP, RunView
from three_walls.tables.hardware import BF16, FP8, NVFP4

facts = FactGroup()
MODEL_FLOPS = facts.fact(
    "model_flops_per_step",
    "flops",
    "model FLOPs per step",
    "Floating point operations of the model in one step on all GPUs: three times the forward pass of its GEMMs and of "
    "causal attention, from the config.",
    "What the GPUs run: recompute, and the masked half of unfused scores, are no model work.",
)
MEGATRON_FLOPS = facts.fact(
    "megatron_flops_per_step",
    "flops",
    "model FLOPs as Megatron counts them",
    "Floating point operations of the model in one step on all GPUs as Megatron counts them for the TFLOP/s/GPU of its "
    "log: without the router.",
)
FLOPS_PER_GPU = facts.fact(
    "flops_per_gpu_step",
    "flops",
    "model FLOPs per GPU and step",
    "Floating point operations of the model in one step over the number of GPUs.",
)
PEAK_FLOPS = facts.fact(
    "peak_flops_per_s",
    "flops_per_s",
    "the GPU's peak FLOP rate",
    "The GPU's peak in dense GEMMs at the run's precision (tables/hardware.yaml).",
)
MFU = facts.fact(
    "mfu_fraction",
    "fraction",
    "model FLOPs utilization",
    "Model FLOPs utilization of unprofiled steps: model FLOPs per GPU over the log's step time, as a fraction of the "
    "GPU's peak.",
    "Utilization across precisions: the peak is that of the run's precision, and FP8 doubles it.",
)
MFU_TRACED = facts.fact(
    "mfu_traced_fraction",
    "fraction",
    "traced model FLOPs utilization",
    "Model FLOPs utilization of the representative step as traced: model FLOPs per GPU over its length, as a fraction "
    "of the GPU's peak.",
    "Utilization of the run: profiling slows steps.",
)

OPERATIONS_PER_ENTRY = 2
"""A multiplication and an addition per weight and token."""

STEP_PER_FORWARD = 3
"""Forward, gradient of the input, gradient of the weight."""


@dataclass(frozen=True, slots=True)
class ForwardFlops:
    """Operations of the forward pass for one token, by what they are for."""

    projections: int = 0
    """Query, key, value and output projections of attention."""
    attention: int = 0
    """Scores, and scores times values, below the causal diagonal; without a mask they take twice as many."""
    dense_mlp: int = 0
    experts: int = 0
    shared_experts: int = 0
    router: int = 0
    logits: int = 0
    prediction: int = 0
    """Projections in front of the layers of multi-token prediction, and their norms."""

    @property
    def total(self) -> int:
        return sum(int(getattr(self, field.name)) for field in fields(self))

    @property
    def as_logged(self) -> int:
        """Operations by Megatron's own formula."""
        return self.total - self.router


def count_forward(
    shape: ModelShape, layers: Collection[int] | None = None, has_output: bool = True, copies: int | None = None
) -> ForwardFlops:
    """Operations per token of ``layers`` (all of them when None), with the output layer or without.

    ``copies``: layers of multi-token prediction next to the output layer, those of the model when None.
    """
    numbers = range(shape.layers) if layers is None else layers
    predicted = (shape.prediction_layers if copies is None else copies) if has_output else 0
    moe = sum(number in shape.moe_layers for number in numbers) + predicted * shape.last_layer_is_moe
    dense = len(numbers) + predicted - moe
    attended = moe + dense
    per_mlp = OPERATIONS_PER_ENTRY * shape.ffn_matrices
    latent_projections = 0
    if shape.expert_hidden != shape.hidden:  # down to the latent size and up again, once per token
        latent_projections = 2 * OPERATIONS_PER_ENTRY * shape.hidden * shape.expert_hidden
    return ForwardFlops(
        projections=attended * OPERATIONS_PER_ENTRY * projection_weights(shape),
        attention=attended * shape.sequence * (shape.query + shape.context),
        dense_mlp=dense * per_mlp * shape.hidden * shape.dense_ffn,
        experts=moe * (per_mlp * shape.expert_hidden * shape.expert_ffn * shape.top_k + latent_projections),
        shared_experts=moe * per_mlp * shape.hidden * shape.shared_ffn,
        router=moe * OPERATIONS_PER_ENTRY * shape.hidden * shape.experts,
        logits=OPERATIONS_PER_ENTRY * shape.hidden * shape.vocabulary * (1 + predicted) if has_output else 0,
        prediction=predicted * OPERATIONS_PER_ENTRY * (3 * shape.hidden + 2 * shape.hidden * shape.hidden),
    )


def projection_weights(shape: ModelShape) -> int:
    """Entries of the matrices around one layer's attention (with the norms of compressed queries, keys and values)."""
    output = shape.context * shape.hidden
    latent = shape.latent
    if latent is None:
        return shape.hidden * (shape.query + shape.key + shape.value) + output
    queries = shape.hidden * shape.query
    if latent.query_rank is not None:
        queries = latent.query_rank * (shape.hidden + shape.query + 1)
    keys_and_values = latent.key_value_rank * (shape.hidden + shape.heads * latent.head + shape.value + 1)
    return queries + keys_and_values + shape.hidden * latent.rotary + output


def step_flops(per_token: int, tokens: int) -> int:
    """Operations of a training step over ``tokens``, forward and backward."""
    return STEP_PER_FORWARD * per_token * tokens


def measure_utilization(run: RunView, traced_step_ns: int | None, unprofiled_step_ns: int | None) -> Measurements:
    """Every fact of this group. The step lengths, as traced and by the log, are None where they are not known."""
    work = _count_work(run)
    precision = precision_of(run.config)
    peak: Measurement[int] = missing(UNKNOWN_GPU)
    if precision.value is None:
        peak = missing(str(precision.missing_reason))
    elif run.gpu is not None:
        no_peak = f"tables/hardware.yaml has no peak in {precision.value} for {run.gpu.family}"
        peak = known_or_missing(run.gpu.peak_flops(precision.value), no_peak)
    per_gpu = work[FLOPS_PER_GPU]

    def utilization(step_ns: int | None, no_step: str) -> Measurement[float]:
        if not per_gpu.value or not peak.value:
            return missing(str(per_gpu.missing_reason or peak.missing_reason))
        return known(per_gpu.value * NS_PER_S / step_ns / peak.value) if step_ns else missing(no_step)

    return {
        **work,
        PEAK_FLOPS: peak,
        MFU: utilization(unprofiled_step_ns, "no training log with unprofiled steps was given (--log)"),
        MFU_TRACED: utilization(traced_step_ns, NO_STEP),
    }


def _count_work(run: RunView) -> dict[FactDefinition, Measurement[int]]:
    """The model's operations per step: as defined here, as Megatron's log counts them, and per GPU."""
    shape = read_model_shape(run.config)
    batch = run.config.whole_number("global_batch_size")
    if shape.value is None or not batch:
        lacking = missing(shape.missing_reason) if shape.missing_reason else unstated("global_batch_size")
        return dict.fromkeys((MODEL_FLOPS, MEGATRON_FLOPS, FLOPS_PER_GPU), lacking)
    forward = count_forward(shape.value)
    tokens = batch * shape.value.sequence
    total = step_flops(forward.total, tokens)
    world = run.layout.world
    return {
        MODEL_FLOPS: known(total),
        MEGATRON_FLOPS: known(step_flops(forward.as_logged, tokens)),
        FLOPS_PER_GPU: known(total // world) if world else missing(f"the number of GPUs is not known {GIVE_CONFIG}"),
    }


def precision_of(config: RunConfig) -> Measurement[str]:
    """The precision of most GEMMs."""
    if config.get("fp4"):
        return known(NVFP4)
    if config.get("fp8"):
        return known(FP8)
    if not config.knows("fp8"):
        return unstated("fp8")
    if config.get("bf16") is True or config.get("fp16") is True:
        return known(BF16)
    return missing(f"the config does not state that GEMMs run in bf16 or fp16 {GIVE_CONFIG}")
