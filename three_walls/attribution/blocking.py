"""What ran on the device while the next compute operation had to wait for it.

An operation waits for everything before it on its stream, and for what its stream was told to wait for by an
event; and that for what its own stream ran before it, and so on. Whatever of it runs inside a gap blocks the
operation that ends the gap. Compute cannot be part of it: a gap is where none runs.
"""

from __future__ import annotations

import polars as pl

from three_walls.timeline.intervals import intersect

MOST_ROUNDS = 4
"""How many events in a row are followed; dispatch, expert and combine streams need two."""

_NEED = ("rank_index", "stream", "gap", "start_ns", "end_ns")


def find_blocking(
    gaps: pl.DataFrame, operations: pl.DataFrame, edges: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """What ran in each of ``gaps`` (blocking) and what may have held it up (stalled).

    ``gaps``: rank_index, gap, start_ns, end_ns, and op and stream of the operation that ends it. ``operations``: all
    but compute, with ``op``. ``edges``: see stream_edges.
    Both results: gap, start_ns, end_ns, detail.
    """
    begin = gaps.select("gap", gap_start_ns="start_ns", gap_end_ns="end_ns")
    ended_by = edges.join(gaps.select("op", "rank_index", "gap"), on="op").join(begin, on="gap")
    found = [_running(gaps.select(*_NEED), operations)]
    held = [ended_by]
    for _ in range(MOST_ROUNDS):
        waiting = edges.join(found[-1].select("op", "rank_index", "gap").unique(), on="op").join(begin, on="gap")
        held.append(waiting)
        needs = _needs(pl.concat([ended_by, waiting]) if len(found) == 1 else waiting)
        if needs.is_empty():
            break
        found.append(_running(needs, operations))
    running = pl.concat(found).select("gap", "start_ns", "end_ns", detail=_describe())
    return running, _stalled(pl.concat(held), operations)


def _running(needs: pl.DataFrame, operations: pl.DataFrame) -> pl.DataFrame:
    """Operations of each needed stream within the needed time: op, rank_index, stream, category, start, end, gap."""
    mine = operations.select("op", "rank_index", "stream", "category", "start_ns", "end_ns")
    return intersect(mine, needs, ["rank_index", "stream"], carry=["gap"])


def _needs(edges: pl.DataFrame) -> pl.DataFrame:
    """Per gap and stream, the time until the last producer there ended, one row each (columns of _NEED)."""
    late = edges.filter(pl.col("resolved") & (pl.col("producer_end_ns") > pl.col("gap_start_ns")))
    return (
        late.group_by("rank_index", "gap", "producer_stream")
        .agg(
            start_ns=pl.col("gap_start_ns").first(),
            end_ns=pl.min_horizontal(pl.col("producer_end_ns").max(), pl.col("gap_end_ns").first()),
        )
        .select("rank_index", "gap", "start_ns", "end_ns", stream="producer_stream")
        .select(*_NEED)
    )


def _stalled(edges: pl.DataFrame, operations: pl.DataFrame) -> pl.DataFrame:
    """From the start of the gap until the latest candidate of an event that could not be resolved ended."""
    open_ends = edges.filter(~pl.col("resolved")).join(
        operations.select(producer="op", category="category", stream="stream"), on="producer", how="left"
    )
    until = pl.min_horizontal("gap_end_ns", pl.col("producer_end_ns").fill_null(2**62))
    return open_ends.select(
        "gap",
        start_ns="gap_start_ns",
        end_ns=until,
        detail=pl.when(pl.col("category").is_null())
        .then(pl.lit("an event that is not listed"))
        .otherwise(pl.format("perhaps {}", _describe())),
    ).filter(pl.col("end_ns") > pl.col("start_ns"))


def _describe() -> pl.Expr:
    return pl.format("{} on stream {}", pl.col("category").cast(pl.String), pl.col("stream"))
