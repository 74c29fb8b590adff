"""One owner for every nanosecond of every step: the partition behind every share in the report.

One sweep per step; where several things are active, the first in the precedence of ``model.buckets.BUCKETS`` owns the
instant. The buckets sum to the step, in integers; this is asserted here.
"""

from __future__ import annotations

import polars as pl

from three_walls.model.buckets import BUCKETS, COMMUNICATION_CATEGORIES, COMPUTE_CATEGORIES
from three_walls.timeline.intervals import DURATION, intersect, mask_of, merge_overlapping, sweep
from three_walls.timeline.steps import STEP

LABELS = tuple(bucket.name for bucket in BUCKETS)
NO_LABEL = "idle_other"

COMPUTE_MASK = mask_of(COMPUTE_CATEGORIES, LABELS)

OWNER = (
    pl.when(pl.col("active") == 0)
    .then(pl.lit(NO_LABEL))
    .otherwise(
        pl.col("active")
        .bitwise_trailing_zeros()
        .replace_strict(dict(enumerate(LABELS)), default=NO_LABEL, return_dtype=pl.String)
    )
)
"""The bucket that owns a slice."""


class ConservationError(AssertionError):
    """A sum that must hold does not: a defect of this program, never of the input."""


def slice_steps(operations: pl.DataFrame, idle_causes: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Steps cut where anything starts or ends: rank_index, step, start_ns, end_ns, active (bit i: LABELS[i]).

    ``idle_causes``: see explain_idle.
    """
    labelled = operations.select("rank_index", "start_ns", "end_ns", label=pl.col("category").cast(pl.String))
    inside = intersect(labelled, steps, ["rank_index"], carry=["step"])
    everything = pl.concat(
        [
            inside.select(*STEP, "start_ns", "end_ns", "label"),
            idle_causes.select(*STEP, "start_ns", "end_ns", "label"),
        ]
    )
    return sweep(everything, steps, "label", LABELS, STEP)


def own_time(slices: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The budget: rank_index, step, bucket, ns (positive).

    Raises ConservationError unless each step's sum is its length.
    """
    budget = (
        slices.with_columns(bucket=OWNER, ns=DURATION)
        .group_by(*STEP, "bucket")
        .agg(pl.col("ns").sum())
        .sort(*STEP, "bucket")
    )
    owned = budget.group_by(*STEP).agg(owned_ns=pl.col("ns").sum())
    wrong = (
        steps.with_columns(length_ns=DURATION)
        .join(owned, on=STEP, how="left")
        .filter(pl.col("owned_ns").fill_null(0) != pl.col("length_ns"))
    )
    if wrong.height:
        raise ConservationError(f"buckets do not sum to the step: {wrong.row(0, named=True)}")
    return budget


def measure_exposure(slices: pl.DataFrame) -> pl.DataFrame:
    """Per step and communication class: rank_index, step, class, busy_ns, exposed_ns, hidden_ns.

    busy: union of the class's operations; exposed: while no compute kernel runs; hidden: the rest. Classes may
    overlap each other, so their busy times do not add up. Raises ConservationError unless exposed + hidden = busy.
    """
    is_computing = (pl.col("active") & COMPUTE_MASK) != 0
    measured = []
    for name in COMMUNICATION_CATEGORIES:
        is_running = (pl.col("active") & mask_of([name], LABELS)) != 0
        measured.append(
            slices.filter(is_running)
            .group_by(*STEP)
            .agg(
                busy_ns=DURATION.sum(),
                exposed_ns=DURATION.filter(~is_computing).sum(),
                hidden_ns=DURATION.filter(is_computing).sum(),
            )
            .with_columns(pl.lit(name).alias("class"))
        )
    exposure = pl.concat(measured).select(*STEP, "class", "busy_ns", "exposed_ns", "hidden_ns").sort(*STEP, "class")
    wrong = exposure.filter(pl.col("exposed_ns") + pl.col("hidden_ns") != pl.col("busy_ns"))
    if wrong.height:
        raise ConservationError(f"exposed and hidden do not sum to busy: {wrong.row(0, named=True)}")
    return exposure


def union_where(slices: pl.DataFrame, labels: tuple[str, ...], exposed_only: bool = False) -> pl.DataFrame:
    """Time per step in which any of ``labels`` is active (and, if asked, no compute): rank_index, step, ns."""
    is_active = (pl.col("active") & mask_of(labels, LABELS)) != 0
    if exposed_only:
        is_active = is_active & ((pl.col("active") & COMPUTE_MASK) == 0)
    return slices.group_by(*STEP).agg(ns=DURATION.filter(is_active).sum()).sort(*STEP)


def not_computing(slices: pl.DataFrame) -> pl.DataFrame:
    """The stretches of each step in which no compute kernel runs: rank_index, step, start_ns, end_ns."""
    return merge_overlapping(slices.filter((pl.col("active") & COMPUTE_MASK) == 0), STEP)
