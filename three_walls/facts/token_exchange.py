"""What one dispatch or combine moves, how fast it ran, and the link that bounds it.

The link is NVLink inside one domain, and the network where the expert-parallel group extends beyond it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import comb

import polars as pl

from three_walls.facts.run_layout import UNKNOWN_GPU, ep_ranks_per_nvlink_domain_count, ep_spans_nodes
from three_walls.facts.transport import adapter_bytes_per_s
from three_walls.layers.labels import LabelledOperations
from three_walls.lib.declare import fact, flag
from three_walls.lib.measurement import GIVE_CONFIG, NS_PER_S, Measurement, known, missing, unstated
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.step.intervals import DURATION
from three_walls.step.step_tables import Arrivals
from three_walls.step.step_view import StepView
from three_walls.step.transfer import MINIMUM_CALLS
from three_walls.tables.hardware import LARGEST_SERVER_GPUS
from three_walls.tables.model_parts import BACKWARD, COMBINE, DISPATCH

BYTES_PER_VALUE = 2
"""Megatron's dispatchers exchange activations and their gradients in bf16 or fp16, whatever the GEMMs run in: no call
dispatches in FP8, and HybridEP's asserts that none does (mcore:megatron/core/transformer/moe/fused_a2a.py:311)."""


@dataclass(frozen=True, slots=True)
class TokenRates:
    """How fast the exchanges of tokens of a step ran; the facts of the same names define what they mean."""

    achieved_bytes_per_s: float
    includes_waiting: bool
    fastest_bytes_per_s: float
    spread_ratio: float


@dataclass(frozen=True, slots=True)
class ExchangeRates:
    """How fast the token exchanges of a step ran."""

    sent_bytes: int | None
    """What a rank sends in one dispatch or combine; None where the config does not give it."""
    measured: Measurement[TokenRates]
    by_kind: Mapping[str, float] = field(default_factory=dict)
    """Bytes per second by ``kernel_kind``, by the definition of ep_achieved_bytes_per_s."""


@fact("bytes_per_s", "achieved token exchange bandwidth")
def ep_achieved_bytes_per_s(token_rates: TokenRates) -> float:
    """Bytes that a rank sends to other ranks in one dispatch or combine (from the config, with balanced routing) over
    the time from the arrival of the last rank to the end of the call, on average over the step's token exchanges. Where
    not all ranks of the group were captured: over the duration of the step's fastest token exchange, which is a lower
    bound, because that one may have waited for peers too.

    Not the same as: Bytes over all time in which kernels of the exchange run: most of that can be waiting.
    """
    return token_rates.achieved_bytes_per_s


@flag(
    "whether the token exchange bandwidth includes waiting",
    if_true="The achieved token exchange bandwidth is a lower bound: the arrival of the other ranks was not captured",
    if_false="The achieved token exchange bandwidth is measured from the arrival of the last rank",
)
def ep_achieved_includes_waiting(token_rates: TokenRates) -> bool:
    """Whether the achieved token exchange bandwidth is a lower bound, because the arrival of the other ranks was not
    captured."""
    return token_rates.includes_waiting


@fact("bytes_per_s", "fastest token exchange bandwidth")
def ep_fastest_bytes_per_s(token_rates: TokenRates) -> float:
    """Bytes that a rank sends to other ranks in one dispatch or combine over the shortest transfer of the step. It is
    counted from the arrival of the last rank where all were captured, else it is the duration of the fastest call.

    Not the same as: Average throughput: it shows what the path between the ranks can carry.
    """
    return token_rates.fastest_bytes_per_s


@fact("ratio", "spread of token exchange transfers")
def ep_transfer_spread_ratio(token_rates: TokenRates) -> float:
    """Median over shortest transfer of the step's token exchanges. Near 1 all of them are equally fast, which waiting
    for peers never is."""
    return token_rates.spread_ratio


@fact("bytes_per_s", "token exchange link bandwidth")
def ep_link_bytes_per_s(step: StepView, network_adapters: str) -> Measurement[float]:
    """Upper bound of what a rank can send to its expert-parallel group. Inside one NVLink domain it is NVLink's
    bandwidth in one direction; beyond it, the network's bandwidth per GPU over the fraction of an exchange that crosses
    the network (with balanced routing)."""
    run, gpu, layout = step.run, step.run.gpu, step.run.layout
    if gpu is None:
        return missing(UNKNOWN_GPU)
    in_domain = ep_ranks_per_nvlink_domain_count(run)
    if in_domain.missing_reason:
        return missing(in_domain.missing_reason)
    domain, nvlink = gpu.nvlink_domain_gpus, gpu.nvlink_bytes_per_s_one_way
    if domain is None or nvlink is None:
        return missing(f"the NVLink bandwidth of a {gpu.family} is not in tables/hardware.yaml")
    is_server = domain <= LARGEST_SERVER_GPUS
    if in_domain.value == layout.expert_group and not (is_server and ep_spans_nodes(run).value is True):
        return known(float(nvlink))
    adapter = adapter_bytes_per_s(gpu, network_adapters)
    if adapter.value is None:
        return adapter
    if run.config.get("moe_token_dispatcher_type") != "alltoall":
        return missing("across servers the fraction on the network is known for the alltoall dispatcher only")
    if not layout.expert or layout.expert_tensor != 1:
        return missing("across servers the fraction on the network is known for expert tensor parallelism 1 only")
    # With balanced routing (ranks - own) / (ranks - 1) of an exchange crosses the network: to GPUs outside the domain.
    own = layout.ranks_per_node if is_server and layout.ranks_per_node else domain
    return known(adapter.value * (layout.expert - 1) / (layout.expert - own))


