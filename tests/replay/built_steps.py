"""Graphs of steps that a test builds by hand. Times are in microseconds, so that latencies are those of a real GPU."""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp

import polars as pl

from tests.replay.small_graphs import build_graph
from tests.trace_builder import TraceBuilder
from three_walls.pipeline import match_ranks
from three_walls.replay.step_graph import StepGraph
from three_walls.step.build_timeline import build_timeline, wanted_ranges
from three_walls.tables.kernel_names import load_api_patterns, union_of
from three_walls.trace.read_inputs import read_inputs
from three_walls.trace.run_request import RunRequest

US = 1000


class Step(TraceBuilder):
    """A step of one rank. Kernels, calls and waits are given in us."""

    def run(
        self, start: float, end: float, launched: float | None = None, stream: int = 7, name: str = "kernel"
    ) -> Step:
        """A kernel; its launch call begins at ``launched``."""
        self.kernel(name, round(start * US), round(end * US), stream)
        if launched is not None:
            self.call("cudaLaunchKernel_v7000", launched, launched + 1, correlation=self.correlation)
        return self

    def call(self, name: str, start: float, end: float, correlation: int = 0, thread: int | None = None) -> Step:
        self.api(name, round(start * US), round(end * US), correlation, thread)
        return self

    def graph_between(
        self, path: Path, start: float, end: float, *others: TraceBuilder, shared: bool = False
    ) -> StepGraph:
        """The graph of the step from ``start`` to ``end`` of this rank, and of ``others`` on the same clock.

        ``shared``: whether another process uses the GPUs.
        """
        folder = Path(mkdtemp(dir=path))
        paths = [builder.write(folder / f"rank{place}.sqlite") for place, builder in enumerate((self, *others))]
        graph_launch = union_of(load_api_patterns(), "graph_launch")
        request = RunRequest(tuple(paths))
        inputs = read_inputs(request, wanted_ranges(None), graph_launch, lambda _: None)
        traces = inputs.with_kernels
        timeline, matched = match_ranks(build_timeline(traces, inputs.config, None), traces, inputs.config)
        windows = pl.DataFrame(
            [(rank.rank_index, round(start * US), round(end * US)) for trace in traces for rank in trace.ranks],
            schema={"rank_index": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64},
            orient="row",
        )
        return build_graph(timeline, matched, windows, windows["rank_index"].to_list() if shared else ())
