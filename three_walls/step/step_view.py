"""The representative step, and the run it is of: what most facts are made from."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from three_walls.lib.declare import artifact
from three_walls.lib.measurement import Measurement, known, missing
from three_walls.megatron.parallel_layout import ParallelLayout, read_layout
from three_walls.megatron.settings.run_config import ConfigValue, RunConfig
from three_walls.step.attribute_steps import Attribution
from three_walls.step.build_timeline import Timeline, take_rank
from three_walls.step.find_steps import STEP, list_steps
from three_walls.step.joined_log import JoinedLog
from three_walls.step.operators import Operators, read_operators
from three_walls.step.ownership import union_where
from three_walls.step.ranks.matched_ranks import MatchedRanks
from three_walls.step.slow_ranks import GpuSuspicion, PeerMedians, suspect_gpu
from three_walls.step.step_rows import MINIMUM_SHARED_GPU_SPREAD_RATIO, Straggler
from three_walls.step.step_tables import Operations, Slices, StepKeys, Steps
from three_walls.step.stragglers import MINIMUM_LATE_FRACTION, SICK_CAUSES, StragglerCause
from three_walls.tables.hardware import LARGEST_SERVER_GPUS, GpuModel, find_gpu
from three_walls.trace.capabilities import NONE_RECORDED, YES, common_capabilities
from three_walls.trace.identity import Gpu, Rank
from three_walls.trace.read_inputs import Inputs
from three_walls.trace.read_trace import Trace

MINIMUM_LATE_LAUNCHES_FRACTION = 0.2
"""Of the step: a rank with late launches is not to be fixed first below this, where no log shows what of them the
profiler caused. The profiler slows launches, on one rank more than on another: of two healthy H200s under it, one
launches later than the other by 5 to 15% of the step in three runs. Without a log nothing distinguishes that from a
slow host."""

NO_STEP = "no step could be kept (capture four steps or more)"
"""Why what is measured in a step is missing."""


@dataclass(frozen=True, slots=True)
class RunView:
    """What is known of the run apart from its operations: settings, layout, GPU, captured ranks."""

    config: RunConfig
    layout: ParallelLayout
    gpu: GpuModel | None
    """The GPU's row in the hardware table; None for one that is not in it."""
    device: Gpu | None = None
    """The GPU as recorded; None where it is not, or ranks differ."""
    capabilities: Mapping[str, str] = field(default_factory=dict)
    """What all traces recorded, by name: ``yes``, or why not (``trace/capabilities.py``)."""
    ranks: tuple[Rank, ...] = ()
    visible_gpus: tuple[str | None, ...] = ()
    """Of each of ``ranks``: its CUDA_VISIBLE_DEVICES; None where that is not recorded."""

    def lacks(self, capability: str) -> str | None:
        """Why ``capability`` is not among what the traces recorded, or None where it is."""
        state = self.capabilities[capability]
        return None if state in (YES, NONE_RECORDED) else state


@artifact
def run(inputs: Inputs) -> RunView:
    """What the captures and the settings show of the run."""
    traces, config = [capture for capture in inputs.captures if capture.ranks], inputs.config
    ranks = tuple(rank for trace in traces for rank in trace.ranks)
    devices = {rank.gpu for rank in ranks}
    first = ranks[0].gpu
    return RunView(
        config=config,
        layout=read_layout(config),
        gpu=_find_gpu(first, config),
        device=devices.pop() if len(devices) == 1 else None,
        capabilities=common_capabilities([trace.capabilities for trace in traces]),
        ranks=ranks,
        visible_gpus=tuple(
            str(found.value) if (found := trace.config.environment.get("CUDA_VISIBLE_DEVICES")) else None
            for trace in traces
            for _ in trace.ranks
        ),
    )


def _find_gpu(device: Gpu | None, config: RunConfig) -> GpuModel | None:
    """The GPU's row; of a rack, with as many GPUs in an NVLink domain as the run states for HybridEP (NVL36 has 36)."""
    gpu = find_gpu(device.name, device.sm) if device else None
    variable = config.environment.get("NVLINK_DOMAIN_SIZE")
    stated = str(variable.value) if variable is not None else ""
    # A smaller one is that of a server, left over from another machine.
    if gpu is None or not stated.isdecimal() or not LARGEST_SERVER_GPUS < int(stated) <= (gpu.nvlink_domain_gpus or 0):
        return gpu
    return replace(gpu, nvlink_domain_gpus=int(stated))


