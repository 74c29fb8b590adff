"""What limits the report's claims in the traces themselves: warnings with stable codes, in order of appearance.

Warnings that are comparisons of facts stand in ``rules/warnings/``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from three_walls.inputs.nsys.capabilities import YES
from three_walls.inputs.nsys.reader import Trace
from three_walls.model.config import RunConfig
from three_walls.model.report import ReportWarning
from three_walls.timeline.steps import StepSource
from three_walls.timeline.timeline import Timeline

_PER_RANK = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "CUDA_VISIBLE_DEVICES", "GROUP_RANK", "NODE_RANK")


def collect_caveats(
    traces: Sequence[Trace], timeline: Timeline, capabilities: Mapping[str, str]
) -> tuple[ReportWarning, ...]:
    """Warnings of the readers, about traces that do not fit together, and about steps; each once."""
    found = [warning for trace in traces for warning in trace.warnings]
    found += _warn_of_ranks(traces)
    found += _warn_of_different_configs([trace.config for trace in traces if trace.ranks])
    found += _warn_of_steps(timeline)
    if capabilities.get("inside_cuda_graphs") != YES:
        found.append(ReportWarning("inside-cuda-graphs", capabilities["inside_cuda_graphs"]))
    return tuple(dict.fromkeys(found))


def _warn_of_ranks(traces: Sequence[Trace]) -> list[ReportWarning]:
    found = [
        ReportWarning("no-kernels", f"{trace.input.path_name} has no CUDA kernels and is left out")
        for trace in traces
        if not trace.ranks
    ]
    ranks = [rank for trace in traces for rank in trace.ranks]
    if any(rank.rank_source == "order" for rank in ranks):
        found.append(
            ReportWarning(
                "rank-not-in-trace",
                "the launcher's RANK is not in the trace (or one report holds several processes), so ranks are "
                "numbered in the order in which they were found",
            )
        )
    twice = sorted(rank for rank, count in Counter(rank.rank for rank in ranks).items() if count > 1)
    if twice:
        numbers = ", ".join(map(str, twice))
        message = f"more than one trace is of rank {numbers}; check that they belong to one run"
        found.append(ReportWarning("duplicate-rank", message))
    return found


def _warn_of_different_configs(configs: Sequence[RunConfig]) -> list[ReportWarning]:
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
    names = ", ".join(sorted([*keys, *variables])[:8])
    message = f"the traces were launched with different settings ({names}); check that they belong to one run"
    return [ReportWarning("configs-differ", message)]


def _warn_of_steps(timeline: Timeline) -> list[ReportWarning]:
    found = []
    if StepSource.ONE_WINDOW in timeline.sources.values():
        found.append(
            ReportWarning(
                "one-window",
                "no training steps were found (no training_step_N range, no recurring optimizer kernels), so the whole "
                "capture is one window; name the NVTX ranges that are steps with --step-range REGEX",
            )
        )
    kept_per_rank = timeline.steps.filter("kept").group_by("rank_index").len()["len"]
    if kept_per_rank.len() and int(kept_per_rank.sort()[0]) == 1:
        found.append(
            ReportWarning(
                "one-step",
                "some rank has only one usable step, so the spread of its steps is unknown: capture four or more",
            )
        )
    return found
