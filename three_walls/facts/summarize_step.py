"""Frames -> the report's plain rows: ranks, steps, budgets. The last use of polars before the seam."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import polars as pl

from three_walls.step.attribute_steps import Attribution
from three_walls.step.build_timeline import Timeline
from three_walls.step.compute_gaps import summarize_gap_causes
from three_walls.step.find_steps import StepSource, median_steps
from three_walls.step.intervals import DURATION
from three_walls.step.ranks.attributed_steps import LEFT_OUT
from three_walls.step.step_rows import (
    BudgetRow,
    CommunicationTime,
    DroppedStep,
    RankReport,
    RankStep,
    StepSummary,
    UnclassifiedKernel,
)
from three_walls.step.step_view import StepView
from three_walls.tables.buckets import BUCKETS, COMMUNICATION_CATEGORIES
from three_walls.trace.identity import Rank

MOST_UNCLASSIFIED = 20
"""Unknown kernel names listed, largest first; the share of all of them is in the budget."""


def summarize_ranks(attribution: Attribution, steps: pl.DataFrame, ranks: Sequence[Rank]) -> tuple[RankReport, ...]:
    """One row per rank, by global rank; each with all of its ``steps`` and the budget of its median kept step."""
    budgets, exposure, medians = _budgets(attribution), _exposure(attribution), median_steps(attribution.steps)
    causes = summarize_gap_causes(attribution.compute_gaps, medians)
    steps_of = _list_steps(steps, budgets)
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


def summarize_steps(steps: pl.DataFrame, sources: Iterable[StepSource], ranks: Sequence[Rank]) -> StepSummary:
    """How ``steps`` were found, which were kept, and how long these were; and which ``ranks`` dropped which."""
    rank_of = {rank.rank_index: rank.rank for rank in ranks}
    steps = steps.with_columns(length_ns=DURATION)
    lengths = steps.filter("kept")["length_ns"].sort()
    dropped = [
        DroppedStep(rank_of[rank_index], step, reason)
        for rank_index, step, reason in steps.filter(~pl.col("kept")).select("rank_index", "step", "reason").rows()
    ]
    is_remark = pl.col("reason").str.starts_with(LEFT_OUT) | pl.col("kept") & (pl.col("reason") != "")
    remarks = steps.filter(is_remark)["reason"].unique().sort().to_list()
    return StepSummary(
        source=", ".join(sorted({str(source) for source in sources})),
        kept=lengths.len(),
        dropped=tuple(sorted(dropped, key=lambda step: (step.rank, step.index))),
        median_ns=int(lengths[(lengths.len() - 1) // 2]) if lengths.len() else None,
        min_ns=int(lengths[0]) if lengths.len() else None,
        max_ns=int(lengths[-1]) if lengths.len() else None,
        note="; ".join(remarks),
        left_out=sum(step.reason.startswith(LEFT_OUT) for step in dropped),
    )


def list_captured_lengths(steps: pl.DataFrame) -> list[int | None]:
    """Length of every step, in order, of the rank that has most of them; None for a step that is not kept."""
    by_rank = steps.sort("rank_index", "start_ns").partition_by("rank_index", maintain_order=True)
    longest = max(by_rank, key=lambda steps: steps.height, default=None)
    if longest is None:
        return []
    rows = longest.select("kept", length_ns=DURATION).rows()
    return [int(length) if kept else None for kept, length in rows]


def summarize_budget(step: StepView) -> tuple[BudgetRow, ...]:
    """The representative step's budget in order of precedence, buckets without time left out."""
    return tuple(
        BudgetRow(bucket.name, bucket.group, ns, ns / step.step_ns, bucket.definition)
        for bucket in BUCKETS
        if (ns := step.owned_ns(bucket.name))
    )


def list_unclassified(timeline: Timeline, step: StepView) -> tuple[UnclassifiedKernel, ...]:
    """Kernels of the representative rank, in all of its steps, that no pattern matches, by time."""
    unknown = (
        timeline.operations.filter((pl.col("rank_index") == step.rank_index) & pl.col("unknown").is_not_null())
        .group_by(pl.col("unknown").cast(pl.String))
        .agg(kernel_ns=DURATION.sum(), count=pl.len())
        .sort(["kernel_ns", "unknown"], descending=[True, False])
        .head(MOST_UNCLASSIFIED)
    )
    return tuple(UnclassifiedKernel(str(name), int(ns), int(count)) for name, ns, count in unknown.rows())


def _list_steps(
    steps: pl.DataFrame, budgets: Mapping[tuple[int, int], Mapping[str, int]]
) -> dict[int, tuple[RankStep, ...]]:
    """All steps of each rank with their budgets, by rank index."""
    found: dict[int, list[RankStep]] = defaultdict(list)
    rows = steps.select("rank_index", "step", "start_ns", "end_ns", "kept", "reason").rows()
    for rank_index, step, start, end, kept, reason in rows:
        found[rank_index].append(RankStep(step, start, end, kept, reason, budgets.get((rank_index, step), {})))
    return {rank_index: tuple(rank_steps) for rank_index, rank_steps in found.items()}


def _budgets(attribution: Attribution) -> dict[tuple[int, int], dict[str, int]]:
    found: dict[tuple[int, int], dict[str, int]] = defaultdict(dict)
    order = {bucket.name: place for place, bucket in enumerate(BUCKETS)}
    rows = attribution.budget.filter(pl.col("ns") > 0).select("rank_index", "step", "bucket", "ns").rows()
    for rank_index, step, bucket, ns in sorted(rows, key=lambda row: (row[0], row[1], order[row[2]])):
        found[(rank_index, step)][bucket] = ns
    return dict(found)


def _exposure(attribution: Attribution) -> dict[tuple[int, int], dict[str, CommunicationTime]]:
    found: dict[tuple[int, int], dict[str, CommunicationTime]] = defaultdict(dict)
    rows = attribution.exposure.select("rank_index", "step", "class", "busy_ns", "exposed_ns", "hidden_ns").rows()
    place = {name: order for order, name in enumerate(COMMUNICATION_CATEGORIES)}
    for rank_index, step, name, busy, exposed, hidden in sorted(rows, key=lambda row: (row[0], row[1], place[row[2]])):
        found[(rank_index, step)][name] = CommunicationTime(busy, exposed, hidden)
    return dict(found)
