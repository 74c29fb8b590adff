"""Why a rank was late: what it did before the calls at which it arrived last, beside what its peers did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from three_walls.inputs.nsys.reader import Trace
from three_walls.model.buckets import COMPUTE_CATEGORIES
from three_walls.model.units import ns_to_ms
from three_walls.ranks.segments import kernels_in_segments, own_segments
from three_walls.tables.thresholds import RankThresholds
from three_walls.timeline.intervals import intersect, merge_overlapping
from three_walls.timeline.timeline import Timeline

SLOW_COMPUTE = "slow compute"
EXPERT_IMBALANCE = "expert imbalance"
LATE_STAGE = "late stage"
UNKNOWN = "unknown"

_WAITED = "waited in pipeline exchanges"


@dataclass(frozen=True, slots=True)
class Cause:
    """``name``: as in report.Straggler; ``evidence``: a clause with the numbers, per step."""

    name: str
    evidence: str


def find_cause(
    rank_index: int,
    segments: pl.DataFrame,
    exchanges: pl.DataFrame,
    slices: pl.DataFrame,
    timeline: Timeline,
    traces: Sequence[Trace],
    late_ns: int,
    steps: int,
    thresholds: RankThresholds,
) -> Cause:
    """Compares ``rank_index`` with the others in ``segments`` (those before the calls at which it was last).

    ``exchanges``: see find_pipeline_waits; ``late_ns``: its lateness in one step; ``steps``: how many steps the
    segments are from.
    """
    waited = _waited_in(segments, exchanges)
    excess = _excess_by_owner(pl.concat([own_segments(segments, slices), waited]), rank_index, steps)
    computing = sum(ns for owner, ns in excess.items() if owner in COMPUTE_CATEGORIES)
    candidates = {
        SLOW_COMPUTE: computing,
        "launch-starved": excess.get("launch_starved", 0),
        "host-blocked": excess.get("host_blocked", 0),
        LATE_STAGE: _late_stage_ns(excess, exchanges),
    }
    name = max(candidates, key=lambda one: candidates[one])
    more_ms = f"{ns_to_ms(candidates[name]):.1f} ms more"
    if candidates[name] <= thresholds.minimum_cause_fraction * late_ns:
        return Cause(UNKNOWN, f"neither computing nor the host explains it (at most {more_ms}: {name})")
    if name == SLOW_COMPUTE:
        kernels = kernels_in_segments(segments, timeline.operations, traces)
        return _why_computing(kernels, rank_index, steps, more_ms, thresholds)
    words = {
        "launch-starved": f"{more_ms} of its device's time than of its peers' went idle with nothing launched",
        "host-blocked": f"{more_ms} of its device's time than of its peers' went idle in a synchronizing call",
        LATE_STAGE: f"it spent {more_ms} than its peers in pipeline exchanges: "
        + _which_stage(rank_index, segments, exchanges),
    }
    return Cause(name, words[name])


def _waited_in(segments: pl.DataFrame, exchanges: pl.DataFrame) -> pl.DataFrame:
    """Waiting in pipeline exchanges per segment, like own_segments: instance, rank_index, owner, ns."""
    stretches = merge_overlapping(exchanges, ["rank_index"])
    return (
        intersect(segments.select("instance", "rank_index", "start_ns", "end_ns"), stretches, ["rank_index"])
        .group_by("instance", "rank_index")
        .agg(ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
        .select("instance", "rank_index", pl.lit(_WAITED).alias("owner"), "ns")
    )


def _late_stage_ns(excess: Mapping[str, int], exchanges: pl.DataFrame) -> int:
    """Extra time in exchanges, of that only the waiting where exchanges are resolved: a slow link is no late stage."""
    alone_ns = excess.get("pipeline_p2p", 0)
    return alone_ns if exchanges.is_empty() else min(alone_ns, excess.get(_WAITED, 0))


def _which_stage(rank_index: int, segments: pl.DataFrame, exchanges: pl.DataFrame) -> str:
    """Whom ``rank_index`` waited for most before it was late."""
    mine = merge_overlapping(segments.filter(pl.col("rank_index") == rank_index), ["rank_index"])
    awaited = (
        intersect(exchanges.drop_nulls("awaited"), mine, ["rank_index"])
        .group_by("awaited")
        .agg(ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
        .sort(["ns", "awaited"], descending=[True, False])
    )
    if awaited.is_empty():
        return "an earlier stage is late"
    return f"it waited there for rank {awaited['awaited'][0]}, of another stage"


def _excess_by_owner(owned: pl.DataFrame, rank_index: int, steps: int) -> dict[str, int]:
    """Per owner the late rank's time minus the median of its peers', summed over segments, per step."""
    members = owned.select("instance", "rank_index").unique()
    grid = members.join(owned.select("instance", "owner").unique(), on="instance")
    full = grid.join(owned, on=["instance", "rank_index", "owner"], how="left").with_columns(pl.col("ns").fill_null(0))
    late = pl.col("rank_index") == rank_index
    excess = (
        full.group_by("instance", "owner")
        .agg(ns=pl.col("ns").filter(late).sum() - pl.col("ns").filter(~late).median())
        .group_by("owner")
        .agg(pl.col("ns").sum() / steps)
    )
    return {str(owner): round(ns) for owner, ns in excess.rows() if ns is not None}


def _why_computing(
    kernels: pl.DataFrame, rank_index: int, steps: int, more_ms: str, thresholds: RankThresholds
) -> Cause:
    """Imbalance: only experts computed longer, and not the same work. Slow: the same kernels took longer."""
    alike, of_experts = pl.col("alike"), pl.col("of_experts")
    sums = (
        _compare_kernels(kernels, rank_index)
        .select(
            alike_ns=pl.col("excess_ns").filter(alike).sum(),
            alike_peers_ns=pl.col("peers_ns").filter(alike).sum(),
            experts_ns=pl.col("excess_ns").filter(of_experts).sum(),
            experts_differ=(~alike & of_experts).any(),
            all_ns=pl.col("excess_ns").sum(),
        )
        .row(0, named=True)
    )
    elsewhere = 1 - sums["experts_ns"] / sums["all_ns"] if sums["all_ns"] > 0 else 1.0
    if elsewhere < thresholds.minimum_slow_outside_fraction and sums["experts_differ"]:
        said = (
            f"between dispatch and combine it ran other numbers or sizes of kernels than its peers, "
            f"{ns_to_ms(sums['experts_ns'] / steps):.1f} ms more; {max(elsewhere, 0):.0%} of its extra computing "
            "lies elsewhere"
        )
        return Cause(EXPERT_IMBALANCE, said)
    if sums["alike_ns"] > sums["all_ns"] - sums["alike_ns"]:
        ratio = 1 + sums["alike_ns"] / max(sums["alike_peers_ns"], 1)
        said = f"the same kernels (name and grid) took {ratio:.2f} times as long as on its peers, {more_ms}"
        return Cause(SLOW_COMPUTE, said)
    return Cause(UNKNOWN, f"it computed {more_ms}, in other kernels than its peers and not only between the exchanges")


def _compare_kernels(kernels: pl.DataFrame, rank_index: int) -> pl.DataFrame:
    """Per segment, name and grid: of_experts, alike (everyone ran equally many), excess_ns, peers_ns (median)."""
    late = pl.col("rank_index") == rank_index
    members = kernels.group_by("instance").agg(members=pl.col("rank_index").n_unique())
    return (
        kernels.join(members, on="instance")
        .group_by("instance", "kernel", "grid", "of_experts")
        .agg(
            alike=(pl.col("rank_index").n_unique() == pl.col("members").first()) & (pl.col("count").n_unique() == 1),
            late_ns=pl.col("ns").filter(late).sum(),
            # A kernel that few peers ran counts nothing for the others: the median is over all of them.
            peers=pl.col("ns").filter(~late),
            others=pl.col("members").first() - 1,
        )
        .with_columns(
            peers_ns=pl.when("alike")
            .then(pl.col("peers").list.median())
            .otherwise(pl.col("peers").list.sum() / pl.col("others"))
        )
        .with_columns(excess_ns=pl.col("late_ns") - pl.col("peers_ns").fill_null(0.0))
        .drop("peers", "others")
    )
