"""What the ranks did before a matched call: the stretch since their previous one, by owner and by kernel."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from three_walls.attribution.ownership import LABELS, NO_LABEL
from three_walls.inputs.nsys.reader import Trace
from three_walls.model.buckets import COMPUTE_CATEGORIES, EP_CATEGORIES
from three_walls.timeline.intervals import intersect

ATTENTION = ("attention", "attention_unfused")
"""What stands between combine and the next dispatch in every layer, and never between dispatch and combine."""


def find_segments(arrivals: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The stretch before each matched call: instance, rank_index, stream, step, start_ns, end_ns, between_ep.

    It begins where the previous matched call of the same stream ended: on all ranks at the same moment, so that
    what differs within it is what made a rank late. The first of a step begins with the step. ``between_ep``: both
    calls are of expert parallelism.
    """
    sequence = ["rank_index", "stream", "step"]
    opened = steps.select("rank_index", "step", opened_ns="start_ns")
    previous_class = pl.col("class").shift(1).over(sequence)
    expert = pl.col("class").is_in(list(EP_CATEGORIES)) & previous_class.is_in(list(EP_CATEGORIES))
    return (
        arrivals.join(opened, on=["rank_index", "step"])
        .sort(*sequence, "start_ns", "end_ns")
        .with_columns(
            begin_ns=pl.col("end_ns").shift(1).over(sequence).fill_null(pl.col("opened_ns")),
            between_ep=expert.fill_null(value=False),
        )
        .select("instance", *sequence, "between_ep", start_ns="begin_ns", end_ns="start_ns")
        .filter(pl.col("end_ns") > pl.col("start_ns"))
    )


def own_segments(segments: pl.DataFrame, slices: pl.DataFrame) -> pl.DataFrame:
    """Who owned the time of each segment: instance, rank_index, owner, ns."""
    owner = (
        pl.when(pl.col("active") == 0)
        .then(pl.lit(NO_LABEL))
        .otherwise(
            pl.col("active")
            .bitwise_trailing_zeros()
            .replace_strict(dict(enumerate(LABELS)), default=NO_LABEL, return_dtype=pl.String)
        )
    )
    owned = slices.select("rank_index", "start_ns", "end_ns", owner=owner)
    return (
        intersect(
            segments.select("instance", "rank_index", "start_ns", "end_ns"), owned, ["rank_index"], carry=["owner"]
        )
        .group_by("instance", "rank_index", "owner")
        .agg(ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
    )


def kernels_in_segments(segments: pl.DataFrame, operations: pl.DataFrame, traces: Sequence[Trace]) -> pl.DataFrame:
    """Compute kernels per segment, name and grid: instance, rank_index, of_experts, kernel, grid, count, ns.

    ``kernel`` is the demangled name, comparable across reports; ``grid`` grows with the number of tokens (of
    persistent kernels it does not). ``of_experts``: the segment lies between dispatch and combine: between two
    expert-parallel calls with no attention.
    """
    kernels = operations.filter(
        (pl.col("kind") == "kernel") & pl.col("category").is_in(list(COMPUTE_CATEGORIES))
    ).select("rank_index", "category", "capture_id", "name_id", "grid_x", "grid_y", "grid_z", "start_ns", "end_ns")
    # Segments of one stream do not overlap, those of several may: a kernel can lie in one of each.
    found = [
        intersect(kernels, mine.drop("stream", "step"), ["rank_index"], carry=["instance", "between_ep"])
        for _, mine in segments.group_by("stream", maintain_order=True)
    ]
    if not found:
        found = [kernels.clear().with_columns(instance=pl.lit(0, dtype=pl.Int64), between_ep=pl.lit(value=False))]
    grid = pl.concat_str("grid_x", "grid_y", "grid_z", separator="x", ignore_nulls=True)
    attends = pl.col("category").is_in(list(ATTENTION)).any().over("instance")
    return (
        pl.concat(found)
        .with_columns(of_experts=pl.col("between_ep") & ~attends)
        .join(_names(traces), on=["capture_id", "name_id"], how="left")
        .group_by("instance", "rank_index", "of_experts", "kernel", grid=grid)
        .agg(count=pl.len().cast(pl.Int64), ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
    )


def _names(traces: Sequence[Trace]) -> pl.DataFrame:
    frames = [
        pl.DataFrame(
            {"name_id": list(trace.names), "kernel": list(trace.names.values())},
            schema={"name_id": pl.Int64, "kernel": pl.String},
        ).with_columns(capture_id=pl.lit(trace.capture_id, dtype=pl.Int64))
        for trace in traces
    ]
    return pl.concat(frames)
