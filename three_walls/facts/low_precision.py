"""What casts to a lower precision move, against the GEMMs that gain by it.

A linear layer multiplies its input with its weight, and backward the gradient of its output with both. Before a GEMM in
FP8 each of the three is read in bf16 and written in FP8, once for all GEMMs that use it. Sizes are those of the config,
with tokens spread evenly over the experts.
"""

from __future__ import annotations

import re

import polars as pl

from three_walls.facts.run_layout import UNKNOWN_GPU
from three_walls.layers.labels import LabelledOperations
from three_walls.lib.declare import duration, fact
from three_walls.lib.measurement import Measurement, known, missing
from three_walls.megatron.count_flops import STEP_PER_FORWARD, count_forward, projection_weights
from three_walls.megatron.model_shape import ModelShape
from three_walls.megatron.parallel_layout import CompleteLayout
from three_walls.step.intervals import DURATION
from three_walls.step.step_view import StepView
from three_walls.tables.buckets import GEMM_CATEGORIES
from three_walls.tables.hardware import BF16, FP8
from three_walls.tables.kernel_names import precision_of_kernel
from three_walls.tables.model_parts import OPTIMIZER, OUTSIDE

BYTES_PER_VALUE = 2
"""Of bf16 and fp16."""
UPDATED_WEIGHT_CAST_NS = 0.07
"""Per weight on a Hopper GPU, by weights of three sizes (te-wide-fp8-current-scaling): 0.070, 0.070 and 0.074.

Transformer Engine casts an optimizer's flat shard with a kernel that transposes tiles of 128 rows, of which one is
filled (transformer_engine/pytorch/tensor/utils.py). Most threads idle, so it is as slow on memory of any bandwidth.
"""
CAST_BANDWIDTH_FRACTION = 0.7
"""Of the bandwidth of device memory: a kernel that casts whole tensors reached 0.79 for 33 million values on an H200
(dense-gelu-delayed), and weights are smaller."""
_PADDING = re.compile("multi_(un)?padding_kernel")
"""Transformer Engine's kernels that pad the tokens of each expert, and take the padding away."""


@duration("token padding time per step", share="padding of tokens")
def token_padding_ns(step: StepView) -> int:
    """Time per step that Transformer Engine's kernels take that pad the tokens of each expert for low precision."""
    padding = [number for number, name in step.trace.names.items() if _PADDING.search(name)]
    return int(step.kernels.filter(pl.col("name_id").is_in(padding)).select(DURATION).sum().item())


@fact("ratio", "casts against GEMMs in FP8")
def casts_to_fp8_gemms_ratio(step: StepView, quantize_ns: int) -> Measurement[float]:
    """Time that casts to FP8, their scales and their transposes take, over the time of the GEMMs whose kernels have
    factors in FP8."""
    gemms = step.kernels.filter(pl.col("category").is_in(list(GEMM_CATEGORIES))).select("name_id", DURATION.alias("ns"))
    names = gemms["name_id"].drop_nulls().unique()
    in_fp8 = [number for number in names if precision_of_kernel(step.trace.names.get(number, ""), None) == FP8]
    fp8_ns = int(gemms.filter(pl.col("name_id").is_in(in_fp8))["ns"].sum())
    return known(quantize_ns / fp8_ns) if fp8_ns else missing("no GEMM of the step is known to run in FP8")


@fact("fraction", "time to read the linear layers' inputs")
def linear_inputs_read_fraction(
    step: StepView,
    model_shape: ModelShape,
    complete_layout: CompleteLayout,
    gemm_efficiency_fraction: Measurement[float],
) -> Measurement[float]:
    """Fraction of the time of the linear layers' GEMMs (attention projections, experts, dense and shared MLPs) that
    reading their inputs, the gradients of their outputs and their weights once in 16 bits would take at the full
    bandwidth of device memory.

    Not the same as: Time of casts: those read more than once, write too, and do not reach the full bandwidth.
    """
    if step.gpu is None:
        return missing(UNKNOWN_GPU)
    efficiency = gemm_efficiency_fraction.value
    if not efficiency:
        return missing(gemm_efficiency_fraction.missing_reason or "the efficiency of the GEMMs is not known")
    forward = count_forward(model_shape, has_output=False)
    per_token = forward.projections + forward.experts + forward.dense_mlp + forward.shared_experts
    gpus = complete_layout.world // complete_layout.pipeline
    tokens = complete_layout.global_batch * model_shape.sequence / gpus
    flops = STEP_PER_FORWARD * per_token * tokens
    values = _count_activations(model_shape) * tokens + sum(_count_weights(model_shape, complete_layout))
    read_s = BYTES_PER_VALUE * values / step.gpu.memory_bytes_per_s
    return known(read_s * efficiency * (step.gpu.peak_flops(BF16) or 0) / flops)


@fact("fraction", "the share of inner layers", whole="all layers")
def inner_layers_fraction(step: StepView) -> Measurement[float]:
    """Fraction of the model's layers that are neither the first nor the last."""
    layers = step.config.whole_number("num_layers")
    return known(max(0, layers - 2) / layers) if layers else missing("the config does not state num_layers")


