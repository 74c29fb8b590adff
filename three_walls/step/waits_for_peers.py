"""How long each rank waited for its peers, per communication class, and for which rank: the rows of the report."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from three_walls.lib.text import in_percent
from three_walls.step.find_steps import STEP
from three_walls.step.ranks.match_calls import STEP_AND_CLASS
from three_walls.step.ranks.matched_ranks import MatchedRanks
from three_walls.step.ranks.rank_groups import PAIRWISE
from three_walls.step.step_rows import Wait
from three_walls.step.step_tables import Arrivals, ExposureRows, StepKeys, TransferRows
from three_walls.tables.buckets import COMMUNICATION_CATEGORIES

MINIMUM_BLAME_FRACTION = 0.5
"""Of a wait: a rank is blamed for it only if it arrived last for more than this part."""

LATEST_ARRIVAL = "latest arrival"
SHORTEST_PARTICIPANT = "shortest participant"
FASTEST_CALLS = "fastest calls"


def list_waits(
    matched_ranks: MatchedRanks, medians: StepKeys, exposure: ExposureRows, transfer: TransferRows
) -> tuple[Wait, ...]:
    """A row per class and rank, from its step of ``medians``. ``exposure`` and ``transfer``: see Attribution."""
    awaited = _find_awaited(matched_ranks.arrivals.join(medians, on=STEP, how="semi"))
    rows = (
        exposure.join(transfer, on=STEP_AND_CLASS, how="left")
        .join(medians, on=STEP, how="semi")
        .join(matched_ranks.class_splits, on=STEP_AND_CLASS, how="left")
        .join(awaited, on=STEP_AND_CLASS, how="left")
        .rows(named=True)
    )
    reasons = _list_reasons(matched_ranks)
    rank_of = matched_ranks.rank_of
    waits = [_describe_wait(row, rank_of, matched_ranks.clock.is_resolved, reasons) for row in rows]
    order = {name: place for place, name in enumerate(COMMUNICATION_CATEGORIES)}
    return tuple(sorted(waits, key=lambda wait: (order[wait.communication_class], wait.rank)))


def _find_awaited(arrivals: Arrivals) -> pl.DataFrame:
    """The rank that caused most of the waiting of a class: rank_index, step, class, awaited (its rank index)."""
    waits = (
        arrivals.filter((pl.col("last") != pl.col("rank_index")) | pl.col("last").is_null())
        .group_by([*STEP_AND_CLASS, "last"])
        .agg(pl.col("wait_ns").sum())
        .with_columns(fraction=pl.col("wait_ns") / pl.col("wait_ns").sum().over(STEP_AND_CLASS))
    )
    is_most = pl.col("fraction") > MINIMUM_BLAME_FRACTION
    return waits.filter(pl.col("last").is_not_null() & is_most).select(*STEP_AND_CLASS, awaited="last")


def _list_reasons(matched_ranks: MatchedRanks) -> dict[tuple[str, int], str]:
    """Why the calls of a class were not matched in a step, by class and step."""
    if len(matched_ranks.ranks) == 1:
        return {}
    sequences = matched_ranks.matched.unmatched.sort("class", "step", "role")
    rows = sequences.unique(["class", "step"], keep="first", maintain_order=True)
    return {(name, step): reason for name, step, reason in rows.select("class", "step", "reason").rows()}


def _describe_wait(
    row: Mapping[str, object], rank_of: Mapping[int, int], has_clock: bool, reasons: Mapping[tuple[str, int], str]
) -> Wait:
    """The wait of a class on a rank, from the ``row`` that joins its exposure, transfer, class split and awaited rank.

    Resolved waits are exact. For the others there are two estimates, by the shortest participant of each call and by
    the fastest calls of the rank; neither sees all waiting.
    """
    name, rank = str(row["class"]), rank_of[_int(row["rank_index"])]
    # The estimate by fastest calls splits exposed time only: communication that compute hides costs nothing.
    estimated_transfer_ns = _int(row["transfer_exposed_ns"] or 0)
    estimated_ns = _int(row["exposed_ns"]) - estimated_transfer_ns
    if row["wait_ns"] is None:
        reason = reasons.get((name, _int(row["step"]))) or _why_not_matched(name, len(rank_of))
        note = f"{FASTEST_CALLS} (exposed time only): {reason}"
        return Wait(name, rank, estimated_ns, estimated_transfer_ns, None, resolved=False, note=note)
    wait_ns, total_ns, awaited = _int(row["wait_ns"]), _int(row["total_ns"]), row["awaited"]
    if row["resolved"]:
        rest = 1 - _int(row["resolved_ns"]) / total_ns
        by_shortest = f"; {in_percent(rest)} of the time by {SHORTEST_PARTICIPANT}"
        note = LATEST_ARRIVAL + (by_shortest if rest >= 0.001 else "")
        awaited_rank = None if awaited is None else rank_of[_int(awaited)]
        return Wait(name, rank, wait_ns, total_ns - wait_ns, awaited_rank, resolved=True, note=note)
    reason = _why_unresolved(row, has_clock)
    # Where members are missing, all captured members may have waited for one of them: the estimate that sees more
    # waiting is nearer.
    estimate_sees_more = estimated_ns * total_ns > wait_ns * (estimated_ns + estimated_transfer_ns)
    if not row["complete"] and estimate_sees_more:
        note = f"{FASTEST_CALLS} (exposed time only): {reason}"
        return Wait(name, rank, estimated_ns, estimated_transfer_ns, None, resolved=False, note=note)
    note = f"{SHORTEST_PARTICIPANT}: {reason}"
    return Wait(name, rank, wait_ns, total_ns - wait_ns, None, resolved=False, note=note)


def _why_not_matched(name: str, ranks_count: int) -> str:
    if ranks_count == 1:
        return "only one rank was captured"
    unpaired = "its calls are between two ranks each and were not paired"
    return unpaired if name in PAIRWISE else "none of its calls was matched in this step"


def _why_unresolved(row: Mapping[str, object], has_clock: bool) -> str:
    if row["size"] is None:
        return f"{row['captured']} ranks were captured, the size of their group is not known"
    if not row["complete"]:
        return f"{row['captured']} of {row['size']} ranks of the group were captured"
    if has_clock:
        return "its calls do not fit together in time: they may run on several communicators"
    return "the ranks' clocks could not be aligned"


def _int(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"expected a whole number, found {value!r}")
    return value
