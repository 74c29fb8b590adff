"""One captured step as lanes: what trace viewers get whole, and the report's page thinned.

Per rank: what owns each nanosecond (the budget over time), why no compute ran, the critical path, the operations of
streams, and per host thread CUDA calls and NVTX ranges. Each is a frame with ``start_ns`` and ``end_ns`` on the clock
of the rank's capture, cut to the step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import polars as pl

from three_walls.layers.labels import LABELS
from three_walls.lib.declare import artifact
from three_walls.lib.errors import UsageError
from three_walls.replay.find_critical_path import GAP, OPERATION, CriticalNodes, find_critical_path
from three_walls.replay.predictor import StepReplay
from three_walls.replay.step_graph import StepGraph, replay
from three_walls.replay.transformation import Predictor
from three_walls.step.attribute_steps import Attribution
from three_walls.step.build_timeline import Timeline
from three_walls.step.compute_gaps import ComputeGaps
from three_walls.step.host_activity import API_VERSION
from three_walls.step.intervals import DURATION
from three_walls.step.ownership import OWNER
from three_walls.step.ranks.align_clocks import CommonClock
from three_walls.step.ranks.matched_ranks import MatchedRanks
from three_walls.step.step_tables import Arrivals, GapCauses, Intervals, Operations, Slices, ThreadRanges
from three_walls.step.step_view import StepView
from three_walls.trace.identity import Rank
from three_walls.trace.read_inputs import Inputs
from three_walls.trace.read_tables import THREADS_PER_PROCESS, read_thread_names
from three_walls.trace.read_trace import Trace


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """What the lanes are made from."""

    timeline: Timeline
    clock: CommonClock
    slices: Slices
    """Attribution.slices."""
    gaps: ComputeGaps
    traces: Sequence[Trace]
    step: StepView
    arrivals: Arrivals
    """MatchedRanks.arrivals."""
    graph: StepGraph | None
    """With labelled operations; None where the step cannot be replayed."""
    missing_reason: str = ""


@dataclass(frozen=True, slots=True)
class Window:
    """The step of one rank."""

    trace: Trace
    rank: Rank
    start_ns: int
    end_ns: int
    zero_ns: int
    """The time of the capture's clock that viewers show as 0."""


@artifact
def measured_step(
    inputs: Inputs,
    timeline: Timeline,
    matched_ranks: MatchedRanks,
    attribution: Attribution,
    step: StepView,
    predictor: Predictor,
) -> MeasuredStep:
    """The representative step and what was worked out about it."""
    return MeasuredStep(
        timeline=timeline,
        clock=matched_ranks.clock,
        slices=attribution.slices,
        gaps=attribution.compute_gaps,
        traces=inputs.with_kernels,
        step=step,
        arrivals=matched_ranks.arrivals,
        graph=predictor.graph if isinstance(predictor, StepReplay) else None,
        missing_reason=predictor.missing_reason,
    )


def list_windows(measured: MeasuredStep, ranks: Collection[int] = ()) -> tuple[list[Window], bool]:
    """The step of each rank that captured it, and whether their clocks can be compared.

    The first of ``ranks`` (their numbers), or of all, begins at 0. Raises UsageError for one that did not capture it.
    """
    place_of = {rank.rank_index: (trace, rank) for trace in measured.traces for rank in trace.ranks}
    rows = measured.timeline.steps.filter(pl.col("kept") & (pl.col("step") == measured.step.step)).sort("rank_index")
    of_rank = [place_of[index][1].rank for index in rows["rank_index"]]
    unknown = sorted(set(ranks) - set(of_rank))
    if unknown:
        captured = ", ".join(map(str, sorted(set(of_rank))))
        raise UsageError(
            f"--rank: expected a rank that captured step {measured.step.step} ({captured}), found {unknown[0]}"
        )
    common = measured.clock.add_common_times(rows)["common_start_ns"]
    is_aligned = not common.has_nulls()
    starts = common.to_list() if is_aligned else [0] * len(common)
    first = min(start for start, rank in zip(starts, of_rank, strict=True) if not ranks or rank in ranks)
    windows = [
        Window(*place_of[row["rank_index"]], row["start_ns"], row["end_ns"], row["start_ns"] - (start - first))
        for row, start in zip(rows.iter_rows(named=True), starts, strict=True)
    ]
    return sorted(windows, key=lambda window: (window.rank.rank, window.rank.rank_index)), is_aligned


