"""The critical path of the captured step, on the times of the capture."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from three_walls.export.tracks import LONGEST_SHOWN_NAME, Slice
from three_walls.replay.find_critical_path import GAP, HOST, OPERATION, CriticalPath
from three_walls.replay.step_graph import StepGraph


def place_critical_path(
    graph: StepGraph, path: CriticalPath, zero_ns: Mapping[int, int], window: tuple[int, int]
) -> list[Slice]:
    """``path`` of the unchanged step as slices within ``window``, each beginning where the one before it ends.

    ``zero_ns``: per rank index the time of its clock that stands for 0. A replay is a little faster or slower than the
    capture. So a segment ends here when in the capture the operation or call ended that it is a part of, or when the
    operation after the gap began, but never before the segment that precedes it.
    """
    segments = path.segments
    zero = np.array([zero_ns[index] for index in graph.ranks], dtype=np.int64)
    of_operation, of_call = zero[graph.operations["rank"].to_numpy()], zero[graph.calls["rank"].to_numpy()]
    placed = segments.with_columns(
        operation_start=_gather(graph.operations, "start_ns", of_operation, segments["operation"]),
        operation_end=_gather(graph.operations, "end_ns", of_operation, segments["operation"]),
        call_start=_gather(graph.calls, "start_ns", of_call, segments["call"]),
        call_end=_gather(graph.calls, "end_ns", of_call, segments["call"]),
    ).with_columns(
        end_ns=pl.when(pl.col("what") == OPERATION)
        .then("operation_end")
        .when(pl.col("what") == GAP)
        .then("operation_start")
        .when("is_call")
        .then("call_end")
        .otherwise("call_start")
        .cum_max()
        .forward_fill()
        .fill_null(window[0])
        .clip(*window)
    )
    placed = placed.with_columns(start_ns=pl.col("end_ns").shift(1, fill_value=window[0]))
    # Calls are on the tracks of their threads, so a stretch of the host is one segment here.
    key = pl.struct("rank", "what", "module", operation=pl.when(pl.col("what") == OPERATION).then("operation"))
    joined = (
        placed.filter(pl.col("end_ns") > pl.col("start_ns"))
        .with_columns(stretch=key.rle_id())
        .group_by("stretch", maintain_order=True)
        .agg(
            pl.col("start_ns").first(),
            pl.col("end_ns").last(),
            pl.col("what", "kind", "category", "module", "name", "rank").first(),
        )
    )
    columns = ("start_ns", "end_ns", "what", "kind", "category", "module", "name", "rank")
    return [
        Slice(
            start_ns,
            end_ns,
            _name_segment(what, name, category),
            category,
            {
                "waited_for": kind,
                "module": module,
                "on_rank_index": graph.ranks[rank] if rank != path.rank else None,
            },
        )
        for start_ns, end_ns, what, kind, category, module, name, rank in joined.select(columns).iter_rows()
    ]


def _gather(frame: pl.DataFrame, column: str, zero: np.ndarray, places: pl.Series) -> pl.Series:
    times = pl.Series(frame[column].to_numpy() - zero, dtype=pl.Int64)
    return times.gather(places.cast(pl.UInt32))


def _name_segment(what: str, name: str, category: str) -> str:
    if what == GAP:
        return "launch latency or gap"
    return "host" if what == HOST else name[:LONGEST_SHOWN_NAME] or category
