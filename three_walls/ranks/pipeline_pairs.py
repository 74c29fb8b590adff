"""Which pipeline exchanges of neighbouring stages are one: by order, else by the moment at which both leave.

Of two neighbours that talk to nobody else through a stream the n-th exchange of one is the n-th of the other. A stage
in the middle talks to two: its order is that of the 1F1B schedule where the number of its calls says so. What order
does not tell is paired on the common clock, both ends of an exchange being left together. Either way
``measure_arrivals`` holds a pair to that: one whose ends lie apart is not resolved.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from three_walls.ranks.alignment import CommonClock
from three_walls.ranks.groups import Pipeline
from three_walls.ranks.matching import Matched
from three_walls.ranks.pipeline_schedule import PREVIOUS, list_exchanges
from three_walls.tables.thresholds import RankThresholds

EXCHANGE = "pipeline_p2p"

_LINK = ["step", "lane", "link", "role"]
"""Exchanges of one link (between stage ``link`` and the next), in a sequence of its own."""

_NO_NEIGHBOUR = "the neighbouring stage was not captured"
_NO_ORDER = "the stages' exchanges do not follow the 1F1B schedule, and no two of them are left together"


def pair_by_order(matched: Matched, pipeline: Pipeline | None) -> Matched:
    """``matched`` with the exchanges that order pairs, as ``calls``; of the others ``abstained`` says why."""
    calls = _list_calls(matched, pipeline)
    if pipeline is None or calls.is_empty():
        return matched
    linked = _order_within_link(_link_by_schedule(calls, pipeline))
    sides = linked.group_by(*_LINK, "rank_index").agg(pl.len())
    agree = (
        sides.group_by(_LINK)
        .agg(sides=pl.len(), fewest=pl.col("len").min(), most=pl.col("len").max())
        .filter((pl.col("sides") == 2) & (pl.col("fewest") == pl.col("most")) & pl.col("link").is_not_null())
    )
    pairs = linked.join(agree.select(_LINK), on=_LINK, how="semi")
    return _with_pairs(matched, pairs, _LINK, calls, pipeline)


def pair_by_time(
    matched: Matched, pipeline: Pipeline | None, clock: CommonClock, thresholds: RankThresholds
) -> Matched:
    """``matched`` with more exchanges paired: those that end together with one call of a neighbour, and only one."""
    left = _list_calls(matched, pipeline).join(matched.calls, on="call", how="anti")
    if pipeline is None or left.is_empty() or not clock.is_resolved:
        return matched
    ends = clock.put(left).select("call", "step", "lane", "stage", "common_end_ns")
    after = _nearest(ends, 1, thresholds).rename({"call": "first", "found": "second"})
    before = _nearest(ends, -1, thresholds).rename({"call": "second", "found": "first"})
    mutual = after.join(before, on=["first", "second"])
    # A call that is left together with both neighbours' holds exchanges with both, or is told apart from neither.
    once = mutual.join(mutual, left_on="first", right_on="second", how="anti").join(
        mutual, left_on="second", right_on="first", how="anti"
    )
    sides = pl.concat([once.select("first", call="first"), once.select("first", call="second")])
    pairs = left.join(sides, on="call").with_columns(link=pl.col("stage").min().over("first"), role=pl.lit(0, pl.Int64))
    pairs = pairs.with_columns(order=pl.col("first").cast(pl.Int64)).drop("first")
    return _with_pairs(matched, pairs, _LINK, left, pipeline)


def find_pipeline_waits(arrivals: pl.DataFrame, rank_of: Mapping[int, int]) -> pl.DataFrame:
    """Resolved waiting in exchanges: rank_index, start_ns, end_ns (own clock), awaited (last rank, or null)."""
    return arrivals.filter((pl.col("class") == EXCHANGE) & pl.col("resolved")).select(
        "rank_index",
        "start_ns",
        end_ns=pl.col("start_ns") + pl.col("wait_ns"),
        awaited=pl.col("last").replace_strict(dict(rank_of), default=None, return_dtype=pl.Int64),
    )


def _list_calls(matched: Matched, pipeline: Pipeline | None) -> pl.DataFrame:
    """Exchanges of all tracks with ``stage`` and ``lane``, in order."""
    places = [] if pipeline is None else [(rank_index, *place) for rank_index, place in pipeline.places.items()]
    schema = {"rank_index": pl.Int64, "stage": pl.Int64, "lane": pl.Int64}
    return (
        matched.everything.filter(pl.col("class") == EXCHANGE)
        .join(pl.DataFrame(places, schema=schema, orient="row"), on="rank_index")
        .sort("rank_index", "start_ns", "end_ns", "call")
    )


def _link_by_schedule(calls: pl.DataFrame, pipeline: Pipeline) -> pl.DataFrame:
    """``calls`` with ``link``; null where a stage has two neighbours and its calls do not follow the schedule."""
    numbered = calls.with_columns(
        place=pl.col("call").cum_count().over("rank_index", "step").cast(pl.Int64),
        count=pl.len().over("rank_index", "step").cast(pl.Int64),
    )
    middle = numbered.join(_schedules(pipeline), on=["stage", "count", "place"], how="left")
    only = pl.when(pl.col("stage") == 0).then(0).when(pl.col("stage") == pipeline.stages - 1).then(pl.col("stage") - 1)
    return middle.with_columns(link=pl.coalesce(only.cast(pl.Int64), "link")).drop("place", "count")


def _schedules(pipeline: Pipeline) -> pl.DataFrame:
    """Per stage and number of calls the link of each: stage, count, place (from 1), link."""
    rows = []
    for stage in range(pipeline.stages if pipeline.micro_batches else 0):
        for batched in (True, False):
            order = list_exchanges(stage, pipeline.stages, pipeline.micro_batches or 0, batched=batched)
            links = [stage - 1 if neighbour == PREVIOUS else stage for neighbour in order]
            rows += [(stage, len(order), place, link) for place, link in enumerate(links, start=1)]
    schema = {"stage": pl.Int64, "count": pl.Int64, "place": pl.Int64, "link": pl.Int64}
    found = pl.DataFrame(rows, schema=schema, orient="row")
    return found.unique(["stage", "count", "place"], keep="first", maintain_order=True)


def _order_within_link(linked: pl.DataFrame) -> pl.DataFrame:
    """``linked`` with ``role`` and ``order``. Two stages may talk through several streams, in order of creation.

    (Unbatched exchanges of a pipeline of two run on two communicators so that both directions overlap.)
    """
    by_creation = pl.col("stream").rank("dense").over("rank_index", "link").cast(pl.Int64) - 1
    return linked.with_columns(role=by_creation).with_columns(
        order=pl.col("call").cum_count().over(*_LINK, "rank_index").cast(pl.Int64)
    )


def _nearest(ends: pl.DataFrame, towards: int, thresholds: RankThresholds) -> pl.DataFrame:
    """Per call the call of the neighbour ``towards`` (1 next, -1 previous) that ends nearest: call, found."""
    others = ends.select("step", "lane", "common_end_ns", found="call", stage=pl.col("stage") - towards)
    return (
        ends.sort("common_end_ns")
        .join_asof(
            others.sort("common_end_ns"),
            on="common_end_ns",
            by=["step", "lane", "stage"],
            strategy="nearest",
            tolerance=thresholds.maximum_end_spread_ns,
            check_sortedness=False,
        )
        .drop_nulls("found")
        .select("call", "found")
    )


def _with_pairs(
    matched: Matched, pairs: pl.DataFrame, key: list[str], among: pl.DataFrame, pipeline: Pipeline
) -> Matched:
    """Adds ``pairs`` (two rows per ``key`` and order) as calls, and the reasons of those ``among`` left."""
    highest = matched.calls["instance"].max()
    offset = highest + 1 if isinstance(highest, int) else 0
    rows = (
        pairs.sort(*key, "order", "rank_index")
        .with_columns(
            instance=pl.struct(*key, "order").rle_id().cast(pl.Int64) + offset,
            group=pl.col("lane") * pipeline.stages + pl.col("link"),
            captured=pl.lit(2, pl.Int64),
            size=pl.lit(2, pl.Int64),
            sure=pl.lit(value=False),
            complete=pl.lit(value=True),
        )
        .with_columns(kept=pl.col("kept").all().over("instance"))
    )
    left = among.join(rows, on="call", how="anti")
    others = matched.abstained.filter(pl.col("class") != EXCHANGE)
    return Matched(
        matched.everything,
        pl.concat([matched.calls, rows.select(matched.calls.columns).match_to_schema(matched.calls.schema)]),
        pl.concat([others, _explain(left, pipeline).match_to_schema(others.schema)]),
    )


def _explain(left: pl.DataFrame, pipeline: Pipeline) -> pl.DataFrame:
    """Why the exchanges ``left`` are not paired: class, group, role, step, kept, because."""
    captured = set(pipeline.places.values())
    rows = []
    for stage, lane, step, kept in left.select("stage", "lane", "step", "kept").unique().sort(pl.all()).rows():
        neighbours = {one for one in (stage - 1, stage + 1) if 0 <= one < pipeline.stages}
        missing = any((one, lane) not in captured for one in neighbours)
        group = lane * pipeline.stages + stage
        rows.append((EXCHANGE, group, 0, step, kept, _NO_NEIGHBOUR if missing else _NO_ORDER))
    names = ("class", "group", "role", "step", "kept", "reason")
    types = (pl.String, pl.Int64, pl.Int64, pl.Int64, pl.Boolean, pl.String)
    return pl.DataFrame(rows, schema=dict(zip(names, types, strict=True)), orient="row")
