"""Times of the representative step: the facts that come straight from the partition."""

from __future__ import annotations

import polars as pl

from three_walls.attribution.attribution import Attribution
from three_walls.attribution.ownership import union_where
from three_walls.facts.representative import Representative
from three_walls.model.buckets import (
    COMMUNICATION_CATEGORIES,
    COMPUTE_CATEGORIES,
    EP_CATEGORIES,
    IDLE_BUCKETS,
)
from three_walls.timeline.communication_owners import BY_OPERATION

_OTHER_COMMUNICATION = tuple(name for name in COMMUNICATION_CATEGORIES if name not in EP_CATEGORIES)
_HOST_COPIES = ("copy_h2d_pinned", "copy_h2d_pageable", "copy_d2h_pinned", "copy_d2h_pageable")


def measure_step(attribution: Attribution, representative: Representative) -> dict[str, int]:
    """Facts in ns of the chosen step, by name."""
    mine = (pl.col("rank_index") == representative.rank_index) & (pl.col("step") == representative.step)
    slices = attribution.slices.filter(mine)
    owned = {str(name): int(ns) for name, ns in attribution.budget.filter(mine).select("bucket", "ns").rows()}
    transferred = {
        str(name): int(ns)
        for name, ns in attribution.transfer.filter(mine).select("class", "transfer_exposed_ns").rows()
    }

    def union(labels: tuple[str, ...], exposed_only: bool = False) -> int:
        measured = union_where(slices, labels, exposed_only)
        return int(measured["ns"].sum())

    def transfer(labels: tuple[str, ...]) -> int:
        # Classes may overlap one another, so their transfers are capped by the time in which any is exposed.
        return min(sum(transferred.get(name, 0) for name in labels), union(labels, exposed_only=True))

    idle_ns = sum(owned.get(name, 0) for name in IDLE_BUCKETS)
    ep_exposed_ns, other_exposed_ns = union(EP_CATEGORIES, True), union(_OTHER_COMMUNICATION, True)
    ep_transfer_ns, other_transfer_ns = transfer(EP_CATEGORIES), transfer(_OTHER_COMMUNICATION)
    ep_busy_ns = union(EP_CATEGORIES)
    ep_wait_ns, other_wait_ns = ep_exposed_ns - ep_transfer_ns, other_exposed_ns - other_transfer_ns
    starved_ns, blocked_ns = owned.get("launch_starved", 0), owned.get("host_blocked", 0)
    return {
        "step_ns": representative.step_ns,
        "device_busy_ns": representative.step_ns - idle_ns,
        "compute_busy_ns": union(COMPUTE_CATEGORIES),
        "idle_ns": idle_ns,
        "ep_busy_ns": ep_busy_ns,
        "ep_exposed_ns": ep_exposed_ns,
        "ep_hidden_ns": ep_busy_ns - ep_exposed_ns,
        "ep_transfer_exposed_ns": ep_transfer_ns,
        "ep_wait_exposed_ns": ep_wait_ns,
        "collective_busy_ns": union(_OTHER_COMMUNICATION),
        "collective_exposed_ns": other_exposed_ns,
        "collective_transfer_exposed_ns": other_transfer_ns,
        "collective_wait_exposed_ns": other_wait_ns,
        "dp_exposed_ns": transfer(("data_parallel",)),
        "tp_exposed_ns": transfer(("tensor_parallel",)),
        "cp_exposed_ns": transfer(("context_ring",)),
        "wait_exposed_ns": min(ep_wait_ns + other_wait_ns, union(COMMUNICATION_CATEGORIES, True)),
        "offload_copy_exposed_ns": sum(owned.get(name, 0) for name in _HOST_COPIES),
        "launch_starved_ns": starved_ns,
        "host_blocked_ns": blocked_ns,
        "host_idle_ns": starved_ns + blocked_ns,
        "idle_other_ns": owned.get("idle_other", 0),
        "cuda_graph_ns": owned.get("cuda_graph", 0),
        "attention_unfused_ns": owned.get("attention_unfused", 0),
        "attention_ns": owned.get("attention", 0),
        "gemm_ns": owned.get("gemm", 0) + owned.get("grouped_gemm", 0),
        "permute_ns": owned.get("permute", 0),
        "elementwise_ns": owned.get("elementwise", 0),
        "unclassified_ns": owned.get("unclassified", 0),
    }


def open_collectives_ns(attribution: Attribution, representative: Representative) -> int:
    """Exposed transfer of collectives that could not be assigned to anyone."""
    mine = (
        (pl.col("rank_index") == representative.rank_index)
        & (pl.col("step") == representative.step)
        & pl.col("class").cast(pl.String).is_in(list(BY_OPERATION))
    )
    return int(attribution.transfer.filter(mine)["transfer_exposed_ns"].sum())


def ambiguous_ns(attribution: Attribution, representative: Representative) -> int:
    """Busy time of SendRecv kernels that could not be assigned to anyone."""
    mine = (
        (pl.col("rank_index") == representative.rank_index)
        & (pl.col("step") == representative.step)
        & (pl.col("class") == "send_recv_ambiguous")
    )
    return int(attribution.exposure.filter(mine)["busy_ns"].sum())
