"""What a rank's step holds in each phase of its pipeline schedule: exposed exchanges, of that the bubble.

Until its passes are over a rank's bubble is waiting in pipeline exchanges (from its arrival to its neighbour's) while
nothing computes and no tokens are exchanged: waiting for tokens is imbalance, not schedule. Then it is what passes
with nothing computing until the last stage's passes are over too: the last stages finish first and wait out that
part of their bubble in the gradients' collectives.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from three_walls.attribution.attribution import Attribution
from three_walls.attribution.ownership import COMPUTE_MASK, LABELS, ConservationError
from three_walls.facts.attention_passes import find_passes
from three_walls.facts.pipeline_phases import EXCHANGE, UPDATE, find_phases
from three_walls.model.buckets import BUCKETS, EP_CATEGORIES, Group
from three_walls.model.config import RunConfig
from three_walls.model.fact import FactValue
from three_walls.model.report import PipelinePhase
from three_walls.ranks.matched_ranks import MatchedRanks
from three_walls.tables.thresholds import default_rank_thresholds
from three_walls.timeline.intervals import intersect, mask_of, merge_overlapping
from three_walls.timeline.steps import median_steps
from three_walls.timeline.timeline import Timeline

_EXCHANGE_MASK = mask_of([EXCHANGE], LABELS)
_EP_MASK = mask_of(EP_CATEGORIES, LABELS)
_BUSY_MASK = mask_of([one.name for one in BUCKETS if one.group is not Group.IDLE], LABELS)
_PART = ["rank_index", "phase"]

_Because = Mapping[tuple[int, int], str]
"""Why the phases of a track's step are not told; empty where they are."""


def measure_pipeline(
    timeline: Timeline,
    attribution: Attribution,
    matched_ranks: MatchedRanks,
    config: RunConfig,
) -> tuple[PipelinePhase, ...]:
    """The phases of every rank's median kept step, by rank; none without a pipeline."""
    if not _has_pipeline(timeline, config):
        return ()
    rank_of = matched_ranks.rank_of
    medians = median_steps(timeline.steps)
    representative = pl.DataFrame(
        list(medians.items()), schema={"rank_index": pl.Int64, "step": pl.Int64}, orient="row"
    )
    slices = attribution.slices.join(representative, on=["rank_index", "step"], how="semi")
    everywhere, reason = _phases_of(timeline, representative)
    drains = _drains(everywhere, matched_ranks).join(representative, on=["rank_index", "step"], how="semi")
    phases = everywhere.join(representative, on=["rank_index", "step"], how="semi")
    measured = _measure(slices, phases, _split_exchanges(matched_ranks, representative), drains.drop("step"))
    _check_sums(measured, attribution, representative)
    places = matched_ranks.pipeline.places if matched_ranks.pipeline else {}
    drained = set(drains["rank_index"].to_list())
    reasons = {one.rank: one.note for one in attribution.waits if one.communication_class == EXCHANGE}
    rows = [
        _row(
            row,
            rank_of[row["rank_index"]],
            places,
            _why_untold(row, reason, drained, reasons.get(rank_of[row["rank_index"]])),
        )
        for row in measured.rows(named=True)
    ]
    return tuple(sorted(rows, key=lambda one: one.rank))


def pipeline_facts(phases: tuple[PipelinePhase, ...], rank: int | None) -> dict[str, tuple[FactValue, str | None]]:
    """``pipeline_bubble_ns`` of ``rank``, whose median step is the representative one."""
    mine = [one for one in phases if one.rank == rank]
    if not mine:
        return {"pipeline_bubble_ns": (None, "no pipeline: one stage, and no pipeline exchange was recorded")}
    untold = next((one.note for one in mine if one.bubble_ns is None), None)
    if untold is not None:
        return {"pipeline_bubble_ns": (None, untold)}
    return {"pipeline_bubble_ns": (sum(one.bubble_ns or 0 for one in mine), None)}


