"""How long the training loop waits for its next batch: the time in which it asks PyTorch's data loader for one."""

from __future__ import annotations

import polars as pl

from three_walls.lib.declare import artifact, duration, flag
from three_walls.lib.measurement import Measurement, known, missing
from three_walls.step.attribute_steps import Attribution
from three_walls.step.find_steps import STEP
from three_walls.step.intervals import DURATION, gaps_within, intersect, mask_of, merge_overlapping
from three_walls.step.operators import read_named_ranges, take_batch_requests
from three_walls.step.ownership import LABELS
from three_walls.step.step_tables import NamedRanges
from three_walls.step.step_view import StepView

LOADER_BOUND_FRACTION = 0.05
"""Of the step: a loader sets the pace where the GPU starves for its batches for so long. Asking one that has the batch
ready took 0.01 to 0.15 percent of the step in 37 real captures. In three whose loader is too slow the GPU starves for
19 to 66 percent, and in one whose batches are late now and then for 4 percent. A host that is far ahead of the GPU
waits for batches whose time nobody misses: 17 percent of a step in which the GPU computed 95, and that FP8 made 10
percent shorter."""


@artifact
def batch_requests(step: StepView) -> NamedRanges:
    """The ranges around the step in which a thread asks PyTorch's data loader for its next batch."""
    return take_batch_requests(read_named_ranges(step.trace, step.rank.process, step.operations))


@artifact
def starved_by_loader_ns(step: StepView, batch_requests: NamedRanges) -> int:
    """Launch-starved time of the step in which a thread waits for its next batch: no edit of the model shortens it."""
    starved = step.slices.filter((pl.col("active") & mask_of(["launch_starved"], LABELS)) != 0)
    asked = batch_requests.with_columns(pl.lit(step.rank_index).cast(starved.schema["rank_index"]).alias("rank_index"))
    return int(
        intersect(starved, merge_overlapping(asked, ["rank_index"]), ["rank_index"]).select(DURATION.sum()).item()
    )


@artifact
def starving_ranks(attribution: Attribution) -> frozenset[int]:
    """Indices of ranks whose GPU is launch-starved in their median step for as long as a loader would have to be waited
    for: a batch that is late in one step of several sets no pace."""
    starved = pl.col("ns").filter(bucket="launch_starved").sum() / pl.col("ns").sum()
    of_step = attribution.budget.join(attribution.steps.filter("kept"), on=STEP, how="semi").group_by(STEP).agg(starved)
    usual = of_step.group_by("rank_index").agg(pl.col("ns").median())
    return frozenset(usual.filter(pl.col("ns") >= LOADER_BOUND_FRACTION)["rank_index"])


@duration("data loader wait per step", share="waiting for the data loader")
def data_loader_wait_ns(step: StepView, batch_requests: NamedRanges, attribution: Attribution) -> Measurement[int]:
    """Time per step in which a thread asks PyTorch's data loader for its next batch, and does nothing else, without
    pauses.

    Not the same as: Idle time of the GPU: what was launched before may run meanwhile.
    """
    if batch_requests.is_empty():
        return missing("no range shows when the data loader is asked for a batch (capture with emit_nvtx)")
    start, end = (pl.col(name).clip(*step.window) for name in ("start_ns", "end_ns"))
    pauses = attribution.pauses.filter(rank_index=step.rank_index)
    by_thread = gaps_within(pauses, batch_requests, ["thread"]).group_by("thread").agg(ns=(end - start).sum())
    return known(max(by_thread["ns"], default=0))


@flag(
    "whether the data loader sets the pace",
    if_true="The step waits for its data loader",
    if_false="The step does not wait for its data loader",
)
def data_loader_sets_pace(
    step: StepView,
    data_loader_wait_fraction: float,
    starved_by_loader_ns: int,
    starving_ranks: frozenset[int],
    is_batch_late_once: Measurement[bool],
) -> bool:
    """Whether the GPU starves for batches for so much of the step that the loader is slower than the rest of it."""
    return (
        step.rank_index in starving_ranks
        and not is_batch_late_once.value
        and min(data_loader_wait_fraction, starved_by_loader_ns / max(1, step.unpaused_ns)) >= LOADER_BOUND_FRACTION
    )
