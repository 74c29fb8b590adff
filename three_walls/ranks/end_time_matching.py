"""Collectives whose group neither the config nor a communicator states, found by the moment at which ranks leave them.

A class can run in several groups (gradients of dense layers and of experts, norms over all model-parallel ranks, the
embeddings of the first and last stage), and ranks of different stages make different numbers of its calls, so order
does not match them. But all members of an all-reduce, an all-gather or a reduce-scatter leave it together: calls that
end at one moment on the common clock, one per rank, on exactly the ranks of one group that Megatron makes, are one.

Two groups often reduce at the same time, tens of microseconds apart. So the first choice is the largest group whose
members leave as evenly as those of such a call do; only then the group that leaves most evenly within the spread of any
collective. A reduce-scatter of 3 ms can end as unevenly as two groups at the same time: calls that order has matched
and that fit in time are not divided.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from three_walls.ranks.clock import CommonClock
from three_walls.ranks.matching import Matched
from three_walls.tables.thresholds import default_rank_thresholds

CLASSES = ("data_parallel", "tensor_parallel", "all_reduce", "all_gather", "reduce_scatter")
"""Collectives that no member can leave before all have arrived, and that all leave at once."""


@dataclass(frozen=True, slots=True)
class _Call:
    """``number``: as in Matched.everything; times on the common clock.

    ``whole``: rank indices of the calls that order has matched with it, if they fit in time.
    """

    number: int
    start_ns: int
    end_ns: int
    whole: frozenset[int]


@dataclass(frozen=True, slots=True)
class _Spread:
    """How far apart the ends of one collective may lie: always ``even_ns``, or this share of its shortest call."""

    even_ns: int
    even_fraction: float
    widest_ns: int

    def even(self, shortest_ns: int) -> int:
        return min(max(self.even_ns, round(self.even_fraction * shortest_ns)), self.widest_ns)


_Queues = Mapping[int, deque[_Call]]
"""By rank index: calls of one class and step that are not matched yet, by their ends."""


def match_by_end_time(matched: Matched, groups: Sequence[frozenset[int]], clock: CommonClock) -> Matched:
    """``matched`` with the calls of one moment matched where their class can run in several groups.

    ``groups``: rank indices of every group that may call a collective, if all of its ranks were captured.
    """
    if not clock.is_resolved or not groups:
        return matched
    sure_calls = matched.calls.filter("sure").select("call")
    unsure = matched.everything.join(sure_calls, on="call", how="anti")
    calls = clock.put(unsure.filter(pl.col("class").is_in(list(CLASSES)))).drop_nulls("common_end_ns")
    found = _find(calls, groups, _measure_spread(clock), matched)
    if found.is_empty():
        return matched
    rows = calls.join(found, on="call").with_columns(
        group=pl.lit(0, dtype=pl.Int64),
        role=pl.lit(0, dtype=pl.Int64),
        captured=pl.col("size"),
        sure=pl.lit(value=False),
        complete=pl.lit(value=True),
        kept=pl.col("kept").all().over("instance"),
    )
    # What order has matched with one of these calls is not one collective.
    broken = matched.calls.join(rows, on="call", how="semi").select("instance").unique()
    kept = matched.calls.join(broken, on="instance", how="anti")
    renewed = rows.sort("instance", "rank_index").select(matched.calls.columns)
    return Matched(
        matched.everything,
        pl.concat([kept, renewed.match_to_schema(matched.calls.schema, integer_cast="upcast")]),
        matched.abstained,
    )


def _measure_spread(clock: CommonClock) -> _Spread:
    thresholds = default_rank_thresholds()
    widest_ns = thresholds.maximum_end_spread_ns
    even_ns = max(thresholds.maximum_even_end_spread_ns, 0 if clock.is_exact else clock.error_ns)
    return _Spread(min(even_ns, widest_ns), thresholds.maximum_even_end_spread_fraction, widest_ns)


def _find(calls: pl.DataFrame, groups: Sequence[frozenset[int]], spread: _Spread, matched: Matched) -> pl.DataFrame:
    """Per call that is part of a collective: call, instance (beyond those of ``matched``), size."""
    highest = matched.calls["instance"].max()
    instance = highest if isinstance(highest, int) else 0
    ordered = sorted(set(groups), key=lambda group: (-len(group), sorted(group)))
    rows = []
    columns = ("rank_index", "call", "common_start_ns", "common_end_ns", "whole")
    alone = _without_twins(calls, spread)
    by_end = alone.join(_fitting(calls, matched, spread), on="call", how="left").sort(
        "class", "step", "common_end_ns", "common_start_ns", "call"
    )
    for _, of_step in by_end.group_by(["class", "step"], maintain_order=True):
        queues: dict[int, deque[_Call]] = {}
        for rank_index, number, start_ns, end_ns, whole in of_step.select(columns).rows():
            call = _Call(number, round(start_ns), round(end_ns), frozenset(whole or ()))
            queues.setdefault(rank_index, deque()).append(call)
        for members in _collectives(queues, ordered, spread):
            instance += 1
            rows += [(number, instance, len(members)) for number in members]
    return pl.DataFrame(
        rows, schema={"call": calls.schema["call"], "instance": pl.Int64, "size": pl.Int64}, orient="row"
    )


def _without_twins(calls: pl.DataFrame, spread: _Spread) -> pl.DataFrame:
    """``calls`` without those that one rank runs at once and that end together: nothing distinguishes them."""
    key = ["rank_index", "class", "step"]
    ordered = calls.sort(*key, "common_end_ns", "common_start_ns", "call")
    start, end = pl.col("common_start_ns"), pl.col("common_end_ns")
    twin_of_next = (start.shift(-1).over(key) < end) & (end.shift(-1).over(key) - end <= spread.even_ns)
    marked = ordered.with_columns(twin=twin_of_next.fill_null(value=False))
    return marked.filter(~(pl.col("twin") | pl.col("twin").shift(1, fill_value=False).over(key))).drop("twin")


def _fitting(calls: pl.DataFrame, matched: Matched, spread: _Spread) -> pl.DataFrame:
    """Calls that order has matched, of whole groups and fitting in time: call, whole (rank indices, sorted)."""
    ends = pl.col("common_end_ns")
    fits = (ends.max() - ends.min() <= spread.widest_ns) & (pl.col("common_start_ns").max() <= ends.min())
    return (
        matched.calls.filter("complete")
        .select("call", "instance")
        .join(calls, on="call")
        .group_by("instance")
        .agg("call", fits=fits, whole=pl.col("rank_index").sort())
        .filter("fits")
        .explode("call")
        .select("call", "whole")
    )


def _collectives(
    queues: dict[int, deque[_Call]], groups: Sequence[frozenset[int]], spread: _Spread
) -> Iterator[list[int]]:
    """Call numbers of each collective. Takes from ``queues`` until all are empty."""
    while queues:
        # Whatever ended before the earliest of the heads has been matched already, or never will be.
        first = min(queues, key=lambda rank_index: (queues[rank_index][0].end_ns, rank_index))
        members = _choose_group(queues, [group for group in groups if first in group], spread)
        whole = queues[first][0].whole
        if (
            members
            and members < whole
            and all(rank_index in queues and queues[rank_index][0].whole == whole for rank_index in whole)
        ):
            members = whole
        heads = [queues[rank_index].popleft().number for rank_index in sorted(members or {first})]
        for rank_index in [rank_index for rank_index, queue in queues.items() if not queue]:
            del queues[rank_index]
        if members:
            yield heads


def _choose_group(queues: _Queues, groups: Sequence[frozenset[int]], spread: _Spread) -> frozenset[int] | None:
    """The first of ``groups`` (the largest first) whose next calls are one collective; None if there is none."""
    fitting = []
    for members in groups:
        if not members <= queues.keys():
            continue
        heads = [queues[rank_index][0] for rank_index in members]
        first_end_ns = min(call.end_ns for call in heads)
        apart_ns = max(call.end_ns for call in heads) - first_end_ns
        even_ns = spread.even(min(call.end_ns - call.start_ns for call in heads))
        # Nobody leaves before the last member has arrived.
        overlap = max(call.start_ns for call in heads) <= first_end_ns + spread.even_ns
        if overlap and apart_ns <= spread.widest_ns:
            if apart_ns <= even_ns:
                return members
            fitting.append((apart_ns, members))
    return min(fitting, key=lambda candidate: candidate[0])[1] if fitting else None
