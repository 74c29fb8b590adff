"""Calls matched by when they end: collectives whose group neither the config nor a communicator states.

A class can run in several groups (gradients of dense layers and of experts, norms over all model-parallel ranks, the
embeddings of the first and the last stage). Ranks of different stages then make different numbers of its calls, so
order does not match them. But all members of an all-reduce, an all-gather or a reduce-scatter leave it together. So
calls that end together on the common clock, one per rank and on exactly the ranks of a group that Megatron makes, are
the same collective.

Two groups often reduce at the same time and end tens of microseconds apart. So the first choice is the largest group
whose calls end as evenly as those of a single collective; the second is the group whose calls end most evenly, within
the largest spread of any collective. A reduce-scatter of 3 ms can end as unevenly as two groups at the same time, so
calls that order has matched and whose times fit are not divided.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import polars as pl

from three_walls.step.ranks.align_clocks import SIMULTANEOUS, CommonClock
from three_walls.step.ranks.match_calls import MatchedCalls
from three_walls.step.step_tables import CommunicationCalls

MAXIMUM_END_SPREAD_NS = 100_000
"""Calls that end further apart are not matched as one collective. Members of one NCCL collective end within 0.06 ms of
each other (measured on NVLink: all-reduce and all-gather 0.002 ms, reduce-scatter of 17 ms 0.057 ms)."""
MAXIMUM_EVEN_END_SPREAD_NS = 10_000
"""The same for all-reduce and all-gather, whose members end closer together: five times what they show over NVLink.
Concurrent calls of two groups end tens of microseconds apart; with the wider spread they would be matched as one call
of both groups."""
MAXIMUM_EVEN_END_SPREAD_FRACTION = 0.005
"""Of the shortest call: what a long transfer may add to :data:`MAXIMUM_EVEN_END_SPREAD_NS`, because it ends less evenly
(0.057 of 17 ms)."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A rank's call, on the common clock."""

    number: int
    """``call`` in MatchedCalls.communication."""
    start_ns: int
    end_ns: int
    order_members: frozenset[int]
    """Rank indices of the calls that order has matched, this one included, if their times fit; else empty."""


@dataclass(frozen=True, slots=True)
class _Spread:
    """How far apart the ends of a collective's calls may lie."""

    even_ns: int
    """So little apart that they are a single collective, however short."""
    even_fraction: float
    """The same as a share of the shortest call."""
    widest_ns: int
    """The largest spread of any collective."""

    def even(self, shortest_ns: int) -> int:
        """The largest spread at which calls, the shortest of ``shortest_ns``, are certainly a single collective."""
        return min(max(self.even_ns, round(self.even_fraction * shortest_ns)), self.widest_ns)


_Queues = Mapping[int, deque[_Call]]
"""By rank index: the calls of a class and step that are not matched yet, ordered by their ends."""


def match_by_end_time(matched: MatchedCalls, groups: Sequence[frozenset[int]], clock: CommonClock) -> MatchedCalls:
    """Adds to ``matched`` the calls that end together, where their class can run in several groups.

    ``groups``: rank indices of every group that may call a collective and whose ranks were all captured.
    """
    if not clock.is_resolved or not groups:
        return matched
    sure_calls = matched.calls.filter("sure").select("call")
    other_calls = matched.communication.join(sure_calls, on="call", how="anti")
    calls = clock.add_common_times(other_calls.filter(pl.col("class").is_in(list(SIMULTANEOUS)))).drop_nulls(
        "common_end_ns"
    )
    collectives = _find_collectives(calls, groups, _allowed_spread(clock), matched)
    if collectives.is_empty():
        return matched
    rows = calls.join(collectives, on="call").with_columns(
        group=pl.lit(0, dtype=pl.Int64),
        role=pl.lit(0, dtype=pl.Int64),
        captured=pl.col("size"),
        sure=pl.lit(value=False),
        complete=pl.lit(value=True),
        kept=pl.col("kept").all().over("instance"),
    )
    # Where order had matched any of these calls with others, it was wrong: that match is dropped.
    wrong_instances = matched.calls.join(rows, on="call", how="semi").select("instance").unique()
    remaining = matched.calls.join(wrong_instances, on="instance", how="anti")
    new_rows = rows.sort("instance", "rank_index").select(matched.calls.columns)
    return MatchedCalls(
        matched.communication,
        pl.concat([remaining, new_rows.match_to_schema(matched.calls.schema, integer_cast="upcast")]),
        matched.unmatched,
    )


def _allowed_spread(clock: CommonClock) -> _Spread:
    widest_ns = MAXIMUM_END_SPREAD_NS
    even_ns = max(MAXIMUM_EVEN_END_SPREAD_NS, 0 if clock.is_exact else clock.error_ns)
    return _Spread(min(even_ns, widest_ns), MAXIMUM_EVEN_END_SPREAD_FRACTION, widest_ns)


