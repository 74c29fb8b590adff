"""What determines the length of a replayed step: its critical path, and the slack of everything else.

The path is walked back from the last operation of the step. What a node waited for is the source of its *binding* edge:
the one whose source's time plus whose length is the node's own time. So every nanosecond of the step belongs to one
operation, to one host segment, or to a gap between the two, and the segments sum to the step exactly.

Where several edges bind, none of them alone holds the node back. The path then takes one that follows an operation
before one that follows the host (the device had no pause there), what happened before the step last, and otherwise the
first in the order of ``Kind`` and of the edges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import polars as pl

from three_walls.facts.fact_rows import CriticalPath, CriticalPathRow, CriticalPathSegment
from three_walls.replay import replay_thresholds
from three_walls.replay.longest_path import find_longest_paths_once
from three_walls.replay.step_graph import NONE, ORIGIN, Edges, Kind, StepGraph, Times, Work
from three_walls.step.intervals import DURATION
from three_walls.step.step_tables import Operations
from three_walls.tables.buckets import BUCKET_BY_NAME
from three_walls.trace.schemas import Int64Array

OPERATION, HOST, GAP = "operation", "host", "gap"
"""What a segment is: a device operation, a host segment, or time between two things (launch latency, the gap
between two operations of a stream)."""

UNKNOWN_MODULE = "unknown"

SEGMENTS = pl.Schema(
    {
        "what": pl.String,  # operation, host or gap
        "kind": pl.String,  # of the edge, see Kind; of the step's last operation: end
        "rank": pl.Int64,  # place of the rank in the graph
        "start_ns": pl.Int64,  # from the graph's origin
        "end_ns": pl.Int64,
        "operation": pl.Int64,  # that runs, or that starts after the gap; null: none
        "call": pl.Int64,  # of host segments, the call that runs or that follows
        "is_call": pl.Boolean,  # of host segments: inside the call, not before it
        "thread": pl.Int64,  # of host segments
        "category": pl.String,  # of operations; else host or gap
        "module": pl.String,  # of the operation, or of the one that the host launches next
        "name": pl.String,  # of the kernel, where it is known, or of the call; empty between calls
    }
)

Segments = Annotated[pl.DataFrame, SEGMENTS]
"""The critical path, in order: each segment begins where the one before it ends."""

_NEVER = -(2**61)
"""Of what nothing follows: it may be as late as it likes."""


@dataclass(frozen=True, slots=True)
class CriticalNodes:
    """The critical path of one replayed step."""

    rank: int
    """Place of the rank in the graph whose step it is."""
    start_ns: int
    """Start of the step, from the graph's origin."""
    step_ns: int
    segments: Segments
    """SEGMENTS, in order; each begins where the one before it ends."""
    find_slack: Callable[[], Int64Array]
    """Finds the slack, which takes a second search of the graph: per operation how much later it may end without any
    rank's step ending later than the longest."""

    def sum_by(self, column: str) -> dict[str, int]:
        """Time on the path by ``category`` or ``module``, the largest first; sums to the step."""
        sums = self.segments.group_by(column).agg(ns=DURATION.sum()).sort("ns", column, descending=[True, False])
        return {str(name): int(ns) for name, ns in sums.iter_rows()}

    def sum_by_limit(self) -> dict[str, int]:
        """Time on the path by its limit: ``host``, ``gap``, or a group of buckets; sums to the step."""
        sums: dict[str, int] = {}
        for name, ns in self.sum_by("category").items():
            limit = BUCKET_BY_NAME[name].group.value if name in BUCKET_BY_NAME else name
            sums[limit] = sums.get(limit, 0) + ns
        return dict(sorted(sums.items(), key=lambda row: (-row[1], row[0])))


