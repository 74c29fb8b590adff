"""An owner for every nanosecond of every step, and from the same slices what communication is exposed or hidden.

``slice_steps`` cuts each step wherever an operation or a cause of idle time starts or ends. Where several are active in
a slice, the first in the precedence of ``BUCKETS`` owns it. Everything else is a sum over these slices:

- ``measure_budget``: the time that each bucket owns. The buckets sum to the step, in integers; this is asserted.
- ``measure_exposure``: communication while no compute kernel runs (exposed), and the rest (hidden).

A step is idle where nothing runs on the device. Each idle gap ends with an operation that the device could not have run
before its launch call began. So the gap up to that call is the host's: *profiler* where the profiler delayed the
launching thread, *host-pause* where the host did nothing for far longer than usual (``host_pauses.py``),
*host-blocked* where that thread was in a synchronizing call, *launch-starved* otherwise (Python, launches for other
streams, allocation, nothing visible). After the call began, or where no call is recorded, the gap is
``idle_other``. A long time from launch to start is not starvation: it means that the host is ahead.
"""

from __future__ import annotations

import polars as pl

from three_walls.step.find_steps import STEP
from three_walls.step.host_activity import THREAD
from three_walls.step.intervals import DURATION, find_next, gaps_within, intersect, mask_of, merge_overlapping, sweep
from three_walls.step.step_tables import (
    BudgetRows,
    ExposureRows,
    IdleCauses,
    Operations,
    RankIntervals,
    Slices,
    StepIntervals,
    Steps,
    StepTimes,
    ThreadIntervals,
)
from three_walls.tables.buckets import BUCKETS, COMMUNICATION_CATEGORIES, COMPUTE_CATEGORIES
from three_walls.trace.schemas import ProfilerOverhead

LABELS = tuple(bucket.name for bucket in BUCKETS)
IDLE_OTHER = "idle_other"
"""Owns the slices in which nothing is active."""

_LABEL = pl.Enum(LABELS)

COMPUTE_MASK = mask_of(COMPUTE_CATEGORIES, LABELS)

IS_EXPOSED = ((pl.col("active") & mask_of(COMMUNICATION_CATEGORIES, LABELS)) != 0) & (
    (pl.col("active") & COMPUTE_MASK) == 0
)
"""Whether communication, but no compute, runs in a slice."""

OWNER = (
    pl.when(pl.col("active") == 0)
    .then(pl.lit(IDLE_OTHER))
    .otherwise(
        pl.col("active")
        .bitwise_trailing_zeros()
        .replace_strict(dict(enumerate(LABELS)), default=IDLE_OTHER, return_dtype=pl.String)
    )
)
"""The bucket that owns a slice."""


class ConservationError(AssertionError):
    """A sum that must hold does not: a defect of this program, never of the input."""


def slice_steps(operations: Operations, idle_causes: IdleCauses, steps: Steps) -> Slices:
    """Steps cut wherever anything starts or ends."""
    columns = ("rank_index", "start_ns", "end_ns", "label")
    label = pl.col("category").cast(pl.String).cast(_LABEL)
    running = operations.select("rank_index", "start_ns", "end_ns", label=label)
    idle = idle_causes.select(*columns[:-1], pl.col("label").cast(_LABEL))
    return sweep(pl.concat([running, idle]), steps, "label", LABELS, ["rank_index"], carry=["step"])


def label_idle(
    operations: Operations,
    steps: Steps,
    synchronizing: ThreadIntervals,
    overhead: ProfilerOverhead,
    pauses: RankIntervals | None = None,
) -> IdleCauses:
    """Causes of idle time as labelled intervals.

    The arguments are the frames of those names of a Timeline, or of a replayed one.

    ``launch_starved`` covers all idle time until the launch but for ``pauses``; ``host_blocked`` and ``profiler`` cover
    parts of it, and the precedence of the buckets decides which owns an instant. Idle time without a label is
    ``idle_other``.
    """
    late = _find_late_launches(operations, steps)
    paused = late.clear()
    if pauses is not None and pauses.height:
        paused = intersect(late, pauses, ["rank_index"])
        late = gaps_within(pauses, late, ["rank_index"])
    synchronizations = intersect(late, merge_overlapping(synchronizing, THREAD), THREAD)
    delays = intersect(late, merge_overlapping(overhead, THREAD), THREAD)
    causes = [
        part.select(*STEP, "start_ns", "end_ns", label=pl.lit(label))
        for part, label in (
            (late, "launch_starved"),
            (synchronizations, "host_blocked"),
            (paused, "host_pause"),
            (delays, "profiler"),
        )
    ]
    return pl.concat(causes)


