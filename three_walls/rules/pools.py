"""Which sums a pool of time is part of: what else shrinks when the pool does."""

from __future__ import annotations

from collections.abc import Mapping

from three_walls.model.fact import Fact, FactSheet
from three_walls.model.glossary import GLOSSARY

_UNFUSED = ("rope", "loss", "wgrad_accumulation", "bias_dropout_add")
_IDLE = ("launch_starved_ns", "launch_starved_recoverable_ns", "host_idle_ns", "host_recoverable_ns", "idle_ns")

# Pool -> every fact that contains it as a summand, from the glossary's definitions. step_ns contains all. A pool that a
# rule gains from has to stand here, also where no other fact contains it.
PARENTS: Mapping[str, tuple[str, ...]] = {
    "ep_transfer_exposed_ns": ("ep_exposed_ns", "communication_recoverable_ns"),
    "ep_wait_exposed_ns": ("ep_exposed_ns", "wait_exposed_ns"),
    "dp_exposed_ns": ("collective_transfer_exposed_ns", "collective_exposed_ns", "communication_recoverable_ns"),
    "tp_exposed_ns": ("collective_transfer_exposed_ns", "collective_exposed_ns", "communication_recoverable_ns"),
    "cp_exposed_ns": ("collective_transfer_exposed_ns", "collective_exposed_ns", "communication_recoverable_ns"),
    "collective_transfer_exposed_ns": ("collective_exposed_ns", "communication_recoverable_ns"),
    "collective_wait_exposed_ns": ("collective_exposed_ns", "wait_exposed_ns"),
    "offload_copy_exposed_ns": ("memory_recoverable_ns",),
    "launch_starved_ns": ("launch_starved_recoverable_ns", "host_idle_ns", "host_recoverable_ns", "idle_ns"),
    "launch_starved_recoverable_ns": ("launch_starved_ns", "host_idle_ns", "host_recoverable_ns", "idle_ns"),
    "optimizer_launch_starved_ns": _IDLE,
    "host_blocked_ns": ("host_idle_ns", "host_recoverable_ns", "idle_ns"),
    # But for a drain in which the device idles, a bubble is waiting inside collectives.
    "pipeline_bubble_ns": ("collective_wait_exposed_ns", "collective_exposed_ns", "wait_exposed_ns"),
    "pipeline_bubble_excess_ns": (
        "pipeline_bubble_ns",
        "collective_wait_exposed_ns",
        "collective_exposed_ns",
        "wait_exposed_ns",
    ),
    "attention_unfused_ns": ("compute_recoverable_ns", "compute_busy_ns"),
    "gemm_ns": ("compute_busy_ns",),
    "permute_ns": ("compute_busy_ns",),
    "elementwise_ns": ("compute_busy_ns",),
    "overlap_slowdown_ns": ("gemm_ns", "compute_busy_ns"),
    **{f"{work}_kernels_ns": (f"{work}_ns", "elementwise_ns", "compute_busy_ns") for work in _UNFUSED},
    "router_topk_kernels_ns": ("router_topk_ns", "compute_busy_ns"),
    **{f"{work}_launch_starved_ns": (f"{work}_ns", *_IDLE) for work in (*_UNFUSED, "router_topk")},
    "barrier_exposed_ns": ("collective_wait_exposed_ns", "collective_exposed_ns", "wait_exposed_ns"),
    "recompute_ns": ("memory_recoverable_ns",),
    # Times of the latest rank, and of the log's steps: no time of the representative step contains them.
    "straggler_late_ns": ("straggler_late_recoverable_ns",),
    "straggler_late_recoverable_ns": ("straggler_late_ns",),
    "unprofiled_step_range_ns": (),
}

# Pools in which the device works: their union shrinks with them.
_BUSY = (
    "ep_transfer_exposed_ns",
    "ep_wait_exposed_ns",
    "dp_exposed_ns",
    "tp_exposed_ns",
    "cp_exposed_ns",
    "collective_transfer_exposed_ns",
    "collective_wait_exposed_ns",
    "pipeline_bubble_ns",
    "pipeline_bubble_excess_ns",
    "offload_copy_exposed_ns",
    "attention_unfused_ns",
    "gemm_ns",
    "permute_ns",
    "elementwise_ns",
    "overlap_slowdown_ns",
    "barrier_exposed_ns",
    *(f"{work}_kernels_ns" for work in (*_UNFUSED, "router_topk")),
)

