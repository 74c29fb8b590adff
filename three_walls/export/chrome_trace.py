"""A step in the Chrome trace event format, which Perfetto and chrome://tracing open: JSON with a line per event.

Format: "Trace Event Format" of the Chromium project. Times are microseconds with three decimals, so exact to the ns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as quote
from typing import Any, NamedTuple

import polars as pl

from three_walls.export.lanes import (
    MeasuredStep,
    Window,
    find_path,
    list_calls,
    list_causes,
    list_operations,
    list_operations_on,
    list_owners,
    list_path,
    list_ranges,
    list_windows,
    name_by_id,
    name_threads,
)
from three_walls.lib.version import VERSION
from three_walls.replay.find_critical_path import GAP, HOST
from three_walls.step.intervals import DURATION
from three_walls.step.operators import LONGEST_SHOWN_NAME, read_operator_text
from three_walls.step.step_tables import Intervals, Operations
from three_walls.tables.buckets import BUCKET_BY_NAME, BUCKET_TITLES
from three_walls.tables.shareable import cut_private
from three_walls.trace.read_tables import THREADS_PER_PROCESS, read_ranges_between

_GROUPS = {name: bucket.group.value for name, bucket in BUCKET_BY_NAME.items()}
_IN_JSON = ("grid", "shapes")
"""Details that are JSON already."""


class Track(NamedTuple):
    """A row of slices: start_ns and end_ns from the start of the exported step, name, category, and details.

    They are sorted by start, the outer before the inner; two of them nest or do not overlap. Null details are not
    known, or do not apply.
    """

    name: str
    slices: Intervals


@dataclass(frozen=True, slots=True)
class RankTracks:
    """Everything of one rank."""

    rank: int
    tracks: tuple[Track, ...]
    arrows: Sequence[tuple[int, int, int, int]]
    """From launch calls to what they launched: place in ``tracks`` and time of the call, then of the operation."""


@dataclass(frozen=True, slots=True)
class StepTracks:
    """One step of some ranks. ``ranks`` can be iterated once: each rank is made when it is its turn."""

    step: int
    why: str
    """Which step it is and why that one."""
    notes: tuple[str, ...]
    """What the step lacks, and how to read it."""
    ranks: Iterable[RankTracks]


def list_step_tracks(measured: MeasuredStep, ranks: Collection[int] = ()) -> StepTracks:
    """The tracks of the representative step, of the ranks numbered ``ranks`` or of all that captured it.

    Raises UsageError for a rank that did not capture it. Reading a rank raises InputError where its trace cannot be
    read any more.
    """
    windows, is_aligned = list_windows(measured, ranks)
    notes = [
        "Every kernel, copy, CUDA call and NVTX range of the step is written, cut to the step. Left out are NVTX "
        "marks, CUDA events, memory, hardware counters, samples of the CPU, and what a name has beyond "
        f"{LONGEST_SHOWN_NAME} characters.",
        "Layers and micro-batches are counted per rank, from 0.",
    ]
    if measured.graph is None:
        notes.append(f"No critical path, layers and modules: {measured.missing_reason}.")
    else:
        notes.append(
            "The critical path is that of the captured step; the report's is of the step without the profiler's cost."
        )
    if not is_aligned:
        notes.append("The clocks of the ranks cannot be compared, so every rank begins at 0.")
    step = measured.step
    return StepTracks(step.step, step.why, tuple(notes), _make_ranks(measured, windows, ranks))


def _make_ranks(measured: MeasuredStep, windows: Sequence[Window], ranks: Collection[int]) -> Iterator[RankTracks]:
    zero_ns = {window.rank.rank_index: window.zero_ns for window in windows}
    for window in windows:
        number, index = window.rank.rank, window.rank.rank_index
        if ranks and number not in ranks:
            continue
        of_step = (pl.col("step") == measured.step.step) & (pl.col("rank_index") == index)
        tracks = [
            Track("budget", _show_owners(list_owners(measured.slices.filter(of_step)), window)),
            Track("why no compute ran", _show_causes(list_causes(measured.gaps.stretches.filter(of_step)), window)),
        ]
        path = find_path(measured.graph, window) if ranks or index == measured.step.rank_index else None
        if measured.graph is not None and path is not None:
            segments = list_path(measured.graph, path, zero_ns, window)
            tracks += [Track("critical path", _show_path(segments, window))] if segments.height else []
        operations = list_operations(measured, window, list_operations_on(path))
        arrows = _add_activity(tracks, operations, list_calls(measured.timeline, window), window)
        yield RankTracks(number, tuple(tracks), arrows)


def _add_activity(
    tracks: list[Track], operations: Operations, calls: pl.DataFrame, window: Window
) -> list[tuple[int, int, int, int]]:
    """Adds the tracks of the device and of the host, and gives the arrows from calls to what they launched."""
    launching = operations["launch_thread"].drop_nulls().to_list()
    first = len(tracks)
    for (stream,), part in _show_operations(operations, window).group_by("stream", maintain_order=True):
        tracks += lay_out(f"stream {stream}", part.drop("stream"))
    device = range(first, len(tracks))
    of_threads = _show_calls(calls, window).partition_by("thread", as_dict=True, include_key=False)
    in_step = read_ranges_between(window.trace.path, window.rank.process, window.start_ns, window.end_ns)
    ranges = _show_ranges(list_ranges(in_step, window), window)
    of_ranges = ranges.partition_by("thread", as_dict=True, include_key=False)
    launches: dict[int | None, tuple[int, int]] = {}  # of nested calls with one correlation the outer one
    name_thread = name_threads(window)
    others = sorted(key[0] for key in {*of_threads, *of_ranges})
    for thread in dict.fromkeys([*launching, *others]):
        name = name_thread(thread)
        if (thread,) in of_ranges:
            tracks += lay_out(f"{name}: NVTX", of_ranges[thread,])
        call_tracks = lay_out(f"{name}: CUDA calls", of_threads[thread,]) if (thread,) in of_threads else []
        for place, track in enumerate(call_tracks, len(tracks)):
            for correlation, start_ns in track.slices.select("correlation", "start_ns").iter_rows():
                launches.setdefault(correlation, (place, start_ns))
        tracks += call_tracks
    arrows = []
    for place in device:
        launched = tracks[place].slices.filter(pl.col("thread").is_not_null())
        for correlation, start_ns in launched.select("correlation", "start_ns").iter_rows():
            launch = launches.get(correlation)
            if launch is not None and launch[1] <= start_ns:
                arrows.append((*launch, place, start_ns))
    return arrows


def lay_out(name: str, slices: Intervals) -> list[Track]:
    """``slices`` on as few tracks as keep slices that overlap without nesting apart, the first called ``name``."""
    ordered = slices.sort("start_ns", "end_ns", "name", descending=[False, True, False], maintain_order=True)
    open_ends: list[list[int]] = []
    places = []
    for start_ns, end_ns in ordered.select("start_ns", "end_ns").iter_rows():
        place = next((place for place, ends in enumerate(open_ends) if _has_room(ends, start_ns, end_ns)), None)
        if place is None:
            place = len(open_ends)
            open_ends.append([])
        open_ends[place].append(end_ns)
        places.append(place)
    on_track = pl.Series(places, dtype=pl.Int64)
    return [
        Track(name if place == 0 else f"{name} ({place + 1})", ordered.filter(on_track == place))
        for place in range(len(open_ends))
    ]


def _has_room(open_ends: list[int], start_ns: int, end_ns: int) -> bool:
    """Whether a slice begins after all that is open, or lies within it. Takes out what has ended."""
    while open_ends and open_ends[-1] <= start_ns:
        open_ends.pop()
    return not open_ends or end_ns <= open_ends[-1]


# What lanes look like.


def _show(
    items: pl.DataFrame, window: Window, name: pl.Expr, category: pl.Expr, *details: str | pl.Expr
) -> pl.DataFrame:
    return items.select(
        pl.col("start_ns", "end_ns") - window.zero_ns,
        _cut_name(name).alias("name"),
        category.alias("category"),
        *details,
    )


def _cut_name(name: pl.Expr) -> pl.Expr:
    return name.str.head(LONGEST_SHOWN_NAME)


def _show_owners(owners: pl.DataFrame, window: Window) -> pl.DataFrame:
    bucket = pl.col("bucket")
    return _show(owners, window, bucket.replace(BUCKET_TITLES), bucket.replace(_GROUPS), "bucket")


def _show_causes(causes: pl.DataFrame, window: Window) -> pl.DataFrame:
    detail = _cut_name(pl.col("detail")).replace("", None)
    return _show(causes, window, pl.col("cause").str.replace_all("_", " "), pl.lit("gap"), "cause", detail)


def _show_path(segments: pl.DataFrame, window: Window) -> pl.DataFrame:
    what, name = pl.col("what"), pl.col("name").replace("", None).fill_null(pl.col("category"))
    title = pl.when(what == GAP).then(pl.lit("launch latency or gap")).when(what == HOST).then(what).otherwise(name)
    kind = pl.col("kind").alias("waited_for")
    return _show(segments, window, title, pl.col("category"), kind, "module", "on_rank_index")


def _show_operations(operations: Operations, window: Window) -> pl.DataFrame:
    """With their streams, by stream and start."""
    names, category = window.trace.names, pl.col("category").cast(pl.String)
    kernel, short = (
        name_by_id(operations[column], lambda number: names.get(number, "")[:LONGEST_SHOWN_NAME]).replace("", None)
        for column in ("name_id", "short_name_id")
    )
    slices = operations.with_columns(kernel=kernel, short=short).sort("stream", "start_ns", maintain_order=True)
    whole_ns = pl.when(pl.col("whole_ns") != DURATION).then("whole_ns")
    return _show(
        slices,
        window,
        pl.coalesce("short", "kernel", category.replace(BUCKET_TITLES)),
        category,
        "stream",
        "kernel",
        *("stack", "module", "layer", "micro_batch", "direction"),
        pl.col("on_path").alias("on_critical_path"),
        pl.col("launch_ns").alias("launch_to_start_ns"),
        whole_ns.alias("whole_duration_ns"),
        "bytes",
        pl.format("[{},{},{}]", "grid_x", "grid_y", "grid_z").alias("grid"),
        "correlation",
        (pl.col("launch_thread") % THREADS_PER_PROCESS).alias("thread"),
    )


def _show_calls(calls: pl.DataFrame, window: Window) -> pl.DataFrame:
    name = pl.col("name").replace("", None).fill_null("unknown call")
    return _show(calls, window, name, pl.lit("cuda_call"), "thread", "correlation")


def _show_ranges(ranges: pl.DataFrame, window: Window) -> pl.DataFrame:
    parts = [read_operator_text(text) for text in ranges["text"]]
    public = {name: cut_private(name) for name in {name for name, _, _ in parts}}
    slices = ranges.with_columns(
        name=pl.Series([public[name] for name, _, _ in parts], dtype=pl.String),
        sequence=pl.Series([sequence for _, _, sequence in parts], dtype=pl.Int64),
        shapes=pl.Series([None if sizes is None else _to_json(sizes) for _, sizes, _ in parts], dtype=pl.String),
    )
    return _show(slices, window, pl.col("name"), pl.lit("nvtx"), "thread", "sequence", "shapes")


def render_chrome_trace(step: StepTracks) -> Iterator[str]:
    """The document in pieces. A rank is a process, a track one of its threads, an arrow a flow."""
    about = {
        "producer": f"three-walls {VERSION}",
        "step": str(step.step),
        "step_chosen": step.why,
        **{f"note_{place}": note for place, note in enumerate(step.notes, 1)},
    }
    yield f'{{"displayTimeUnit":"ns","otherData":{_to_json(about)},"traceEvents":[\n'
    flow = 0
    separator = ""
    for process, rank in enumerate(step.ranks, 1):
        for lines in _render_rank(process, rank, flow):
            if lines:
                yield separator + ",\n".join(lines)
                separator = ",\n"
        flow += len(rank.arrows)
    yield "\n]}\n"


def _render_rank(process: int, rank: RankTracks, first_flow: int) -> Iterator[list[str]]:
    """The lines of the names, then those of each track, then those of the arrows."""
    names = [
        _name("process_name", process, 0, {"name": f"rank {rank.rank}"}),
        _name("process_sort_index", process, 0, {"sort_index": process}),
    ]
    for thread, track in enumerate(rank.tracks, 1):
        names.append(_name("thread_name", process, thread, {"name": track.name}))
        names.append(_name("thread_sort_index", process, thread, {"sort_index": thread}))
    yield names
    for thread, track in enumerate(rank.tracks, 1):
        yield _render_slices(track.slices, f'"pid":{process},"tid":{thread}')
    arrows = []
    for flow, (from_track, from_ns, to_track, to_ns) in enumerate(rank.arrows, first_flow + 1):
        common = f'"name":"launch","cat":"launch","id":{flow},"pid":{process}'
        arrows.append(f'{{"ph":"s",{common},"tid":{from_track + 1},"ts":{_to_us(from_ns)}}}')
        arrows.append(f'{{"ph":"f","bp":"e",{common},"tid":{to_track + 1},"ts":{_to_us(to_ns)}}}')
    yield arrows


def _render_slices(slices: pl.DataFrame, place: str) -> list[str]:
    keys = [_find_writer(key) for key in slices.columns[4:]]
    lines = []
    for start_ns, end_ns, name, category, *details in slices.iter_rows():
        args = ",".join(
            [key + write(value) for (key, write), value in zip(keys, details, strict=True) if value is not None]
        )
        lines.append(
            f'{{"ph":"X",{place},"ts":{_to_us(start_ns)},"dur":{_to_us(end_ns - start_ns)},'
            f'"name":{quote(name)},"cat":{quote(category)},"args":{{{args}}}}}'
        )
    return lines


def _find_writer(key: str) -> tuple[str, Callable[[Any], str]]:
    """How a detail is written; times in us."""
    if key.endswith("_ns"):
        return f'"{key.removesuffix("_ns")}_us":', lambda ns: _to_json(ns / 1000)
    return f'"{key}":', str if key in _IN_JSON else _to_json


def _name(kind: str, process: int, thread: int, value: object) -> str:
    return f'{{"ph":"M","pid":{process},"tid":{thread},"name":"{kind}","args":{_to_json(value)}}}'


def _to_us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def _to_json(value: object) -> str:
    """ASCII: every other character is escaped. A step has millions of values, nearly all of them texts and integers."""
    if type(value) is str:
        return quote(value)
    if type(value) is int:
        return str(value)
    return _ENCODER.encode(value)
