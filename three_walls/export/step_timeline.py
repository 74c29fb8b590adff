"""The representative step of every rank for the page: the tracks of the export, thinned to what a page can draw.

A few ranks are shown in detail: the representative one, one that is late, and a healthy peer. The others show what owns
their time. Everything of a step is there, up to a number of items that no real step was seen to reach. Where there is
more, neighbours that are shorter than a threshold are joined as long as they are in the same stretch of a few
thresholds; the threshold is the least that is enough. Long items are always kept, and a joined item knows how much time
its parts take.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import polars as pl

from three_walls.export.kernel_table import DescribedOperations, name_part, shorten_name
from three_walls.export.lanes import (
    MeasuredStep,
    Window,
    find_path,
    join_stretches,
    list_calls,
    list_causes,
    list_operations,
    list_operations_on,
    list_owners,
    list_ranges,
    list_windows,
    name_by_id,
    name_threads,
)
from three_walls.export.step_detail_rows import (
    EntryPlaces,
    StepTimeline,
    TimelineCounter,
    TimelineLane,
    TimelineRank,
    TimelineStretch,
)
from three_walls.facts.hardware_metrics import USES
from three_walls.lib.declare import artifact
from three_walls.lib.measurement import Measurement
from three_walls.replay.transform_graph import select_operations
from three_walls.replay.transformation import Selection
from three_walls.step.intervals import DURATION, intersect
from three_walls.step.operators import generalize, name_ranges
from three_walls.step.step_tables import GapCauses, Intervals, NamedRanges, Operations, Slices
from three_walls.tables.buckets import BUCKET_BY_NAME, BUCKET_TITLES, COMMUNICATION_CATEGORIES, IDLE_BUCKETS
from three_walls.trace.read_tables import read_ranges_between
from three_walls.trace.schemas import GpuSamples, Int64Array

MOST_ITEMS = 250_000
"""Of all lanes of all ranks: about 2 MB of a page. A rank's step of real runs has 10,000 to 80,000."""
MOST_DETAILED_RANKS = 3
MOST_COARSE_ITEMS = 200
"""Of the budget of a rank that is not shown in detail; fewer where there are many such ranks."""
MOST_COUNTER_PARTS = 400
LEAST_USE_FRACTION = 0.2
"""A stream is named by what takes this share of its time."""
MOST_PLACES = 5_000
"""Of an entry of the plan."""
MOST_DEPTH = 8
MOST_THREADS = 6
LEAST_THREAD_FRACTION = 0.005
"""Threads that are this share of the step in CUDA calls are shown."""
LISTED = 10
LONGEST_OF_EACH = 3
LONGEST_TEXT = 160

_SHARES = {"modules": 0.05, "budget": 0.10, "gaps": 0.10, "operations": 0.40, "calls": 0.15, "ranges": 0.20}
"""How the items of a rank are divided among the kinds of lanes where there are more than it may have."""
_LEAST_ITEMS = 24
_CELL = 4
"""Neighbours are joined within cells of this many thresholds."""
_DEFAULTS = {
    "category": pl.lit(""),
    "module": pl.lit(""),
    "launch_ns": pl.lit(None, dtype=pl.Int64),
    "wait_ns": pl.lit(0, dtype=pl.Int64),
    "on_path": pl.lit(value=False),
}
_NOT_LAUNCHED = -1


_Texts = dict[str, int]
"""Texts by the place that lanes refer to."""
_Places = Sequence[tuple["PlanChange", pl.DataFrame]]
"""What entries of the plan change, and where in the representative rank's step."""
_BOUNDS = ("start_ns", "end_ns")
_PLACES = pl.Schema({"start_ns": pl.Int64(), "end_ns": pl.Int64(), "bucket": pl.String()})


@dataclass(frozen=True, slots=True)
class PlanChange:
    """What an entry of the plan changes in the step: operations that any of the selections means."""

    order: int
    title: str
    selections: tuple[Selection, ...]


