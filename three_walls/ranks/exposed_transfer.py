"""The exposed part of transfers where arrivals are known: in place of the one-rank proxy of attribution/transfer.py."""

from __future__ import annotations

import polars as pl

from three_walls.attribution.attribution import Attribution
from three_walls.attribution.ownership import COMPUTE_MASK, STEP
from three_walls.ranks.matching import Matched
from three_walls.timeline.intervals import intersect, merge_overlapping

CLASS = [*STEP, "class"]


def refine_transfer(
    attribution: Attribution, matched: Matched, arrivals: pl.DataFrame, classes: pl.DataFrame
) -> pl.DataFrame:
    """``attribution.transfer`` with transfer_exposed_ns measured where ``classes`` are resolved.

    A call transfers from the latest arrival to its end; calls that are not matched transfer all the time. Exposed is
    what of the union of these no compute kernel covers, so that it never exceeds the exposed time.
    """
    resolved = classes.filter("resolved").select(CLASS)
    transferring = (
        matched.everything.join(resolved, on=CLASS, how="semi")
        .join(arrivals.select("call", "wait_ns"), on="call", how="left")
        .select("rank_index", "class", "end_ns", start_ns=pl.col("start_ns") + pl.col("wait_ns").fill_null(0))
    )
    not_computing = merge_overlapping(attribution.slices.filter((pl.col("active") & COMPUTE_MASK) == 0), STEP)
    measured = (
        intersect(
            merge_overlapping(transferring, ["rank_index", "class"]), not_computing, ["rank_index"], carry=["step"]
        )
        .group_by(CLASS)
        .agg(measured_ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
    )
    exposed = attribution.exposure.select(*CLASS, "exposed_ns")
    return (
        attribution.transfer.join(exposed, on=CLASS, how="full", coalesce=True)
        .join(resolved.with_columns(is_resolved=pl.lit(value=True)), on=CLASS, how="left")
        .join(measured, on=CLASS, how="left")
        .with_columns(
            transfer_exposed_ns=pl.when("is_resolved")
            .then(pl.min_horizontal(pl.col("measured_ns").fill_null(0), "exposed_ns"))
            .otherwise("transfer_exposed_ns")
        )
        .drop_nulls("transfer_exposed_ns")
        .select(attribution.transfer.columns)
        .sort(CLASS)
    )
