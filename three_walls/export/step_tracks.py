"""The tracks of one captured step: the entry of this package.

Per rank: what owns each nanosecond (the budget over time), why no compute ran, the critical path, the streams of the
device, and per host thread its NVTX ranges and CUDA calls. Everything is cut to the step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from three_walls.export.path_slices import place_critical_path
from three_walls.export.tracks import LONGEST_SHOWN_NAME, Arrow, RankTracks, Slice, StepTracks, Track, lay_out
from three_walls.lib.declare import artifact
from three_walls.lib.errors import UsageError
from three_walls.replay.find_critical_path import OPERATION, find_critical_path, list_operations_on_path
from three_walls.replay.predictor import StepReplay
from three_walls.replay.step_graph import StepGraph, Times, replay
from three_walls.replay.transformation import Predictor
from three_walls.step.attribute_steps import Attribution
from three_walls.step.build_timeline import Timeline
from three_walls.step.compute_gaps import ComputeGaps
from three_walls.step.host_activity import API_VERSION
from three_walls.step.operators import read_operator_text
from three_walls.step.ownership import OWNER
from three_walls.step.ranks.align_clocks import CommonClock
from three_walls.step.ranks.matched_ranks import MatchedRanks
from three_walls.step.step_view import StepView
from three_walls.tables.buckets import BUCKET_BY_NAME
from three_walls.tables.shareable import cut_private
from three_walls.trace.identity import Rank
from three_walls.trace.read_inputs import Inputs
from three_walls.trace.read_tables import THREADS_PER_PROCESS, read_ranges_between
from three_walls.trace.read_trace import Trace

MOST_RANGES = 100_000
"""NVTX ranges of a rank, the longest first. A step of a real run has some ten thousand."""


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """What the tracks are made from."""

    timeline: Timeline
    clock: CommonClock
    slices: pl.DataFrame
    """Attribution.slices."""
    gaps: ComputeGaps
    traces: Sequence[Trace]
    step: StepView
    graph: StepGraph | None
    """With labelled operations; None where the step cannot be replayed."""
    reason_without_graph: str = ""


@dataclass(frozen=True, slots=True)
class Window:
    """The step of one rank."""

    trace: Trace
    rank: Rank
    start_ns: int
    end_ns: int
    zero_ns: int
    """The time of the capture's clock that stands for 0."""

    @property
    def shown(self) -> tuple[int, int]:
        """Start and end as exported."""
        return self.start_ns - self.zero_ns, self.end_ns - self.zero_ns


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
        graph=predictor.graph if isinstance(predictor, StepReplay) else None,
        reason_without_graph=predictor.reason_withheld,
    )


def list_step_tracks(measured: MeasuredStep, ranks: Collection[int] = ()) -> StepTracks:
    """The tracks of the representative step, of the ranks numbered ``ranks`` or of all that captured it.

    Raises UsageError for a rank that did not capture it. Reading a rank raises InputError where its trace cannot be
    read any more.
    """
    windows, is_aligned = list_windows(measured, ranks)
    notes = ["Tracks are cut to the step. Layers and micro-batches are counted per rank, from 0."]
    if measured.graph is None:
        notes.append(f"No critical path, layers and modules: {measured.reason_without_graph}.")
    else:
        notes.append(
            "The critical path is that of the captured step; the report's is of the step without the profiler's cost."
        )
    if not is_aligned:
        notes.append("The clocks of the ranks cannot be compared, so every rank begins at 0.")
    step = measured.step
    return StepTracks(step.step, step.why, tuple(notes), _make_ranks(measured, windows, ranks))