@dataclass(frozen=True, slots=True)
class StepView:
    """The step that the run's facts are taken from: the median kept step of the representative rank.

    Ranks advance in lockstep: the one that waits least is the one that the others wait for, so its step shows what
    holds the run back. A rank that is slow for a reason of its own (``SICK_CAUSES``) shows nothing but itself: then a
    healthy rank represents the run, the one of median compute.
    """

    run: RunView
    trace: Trace
    """The trace of the rank: ids of names and processes mean something within one trace only."""
    rank: Rank
    step: int
    start_ns: int
    end_ns: int
    operations: Operations
    """Of the rank, those that overlap the step."""
    slices: Slices
    """The step cut where anything starts or ends (``step/ownership.py``)."""
    budget_ns: Mapping[str, int]
    """Bucket -> the time it owns in the step; buckets without time are left out."""
    transfer_ns: Mapping[str, int]
    """Communication category -> its exposed transfer in the step; at the pace of the fastest calls where a member of
    the group shares its GPU with another process."""
    kept_steps: Steps
    """All kept steps of the rank (``step/find_steps.py``: STEPS)."""
    why: str
    """Which step it is and why that one, in words."""
    least_transfer: frozenset[str] = frozenset()
    """Categories whose transfer is a lower bound unless all messages have one size."""
    contended_ns: int = 0
    """Exposed transfer that ``transfer_ns`` leaves out for that reason."""

    @property
    def config(self) -> RunConfig:
        return self.run.config

    @property
    def layout(self) -> ParallelLayout:
        return self.run.layout

    @property
    def gpu(self) -> GpuModel | None:
        return self.run.gpu

    @property
    def rank_index(self) -> int:
        return self.rank.rank_index

    @property
    def window(self) -> tuple[int, int]:
        """Start and end of the step, half-open."""
        return self.start_ns, self.end_ns

    @property
    def step_ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def names(self) -> Mapping[int, str]:
        """Texts by ``name_id`` of the rank's operations."""
        return self.trace.names

    @property
    def started(self) -> Operations:
        """Operations that start in the step."""
        return self.operations.filter(pl.col("start_ns").is_between(*self.window, closed="left"))

    @property
    def kernels(self) -> Operations:
        """Kernels that start in the step."""
        return self.started.filter(pl.col("kind") == "kernel")

    def owned_ns(self, *buckets: str) -> int:
        """Time of the step that ``buckets`` own together."""
        return sum(self.budget_ns.get(bucket, 0) for bucket in buckets)

    @property
    def unpaused_ns(self) -> int:
        """Length of the step without the pauses of the host. Shares of it do not shrink where the host pauses."""
        return self.step_ns - self.owned_ns("host_pause")

    def union_ns(self, categories: Collection[str], *, exposed: bool = False) -> int:
        """Time in which an operation of ``categories`` runs; with ``exposed``, while no compute kernel does."""
        return int(union_where(self.slices, tuple(categories), exposed)["ns"].sum())

    def transferred_ns(self, categories: Collection[str]) -> int:
        """Exposed transfer of ``categories``: exposed communication without waiting for peers.

        Categories may overlap one another, so their sum is capped by the time in which any of them is exposed.
        """
        total = sum(self.transfer_ns.get(category, 0) for category in categories)
        return min(total, self.union_ns(categories, exposed=True))


@artifact
def any_step(
    inputs: Inputs, timeline: Timeline, attribution: Attribution, matched_ranks: MatchedRanks, run: RunView
) -> Measurement[StepView]:
    """The step that represents the run if no rank is slow for a reason of its own."""
    return choose_step(inputs.with_kernels, timeline, attribution, matched_ranks, run)


