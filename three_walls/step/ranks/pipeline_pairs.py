"""Pipeline exchanges of neighbouring stages paired: by order, else by when both sides leave.

Where two neighbours exchange with no other stage through a stream, the n-th exchange of one is the n-th of the other.
A stage in the middle exchanges with two neighbours; its order is that of the 1F1B schedule, if it made as many calls
as the schedule has. What order does not pair is paired on the common clock, because both sides leave an exchange
together. Either way ``measure_arrivals`` checks the pairs: one whose ends lie apart is not resolved.

Megatron's non-interleaved 1F1B schedule (``forward_backward_pipelining_without_interleaving`` of
megatron/core/pipeline_parallel/schedules.py): stage s of p with m micro-batches runs w = min(p - s - 1, m) forward
passes ahead (receive from the previous stage, send to the next), then m - w rounds of one forward and one backward pass
(exchange with the next, then with the previous), then w backward passes (receive from the next, send to the previous).
Every call of ``P2PCommunicator`` is with one neighbour. If batched it is one kernel, else a call that sends and
receives is two.
"""

from __future__ import annotations

import polars as pl

from three_walls.step.ranks.align_clocks import CommonClock
from three_walls.step.ranks.end_time_matching import MAXIMUM_END_SPREAD_NS
from three_walls.step.ranks.match_calls import MatchedCalls
from three_walls.step.ranks.rank_groups import Pipeline
from three_walls.step.step_tables import CommunicationCalls

EXCHANGE = "pipeline_p2p"

PREVIOUS, NEXT = "previous", "next"

_LINK = ["step", "lane", "link", "role"]
"""Identifies a sequence of exchanges on a link, which is between stage ``link`` and the next."""

_NO_NEIGHBOUR = "the neighbouring stage was not captured"
_NO_ORDER = "the stages' exchanges do not follow the 1F1B schedule, and no two of them end together"


def pair_by_order(matched: MatchedCalls, pipeline: Pipeline | None) -> MatchedCalls:
    """Adds to ``matched`` the exchanges that order pairs, and for the others the reason why it does not."""
    calls = _list_exchange_calls(matched, pipeline)
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
    return _add_pairs(matched, pairs, calls, pipeline)


def pair_by_time(matched: MatchedCalls, pipeline: Pipeline | None, clock: CommonClock) -> MatchedCalls:
    """Adds to ``matched`` the exchanges that end together with a single call of a neighbour."""
    unpaired = _list_exchange_calls(matched, pipeline).join(matched.calls, on="call", how="anti")
    if pipeline is None or unpaired.is_empty() or not clock.is_resolved:
        return matched
    ends = clock.add_common_times(unpaired).select("call", "step", "lane", "stage", "common_end_ns")
    after = _nearest(ends, 1).rename({"call": "first", "found": "second"})
    before = _nearest(ends, -1).rename({"call": "second", "found": "first"})
    mutual = after.join(before, on=["first", "second"])
    # A call that ends together with calls of both neighbours exchanges with both, or could be paired with either.
    once = mutual.join(mutual, left_on="first", right_on="second", how="anti").join(
        mutual, left_on="second", right_on="first", how="anti"
    )
    sides = pl.concat([once.select("first", call="first"), once.select("first", call="second")])
    pairs = unpaired.join(sides, on="call").with_columns(
        link=pl.col("stage").min().over("first"), role=pl.lit(0, pl.Int64)
    )
    pairs = pairs.with_columns(order=pl.col("first").cast(pl.Int64)).drop("first")
    return _add_pairs(matched, pairs, unpaired, pipeline)


def list_exchanges(stage: int, stages: int, micro_batches: int, *, batched: bool = True) -> list[str]:
    """The neighbours (PREVIOUS or NEXT) with which ``stage`` (from 0) exchanges in a step, in order."""
    ahead = min(stages - stage - 1, micro_batches)
    rounds = micro_batches - ahead
    both = 1 if batched else 2
    order = [PREVIOUS, NEXT] * ahead
    if rounds:
        order += [PREVIOUS]
        order += ([NEXT] * both + [PREVIOUS] * both) * (rounds - 1)
        order += [NEXT] * both + [PREVIOUS]
    order += [NEXT, PREVIOUS] * ahead
    absent = {PREVIOUS} if stage == 0 else {NEXT} if stage == stages - 1 else set()
    return [neighbour for neighbour in order if neighbour not in absent]


def _list_exchange_calls(matched: MatchedCalls, pipeline: Pipeline | None) -> CommunicationCalls:
    """The exchanges of all ranks with their ``stage`` and ``lane``, in order."""
    places = [] if pipeline is None else [(rank_index, *place) for rank_index, place in pipeline.places.items()]
    schema = {"rank_index": pl.Int64, "stage": pl.Int64, "lane": pl.Int64}
    return (
        matched.communication.filter(pl.col("class") == EXCHANGE)
        .join(pl.DataFrame(places, schema=schema, orient="row"), on="rank_index")
        .sort("rank_index", "start_ns", "end_ns", "call")
    )


