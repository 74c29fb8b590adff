"""How long the training loop waits for its next batch: the time in which it asks PyTorch's data loader for one."""

from __future__ import annotations

import polars as pl

from three_walls.facts import fact_thresholds
from three_walls.lib.declare import duration, flag
from three_walls.lib.measurement import Measurement, known, missing
from three_walls.step.operators import read_named_ranges, take_batch_requests
from three_walls.step.step_view import StepView


@duration("data loader wait per step", share="waiting for the data loader")
def data_loader_wait_ns(step: StepView) -> Measurement[int]:
    """Time per step in which a thread asks PyTorch's data loader for its next batch, and does nothing else.

    Not the same as: Idle time of the GPU: what was launched before may run meanwhile.
    """
    asked = take_batch_requests(read_named_ranges(step.trace, step.rank.process, step.operations))
    if asked.is_empty():
        return missing("no range shows when the data loader is asked for a batch (capture with emit_nvtx)")
    start, end = (pl.col(name).clip(*step.window) for name in ("start_ns", "end_ns"))
    by_thread = asked.group_by("thread").agg(ns=(end - start).sum())
    return known(max(by_thread["ns"]))


@flag(
    "whether the data loader sets the pace",
    if_true="The step waits for its data loader",
    if_false="The step does not wait for its data loader",
)
def data_loader_sets_pace(data_loader_wait_fraction: float) -> bool:
    """Whether waiting for batches takes so much of the step that the loader is slower than the rest of it."""
    return data_loader_wait_fraction >= fact_thresholds.LOADER_BOUND_FRACTION