_LABELS = pl.Schema({**LABELS, "on_path": pl.Boolean()})

Lane = Annotated[Intervals, {"whole_ns": pl.Int64}]  # how long the item takes in all
"""Items of a lane, cut to the step."""

PathLane = Annotated[
    Intervals,
    {
        "what": pl.String,  # as in SEGMENTS
        "kind": pl.String,
        "category": pl.String,
        "module": pl.String,
        "name": pl.String,
        "on_rank_index": pl.Int64,
    },
]
"""The critical path in the times of a capture."""


def cut(items: Intervals, window: Window) -> Lane:
    """What of ``items`` lies in the step, and as ``whole_ns`` how long each takes in all."""
    return items.filter((pl.col("start_ns") < window.end_ns) & (pl.col("end_ns") > window.start_ns)).with_columns(
        pl.col("start_ns").clip(lower_bound=window.start_ns),
        pl.col("end_ns").clip(upper_bound=window.end_ns),
        whole_ns=DURATION,
    )


def join_stretches(stretches: Intervals, *names: str) -> Intervals:
    """Stretches that follow each other without a pause and are equal in ``names`` as one: start_ns, end_ns, names."""
    is_same = pl.all_horizontal(pl.col(name) == pl.col(name).shift(1) for name in names)
    follows = pl.col("start_ns") == pl.col("end_ns").shift(1)
    return (
        stretches.sort("start_ns")
        .with_columns(stretch=(~(follows & is_same)).fill_null(value=True).cum_sum())
        .group_by("stretch", maintain_order=True)
        .agg(pl.col("start_ns").first(), pl.col("end_ns").last(), pl.col(*names).first())
        .drop("stretch")
    )


def list_owners(slices: Slices) -> Intervals:
    """The bucket that owns each stretch of a rank's step. They sum to the step's budget."""
    return join_stretches(slices.with_columns(bucket=OWNER), "bucket")


def list_causes(gaps: GapCauses) -> Intervals:
    """Stretches of a rank's step without compute."""
    return join_stretches(gaps, "cause", "detail")


def list_operations(measured: MeasuredStep, window: Window, on_path: Collection[int]) -> Operations:
    """What ran on the device, with labels, ``on_path`` and ``launch_ns`` (launch to start), null where not known."""
    index, graph = window.rank.rank_index, measured.graph
    of_rank = pl.col("rank_index") == index
    inside = measured.timeline.operations.filter(
        of_rank & (pl.col("start_ns") < window.end_ns) & (pl.col("end_ns") > window.start_ns)
    )
    if graph is not None and index in graph.ranks:
        labelled = (
            graph.operations.with_row_index("number")
            .filter(of_rank & (pl.col("end_ns") > window.start_ns))
            .with_columns(on_path=pl.when(pl.col("number").is_in(list(on_path))).then(True))
        )
        before = inside.filter(pl.col("start_ns") < window.start_ns)
        inside = pl.concat([before, labelled], how="diagonal_relaxed")
    absent = [pl.lit(None, dtype=dtype).alias(name) for name, dtype in _LABELS.items() if name not in inside.columns]
    return cut(inside.with_columns(*absent, launch_ns=pl.col("start_ns") - pl.col("launch_start_ns")), window)


def list_calls(timeline: Timeline, window: Window) -> Lane:
    """The CUDA calls of the rank's process."""
    calls = timeline.api_calls.during({window.trace.capture_id: [(window.start_ns, window.end_ns)]}).frame()
    of_process = calls.filter(pl.col("process") == window.rank.process).select(
        "thread", "start_ns", "end_ns", pl.col("name").cast(pl.String).str.replace(API_VERSION, ""), "correlation"
    )
    return cut(of_process, window)


def list_ranges(ranges: ThreadRanges, window: Window) -> Lane:
    """The ``ranges`` of NVTX in the step, in their order."""
    return cut(ranges.with_columns(pl.col("end_ns").fill_null(window.end_ns)), window).filter(DURATION > 0)