def list_windows(measured: MeasuredStep, ranks: Collection[int]) -> tuple[list[Window], bool]:
    """The step of each rank asked for and then of the others, and whether their clocks can be compared."""
    place_of = {rank.rank_index: (trace, rank) for trace in measured.traces for rank in trace.ranks}
    rows = measured.timeline.steps.filter(pl.col("kept") & (pl.col("step") == measured.step.step)).sort("rank_index")
    captured = {place_of[index][1].rank for index in rows["rank_index"]}
    unknown = sorted(set(ranks) - captured)
    if unknown:
        listed = ", ".join(map(str, sorted(captured)))
        raise UsageError(
            f"--rank: expected a rank that captured step {measured.step.step} ({listed}), found {unknown[0]}"
        )
    common = measured.clock.add_common_times(rows)
    is_aligned = not common["common_start_ns"].has_nulls()
    if not is_aligned:
        common = common.with_columns(common_start_ns=pl.lit(0, dtype=pl.Int64))
    of_rank = [place_of[index][1].rank for index in rows["rank_index"]]
    starts = common["common_start_ns"].to_list()
    first = min(start for start, rank in zip(starts, of_rank, strict=True) if not ranks or rank in ranks)
    windows = [
        Window(*place_of[row["rank_index"]], row["start_ns"], row["end_ns"], row["start_ns"] - (start - first))
        for row, start in zip(rows.iter_rows(named=True), starts, strict=True)
    ]
    return sorted(windows, key=lambda window: (window.rank.rank, window.rank.rank_index)), is_aligned


def _make_ranks(measured: MeasuredStep, windows: Sequence[Window], ranks: Collection[int]) -> Iterator[RankTracks]:
    zero_ns = {window.rank.rank_index: window.zero_ns for window in windows}
    step = pl.col("step") == measured.step.step
    slices = measured.slices.filter(step)
    gaps = measured.gaps.stretches.filter(step)
    for window in windows:
        index = window.rank.rank_index
        if ranks and window.rank.rank not in ranks:
            continue
        of_rank = pl.col("rank_index") == index
        has_path = window.rank.rank in ranks if ranks else index == measured.step.rank_index
        path, on_path = _find_path(measured.graph, zero_ns, window) if has_path else ([], frozenset[int]())
        tracks = [
            Track("budget", _list_owners(slices.filter(of_rank), window)),
            Track("why no compute ran", _list_causes(gaps.filter(of_rank), window)),
            *([Track("critical path", path)] if path else []),
        ]
        device, host, arrows = _list_activity(measured, window, on_path, len(tracks))
        yield RankTracks(window.rank.rank, (*tracks, *device, *host), tuple(arrows))


def _find_path(
    graph: StepGraph | None, zero_ns: Mapping[int, int], window: Window
) -> tuple[list[Slice], frozenset[int]]:
    """The critical path of the rank's step, and the numbers of the operations on it."""
    replayed = _replay_captured(graph, window)
    if graph is None or replayed is None:
        return [], frozenset()
    path = find_critical_path(graph, graph.work, *replayed)
    running = path.segments.filter(pl.col("what") == OPERATION)["operation"].drop_nulls()
    return place_critical_path(graph, path, zero_ns, window.shown), frozenset(running.to_list())


def find_operations_on_path(graph: StepGraph | None, window: Window) -> frozenset[int]:
    """The numbers of the operations on the critical path of the rank's step; empty where it was not replayed."""
    replayed = _replay_captured(graph, window)
    if graph is None or replayed is None:
        return frozenset()
    return list_operations_on_path(graph, graph.work, *replayed)


def _replay_captured(graph: StepGraph | None, window: Window) -> tuple[Times, int] | None:
    """The replay of the captured step, and the place of the rank in ``graph``; None where it was not replayed."""
    if graph is None or window.rank.rank_index not in graph.ranks:
        return None
    times, place = replay(graph), graph.ranks.index(window.rank.rank_index)
    if times.step_ns[place] <= 0:  # of a damaged trace: what is left of it need not wait for the step to begin
        return None
    return times, place


def join_owners(slices: pl.DataFrame) -> pl.DataFrame:
    """The bucket that owns each stretch of a rank's step: start_ns, end_ns, bucket. They sum to the step's budget."""
    owned = slices.sort("start_ns").with_columns(bucket=OWNER)
    return (
        owned.with_columns(stretch=pl.col("bucket").rle_id())
        .group_by("stretch", maintain_order=True)
        .agg(pl.col("start_ns").first(), pl.col("end_ns").last(), pl.col("bucket").first())
        .drop("stretch")
    )


