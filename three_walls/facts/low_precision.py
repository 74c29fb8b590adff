"""What casts to a lower precision move, against the GEMMs that gain by it.

A linear layer multiplies its input with its weight, and backward the gradient of its output with both. Before a GEMM in
FP8 each of the three is read in bf16 and written in FP8, once for all GEMMs that use it. Sizes are those of the config,
with tokens spread evenly over the experts.
"""

from __future__ import annotations

from three_walls.facts.gemm_efficiency import GEMM_EFFICIENCY
from three_walls.facts.model_flops import STEP_PER_FORWARD, count_forward, projection_weights
from three_walls.facts.run_layout import UNKNOWN_GPU
from three_walls.lib.fact import FactGroup, FactValue, Measurements
from three_walls.lib.measurement import Measurement, known, missing
from three_walls.megatron.model_shape import ModelShape, read_model_shape
from three_walls.step.step_view import RunView
from three_walls.tables.hardware import BF16

BYTES_PER_VALUE = 2
"""Of bf16 and fp16."""

facts = FactGroup()
LINEAR_INPUTS_READ = facts.fact(
    "linear_inputs_read_fraction",
    "fraction",
    "time to read the linear layers' inputs",
    "Fraction of the time of the linear layers' GEMMs (attention projections, experts, dense and shared MLPs) that "
    "reading their inputs, the gradients of their outputs and their weights once in 16 bits would take at the full "
    "bandwidth of device memory.",
    "Time of casts: those read more than once, write too, and do not reach the full bandwidth.",
)
INNER_LAYERS = facts.fact(
    "inner_layers_fraction",
    "fraction",
    "the share of inner layers",
    "Fraction of the model's layers that are neither the first nor the last.",
    whole="all layers",
)


def measure_low_precision(run: RunView, efficiency: Measurement[FactValue]) -> Measurements:
    """Every fact of this group. ``efficiency``: GEMM_EFFICIENCY."""
    layers = run.config.whole_number("num_layers")
    return {
        LINEAR_INPUTS_READ: _compare_reading(run, efficiency),
        INNER_LAYERS: known(max(0, layers - 2) / layers) if layers else missing("the config does not state num_layers"),
    }


def _compare_reading(run: RunView, efficiency: Measurement[FactValue]) -> Measurement[float]:
    shape, layout = read_model_shape(run.config), run.layout.complete()
    if shape.value is None or layout.value is None:
        return missing(str(shape.missing_reason or layout.missing_reason))
    if run.gpu is None:
        return missing(UNKNOWN_GPU)
    if not isinstance(efficiency.value, float) or not efficiency.value:
        return missing(efficiency.missing_reason or f"{GEMM_EFFICIENCY.label} is not known")
    model, sizes = shape.value, layout.value
    forward = count_forward(model, has_output=False)
    per_token = forward.projections + forward.experts + forward.dense_mlp + forward.shared_experts
    gpus = sizes.world // sizes.pipeline
    tokens = sizes.global_batch * model.sequence / gpus
    flops = STEP_PER_FORWARD * per_token * tokens
    values = _count_activations(model) * tokens + _count_weights(
        model, sizes.expert * sizes.expert_tensor, sizes.tensor
    )
    read_s = BYTES_PER_VALUE * values / run.gpu.memory_bytes_per_s
    return known(read_s * efficiency.value * (run.gpu.peak_flops(BF16) or 0) / flops)


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
