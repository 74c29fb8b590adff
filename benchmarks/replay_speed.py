"""How long the dependency graph of one step takes to build and to replay, by the size of the step.

    python benchmarks/replay_speed.py [TRACE] [--operations 30000 --operations 1000000]

The step is one of a real trace, repeated in time (with correlation ids of its own each time) until it has as many
operations as asked for. Prints CPU seconds: of building the graph, of the first replay, which prepares it, of another
replay of the same work, and of a replay after a change of all durations and of the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import click
import polars as pl

from three_walls.replay.build_graph import build_graphs
from three_walls.replay.step_graph import replay
from three_walls.replay.transform_graph import transform
from three_walls.replay.transformation import Action, Level, Transformation
from three_walls.step.build_timeline import Timeline, build_timeline, wanted_ranges
from three_walls.step.ranks.matched_ranks import MatchedRanks, match_ranks
from three_walls.step.step_tables import PAUSES
from three_walls.step.stream_edges import list_event_calls
from three_walls.tables.kernel_names import load_api_patterns, union_of
from three_walls.tables.prediction_intervals import Levels
from three_walls.trace.api_calls import ApiCalls
from three_walls.trace.read_inputs import read_inputs
from three_walls.trace.run_request import RunRequest

SAMPLE = Path(__file__).parent.parent / "sample_traces" / "te-host-bound"
_APART = 2**32
"""Between the correlation ids of two repetitions."""

Result = TypeVar("Result")


def read_step(trace: Path) -> tuple[Timeline, MatchedRanks, pl.DataFrame]:
    """The timeline and ranks of ``trace``, and the window (rank_index, start_ns, end_ns) of a kept step of one rank."""
    ranges, graph_launch = wanted_ranges(None), union_of(load_api_patterns(), "graph_launch")
    inputs = read_inputs(RunRequest((trace,)), ranges, graph_launch, lambda _: None)
    captured = build_timeline(inputs.with_kernels, inputs.config, None)
    timeline, matched_ranks = match_ranks(captured, inputs.with_kernels, inputs.config)
    window = timeline.steps.filter("kept").head(1).select("rank_index", "start_ns", "end_ns")
    return timeline, matched_ranks, window


def repeat_step(timeline: Timeline, window: pl.DataFrame, least_operations: int) -> tuple[Timeline, pl.DataFrame]:
    """A timeline whose only step is that of ``window`` over and over, with ``least_operations`` or more; its window."""
    rank, start_ns, end_ns = window.row(0)
    inside = pl.col("start_ns").is_between(start_ns, end_ns, closed="left")
    operations = timeline.operations.filter((pl.col("rank_index") == rank) & inside)
    process = operations.select("capture_id", "process").unique()
    launched_from_ns = operations["launch_start_ns"].min()
    calls = (
        timeline.api_calls.frame()
        .join(process, on=["capture_id", "process"], how="semi")
        .filter(pl.col("start_ns").is_between(launched_from_ns, end_ns, closed="left"))
    )
    called = calls.select("capture_id", "process", "correlation")
    waits, records = (
        frame.join(called, on=called.columns, how="semi") for frame in (timeline.stream_waits, timeline.event_records)
    )
    times = -(-least_operations // operations.height)
    length_ns = end_ns - start_ns

    def again(rows: pl.DataFrame) -> pl.DataFrame:
        moved = ("start_ns", "end_ns", "launch_start_ns", "launch_end_ns")
        numbered = ("correlation", "event_sync")
        return pl.concat(
            rows.with_columns(
                *(pl.col(name) + turn * length_ns for name in moved if name in rows.columns),
                *(pl.col(name) + turn * _APART for name in numbered if name in rows.columns),
            )
            for turn in range(times)
        )

    repeated = replace(
        timeline,
        operations=again(operations),
        api_calls=ApiCalls.of(again(calls)),
        stream_waits=again(waits),
        event_records=again(records),
        steps=timeline.steps.filter(pl.col("kept") & (pl.col("rank_index") == rank))
        .head(1)
        .with_columns(end_ns=pl.lit(start_ns + times * length_ns)),
    )
    return repeated, window.with_columns(end_ns=pl.lit(start_ns + times * length_ns))


def measure(work: Callable[[], Result]) -> tuple[Result, float]:
    """What ``work`` returns, and the CPU seconds that it takes in all threads."""
    begin = time.process_time()
    result = work()
    return result, time.process_time() - begin


@click.command()
@click.argument("trace", type=click.Path(exists=True, path_type=Path), default=SAMPLE)
@click.option("--operations", "sizes", multiple=True, type=int, default=(30_000, 1_000_000))
def main(trace: Path, sizes: tuple[int, ...]) -> None:
    """Prints a row of CPU seconds for every size."""
    timeline, matched_ranks, window = read_step(trace)
    host = Levels(0.5, 0.5, 0.5)
    change = Transformation(Action.HOST, host=host), Transformation(Action.SCALE, time=host)
    click.echo(f"{'operations':>12} {'calls':>10} {'edges':>10} {'build':>8} {'first':>8} {'again':>8} {'changed':>8}")
    for size in sizes:
        step, whole = repeat_step(timeline, window, size)
        event_calls = list_event_calls(step.api_calls, step.stream_waits, step.event_records)
        graphs = build_graphs(step, matched_ranks, [whole], event_calls, pl.DataFrame(schema=PAUSES))
        graph, build_s = measure(lambda graphs=graphs: next(graphs))
        _, first_s = measure(lambda graph=graph: replay(graph))
        _, again_s = measure(lambda graph=graph: replay(graph))
        _, changed_s = measure(lambda graph=graph: replay(graph, transform(graph, graph.work, change, Level.LIKELY)))
        seconds = " ".join(f"{value:>8.3f}" for value in (build_s, first_s, again_s, changed_s))
        counts = f"{graph.operations.height:>12,} {graph.calls.height:>10,} {len(graph.edges.kind):>10,}"
        click.echo(f"{counts} {seconds}")


if __name__ == "__main__":
    main()