def bubble_beyond_schedule_ns(bubble_ns: int, expected_fraction: float, step_ns: int) -> int:
    """What an even schedule, which leaves ``expected_fraction`` of the step idle, does not explain; at least 0."""
    return max(0, bubble_ns - round(expected_fraction * step_ns))


def _has_pipeline(timeline: Timeline, config: RunConfig) -> bool:
    size = config.get("pipeline_model_parallel_size")
    if isinstance(size, int) and size > 1:
        return True
    return not timeline.operations.filter(pl.col("category") == EXCHANGE).is_empty()


def _phases_of(timeline: Timeline, representative: pl.DataFrame) -> tuple[pl.DataFrame, _Because]:
    """Phases of all ranks in the ``representative`` steps: rank_index, step, place, phase, start_ns, end_ns.

    And why they are not told, by track and step.
    """
    rows, reason = [], {}
    windows = timeline.steps.filter(pl.col("step").is_in(representative["step"].unique().to_list()))
    for rank_index, step, start, end in windows.select("rank_index", "step", "start_ns", "end_ns").rows():
        mine = timeline.operations.filter(
            (pl.col("rank_index") == rank_index) & pl.col("start_ns").is_between(start, end, closed="left")
        )
        found, why = find_phases(mine, find_passes(mine, (start, end)), (start, end))
        rows += [(rank_index, step, place, *phase) for place, phase in enumerate(found)]
        reason[(rank_index, step)] = why
    names = ("rank_index", "step", "place", "phase", "start_ns", "end_ns")
    types = (pl.Int64, pl.Int64, pl.Int64, pl.String, pl.Int64, pl.Int64)
    return pl.DataFrame(rows, schema=dict(zip(names, types, strict=True)), orient="row"), reason


def _drains(phases: pl.DataFrame, matched_ranks: MatchedRanks) -> pl.DataFrame:
    """From the end of a rank's passes to the end of the last of its pipeline's: rank_index, step, start_ns, end_ns.

    Only where all stages of the pipeline were captured on one clock and their passes are told.
    """
    pipeline = matched_ranks.pipeline
    updates = phases.filter(pl.col("phase") == UPDATE).select("rank_index", "step", "start_ns", "end_ns")
    if pipeline is None or not matched_ranks.clock.is_resolved:
        return updates.clear()
    lane_of = {rank_index: lane for rank_index, (_, lane) in pipeline.places.items()}
    common = matched_ranks.clock.put(updates).with_columns(
        lane=pl.col("rank_index").replace_strict(lane_of, return_dtype=pl.Int64)
    )
    return (
        common.with_columns(
            left_ns=pl.col("common_start_ns").max().over("lane", "step") - pl.col("common_start_ns"),
            stages=pl.len().over("lane", "step"),
        )
        .filter(pl.col("stages") == pipeline.stages)
        .select(
            "rank_index", "step", "start_ns", end_ns=pl.min_horizontal("end_ns", pl.col("start_ns") + pl.col("left_ns"))
        )
    )


def _split_exchanges(matched_ranks: MatchedRanks, representative: pl.DataFrame) -> pl.DataFrame:
    """Exchanges of the median steps: rank_index, start_ns, waited_until_ns (null if not resolved), end_ns."""
    resolved = matched_ranks.arrivals.filter("resolved").select("call", "wait_ns")
    return (
        matched_ranks.matched.everything.filter(pl.col("class") == EXCHANGE)
        .join(representative, on=["rank_index", "step"], how="semi")
        .join(resolved, on="call", how="left")
        .select("rank_index", "start_ns", "end_ns", waited_until_ns=pl.col("start_ns") + pl.col("wait_ns"))
    )