def find_critical_path(graph: StepGraph, work: Work, times: Times, rank: int | None = None) -> CriticalNodes:
    """The critical path of the step of ``rank`` (a place in the graph; by default the one that takes longest).

    ``times``: ``replay(graph, work)``. Raises AssertionError unless the segments sum to the step.
    """
    place = int(np.argmax(times.step_ns)) if rank is None else rank
    lengths_ns = work.edges.lengths_ns(graph.points, work.host_segment_ns, work.duration_ns)
    segments = _label(graph, _find_segments(graph, work, times, lengths_ns, place)).match_to_schema(SEGMENTS)
    start_ns, step_ns = int(graph.rank_start_ns[place]), int(times.step_ns[place])
    _check_partition(segments, start_ns, step_ns)
    return CriticalNodes(place, start_ns, step_ns, segments, lambda: _find_slack(graph, work, times, lengths_ns))


def _find_segments(graph: StepGraph, work: Work, times: Times, lengths_ns: Int64Array, place: int) -> pl.DataFrame:
    """The segments of the step of the rank at ``place``, without labels."""
    of_rank = np.flatnonzero(graph.operations["rank"].to_numpy() == place)
    last = int(of_rank[np.argmax(times.end_ns[of_rank])])
    path = _walk_back(graph, work.edges, lengths_ns, times.node_ns, int(graph.end_node[last]))
    return (
        _list_segments(graph, work, times, path, lengths_ns, last)
        .with_columns(start_ns=pl.col("start_ns").clip(lower_bound=int(graph.rank_start_ns[place])))
        .filter(pl.col("end_ns") > pl.col("start_ns"))
    )


def _check_partition(segments: pl.DataFrame, start_ns: int, step_ns: int) -> None:
    """Raises AssertionError unless ``segments`` cover the step without a gap or an overlap."""
    starts, ends = segments["start_ns"].to_list(), segments["end_ns"].to_list()
    expected = [start_ns, *ends] if ends else [start_ns]
    assert starts == expected[: len(starts)], "segments of the critical path do not follow each other"
    assert expected[-1] == start_ns + step_ns, "segments of the critical path do not sum to the step"


def _walk_back(graph: StepGraph, edges: Edges, lengths_ns: Int64Array, node_ns: Int64Array, last: int) -> Int64Array:
    """The binding edges from the origin to node ``last``, in order."""
    binding = np.flatnonzero(node_ns[edges.source] + lengths_ns == node_ns[edges.target])
    kind = edges.kind[binding]
    follows_host = edges.operation[binding] == NONE
    # Of several edges to a node the last one written stays: the preferred one.
    order = np.lexsort((binding, kind, follows_host, kind == Kind.GIVEN))[::-1]
    bound_by = np.full(graph.nodes_count, NONE, dtype=np.int64)
    bound_by[edges.target[binding[order]]] = binding[order]
    sources, bound = edges.source.tolist(), bound_by.tolist()
    path, node = [], last
    while node != ORIGIN and bound[node] != NONE:
        path.append(bound[node])
        node = sources[bound[node]]
    return np.array(path[::-1], dtype=np.int64)