_THREAD_NAMES = re.compile(
    r"python[\d.]{0,5}|pt_(main_thread|autograd_\d{1,3}|data_(pin|worker)|nccl_(watchdg|heartbt))"
)
"""Names that Python and PyTorch give their threads. Others may tell of the user's program, and are not shown."""


def name_threads(window: Window) -> Callable[[int], str]:
    """What to call a thread: by the number that the host gives it, and what Python or PyTorch calls it."""
    found = read_thread_names(window.trace.path)
    names = {thread: name for thread, name in found.items() if _THREAD_NAMES.fullmatch(name)}
    return lambda thread: f"thread {thread % THREADS_PER_PROCESS} {names.get(thread, '')}".rstrip()


def name_by_id(ids: pl.Series, name: Callable[[Any], str]) -> pl.Series:
    """What ``name`` makes of each of ``ids``, of which few differ; empty where there is none."""
    names = {number: name(number) for number in ids.unique().drop_nulls().to_list()}
    return ids.replace_strict({**names, None: ""}, return_dtype=pl.String)


def find_path(graph: StepGraph | None, window: Window) -> CriticalNodes | None:
    """The critical path of the rank's captured step; None where it was not replayed."""
    if graph is None or window.rank.rank_index not in graph.ranks:
        return None
    times, place = replay(graph), graph.ranks.index(window.rank.rank_index)
    if times.step_ns[place] <= 0:  # of a damaged trace: what is left of it need not wait for the step to begin
        return None
    return find_critical_path(graph, graph.work, times, place)


def list_operations_on(path: CriticalNodes | None) -> list[int]:
    """The numbers of the operations on ``path``."""
    return [] if path is None else path.segments.filter(pl.col("what") == OPERATION)["operation"].to_list()


def list_path(graph: StepGraph, path: CriticalNodes, zero_ns: Mapping[int, int], window: Window) -> PathLane:
    """``path`` on the times of the capture.

    Each begins where the one before it ends. ``zero_ns``: per rank index the time of its clock that viewers show as 0.
    A replay is a little faster or slower than the capture. So a segment ends here when in the capture the operation or
    call ended that it is a part of, or when the operation after the gap began, but never before the segment that
    precedes it. Calls are in lanes of their own, so a stretch of the host is one segment.
    """
    segments = path.segments
    zero = np.array([zero_ns[index] for index in graph.ranks], dtype=np.int64) - window.zero_ns

    def gather(frame: pl.DataFrame, column: str, places: str) -> pl.Series:
        times = pl.Series(frame[column].to_numpy() - zero[frame["rank"].to_numpy()], dtype=pl.Int64)
        return times.gather(segments[places].cast(pl.UInt32))

    is_operation = pl.col("what") == OPERATION
    ends = pl.when(is_operation).then("operation_end").when(pl.col("what") == GAP).then("operation_start")
    in_capture = segments.with_columns(
        operation_start=gather(graph.operations, "start_ns", "operation"),
        operation_end=gather(graph.operations, "end_ns", "operation"),
        call_start=gather(graph.calls, "start_ns", "call"),
        call_end=gather(graph.calls, "end_ns", "call"),
    ).with_columns(
        end_ns=ends.when("is_call")
        .then("call_end")
        .otherwise("call_start")
        .cum_max()
        .forward_fill()
        .fill_null(window.start_ns)
        .clip(window.start_ns, window.end_ns)
    )
    others = {place: index if place != path.rank else None for place, index in enumerate(graph.ranks)}
    key = pl.struct("rank", "what", "module", operation=pl.when(is_operation).then("operation"))
    return (
        in_capture.with_columns(start_ns=pl.col("end_ns").shift(1, fill_value=window.start_ns))
        .filter(pl.col("end_ns") > pl.col("start_ns"))
        .with_columns(stretch=key.rle_id())
        .group_by("stretch", maintain_order=True)
        .agg(
            pl.col("start_ns").first(),
            pl.col("end_ns").last(),
            pl.col("what", "kind", "category", "module", "name", "rank").first(),
        )
        .with_columns(on_rank_index=pl.col("rank").replace_strict(others, return_dtype=pl.Int64))
        .drop("stretch", "rank")
    )
