"""Parameters that one GPU of a pipeline stage holds, counted from the model's layout."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from three_walls.facts.efficiency.model_flops import projection_weights
from three_walls.facts.model_shape import ModelShape
from three_walls.inputs.config.parallel_layout import CompleteLayout
from three_walls.model.config import RunConfig


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """``dense``: all but experts; the two are sharded over different groups of GPUs."""

    dense: int
    experts: int

    @property
    def total(self) -> int:
        return self.dense + self.experts


def count_parameters(
    shape: ModelShape, layout: CompleteLayout, config: RunConfig, layers: Collection[int], stage: int
) -> ParameterCounts:
    """Parameters of one GPU of ``stage`` that holds ``layers``.

    Matrices are cut by tensor parallelism, experts by expert and expert tensor parallelism; norms and routers are
    whole on every GPU. ``compute_weight_and_optimizer_memory`` of Megatron Core 0.16.1 (theoretical_memory_usage.py)
    leaves out routers and expert parallelism.
    """
    is_first, is_last = stage == 0, stage == layout.pipeline - 1
    predicted = shape.prediction_layers if is_last else 0
    moe = sum(number in shape.moe_layers for number in layers) + predicted * shape.last_layer_is_moe
    held = len(layers) + predicted
    norm = 1 if config.get("normalization") == "RMSNorm" else 2  # LayerNorm has a bias too
    whole = held * (2 * norm * shape.hidden + _query_key_norms(shape, config, norm))
    whole += moe * shape.hidden * shape.experts
    whole += norm * shape.hidden if is_last else 0
    cut = held * (projection_weights(shape) + _projection_biases(shape, config))
    cut += (held - moe) * _mlp(shape, config, shape.hidden, shape.dense_ffn)
    cut += moe * _mlp(shape, config, shape.hidden, shape.shared_ffn)
    if shape.expert_hidden != shape.hidden:
        cut += moe * 2 * shape.hidden * shape.expert_hidden
    cut += predicted * 2 * shape.hidden * shape.hidden
    cut += _embeddings(shape, is_first, is_last) * shape.vocabulary * shape.hidden
    experts = moe * shape.experts * _mlp(shape, config, shape.expert_hidden, shape.expert_ffn)
    return ParameterCounts(
        dense=whole + cut // layout.tensor, experts=experts // (layout.expert * layout.expert_tensor)
    )


def _embeddings(shape: ModelShape, is_first: bool, is_last: bool) -> int:
    """Tables of the vocabulary's size: a tied output layer on another stage has a copy of its own."""
    if is_first and is_last:
        return 1 if shape.is_tied else 2
    return int(is_first) + int(is_last)


def _query_key_norms(shape: ModelShape, config: RunConfig, norm: int) -> int:
    if config.get("qk_layernorm") is not True or shape.latent is not None:
        return 0
    return 2 * norm * (shape.query // shape.heads)


def _projection_biases(shape: ModelShape, config: RunConfig) -> int:
    has_biases = config.get("add_bias_linear") is True
    has_query_bias = has_biases or config.get("add_qkv_bias") is True
    return has_query_bias * (shape.query + shape.key + shape.value) + has_biases * shape.hidden


def _mlp(shape: ModelShape, config: RunConfig, hidden: int, ffn: int) -> int:
    weights = shape.ffn_matrices * hidden * ffn
    has_biases = config.get("add_bias_linear") is True and ffn > 0
    return weights + has_biases * ((shape.ffn_matrices - 1) * ffn + hidden)
