"""The phases of a rank's step under pipeline parallelism, their exposed exchanges, and the pipeline bubble.

A schedule (1F1B, interleaved or not) begins with forward passes alone, alternates, and ends with backward passes
alone (Narayanan et al., SC'21, arXiv 2104.04473). Attention's passes, without replays, show where these phases begin
and end, whatever else runs concurrently. The rest of the layer around such an attention lies in the next phase.

Until a rank's passes are over, its bubble is the time waiting in pipeline exchanges (from its arrival to its
neighbour's) in which nothing computes and no tokens are exchanged: waiting for tokens is imbalance, not schedule.
Afterwards the bubble is the time in which nothing computes until the passes of all stages are over: the last stages
finish first, and spend that part of their bubble in the gradients' collectives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from three_walls.facts.fact_rows import PipelinePhase
from three_walls.layers.directions import direct_attention
from three_walls.lib.declare import artifact, duration
from three_walls.lib.measurement import Measurement, known, missing
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.step.attribute_steps import Attribution
from three_walls.step.build_timeline import Timeline
from three_walls.step.intervals import DURATION, intersect, mask_of, merge_overlapping
from three_walls.step.ownership import COMPUTE_MASK, LABELS, ConservationError
from three_walls.step.ranks.matched_ranks import MINIMUM_RESOLVED_FRACTION, MatchedRanks
from three_walls.step.step_tables import Operations, Slices
from three_walls.step.step_view import StepView
from three_walls.tables.buckets import BUCKETS, EP_CATEGORIES, Group
from three_walls.tables.model_parts import BACKWARD, FORWARD

WARM_UP, STEADY, COOL_DOWN, UPDATE = "warm-up", "steady", "cool-down", "update"
WHOLE_STEP = "step"
"""The only phase where the passes do not show the four."""

EXCHANGE = "pipeline_p2p"

_UPDATING = ("all_reduce", "reduce_scatter", "optimizer")
"""Categories that begin once the last backward pass is over: reducing gradients, their norm, the update."""

_EXCHANGE_MASK = mask_of([EXCHANGE], LABELS)
_EP_MASK = mask_of(EP_CATEGORIES, LABELS)
_BUSY_MASK = mask_of([bucket.name for bucket in BUCKETS if bucket.group is not Group.IDLE], LABELS)
_RANK_AND_STEP = ["rank_index", "step"]
_RANK_AND_PHASE = ["rank_index", "phase"]

Phase = tuple[str, int, int]
"""Name, start and end (ns, half-open)."""


@artifact
def pipeline_phases(
    timeline: Timeline, attribution: Attribution, matched_ranks: MatchedRanks, config: RunConfig
) -> tuple[PipelinePhase, ...]:
    """The phases of every rank's median kept step, by rank; none without a pipeline."""
    stages = config.get("pipeline_model_parallel_size")
    has_exchanges = (timeline.operations["category"] == EXCHANGE).any()
    if not has_exchanges and not (isinstance(stages, int) and stages > 1):
        return ()
    medians = attribution.medians
    phases_of_all, reasons = _find_phases_of_ranks(timeline, medians)
    drains = _find_drains(phases_of_all, matched_ranks).join(medians, on=_RANK_AND_STEP, how="semi")
    measured = _measure(
        attribution.slices.join(medians, on=_RANK_AND_STEP, how="semi"),
        phases_of_all.join(medians, on=_RANK_AND_STEP, how="semi"),
        _split_exchanges(matched_ranks, medians),
        drains.drop("step"),
    )
    _check_sums(measured, attribution, medians)
    places = matched_ranks.pipeline.places if matched_ranks.pipeline else {}
    drained = set(drains["rank_index"].to_list())
    notes = {wait.rank: wait.note for wait in attribution.waits if wait.communication_class == EXCHANGE}
    rows = []
    for row in measured.rows(named=True):
        rank_index, rank = row["rank_index"], matched_ranks.rank_of[row["rank_index"]]
        note = reasons.get((rank_index, row["step"])) or _why_no_bubble(row, rank_index in drained, notes.get(rank))
        stage, _ = places.get(rank_index, (None, None))
        bubble_ns = None if note else row["drained_ns" if row["phase"] == UPDATE else "waited_ns"]
        rows.append(
            PipelinePhase(
                rank=rank,
                stage=stage,
                phase=row["phase"],
                ns=row["ns"],
                p2p_exposed_ns=row["exposed_ns"],
                bubble_ns=bubble_ns,
                ep_exposed_ns=row["ep_ns"],
                idle_ns=row["idle_ns"],
                note=note,
            )
        )
    return tuple(sorted(rows, key=lambda phase: phase.rank))