@fact("ratio", "all layers against inner layers")
def layers_per_inner_layer_ratio(inner_layers_fraction: Measurement[float]) -> Measurement[float]:
    """The model's layers over those that are neither the first nor the last."""
    if not inner_layers_fraction.value:
        return missing(inner_layers_fraction.missing_reason or "the model has no inner layer")
    return known(1 / inner_layers_fraction.value)


@fact("ratio", "casts of updated weights against the optimizer")
def weight_casts_ratio(
    step: StepView, labelled_step: LabelledOperations, model_shape: ModelShape, complete_layout: CompleteLayout
) -> Measurement[float]:
    """Time that Transformer Engine takes to cast the updated weights of all linear layers to FP8, over the time of the
    optimizer. Each rank casts what its optimizer updates. Embeddings, norms and routers are not cast.
    """
    optimizer_ns = labelled_step.filter(pl.col("part") == OPTIMIZER).select(DURATION.sum()).item()
    if not optimizer_ns:
        return missing("no kernel of the step is known to be the optimizer's")
    weights, expert_weights = _count_weights(model_shape, complete_layout)
    if step.config.get("use_distributed_optimizer") is True:
        weights, expert_weights = weights / complete_layout.dense_replicas, expert_weights / complete_layout.expert_data
    casts_ns = UPDATED_WEIGHT_CAST_NS * (weights + expert_weights) / complete_layout.pipeline
    return known(casts_ns / optimizer_ns)


@fact("ratio", "casts of updated inner weights against the optimizer")
def inner_weight_casts_ratio(
    weight_casts_ratio: Measurement[float], inner_layers_fraction: Measurement[float]
) -> Measurement[float]:
    """Time that Transformer Engine takes to cast the updated weights of the linear layers to FP8 but for those of the
    first and the last layer, over the time of the optimizer."""
    if weight_casts_ratio.value is None or inner_layers_fraction.value is None:
        return missing(str(weight_casts_ratio.missing_reason or inner_layers_fraction.missing_reason))
    return known(weight_casts_ratio.value * inner_layers_fraction.value)


@duration("casts of updated weights per step", share="casts of updated weights")
def updated_weight_casts_ns(labelled_step: LabelledOperations) -> int:
    """Time per step that kernels take to cast weights to FP8 after the optimizer updated them: casts outside of layers
    and of both passes."""
    is_cast = (pl.col("category").cast(pl.String) == "quantize") & pl.col("direction").is_null()
    return int(labelled_step.filter(is_cast & (pl.col("module") == OUTSIDE)).select(DURATION.sum()).item())


@fact("ratio", "forward casts of weights against updated ones")
def weight_recasts_ratio(
    step: StepView, model_shape: ModelShape, complete_layout: CompleteLayout, updated_weight_casts_ns: int
) -> Measurement[float]:
    """Time that the first forward passes of a step would take to cast the rank's weights from bf16, over the time that
    casts after the update take. The former read and write 4 bytes a weight, and with current scaling read 2 more
    before, for the largest value."""
    if step.gpu is None:
        return missing(UNKNOWN_GPU)
    if not updated_weight_casts_ns:
        return missing("no cast of updated weights is in the step")
    weights = sum(_count_weights(model_shape, complete_layout)) / complete_layout.pipeline
    bytes_per_weight = 2 * BYTES_PER_VALUE if step.config.get("fp8_recipe") == "delayed" else 3 * BYTES_PER_VALUE
    casts_s = weights * bytes_per_weight / (CAST_BANDWIDTH_FRACTION * step.gpu.memory_bytes_per_s)
    return known(1e9 * casts_s / updated_weight_casts_ns)


def _count_activations(model: ModelShape) -> int:
    """Values of inputs and of output gradients of the linear layers, per token."""
    moe = len(model.moe_layers)
    projections = 2 * model.hidden + model.query + model.key + model.value + model.context

    def per_mlp(hidden: int, ffn: int) -> int:
        return 2 * hidden + model.ffn_matrices * ffn if ffn else 0

    experts = model.top_k * per_mlp(model.expert_hidden, model.expert_ffn) + per_mlp(model.hidden, model.shared_ffn)
    return model.layers * projections + moe * experts + (model.layers - moe) * per_mlp(model.hidden, model.dense_ffn)


def _count_weights(model: ModelShape, layout: CompleteLayout) -> tuple[float, float]:
    """(outside experts, of experts) values of the linear layers' weights that a rank would hold with every stage."""
    moe, matrices = len(model.moe_layers), model.ffn_matrices
    per_moe_layer, per_dense_layer = (
        matrices * model.hidden * model.shared_ffn,
        matrices * model.hidden * model.dense_ffn,
    )
    others = model.layers * projection_weights(model) + moe * per_moe_layer + (model.layers - moe) * per_dense_layer
    experts = moe * model.experts * matrices * model.expert_hidden * model.expert_ffn
    return others / layout.tensor, experts / (layout.expert * layout.expert_tensor)
