"""A thousand ranks: what compares each with the others takes time linear in their number."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from statistics import median
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.linear_work import assert_linear
from tests.lockstep import Behaviour, simulate
from three_walls import analyze
from three_walls.step.compute_gaps import ComputeGaps, summarize_gap_causes
from three_walls.step.find_steps import STEPS
from three_walls.step.ranks.end_time_matching import _Call, _Spread, _take_collectives
from three_walls.step.slow_ranks import PeerMedians
from three_walls.step.stragglers import _list_late_ranks
from three_walls.trace.api_calls import ApiCalls

MS = 1_000_000
STEP = 100 * MS


@given(st.lists(st.integers(0, 5), min_size=1, max_size=9))
def test_the_median_of_the_others_is_that_of_a_list_without_the_value(values: list[int]) -> None:
    medians = PeerMedians(values)
    for place, value in enumerate(values):
        others = values[:place] + values[place + 1 :]
        assert medians.without(value) == (median(others) if others else None)
    assert medians.without(None) == median(values)


def late_ranks(count: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Arrivals at one collective of ``count`` ranks, of which the last comes 20 ms late, and their steps."""
    ranks = pl.int_range(count, eager=True)
    arrivals = pl.DataFrame({"rank_index": ranks}).with_columns(
        step=pl.lit(0, dtype=pl.Int64),
        kept=pl.lit(value=True),
        last=pl.lit(count - 1, dtype=pl.Int64),
        second_ns=pl.lit(50 * MS, dtype=pl.Int64),
        latest_ns=pl.lit(70 * MS, dtype=pl.Int64),
    )
    steps = pl.DataFrame({"rank_index": ranks}).with_columns(
        step=pl.lit(0, dtype=pl.Int64),
        start_ns=pl.lit(0, dtype=pl.Int64),
        end_ns=pl.lit(STEP, dtype=pl.Int64),
        kept=pl.lit(value=True),
        reason=pl.lit(""),
    )
    return arrivals, steps.select(STEPS.names())


def test_a_late_rank_is_found_among_a_thousand() -> None:
    found = _list_late_ranks(*late_ranks(1000), dict.fromkeys(range(1000), 1.0))
    assert [(late.rank_index, late.late_ns, late.peers_ns) for late in found] == [(999, 20 * MS, 0)]


def exchanges(count: int) -> tuple[dict[int, deque[_Call]], list[frozenset[int]]]:
    """Ten collectives of every eight ranks, one after the other, and their groups."""
    queues = {
        rank: deque(_Call(10 * rank + n, n * MS, n * MS + MS // 2 + rank // 8, frozenset()) for n in range(10))
        for rank in range(count)
    }
    return queues, [frozenset(range(first, first + 8)) for first in range(0, count, 8)]


def match_all(queues: dict[int, deque[_Call]], groups: list[frozenset[int]]) -> list[list[int]]:
    copies = {rank: calls.copy() for rank, calls in queues.items()}
    return list(_take_collectives(copies, groups, _Spread(100, 0.01, 1000)))


def test_collectives_of_a_thousand_ranks_are_matched_by_their_ends() -> None:
    found = match_all(*exchanges(1000))
    assert len(found) == 1250
    assert {len(members) for members in found} == {8}
    assert all(len({number % 10 for number in members}) == 1 for members in found)


def causes_of(count: int) -> tuple[ComputeGaps, dict[int, int]]:
    causes = ("blocking", "launch_latency", "unexplained")
    rows = [(rank, step, cause, "", 5) for rank in range(count) for step in range(4) for cause in causes]
    schema = {"rank_index": pl.Int64, "step": pl.Int64, "cause": pl.String, "detail": pl.String, "ns": pl.Int64}
    return ComputeGaps(pl.DataFrame(rows, schema=schema, orient="row"), pl.DataFrame()), dict.fromkeys(range(count), 2)


def test_every_rank_of_a_thousand_has_the_causes_of_its_own_step() -> None:
    gaps, step_of = causes_of(1000)
    found = summarize_gap_causes(gaps, step_of | {7: 9})
    assert len(found) == 999
    assert [(cause.cause, cause.ns) for cause in found[999]] == [
        ("blocking", 5),
        ("launch_latency", 5),
        ("unexplained", 5),
    ]


@pytest.mark.slow
@pytest.mark.attack
def test_the_work_is_linear_in_the_number_of_ranks() -> None:
    assert_linear(late_ranks, lambda frames: _list_late_ranks(*frames, {}), 1000, 64_000)
    assert_linear(exchanges, lambda calls: match_all(*calls), 1000, 64_000)
    assert_linear(causes_of, lambda rows: summarize_gap_causes(*rows), 1000, 64_000)


@pytest.mark.slow
def test_the_calls_of_a_rank_are_read_as_often_however_many_others_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked: list[int] = []
    unpack = ApiCalls._unpack_capture

    def count(calls: ApiCalls, capture_id: int, *arguments: Any) -> pl.DataFrame:
        unpacked.append(capture_id)
        return unpack(calls, capture_id, *arguments)

    monkeypatch.setattr(ApiCalls, "_unpack_capture", count)
    of_a_rank = []
    for ranks in (4, 8):
        unpacked.clear()
        analyze(simulate([Behaviour()] * ranks).write(tmp_path / str(ranks)))
        of_a_rank.append(len(unpacked) / ranks)
    assert 0 < of_a_rank[1] <= of_a_rank[0]