def _link_by_schedule(calls: CommunicationCalls, pipeline: Pipeline) -> CommunicationCalls:
    """Adds ``link`` to ``calls``: null where a stage has two neighbours and does not follow the schedule."""
    places = calls.with_columns(
        place=pl.col("call").cum_count().over("rank_index", "step").cast(pl.Int64),
        count=pl.len().over("rank_index", "step").cast(pl.Int64),
    )
    middle = places.join(_schedules(pipeline), on=["stage", "count", "place"], how="left")
    only = pl.when(pl.col("stage") == 0).then(0).when(pl.col("stage") == pipeline.stages - 1).then(pl.col("stage") - 1)
    return middle.with_columns(link=pl.coalesce(only.cast(pl.Int64), "link")).drop("place", "count")


def _schedules(pipeline: Pipeline) -> pl.DataFrame:
    """The link of each call by the 1F1B schedule: stage, count (its calls in a step), place (from 1), link."""
    rows = []
    for stage in range(pipeline.stages if pipeline.micro_batches else 0):
        for batched in (True, False):
            order = list_exchanges(stage, pipeline.stages, pipeline.micro_batches or 0, batched=batched)
            links = [stage - 1 if neighbour == PREVIOUS else stage for neighbour in order]
            rows += [(stage, len(order), place, link) for place, link in enumerate(links, start=1)]
    schema = {"stage": pl.Int64, "count": pl.Int64, "place": pl.Int64, "link": pl.Int64}
    schedules = pl.DataFrame(rows, schema=schema, orient="row")
    return schedules.unique(["stage", "count", "place"], keep="first", maintain_order=True)


def _order_within_link(linked: CommunicationCalls) -> CommunicationCalls:
    """Adds ``role`` (of the stream) and ``order`` (within the sequence) to ``linked``.

    Two stages may exchange through several streams, which correspond in their order of creation: unbatched exchanges of
    a pipeline of two run on two communicators, so that both directions overlap.
    """
    by_creation = pl.col("stream").rank("dense").over("rank_index", "link").cast(pl.Int64) - 1
    return linked.with_columns(role=by_creation).with_columns(
        order=pl.col("call").cum_count().over(*_LINK, "rank_index").cast(pl.Int64)
    )


def _nearest(ends: pl.DataFrame, towards: int) -> pl.DataFrame:
    """Per call the nearest in end time of the neighbour ``towards`` (1 next, -1 previous): call, found."""
    others = ends.select("step", "lane", "common_end_ns", found="call", stage=pl.col("stage") - towards)
    return (
        ends.sort("common_end_ns")
        .join_asof(
            others.sort("common_end_ns"),
            on="common_end_ns",
            by=["step", "lane", "stage"],
            strategy="nearest",
            tolerance=MAXIMUM_END_SPREAD_NS,
            check_sortedness=False,
        )
        .drop_nulls("found")
        .select("call", "found")
    )


def _add_pairs(
    matched: MatchedCalls, pairs: CommunicationCalls, candidates: CommunicationCalls, pipeline: Pipeline
) -> MatchedCalls:
    """Adds ``pairs`` (two rows per link and order) as matched calls, and why the other ``candidates`` are unpaired."""
    highest = matched.calls["instance"].max()
    offset = highest + 1 if isinstance(highest, int) else 0
    rows = (
        pairs.sort(*_LINK, "order", "rank_index")
        .with_columns(
            instance=pl.struct(*_LINK, "order").rle_id().cast(pl.Int64) + offset,
            group=pl.col("lane") * pipeline.stages + pl.col("link"),
            captured=pl.lit(2, pl.Int64),
            size=pl.lit(2, pl.Int64),
            sure=pl.lit(value=False),
            complete=pl.lit(value=True),
        )
        .with_columns(kept=pl.col("kept").all().over("instance"))
    )
    unpaired = candidates.join(rows, on="call", how="anti")
    others = matched.unmatched.filter(pl.col("class") != EXCHANGE)
    return MatchedCalls(
        matched.communication,
        pl.concat([matched.calls, rows.select(matched.calls.columns).match_to_schema(matched.calls.schema)]),
        pl.concat([others, _explain(unpaired, pipeline).match_to_schema(others.schema)]),
    )


def _explain(unpaired: CommunicationCalls, pipeline: Pipeline) -> pl.DataFrame:
    """Why exchanges are unpaired: class, group, role, step, kept, reason."""
    captured = set(pipeline.places.values())
    rows = []
    for stage, lane, step, kept in unpaired.select("stage", "lane", "step", "kept").unique().sort(pl.all()).rows():
        neighbours = [other for other in (stage - 1, stage + 1) if 0 <= other < pipeline.stages]
        missing = any((neighbour, lane) not in captured for neighbour in neighbours)
        group = lane * pipeline.stages + stage
        rows.append((EXCHANGE, group, 0, step, kept, _NO_NEIGHBOUR if missing else _NO_ORDER))
    names = ("class", "group", "role", "step", "kept", "reason")
    types = (pl.String, pl.Int64, pl.Int64, pl.Int64, pl.Boolean, pl.String)
    return pl.DataFrame(rows, schema=dict(zip(names, types, strict=True)), orient="row")
