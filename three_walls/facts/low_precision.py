"""What casts to a lower precision move, against the GEMMs that gain by it.

A linear layer multiplies its input with its weight, and backward the gradient of its output with both. Before a GEMM in
FP8 each of the three is read in bf16 and written in FP8, once for all GEMMs that use it. Sizes are those of the config,
with tokens spread evenly over the experts.
"""

from __future__ import annotations

from three_walls.facts.run_layout import UNKNOWN_GPU
from three_walls.lib.declare import fact
from three_walls.lib.measurement import Measurement, known, missing
from three_walls.megatron.count_flops import STEP_PER_FORWARD, count_forward, projection_weights
from three_walls.megatron.model_shape import ModelShape
from three_walls.megatron.parallel_layout import CompleteLayout
from three_walls.step.step_view import StepView
from three_walls.tables.hardware import BF16

BYTES_PER_VALUE = 2
"""Of bf16 and fp16."""


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
    expert_ranks = complete_layout.expert * complete_layout.expert_tensor
    values = _count_activations(model_shape) * tokens + _count_weights(
        model_shape, expert_ranks, complete_layout.tensor
    )
    read_s = BYTES_PER_VALUE * values / step.gpu.memory_bytes_per_s
    return known(read_s * efficiency * (step.gpu.peak_flops(BF16) or 0) / flops)


@fact("fraction", "the share of inner layers", whole="all layers")
def inner_layers_fraction(step: StepView) -> Measurement[float]:
    """Fraction of the model's layers that are neither the first nor the last."""
    layers = step.config.whole_number("num_layers")
    return known(max(0, layers - 2) / layers) if layers else missing("the config does not state num_layers")


def _count_activations(model: ModelShape) -> int:
    """Values of inputs and of output gradients of the linear layers, per token."""
    moe = len(model.moe_layers)
    projections = 2 * model.hidden + model.query + model.key + model.value + model.context

    def per_mlp(hidden: int, ffn: int) -> int:
        return 2 * hidden + model.ffn_matrices * ffn if ffn else 0

    experts = model.top_k * per_mlp(model.expert_hidden, model.expert_ffn) + per_mlp(model.hidden, model.shared_ffn)
    return model.layers * projections + moe * experts + (model.layers - moe) * per_mlp(model.hidden, model.dense_ffn)


def _count_weights(model: ModelShape, expert_ranks: int, tensor: int) -> float:
    """Values of the weights that a rank would cast in a step if it held every stage."""
    moe, matrices = len(model.moe_layers), model.ffn_matrices
    experts = model.experts * matrices * model.expert_hidden * model.expert_ffn / expert_ranks
    shared = matrices * model.hidden * model.shared_ffn / tensor
    dense = matrices * model.hidden * model.dense_ffn / tensor
    return model.layers * projection_weights(model) / tensor + moe * (experts + shared) + (model.layers - moe) * dense
