"""How long each rank's communication waited for peers, per class, and for whom."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from three_walls.attribution.attribution import Attribution
from three_walls.model.buckets import COMMUNICATION_CATEGORIES
from three_walls.model.report import Wait
from three_walls.ranks.groups import PAIRWISE
from three_walls.ranks.matching import Matched
from three_walls.tables.thresholds import RankThresholds

LATEST_ARRIVAL = "latest arrival"
SHORTEST_PARTICIPANT = "shortest participant"
FASTEST_CALLS = "fastest calls"

CLASS = ["rank_index", "step", "class"]

_DURATION = pl.col("end_ns") - pl.col("start_ns")
_FITS_NOT = "its calls do not fit together in time: they may run on several communicators"


def split_classes(matched: Matched, arrivals: pl.DataFrame, thresholds: RankThresholds) -> pl.DataFrame:
    """Per rank, step and class, how its calls were split and into what; durations are summed, not united.

    Columns: rank_index, step, class, total_ns, wait_ns (null if too few of its calls are matched), resolved,
    resolved_ns, captured, size, complete. ``arrivals``: see measure_arrivals.
    """
    total = matched.everything.group_by(CLASS).agg(total_ns=_DURATION.sum())
    found = arrivals.group_by(CLASS).agg(
        pl.col("wait_ns").sum(),
        matched_ns=_DURATION.sum(),
        resolved_ns=_DURATION.filter("resolved").sum(),
        captured=pl.col("captured").first(),
        size=pl.col("size").first(),
        complete=pl.col("complete").first(),
    )
    enough = thresholds.minimum_resolved_fraction * pl.col("total_ns")
    return (
        total.join(found, on=CLASS, how="left")
        .with_columns(pl.col("matched_ns", "resolved_ns").fill_null(0))
        .with_columns(
            resolved=(pl.col("resolved_ns") >= enough) & (pl.col("resolved_ns") > 0),
            wait_ns=pl.when((pl.col("matched_ns") >= enough) & (pl.col("matched_ns") > 0)).then("wait_ns"),
        )
        .drop("matched_ns")
        .sort(CLASS)
    )


def list_waits(
    matched: Matched,
    classes: pl.DataFrame,
    arrivals: pl.DataFrame,
    attribution: Attribution,
    medians: Mapping[int, int],
    rank_of: Mapping[int, int],
    clock_is_resolved: bool,
    thresholds: RankThresholds,
) -> tuple[Wait, ...]:
    """One row per class and rank, of the rank's median kept step (``medians``: step by track)."""
    chosen = pl.DataFrame(list(medians.items()), schema={"rank_index": pl.Int64, "step": pl.Int64}, orient="row")
    blamed = _blame(arrivals.join(chosen, on=["rank_index", "step"], how="semi"), thresholds)
    proxy = attribution.exposure.join(attribution.transfer, on=CLASS, how="left").with_columns(
        pl.col("class").cast(pl.String)
    )
    rows = (
        proxy.join(chosen, on=["rank_index", "step"], how="semi")
        .join(classes, on=CLASS, how="left")
        .join(blamed, on=CLASS, how="left")
        .rows(named=True)
    )
    reason = _reasons(matched.abstained, len(rank_of))
    waits = [_wait(row, rank_of, reason, clock_is_resolved) for row in rows]
    place = {name: order for order, name in enumerate(COMMUNICATION_CATEGORIES)}
    return tuple(sorted(waits, key=lambda one: (place[one.communication_class], one.rank)))


def _blame(arrivals: pl.DataFrame, thresholds: RankThresholds) -> pl.DataFrame:
    """The one rank for which most of a class's time was waited: rank_index, step, class, culprit (a track)."""
    for_whom = (
        arrivals.filter((pl.col("last") != pl.col("rank_index")) | pl.col("last").is_null())
        .group_by([*CLASS, "last"])
        .agg(pl.col("wait_ns").sum())
        .with_columns(share=pl.col("wait_ns") / pl.col("wait_ns").sum().over(CLASS))
    )
    return for_whom.filter(pl.col("last").is_not_null() & (pl.col("share") > thresholds.minimum_blame_fraction)).select(
        *CLASS, culprit="last"
    )


def _reasons(abstained: pl.DataFrame, ranks: int) -> dict[tuple[str, int], str]:
    """Why calls of a class were not matched in a step."""
    if ranks == 1:
        return {}
    rows = abstained.sort("class", "step", "role").unique(["class", "step"], keep="first", maintain_order=True)
    return {(name, step): reason for name, step, reason in rows.select("class", "step", "reason").rows()}


def _wait(
    row: Mapping[str, object], rank_of: Mapping[int, int], reason: Mapping[tuple[str, int], str], has_clock: bool
) -> Wait:
    name, rank = str(row["class"]), rank_of[_int(row["rank_index"])]
    # The fastest-calls proxy speaks of exposed time: what computing hides is nobody's loss.
    alone_transfer_ns = _int(row["transfer_exposed_ns"] or 0)
    alone_ns = _int(row["exposed_ns"]) - alone_transfer_ns
    if row["wait_ns"] is None:
        why = reason.get((name, _int(row["step"]))) or _why_not_matched(name, len(rank_of))
        note = f"{FASTEST_CALLS} (exposed time only): {why}"
        return Wait(name, rank, alone_ns, alone_transfer_ns, None, resolved=False, note=note)
    wait_ns, total_ns, culprit = _int(row["wait_ns"]), _int(row["total_ns"]), row["culprit"]
    if row["resolved"]:
        rest = 1 - _int(row["resolved_ns"]) / total_ns
        note = LATEST_ARRIVAL + (f"; {rest:.1%} of the time by {SHORTEST_PARTICIPANT}" if rest >= 0.001 else "")
        whom = None if culprit is None else rank_of[_int(culprit)]
        return Wait(name, rank, wait_ns, total_ns - wait_ns, whom, resolved=True, note=note)
    why = _why_unresolved(row, has_clock)
    # Where members are missing all that were captured may have waited for one of those: of the two proxies,
    # neither of which sees all waiting, the one that sees more is nearer.
    if not row["complete"] and alone_ns * total_ns > wait_ns * (alone_ns + alone_transfer_ns):
        note = f"{FASTEST_CALLS} (exposed time only): {why}"
        return Wait(name, rank, alone_ns, alone_transfer_ns, None, resolved=False, note=note)
    note = f"{SHORTEST_PARTICIPANT}: {why}"
    return Wait(name, rank, wait_ns, total_ns - wait_ns, None, resolved=False, note=note)


def _why_not_matched(name: str, ranks: int) -> str:
    if ranks == 1:
        return "one rank captured"
    return "each call is between two ranks" if name in PAIRWISE else "no matched calls in this step"


def _why_unresolved(row: Mapping[str, object], has_clock: bool) -> str:
    if row["size"] is None:
        return f"{row['captured']} ranks captured, the size of their group is not known"
    if not row["complete"]:
        return f"{row['captured']} of {row['size']} ranks of the group captured"
    return _FITS_NOT if has_clock else "the ranks' clocks could not be put together"


def _int(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"expected a whole number, found {value!r}")
    return value