def _list_segments(
    graph: StepGraph, work: Work, times: Times, path: Int64Array, lengths_ns: Int64Array, last: int
) -> pl.DataFrame:
    """The segments of all edges of ``path`` and of the ``last`` operation, from the origin; some have no length."""
    edges = work.edges.take(path)
    edge_of_point, host_points = _expand_points(graph, edges)
    # An edge has host segments or a share of an operation.
    operation_ns = np.where(edges.operation != NONE, lengths_ns[path] - edges.fixed_ns, 0)
    numbers = np.arange(len(path), dtype=np.int64)
    host_segment = np.flatnonzero(edges.host_segment != NONE)
    # Within an edge: host segments, or the operation, then the fixed part.
    edge = np.concatenate([edge_of_point, numbers[host_segment], numbers, numbers, [len(path)]])
    part = np.repeat([0, 1, 2, 3, 2], [len(host_points), len(host_segment), len(path), len(path), 1])
    point = np.concatenate([host_points, edges.host_segment[host_segment], np.full(2 * len(path) + 1, NONE)])
    end_ns = int(times.end_ns[last])
    length_ns = np.concatenate(
        [
            work.host_segment_ns[host_points],
            work.host_segment_ns[edges.host_segment[host_segment]],
            operation_ns,
            edges.fixed_ns,
            [end_ns - int(times.node_ns[graph.end_node[last]])],
        ]
    )
    order = np.lexsort((np.arange(len(edge)), part, edge))
    edge, part, point, length_ns = edge[order], part[order], point[order], length_ns[order]
    ends_ns = end_ns - (length_ns.sum() - np.cumsum(length_ns))
    is_end = edge == len(path)
    kind = np.append(edges.kind, NONE)[edge]
    running = np.append(edges.operation, last)[edge]
    started = _operation_started(graph)[np.append(edges.target, ORIGIN)[edge]]
    # What is left of a synchronizing call after the operation that it waited for is the host's.
    tail = (part == 3) & (kind == Kind.AWAITED)
    point = np.where(tail, _point_of_sync_node(graph)[np.append(edges.target, ORIGIN)[edge]], point)
    what = np.where(point != NONE, 1, np.where((part == 2) & (length_ns > 0), 0, 2))
    return pl.DataFrame(
        {
            "what": np.array([OPERATION, HOST, GAP])[what],
            "kind": np.where(is_end, "end", np.array([each.name.lower() for each in Kind] + [""])[kind]),
            "start_ns": ends_ns - length_ns,
            "end_ns": ends_ns,
            "operation": np.where(what == 0, running, np.where(what == 2, started, NONE)),
            "point": point,
        }
    )


def _expand_points(graph: StepGraph, edges: Edges) -> tuple[Int64Array, Int64Array]:
    """Pairs (place of an edge from a host point, point whose host segment is part of it): since the last sync point."""
    last_sync_point = graph.points.last_sync_point
    at = np.flatnonzero(edges.point != NONE)
    until = edges.point[at]
    counts = until - last_sync_point[until]
    total = int(counts.sum())
    before = np.repeat(np.cumsum(counts) - counts, counts)
    point = np.repeat(last_sync_point[until] + 1, counts) + np.arange(total, dtype=np.int64) - before
    return np.repeat(at, counts), point


def _operation_started(graph: StepGraph) -> Int64Array:
    """Per node the operation that starts there, or whose transfer does; else NONE."""
    started = np.full(graph.nodes_count, NONE, dtype=np.int64)
    numbers = np.arange(graph.operations.height, dtype=np.int64)[::-1]
    started[graph.end_node[numbers]] = numbers
    started[graph.start_node[numbers]] = numbers
    return started


def _point_of_sync_node(graph: StepGraph) -> Int64Array:
    """Per node its host point if it is a sync point; else NONE."""
    point = np.full(graph.nodes_count, NONE, dtype=np.int64)
    places = np.flatnonzero(graph.points.sync_node != NONE)
    point[graph.points.sync_node[places]] = places
    return point


