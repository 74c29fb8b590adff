"""Frames -> the report's plain rows: ranks, steps, budgets, waits. The last use of polars before the seam."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import polars as pl

from three_walls.lib.declare import artifact
from three_walls.step.attribute_steps import Attribution
from three_walls.step.build_timeline import Timeline
from three_walls.step.compute_gaps import summarize_gap_causes
from three_walls.step.intervals import DURATION
from three_walls.step.ranks.attributed_steps import LEFT_OUT
from three_walls.step.ranks.matched_ranks import MatchedRanks
from three_walls.step.step_rows import (
    BudgetRow,
    CommunicationTime,
    DroppedStep,
    RankReport,
    RankStep,
    StepSummary,
    UnclassifiedKernel,
    Wait,
)
from three_walls.step.step_tables import Steps
from three_walls.step.step_view import StepView
from three_walls.tables.buckets import BUCKETS, COMMUNICATION_CATEGORIES, in_precedence
from three_walls.trace.read_inputs import Inputs

MOST_UNCLASSIFIED = 20
"""Unknown kernel names listed, largest first; the share of all of them is in the budget."""


@artifact
def rank_rows(inputs: Inputs, attribution: Attribution, matched_ranks: MatchedRanks) -> tuple[RankReport, ...]:
    """One row per rank read in full, by global rank; with all of its steps and the budget of its median kept step."""
    ranks = [rank for trace in inputs.with_kernels for rank in trace.ranks]
    budgets, exposure, medians = _budgets(attribution), _exposure(attribution), attribution.median_of
    causes = summarize_gap_causes(attribution.compute_gaps, medians)
    steps_of = _list_steps(matched_ranks.steps, budgets)
    rows = []
    for rank in sorted(ranks, key=lambda rank: (rank.rank, rank.rank_index)):
        median = medians.get(rank.rank_index)
        place = (rank.rank_index, -1 if median is None else median)
        rows.append(
            RankReport(
                rank=rank.rank,
                host=rank.host,
                gpu=rank.gpu.name if rank.gpu else None,
                device=rank.device,
                input_name=rank.input_name,
                steps=steps_of.get(rank.rank_index, ()),
                median_index=median,
                budget=budgets.get(place, {}) if median is not None else {},
                communication=exposure.get(place, {}) if median is not None else {},
                gap_causes=causes.get(rank.rank_index, ()),
            )
        )
    return tuple(rows)


@artifact
def step_summary(inputs: Inputs, timeline: Timeline, matched_ranks: MatchedRanks) -> StepSummary:
    """How the steps were found, which were kept, and how long these were; and which ranks dropped which."""
    rank_of = {rank.rank_index: rank.rank for rank in inputs.ranks}
    steps = matched_ranks.steps.with_columns(length_ns=DURATION)
    lengths = steps.filter("kept")["length_ns"].sort()
    dropped = [
        DroppedStep(rank_of[rank_index], step, reason)
        for rank_index, step, reason in steps.filter(~pl.col("kept")).select("rank_index", "step", "reason").rows()
    ]
    is_remark = pl.col("reason").str.starts_with(LEFT_OUT) | pl.col("kept") & (pl.col("reason") != "")
    remarks = steps.filter(is_remark)["reason"].unique().sort().to_list()
    return StepSummary(
        source=", ".join(sorted({str(source) for source in timeline.sources.values()})),
        kept=lengths.len(),
        dropped=tuple(sorted(dropped, key=lambda step: (step.rank, step.index))),
        median_ns=int(lengths[(lengths.len() - 1) // 2]) if lengths.len() else None,
        min_ns=int(lengths[0]) if lengths.len() else None,
        max_ns=int(lengths[-1]) if lengths.len() else None,
        note="; ".join(remarks),
        left_out=sum(step.reason.startswith(LEFT_OUT) for step in dropped),
    )


@artifact
def budget(step: StepView) -> tuple[BudgetRow, ...]:
    """The representative step's budget in order of precedence, buckets without time left out."""
    return tuple(
        BudgetRow(bucket.name, bucket.group, ns, ns / step.step_ns, bucket.definition)
        for bucket in BUCKETS
        if (ns := step.owned_ns(bucket.name))
    )


@artifact
def unclassified(timeline: Timeline, step: StepView) -> tuple[UnclassifiedKernel, ...]:
    """Kernels of the representative rank, in all of its steps, that no pattern matches, by time."""
    unknown = (
        timeline.operations.filter((pl.col("rank_index") == step.rank_index) & pl.col("unknown").is_not_null())
        .group_by(pl.col("unknown").cast(pl.String))
        .agg(kernel_ns=DURATION.sum(), count=pl.len())
        .sort(["kernel_ns", "unknown"], descending=[True, False])
        .head(MOST_UNCLASSIFIED)
    )
    return tuple(UnclassifiedKernel(str(name), int(ns), int(count)) for name, ns, count in unknown.rows())


@artifact
def shown_waits(inputs: Inputs, attribution: Attribution) -> tuple[Wait, ...]:
    """How long each rank that was read in full waited for which rank."""
    numbers = {rank.rank for trace in inputs.with_kernels for rank in trace.ranks}
    return tuple(wait for wait in attribution.waits if wait.rank in numbers)


def _list_steps(steps: Steps, budgets: Mapping[tuple[int, int], Mapping[str, int]]) -> dict[int, tuple[RankStep, ...]]:
    """All steps of each rank with their budgets, by rank index."""
    steps_of: dict[int, list[RankStep]] = defaultdict(list)
    rows = steps.select("rank_index", "step", "start_ns", "end_ns", "kept", "reason").rows()
    for rank_index, step, start, end, kept, reason in rows:
        steps_of[rank_index].append(RankStep(step, start, end, kept, reason, budgets.get((rank_index, step), {})))
    return {rank_index: tuple(rank_steps) for rank_index, rank_steps in steps_of.items()}


def _budgets(attribution: Attribution) -> dict[tuple[int, int], dict[str, int]]:
    budgets: dict[tuple[int, int], dict[str, int]] = defaultdict(dict)
    rows = attribution.budget.filter(pl.col("ns") > 0).select("rank_index", "step", "bucket", "ns").rows()
    for rank_index, step, bucket, ns in sorted(rows, key=lambda row: (row[0], row[1], in_precedence(row[2]))):
        budgets[(rank_index, step)][bucket] = ns
    return dict(budgets)


def _exposure(attribution: Attribution) -> dict[tuple[int, int], dict[str, CommunicationTime]]:
    exposure: dict[tuple[int, int], dict[str, CommunicationTime]] = defaultdict(dict)
    rows = attribution.exposure.select("rank_index", "step", "class", "busy_ns", "exposed_ns", "hidden_ns").rows()
    place = {name: order for order, name in enumerate(COMMUNICATION_CATEGORIES)}
    for rank_index, step, name, busy, exposed, hidden in sorted(rows, key=lambda row: (row[0], row[1], place[row[2]])):
        exposure[(rank_index, step)][name] = CommunicationTime(busy, exposed, hidden)
    return dict(exposure)
