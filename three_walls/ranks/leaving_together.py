"""Collectives whose group neither the config nor a communicator tells, found by the moment at which they are left.

A class can run in several groups (gradients of dense layers and of experts, norms over all model-parallel ranks, the
embeddings of the first and last stage), and ranks of different stages make different numbers of its calls, so order
does not match them. But all members of an all-reduce, an all-gather or a reduce-scatter leave it together: calls that
end at one moment on the common clock, one per rank, on exactly the ranks of one group that Megatron makes, are one.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from three_walls.knowledge.rank_thresholds import RankThresholds
from three_walls.ranks.alignment import CommonClock
from three_walls.ranks.matching import Matched

CLASSES = ("data_parallel", "tensor_parallel", "all_reduce", "all_gather", "reduce_scatter")
"""Collectives that no member can leave before all have come, and that all leave at once."""


def match_by_leaving(
    matched: Matched, groups: Sequence[frozenset[int]], clock: CommonClock, thresholds: RankThresholds
) -> Matched:
    """``matched`` with the calls of one moment put together where their class can run in several groups.

    ``groups``: tracks of every group of ranks that may call a collective, if all of its ranks were captured.
    """
    if not clock.is_resolved or not groups:
        return matched
    unsure = matched.everything.join(_sure_calls(matched), on="call", how="anti")
    calls = clock.put(unsure.filter(pl.col("class").is_in(list(CLASSES))))
    together = _one_per_rank(_moments(calls, thresholds))
    found = together.join(_as_frame(groups), on="members").sort("moment", "track")
    if found.is_empty():
        return matched
    highest = matched.calls["instance"].max()
    offset = highest + 1 if isinstance(highest, int) else 0
    rows = found.with_columns(
        instance=pl.col("moment").rle_id().cast(pl.Int64) + offset,
        role=pl.lit(0, dtype=pl.Int64),
        captured=pl.col("size"),
        sure=pl.lit(value=False),
        complete=pl.lit(value=True),
        kept=pl.col("kept").all().over("moment"),
    )
    # What order had put together with one of these calls is not one collective.
    broken = matched.calls.join(rows, on="call", how="semi").select("instance").unique()
    kept = matched.calls.join(broken, on="instance", how="anti")
    columns = matched.calls.columns
    return Matched(
        matched.everything,
        pl.concat([kept, rows.select(columns).match_to_schema(matched.calls.schema, integer_cast="upcast")]),
        matched.abstained,
    )


def _sure_calls(matched: Matched) -> pl.DataFrame:
    return matched.calls.filter("sure").select("call")


def _moments(calls: pl.DataFrame, thresholds: RankThresholds) -> pl.DataFrame:
    """``calls`` with ``moment``: calls of one class and step that end within the spread of one collective's ends.

    Calls shorter than that are left out: their ends say nothing, and they hold no waiting worth a name.
    """
    spread_ns = thresholds.maximum_end_spread_ns
    key = ["class", "step"]
    long_enough = calls.filter((pl.col("end_ns") - pl.col("start_ns")).max().over([*key, "stream"]) > spread_ns)
    ordered = long_enough.sort(*key, "common_end_ns", "track")
    begins = (pl.col("common_end_ns") - pl.col("common_end_ns").shift(1).over(key) > spread_ns).fill_null(value=True)
    return ordered.with_columns(moment=begins.cum_sum().over(key)).with_columns(
        moment=pl.struct(*key, "moment").rle_id().cast(pl.Int64)
    )


def _one_per_rank(calls: pl.DataFrame) -> pl.DataFrame:
    """Moments with one call of each of several ranks, and ``members``: those ranks' tracks, sorted, as text."""
    alone = (pl.len() == pl.col("track").n_unique()) & (pl.len() > 1)
    members = (
        calls.group_by("moment")
        .agg(fits=alone, members=pl.col("track").sort().cast(pl.String).str.join(","))
        .filter("fits")
        .drop("fits")
    )
    return calls.join(members, on="moment")


def _as_frame(groups: Sequence[frozenset[int]]) -> pl.DataFrame:
    rows = [(",".join(map(str, sorted(group))), number, len(group)) for number, group in enumerate(groups)]
    schema = {"members": pl.String, "group": pl.Int64, "size": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row").unique("members", keep="first", maintain_order=True)