@fact("fraction", "token exchange time without duplicates")
def ep_deduplicated_transfer_fraction(
    step: StepView, ep_link_bytes_per_s: float, ep_achieved_bytes_per_s: Measurement[float]
) -> Measurement[float]:
    """Fraction of the time of a token exchange that it would take at NVLink's full bandwidth in one direction with one
    copy of a token for each rank that holds some of its experts: the share of copies that remain, times the achieved
    bandwidth over NVLink's. For groups inside one NVLink domain, with balanced routing.

    Not the same as: A time that any dispatcher reaches: none fills the link.
    """
    return _compare_transfer(step, ep_link_bytes_per_s, ep_achieved_bytes_per_s, is_deduplicated=True)


@fact("ratio", "token exchange time with copies per expert")
def ep_copied_transfer_ratio(
    step: StepView, ep_link_bytes_per_s: float, ep_achieved_bytes_per_s: Measurement[float]
) -> Measurement[float]:
    """Time of a token exchange at NVLink's full bandwidth in one direction with one copy of a token for each of its
    experts on other ranks, over the time that it takes. For groups inside one NVLink domain, with balanced routing.

    Not the same as: A time that an all-to-all reaches: none fills the link.
    """
    return _compare_transfer(step, ep_link_bytes_per_s, ep_achieved_bytes_per_s, is_deduplicated=False)


def _compare_transfer(
    step: StepView, link_bytes_per_s: float, achieved_bytes_per_s: Measurement[float], *, is_deduplicated: bool
) -> Measurement[float]:
    """A token exchange that fills NVLink with copies of one kind, over the one that was captured."""
    run = step.run
    if run.gpu is None or link_bytes_per_s != run.gpu.nvlink_bytes_per_s_one_way:
        return missing("the expert-parallel group extends beyond one NVLink domain")
    if achieved_bytes_per_s.value is None:
        return achieved_bytes_per_s
    dispatcher = run.config.get("moe_token_dispatcher_type")
    if dispatcher not in ("alltoall", "flex"):
        return missing(f"the copies that dispatcher {dispatcher} sends are not known")
    sizes = [
        run.config.whole_number(key) for key in ("moe_router_topk", "num_moe_experts", "expert_model_parallel_size")
    ]
    top_k, experts, ranks = (size or 0 for size in sizes)
    if not top_k or experts < ranks or ranks < 2:
        return missing("tokens are exchanged with no other rank, or top-k and the number of experts are not known")
    now = _copies_to_others(dispatcher == "flex", top_k, experts, ranks)
    remaining = _copies_to_others(is_deduplicated, top_k, experts, ranks) / now
    return known(remaining * achieved_bytes_per_s.value / link_bytes_per_s)


