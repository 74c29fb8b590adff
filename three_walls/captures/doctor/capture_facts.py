"""What the captures of one run hold, measured; judging it is another module's job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from three_walls.inputs.nsys.reader import Trace
from three_walls.inputs.nsys.tables import THREADS_PER_PROCESS
from three_walls.timeline.intervals import intersect, merge_overlapping
from three_walls.timeline.steps import TRAINING_STEP_TEXT
from three_walls.timeline.timeline import Timeline


@dataclass(frozen=True, slots=True)
class CaptureFacts:
    """Of all traces together. None: not known. Files are names without directories."""

    traces: int
    without_kernels: tuple[str, ...]
    kernels: int
    api_calls: int
    launched_fraction: float | None
    """Share of the kernels whose API call is recorded; kernels of graphs have none of their own."""
    training_step_ranges: int
    step_sources: tuple[str, ...]
    clean_steps: int | None
    """Of the rank that has the fewest: steps that touch neither edge of the capture."""
    ranks: tuple[int, ...]
    ranks_told: bool
    """Whether the launcher's variable names every rank."""
    world_size: int | None
    hosts: int | None
    session_starts: int
    """Traces that say when their clock began."""
    start_skew_ns: int | None
    step_ns: float | None
    stream_waits: int
    event_records: int
    with_command: int
    """Traces whose command line names settings of a known framework."""
    with_environment: int
    overhead_fraction: float | None
    """Share of the kept steps during which the profiler held up some thread of the rank, of the worst rank."""
    messages: tuple[str, ...]
    """What the profilers said, each once."""
    capabilities: Mapping[str, str]
    nccl_payload: bool
    operator_sizes: bool
    """Whether every trace has operators of PyTorch that say the sizes of their arguments."""


@dataclass(frozen=True, slots=True)
class Extras:
    """What the trace reader does not carry: read beside it, per file."""

    messages: tuple[str, ...]
    has_nccl_payload: bool
    has_environment: bool
    has_operator_sizes: bool


def measure(
    traces: Sequence[Trace], timeline: Timeline | None, extras: Sequence[Extras], capabilities: Mapping[str, str]
) -> CaptureFacts:
    """Facts of ``traces``; ``timeline`` is None where no trace has kernels."""
    ranks = [rank for trace in traces for rank in trace.ranks]
    environments = [trace.config.environment for trace in traces if trace.ranks]
    worlds = {str(one["WORLD_SIZE"].value) for one in environments if "WORLD_SIZE" in one}
    world = worlds.pop() if len(worlds) == 1 else ""
    hosts = {rank.host for rank in ranks}
    return CaptureFacts(
        traces=len(traces),
        without_kernels=tuple(Path(trace.input.path_name).name for trace in traces if not trace.ranks),
        kernels=0 if timeline is None else _count(timeline.operations, pl.col("kind") == "kernel"),
        api_calls=sum(trace.api_calls.height for trace in traces),
        launched_fraction=None if timeline is None else _launched_fraction(timeline.operations),
        training_step_ranges=sum(
            trace.ranges.filter(pl.col("text").str.contains(TRAINING_STEP_TEXT, literal=True)).height
            for trace in traces
        ),
        step_sources=() if timeline is None else tuple(sorted({str(one) for one in timeline.sources.values()})),
        clean_steps=None if timeline is None else _fewest_clean_steps(timeline.steps),
        ranks=tuple(sorted(rank.rank for rank in ranks)),
        ranks_told=bool(ranks) and all(rank.rank_source != "order" for rank in ranks),
        world_size=int(world) if world.isdecimal() and len(world) < 10 else None,
        hosts=None if None in hosts or not hosts else len(hosts),
        session_starts=sum(trace.session_start_ns is not None for trace in traces),
        start_skew_ns=_start_skew(traces),
        step_ns=None if timeline is None else _median_step(timeline.steps),
        stream_waits=sum(trace.stream_waits.height for trace in traces),
        event_records=sum(trace.event_records.height for trace in traces),
        with_command=sum(trace.config.dialect != "unknown" for trace in traces if trace.ranks),
        with_environment=sum(one.has_environment for one, trace in zip(extras, traces, strict=True) if trace.ranks),
        overhead_fraction=None if timeline is None else _worst_overhead(traces, timeline),
        messages=tuple(dict.fromkeys(message for one in extras for message in one.messages)),
        capabilities=capabilities,
        nccl_payload=bool(extras) and all(one.has_nccl_payload for one in extras),
        operator_sizes=bool(extras) and all(one.has_operator_sizes for one in extras),
    )


def _count(operations: pl.DataFrame, which: pl.Expr) -> int:
    return operations.filter(which).height


def _launched_fraction(operations: pl.DataFrame) -> float | None:
    own = operations.filter((pl.col("kind") == "kernel") & (pl.col("graph_node").fill_null(0) == 0))
    return own.filter(pl.col("launch_start_ns").is_not_null()).height / own.height if own.height else None


def _fewest_clean_steps(steps: pl.DataFrame) -> int:
    clean = steps.group_by("rank_index").agg(n=(pl.col("kept") & (pl.col("reason") == "")).sum())
    return min(clean["n"].to_list(), default=0)


def _median_step(steps: pl.DataFrame) -> float | None:
    middle = steps.filter("kept").select(ns=pl.col("end_ns") - pl.col("start_ns"))["ns"].median()
    return float(middle) if isinstance(middle, int | float) else None


def _start_skew(traces: Sequence[Trace]) -> int | None:
    """Between the first device operations of the reports, on the clock of the sessions' UTC starts."""
    firsts = [
        trace.session_start_ns + int(first)
        for trace in traces
        if trace.session_start_ns is not None and isinstance(first := trace.operations["start_ns"].min(), int)
    ]
    return max(firsts) - min(firsts) if len(firsts) > 1 else None


def _worst_overhead(traces: Sequence[Trace], timeline: Timeline) -> float | None:
    worst: float | None = None
    for trace in traces:
        for rank in trace.ranks:
            steps = timeline.steps.filter((pl.col("rank_index") == rank.rank_index) & pl.col("kept"))
            length_ns = _length(steps)
            if length_ns:
                own = trace.overhead.filter(pl.col("thread") - pl.col("thread") % THREADS_PER_PROCESS == rank.process)
                held = merge_overlapping(
                    own.with_columns(rank_index=pl.lit(rank.rank_index, dtype=pl.Int64)), ["rank_index"]
                )
                worst = max(worst or 0.0, _length(intersect(held, steps, ["rank_index"])) / length_ns)
    return worst


def _length(intervals: pl.DataFrame) -> int:
    return int(intervals.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item() or 0)