@artifact
def sick_ranks(
    attribution: Attribution, any_step: Measurement[StepView], joined_log: Measurement[JoinedLog]
) -> tuple[Straggler, ...]:
    """Ranks that may not represent the run. Steps of all ranks are equally long, so any step and the log decide."""
    step_ns, unpaused_ns = (any_step.value.step_ns, any_step.value.unpaused_ns) if any_step.value else (0, 0)
    excess_ns = joined_log.value.measure_excess_ns(step_ns) if joined_log.value else None
    return tuple(straggler for straggler, _ in find_sick(attribution.stragglers, unpaused_ns, excess_ns))


@artifact
def step(
    inputs: Inputs,
    timeline: Timeline,
    attribution: Attribution,
    matched_ranks: MatchedRanks,
    run: RunView,
    any_step: StepView,
    sick_ranks: tuple[Straggler, ...],
) -> Measurement[StepView]:
    """The representative step."""
    if not sick_ranks:
        return known(any_step)
    return choose_step(inputs.with_kernels, timeline, attribution, matched_ranks, run, sick_ranks)


@artifact
def operators(step: StepView) -> Operators:
    """The ranges of the rank's process around the launches of the step."""
    return read_operators(step.trace, step.rank.process, step.operations)


@artifact
def config_as_run(run: RunView, step: Measurement[StepView]) -> RunConfig:
    """The settings with the attention that the kernels show: Transformer Engine may fall back to unfused attention.

    For estimates that depend on what ran. Advice rests on the settings, which hold what was set.
    """
    if step.value is None or not step.value.owned_ns("attention_unfused") or step.value.owned_ns("attention"):
        return run.config
    attention = {"attention_backend": ConfigValue("unfused", "kernels")}
    return replace(run.config, values={**run.config.values, **attention})


def choose_step(
    traces: Sequence[Trace],
    timeline: Timeline,
    attribution: Attribution,
    matched_ranks: MatchedRanks,
    run: RunView,
    sick: Sequence[Straggler] = (),
) -> Measurement[StepView]:
    """The representative step of ``run``; missing without a kept step. ``sick``: ranks that may not represent it."""
    medians = attribution.median_of
    if not medians:
        return missing(NO_STEP)
    trace_of = {rank.rank_index: (trace, rank) for trace in traces for rank in trace.ranks}
    rank_index, reason = choose_rank(medians, attribution, matched_ranks, sick)
    if rank_index not in trace_of:  # of a surveyed run, only some ranks were read in full
        in_full = {index: step for index, step in medians.items() if index in trace_of}
        if not in_full:
            return missing(NO_STEP)
        rank_index, reason = choose_rank(in_full, attribution, matched_ranks, sick)
    trace, rank = trace_of[rank_index]
    step = medians[rank_index]
    kept_steps = timeline.steps.filter((pl.col("rank_index") == rank_index) & pl.col("kept"))
    start, end = kept_steps.filter(pl.col("step") == step).select("start_ns", "end_ns").row(0)
    which = "only complete" if kept_steps.height == 1 else "median"
    of_step = (pl.col("rank_index") == rank_index) & (pl.col("step") == step)
    budget = attribution.budget.filter(of_step).select("bucket", "ns").rows()
    transfer_ns, contended_ns = _transfer_at_pace(attribution, matched_ranks, rank_index, step)
    view = StepView(
        run=run,
        trace=trace,
        rank=rank,
        step=step,
        start_ns=int(start),
        end_ns=int(end),
        operations=_take_between(timeline, rank_index, start, end),
        slices=attribution.slices.filter(of_step),
        budget_ns={str(bucket): int(ns) for bucket, ns in budget},
        transfer_ns=transfer_ns,
        kept_steps=kept_steps,
        why=f"rank {rank.rank}, step {step}: its {which} step; {reason}",
        least_transfer=frozenset(attribution.transfer.filter(of_step & pl.col("is_least"))["class"].to_list()),
        contended_ns=contended_ns,
    )
    return known(view)


def _take_between(timeline: Timeline, rank_index: int, start_ns: int, end_ns: int) -> Operations:
    """The operations of a rank that run at some time from ``start_ns`` to ``end_ns``."""
    is_between = (pl.col("start_ns") < end_ns) & (pl.col("end_ns") > start_ns)
    return take_rank(timeline.operations, rank_index).filter(is_between)


