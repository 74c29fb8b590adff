"""What one dispatch or combine moves, how fast it ran, and the link that bounds it.

The link is NVLink inside one domain, and the network where the expert-parallel group extends beyond it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import comb

import polars as pl

from three_walls.facts.layout import LARGEST_SERVER_GPUS, UNKNOWN_GPU, ep_ranks_in_nvlink_domain, ep_spans_nodes
from three_walls.facts.step_view import RunView
from three_walls.model.config import RunConfig
from three_walls.model.fact import GIVE_CONFIG, FactGroup, Measurement, known, missing, unstated
from three_walls.model.units import NS_PER_S
from three_walls.tables.thresholds import attribution_thresholds
from three_walls.timeline.intervals import DURATION

BYTES_PER_VALUE = 2
"""Megatron's dispatchers exchange activations and their gradients in bf16 or fp16."""

facts = FactGroup()

EP_ACHIEVED = facts.fact(
    "ep_achieved_bytes_per_s",
    "bytes_per_s",
    "achieved token exchange bandwidth",
    "Bytes that a rank sends to other ranks in one dispatch or combine (from the config, with balanced routing) over "
    "the duration of the fastest tenth of the step's token exchanges.",
    "Average throughput: exchanges that waited for peers are left out, unless nearly all did.",
)
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
        return unstated(*unknown)
    precision = str(config.get("mixed_precision") or "")
    if not (config.get("bf16") is True or config.get("fp16") is True or precision.startswith(("bf16", "fp16"))):
        return missing(f"the config does not state that activations are bf16 or fp16 {GIVE_CONFIG}")
    for key in ("moe_latent_size", "moe_expert_capacity_factor"):
        if config.get(key) is not None:
            return missing(f"with {key} the exchanges do not carry the hidden states of all tokens")
    sequence, micro_batch, hidden, top_k, experts = (sizes[key] for key in keys)
    context, tensor, ranks = (sizes[key] for key in groups)
    # With tensor parallelism MoE layers need sequence parallelism: each rank routes its slice of the sequence.
    tokens = sequence * micro_batch // context // tensor
    copies = top_k * (ranks - 1) / ranks
    if config.get("moe_token_dispatcher_type") == "flex":
        # Expected number of other ranks with one of a token's top-k distinct experts, all sets equally likely.
        copies = (ranks - 1) * (1 - comb(experts - experts // ranks, top_k) / comb(experts, top_k))
    return known(round(tokens * copies * hidden * BYTES_PER_VALUE))


def link_bytes_per_s(run: RunView) -> Measurement[float]:
    """Upper bound of the bytes per second that a rank can send to the others of its expert-parallel group.

    Across domains only the fraction for GPUs outside the rank's own crosses the network: with balanced routing that is
    (ranks - own) / (ranks - 1), and the network's bandwidth over that fraction bounds the whole exchange.
    """
    gpu, layout = run.gpu, run.layout
    if gpu is None:
        return missing(UNKNOWN_GPU)
    in_domain = ep_ranks_in_nvlink_domain(run)
    if in_domain.missing_reason:
        return missing(in_domain.missing_reason)
    domain, nvlink = gpu.nvlink_domain_gpus, gpu.nvlink_bytes_per_s_one_way
    if domain is None or nvlink is None:
        return missing(f"the NVLink bandwidth of a {gpu.family} is not in tables/hardware.yaml")
    is_server = domain <= LARGEST_SERVER_GPUS
    if in_domain.value == layout.expert_group and not (is_server and ep_spans_nodes(layout).value is True):
        return known(float(nvlink))
    if gpu.nic_bytes_per_s_one_way is None:
        return missing(f"the network of a {gpu.family} server is not in tables/hardware.yaml")
    if run.config.get("moe_token_dispatcher_type") != "alltoall":
        return missing("across servers the fraction on the network is known for the alltoall dispatcher only")
    if not layout.expert or layout.expert_tensor != 1:
        return missing("across servers the fraction on the network is known for expert tensor parallelism 1 only")
    own = layout.ranks_per_node if is_server and layout.ranks_per_node else domain
    return known(gpu.nic_bytes_per_s_one_way * (layout.expert - 1) / (layout.expert - own))


@dataclass(frozen=True, slots=True)
class ExchangeRates:
    """How fast the token exchanges of a step ran."""

    sent_bytes: int | None
    """What a rank sends in one dispatch or combine; None where the config does not give it."""
    achieved: Measurement[float]
    """Bytes per second of dispatch and combine together."""
    by_part: Mapping[str, float] = field(default_factory=dict)
    """Bytes per second of each."""


def measure_rates(exchanges: pl.DataFrame, config: RunConfig) -> ExchangeRates:
    """Bytes per second over the duration of the fastest tenth of the calls, which found all peers ready.

    Both directions move as many bytes. ``exchanges``: LayerPasses.exchanges with their ``direction``.
    """
    sent = exchange_bytes(config)
    if not sent.value:
        reason = sent.missing_reason or "expert-parallel size 1: nothing is sent"
        return ExchangeRates(sent.value, missing(reason))
    thresholds = attribution_thresholds()
    fastest = pl.col("duration_ns").quantile(thresholds.ready_quantile, interpolation="lower")
    is_measurable = (pl.col("calls") >= thresholds.minimum_calls) & (pl.col("duration_ns") > 0)
    calls = _select_token_calls(exchanges)
    together = calls.select(fastest, calls=pl.len()).filter(is_measurable)
    if together.is_empty():
        return ExchangeRates(sent.value, missing(f"the step has fewer than {thresholds.minimum_calls} token exchanges"))
    by_part = calls.group_by("part").agg(fastest, calls=pl.len()).filter(is_measurable)
    sent_per_ns = sent.value * NS_PER_S
    return ExchangeRates(
        sent.value,
        known(sent_per_ns / float(together["duration_ns"][0])),
        {str(part): sent_per_ns / duration_ns for part, duration_ns in by_part.select("part", "duration_ns").rows()},
    )


def _select_token_calls(exchanges: pl.DataFrame) -> pl.DataFrame:
    """part and duration_ns of the exchanges that carry the tokens.

    One dispatch or combine may exchange probabilities too, before or after: a call of small messages. The tokens are
    carried by the position in a pass whose fastest call takes longest: waiting lengthens single calls only.
    """
    kind = ["direction", "part"]
    timed = exchanges.with_columns(duration_ns=DURATION)
    positions = (
        timed.group_by(*kind, "position")
        .agg(pl.col("duration_ns").min())
        .sort("duration_ns", "position", descending=[True, False])
        .unique(kind, keep="first", maintain_order=True)
    )
    return timed.join(positions.select(*kind, "position"), on=[*kind, "position"]).select("part", "duration_ns")
