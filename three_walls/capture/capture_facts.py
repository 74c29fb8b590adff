"""What the captures of a run contain, as numbers; ``doctor.py`` judges them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from three_walls.step.build_timeline import Timeline, build_timeline, wanted_ranges
from three_walls.step.find_steps import TRAINING_STEP_TEXT
from three_walls.step.intervals import DURATION, intersect, merge_overlapping
from three_walls.tables.kernel_names import load_api_patterns, union_of
from three_walls.trace.capabilities import common_capabilities
from three_walls.trace.launch_record import launch_environment
from three_walls.trace.nccl_payload import holds_payloads
from three_walls.trace.nsys_export import NsysExport
from three_walls.trace.read_tables import THREADS_PER_PROCESS, has_operator_sizes
from three_walls.trace.read_trace import Trace, read_trace
from three_walls.trace.trace_files import find_traces, keep_unpacked, plain_sqlite


@dataclass(frozen=True, slots=True)
class CaptureFacts:
    """Facts of all traces together. None: not known."""

    traces: int
    """Number of traces."""
    without_kernels: tuple[str, ...]
    """File names of the traces that contain no kernels, without directories."""
    kernels: int
    api_calls: int
    launched_fraction: float | None
    """Share of the kernels outside CUDA graphs whose API call is recorded."""
    training_step_ranges: int
    """NVTX ranges that number training steps."""
    step_sources: tuple[str, ...]
    """Where step boundaries come from, of any rank."""
    clean_steps: int | None
    """Steps that touch neither edge of the capture, on the rank with the fewest."""
    ranks: tuple[int, ...]
    """Captured ranks, by number."""
    ranks_recorded: bool
    """Whether the launcher recorded the number of every rank."""
    world_size: int | None
    """Ranks of the run."""
    hosts: int | None
    """Hosts of the captured ranks."""
    session_starts: int
    """Traces that record when their clock began."""
    start_skew_ns: int | None
    """How far apart the captures begin."""
    step_ns: float | None
    """Length of the median kept step."""
    stream_waits: int
    event_records: int
    with_command: int
    """Traces whose command line has settings of a known framework."""
    with_environment: int
    """Traces that record environment variables."""
    overhead_fraction: float | None
    """Share of the kept steps during which the profiler delayed a thread, on the worst rank."""
    messages: tuple[str, ...]
    """Messages of the profiler, each once."""
    capabilities: Mapping[str, str]
    """What all traces recorded, by name: ``yes``, or why not (``trace/capabilities.py``)."""
    nccl_payload: bool
    """Whether every trace has the payloads of NCCL's NVTX ranges."""
    operator_sizes: bool
    """Whether every trace has PyTorch operators with the shapes of their arguments."""


@dataclass(frozen=True, slots=True)
class _Extras:
    """What a file contains besides what the trace reader reads."""

    messages: tuple[str, ...]
    has_nccl_payload: bool
    has_environment: bool
    has_operator_sizes: bool


@keep_unpacked()
def read_captures(paths: Sequence[Path], step_range: str | None = None) -> tuple[list[Trace], CaptureFacts]:
    """Reads the exports ``paths`` (files or directories of a run) and measures their facts.

    Raises InputError where one cannot be read.
    """
    traces: list[Trace] = []
    extras: list[_Extras] = []
    graph_launch = union_of(load_api_patterns(), "graph_launch")
    for order, path in enumerate(find_traces(list(paths))):
        first_rank_index = sum(len(trace.ranks) for trace in traces)
        traces.append(read_trace(path, order, first_rank_index, wanted_ranges(step_range), graph_launch))
        extras.append(_read_extras(path))
    with_kernels = [trace for trace in traces if trace.ranks]
    timeline = build_timeline(with_kernels, with_kernels[0].config, step_range) if with_kernels else None
    return traces, _measure(traces, timeline, extras)