def _list_owners(slices: pl.DataFrame, window: Window) -> list[Slice]:
    return [
        Slice(
            start - window.zero_ns,
            end - window.zero_ns,
            BUCKET_BY_NAME[bucket].title,
            BUCKET_BY_NAME[bucket].group.value,
            {"bucket": bucket},
        )
        for start, end, bucket in join_owners(slices).iter_rows()
    ]


def join_causes(gaps: pl.DataFrame) -> pl.DataFrame:
    """Stretches of a rank's step without compute: start_ns, end_ns, cause, detail.

    Those of one cause that follow each other without a pause are joined.
    """
    follows = pl.col("start_ns") == pl.col("end_ns").shift(1)
    is_same = (pl.col("cause") == pl.col("cause").shift(1)) & (pl.col("detail") == pl.col("detail").shift(1))
    return (
        gaps.sort("start_ns")
        .with_columns(stretch=(~(follows & is_same)).fill_null(True).cum_sum())
        .group_by("stretch", maintain_order=True)
        .agg(pl.col("start_ns").first(), pl.col("end_ns").last(), pl.col("cause", "detail").first())
        .drop("stretch")
    )


def _list_causes(gaps: pl.DataFrame, window: Window) -> list[Slice]:
    return [
        Slice(
            start - window.zero_ns,
            end - window.zero_ns,
            cause.replace("_", " "),
            "gap",
            {"cause": cause, "detail": detail[:LONGEST_SHOWN_NAME] or None},
        )
        for start, end, cause, detail in join_causes(gaps).iter_rows()
    ]


def _list_activity(
    measured: MeasuredStep, window: Window, on_path: Collection[int], first_track: int
) -> tuple[list[Track], list[Track], list[Arrow]]:
    """Tracks of the device and of the host, and arrows from calls to what they launched.

    ``first_track``: the place of the first of these tracks.
    """
    operations = select_operations(measured, window, on_path)
    device: list[Track] = []
    for stream, of_stream in operations.sort("stream", "start_ns").group_by("stream", maintain_order=True):
        device += lay_out(f"stream {stream[0]}", _list_operations(of_stream, window))
    calls = _list_calls(measured.timeline, window)
    ranges = _list_ranges(window)
    order = list(dict.fromkeys([*operations["launch_thread"].drop_nulls().to_list(), *sorted({*calls, *ranges})]))
    host: list[Track] = []
    call_tracks: dict[int, list[int]] = {}
    for thread in order:
        name = f"thread {thread % THREADS_PER_PROCESS}"
        host += lay_out(f"{name}: NVTX", ranges.get(thread, []))
        laid = lay_out(f"{name}: CUDA calls", calls.get(thread, []))
        begin = first_track + len(device) + len(host)
        call_tracks[thread] = list(range(begin, begin + len(laid)))
        host += laid
    all_tracks = [*device, *host]
    launches: dict[object, tuple[int, int]] = {}  # of nested calls with one correlation the outer one
    for places in call_tracks.values():
        for place in places:
            for found in all_tracks[place - first_track].slices:
                launches.setdefault(found.details["correlation"], (place, found.start_ns))
    arrows = []
    for place, track in enumerate(device, first_track):
        for found in track.slices:
            launch = launches.get(found.details["correlation"]) if found.details["thread"] is not None else None
            if launch is not None and launch[1] <= found.start_ns:
                arrows.append(Arrow(*launch, place, found.start_ns))
    return device, host, arrows


def select_operations(measured: MeasuredStep, window: Window, on_path: Collection[int]) -> pl.DataFrame:
    """What ran on the device in the step, with labels where they are known, and ``on_path``."""
    index, graph = window.rank.rank_index, measured.graph
    inside = measured.timeline.operations.filter(
        (pl.col("rank_index") == index) & (pl.col("start_ns") < window.end_ns) & (pl.col("end_ns") > window.start_ns)
    )
    if graph is None or index not in graph.ranks:
        return inside
    labelled = (
        graph.operations.with_row_index("number")
        .filter((pl.col("rank_index") == index) & (pl.col("end_ns") > window.start_ns))
        .with_columns(on_path=pl.when(pl.col("number").is_in(list(on_path))).then(True))
    )
    return pl.concat([inside.filter(pl.col("start_ns") < window.start_ns), labelled], how="diagonal_relaxed")


