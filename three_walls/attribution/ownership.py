"""One owner for every nanosecond of every step: the partition behind every share in the report.

One sweep per step; where several things are active the first in the precedence of
``vocabulary.categories.BUCKETS`` owns the instant. The buckets sum to the step, in integers, asserted here.
"""

from __future__ import annotations

import polars as pl

from three_walls.model.buckets import BUCKETS, COMMUNICATION_CATEGORIES, COMPUTE_CATEGORIES
from three_walls.timeline.intervals import intersect, mask_of, sweep

STEP = ("rank_index", "step")
LABELS = tuple(bucket.name for bucket in BUCKETS)
NO_LABEL = "idle_other"

COMPUTE_MASK = mask_of(COMPUTE_CATEGORIES, LABELS)

_DURATION = pl.col("end_ns") - pl.col("start_ns")


class ConservationError(AssertionError):
    """A sum that must hold does not: a defect of this program, never of the input."""


def slice_steps(operations: pl.DataFrame, gap_causes: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Steps cut where anything starts or ends: rank_index, step, start_ns, end_ns, active (bit i: LABELS[i])."""
    labelled = operations.select("rank_index", "start_ns", "end_ns", label=pl.col("category").cast(pl.String))
    inside = intersect(labelled, steps, ["rank_index"], carry=["step"])
    everything = pl.concat(
        [
            inside.select(*STEP, "start_ns", "end_ns", "label"),
            gap_causes.select(*STEP, "start_ns", "end_ns", "label"),
        ]
    )
    return sweep(everything, steps, "label", LABELS, STEP)


def own_time(slices: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The budget: rank_index, step, bucket, ns (positive).

    Raises ConservationError unless each step's sum is its length.
    """
    first_active = pl.col("active").bitwise_trailing_zeros()
    owner = (
        pl.when(pl.col("active") == 0)
        .then(pl.lit(NO_LABEL))
        .otherwise(first_active.replace_strict(dict(enumerate(LABELS)), default=NO_LABEL, return_dtype=pl.String))
    )
    budget = (
        slices.with_columns(bucket=owner, ns=_DURATION)
        .group_by(*STEP, "bucket")
        .agg(pl.col("ns").sum())
        .sort(*STEP, "bucket")
    )
    _check_sums(budget, steps)
    return budget


def _check_sums(budget: pl.DataFrame, steps: pl.DataFrame) -> None:
    owned = budget.group_by(*STEP).agg(owned_ns=pl.col("ns").sum())
    wrong = (
        steps.with_columns(length_ns=_DURATION)
        .join(owned, on=STEP, how="left")
        .filter(pl.col("owned_ns").fill_null(0) != pl.col("length_ns"))
    )
    if wrong.height:
        raise ConservationError(f"buckets do not sum to the step: {wrong.row(0, named=True)}")


def measure_exposure(slices: pl.DataFrame) -> pl.DataFrame:
    """Per step and communication class: rank_index, step, class, busy_ns, exposed_ns, hidden_ns.

    busy: union of the class's operations; exposed: while no compute kernel runs; hidden: the rest. Classes may
    overlap each other, so their busy times do not add up. Raises ConservationError unless exposed + hidden = busy.
    """
    computing = (pl.col("active") & COMPUTE_MASK) != 0
    measured = []
    for name in COMMUNICATION_CATEGORIES:
        running = (pl.col("active") & mask_of([name], LABELS)) != 0
        measured.append(
            slices.filter(running)
            .group_by(*STEP)
            .agg(
                busy_ns=_DURATION.sum(),
                exposed_ns=_DURATION.filter(~computing).sum(),
                hidden_ns=_DURATION.filter(computing).sum(),
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
    active = (pl.col("active") & mask_of(labels, LABELS)) != 0
    if exposed_only:
        active = active & ((pl.col("active") & COMPUTE_MASK) == 0)
    return slices.group_by(*STEP).agg(ns=_DURATION.filter(active).sum()).sort(*STEP)
