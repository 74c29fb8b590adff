"""Collects every fact of the glossary; one that cannot be told is missing with its reason, never zero."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from three_walls.attribution.attribution import Attribution
from three_walls.attribution.straggler_causes import StragglerCause
from three_walls.facts.graph_coverage import IS_NODE
from three_walls.facts.layout import derive_layout
from three_walls.facts.memory_pressure import classify_memory_pressure
from three_walls.facts.pipeline_bubble import bubble_beyond_schedule_ns
from three_walls.facts.recompute_headroom import peak_without_recompute
from three_walls.facts.representative import Representative
from three_walls.facts.step_times import ambiguous_ns, measure_step, open_collectives_ns
from three_walls.facts.unfused_ops import UNFUSED_OPS, unfused_facts
from three_walls.inputs.nsys.capabilities import NONE_RECORDED, YES
from three_walls.inputs.nsys.identity import Rank
from three_walls.model.config import NOT_SHOWN, RunConfig
from three_walls.model.fact import Fact, FactSheet, FactValue
from three_walls.model.glossary import GLOSSARY
from three_walls.tables.collective_owners import collective_owners
from three_walls.tables.hardware import GpuModel
from three_walls.tables.thresholds import default_log_thresholds
from three_walls.timeline.timeline import Timeline

Known = tuple[FactValue, str | None]

MAXIMUM_AMBIGUOUS_FRACTION = 0.01
"""Above this share of the step in SendRecv of unknown owner nothing is said of expert parallelism."""

_OF_GROUPS = ("dp_exposed_ns", "tp_exposed_ns")

SATISFIED = (YES, NONE_RECORDED)

_NO_STEP = "no step could be kept"
_OF_EXPERTS = (
    "ep_busy_ns",
    "ep_exposed_ns",
    "ep_hidden_ns",
    "ep_transfer_exposed_ns",
    "ep_wait_exposed_ns",
)


def collect_facts(
    timeline: Timeline,
    attribution: Attribution,
    representative: Representative | None,
    ranks: tuple[Rank, ...],
    config: RunConfig,
    gpu: GpuModel | None,
    capabilities: Mapping[str, str],
    step_details: Mapping[str, Known],
    of_log: Mapping[str, Known],
) -> FactSheet:
    """The FactSheet of one run: every glossary entry, then ``config.*`` and ``env.*``.

    ``step_details``: facts measured elsewhere, by name; empty without a step.
    ``of_log``: those that ``log_facts.join_log`` took from the training log.
    """
    known: dict[str, Known] = {**step_details, **of_log}
    known.update(_machine(ranks, gpu))
    known.update(derive_layout(config, gpu))
    if representative is not None:
        known.update(_measured(timeline, attribution, representative))
        known.update(_recoverable(known))
        known.update(_beyond_profiler_in_proportion(known))
        known.update(_sum_unfused(known))
        known["pipeline_bubble_excess_ns"] = _beyond_even_schedule(known, representative.step_ns)
        known.update(_withhold(attribution, representative, capabilities))
    known["memory_peak_without_recompute_ratio"] = peak_without_recompute(
        config, _whole(known, "gpu.memory_bytes"), known.get("memory_peak_bytes", (None, None))
    )
    known["memory_pressure"] = classify_memory_pressure(known, default_log_thresholds())
    known["step_spread_ratio"] = _spread(attribution.steps)
    known["ranks_captured_count"] = (len(ranks), None)
    facts = [Fact(entry.name, *_split(_with_ratio(entry.name, known), entry.unit)) for entry in GLOSSARY]
    facts += [Fact(f"config.{key}", found.value, "config") for key, found in sorted(config.values.items())]
    facts += [Fact(f"env.{key}", found.value, "config") for key, found in sorted(config.environment.items())]
    for kind, withheld in (("config", config.withheld_values), ("env", config.withheld_environment)):
        facts += [Fact(f"{kind}.{key}", None, "config", missing_reason=NOT_SHOWN) for key in sorted(withheld)]
    return FactSheet.of(facts, config.environment_is_known)


def _whole(known: Mapping[str, Known], name: str) -> int | None:
    value = known.get(name, (None, None))[0]
    return value if isinstance(value, int) else None


def _split(found: Known, unit: str) -> tuple[FactValue, str, str | None]:
    value, reason = found
    return value, unit, reason


def _with_ratio(name: str, known: Mapping[str, Known]) -> Known:
    """The value of ``name``; a fraction is derived from its numerator and denominator."""
    entry = next(one for one in GLOSSARY if one.name == name)
    if not entry.numerator:
        return known.get(name, (None, _NO_STEP))
    (over, over_missing), (under, under_missing) = (
        known.get(entry.numerator, (None, _NO_STEP)),
        known.get(entry.denominator, (None, _NO_STEP)),
    )
    if over_missing or under_missing:
        return None, over_missing or under_missing
    if not isinstance(over, int) or not isinstance(under, int) or under == 0:
        return None, f"{entry.denominator} is zero"
    return over / under, None


def _measured(timeline: Timeline, attribution: Attribution, representative: Representative) -> dict[str, Known]:
    known: dict[str, Known] = {name: (ns, None) for name, ns in measure_step(attribution, representative).items()}
    start, end = (
        attribution.steps.filter(
            (pl.col("rank_index") == representative.rank_index) & (pl.col("step") == representative.step)
        )
        .select("start_ns", "end_ns")
        .row(0)
    )
    window = (int(start), int(end))
    kernels = timeline.operations.filter(
        (pl.col("rank_index") == representative.rank_index)
        & (pl.col("kind") == "kernel")
        & pl.col("start_ns").is_between(*window, closed="left")
    )
    known["kernel_count"] = (kernels.height, None)
    known["graph_kernel_fraction"] = _in_graphs(kernels)
    return known


def _in_graphs(kernels: pl.DataFrame) -> Known:
    """Share of ``kernels`` that are nodes of a CUDA graph."""
    if kernels.is_empty():
        return None, "no kernel ran in the step"
    return kernels.filter(IS_NODE).height / kernels.height, None


def _recoverable(known: Mapping[str, Known]) -> dict[str, Known]:
    """Ceilings per wall: sums of facts; missing when a part that could be large is."""

    # Recompute that cannot be priced is said in a warning; the copies alone can be the wall.
    recompute_is_known = known["recompute_ns"][1] is None
    priced = ("recompute_ns", "offload_copy_exposed_ns") if recompute_is_known else ("offload_copy_exposed_ns",)

    def total(*names: str) -> Known:
        parts = [known.get(name, (None, _NO_STEP)) for name in names]
        missing = next((reason for _, reason in parts if reason), None)
        if missing:
            return None, missing
        return sum(value for value, _ in parts if isinstance(value, int)), None

    return {
        "memory_recoverable_ns": total(*priced),
        "communication_recoverable_ns": total("ep_transfer_exposed_ns", "collective_transfer_exposed_ns"),
        "compute_recoverable_ns": total("attention_unfused_ns"),
        "host_recoverable_ns": _beyond_profiler(total("host_idle_ns"), known),
        "launch_starved_recoverable_ns": _beyond_profiler(total("launch_starved_ns"), known),
        "straggler_late_recoverable_ns": _late_beyond_profiler(known),
    }


def _beyond_profiler(host: Known, known: Mapping[str, Known]) -> Known:
    """Host time without what the profiler added to the step; all of it where no log tells."""
    excess_ns, _ = known.get("profiler_excess_ns", (None, None))
    if not isinstance(host[0], int) or not isinstance(excess_ns, int):
        return host
    return max(0, host[0] - excess_ns), None


def _beyond_profiler_in_proportion(known: Mapping[str, Known]) -> dict[str, Known]:
    """Launch-starved time of unfused work, less the share of all such time that the profiler is taken to have added."""
    starved, left = (_whole(known, name) for name in ("launch_starved_ns", "launch_starved_recoverable_ns"))
    names = [name for name in unfused_facts() if name.endswith("_launch_starved_ns")]
    measured = {name: ns for name in names if (ns := _whole(known, name)) is not None}
    if not starved or left is None:
        return {}
    return {name: (ns * left // starved, None) for name, ns in measured.items()}


def _sum_unfused(known: Mapping[str, Known]) -> dict[str, Known]:
    """Fusible work on the device and, launch-starved, on the host together."""
    sums: dict[str, Known] = {}
    for work in UNFUSED_OPS:
        kernels, starved = (known.get(f"{work}_{part}_ns", (None, _NO_STEP)) for part in ("kernels", "launch_starved"))
        both = [ns for ns, _ in (kernels, starved) if isinstance(ns, int)]
        sums[f"{work}_ns"] = (sum(both), None) if len(both) == 2 else (None, kernels[1] or starved[1])
    return sums


def _late_beyond_profiler(known: Mapping[str, Known]) -> Known:
    """What the latest rank is late; without what the profiler added where slow launches made it late."""
    late = known.get("straggler_late_ns", (None, _NO_STEP))
    is_starved = known.get("straggler_cause", (None, None))[0] == StragglerCause.LAUNCH_STARVED
    return _beyond_profiler(late, known) if is_starved else late


def _beyond_even_schedule(known: Mapping[str, Known], step_ns: int) -> Known:
    """The bubble beyond the expected one; missing with the reason of what is missing."""
    bubble_ns, no_bubble = known.get("pipeline_bubble_ns", (None, _NO_STEP))
    expected, no_schedule = known["pipeline_bubble_expected_fraction"]
    if not isinstance(bubble_ns, int) or not isinstance(expected, float):
        return None, no_bubble or no_schedule
    return bubble_beyond_schedule_ns(bubble_ns, expected, step_ns), None


def _withhold(
    attribution: Attribution, representative: Representative, capabilities: Mapping[str, str]
) -> dict[str, Known]:
    """Facts that this trace measures but cannot carry, each with the reason."""
    withheld: dict[str, Known] = {}
    open_ns = ambiguous_ns(attribution, representative)
    if open_ns > MAXIMUM_AMBIGUOUS_FRACTION * representative.step_ns:
        reason = (
            f"SendRecv kernels of {open_ns} ns cannot be told apart into expert, pipeline and context exchange: "
            "the parallel sizes are not known (capture with -t cuda,nvtx, or profile the launched command)"
        )
        withheld.update(dict.fromkeys(_OF_EXPERTS, (None, reason)))
    open_collectives = open_collectives_ns(attribution, representative)
    if open_collectives > collective_owners().maximum_open_fraction * representative.step_ns:
        reason = (
            f"collectives of {open_collectives} ns cannot be told apart into tensor and data parallelism: neither the "
            "parallel sizes nor NVTX ranges say whose they are (capture with -t cuda,nvtx and Megatron's --profile, or "
            "profile the launched command)"
        )
        withheld.update(dict.fromkeys(_OF_GROUPS, (None, reason)))
    for entry in GLOSSARY:
        lacking = [capabilities[need] for need in entry.needs if capabilities[need] not in SATISFIED]
        if lacking:
            withheld[entry.name] = (None, lacking[0])
    return withheld


def _machine(ranks: tuple[Rank, ...], gpu: GpuModel | None) -> dict[str, Known]:
    found = {rank.gpu for rank in ranks}
    seen = found.pop() if len(found) == 1 else None
    no_gpu = "the trace does not say, or ranks differ (TARGET_INFO_GPU)"
    no_row = "the GPU is not in tables/hardware.yaml"
    no_domain = "what NVLink joins is not known of this board" if gpu else no_row
    domain = gpu.nvlink_domain_gpus if gpu else None
    return {
        "gpu.name": (seen.name, None) if seen else (None, no_gpu),
        "gpu.sm": (seen.sm, None) if seen and seen.sm else (None, no_gpu),
        "gpu.memory_bytes": (seen.memory_bytes, None) if seen and seen.memory_bytes else (None, no_gpu),
        "gpu.family": (gpu.family, None) if gpu else (None, no_row),
        "gpu.nvlink_domain_gpus": (domain, None) if domain else (None, no_domain),
    }


def _spread(steps: pl.DataFrame) -> Known:
    lengths = steps.filter("kept").select(ns=pl.col("end_ns") - pl.col("start_ns"))["ns"]
    if lengths.len() < 2:
        return None, "needs two kept steps"
    shortest, longest = int(lengths.sort()[0]), int(lengths.sort()[-1])
    if shortest == 0:
        return None, "a kept step has no length"
    return longest / shortest, None