# Exposed communication -> (its union, the hidden part of that union).
_UNIONS: Mapping[str, tuple[str, str]] = {
    "ep_transfer_exposed_ns": ("ep_busy_ns", "ep_hidden_ns"),
    "dp_exposed_ns": ("collective_busy_ns", ""),
    "tp_exposed_ns": ("collective_busy_ns", ""),
    "cp_exposed_ns": ("collective_busy_ns", ""),
    "collective_transfer_exposed_ns": ("collective_busy_ns", ""),
    "pipeline_bubble_ns": ("collective_busy_ns", ""),
    "pipeline_bubble_excess_ns": ("collective_busy_ns", ""),
}


def remove_from_pool(facts: FactSheet, pool: str, removed_ns: int, hides: bool) -> FactSheet:
    """Facts after ``removed_ns`` of ``pool`` disappeared, or with ``hides`` moved under computing."""
    changes = dict.fromkeys((pool, "step_ns", *PARENTS.get(pool, ())), -removed_ns)
    if pool in _BUSY:
        changes["device_busy_ns"] = -removed_ns
    busy, hidden = _UNIONS.get(pool, ("", ""))
    if hides and hidden:
        changes[hidden] = removed_ns
    elif not hides and busy:
        changes[busy] = -removed_ns
    for part, ns in _parts_that_go(facts, pool, removed_ns).items():
        changes[part] = changes.get(part, 0) - ns
    return rederive_fractions(_add(facts, changes))


def _parts_that_go(facts: FactSheet, pool: str, removed_ns: int) -> dict[str, int]:
    """Pools that are part of ``pool`` lose the share that it loses: which of its parts goes is not known.

    What contains them beside ``pool`` loses as much.
    """
    whole_ns = facts.number(pool)
    if not whole_ns:
        return {}
    gone: dict[str, int] = {}
    above = {pool, *PARENTS.get(pool, ())}
    parts = [part for part, parents in PARENTS.items() if pool in parents and part not in above]
    for part in parts:
        lost_ns = round((facts.number(part) or 0) * min(1.0, removed_ns / whole_ns))
        beside = (one for one in PARENTS[part] if one not in above and one not in parts)
        for name in (part, *beside):
            gone[name] = gone.get(name, 0) + lost_ns
    return gone


def remove_slice(facts: FactSheet, pools: Mapping[str, int]) -> FactSheet:
    """Facts after a slice of everything disappeared: the pools by their amounts, the rest by the same share."""
    step_ns = facts.number("step_ns")
    if not step_ns:
        return facts
    left = max(0.0, 1 - sum(pools.values()) / step_ns)
    values = {fact.name: round(number * left) for fact in _times(facts) if (number := facts.number(fact.name))}
    for pool, removed_ns in pools.items():
        old_ns = facts.number(pool) or 0
        values[pool] = round(max(0, old_ns - removed_ns))
        for parent in PARENTS.get(pool, ()):
            if (whole_ns := facts.number(parent)) is not None:
                values[parent] = values[pool] + round(max(0, whole_ns - old_ns) * left)
    return rederive_fractions(facts.with_values(values))


def rederive_fractions(facts: FactSheet) -> FactSheet:
    """Every known fraction of the glossary computed again from its numerator and denominator."""
    values = {}
    for definition in GLOSSARY:
        part, whole = facts.number(definition.numerator), facts.number(definition.denominator)
        if definition.numerator and part is not None and whole and not facts.get(definition.name).is_missing:
            values[definition.name] = part / whole
    return facts.with_values(values)


def _add(facts: FactSheet, changes: Mapping[str, int]) -> FactSheet:
    known = {name: number for name in changes if (number := facts.number(name)) is not None}
    return facts.with_values({name: round(max(0, number + changes[name])) for name, number in known.items()})


def _times(facts: FactSheet) -> list[Fact]:
    return [fact for fact in facts.facts.values() if fact.unit == "ns"]