def exchange_bytes(config: RunConfig) -> Measurement[int]:
    """Bytes that a rank sends to other ranks in one dispatch or combine, with balanced routing.

    Tokens (sequence x micro-batch / CP / TP) x hidden x 2 x the copies of a token that leave the rank.
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
    copies = _copies_to_others(config.get("moe_token_dispatcher_type") == "flex", top_k, experts, ranks)
    return known(round(tokens * copies * hidden * BYTES_PER_VALUE))


def _copies_to_others(is_deduplicated: bool, top_k: int, experts: int, ranks: int) -> float:
    """Copies of a token that leave its rank on average: all sets of ``top_k`` distinct experts are equally likely.

    All-to-all sends one for each expert on another rank. The flex dispatcher (DeepEP, HybridEP) sends one to each rank
    that holds some of the token's experts, however many.
    """
    if is_deduplicated:
        return (ranks - 1) * (1 - comb(experts - experts // ranks, top_k) / comb(experts, top_k))
    return top_k * (ranks - 1) / ranks


def kernel_kind(direction: str, part: str) -> str:
    """Which kernel of a dispatcher runs an exchange: what goes back through the combine is sent as a dispatch sends."""
    return {DISPATCH: COMBINE, COMBINE: DISPATCH}[part] if direction == BACKWARD else part


def measure_rates(exchanges: LabelledOperations, arrivals: Arrivals, config: RunConfig) -> ExchangeRates:
    """Bytes per second of the token exchanges, from the time in which they transfer.

    Dispatch and combine move as many bytes, in both directions. Where the arrival of every rank is known, a call
    transfers from the last arrival to its end. On four H200s over NVLink that is 0.29 to 0.35 ms for 101 MB, 287 to
    341 GB/s, in every part. Elsewhere only the fastest call of the step shows how long a transfer takes at most: on
    eight H200s whose hosts kept each other waiting, nine in ten exchanges of 117 MB took 0.7 to 15 ms, the fastest
    ones 0.33 to 0.39 ms (302 to 355 GB/s). There all calls of one part can have waited, so parts that run the same
    kernel share one bandwidth.

    ``exchanges``: those of tokens in passes through MoE layers. ``arrivals``: those of the rank's calls
    (matched_ranks.measure_arrivals).
    """
    sent = exchange_bytes(config)
    if not sent.value:
        reason = sent.missing_reason or "expert-parallel size 1: nothing is sent"
        return ExchangeRates(sent.value, missing(reason))
    calls = _select_token_calls(exchanges, arrivals)
    minimum_calls = MINIMUM_CALLS
    if calls.height < minimum_calls:
        too_few = missing(f"the step has fewer than {minimum_calls} token exchanges")
        return ExchangeRates(sent.value, too_few)
    resolved = calls.filter("resolved")
    is_resolved = resolved.height >= max(minimum_calls, calls.height / 2)
    calls = resolved if is_resolved else calls
    transfer = pl.col("transfer_ns")
    typical = transfer.mean() if is_resolved else transfer.min()
    together = calls.select(typical=typical, fastest=transfer.min(), median=transfer.median()).row(0, named=True)
    # DeepEP's and HybridEP's dispatch and combine are different kernels. NCCL's are the same.
    is_one_kernel = config.get("moe_token_dispatcher_type") != "flex"
    kinds = calls.group_by("kind").agg(typical=typical, calls=pl.len()).filter(pl.col("calls") >= minimum_calls)
    sent_per_ns = sent.value * NS_PER_S
    return ExchangeRates(
        sent.value,
        known(
            TokenRates(
                achieved_bytes_per_s=sent_per_ns / together["typical"],
                includes_waiting=not is_resolved,
                fastest_bytes_per_s=sent_per_ns / together["fastest"],
                spread_ratio=together["median"] / together["fastest"],
            )
        ),
        {
            str(kind): sent_per_ns / (typical_ns if is_resolved or not is_one_kernel else together["typical"])
            for kind, typical_ns in kinds.select("kind", "typical").rows()
        },
    )


def _select_token_calls(exchanges: LabelledOperations, arrivals: Arrivals) -> pl.DataFrame:
    """kind, transfer_ns and resolved of the exchanges that carry the tokens.

    One dispatch or combine may exchange probabilities too, before or after: a call of small messages. Backward passes
    run the exchanges of forward ones in reverse. So of each pair of mirrored positions the tokens are carried by the
    one whose fastest call, forward or backward, takes longest. One direction is not enough: the call that comes first
    waits for the peers, so on eight H200s with slow hosts no backward exchange of probabilities took less than 2 ms.

    Where only some ranks of the group were captured, the shortest participant of a call bounds its transfer.
    """
    is_back = pl.col("direction") == BACKWARD
    position = pl.int_range(pl.len(), dtype=pl.Int64).over("direction", "pass", "part")
    last = pl.len().over("direction", "pass", "part").cast(pl.Int64) - 1
    matched = arrivals.select("start_ns", "end_ns", "transfer_ns", "resolved").unique(
        ["start_ns", "end_ns"], keep="none", maintain_order=True
    )
    timed = (
        exchanges.sort("start_ns", "end_ns")
        .with_columns(
            place=pl.when(is_back).then(last - position).otherwise(position),
            kind=pl.when(is_back)
            .then(pl.col("part").replace_strict({part: kernel_kind(BACKWARD, part) for part in (DISPATCH, COMBINE)}))
            .otherwise("part"),
        )
        .join(matched, on=["start_ns", "end_ns"], how="left", maintain_order="left")
        .with_columns(
            transfer_ns=pl.coalesce("transfer_ns", DURATION), resolved=pl.col("resolved").fill_null(value=False)
        )
        .filter(pl.col("transfer_ns") > 0)
    )
    places = (
        timed.group_by("part", "place")
        .agg(pl.col("transfer_ns").min())
        .sort("transfer_ns", "place", descending=[True, False])
        .unique("part", keep="first", maintain_order=True)
    )
    return timed.join(places.select("part", "place"), on=["part", "place"]).select("kind", "transfer_ns", "resolved")
