"""How many bytes one rank sends per token exchange, from the config, routing taken to be balanced."""

from __future__ import annotations

from math import comb

from three_walls.model.config import RunConfig

BYTES_PER_VALUE = 2
"""Megatron's dispatchers exchange activations and their gradients in bf16 or fp16."""


def exchange_bytes(config: RunConfig) -> tuple[int | None, str | None]:
    """(bytes that a rank sends to other ranks in one dispatch or combine, None) or (None, why it cannot be told).

    All-to-all: tokens x top-k x hidden x 2 x (EP - 1) / EP. The flex dispatcher (DeepEP, HybridEP) sends a token
    once to each rank that holds some of its experts, however many. Tokens: sequence x micro-batch / CP / TP.
    """
    keys = ("seq_length", "micro_batch_size", "hidden_size", "moe_router_topk", "num_moe_experts")
    sizes = {key: config.whole_number(key) for key in keys}
    groups = {
        key: config.whole_number(key)
        for key in ("context_parallel_size", "tensor_model_parallel_size", "expert_model_parallel_size")
    }
    unknown = sorted(key for key, value in (sizes | groups).items() if not value)
    if unknown:
        return None, f"the config does not say {', '.join(unknown)}"
    precision = str(config.get("mixed_precision") or "")
    if not (config.get("bf16") is True or config.get("fp16") is True or precision.startswith(("bf16", "fp16"))):
        return None, "the config does not say that activations are bf16 or fp16"
    for key in ("moe_latent_size", "moe_expert_capacity_factor"):
        if config.get(key) is not None:
            return None, f"with {key} other than all tokens' hidden states is exchanged"
    ranks = groups["expert_model_parallel_size"] or 1
    tokens = (sizes["seq_length"] or 0) * (sizes["micro_batch_size"] or 0) // (groups["context_parallel_size"] or 1)
    # With tensor parallelism MoE layers need sequence parallelism: each rank routes its slice of the sequence.
    tokens //= groups["tensor_model_parallel_size"] or 1
    experts, top_k = sizes["num_moe_experts"] or 0, sizes["moe_router_topk"] or 0
    copies = top_k * (ranks - 1) / ranks
    if config.get("moe_token_dispatcher_type") == "flex":
        copies = _other_ranks_reached(experts, ranks, top_k)
    return round(tokens * copies * (sizes["hidden_size"] or 0) * BYTES_PER_VALUE), None


def _other_ranks_reached(experts: int, ranks: int, top_k: int) -> float:
    """Expected number of other ranks that hold one of a token's top-k distinct experts, all sets equally likely."""
    missed = comb(experts - experts // ranks, top_k) / comb(experts, top_k)
    return (ranks - 1) * (1 - missed)
