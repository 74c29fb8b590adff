"""What the captures of a run contain; ``judge_capture.py`` judges it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from three_walls.step.build_timeline import Timeline, build_timeline, wanted_ranges
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
class Unparsed:
    """What an export contains besides what the trace reader reads."""

    messages: tuple[str, ...]
    """Of the profiler."""
    has_nccl_payload: bool
    has_environment: bool
    has_operator_sizes: bool


@dataclass(frozen=True, slots=True)
class Captures:
    """All captures of a run. A number is None where it is not known."""

    traces: tuple[Trace, ...]
    unparsed: tuple[Unparsed, ...]
    """Of each trace."""
    timeline: Timeline | None
    """None where no trace has kernels."""

    @property
    def with_kernels(self) -> list[Trace]:
        """The traces that contain kernels."""
        return [trace for trace in self.traces if trace.ranks]

    @property
    def ranks(self) -> list[int]:
        """The captured ranks, by number."""
        return sorted(rank.rank for trace in self.traces for rank in trace.ranks)

    @property
    def world_size(self) -> int | None:
        """Number of ranks of the run."""
        environments = [trace.config.environment for trace in self.with_kernels]
        worlds = {str(names["WORLD_SIZE"].value) for names in environments if "WORLD_SIZE" in names}
        world = worlds.pop() if len(worlds) == 1 else ""
        return int(world) if world.isdecimal() and len(world) < 10 else None

    @property
    def hosts(self) -> int | None:
        """Number of hosts of the captured ranks."""
        hosts = {rank.host for trace in self.traces for rank in trace.ranks}
        return None if None in hosts or not hosts else len(hosts)

    @property
    def capabilities(self) -> Mapping[str, str]:
        """What all traces recorded, by name: ``yes``, or why not (``trace/capabilities.py``)."""
        return common_capabilities([trace.capabilities for trace in self.traces])

    @property
    def step_sources(self) -> str:
        """Where step boundaries come from, of any rank."""
        sources = self.timeline.sources.values() if self.timeline else ()
        return " and ".join(sorted({str(source) for source in sources}))

    def clean_steps(self) -> int | None:
        """Steps that touch neither edge of the capture, on the rank with the fewest."""
        if self.timeline is None:
            return None
        clean = self.timeline.steps.group_by("rank_index").agg(n=(pl.col("kept") & (pl.col("reason") == "")).sum())
        return min(clean["n"].to_list(), default=0)

    def launched_fraction(self) -> float | None:
        """Share of the kernels outside CUDA graphs whose API call is recorded."""
        if self.timeline is None:
            return None
        is_outside_graphs = (pl.col("kind") == "kernel") & (pl.col("graph_node").fill_null(0) == 0)
        launches = self.timeline.operations.filter(is_outside_graphs)["launch_start_ns"]
        return launches.count() / len(launches) if len(launches) else None

    def median_step_ns(self) -> float | None:
        """Length of the median kept step."""
        if self.timeline is None:
            return None
        middle = self.timeline.steps.filter("kept").select(ns=DURATION)["ns"].median()
        return float(middle) if isinstance(middle, int | float) else None

    def start_skew_ns(self) -> int | None:
        """How far apart the first device operations of the captures are, by the UTC time at which each clock began."""
        begins_ns = [
            trace.session_start_ns + int(first)
            for trace in self.traces
            if trace.session_start_ns is not None and isinstance(first := trace.operations["start_ns"].min(), int)
        ]
        return max(begins_ns) - min(begins_ns) if len(begins_ns) > 1 else None

    def overhead_fraction(self) -> float | None:
        """Share of the kept steps during which the profiler delayed a thread, on the worst rank."""
        if self.timeline is None:
            return None
        worst: float | None = None
        for trace in self.traces:
            for rank in trace.ranks:
                steps = self.timeline.steps.filter((pl.col("rank_index") == rank.rank_index) & pl.col("kept"))
                if length_ns := _total_ns(steps):
                    process = pl.col("thread") - pl.col("thread") % THREADS_PER_PROCESS
                    delays = trace.overhead.filter(process == rank.process)
                    own_delays = delays.with_columns(rank_index=pl.lit(rank.rank_index, dtype=pl.Int64))
                    delayed = merge_overlapping(own_delays, ["rank_index"])
                    worst = max(worst or 0.0, _total_ns(intersect(delayed, steps, ["rank_index"])) / length_ns)
        return worst


def _total_ns(intervals: pl.DataFrame) -> int:
    return int(intervals.select(DURATION.sum()).item() or 0)


@keep_unpacked()
def read_captures(paths: Sequence[Path]) -> Captures:
    """Reads the exports ``paths`` (files or directories of a run). Raises InputError where one cannot be read."""
    traces: list[Trace] = []
    unparsed: list[Unparsed] = []
    graph_launch = union_of(load_api_patterns(), "graph_launch")
    for order, path in enumerate(find_traces(list(paths))):
        first_rank_index = sum(len(trace.ranks) for trace in traces)
        traces.append(read_trace(path, order, first_rank_index, wanted_ranges(None), graph_launch))
        unparsed.append(_read_unparsed(path))
    with_kernels = [trace for trace in traces if trace.ranks]
    timeline = build_timeline(with_kernels, with_kernels[0].config, None) if with_kernels else None
    return Captures(tuple(traces), tuple(unparsed), timeline)


def _read_unparsed(path: Path) -> Unparsed:
    with plain_sqlite(path) as plain, NsysExport(plain, path) as export:
        is_recorded = export.has("DIAGNOSTIC_EVENT", "text")
        texts = export.rows("SELECT DISTINCT CAST(text AS TEXT) FROM DIAGNOSTIC_EVENT") if is_recorded else []
        return Unparsed(
            messages=tuple(sorted(text for (text,) in texts if text is not None)),
            has_nccl_payload=holds_payloads(export),
            has_environment=bool(launch_environment(export)),
            has_operator_sizes=has_operator_sizes(export),
        )