def view_other_rank(
    step: StepView, trace: Trace, rank: Rank, timeline: Timeline, median_of: Mapping[int, int]
) -> StepView | None:
    """The operations of ``rank``'s step of ``median_of`` in place of those of ``step``; None without a kept step.

    What was attributed to ``step`` (slices, budget, transfer) stays that of its own rank.
    """
    steps = timeline.steps.filter(pl.col("rank_index") == rank.rank_index)
    number = median_of.get(rank.rank_index)
    if number is None:
        return None
    start, end = steps.filter(pl.col("step") == number).select("start_ns", "end_ns").row(0)
    operations = _take_between(timeline, rank.rank_index, start, end)
    return replace(
        step, trace=trace, rank=rank, step=number, start_ns=int(start), end_ns=int(end), operations=operations
    )


def find_sick(
    stragglers: Iterable[Straggler], step_ns: int, profiler_excess_ns: int | None
) -> tuple[tuple[Straggler, int], ...]:
    """Stragglers that are late for a reason of their own, each with what it costs per step, in the order given.

    Late launches count as far as the profiler does not explain them: it slows launches, and not on every rank alike.
    ``profiler_excess_ns``: what it added to the step by the log; None without one.
    """
    sick = []
    for straggler in stragglers:
        cost_ns, least = straggler.beyond_peers_ns, MINIMUM_LATE_FRACTION
        if straggler.cause == StragglerCause.LAUNCH_STARVED:
            cost_ns = max(0, cost_ns - (profiler_excess_ns or 0))
            least = MINIMUM_LATE_LAUNCHES_FRACTION if profiler_excess_ns is None else least
        if straggler.cause in SICK_CAUSES and cost_ns >= least * step_ns:
            sick.append((straggler, cost_ns))
    return tuple(sick)


