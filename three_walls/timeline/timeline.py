"""The timeline of one analysis: every operation of every rank with what it is, and the steps."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from three_walls.inputs.nsys.reader import Trace
from three_walls.inputs.nsys.tables import WantedRanges
from three_walls.model.config import RunConfig
from three_walls.tables.collective_owners import collective_owners
from three_walls.tables.kernels import KernelPattern
from three_walls.timeline.attention_context import mark_unfused_attention
from three_walls.timeline.collective_owner import resolve_collectives
from three_walls.timeline.communicators import join_communicators
from three_walls.timeline.kernels import classify
from three_walls.timeline.launches import join_launches
from three_walls.timeline.schedule_ranges import NODE_TEXTS, schedule_nodes
from three_walls.timeline.send_recv import ALL_TO_ALL_TEXTS, resolve_send_recv
from three_walls.timeline.steps import TRAINING_STEP_TEXT, StepSource, find_steps


@dataclass(frozen=True, slots=True)
class Timeline:
    """``operations``: categorised, with launches, sorted by track and start. ``steps``: schemas.STEPS.

    ``synchronizing``: API calls that wait for the device. ``overhead``: when the profiler held up a thread.
    """

    operations: pl.DataFrame
    steps: pl.DataFrame
    sources: Mapping[int, StepSource]
    synchronizing: pl.DataFrame
    overhead: pl.DataFrame
    api_calls: pl.DataFrame
    """All CUDA API calls with ``report`` and the call's name as ``name``: what host threads were doing."""
    stream_waits: pl.DataFrame
    event_records: pl.DataFrame
    schedule_nodes: pl.DataFrame
    """What each host launched for which node of a layer under expert-parallel overlap (schedule_ranges)."""


def wanted_ranges(step_range: str | None) -> WantedRanges:
    """The NVTX ranges an analysis reads: steps, the user's, owners of exchanges, nodes of overlapped layers."""
    owners = tuple(text for row in collective_owners().owners for text in row.texts)
    return WantedRanges(
        needles=(TRAINING_STEP_TEXT, *ALL_TO_ALL_TEXTS, *owners, *NODE_TEXTS),
        expression=re.compile(step_range) if step_range else None,
    )


def build_timeline(
    traces: Sequence[Trace],
    patterns: Sequence[KernelPattern],
    synchronize: re.Pattern[str],
    config: RunConfig,
    step_range: str | None,
) -> Timeline:
    """Puts the traces of one run on one table. Clocks stay each report's own: ranks are never compared in time."""
    operations = pl.concat([_categorise(trace, patterns, config) for trace in traces]).sort(
        "rank_index", "start_ns", "end_ns", "stream", "correlation"
    )
    ranges = pl.concat([trace.ranges for trace in traces])
    steps, sources = find_steps(
        operations,
        training_steps=_ranges_named(ranges, WantedRanges((TRAINING_STEP_TEXT,))),
        user_ranges=_ranges_named(ranges, WantedRanges((), re.compile(step_range))) if step_range else ranges.clear(),
    )
    return Timeline(
        operations=operations,
        steps=steps,
        sources=sources,
        synchronizing=pl.concat([_calls_named(trace, synchronize) for trace in traces]),
        overhead=pl.concat([trace.overhead for trace in traces]),
        api_calls=pl.concat([_with_call_names(trace) for trace in traces]),
        stream_waits=pl.concat([trace.stream_waits for trace in traces]),
        event_records=pl.concat([trace.event_records for trace in traces]),
        schedule_nodes=schedule_nodes(ranges),
    )


def _categorise(trace: Trace, patterns: Sequence[KernelPattern], config: RunConfig) -> pl.DataFrame:
    processes = pl.DataFrame(
        [(rank.rank_index, trace.capture_id, rank.process) for rank in trace.ranks],
        schema={"rank_index": pl.Int64, "capture_id": pl.Int64, "process": pl.Int64},
        orient="row",
    )
    launched = join_launches(trace.operations, trace.api_calls, processes)
    all_to_all = _ranges_named(trace.ranges, WantedRanges(ALL_TO_ALL_TEXTS))
    classified = join_communicators(classify(launched, trace.names, patterns), trace.nccl_calls)
    exchanged = resolve_send_recv(classified, all_to_all, config)
    return mark_unfused_attention(resolve_collectives(exchanged, trace.ranges, collective_owners().owners, config))


def _with_call_names(trace: Trace) -> pl.DataFrame:
    ids = trace.api_calls["name_id"].unique().to_list()
    names = pl.DataFrame(
        {"name_id": ids, "name": [trace.names.get(one, "") for one in ids]},
        schema={"name_id": pl.Int64, "name": pl.Categorical},
    )
    return trace.api_calls.join(names, on="name_id", how="left").drop("name_id")


def _ranges_named(ranges: pl.DataFrame, wanted: WantedRanges) -> pl.DataFrame:
    texts = [text for text in ranges["text"].unique().to_list() if wanted.wants(text)]
    return ranges.filter(pl.col("text").is_in(texts))


def _calls_named(trace: Trace, wanted: re.Pattern[str]) -> pl.DataFrame:
    ids = [number for number, name in trace.names.items() if wanted.search(name)]
    return trace.api_calls.filter(pl.col("name_id").is_in(ids)).select("capture_id", "thread", "start_ns", "end_ns")
