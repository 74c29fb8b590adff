"""Small dependency graphs: made up at random, one event after the other, or from a few ranks in lockstep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
from hypothesis import strategies as st
from lockstep import Behaviour, simulate

from three_walls.replay.build_graph import build_graphs
from three_walls.replay.step_graph import (
    EDGE_COLUMNS,
    NONE,
    ORIGIN,
    Carried,
    Edges,
    GraphPauses,
    HostPoints,
    Kind,
    StepGraph,
    replay,
)
from three_walls.step.build_timeline import Timeline, build_timeline, wanted_ranges
from three_walls.step.ranks.matched_ranks import MatchedRanks, match_ranks
from three_walls.step.step_tables import PAUSES
from three_walls.step.stream_edges import list_event_calls
from three_walls.tables.buckets import CATEGORIES
from three_walls.tables.kernel_names import load_api_patterns, union_of
from three_walls.trace.read_trace import read_trace

CAPTURE, PROCESS, THREAD = 0, 7, 11


class GraphBuilder:
    """Adds calls and operations of one rank in the order of time; each edge leads to what is added later."""

    def __init__(self) -> None:
        self.nodes = 1
        self.edges: list[dict[str, float]] = []
        self.host_segments: list[int] = []
        self.sync_nodes: list[int] = []
        self.calls: list[dict[str, object]] = []
        self.operations: list[dict[str, object]] = []
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.durations: list[int] = []
        self.call_of: list[int] = []
        self.last_of_stream: dict[int, int] = {}

    def node(self) -> int:
        self.nodes += 1
        return self.nodes - 1

    def edge(self, kind: Kind, target: int, fixed: int = 0, **columns: float) -> None:
        defaults = {"source": NONE, "point": NONE, "host_segment": NONE, "operation": NONE, "share": 0.0}
        self.edges.append({"kind": int(kind), "target": target, "fixed_ns": fixed, **defaults, **columns})

    def call(self, think: int, took: int, awaits: int = NONE, tail: int = 0) -> int:
        """A call after ``think``; with ``awaits`` it returns after that operation."""
        number = len(self.calls)
        self.host_segments += [think, took]
        first = self.node() if number == 0 else NONE
        if number == 0:
            self.edge(Kind.GIVEN, first, think, source=ORIGIN)
        self.sync_nodes += [first, NONE]
        if awaits != NONE:
            end = self.sync_nodes[-1] = self.node()
            self.edge(Kind.THREAD, end, point=2 * number, host_segment=2 * number + 1)
            self.edge(Kind.AWAITED, end, tail, source=self.ends[awaits], operation=awaits, share=1.0)
        kind = "launch" if awaits == NONE else "synchronize"
        self.calls.append({"rank": 0, "thread": THREAD, "name": f"call{number}", "kind": kind, "correlation": number})
        return number

    def operation(
        self, call: int, duration: int, stream: int = 0, latency: int = 0, gap: int = 0, category: str = "gemm"
    ) -> int:
        number, start = len(self.operations), self.node()
        self.edge(Kind.LAUNCH, start, latency, point=2 * call)
        before = self.last_of_stream.get(stream)
        if before is not None:
            self.edge(Kind.STREAM, start, gap, source=self.ends[before], operation=before, share=1.0)
        self.last_of_stream[stream] = number
        self.starts.append(start)
        self.ends.append(start)
        self.durations.append(duration)
        self.call_of.append(call)
        self.operations.append(
            {
                "rank": 0,
                "rank_index": 0,
                "capture_id": CAPTURE,
                "process": PROCESS,
                "stream": stream,
                "category": category,
                "name": f"{category}_kernel",
                "launch_thread": THREAD,
                "correlation": call,
            }
        )
        return number

    def wait(self, operation: int, producer: int, kind: Kind = Kind.EVENT, share: float = 1.0, fixed: int = 0) -> None:
        """``operation`` starts after a ``share`` of ``producer``, an earlier one."""
        self.edge(kind, self.starts[operation], fixed, source=self.ends[producer], operation=producer, share=share)

    def meet(self, *members: int) -> None:
        """``members``, which nothing follows yet, transfer once all of them are there."""
        meeting = self.node()
        for member in members:
            self.ends[member] = meeting
            self.edge(Kind.ARRIVAL, meeting, source=self.starts[member])

    def build(self) -> StepGraph:
        def numbers(values: list[int]) -> np.ndarray:
            return np.array(values, dtype=np.int64)

        points = HostPoints(numbers(self.sync_nodes))
        self.edges.sort(key=lambda edge: edge["target"])
        columns = {
            name: np.array([edge[name] for edge in self.edges], dtype=np.float64 if name == "share" else np.int64)
            for name in EDGE_COLUMNS
        }
        from_host = columns["point"] != NONE
        columns["source"][from_host] = points.last_sync_node(columns["point"][from_host])
        graph = StepGraph(
            operations=pl.DataFrame(self.operations),
            calls=pl.DataFrame(self.calls),
            points=points,
            edges=Edges(**columns).take(np.argsort(columns["target"], kind="stable")),
            nodes_count=self.nodes,
            call_of=numbers(self.call_of),
            start_node=numbers(self.starts),
            end_node=numbers(self.ends),
            host_segment_ns=numbers(self.host_segments),
            silent_ns=np.zeros(len(self.host_segments), dtype=np.int64),
            duration_ns=numbers(self.durations),
            wait_ns=numbers([0] * len(self.durations)),
            held_ns=numbers([0] * len(self.durations)),
            ready_ns=numbers([NONE] * len(self.durations)),
            carried=Carried(
                numbers([1]),
                numbers([len(self.host_segments) - 1]),
                numbers([NONE]),
                numbers([0]),
                np.array([True]),
                numbers([0]),
            ),
            pauses=GraphPauses(*[numbers([])] * 3),
            measured_ns=numbers([0]),
            rank_start_ns=numbers([0]),
            tail_ns=0,
            ranks=(0,),
        )
        assert (graph.edges.source < graph.edges.target).all()
        times = replay(graph)
        step = {"start_ns": pl.Series(times.start_ns), "end_ns": pl.Series(times.end_ns)}
        return replace(graph, operations=graph.operations.with_columns(**step), measured_ns=times.step_ns)


@st.composite
def random_graphs(draw: st.DrawFn) -> StepGraph:
    """Graphs of up to 14 operations on three streams, launched by one thread that waits for some of them."""
    some = st.integers(0, 40)
    builder = GraphBuilder()
    for _ in range(draw(st.integers(1, 14))):
        made = len(builder.operations)
        awaits = draw(st.integers(0, made - 1)) if made and draw(st.booleans()) and draw(st.booleans()) else NONE
        call = builder.call(draw(some), draw(some), awaits, draw(st.integers(0, 3)))
        category = draw(st.sampled_from(CATEGORIES))
        stream = draw(st.integers(0, 2))
        operation = builder.operation(call, draw(some), stream, draw(some), draw(st.integers(0, 3)), category)
        if made and draw(st.booleans()):
            builder.wait(operation, draw(st.integers(0, made - 1)), Kind.EVENT, 1.0, draw(st.integers(0, 3)))
        if made and draw(st.booleans()):
            share = draw(st.sampled_from([0.25, 0.5, 0.9]))
            builder.wait(operation, draw(st.integers(0, made - 1)), Kind.RESOURCE, share)
        if made and draw(st.booleans()):
            peer_call = builder.call(draw(some), draw(some))
            other_stream = (stream + 1) % 3
            peer = builder.operation(peer_call, draw(some), other_stream, draw(some), 0, category)
            builder.meet(operation, peer)
    return builder.build()


def build_graph(
    timeline: Timeline, matched_ranks: MatchedRanks, windows: pl.DataFrame, shared_gpus: Sequence[int] = ()
) -> StepGraph:
    """The graph of the steps ``windows``, one of each rank."""
    event_calls = list_event_calls(timeline.api_calls, timeline.stream_waits, timeline.event_records)
    return next(build_graphs(timeline, matched_ranks, [windows], event_calls, pl.DataFrame(schema=PAUSES), shared_gpus))


def captured_graph(*behaviours: Behaviour) -> StepGraph:
    """The graph of the first kept step of ranks that run in lockstep."""
    with TemporaryDirectory() as folder:
        paths = simulate(list(behaviours), steps=3).write(Path(folder))
        ranges, graph_launch = wanted_ranges(None), union_of(load_api_patterns(), "graph_launch")
        traces = [read_trace(path, order, order, ranges, graph_launch) for order, path in enumerate(paths)]
    captured = build_timeline(traces, traces[0].config, None)
    timeline, matched_ranks = match_ranks(captured, traces, traces[0].config)
    kept = timeline.steps.filter("kept")
    return build_graph(timeline, matched_ranks, kept.filter(pl.col("step") == kept["step"].min()))


@cache
def lockstep_graph(ranks: int) -> StepGraph:
    """Ranks in lockstep, of which the last is slower than the others."""
    return captured_graph(*[Behaviour()] * (ranks - 1), Behaviour(slow=1.3))