def choose_rank(
    medians: Mapping[int, int],
    attribution: Attribution,
    matched_ranks: MatchedRanks,
    stragglers: Sequence[Straggler],
) -> tuple[int, str]:
    """The index of the representative rank, and how it was chosen.

    ``medians``: the median kept step of every rank that has one. ``stragglers``: those that are late for a reason of
    their own. Ranks that share their GPU with another process, or are slow at the same kernels, are no better, also
    where no call shows them late.
    """
    rank_of = matched_ranks.rank_of
    slow_gpus = {rank_of[index] for index in (*find_shared_gpus(attribution.kernel_spread), *attribution.slow_ranks)}
    late = {straggler.rank for straggler in stragglers}
    sick = sorted(late | slow_gpus)
    healthy = [index for index in medians if rank_of[index] not in sick]
    if not sick or not healthy:
        rank_index = _find_least_waiting(medians, medians, attribution, matched_ranks)
        if len(medians) == 1:
            return rank_index, "the only rank captured"
        of_ranks = f"it waited least for peers of {len(medians)} ranks"
        return rank_index, of_ranks + (", all of which are late" if sick else "")
    slow = {straggler.rank for straggler in stragglers if straggler.cause == StragglerCause.SLOW_COMPUTE}
    which = f"rank {sick[0]} is" if len(sick) == 1 else f"ranks {', '.join(map(str, sick))} are"
    are_sick = f"{which} {'slow' if late | slow_gpus == slow | slow_gpus else 'late'}"
    # Pipeline stages do different work: the peers of a slow rank are those of its stage.
    places = matched_ranks.pipeline.places if matched_ranks.pipeline else {}
    stages = {places[index][0] for index in medians if rank_of[index] in sick and index in places}
    peers = [index for index in healthy if index not in places or places[index][0] in stages]
    if not peers:
        rank_index = _find_least_waiting(healthy, medians, attribution, matched_ranks)
        return rank_index, f"it waited least for peers of {len(healthy)} healthy ranks, of other stages; {are_sick}"
    compute_ns = _sum_compute(attribution, {index: medians[index] for index in peers})
    ordered = sorted(peers, key=lambda index: (compute_ns[index], rank_of[index], index))
    rank_index = ordered[(len(ordered) - 1) // 2]
    where = " of its stage" if len(peers) < len(healthy) else ""
    if len(ordered) == 1:
        return rank_index, f"the only healthy rank{where}; {are_sick}"
    return rank_index, f"the median of {len(ordered)} healthy ranks{where}; {are_sick}"


def find_shared_gpus(kernel_spread: Mapping[int, float]) -> list[int]:
    """Indices of ranks whose repeated kernels vary as on a shared GPU, and those of their peers do not."""
    peers = PeerMedians(kernel_spread.values())
    return [
        index
        for index, spread in kernel_spread.items()
        if spread >= MINIMUM_SHARED_GPU_SPREAD_RATIO
        and suspect_gpu(spread, peers.without(spread)) is GpuSuspicion.SHARED_GPU
    ]


def _find_least_waiting(
    ranks: Iterable[int], medians: Mapping[int, int], attribution: Attribution, matched_ranks: MatchedRanks
) -> int:
    """Of ``ranks``, the index of the one that waits least for its peers in its median step."""
    rank_of = matched_ranks.rank_of
    step_of = {index: medians[index] for index in ranks}
    steps = list_steps(step_of)
    exposed_ns = _sum_by_rank(attribution.exposure, steps, "exposed_ns")
    transferred_ns = _sum_by_rank(attribution.transfer, steps, "transfer_exposed_ns")
    waits = {index: exposed_ns.get(index, 0) - transferred_ns.get(index, 0) for index in step_of}
    return min(waits, key=lambda index: (waits[index], rank_of[index], index))


def _sum_compute(attribution: Attribution, step_of: Mapping[int, int]) -> dict[int, int]:
    """How long some compute kernel runs in the steps ``step_of`` (by rank index), by rank index."""
    return dict.fromkeys(step_of, 0) | _sum_by_rank(attribution.compute, list_steps(step_of), "ns")


def _sum_by_rank(rows: StepKeys, steps: StepKeys, column: str) -> dict[int, int]:
    """The sums of ``column`` in ``steps`` (one of each rank), by rank index."""
    sums = rows.join(steps, on=STEP, how="semi").group_by("rank_index").agg(pl.col(column).sum())
    return {int(rank_index): int(total) for rank_index, total in sums.rows()}


def _transfer_at_pace(
    attribution: Attribution, matched_ranks: MatchedRanks, rank_index: int, step: int
) -> tuple[Mapping[str, int], int]:
    """Exposed transfer by category, and what it leaves out of the measured one.

    A collective in which one GPU is shared crawls whenever the other process has that GPU. Calls that repeat then count
    at the pace of the fastest tenth of their kind. The others are taken to be stretched as much as that GPU's kernels.
    """
    of_step = (pl.col("rank_index") == rank_index) & (pl.col("step") == step)
    rows = attribution.transfer.filter(of_step).rows(named=True)
    transfer_ns = {str(row["class"]): int(row["transfer_exposed_ns"]) for row in rows}
    shared_gpus = [each.rank for each in attribution.stragglers if each.likely_reason == GpuSuspicion.SHARED_GPU]
    indices_of_shared = [index for index, rank in matched_ranks.rank_of.items() if rank in shared_gpus]
    instances = matched_ranks.arrivals.filter(pl.col("rank_index").is_in(indices_of_shared))["instance"].unique()
    classes = set(
        matched_ranks.arrivals.filter(of_step & pl.col("instance").is_in(instances.implode()))["class"].to_list()
    )
    if not classes or rank_index in indices_of_shared:
        return transfer_ns, 0
    stretch = max(attribution.kernel_spread[index] for index in indices_of_shared)
    at_pace = dict(transfer_ns)
    for row in rows:
        name, repeated_ns = str(row["class"]), row["repeated_exposed_ns"]
        if name in classes and repeated_ns is not None:
            once_ns = max(0, transfer_ns[name] - repeated_ns)
            at_pace[name] = min(transfer_ns[name], int(row["fastest_exposed_ns"]) + round(once_ns / stretch))
    return at_pace, sum(transfer_ns.values()) - sum(at_pace.values())
