"""Where host threads wait for the device in a step: the places in the code that synchronize, and what each costs.

A synchronization is a call that returns only once the device has caught up: one that synchronizes, a copy to pageable
host memory, or an allocation that waited. ``aten::item`` makes two of these, the copy of the value and
cudaStreamSynchronize; they count once.

A thread that waits launches nothing. While it waits the device still works off what was launched before; afterwards the
queue is empty, and the device idles until the next launch arrives (it drains). Then the host has lost its lead, so that
every later delay of it shows. What all of that costs is the step less its replay in which the calls of a site return at
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from three_walls.facts.fact_rows import Synchronizations, SynchronizationSite
from three_walls.replay import replay_thresholds
from three_walls.replay.step_graph import NONE, Kind, StepGraph
from three_walls.replay.transform_graph import find_next_launches
from three_walls.replay.transformation import Action, Predictor, Selection, Transformation
from three_walls.step.host_activity import API_VERSION
from three_walls.step.intervals import DURATION, gaps_within
from three_walls.step.operators import list_ranges_around
from three_walls.step.step_tables import NamedRanges, Operations
from three_walls.trace.read_tables import THREADS_PER_PROCESS
from three_walls.trace.schemas import BoolArray, Int64Array

_OPERATOR = "aten::"
_SITE = ("thread_place", "operator", "range", "module", "direction", "function")
"""What distinguishes sites. All ranks run the same program, so a site is one on all of them."""
_DEVICE_WORK = ("kernel", "graph")


def label_synchronizations(graph: StepGraph, ranges: Sequence[NamedRanges]) -> StepGraph:
    """``graph`` whose calls have a ``site``: the number of the place that synchronizes, else null; and what names it.

    ``graph``: with labels. ``ranges``: of each rank (in order of ``ranks``), on its own clock as the calls are.
    """
    calls, first = graph.calls, _find_first_calls(graph)
    places = np.flatnonzero(first != NONE)
    thread_place = calls.select(pl.col("thread").rank("dense").over("rank").cast(pl.Int64) - 1).to_series()
    function = pl.col("name").cast(pl.String).str.replace(API_VERSION, "")
    last = pl.col("function").last().over("first")  # of a copy and the wait for it, the wait
    described = (
        calls.with_columns(first=pl.Series(first), thread_place=thread_place, function=function)[places]
        .with_columns(function=last, **_name_code(graph, ranges, places), **_label_next_launches(graph, first[places]))
        .with_columns(pl.when(pl.col("range") == "").then(pl.col("module", "direction")))
        .with_columns(site=pl.struct(_SITE).rank("dense").cast(pl.Int64))
    )
    columns = ("first", "site", "operator", "range", "module", "direction", "function")
    empty = pl.Series("call", np.arange(calls.height, dtype=np.int64)).to_frame()
    labels = empty.join(
        described.select(*columns, call=pl.Series(places)), on="call", how="left", maintain_order="left"
    )
    return replace(graph, calls=calls.hstack(labels.drop("call")))


def _find_first_calls(graph: StepGraph) -> Int64Array:
    """Per call the first one of the synchronization that it is part of, or NONE."""
    calls, operations = graph.calls, graph.operations
    reads = np.zeros(calls.height, dtype=bool)
    is_read = (operations["category"] == "copy_d2h_pageable").fill_null(value=False).to_numpy()
    reads[graph.call_of[is_read & (graph.call_of != NONE)]] = True
    synchronizes = calls["kind"].eq_missing("synchronize").to_numpy()
    waits = synchronizes | reads | (calls["kind"].eq_missing("allocate").to_numpy() & _find_waiting(graph))
    of_thread = calls.select(pl.struct("rank", "thread").rle_id()).to_series().to_numpy()
    continues = np.append(False, reads[:-1] & synchronizes[1:] & (of_thread[:-1] == of_thread[1:]))[: len(reads)]
    place = np.arange(calls.height, dtype=np.int64)
    return np.where(waits, np.where(continues, place - 1, place), NONE)


def _find_waiting(graph: StepGraph) -> BoolArray:
    """Per call whether it waits for an operation."""
    at_end = np.zeros(graph.nodes_count, dtype=bool)
    at_end[graph.edges.target[graph.edges.kind == Kind.AWAITED]] = True
    end = graph.points.sync_node[1::2]
    return np.asarray((end != NONE) & at_end[np.maximum(end, 0)])


def _name_code(graph: StepGraph, ranges: Sequence[NamedRanges], places: Int64Array) -> dict[str, pl.Series]:
    """Per call of ``places`` the operator around it and the range around that; empty where none was recorded.

    Of operators inside one another the outermost counts: ``aten::item``, and not ``aten::_local_scalar_dense``.
    """
    operators, around = [""] * len(places), [""] * len(places)
    calls = graph.calls[places].with_row_index("row")
    for (rank, thread), of_thread in calls.group_by("rank", "thread"):
        assert isinstance(rank, int)
        own = ranges[rank].filter(pl.col("thread") == thread)
        found = list_ranges_around(own, of_thread["start_ns"].to_numpy())
        for row, names in zip(of_thread["row"].to_list(), found, strict=True):
            inner = next((place for place, name in enumerate(names) if not name.startswith(_OPERATOR)), len(names))
            operators[row], around[row] = names[inner - 1] if inner else "", "".join(names[inner : inner + 1])
    return {"operator": pl.Series(operators, dtype=pl.String), "range": pl.Series(around, dtype=pl.String)}


def _label_next_launches(graph: StepGraph, calls: Int64Array) -> dict[str, pl.Series]:
    """The part of the model to which belongs what the thread launches after each of ``calls``."""
    following = np.append(find_next_launches(graph), NONE)[np.minimum(calls + 1, graph.calls.height)]
    of_thread = np.append(graph.calls.select(pl.struct("rank", "thread").rle_id()).to_series().to_numpy(), NONE)
    is_own = (following != NONE) & (of_thread[following] == of_thread[calls])
    operation_of = np.full(graph.calls.height + 1, NONE, dtype=np.int64)
    launched = np.flatnonzero(graph.call_of != NONE)
    operation_of[graph.call_of[launched]] = launched
    rows = pl.Series(operation_of[np.where(is_own, following, -1)]).replace(NONE, None)
    unknown = pl.Series([None] * len(calls), dtype=pl.String)
    return {
        name: graph.operations[name].gather(rows) if name in graph.operations.columns else unknown
        for name in ("module", "direction")
    }


def measure_synchronizations(
    graph: StepGraph, place: int, operations: Operations, predictor: Predictor
) -> Synchronizations:
    """The sites of the rank at ``place``: those whose replay shortens the step most come first.

    ``graph``: with labels of label_synchronizations. ``operations``: all of that rank.
    """
    calls = graph.calls.filter((pl.col("rank") == place) & pl.col("site").is_not_null())
    each = calls.group_by("site", "first", maintain_order=True).agg(
        pl.col("thread", "function", "operator", "range", "module", "direction", "start_ns").first(),
        pl.col("end_ns").last(),
        blocked_ns=DURATION.sum(),
    )
    of_site = (
        each.with_columns(drained_ns=_measure_drains(each, operations))
        .group_by("site", maintain_order=True)
        .agg(
            pl.col("thread", "function", "operator", "range", "module", "direction").first(),
            pl.len().alias("calls"),
            pl.col("blocked_ns", "drained_ns").sum(),
        )
        .sort(pl.col("blocked_ns") + pl.col("drained_ns"), "site", descending=[True, False])
    )
    shown = of_site[: replay_thresholds.MOST_SITES]
    rows = [
        SynchronizationSite(
            function=row["function"],
            operator=row["operator"],
            range=row["range"],
            module=row["module"],
            direction=row["direction"],
            thread=row["thread"] % THREADS_PER_PROCESS,
            calls=row["calls"],
            blocked_ns=row["blocked_ns"],
            drained_ns=row["drained_ns"],
            gain_ns=_gain_without(predictor, (row["site"],)),
        )
        for row in shown.iter_rows(named=True)
    ]
    calls_count, blocked_ns, drained_ns = of_site.select(pl.col("calls", "blocked_ns", "drained_ns").sum()).row(0)
    every = graph.calls["site"].drop_nulls().unique().sort().to_list()
    return Synchronizations(
        sites=tuple(sorted(rows, key=lambda row: (-(row.gain_ns or 0), -row.blocked_ns - row.drained_ns))),
        other_sites=of_site.height - shown.height,
        calls=calls_count,
        blocked_ns=blocked_ns,
        drained_ns=drained_ns,
        step_ns=None if predictor.missing_reason else predictor.step_ns.likely_ns,
        gain_ns=_gain_without(predictor, tuple(every)),
    )


def _measure_drains(waits: pl.DataFrame, operations: Operations) -> pl.Series:
    """Per row of ``waits`` how long nothing runs on the device from its return until the thread's next kernel starts.

    It ends with the next synchronization of the thread, too.
    """
    launched = (
        operations.filter(pl.col("kind").cast(pl.String).is_in(_DEVICE_WORK))
        .select(thread="launch_thread", launch_ns="launch_start_ns", until_ns="start_ns")
        .drop_nulls()
        .sort("launch_ns", "until_ns")
    )
    next_wait = pl.col("start_ns").shift(-1).over("thread", order_by="start_ns")
    windows = (
        waits.with_row_index("wait")
        .with_columns(next_wait=next_wait)
        .sort("end_ns")
        .join_asof(
            launched, left_on="end_ns", right_on="launch_ns", by="thread", strategy="forward", check_sortedness=False
        )
        .select("wait", "thread", start_ns="end_ns", end_ns=pl.min_horizontal("until_ns", "next_wait"))
        .drop_nulls("end_ns")
    )
    if windows.is_empty():
        return pl.zeros(waits.height, dtype=pl.Int64, eager=True)
    begin, end = windows["start_ns"].min(), windows["end_ns"].max()
    busy = operations.select("start_ns", "end_ns").filter((pl.col("end_ns") > begin) & (pl.col("start_ns") < end))
    idle = pl.concat(
        gaps_within(busy.with_columns(thread=pl.lit(thread)), of_thread, ["thread"])
        for (thread,), of_thread in windows.group_by("thread")
    )
    sums = idle.group_by("wait").agg(ns=DURATION.sum())
    every = pl.Series("wait", range(waits.height), dtype=windows["wait"].dtype).to_frame()
    return every.join(sums, on="wait", how="left", maintain_order="left")["ns"].fill_null(0)


def _gain_without(predictor: Predictor, sites: tuple[int, ...]) -> int | None:
    """How much shorter the step is, by replay, where the calls of ``sites`` return at once."""
    if predictor.missing_reason:
        return None
    if not sites:
        return 0
    unwait = Transformation(Action.UNWAIT, Selection(sites=sites), reason="these calls return at once")
    return predictor.step_ns.likely_ns - predictor.predict_likely_ns((unwait,))