def _find_collectives(
    calls: CommunicationCalls, groups: Sequence[frozenset[int]], spread: _Spread, matched: MatchedCalls
) -> pl.DataFrame:
    """The calls that are part of a collective: call, instance (numbered on from ``matched``), size."""
    highest = matched.calls["instance"].max()
    instance = highest if isinstance(highest, int) else 0
    largest_first = sorted(set(groups), key=lambda group: (-len(group), sorted(group)))
    rows = []
    columns = ("rank_index", "call", "common_start_ns", "common_end_ns", "instance")
    distinct = _drop_indistinguishable(calls, spread)
    by_order = _matched_by_order(calls, matched, spread)
    members_of = {
        order: frozenset(members_by_order)
        for order, members_by_order in by_order.group_by("instance").agg("rank_index").rows()
    }
    by_end = distinct.join(by_order.select("call", "instance"), on="call", how="left").sort(
        "class", "step", "common_end_ns", "common_start_ns", "call"
    )
    for _, step_calls in by_end.group_by(["class", "step"], maintain_order=True):
        queues: dict[int, deque[_Call]] = {}
        for rank_index, number, start_ns, end_ns, order in step_calls.select(columns).rows():
            call = _Call(number, round(start_ns), round(end_ns), members_of.get(order, frozenset()))
            queues.setdefault(rank_index, deque()).append(call)
        for members in _take_collectives(queues, largest_first, spread):
            instance += 1
            rows += [(number, instance, len(members)) for number in members]
    return pl.DataFrame(
        rows, schema={"call": calls.schema["call"], "instance": pl.Int64, "size": pl.Int64}, orient="row"
    )


def _drop_indistinguishable(calls: CommunicationCalls, spread: _Spread) -> CommunicationCalls:
    """``calls`` without those that a rank runs at the same time and that end together: nothing distinguishes them."""
    key = ["rank_index", "class", "step"]
    ordered = calls.sort(*key, "common_end_ns", "common_start_ns", "call")
    start, end = pl.col("common_start_ns"), pl.col("common_end_ns")
    is_like_next = (start.shift(-1).over(key) < end) & (end.shift(-1).over(key) - end <= spread.even_ns)
    with_next = ordered.with_columns(like_next=is_like_next.fill_null(value=False))
    is_like_previous = pl.col("like_next").shift(1, fill_value=False).over(key)
    return with_next.filter(~(pl.col("like_next") | is_like_previous)).drop("like_next")


def _matched_by_order(calls: CommunicationCalls, matched: MatchedCalls, spread: _Spread) -> pl.DataFrame:
    """Calls that order has matched, in complete groups and with times that fit: call, instance, rank_index."""
    ends = pl.col("common_end_ns")
    fits = (ends.max() - ends.min() <= spread.widest_ns) & (pl.col("common_start_ns").max() <= ends.min())
    complete = matched.calls.filter("complete").select("call", "instance").join(calls, on="call")
    return complete.filter(fits.over("instance")).select("call", "instance", "rank_index")


def _take_collectives(
    queues: dict[int, deque[_Call]], groups: Sequence[frozenset[int]], spread: _Spread
) -> Iterator[list[int]]:
    """Takes calls from ``queues`` until all are empty, and gives the call numbers of each collective among them."""
    groups_of: dict[int, list[frozenset[int]]] = {rank_index: [] for rank_index in queues}
    for group in groups:
        for rank_index in group & queues.keys():
            groups_of[rank_index].append(group)
    earliest = [(calls[0].end_ns, rank_index) for rank_index, calls in queues.items()]
    heapify(earliest)
    while queues:
        # The earliest next call: what ended before it has been matched already, or cannot be.
        end_ns, first = heappop(earliest)
        if first not in queues or queues[first][0].end_ns != end_ns:
            continue  # taken with an earlier call
        members = _choose_group(queues, groups_of[first], spread)
        by_order = queues[first][0].order_members
        # A group must not divide the calls that order has matched.
        if (
            members
            and members < by_order
            and all(rank_index in queues and queues[rank_index][0].order_members == by_order for rank_index in by_order)
        ):
            members = by_order
        numbers = []
        for rank_index in sorted(members or {first}):
            numbers.append(queues[rank_index].popleft().number)
            if queues[rank_index]:
                heappush(earliest, (queues[rank_index][0].end_ns, rank_index))
            else:
                del queues[rank_index]
        if members:
            yield numbers


def _choose_group(queues: _Queues, groups: Sequence[frozenset[int]], spread: _Spread) -> frozenset[int] | None:
    """The first of ``groups`` (the largest first) whose next calls are a single collective; None if there is none."""
    fitting = []
    for members in groups:
        if not members <= queues.keys():
            continue
        calls = [queues[rank_index][0] for rank_index in members]
        first_end_ns = min(call.end_ns for call in calls)
        apart_ns = max(call.end_ns for call in calls) - first_end_ns
        even_ns = spread.even(min(call.end_ns - call.start_ns for call in calls))
        # No member leaves before the last has arrived.
        overlap = max(call.start_ns for call in calls) <= first_end_ns + spread.even_ns
        if overlap and apart_ns <= spread.widest_ns:
            if apart_ns <= even_ns:
                return members
            fitting.append((apart_ns, members))
    return min(fitting, key=lambda candidate: candidate[0])[1] if fitting else None