def _find_late_launches(operations: Operations, steps: Steps) -> pl.DataFrame:
    """The part of each idle gap before the launch of the operation that ends it, with the thread that launched that.

    Columns: rank_index, step, capture_id, thread, start_ns, end_ns.
    """
    gaps = gaps_within(operations, steps.select(*STEP, "start_ns", "end_ns"), ["rank_index"])
    # Of several operations that start together, the one launched first ended the gap.
    next_row = find_next(operations, gaps, ["rank_index"], ["launch_start_ns", "launch_thread"])
    next_operations = operations.select("capture_id", "launch_start_ns", thread="launch_thread").select(
        pl.all().gather(next_row)
    )
    return (
        pl.concat([gaps, next_operations], how="horizontal")
        .drop_nulls("launch_start_ns")
        .with_columns(end_ns=pl.min_horizontal("end_ns", "launch_start_ns"))
        .filter(DURATION > 0)
        .select(*STEP, *THREAD, "start_ns", "end_ns")
        .sort(*STEP, "start_ns")
    )


def measure_budget(slices: Slices, steps: Steps) -> BudgetRows:
    """The time that each bucket owns.

    Raises ConservationError unless the buckets of each step sum to its length.
    """
    budget = (
        slices.group_by(*STEP, "active")
        .agg(ns=DURATION.sum())
        .with_columns(bucket=OWNER)
        .group_by(*STEP, "bucket")
        .agg(pl.col("ns").sum())
        .sort(*STEP, "bucket")
    )
    sums = budget.group_by(*STEP).agg(owned_ns=pl.col("ns").sum())
    wrong = (
        steps.with_columns(length_ns=DURATION)
        .join(sums, on=STEP, how="left")
        .filter(pl.col("owned_ns").fill_null(0) != pl.col("length_ns"))
    )
    if wrong.height:
        raise ConservationError(f"buckets do not sum to the step: {wrong.row(0, named=True)}")
    return budget


def measure_exposure(slices: Slices) -> ExposureRows:
    """Exposed and hidden communication.

    busy: union of the operations of the class; exposed: the part of it while no compute kernel runs; hidden: the rest.
    Classes may overlap, so their busy times do not add up. Raises ConservationError unless exposed + hidden = busy.
    """
    is_computing = (pl.col("active") & COMPUTE_MASK) != 0
    classes = []
    for name in COMMUNICATION_CATEGORIES:
        is_running = (pl.col("active") & mask_of([name], LABELS)) != 0
        classes.append(
            slices.filter(is_running)
            .group_by(*STEP)
            .agg(
                busy_ns=DURATION.sum(),
                exposed_ns=DURATION.filter(~is_computing).sum(),
                hidden_ns=DURATION.filter(is_computing).sum(),
            )
            .with_columns(pl.lit(name).alias("class"))
        )
    exposure = pl.concat(classes).select(*STEP, "class", "busy_ns", "exposed_ns", "hidden_ns").sort(*STEP, "class")
    wrong = exposure.filter(pl.col("exposed_ns") + pl.col("hidden_ns") != pl.col("busy_ns"))
    if wrong.height:
        raise ConservationError(f"exposed and hidden do not sum to busy: {wrong.row(0, named=True)}")
    return exposure


def union_where(slices: Slices, labels: tuple[str, ...], exposed_only: bool = False) -> StepTimes:
    """Time per step in which any of ``labels`` is active, or is so without compute (``exposed_only``)."""
    is_active = (pl.col("active") & mask_of(labels, LABELS)) != 0
    if exposed_only:
        is_active = is_active & ((pl.col("active") & COMPUTE_MASK) == 0)
    return slices.group_by(*STEP).agg(ns=DURATION.filter(is_active).sum()).sort(*STEP)


def find_time_without_compute(slices: Slices) -> StepIntervals:
    """The stretches of each step in which no compute kernel runs."""
    return merge_overlapping(slices.filter((pl.col("active") & COMPUTE_MASK) == 0), STEP)
