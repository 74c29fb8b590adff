"""Which weight of the model a matrix is, by its size: what a product of that size is called."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from three_walls.facts.model_shape import ModelShape

SCORES = "attention scores"
"""Products of many small matrices at once: unfused attention's."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Names of the weights that one GPU holds, by (outputs, inputs).

    Weights of experts see as many tokens as are routed to them, all others ``tokens``.
    """

    of_layers: Mapping[tuple[int, int], tuple[str, ...]]
    of_experts: Mapping[tuple[int, int], tuple[str, ...]]
    tokens: int | None

    def role_of(self, size: tuple[int, int], tokens: int | None) -> str | None:
        """What a weight of ``size`` that multiplied ``tokens`` rows is; "a or b" where that leaves a choice."""
        of_layers = self.of_layers.get(size, ()) if tokens == self.tokens or None in (tokens, self.tokens) else ()
        return " or ".join((*of_layers, *self.of_experts.get(size, ()))) or None


NO_WEIGHTS = Weights({}, {}, None)


def name_weights(shape: ModelShape, tensor: int, expert_tensor: int, tokens: int | None) -> Weights:
    """``tensor`` and ``expert_tensor``: sizes of tensor parallelism of layers and of experts. ``tokens``: of one
    micro-batch on one GPU. Matrices of latent attention are left out.
    """
    gate = 2 if shape.is_gated else 1
    of_layers: dict[tuple[int, int], list[str]] = defaultdict(list)
    of_experts: dict[tuple[int, int], list[str]] = defaultdict(list)
    if shape.latent is None:
        projected = shape.query + shape.key + shape.value
        of_layers[projected // tensor, shape.hidden].append("query, key and value")
        of_layers[shape.hidden, shape.context // tensor].append("attention output")
    if shape.moe_layers:
        of_layers[shape.experts, shape.hidden].append("router")
        of_experts[gate * shape.expert_ffn // expert_tensor, shape.expert_hidden].append("expert input")
        of_experts[shape.expert_hidden, shape.expert_ffn // expert_tensor].append("expert output")
    if shape.moe_layers and shape.shared_ffn:
        of_layers[gate * shape.shared_ffn // tensor, shape.hidden].append("shared expert input")
        of_layers[shape.hidden, shape.shared_ffn // tensor].append("shared expert output")
    if len(shape.moe_layers) < shape.layers:
        of_layers[gate * shape.dense_ffn // tensor, shape.hidden].append("MLP input")
        of_layers[shape.hidden, shape.dense_ffn // tensor].append("MLP output")
    of_layers[shape.vocabulary // tensor, shape.hidden].append("logits")
    return Weights(_closed(of_layers), _closed(of_experts), tokens)


def _closed(named: Mapping[tuple[int, int], list[str]]) -> Mapping[tuple[int, int], tuple[str, ...]]:
    return {size: tuple(roles) for size, roles in named.items()}
