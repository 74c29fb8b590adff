"""What limits the report's claims: warnings with stable codes, in order of appearance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from three_walls.attribution.straggler_causes import StragglerCause
from three_walls.facts.attention_passes import RECOMPUTES_RATIO
from three_walls.inputs.nsys.capabilities import YES
from three_walls.inputs.nsys.reader import Trace
from three_walls.model.config import RunConfig
from three_walls.model.fact import FactSheet
from three_walls.model.report import ReportWarning, Straggler
from three_walls.timeline.steps import StepSource
from three_walls.timeline.timeline import Timeline

MUCH_WAITING_FRACTION = 0.10
MUCH_UNCLASSIFIED_FRACTION = 0.05
MUCH_STARVED_FRACTION = 0.10

_PER_RANK = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "CUDA_VISIBLE_DEVICES", "GROUP_RANK", "NODE_RANK")


def collect_caveats(
    traces: Sequence[Trace], timeline: Timeline, facts: FactSheet, capabilities: Mapping[str, str]
) -> tuple[ReportWarning, ...]:
    """Every warning of one analysis: what the readers said, then what the numbers show."""
    found = [warning for trace in traces for warning in trace.warnings]
    found += _about_ranks(traces)
    found += _about_config([trace.config for trace in traces if trace.ranks])
    found += _about_steps(timeline)
    if capabilities.get("inside_cuda_graphs") != YES:
        found.append(ReportWarning("inside-cuda-graphs", capabilities["inside_cuda_graphs"]))
    found += _about_shares(facts)
    return tuple(dict.fromkeys(found))


def warn_of_stragglers(stragglers: Sequence[Straggler], facts: FactSheet) -> tuple[ReportWarning, ...]:
    """One warning per rank that holds the others up for a large part of the step: no edit of the config helps there."""
    step_ns = facts.number("step_ns") or 0
    return tuple(
        ReportWarning(
            "straggler",
            f"rank {one.rank} makes the others wait for {one.late_ns / step_ns:.0%} of the step "
            f"({StragglerCause(one.cause).words}): {_what_to_make_of(one, facts)}",
        )
        for one in stragglers
        if step_ns and one.late_ns >= MUCH_WAITING_FRACTION * step_ns
    )


def _what_to_make_of(straggler: Straggler, facts: FactSheet) -> str:
    """The profiler slows launches, not on every rank alike: what it adds to a step can be all of a delay."""
    excess_ns = facts.number("profiler_excess_ns") or 0
    if straggler.cause == StragglerCause.LAUNCH_STARVED and excess_ns >= straggler.late_ns:
        return (
            "by the log the profiler adds more than that to a step, and it slows launches: that rank may be late in "
            "traced steps only; compare the ranks' unprofiled step times before looking for a cause"
        )
    return "find out why before changing the config; every share below is of a run that waits for it"


def _about_ranks(traces: Sequence[Trace]) -> list[ReportWarning]:
    found = [
        ReportWarning("no-kernels", f"{trace.input.path_name} holds no CUDA kernels: left out")
        for trace in traces
        if not trace.ranks
    ]
    ranks = [rank for trace in traces for rank in trace.ranks]
    if any(rank.rank_source == "order" for rank in ranks):
        found.append(
            ReportWarning(
                "rank-not-in-trace",
                "the launcher's RANK is not in the trace (or one report holds several processes): "
                "ranks are numbered in the order found",
            )
        )
    twice = sorted(rank for rank, count in Counter(rank.rank for rank in ranks).items() if count > 1)
    if twice:
        said = ", ".join(map(str, twice))
        found.append(
            ReportWarning("duplicate-rank", f"more than one trace says it is rank {said}: are they of one run?")
        )
    return found


def _about_config(configs: Sequence[RunConfig]) -> list[ReportWarning]:
    """Traces of one run share their settings; a difference means they are not of one run."""
    first = configs[0]
    keys = {key for other in configs[1:] for key in {*first.values, *other.values} if first.get(key) != other.get(key)}
    variables = {
        name
        for other in configs[1:]
        for name in {*first.environment, *other.environment}
        if first.environment.get(name) != other.environment.get(name) and name not in _PER_RANK
    }
    if not keys and not variables:
        return []
    said = ", ".join(sorted([*keys, *variables])[:8])
    return [ReportWarning("configs-differ", f"the traces were launched with different settings ({said}): one run?")]


def _about_steps(timeline: Timeline) -> list[ReportWarning]:
    found = []
    if StepSource.ONE_WINDOW in timeline.sources.values():
        found.append(
            ReportWarning(
                "one-window",
                "no training step could be told apart (no training_step_N range, no recurring optimizer kernels): the "
                "whole capture is one window; say which NVTX ranges are steps with --step-range REGEX",
            )
        )
    kept_per_rank = timeline.steps.filter("kept").group_by("rank_index").len()["len"]
    if kept_per_rank.len() and int(kept_per_rank.sort()[0]) == 1:
        found.append(
            ReportWarning(
                "one-step",
                "some rank has a single usable step: nothing can be said of its spread (capture four or more steps)",
            )
        )
    return found


def _about_shares(facts: FactSheet) -> list[ReportWarning]:
    found = []
    waiting = facts.number("wait_exposed_fraction")
    if waiting is not None and waiting >= MUCH_WAITING_FRACTION:
        found.append(
            ReportWarning(
                "waiting-for-peers",
                f"about {waiting:.0%} of the step is communication that waits for other ranks: a faster "
                "dispatcher would not shorten it; find out what the late ranks do (capture every rank of the group)",
            )
        )
    starved, kernels = facts.number("launch_starved_fraction"), facts.number("kernel_count")
    is_measured = not facts.get("profiler_perturbation_ratio").is_missing  # then log_caveats says how much it is
    if starved is not None and kernels is not None and starved >= MUCH_STARVED_FRACTION and not is_measured:
        # Measured on H200s: 10,000 kernels a step, 377 ms unprofiled and 727 ms traced; 2,000 kernels, 232 and 260 ms.
        found.append(
            ReportWarning(
                "host-time-under-profiler",
                f"{starved:.0%} of the step is launch-starved, but the profiler slows every one of its {kernels:,.0f} "
                "launches: give the run's training log (--log), whose unprofiled steps tell how much of it is real",
            )
        )
    if starved is not None and starved >= MUCH_STARVED_FRACTION and facts.get("config.nvtx_ranges").value is True:
        # Measured on an H200 without a profiler: 114 ms a step, and 146 ms with 270 such ranges in it (Bridge 0.3.1).
        found.append(
            ReportWarning(
                "nvtx-ranges",
                "the run puts NVTX ranges of its own around its parts (nvtx_ranges), at about 0.1 ms of host time each "
                "and in unprofiled steps too: without them host time is less than shown; capture with them off",
            )
        )
    ratio = facts.number("attention_forward_per_backward_ratio")
    recompute = facts.get("recompute_ns")
    if recompute.missing_reason and ratio is not None and ratio >= RECOMPUTES_RATIO:
        found.append(
            ReportWarning(
                "recompute-not-priced", f"{recompute.missing_reason}; the memory wall may weigh more than shown"
            )
        )
    unknown = facts.number("unclassified_fraction")
    if unknown is not None and unknown >= MUCH_UNCLASSIFIED_FRACTION:
        found.append(
            ReportWarning(
                "unclassified-kernels",
                f"{unknown:.0%} of the step is kernels whose names are not known (tables/kernel-categories.yaml)",
            )
        )
    return found