@duration(
    "pipeline bubble time per step",
    share="the pipeline bubble",
)
def pipeline_bubble_ns(step: StepView, pipeline_phases: tuple[PipelinePhase, ...]) -> Measurement[int]:
    """Time per step in which nothing computes because of the pipeline: the rank waits for a neighbouring stage while no
    tokens are exchanged, or its own backward passes are over and those of the pipeline's last stage are not.

    Not the same as: Exposed pipeline exchange: a stage that finishes early waits in the gradients' collectives.
    """
    rank_phases = [phase for phase in pipeline_phases if phase.rank == step.rank.rank]
    if not rank_phases:
        return missing("no pipeline: one stage, and no pipeline exchange was recorded")
    reason = next((phase.note for phase in rank_phases if phase.bubble_ns is None), None)
    return known(sum(phase.bubble_ns or 0 for phase in rank_phases)) if reason is None else missing(reason)


@duration(
    "exposed pipeline transfer while it fills and drains", share="exposed transfer while the pipeline fills and drains"
)
def pipeline_edges_exposed_ns(step: StepView, pipeline_phases: tuple[PipelinePhase, ...]) -> Measurement[int]:
    """Time per step in which pipeline exchanges are exposed before the first backward or after the last forward pass,
    and do not wait for a neighbouring stage."""
    return _transfer_of([each for each in pipeline_phases if each.phase in (WARM_UP, COOL_DOWN)], step)


@duration("exposed pipeline transfer time per step", share="exposed pipeline transfer")
def pipeline_exposed_ns(step: StepView, pipeline_phases: tuple[PipelinePhase, ...]) -> Measurement[int]:
    """Time per step in which pipeline exchanges are exposed and do not wait for a neighbouring stage."""
    return _transfer_of([each for each in pipeline_phases if each.phase != UPDATE], step)


def _transfer_of(phases: Sequence[PipelinePhase], step: StepView) -> Measurement[int]:
    """What the step's rank transfers exposed in ``phases``."""
    own = [each for each in phases if each.rank == step.rank.rank]
    if not own or any(each.bubble_ns is None for each in own):
        return missing("the passes do not show where the pipeline fills and drains, or there is none")
    return known(sum(max(0, each.p2p_exposed_ns - (each.bubble_ns or 0)) for each in own))


@duration(
    "excess pipeline bubble time per step",
    share="the pipeline bubble beyond an even schedule",
)
def pipeline_bubble_excess_ns(pipeline_bubble_ns: int, pipeline_bubble_expected_fraction: float, step: StepView) -> int:
    """Time per step that the pipeline bubble takes beyond that of an even 1F1B schedule (at least 0): uneven stages and
    exchanges."""
    return bubble_beyond_schedule_ns(pipeline_bubble_ns, pipeline_bubble_expected_fraction, step.unpaused_ns)


@duration("the pipeline bubble that a doubled micro-batch adds")
def larger_micro_batch_bubble_ns(
    step: StepView, pipeline_bubble_ns: Measurement[int], pipeline_bubble_expected_fraction: Measurement[float]
) -> Measurement[int]:
    """Time per step that the pipeline bubble grows by if the micro-batch doubles at the same global batch size: as much
    as it takes now, because each of the p-1 micro-batches that fill the pipeline takes twice as long. 0 without a
    pipeline."""
    if step.layout.pipeline == 1:
        return known(0)
    expected = pipeline_bubble_expected_fraction.value
    if pipeline_bubble_ns.is_missing and expected is not None:
        return known(round(expected * step.unpaused_ns))
    return pipeline_bubble_ns


def bubble_beyond_schedule_ns(bubble_ns: int, expected_fraction: float, step_ns: int) -> int:
    """The bubble that an even schedule, which leaves ``expected_fraction`` of the step idle, does not explain."""
    return max(0, bubble_ns - round(expected_fraction * step_ns))