@artifact
def drawn_timeline(
    measured_step: MeasuredStep,
    described_operations: DescribedOperations,
    named_ranges: NamedRanges,
    late_ranks: tuple[int, ...],
    hardware_samples: Measurement[GpuSamples],
    plan_changes: tuple[PlanChange, ...],
) -> StepTimeline:
    """The timeline of the step.

    ``late_ranks``: numbers of ranks that make others wait, the one that costs most first. ``plan_changes``: what the
    entries of the plan change. Raises InputError where a trace cannot be read any more.
    """
    step = measured_step.step
    detailed = _choose_detailed(measured_step, late_ranks)
    is_detailed = pl.col("rank_index").is_in(list(detailed)) & (pl.col("step") == step.step)
    gaps = measured_step.gaps.stretches.filter(is_detailed)
    windows, is_aligned = list_windows(measured_step)
    begin_ns = next(each.start_ns - each.zero_ns for each in windows if each.rank.rank_index == step.rank_index)
    windows = [replace(window, zero_ns=window.zero_ns + begin_ns) for window in windows]
    own = next(window for window in windows if window.rank.rank_index == step.rank_index)
    places = [(change, found) for change in plan_changes if (found := _find_places(measured_step, own, change)).height]
    texts: _Texts = {"": 0}
    ranks = _list_ranks(measured_step, windows, named_ranges, gaps, late_ranks, detailed, places, texts)
    if hardware_samples.value is not None:
        ranks = (replace(ranks[0], counters=_average_counters(hardware_samples.value, own)), *ranks[1:])
    worst_gaps, exposed, longest, *of_entries = _list_stretches(
        measured_step, own, described_operations, gaps, [found for _, found in places]
    )
    return StepTimeline(
        step=step.step,
        rank=step.rank.rank,
        is_aligned=is_aligned,
        texts=tuple(texts),
        ranks=ranks,
        worst_gaps=worst_gaps,
        exposed_intervals=exposed,
        longest=longest,
        entries=tuple(
            EntryPlaces(change.order, stretches) for (change, _), stretches in zip(places, of_entries, strict=True)
        ),
    )


def _find_places(measured: MeasuredStep, window: Window, change: PlanChange) -> pl.DataFrame:
    """Stretches of the rank in which nothing starts but what ``change`` changes, each with its longest category; the
    whole step without one where that is everything."""
    graph, everything = measured.graph, Selection()
    if graph is None:
        return pl.DataFrame(schema=_PLACES)
    if everything in change.selections:
        return pl.DataFrame([(window.start_ns, window.end_ns, "")], schema=_PLACES, orient="row")
    meant = np.zeros(graph.operations.height, dtype=bool)
    for selection in change.selections:
        meant |= select_operations(graph, selection)
    of_rank = graph.operations.with_columns(meant=meant).filter(
        pl.col("rank_index") == window.rank.rank_index,
        pl.col("end_ns") > window.start_ns,
        pl.col("start_ns") < window.end_ns,
    )
    return (
        of_rank.sort("start_ns", "end_ns")
        .with_columns(run=pl.col("meant").rle_id(), bucket=pl.col("category").cast(pl.String))
        .filter("meant")
        .group_by("run", maintain_order=True)
        .agg(pl.col("start_ns").first(), pl.col("end_ns").max(), pl.col("bucket").sort_by(DURATION).last())
        .select(*_PLACES)
    )


