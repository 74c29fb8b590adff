"""Floating point operations of a training step, counted from the model's sizes.

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

from three_walls.lib.measurement import GIVE_CONFIG, Measurement, known, missing, unstated
from three_walls.megatron.model_shape import ModelShape
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.tables.hardware import BF16, FP8, NVFP4

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