def _list_operations(operations: pl.DataFrame, window: Window) -> Iterator[Slice]:
    names = window.trace.names
    begin, end = window.shown
    for row in operations.iter_rows(named=True):
        start_ns, end_ns = row["start_ns"] - window.zero_ns, row["end_ns"] - window.zero_ns
        full_name, category = names.get(row["name_id"], ""), str(row["category"])
        launch_ns = row["launch_start_ns"]
        yield Slice(
            max(start_ns, begin),
            min(end_ns, end),
            (names.get(row["short_name_id"]) or full_name or BUCKET_BY_NAME[category].title)[:LONGEST_SHOWN_NAME],
            category,
            {
                "kernel": full_name[:LONGEST_SHOWN_NAME] or None,
                "module": row.get("module"),
                "layer": row.get("layer"),
                "micro_batch": row.get("micro_batch"),
                "direction": row.get("direction"),
                "on_critical_path": row.get("on_path"),
                "launch_to_start_us": None if launch_ns is None else (row["start_ns"] - launch_ns) / 1000,
                "whole_duration_us": (end_ns - start_ns) / 1000 if start_ns < begin or end_ns > end else None,
                "bytes": row["bytes"],
                "grid": None if row["grid_x"] is None else [row["grid_x"], row["grid_y"], row["grid_z"]],
                "correlation": row["correlation"],
                "thread": None if row["launch_thread"] is None else row["launch_thread"] % THREADS_PER_PROCESS,
            },
        )


def select_calls(timeline: Timeline, window: Window) -> pl.DataFrame:
    """The CUDA calls of the rank's process in the step: thread, start_ns, end_ns, name, correlation."""
    calls = (
        timeline.api_calls.during({window.trace.capture_id: [(window.start_ns, window.end_ns)]})
        .frame()
        .filter(
            (pl.col("process") == window.rank.process)
            & (pl.col("start_ns") < window.end_ns)
            & (pl.col("end_ns") > window.start_ns)
        )
        .with_columns(pl.col("name").cast(pl.String).str.replace(API_VERSION, ""))
    )
    return calls.select("thread", "start_ns", "end_ns", "name", "correlation")


def _list_calls(timeline: Timeline, window: Window) -> dict[int, list[Slice]]:
    found: dict[int, list[Slice]] = {}
    begin, end = window.shown
    for thread, start_ns, end_ns, name, correlation in select_calls(timeline, window).iter_rows():
        found.setdefault(thread, []).append(
            Slice(
                max(start_ns - window.zero_ns, begin),
                min(end_ns - window.zero_ns, end),
                (name or "unknown call")[:LONGEST_SHOWN_NAME],
                "cuda_call",
                {"correlation": correlation},
            )
        )
    return found


def _list_ranges(window: Window) -> dict[int, list[Slice]]:
    """The NVTX ranges of each thread of the rank's process; of very many the longest."""
    read = read_ranges_between(window.trace.path, window.rank.process, window.start_ns, window.end_ns)
    clipped = (
        read.with_columns(
            start_ns=pl.col("start_ns").clip(lower_bound=window.start_ns),
            end_ns=pl.col("end_ns").fill_null(window.end_ns).clip(upper_bound=window.end_ns),
        )
        .filter(pl.col("end_ns") > pl.col("start_ns"))
        .sort(
            pl.col("end_ns") - pl.col("start_ns"), "thread", "start_ns", "text", descending=[True, False, False, False]
        )
        .head(MOST_RANGES)
    )
    found: dict[int, list[Slice]] = {}
    shown: dict[str, str] = {}
    for thread, start_ns, end_ns, text in clipped.select("thread", "start_ns", "end_ns", "text").iter_rows():
        name, sizes, sequence = read_operator_text(text)
        if name not in shown:
            shown[name] = cut_private(name)[:LONGEST_SHOWN_NAME]
        found.setdefault(thread, []).append(
            Slice(
                start_ns - window.zero_ns,
                end_ns - window.zero_ns,
                shown[name],
                "nvtx",
                {"sequence": sequence, "shapes": sizes},
            )
        )
    return found
