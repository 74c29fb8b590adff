"""Where in the step the time is that an entry of the plan gains from: buckets, and causes of gaps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from three_walls.advice.finding import PlanStep
from three_walls.advice.format.rule import Rule
from three_walls.tables.buckets import GEMM_CATEGORIES, TOKEN_EXCHANGES

_STARVED = ("starved_nothing_visible", "starved_launching")

SEEN_IN: dict[str, tuple[str, ...]] = {
    "ep_transfer_exposed_ns": TOKEN_EXCHANGES,
    "dp_exposed_ns": ("data_parallel",),
    "tp_exposed_ns": ("tensor_parallel",),
    "cp_exposed_ns": ("context_ring",),
    "collective_transfer_exposed_ns": (
        "data_parallel",
        "tensor_parallel",
        "all_gather",
        "reduce_scatter",
        "all_reduce",
    ),
    "pipeline_bubble_ns": ("pipeline_p2p",),
    "pipeline_bubble_excess_ns": ("pipeline_p2p",),
    "launch_starved_ns": _STARVED,
    "launch_starved_recoverable_ns": _STARVED,
    "host_blocked_ns": ("starved_synchronizing",),
    "gemm_ns": GEMM_CATEGORIES,
    "permute_ns": ("permute",),
    "attention_unfused_ns": ("attention_unfused",),
    "pageable_copy_exposed_ns": ("copy_h2d_pageable", "copy_d2h_pageable"),
    "offload_copy_exposed_ns": ("copy_h2d_pinned", "copy_d2h_pinned"),
}
"""Time that bounds a gain -> the buckets or causes of gaps that hold it. Times that are not here (one operator among
others, lateness of a rank, recompute) have no stretches that show nothing else."""


def name_places(plan: Iterable[PlanStep], rules: Iterable[Rule]) -> tuple[PlanStep, ...]:
    """``plan`` with the buckets and causes of each entry, in the order of the times that bound its gain."""
    rule_of = {rule.id: rule for rule in rules}
    named = []
    for step in plan:
        rule = rule_of.get(step.rule)
        times = [share.time for share in rule.gain.at_most] if rule is not None else []
        places = dict.fromkeys(place for time in times for place in SEEN_IN.get(time, ()))
        named.append(replace(step, seen_in=tuple(places)))
    return tuple(named)