def _list_ranks(
    measured: MeasuredStep,
    windows: Sequence[Window],
    named_ranges: NamedRanges,
    gaps: GapCauses,
    late: Sequence[int],
    detailed: Collection[int],
    places: _Places,
    texts: _Texts,
) -> tuple[TimelineRank, ...]:
    """The ranks in the order of the page: first those in detail, which share the items that the others leave."""
    representative = measured.step.rank_index
    coarse_count = len(windows) - len(detailed)
    most_coarse = min(MOST_COARSE_ITEMS, MOST_ITEMS // 4 // max(1, coarse_count))
    most_detailed = MOST_ITEMS - most_coarse * coarse_count

    def in_order(window: Window) -> tuple[bool, bool, bool, int, int]:
        index, number = window.rank.rank_index, window.rank.rank
        return index != representative, index not in detailed, number not in late, number, index

    slices = measured.slices.filter(pl.col("step") == measured.step.step)
    slices_of = slices.partition_by("rank_index", as_dict=True)
    ranks = []
    for window in sorted(windows, key=in_order):
        index = window.rank.rank_index
        own = slices_of.get((index,), slices.clear())
        if index in detailed:
            weight = 2 if index == representative else 1
            most = most_detailed * weight // (len(detailed) + 1)
            in_step = (window.trace.path, window.rank.process, window.start_ns, window.end_ns)
            ranges = named_ranges if index == representative else name_ranges(read_ranges_between(*in_step))
            of_plan = places if index == representative else ()
            lanes, items = _list_lanes(measured, window, own, ranges, gaps, of_plan, texts, most)
        else:
            lanes, items = [_make_budget(own, window, texts, most_coarse)], own.height
        begin, length = window.start_ns - window.zero_ns, window.end_ns - window.start_ns
        role = _name_role(window, measured, late, detailed)
        ranks.append(TimelineRank(window.rank.rank, begin, length, window.zero_ns, role, tuple(lanes), items))
    return tuple(ranks)


def _average_counters(samples: GpuSamples, window: Window) -> tuple[TimelineCounter, ...]:
    """What of the GPU was in use in each of as many equal parts of the step as a page can draw."""
    count = min(MOST_COUNTER_PARTS, samples.height)
    bounds = np.linspace(window.start_ns, window.end_ns, count + 1).astype(np.int64)
    parts = pl.DataFrame({"part": np.arange(count), "start_ns": bounds[:-1], "end_ns": bounds[1:]}).with_columns(
        gpu=pl.lit(samples["gpu"][0], dtype=pl.Int64)
    )
    averages = [(use * DURATION).sum() / DURATION.filter(use.is_not_null()).sum() * 100 for use in USES.values()]
    percent = (
        intersect(samples, parts, ["gpu"], carry=["part"])
        .group_by("part")
        .agg(average.round().alias(name) for name, average in zip(USES, averages, strict=True))
    )
    drawn = (
        parts.select("part")
        .join(percent, on="part", how="left", maintain_order="left")
        .select(pl.col(*USES).fill_nan(None).cast(pl.Int64))
    )
    return tuple(
        TimelineCounter(name, tuple(drawn[name].to_list())) for name in USES if drawn[name].null_count() < count
    )


def _choose_detailed(measured: MeasuredStep, late: Sequence[int]) -> frozenset[int]:
    """Indices of the ranks to show in detail: the representative one, the first late one, a healthy peer; then others.

    ``late``: numbers of ranks that make others wait, the one that costs most first.
    """
    step = measured.step
    captured = measured.timeline.steps.filter(pl.col("kept") & (pl.col("step") == step.step))["rank_index"].to_list()
    number = {rank.rank_index: rank.rank for trace in measured.traces for rank in trace.ranks}
    ordered = sorted(captured, key=lambda index: (number[index], index))
    first_late = [index for rank in late for index in ordered if number[index] == rank]
    healthy = [index for index in ordered if number[index] not in late]
    by_interest = dict.fromkeys([step.rank_index, *first_late[:1], *healthy, *ordered])
    return frozenset([*by_interest][:MOST_DETAILED_RANKS])


def _name_role(window: Window, measured: MeasuredStep, late: Collection[int], detailed: Collection[int]) -> str:
    if window.rank.rank_index == measured.step.rank_index:
        return "representative"
    if window.rank.rank in late:
        return "late"
    return "healthy" if late and window.rank.rank_index in detailed else "other"


def _list_lanes(
    measured: MeasuredStep,
    window: Window,
    slices: Slices,
    named_ranges: NamedRanges,
    gaps: GapCauses,
    places: _Places,
    texts: _Texts,
    most: int,
) -> tuple[list[TimelineLane], int]:
    """The lanes of one rank in detail, and how many items they are made of."""
    is_representative = window.rank.rank_index == measured.step.rank_index
    path = find_path(measured.graph, window) if is_representative else None
    operations = _describe(list_operations(measured, window, list_operations_on(path)), measured, window)
    calls, threads = _choose_calls(list_calls(measured.timeline, window), window, operations["launch_thread"].unique())
    ranges = list_ranges(named_ranges.filter(pl.col("thread").is_in(threads)), window)
    causes = list_causes(gaps.filter(pl.col("rank_index") == window.rank.rank_index)).select(
        *_BOUNDS, text="detail", category="cause"
    )
    modules = _join_modules(operations)
    count = operations.height + calls.height + ranges.height
    share_of = {kind: int(share * most) for kind, share in _SHARES.items()}
    left = most - sum(rows.height for rows in (operations, calls, causes, modules, list_owners(slices)))
    if left >= share_of["ranges"]:  # everything else fits
        share_of = dict.fromkeys(_SHARES, most) | {"ranges": left}
    if ranges.height > share_of["ranges"]:  # a range that others are in is not joined with its neighbours
        longest = ranges.with_row_index("row").sort(DURATION, "row", descending=[True, False])
        ranges = longest.head(share_of["ranges"]).sort("row").drop("row")
    ranges = ranges.with_columns(depth=_find_depths(ranges), text=name_by_id(ranges["name"], generalize))
    of_depth = ranges.partition_by("thread", "depth", as_dict=True)
    lanes = [
        _make_lane(
            "entries",
            found.select(*_BOUNDS, text=pl.lit(change.title)),
            MOST_PLACES,
            window,
            texts,
            f"entry {change.order}",
        )
        for change, found in places
    ]
    if modules.height:
        lanes.append(_make_lane("modules", modules, share_of["modules"], window, texts))
    lanes.append(_make_budget(slices, window, texts, share_of["budget"]))
    lanes.append(_make_lane("gaps", causes, share_of["gaps"], window, texts))
    name_thread = name_threads(window)
    for thread in threads:
        for depth in range(MOST_DEPTH):
            if (thread, depth) in of_depth:
                items = of_depth[thread, depth]
                lanes.append(_make_lane("ranges", items, items.height, window, texts, name_thread(thread), depth))
    for kind, rows, column in (("calls", calls, "thread"), ("operations", operations, "stream")):
        for key, of_lane in _divide(rows, column):
            share = max(_LEAST_ITEMS, share_of[kind] * of_lane.height // max(1, rows.height))
            name = name_thread(key) if kind == "calls" else f"stream {key} {_name_use(of_lane)}"
            lanes.append(_make_lane(kind, of_lane, share, window, texts, name))
    return lanes, count


def _name_use(operations: pl.DataFrame) -> str:
    """What a stream is used for: the groups of buckets that take much of its time."""
    groups = {name: str(BUCKET_BY_NAME[name].group.value) for name in operations["category"].unique().to_list()}
    busy = (
        operations.group_by(pl.col("category").replace(groups).alias("group"))
        .agg(share=DURATION.sum() / operations.select(DURATION.sum()).item())
        .filter(pl.col("share") >= LEAST_USE_FRACTION)
    )
    return ", ".join(busy.sort("share", "group", descending=[True, False])["group"])


def _divide(rows: pl.DataFrame, column: str) -> Iterator[tuple[int, pl.DataFrame]]:
    """``rows`` by the value of ``column``, the most busy one first."""
    parts = [(int(part[column][0]), part) for part in rows.partition_by(column)]
    yield from sorted(parts, key=lambda part: (-int(part[1].select(DURATION.sum()).item()), part[0]))


def _describe(operations: Operations, measured: MeasuredStep, window: Window) -> pl.DataFrame:
    of_rank = measured.arrivals.filter(pl.col("rank_index") == window.rank.rank_index, "resolved")
    waits = of_rank.select("stream", "start_ns", "wait_ns").unique(["stream", "start_ns"], keep="first")
    operations = operations.join(waits, on=["stream", "start_ns"], how="left", maintain_order="left")
    kernel = name_by_id(operations["name_id"], lambda name: shorten_name(window.trace.names.get(name, "")))
    words = (*map(pl.col, ("stack", "module", "direction")), pl.format("layer {}", "layer"))
    category = pl.col("category").cast(pl.String)
    return operations.select(
        "stream",
        "launch_thread",
        "start_ns",
        "end_ns",
        text=pl.coalesce(kernel.replace("", None), category.replace(BUCKET_TITLES)),
        category=category,
        module=pl.concat_str(words, separator=" ", ignore_nulls=True),
        launch_ns=pl.col("launch_ns").clip(lower_bound=0),
        wait_ns=pl.min_horizontal(pl.col("wait_ns").fill_null(0).clip(lower_bound=0), DURATION),
        on_path=pl.col("on_path").fill_null(value=False),
    )


def _join_modules(operations: pl.DataFrame) -> pl.DataFrame:
    """Modules and layers in the order in which they begin, on any stream: neighbours of one module are one item."""
    return (
        operations.filter(pl.col("module").fill_null("") != "")
        .sort("start_ns", "end_ns", "module")
        .with_columns(run=pl.col("module").rle_id())
        .group_by("run", maintain_order=True)
        .agg(pl.col("start_ns").first(), pl.col("end_ns").max(), text=pl.col("module").first())
        .with_columns(pl.min_horizontal("end_ns", pl.col("start_ns").shift(-1)).alias("end_ns"))
        .drop("run")
    )


def _choose_calls(calls: pl.DataFrame, window: Window, launching: pl.Series) -> tuple[pl.DataFrame, list[int]]:
    """CUDA calls that are in no other one, of the threads that are listed, and these threads.

    ``launching``: threads that launched something; others are listed where they are in calls for long.
    """
    least_ns = LEAST_THREAD_FRACTION * (window.end_ns - window.start_ns)
    busy = (
        calls.group_by("thread")
        .agg(ns=pl.col("whole_ns").sum())
        .filter((pl.col("ns") >= least_ns) | pl.col("thread").is_in(launching.to_list()))
        .sort("ns", "thread", descending=[True, False])
    )
    threads = busy["thread"].head(MOST_THREADS).to_list()
    ordered = calls.filter(pl.col("thread").is_in(threads)).sort(
        "thread", "start_ns", "end_ns", descending=[False, False, True], maintain_order=True
    )
    before = pl.col("end_ns").cum_max().shift(1).over("thread")
    outer = ordered.filter((pl.col("start_ns") >= before).fill_null(value=True)).select(
        "thread", "start_ns", "end_ns", text=pl.col("name").fill_null("unknown call")
    )
    return outer, threads


def _find_depths(ranges: NamedRanges) -> pl.Series:
    """Per range how many others of its thread are around it. ``ranges``: by thread and start, the outer first."""
    depths: list[int] = []
    stack: list[int] = []
    last: int | None = None
    for thread, start, end in ranges.select("thread", "start_ns", "end_ns").iter_rows():
        if thread != last:
            stack, last = [], thread
        while stack and stack[-1] <= start:
            stack.pop()
        depths.append(len(stack))
        stack.append(min(end, stack[-1]) if stack else end)
    return pl.Series(depths, dtype=pl.Int64)


def _make_budget(slices: Slices, window: Window, texts: _Texts, most: int) -> TimelineLane:
    owners = list_owners(slices).select("start_ns", "end_ns", text=pl.lit(""), category="bucket")
    return _make_lane("budget", owners, most, window, texts)


LaneItems = Annotated[
    Intervals,
    {
        "text": pl.String,
        "category": pl.String,
        "module": pl.String,
        "launch_ns": pl.Int64,  # from launch to start
        "wait_ns": pl.Int64,  # until the last member of a collective arrives
        "on_path": pl.Boolean,
    },
]

ThinnedItems = Annotated[LaneItems, {"count": pl.Int64, "busy_ns": pl.Int64}]
"""Items that follow closely, as one."""


def thin(items: LaneItems, most: int) -> ThinnedItems:
    """At most about ``most`` items, with ``count`` and ``busy_ns``.

    Raises AssertionError unless the time of the items stays the same.
    """
    alone = items.with_columns(count=pl.lit(1, dtype=pl.Int64), busy_ns=DURATION)
    if items.height <= most:
        return alone
    span = int(items.select(pl.col("end_ns").max() - pl.col("start_ns").min()).item())
    threshold = max(1, span // max(1, most) // _CELL // 4)
    numbers = alone["start_ns"].to_numpy(), alone["busy_ns"].to_numpy()
    while threshold <= span and len(_find_groups(*numbers, threshold)) > most:
        threshold *= 2
    joined = _join(alone, threshold)
    assert joined["busy_ns"].sum() == alone["busy_ns"].sum(), "joined items do not sum to the time of their parts"
    return joined


def _find_groups(start_ns: Int64Array, length_ns: Int64Array, threshold: int) -> Int64Array:
    """The first of the items that :func:`_join` makes one: neighbours shorter than ``threshold`` within a cell."""
    is_short = length_ns < threshold
    cell = start_ns // (threshold * _CELL)
    follows = is_short[1:] & is_short[:-1] & (cell[1:] == cell[:-1])
    return np.flatnonzero(np.append(True, ~follows))


def _join(items: pl.DataFrame, threshold: int) -> pl.DataFrame:
    """``items`` with neighbours shorter than ``threshold`` joined within cells of a few thresholds."""
    start_ns, end_ns, busy_ns, counts = (items[name].to_numpy() for name in ("start_ns", "end_ns", "busy_ns", "count"))
    first = _find_groups(start_ns, busy_ns, threshold)
    sizes = np.diff(first, append=items.height)
    group = np.repeat(np.arange(len(first)), sizes)
    is_longest = busy_ns == np.maximum.reduceat(busy_ns, first)[group]
    places = np.flatnonzero(is_longest)
    longest = places[np.diff(group[places], prepend=-1) > 0]
    categories = items["category"].unique().sort()
    cells = group * len(categories) + items["category"].rank("dense").to_numpy() - 1
    shares = np.bincount(cells, busy_ns, len(first) * len(categories))
    shares[np.bincount(cells, minlength=len(shares)) == 0] = -1  # a category that is not there
    largest = shares.reshape(len(first), -1).argmax(axis=1)
    launch_ns = pl.Series(np.where(sizes == 1, first, -1)).replace(-1, None)
    return pl.DataFrame(
        {
            "start_ns": start_ns[first],
            "end_ns": np.maximum.reduceat(end_ns, first),
            "text": items["text"].gather(longest),
            "module": items["module"].gather(longest),
            "launch_ns": items["launch_ns"].gather(launch_ns),
            "wait_ns": np.add.reduceat(items["wait_ns"].to_numpy(), first),
            "on_path": np.logical_or.reduceat(items["on_path"].to_numpy(), first),
            "count": np.add.reduceat(counts, first),
            "busy_ns": np.add.reduceat(busy_ns, first),
            "category": categories.gather(largest),
        }
    )


def _make_lane(
    kind: str, rows: pl.DataFrame, most: int, window: Window, texts: _Texts, name: str = "", depth: int = 0
) -> TimelineLane:
    """The lane of ``rows``, thinned to ``most``. A column of LaneItems that they lack has the same value for all."""
    absent = [value.alias(name) for name, value in _DEFAULTS.items() if name not in rows.columns]
    items = rows.with_columns(*absent).select("start_ns", "end_ns", "text", *_DEFAULTS)
    items = thin(items.sort("start_ns", "end_ns", "text"), most)
    starts = items["start_ns"].to_numpy() - window.zero_ns
    counts = items["count"].to_list()
    is_joined = max(counts, default=1) > 1
    path = np.flatnonzero(items["on_path"].to_numpy())
    of_operations = kind == "operations"

    def place(text: str | None) -> int:
        return texts.setdefault((text or "")[:LONGEST_TEXT], len(texts))

    modules = [place(module) for module in items["module"]] if of_operations else []
    return TimelineLane(
        kind=kind,
        name=name,
        depth=depth,
        start_ns=tuple(np.diff(starts, prepend=0).tolist()),
        length_ns=tuple(items.select(DURATION).to_series().to_list()),
        text=tuple(map(place, items["text"])),
        category=tuple(map(place, items["category"])) if kind not in _UNCOLOURED else (),
        count=tuple(counts) if is_joined else (),
        busy_ns=tuple(items.filter(pl.col("count") > 1)["busy_ns"].to_list()),
        module=tuple(modules) if any(modules) else (),
        launch_ns=tuple(items["launch_ns"].fill_null(_NOT_LAUNCHED).to_list()) if of_operations else (),
        wait_ns=tuple(items["wait_ns"].to_list()) if items["wait_ns"].sum() else (),
        on_path=tuple(np.diff(path, prepend=0).tolist()),
    )


_UNCOLOURED = ("entries", "modules", "ranges", "calls")


class _Step:
    """The representative rank's step, to describe stretches of it."""

    def __init__(self, window: Window, operations: Operations, gaps: pl.DataFrame) -> None:
        """``operations``: what describe_operations gives. ``gaps``: of the rank, by start."""
        self._window = window
        ordered = operations.sort("start_ns", "end_ns")
        self._starts = ordered["start_ns"].to_numpy()
        self._operations = ordered.select("name_id", "bucket", "module", "direction", "operator")
        self._of_bucket = {
            str(part["bucket"][0]): (part["start_ns"].to_numpy(), part["end_ns"].to_numpy(), part["name_id"])
            for part in ordered.partition_by("bucket")
        }
        self._gap_ends = gaps["end_ns"].to_numpy()
        self._gaps = gaps.select("start_ns", "end_ns", "cause", "detail").rows()

    def describe(self, start_ns: int, end_ns: int, category: str) -> TimelineStretch:
        """The stretch of ``category``: a bucket or a cause; empty: the cause that holds most of it."""
        place = int(np.searchsorted(self._starts, end_ns))
        following = self._operations.row(place) if place < self._operations.height else None
        if category in BUCKET_BY_NAME:
            detail = self._find_operation(start_ns, end_ns, category)
        else:
            category, detail = self._find_cause(start_ns, end_ns, category)
            if not detail and following is not None:
                detail = ": ".join(word for word in (name_part(*following[2:4]), following[4]) if word)
        return TimelineStretch(
            rank=self._window.rank.rank,
            start_ns=start_ns - self._window.zero_ns,
            ns=end_ns - start_ns,
            cause=category,
            detail=detail[:LONGEST_TEXT],
            next_name="" if following is None else self._name(following[0], following[1]),
            clock_ns=start_ns,
        )

    def _name(self, name_id: int | None, bucket: str) -> str:
        name = "" if name_id is None else shorten_name(self._window.trace.names.get(name_id, ""))
        return (name or BUCKET_BY_NAME[bucket].title)[:LONGEST_TEXT]

    def _find_operation(self, start_ns: int, end_ns: int, bucket: str) -> str:
        """The operation of ``bucket`` that runs longest in the stretch; empty where none does."""
        if bucket not in self._of_bucket:
            return ""
        starts, ends, names = self._of_bucket[bucket]
        inside = np.minimum(ends, end_ns) - np.maximum(starts, start_ns)
        return self._name(names[int(inside.argmax())], bucket) if inside.max() > 0 else ""

    def _find_cause(self, start_ns: int, end_ns: int, cause: str) -> tuple[str, str]:
        """Cause and detail that hold most of the stretch, of all causes or of ``cause``."""
        sums: dict[tuple[str, str], int] = {}
        for place in range(int(np.searchsorted(self._gap_ends, start_ns, side="right")), len(self._gaps)):
            start, end, cause_of_gap, detail = self._gaps[place]
            if start >= end_ns:
                break
            if not cause or cause == cause_of_gap:
                inside = min(end, end_ns) - max(start, start_ns)
                sums[cause_of_gap, detail] = sums.get((cause_of_gap, detail), 0) + inside
        return min(sums, key=lambda each: (-sums[each], each)) if sums else (cause or "unexplained", "")


def _list_stretches(
    measured: MeasuredStep, window: Window, operations: Operations, gaps: GapCauses, of_entries: Sequence[pl.DataFrame]
) -> tuple[tuple[TimelineStretch, ...], ...]:
    """The longest idle stretches, those of exposed communication, of every bucket and cause, and of each entry."""
    causes = list_causes(gaps.filter(pl.col("rank_index") == measured.step.rank_index))
    step = _Step(window, operations, causes)
    owners = list_owners(measured.step.slices)
    bucket = pl.col("bucket")
    without_work = owners.with_columns(bucket=pl.when(bucket.is_in(IDLE_BUCKETS)).then(pl.lit("")).otherwise(bucket))
    exposed = owners.filter(bucket.is_in(list(COMMUNICATION_CATEGORIES)))
    by_bucket = _take_longest(owners, LONGEST_OF_EACH)
    by_cause = _take_longest(causes.select("start_ns", "end_ns", bucket="cause"), LONGEST_OF_EACH)
    parts = (
        _take_longest(without_work, LISTED).filter(bucket == ""),
        exposed.sort(DURATION, "start_ns", descending=[True, False]).head(LISTED),
        pl.concat([by_bucket.filter(~bucket.is_in(IDLE_BUCKETS)), by_cause]).sort(
            "bucket", DURATION, "start_ns", descending=[False, True, False]
        ),
        *(
            found.filter(bucket != "").sort(DURATION, "start_ns", descending=[True, False]).head(LONGEST_OF_EACH)
            for found in of_entries
        ),
    )
    return tuple(
        tuple(
            step.describe(start, end, category)
            for start, end, category in part.select("start_ns", "end_ns", "bucket").iter_rows()
        )
        for part in parts
    )


def _take_longest(stretches: pl.DataFrame, most: int) -> pl.DataFrame:
    """The ``most`` longest of each bucket, after joining those that follow each other: start_ns, end_ns, bucket."""
    return (
        join_stretches(stretches, "bucket")
        .sort(DURATION, "start_ns", descending=[True, False])
        .group_by("bucket", maintain_order=True)
        .head(most)
        .select("start_ns", "end_ns", "bucket")
    )