def find_phases(operations: Operations, window: tuple[int, int]) -> tuple[list[Phase], str]:
    """The phases of one rank's step, in order and without gaps; one phase of all, with the reason, where none shows.

    Warm-up: until the first backward pass begins. Steady: until the last forward pass ends. Cool-down: until the
    last backward pass is over and its gradient sent: where the first kernel of gradients or optimizer begins after
    it. Update: the rest. ``operations`` are the rank's in the step.
    """
    passes = _direct_passes(operations)
    reason = _why_no_phases(passes["direction"].to_list())
    if reason:
        return [(WHOLE_STEP, *window)], reason
    direction = pl.col("direction")
    first_backward, last_forward, last_backward = passes.select(
        pl.col("start_ns").filter(direction == BACKWARD).min(),
        last_forward=pl.col("end_ns").filter(direction == FORWARD).max(),
        last_backward=pl.col("end_ns").filter(direction == BACKWARD).max(),
    ).row(0)
    start, end = window
    edges = [
        start,
        first_backward,
        max(first_backward, last_forward),
        _end_of_passes(operations, last_backward, window),
    ]
    edges = [min(edge, end) for edge in edges] + [end]
    names = (WARM_UP, STEADY, COOL_DOWN, UPDATE)
    return list(zip(names, edges[:-1], edges[1:], strict=True)), ""


def _direct_passes(operations: Operations) -> pl.DataFrame:
    """start_ns, end_ns, direction of the passes of attention in order; all null where replays are unknown."""
    passes = operations.drop_nulls("phase").sort("start_ns", "end_ns", "stream")
    directions = direct_attention(passes["phase"].cast(pl.String).to_list(), passes["launch_thread"].to_list())
    return passes.select(
        "start_ns", "end_ns", direction=pl.Series(directions or [None] * passes.height, dtype=pl.String)
    )


def _why_no_phases(directions: list[str | None]) -> str:
    if not directions:
        return "no attention kernel shows where its passes begin"
    if None in directions:
        return "replays of attention cannot be distinguished from forward passes"
    if BACKWARD not in directions:
        return "no attention kernel of a backward pass was recorded"
    if directions[0] != FORWARD or directions[-1] != BACKWARD:
        return "the step does not begin with a forward and end with a backward pass"
    return ""


def _end_of_passes(operations: Operations, last_backward: int, window: tuple[int, int]) -> int:
    """The start of what follows the last backward pass, which reaches beyond attention and sends its gradient."""
    started = operations.filter(pl.col("start_ns").is_between(*window, closed="left"))
    sent = started.filter(pl.col("category") == EXCHANGE)["end_ns"].max()
    over = max(last_backward, sent) if isinstance(sent, int) else last_backward
    updating = started.filter(pl.col("category").is_in(list(_UPDATING)) & (pl.col("start_ns") >= over))
    begins = updating["start_ns"].min()
    return begins if isinstance(begins, int) else over


def _find_phases_of_ranks(timeline: Timeline, medians: pl.DataFrame) -> tuple[pl.DataFrame, dict[tuple[int, int], str]]:
    """Phases of all ranks in the steps of ``medians``: rank_index, step, place, phase, start_ns, end_ns.

    And why a rank's step has none, by rank_index and step; empty where it has.
    """
    rows: list[tuple[int, int, int, str, int, int]] = []
    reasons = {}
    windows = timeline.steps.filter(pl.col("step").is_in(medians["step"].unique().to_list()))
    for rank_index, step, start, end in windows.select("rank_index", "step", "start_ns", "end_ns").rows():
        operations = timeline.operations.filter(
            (pl.col("rank_index") == rank_index) & pl.col("start_ns").is_between(start, end, closed="left")
        )
        phases, reason = find_phases(operations, (start, end))
        rows += [(rank_index, step, place, *phase) for place, phase in enumerate(phases)]
        reasons[(rank_index, step)] = reason
    names = ("rank_index", "step", "place", "phase", "start_ns", "end_ns")
    types = (pl.Int64, pl.Int64, pl.Int64, pl.String, pl.Int64, pl.Int64)
    return pl.DataFrame(rows, schema=dict(zip(names, types, strict=True)), orient="row"), reasons