def _label(graph: StepGraph, segments: pl.DataFrame) -> pl.DataFrame:
    """``segments`` (with ``operation`` and ``point``, NONE where there is none) with all columns of SEGMENTS."""
    operations, calls = graph.once("labels of the path", lambda: _list_labels(graph))
    is_operation, is_host = pl.col("what") == OPERATION, pl.col("what") == HOST
    return (
        segments.with_columns(pl.col("operation", "point").replace(NONE, None))
        .with_columns(call=pl.col("point") // 2, is_call=pl.col("point") % 2 == 1)
        .join(operations, on="operation", how="left", maintain_order="left")
        .join(calls, on="call", how="left", maintain_order="left")
        .with_columns(
            rank=pl.coalesce("call_rank", "operation_rank", pl.lit(0)),
            category=pl.when(is_operation).then("operation_category").otherwise("what"),
            module=pl.coalesce(
                pl.when(is_host).then("host_module").otherwise("operation_module"), pl.lit(UNKNOWN_MODULE)
            ),
            name=pl.coalesce(
                pl.when(is_host & pl.col("is_call")).then("call_name").when(is_operation).then("operation_name"),
                pl.lit(""),
            ),
        )
        .select(*SEGMENTS)
        .cast(dict(SEGMENTS))  # type: ignore[arg-type]  # a schema is a mapping of names to types
    )


def _list_labels(graph: StepGraph) -> tuple[pl.DataFrame, pl.DataFrame]:
    """What segments take from the operations of ``graph``, and from its calls."""
    operations = graph.operations.with_row_index("operation").select(
        pl.col("operation").cast(pl.Int64),
        operation_rank=pl.col("rank"),
        operation_category=pl.col("category").cast(pl.String),
        operation_module=_column(graph.operations, "module"),
        operation_name=_column(graph.operations, "name"),
    )
    calls = (
        graph.calls.with_row_index("call")
        .with_columns(pl.col("call").cast(pl.Int64), launched=_launched_by(graph))
        .with_columns(launches=pl.col("launched").backward_fill().over("rank", "thread"))
        .join(
            operations.select(launches="operation", host_module="operation_module"),
            on="launches",
            how="left",
            maintain_order="left",
        )
        .select("call", "thread", call_rank="rank", call_name=pl.col("name").cast(pl.String), host_module="host_module")
    )
    return operations, calls


def _column(operations: Operations, name: str) -> pl.Expr:
    """A label, or null where operations have not been labelled."""
    return pl.col(name).cast(pl.String) if name in operations.columns else pl.lit(None, dtype=pl.String)


def _launched_by(graph: StepGraph) -> pl.Series:
    """Per call the first operation that it launched, or null."""
    launched = np.full(graph.calls.height, NONE, dtype=np.int64)
    numbers = np.flatnonzero(graph.call_of != NONE)[::-1]
    launched[graph.call_of[numbers]] = numbers
    return pl.Series("launched", launched).replace(NONE, None)


def _find_slack(graph: StepGraph, work: Work, times: Times, lengths_ns: Int64Array) -> Int64Array:
    """Per operation how much later it may end before the longest step grows."""
    edges = work.edges
    rank = graph.operations["rank"].to_numpy()
    due_ns = (graph.rank_start_ns + times.longest_ns)[rank]
    count = graph.nodes_count
    # The same search from the end: node v becomes count - v, and 0 stands for the end of the step.
    has_next = np.zeros(count, dtype=bool)
    has_next[edges.source] = True
    has_next[graph.end_node] = True
    dead_ends = np.flatnonzero(~has_next)
    source = np.concatenate([count - edges.target, np.zeros(len(rank) + len(dead_ends), dtype=np.int64)])
    target = count - np.concatenate([edges.source, graph.end_node, dead_ends])
    length = np.concatenate([lengths_ns, work.duration_ns - due_ns, np.full(len(dead_ends), _NEVER)])
    order = np.argsort(target, kind="stable")
    until_end_ns = find_longest_paths_once(count + 1, source[order], target[order], length[order])
    latest_ns = -until_end_ns[count - np.arange(count)]
    slack_ns = due_ns - times.end_ns
    follows = np.flatnonzero((edges.operation != NONE) & (edges.share > 0))
    room_ns = latest_ns[edges.target[follows]] - times.node_ns[edges.source[follows]] - lengths_ns[follows]
    share = edges.share[follows]
    # Of a share, lengths are rounded: a nanosecond less is safe.
    in_part_ns = np.maximum(0, np.floor((room_ns - 1) / share)).astype(np.int64)
    np.minimum.at(slack_ns, edges.operation[follows], np.where(share == 1, room_ns, in_part_ns))
    return np.asarray(slack_ns, dtype=np.int64)


def summarize_critical_path(graph: StepGraph, path: CriticalNodes, rank_numbers: Mapping[int, int]) -> CriticalPath:
    """``path`` for the report, with times from the start of the step.

    ``rank_numbers``: rank index to the number of the rank in the run.
    """
    numbers = [rank_numbers.get(index, index) for index in graph.ranks]
    slack_ns = path.find_slack()
    return CriticalPath(
        rank=numbers[path.rank],
        step_ns=path.step_ns,
        by_category=_summarize_by(graph, path, slack_ns, "category"),
        by_module=_summarize_by(graph, path, slack_ns, "module"),
        segments=tuple(
            CriticalPathSegment(
                rank=numbers[row["rank"]],
                start_ns=row["start_ns"] - path.start_ns,
                end_ns=row["end_ns"] - path.start_ns,
                what=row["what"],
                kind=row["kind"],
                category=row["category"],
                module=row["module"],
                name=row["name"],
            )
            for row in _join_neighbours(path).iter_rows(named=True)
        ),
    )


def _summarize_by(
    graph: StepGraph, path: CriticalNodes, slack_ns: Int64Array, column: str
) -> tuple[CriticalPathRow, ...]:
    """One row per ``category`` or ``module``: time on the path, and the slack of operations that are not on it."""
    on_path = path.segments.filter(pl.col("what") == OPERATION)["operation"].unique()
    of_rank = (
        graph.operations.with_row_index("operation")
        .select(
            pl.col("operation").cast(pl.Int64),
            name=_column(graph.operations, column).fill_null(UNKNOWN_MODULE),
            slack_ns=pl.Series(slack_ns),
        )
        .with_columns(is_on_path=pl.col("operation").is_in(on_path.implode()))
    )
    counts = of_rank.group_by("name").agg(
        operations=pl.len(),
        on_path=pl.col("is_on_path").sum(),
        slack_ns=pl.col("slack_ns").filter(~pl.col("is_on_path")).median().round(mode="half_to_even").cast(pl.Int64),
    )
    counts_of = {row["name"]: row for row in counts.iter_rows(named=True)}
    times_ns = path.sum_by(column)
    names = [*times_ns, *sorted(set(counts_of) - set(times_ns))]
    return tuple(
        CriticalPathRow(
            name=name,
            ns=times_ns.get(name, 0),
            fraction=times_ns.get(name, 0) / path.step_ns if path.step_ns else 0.0,
            operations=counts_of.get(name, {}).get("operations", 0),
            operations_on_path=counts_of.get(name, {}).get("on_path", 0),
            median_slack_ns=counts_of.get(name, {}).get("slack_ns"),
        )
        for name in names
    )


def _join_neighbours(path: CriticalNodes) -> pl.DataFrame:
    """Segments that the report shows: neighbours of one kind as one, and runs of short ones as one.

    A joined segment is described by the longest kind in it, and named after what takes longest in it.
    """
    kind = ("what", "rank", "thread", "category", "module")
    segments = path.segments.with_columns(run=pl.struct(kind).rle_id(), ns=DURATION)
    is_short = pl.col("ns").sum().over("run") < int(path.step_ns * replay_thresholds.SHORTEST_SEGMENT_FRACTION)
    runs = segments.with_columns(run=pl.when(is_short).then(-1).otherwise(pl.col("run").cast(pl.Int64)).rle_id())
    spans = runs.group_by("run", maintain_order=True).agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    largest = (
        runs.group_by("run", *kind, maintain_order=True)
        .agg(of_kind_ns=pl.col("ns").sum(), edge=pl.col("kind").last())
        .sort("of_kind_ns", descending=True, maintain_order=True)
        .unique("run", keep="first", maintain_order=True)
    )
    names = (
        runs.group_by("run", *kind, "name", maintain_order=True)
        .agg(pl.col("ns").sum())
        .sort(pl.col("name") == "", -pl.col("ns"), maintain_order=True)
        .unique(["run", *kind], keep="first", maintain_order=True)
    )
    return (
        spans.join(largest, on="run", how="left", maintain_order="left")
        .join(names, on=["run", *kind], how="left", nulls_equal=True, maintain_order="left")
        .rename({"edge": "kind"})
    )