def _measure(slices: pl.DataFrame, phases: pl.DataFrame, split: pl.DataFrame, drains: pl.DataFrame) -> pl.DataFrame:
    """``phases`` with ns, exposed_ns, resolved_ns (of that), waited_ns, drained_ns, ep_ns and idle_ns."""
    cut = intersect(
        slices.select("rank_index", "active", "start_ns", "end_ns"), phases, ["rank_index"], carry=["phase"]
    )
    alone = cut.filter((pl.col("active") & COMPUTE_MASK) == 0)
    exposed = alone.filter((pl.col("active") & _EXCHANGE_MASK) != 0)
    # Where a resolved exchange and another overlap the resolved one tells.
    told = merge_overlapping(split.drop_nulls("waited_until_ns"), ["rank_index"])
    waiting = merge_overlapping(
        split.drop_nulls("waited_until_ns").select("rank_index", "start_ns", end_ns="waited_until_ns"), ["rank_index"]
    )
    no_tokens = exposed.filter((pl.col("active") & _EP_MASK) == 0)
    columns = {
        "exposed_ns": exposed,
        "resolved_ns": intersect(exposed, told, ["rank_index"]),
        "waited_ns": intersect(no_tokens, waiting, ["rank_index"]),
        "drained_ns": intersect(alone, drains, ["rank_index"]),
        "ep_ns": alone.filter((pl.col("active") & _EP_MASK) != 0),
        "idle_ns": cut.filter((pl.col("active") & _BUSY_MASK) == 0),
    }
    result = phases.with_columns(ns=pl.col("end_ns") - pl.col("start_ns"))
    for name, frame in columns.items():
        sums = frame.group_by(_PART).agg((pl.col("end_ns") - pl.col("start_ns")).sum().alias(name))
        result = result.join(sums, on=_PART, how="left").with_columns(pl.col(name).fill_null(0))
    return result.sort("rank_index", "place")


def _check_sums(measured: pl.DataFrame, attribution: Attribution, representative: pl.DataFrame) -> None:
    """Raises ConservationError unless the phases' exposed exchanges are those of the step."""
    whole = attribution.exposure.filter(pl.col("class").cast(pl.String) == EXCHANGE).join(
        representative, on=["rank_index", "step"], how="semi"
    )
    sums = measured.group_by("rank_index").agg(pl.col("exposed_ns").sum())
    wrong = sums.join(whole, on="rank_index", how="left", suffix="_of_step").filter(
        pl.col("exposed_ns") != pl.col("exposed_ns_of_step").fill_null(0)
    )
    if wrong.height:
        raise ConservationError(f"phases do not sum to the step's exposed exchanges: {wrong.row(0, named=True)}")


def _why_untold(row: Mapping[str, object], reason: _Because, drained: set[int], split_by: str | None) -> str:
    """Why the bubble of a phase (a row of _measure) is not told; empty where it is."""
    rank_index = _int(row["rank_index"])
    untold = reason.get((rank_index, _int(row["step"])), "")
    if untold:
        return untold
    if row["phase"] == UPDATE:
        return "" if rank_index in drained else "not all stages of its pipeline were captured on one clock, passes told"
    least = default_rank_thresholds().minimum_resolved_fraction * _int(row["exposed_ns"])
    if _int(row["resolved_ns"]) >= least:
        return ""
    return f"waiting and transfer cannot be told apart ({split_by or 'its exchanges are not matched'})"


def _row(row: Mapping[str, object], rank: int, places: Mapping[int, tuple[int, int]], untold: str) -> PipelinePhase:
    place = places.get(_int(row["rank_index"]))
    return PipelinePhase(
        rank=rank,
        stage=None if place is None else place[0],
        phase=str(row["phase"]),
        ns=_int(row["ns"]),
        p2p_exposed_ns=_int(row["exposed_ns"]),
        bubble_ns=None if untold else _int(row["drained_ns" if row["phase"] == UPDATE else "waited_ns"]),
        ep_exposed_ns=_int(row["ep_ns"]),
        idle_ns=_int(row["idle_ns"]),
        note=untold,
    )


def _int(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"expected a whole number, found {value!r}")
    return value
