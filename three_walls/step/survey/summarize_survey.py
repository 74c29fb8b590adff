"""The survey as the report shows it: every rank in one row, and how the ranks, hosts and stages differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median_low

import polars as pl

from three_walls.lib.text import in_ms, write_times
from three_walls.step.attribute_steps import Attribution
from three_walls.step.find_steps import STEP
from three_walls.step.ranks.matched_ranks import MatchedRanks
from three_walls.step.stragglers import LateRank
from three_walls.step.survey.rank_survey import RankSurvey
from three_walls.step.survey.survey_rows import LostTrace, RankGroup, RankSpread, Survey, SurveyedRank
from three_walls.tables.buckets import BUCKETS, COMMUNICATION_CATEGORIES, Group
from three_walls.trace.read_inputs import show_name_alone

_TIMES = ("step", "compute", "communication", "wait", "idle")
"""Times of a rank that are compared."""
_GROUP_OF = {bucket.name: bucket.group for bucket in BUCKETS}


def summarize_survey(
    survey: RankSurvey,
    attribution: Attribution,
    matched_ranks: MatchedRanks,
    late_ranks: Sequence[LateRank],
    chosen: Mapping[int, str],
) -> Survey:
    """The rows of the report. ``chosen``: indices of the ranks read in full, each with the reason, if it has one."""
    rows = _list_ranks(attribution, matched_ranks, _remark(attribution, late_ranks, chosen))
    rank_of = matched_ranks.rank_of
    return Survey(
        ranks_count=len(rank_of),
        in_full=tuple(sorted(rank_of[index] for index in chosen)),
        lost=tuple(LostTrace(lost.path.name, show_name_alone(lost.reason, lost.path)) for lost in survey.lost),
        late_ranks_count=len({late.rank_index for late in late_ranks}),
        spreads=_list_spreads(rows, attribution),
        groups=_list_groups(rows),
        ranks=rows,
    )


def _remark(attribution: Attribution, late_ranks: Sequence[LateRank], chosen: Mapping[int, str]) -> Mapping[int, str]:
    """By rank index what is to be said of it: how late or slow it is, and why it was read in full."""
    remarks: dict[int, list[str]] = {}
    for late in late_ranks:
        remarks.setdefault(late.rank_index, []).append(f"late by {in_ms(late.late_ns)} per step")
    for index, ratio in attribution.slow_ranks.items():
        remarks.setdefault(index, []).append(f"takes {write_times(ratio)} as long for the same kernels")
    for index, reason in chosen.items():
        remarks.setdefault(index, []).append(f"in full: {reason}" if reason else "in full")
    return {index: "; ".join(parts) for index, parts in remarks.items()}


def _list_ranks(
    attribution: Attribution, matched_ranks: MatchedRanks, remarks: Mapping[int, str]
) -> tuple[SurveyedRank, ...]:
    """A row per rank with a kept step, by rank."""
    medians = attribution.medians
    owned: dict[int, dict[Group, int]] = {}
    for index, bucket, ns in attribution.budget.join(medians, on=STEP).select("rank_index", "bucket", "ns").rows():
        times = owned.setdefault(index, dict.fromkeys(Group, 0))
        times[_GROUP_OF[bucket]] += ns
    waited = (
        attribution.exposure.join(medians, on=STEP)
        .join(attribution.transfer, on=[*STEP, "class"], how="left")
        .group_by("rank_index")
        .agg(ns=pl.col("exposed_ns").sum() - pl.col("transfer_exposed_ns").fill_null(0).sum())
    )
    wait_ns = dict(waited.rows())
    places = matched_ranks.pipeline.places if matched_ranks.pipeline else {}
    rows = []
    for rank in sorted(matched_ranks.ranks, key=lambda rank: (rank.rank, rank.rank_index)):
        if rank.rank_index not in owned:
            continue
        times = owned[rank.rank_index]
        rows.append(
            SurveyedRank(
                rank=rank.rank,
                host=rank.host,
                stage=places.get(rank.rank_index, (None, None))[0],
                compute_ns=times[Group.COMPUTE],
                communication_ns=times[Group.COMMUNICATION],
                idle_ns=times[Group.IDLE],
                other_ns=times[Group.COPY] + times[Group.GRAPH],
                step_ns=sum(times.values()),
                wait_ns=wait_ns.get(rank.rank_index, 0),
                remark=remarks.get(rank.rank_index, ""),
            )
        )
    return tuple(rows)


def _list_spreads(rows: Sequence[SurveyedRank], attribution: Attribution) -> tuple[RankSpread, ...]:
    """How the ranks differ in each time, then in the waiting of each communication class."""
    quantities = {name: [(getattr(row, f"{name}_ns"), row.rank) for row in rows] for name in _TIMES}
    for name in COMMUNICATION_CATEGORIES:
        quantities[name] = [
            (wait.wait_ns, wait.rank)
            for wait in attribution.waits
            if wait.communication_class == name and wait.wait_ns is not None
        ]
    return tuple(_measure_spread(name, times) for name, times in quantities.items() if times)


def _measure_spread(name: str, times: Iterable[tuple[int, int]]) -> RankSpread:
    """``times``: pairs of a time and a rank."""
    ordered = sorted(times)
    most_ns = ordered[-1][0]
    return RankSpread(
        quantity=name,
        ranks_count=len(ordered),
        least_ns=ordered[0][0],
        least_rank=ordered[0][1],
        median_ns=ordered[(len(ordered) - 1) // 2][0],
        p95_ns=ordered[(len(ordered) - 1) * 95 // 100][0],
        most_ns=most_ns,
        most_rank=min(rank for ns, rank in ordered if ns == most_ns),
    )


def _list_groups(rows: Sequence[SurveyedRank]) -> tuple[RankGroup, ...]:
    """The hosts, then the pipeline stages, as far as there are several."""
    all_groups = []
    for kind, names in (
        ("host", [row.host for row in rows]),
        ("stage", [None if row.stage is None else str(row.stage) for row in rows]),
    ):
        groups: dict[str, list[SurveyedRank]] = {}
        for name, row in zip(names, rows, strict=True):
            if name is not None:
                groups.setdefault(name, []).append(row)
        of_kind = [
            RankGroup(
                kind=kind,
                name=name,
                ranks_count=len(members),
                **{f"{name}_ns": median_low(getattr(row, f"{name}_ns") for row in members) for name in _TIMES},
            )
            for name, members in groups.items()
        ]
        if len(of_kind) > 1:
            all_groups += sorted(of_kind, key=lambda group: (-group.compute_ns, group.name))
    return tuple(all_groups)