def _measure(traces: Sequence[Trace], timeline: Timeline | None, extras: Sequence[_Extras]) -> CaptureFacts:
    """The facts of ``traces``. ``timeline``: None where no trace has kernels."""
    ranks = [rank for trace in traces for rank in trace.ranks]
    environments = [trace.config.environment for trace in traces if trace.ranks]
    worlds = {str(names["WORLD_SIZE"].value) for names in environments if "WORLD_SIZE" in names}
    world = worlds.pop() if len(worlds) == 1 else ""
    hosts = {rank.host for rank in ranks}
    return CaptureFacts(
        traces=len(traces),
        without_kernels=tuple(Path(trace.input.path_name).name for trace in traces if not trace.ranks),
        kernels=0 if timeline is None else timeline.operations.filter(pl.col("kind") == "kernel").height,
        api_calls=sum(trace.api_calls.height for trace in traces),
        launched_fraction=None if timeline is None else _launched_fraction(timeline.operations),
        training_step_ranges=sum(
            trace.ranges.filter(pl.col("text").str.contains(TRAINING_STEP_TEXT, literal=True)).height
            for trace in traces
        ),
        step_sources=() if timeline is None else tuple(sorted({str(source) for source in timeline.sources.values()})),
        clean_steps=None if timeline is None else _fewest_clean_steps(timeline.steps),
        ranks=tuple(sorted(rank.rank for rank in ranks)),
        ranks_recorded=bool(ranks) and all(rank.rank_source != "order" for rank in ranks),
        world_size=int(world) if world.isdecimal() and len(world) < 10 else None,
        hosts=None if None in hosts or not hosts else len(hosts),
        session_starts=sum(trace.session_start_ns is not None for trace in traces),
        start_skew_ns=_start_skew(traces),
        step_ns=None if timeline is None else _median_step(timeline.steps),
        stream_waits=sum(trace.stream_waits.height for trace in traces),
        event_records=sum(trace.event_records.height for trace in traces),
        with_command=sum(trace.config.dialect != "unknown" for trace in traces if trace.ranks),
        with_environment=sum(extra.has_environment for extra, trace in zip(extras, traces, strict=True) if trace.ranks),
        overhead_fraction=None if timeline is None else _worst_overhead(traces, timeline),
        messages=tuple(dict.fromkeys(message for extra in extras for message in extra.messages)),
        capabilities=common_capabilities([trace.capabilities for trace in traces]),
        nccl_payload=bool(extras) and all(extra.has_nccl_payload for extra in extras),
        operator_sizes=bool(extras) and all(extra.has_operator_sizes for extra in extras),
    )


def _read_extras(path: Path) -> _Extras:
    with plain_sqlite(path) as plain, NsysExport(plain, path) as export:
        is_recorded = export.has("DIAGNOSTIC_EVENT", "text")
        texts = export.rows("SELECT DISTINCT CAST(text AS TEXT) FROM DIAGNOSTIC_EVENT") if is_recorded else []
        return _Extras(
            messages=tuple(sorted(text for (text,) in texts if text is not None)),
            has_nccl_payload=holds_payloads(export),
            has_environment=bool(launch_environment(export)),
            has_operator_sizes=has_operator_sizes(export),
        )


def _launched_fraction(operations: pl.DataFrame) -> float | None:
    outside_graphs = operations.filter((pl.col("kind") == "kernel") & (pl.col("graph_node").fill_null(0) == 0))
    launched = outside_graphs.filter(pl.col("launch_start_ns").is_not_null())
    return launched.height / outside_graphs.height if outside_graphs.height else None


def _fewest_clean_steps(steps: pl.DataFrame) -> int:
    clean = steps.group_by("rank_index").agg(n=(pl.col("kept") & (pl.col("reason") == "")).sum())
    return min(clean["n"].to_list(), default=0)


def _median_step(steps: pl.DataFrame) -> float | None:
    middle = steps.filter("kept").select(ns=DURATION)["ns"].median()
    return float(middle) if isinstance(middle, int | float) else None


def _start_skew(traces: Sequence[Trace]) -> int | None:
    """How far apart the first device operations of the captures are, by the UTC time at which each clock began."""
    begins_ns = [
        trace.session_start_ns + int(first)
        for trace in traces
        if trace.session_start_ns is not None and isinstance(first := trace.operations["start_ns"].min(), int)
    ]
    return max(begins_ns) - min(begins_ns) if len(begins_ns) > 1 else None


def _worst_overhead(traces: Sequence[Trace], timeline: Timeline) -> float | None:
    worst: float | None = None
    for trace in traces:
        for rank in trace.ranks:
            steps = timeline.steps.filter((pl.col("rank_index") == rank.rank_index) & pl.col("kept"))
            length_ns = _total_ns(steps)
            if length_ns:
                process = pl.col("thread") - pl.col("thread") % THREADS_PER_PROCESS
                delays = trace.overhead.filter(process == rank.process)
                delayed = merge_overlapping(
                    delays.with_columns(rank_index=pl.lit(rank.rank_index, dtype=pl.Int64)), ["rank_index"]
                )
                worst = max(worst or 0.0, _total_ns(intersect(delayed, steps, ["rank_index"])) / length_ns)
    return worst


def _total_ns(intervals: pl.DataFrame) -> int:
    return int(intervals.select(DURATION.sum()).item() or 0)