def _find_drains(phases: pl.DataFrame, matched_ranks: MatchedRanks) -> pl.DataFrame:
    """From the end of a rank's passes to the end of the last of its pipeline's: rank_index, step, start_ns, end_ns.

    Only where all stages of the pipeline were captured on one clock and their passes show.
    """
    pipeline = matched_ranks.pipeline
    updates = phases.filter(pl.col("phase") == UPDATE).select("rank_index", "step", "start_ns", "end_ns")
    if pipeline is None or not matched_ranks.clock.is_resolved:
        return updates.clear()
    lane_of = {rank_index: lane for rank_index, (_, lane) in pipeline.places.items()}
    common = matched_ranks.clock.add_common_times(updates).with_columns(
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


def _split_exchanges(matched_ranks: MatchedRanks, medians: pl.DataFrame) -> pl.DataFrame:
    """Exchanges of the median steps: rank_index, start_ns, waited_until_ns (null if not resolved), end_ns."""
    resolved = matched_ranks.arrivals.filter("resolved").select("call", "wait_ns")
    return (
        matched_ranks.matched.communication.filter(pl.col("class") == EXCHANGE)
        .join(medians, on=_RANK_AND_STEP, how="semi")
        .join(resolved, on="call", how="left")
        .select("rank_index", "start_ns", "end_ns", waited_until_ns=pl.col("start_ns") + pl.col("wait_ns"))
    )


def _measure(slices: Slices, phases: pl.DataFrame, split: pl.DataFrame, drains: pl.DataFrame) -> pl.DataFrame:
    """``phases`` with ns, exposed_ns, resolved_ns (of that), waited_ns, drained_ns, ep_ns and idle_ns."""
    phase_slices = intersect(
        slices.select("rank_index", "active", "start_ns", "end_ns"), phases, ["rank_index"], carry=["phase"]
    )
    not_computing = phase_slices.filter((pl.col("active") & COMPUTE_MASK) == 0)
    exposed = not_computing.filter((pl.col("active") & _EXCHANGE_MASK) != 0)
    # Where a resolved exchange and another overlap the resolved one counts.
    resolved = split.drop_nulls("waited_until_ns")
    waiting = resolved.select("rank_index", "start_ns", end_ns="waited_until_ns")
    no_tokens = exposed.filter((pl.col("active") & _EP_MASK) == 0)
    columns = {
        "exposed_ns": exposed,
        "resolved_ns": intersect(exposed, merge_overlapping(resolved, ["rank_index"]), ["rank_index"]),
        "waited_ns": intersect(no_tokens, merge_overlapping(waiting, ["rank_index"]), ["rank_index"]),
        "drained_ns": intersect(not_computing, drains, ["rank_index"]),
        "ep_ns": not_computing.filter((pl.col("active") & _EP_MASK) != 0),
        "idle_ns": phase_slices.filter((pl.col("active") & _BUSY_MASK) == 0),
    }
    result = phases.with_columns(ns=DURATION)
    for name, frame in columns.items():
        sums = frame.group_by(_RANK_AND_PHASE).agg(DURATION.sum().alias(name))
        result = result.join(sums, on=_RANK_AND_PHASE, how="left").with_columns(pl.col(name).fill_null(0))
    return result.sort("rank_index", "place")


def _check_sums(measured: pl.DataFrame, attribution: Attribution, medians: pl.DataFrame) -> None:
    """Raises ConservationError unless the phases' exposed exchanges are those of the step."""
    whole = attribution.exposure.filter(pl.col("class").cast(pl.String) == EXCHANGE).join(
        medians, on=_RANK_AND_STEP, how="semi"
    )
    sums = measured.group_by("rank_index").agg(pl.col("exposed_ns").sum())
    wrong = sums.join(whole, on="rank_index", how="left", suffix="_of_step").filter(
        pl.col("exposed_ns") != pl.col("exposed_ns_of_step").fill_null(0)
    )
    if wrong.height:
        raise ConservationError(f"phases do not sum to the step's exposed exchanges: {wrong.row(0, named=True)}")


def _why_no_bubble(row: Mapping[str, int | str], is_drained: bool, why_not_split: str | None) -> str:
    """Why the bubble of a phase (a row of _measure) is not known; empty where it is."""
    if row["phase"] == UPDATE:
        return "" if is_drained else "not all stages of the pipeline were captured with their passes on one clock"
    least_ns = MINIMUM_RESOLVED_FRACTION * int(row["exposed_ns"])
    if int(row["resolved_ns"]) >= least_ns:
        return ""
    return f"waiting and transfer cannot be separated ({why_not_split or 'its exchanges are not matched'})"
