"""What one dispatch or combine moves, and the link that bounds it.

The link is NVLink inside one domain, and the network where the expert-parallel group reaches beyond it.
"""

from __future__ import annotations

from math import comb

from three_walls.facts.layout import LARGEST_SERVER_GPUS, ep_ranks_in_nvlink_domain, ep_spans_nodes
from three_walls.facts.step_view import RunView
from three_walls.model.config import RunConfig
from three_walls.model.fact import FactGroup, Measurement, known, missing

BYTES_PER_VALUE = 2
"""Megatron's dispatchers exchange activations and their gradients in bf16 or fp16."""

facts = FactGroup()

EP_LINK = facts.fact(
    "ep_link_bytes_per_s",
    "bytes_per_s",
    "token exchange link bandwidth",
    "Upper bound of what a rank can send to its expert-parallel group. Inside one NVLink domain it is NVLink's "
    "bandwidth in one direction; beyond it, the network's bandwidth per GPU over the fraction of an exchange that "
    "crosses the network (with balanced routing).",
)


def exchange_bytes(config: RunConfig) -> Measurement[int]:
    """Bytes that a rank sends to other ranks in one dispatch or combine, with balanced routing.

    All-to-all: tokens x top-k x hidden x 2 x (EP - 1) / EP. The flex dispatcher (DeepEP, HybridEP) sends a token
    once to each rank that holds some of its experts, however many. Tokens: sequence x micro-batch / CP / TP.
    """
    keys = ("seq_length", "micro_batch_size", "hidden_size", "moe_router_topk", "num_moe_experts")
    groups = ("context_parallel_size", "tensor_model_parallel_size", "expert_model_parallel_size")
    sizes = {key: config.whole_number(key) or 0 for key in (*keys, *groups)}
    unknown = sorted(key for key, value in sizes.items() if not value)
    if unknown:
        return missing(f"the config does not say {', '.join(unknown)}")
    precision = str(config.get("mixed_precision") or "")
    if not (config.get("bf16") is True or config.get("fp16") is True or precision.startswith(("bf16", "fp16"))):
        return missing("the config does not say that activations are bf16 or fp16")
    for key in ("moe_latent_size", "moe_expert_capacity_factor"):
        if config.get(key) is not None:
            return missing(f"with {key} other than all tokens' hidden states is exchanged")
    sequence, micro_batch, hidden, top_k, experts = (sizes[key] for key in keys)
    context, tensor, ranks = (sizes[key] for key in groups)
    # With tensor parallelism MoE layers need sequence parallelism: each rank routes its slice of the sequence.
    tokens = sequence * micro_batch // context // tensor
    copies = top_k * (ranks - 1) / ranks
    if config.get("moe_token_dispatcher_type") == "flex":
        copies = _other_ranks_reached(experts, ranks, top_k)
    return known(round(tokens * copies * hidden * BYTES_PER_VALUE))


def _other_ranks_reached(experts: int, ranks: int, top_k: int) -> float:
    """Expected number of other ranks that hold one of a token's top-k distinct experts, all sets equally likely."""
    missed = comb(experts - experts // ranks, top_k) / comb(experts, top_k)
    return (ranks - 1) * (1 - missed)


def link_bytes_per_s(run: RunView) -> Measurement[float]:
    """Bytes per second that a rank can send to the others of its expert-parallel group at most.

    Across domains only the fraction for GPUs outside the rank's own crosses the network: with balanced routing that is
    (ranks - own) / (ranks - 1), and the network's bandwidth over that fraction bounds the whole exchange.
    """
    gpu, layout = run.gpu, run.layout
    if gpu is None:
        return missing("the GPU is not known")
    together = ep_ranks_in_nvlink_domain(run)
    if together.missing_reason:
        return missing(together.missing_reason)
    domain, nvlink = gpu.nvlink_domain_gpus, gpu.nvlink_bytes_per_s_one_way
    if domain is None or nvlink is None:
        return missing(f"how many {gpu.family} NVLink joins differs from board to board")
    is_server = domain <= LARGEST_SERVER_GPUS
    if together.value == layout.expert_group and not (is_server and ep_spans_nodes(layout).value is True):
        return known(float(nvlink))
    if gpu.nic_bytes_per_s_one_way is None:
        return missing(f"the network of a {gpu.family} server is not in tables/hardware.yaml")
    if run.config.get("moe_token_dispatcher_type") != "alltoall":
        return missing("across servers the fraction on the network is known for the alltoall dispatcher only")
    if not layout.expert or layout.expert_tensor != 1:
        return missing("across servers the fraction on the network is known for expert tensor parallelism 1 only")
    own = layout.ranks_per_node if is_server and layout.ranks_per_node else domain
    return known(gpu.nic_bytes_per_s_one_way * (layout.expert - 1) / (layout.expert - own))
