"""The representative step, and the run it is of: what measuring functions are given."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from three_walls.attribution.attribution import Attribution
from three_walls.attribution.ownership import union_where
from three_walls.inputs.config.parallel_layout import ParallelLayout, read_layout
from three_walls.inputs.nsys.capabilities import NONE_RECORDED, YES, common_capabilities
from three_walls.inputs.nsys.identity import Gpu, Rank
from three_walls.inputs.nsys.reader import Trace
from three_walls.model.config import RunConfig
from three_walls.tables.hardware import GpuModel, find_gpu
from three_walls.timeline.steps import median_steps
from three_walls.timeline.timeline import Timeline

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
    """What all traces recorded, by name: ``yes``, or why not (``inputs/nsys/capabilities.py``)."""
    ranks: tuple[Rank, ...] = ()

    def lacks(self, capability: str) -> str | None:
        """Why ``capability`` is not among what the traces recorded, or None where it is."""
        state = self.capabilities[capability]
        return None if state in (YES, NONE_RECORDED) else state


def view_run(traces: Sequence[Trace], config: RunConfig) -> RunView:
    """The run of ``traces`` with the merged ``config``. Every trace holds kernels of some rank."""
    ranks = tuple(rank for trace in traces for rank in trace.ranks)
    devices = {rank.gpu for rank in ranks}
    first = ranks[0].gpu
    return RunView(
        config=config,
        layout=read_layout(config),
        gpu=find_gpu(first.name, first.sm) if first else None,
        device=devices.pop() if len(devices) == 1 else None,
        capabilities=common_capabilities([trace.capabilities for trace in traces]),
        ranks=ranks,
    )


@dataclass(frozen=True, slots=True)
class StepView:
    """The step that the run's facts are taken from: the median kept step of the rank that waited least for its peers.

    Ranks advance in lockstep: the one that waits least is the one that the others wait for, so its step shows what
    holds the run back.
    """

    run: RunView
    trace: Trace
    """The trace of the rank: ids of names and processes mean something within one trace only."""
    rank: Rank
    step: int
    start_ns: int
    end_ns: int
    operations: pl.DataFrame
    """Of the rank, those that overlap the step; columns as ``Timeline.operations``."""
    slices: pl.DataFrame
    """The step cut where anything starts or ends (``attribution/ownership.py``)."""
    budget_ns: Mapping[str, int]
    """Bucket -> the time it owns in the step; buckets without time are left out."""
    transfer_ns: Mapping[str, int]
    """Communication category -> its exposed transfer in the step."""
    kept_steps: pl.DataFrame
    """All kept steps of the rank (``timeline/steps.py``: STEPS)."""
    schedule_nodes: pl.DataFrame
    """What each host launched for which node of an overlapped layer (``timeline/timeline.py``)."""
    why: str
    """Which step it is and why that one, in words."""

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
    def started(self) -> pl.DataFrame:
        """Operations that start in the step."""
        return self.operations.filter(pl.col("start_ns").is_between(*self.window, closed="left"))

    @property
    def kernels(self) -> pl.DataFrame:
        """Kernels that start in the step."""
        return self.started.filter(pl.col("kind") == "kernel")

    def owned_ns(self, *buckets: str) -> int:
        """Time of the step that ``buckets`` own together."""
        return sum(self.budget_ns.get(bucket, 0) for bucket in buckets)

    def union_ns(self, categories: Collection[str], *, exposed: bool = False) -> int:
        """Time in which an operation of ``categories`` runs; with ``exposed``, while no compute kernel does."""
        return int(union_where(self.slices, tuple(categories), exposed)["ns"].sum())

    def transferred_ns(self, categories: Collection[str]) -> int:
        """Exposed transfer of ``categories``: exposed communication without waiting for peers.

        Categories may overlap one another, so their sum is capped by the time in which any of them is exposed.
        """
        total = sum(self.transfer_ns.get(category, 0) for category in categories)
        return min(total, self.union_ns(categories, exposed=True))


def choose_step(traces: Sequence[Trace], timeline: Timeline, attribution: Attribution, run: RunView) -> StepView | None:
    """The representative step of ``run``; None without a kept step."""
    medians = median_steps(attribution.steps)
    if not medians:
        return None
    trace_of = {rank.rank_index: (trace, rank) for trace in traces for rank in trace.ranks}
    waits = {rank_index: _waited_ns(attribution, rank_index, step) for rank_index, step in medians.items()}
    rank_index = min(medians, key=lambda index: (waits[index], trace_of[index][1].rank, index))
    trace, rank = trace_of[rank_index]
    step = medians[rank_index]
    among = "the only rank captured" if len(medians) == 1 else f"it waited least for peers of {len(medians)} ranks"
    kept_steps = timeline.steps.filter((pl.col("rank_index") == rank_index) & pl.col("kept"))
    start, end = kept_steps.filter(pl.col("step") == step).select("start_ns", "end_ns").row(0)
    of_step = (pl.col("rank_index") == rank_index) & (pl.col("step") == step)
    budget = attribution.budget.filter(of_step).select("bucket", "ns").rows()
    transfer = attribution.transfer.filter(of_step).select("class", "transfer_exposed_ns").rows()
    return StepView(
        run=run,
        trace=trace,
        rank=rank,
        step=step,
        start_ns=int(start),
        end_ns=int(end),
        operations=timeline.operations.filter(
            (pl.col("rank_index") == rank_index) & (pl.col("start_ns") < end) & (pl.col("end_ns") > start)
        ),
        slices=attribution.slices.filter(of_step),
        budget_ns={str(bucket): int(ns) for bucket, ns in budget},
        transfer_ns={str(category): int(ns) for category, ns in transfer},
        kept_steps=kept_steps,
        schedule_nodes=timeline.schedule_nodes,
        why=f"rank {rank.rank}, step {step}: its median step; {among}",
    )


def _waited_ns(attribution: Attribution, rank_index: int, step: int) -> int:
    of_step = (pl.col("rank_index") == rank_index) & (pl.col("step") == step)
    exposed = attribution.exposure.filter(of_step)["exposed_ns"].sum()
    transferred = attribution.transfer.filter(of_step)["transfer_exposed_ns"].sum()
    return int(exposed) - int(transferred)
