"""Where the threads that launch work spend the representative step outside of CUDA calls: NVTX ranges and operators.

The time of a thread is cut where a range opens or closes and where it launches something. Each stretch belongs to the
innermost range that is open, and to the module of what is launched next. Of a stretch counts what is in no CUDA call;
of that, what is idle time of the device; and what is a gap whose cause is ``starved_nothing_visible``: the next compute
kernel was not launched yet, and its thread was in no CUDA call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

from three_walls.export.kernel_table import DescribedOperations, name_part
from three_walls.export.step_detail_rows import HostWorkRow
from three_walls.lib import limits
from three_walls.lib.declare import artifact
from three_walls.lib.measurement import Measurement
from three_walls.step.attribute_steps import Attribution
from three_walls.step.build_timeline import Timeline, take_rank
from three_walls.step.compute_gaps import Cause
from three_walls.step.operators import generalize, is_place, read_named_ranges
from three_walls.step.ownership import OWNER
from three_walls.step.step_rows import GapCause, RankReport
from three_walls.step.step_tables import GapCauses, Intervals, NamedRanges, Operations
from three_walls.step.step_view import StepView
from three_walls.tables.buckets import COMPUTE_CATEGORIES, IDLE_BUCKETS
from three_walls.trace.read_tables import THREADS_PER_PROCESS
from three_walls.trace.schemas import Int64Array

MOST_ROWS = 60
MOST_RANGES_SHOWN = 4
"""Of the ranges around a stretch the inner ones are named."""
MOST_GAP_PLACES = 12
OTHER_PLACES = "other places"
BETWEEN = "outside of NVTX ranges"
SEPARATOR = " > "

_OPERATOR = "::"
"""In the names of operators (``aten::mm``) and of nothing that a user calls a range."""
_NO_RANGE = 0
_NEVER = 2**62


@dataclass(frozen=True, slots=True)
class HostWork:
    """The rows of the report, and the time that ``starved_nothing_visible`` holds by place."""

    rows: tuple[HostWorkRow, ...] = ()
    starved_ns: Mapping[str, int] = field(default_factory=dict)
    """By what was launched next, in words."""


@artifact
def named_ranges(step: StepView) -> NamedRanges:
    """NVTX ranges of the rank's process in the step. Raises InputError where the trace cannot be read any more."""
    return read_named_ranges(step.trace, step.rank.process, step.operations)


@artifact
def host_work(
    step: StepView,
    timeline: Timeline,
    attribution: Attribution,
    described_operations: DescribedOperations,
    named_ranges: NamedRanges,
) -> HostWork:
    """Host time outside of CUDA calls by place, of each thread that launched something that started in the step.

    Raises AssertionError unless the rows of a thread sum to the step without its CUDA calls.
    """
    operations, ranges, gaps = described_operations, named_ranges, attribution.compute_gaps.stretches
    gaps = gaps.filter((pl.col("rank_index") == step.rank_index) & (pl.col("step") == step.step))
    threads = sorted(operations["launch_thread"].drop_nulls().unique().to_list())
    calls = (
        timeline.api_calls.during({step.trace.capture_id: [step.window]})
        .frame()
        .filter(
            pl.col("thread").is_in(threads) & (pl.col("start_ns") < step.end_ns) & (pl.col("end_ns") > step.start_ns)
        )
    )
    starved = _find_starved_threads(step, timeline, gaps)
    idle = _Stretches.of(step.slices.filter(OWNER.is_in(IDLE_BUCKETS)))
    rows: list[HostWorkRow] = []
    for thread in threads:
        is_own = pl.col("thread") == thread
        in_calls = _Stretches.of(calls.filter(is_own))
        launches = operations.filter(pl.col("launch_thread") == thread).sort("launch_start_ns", "start_ns")
        own_starved = _Stretches.of(starved.filter(is_own))
        of_thread = _measure_thread(step, ranges.filter(is_own), launches, in_calls, idle, own_starved)
        outside_ns = step.step_ns - int(in_calls.within(*np.array([[step.start_ns], [step.end_ns]])).sum())
        assert sum(row.ns for row in of_thread) == outside_ns, (
            "host work does not sum to the time outside of CUDA calls"
        )
        rows += of_thread
    return HostWork(_list_longest(rows), _sum_starvation(rows))


@artifact
def rank_reports(
    rank_rows: tuple[RankReport, ...], step: Measurement[StepView], host_work: Measurement[HostWork]
) -> tuple[RankReport, ...]:
    """The ranks, with more details of the gaps of the representative one."""
    if step.value is None or host_work.value is None:
        return rank_rows
    representative, starved_ns = (step.value.rank.rank, step.value.step), host_work.value.starved_ns
    return tuple(
        _detail_gaps(rank, starved_ns) if (rank.rank, rank.median_index) == representative else rank
        for rank in rank_rows
    )


def _detail_gaps(rank: RankReport, starved_ns: Mapping[str, int]) -> RankReport:
    """``rank`` with the places of ``starved_nothing_visible`` as details of that cause. Its sum stays the same."""
    causes: list[GapCause] = []
    for cause in rank.gap_causes:
        if cause.cause != Cause.NOTHING_VISIBLE or cause.detail or not starved_ns:
            causes.append(cause)
            continue
        longest = sorted(starved_ns.items(), key=lambda each: (-each[1], each[0]))
        parts = [*longest[:MOST_GAP_PLACES], (OTHER_PLACES, sum(ns for _, ns in longest[MOST_GAP_PLACES:]))]
        rest_ns = cause.ns - sum(starved_ns.values())
        assert rest_ns >= 0, "places of starvation exceed the cause"
        causes += [GapCause(cause.cause, ns, place) for place, ns in [*parts, ("", rest_ns)] if ns]
    ordered = sorted(causes, key=lambda each: (-each.ns, each.cause, each.detail))
    return replace(rank, gap_causes=tuple(ordered))


def _sum_starvation(rows: Sequence[HostWorkRow]) -> dict[str, int]:
    """Starvation by what the threads launched next: ``experts forward, most in aten::mm``."""
    by_part: dict[tuple[str, str], dict[str, int]] = {}
    for row in rows:
        if row.starved_ns:
            code = row.operator or row.range.rpartition(SEPARATOR)[2] or BETWEEN
            codes = by_part.setdefault((row.module or "", row.direction or ""), {})
            codes[code] = codes.get(code, 0) + row.starved_ns
    sums = {}
    for (module, direction), codes in by_part.items():
        part = name_part(module, direction)
        if not part and list(codes) == [BETWEEN]:
            continue  # nothing is known of it
        most = min(codes, key=lambda code: (-codes[code], code))
        how = most if len(codes) == 1 else f"most {'' if most == BETWEEN else 'in '}{most}"
        sums[", ".join(word for word in (part, how) if word)] = sum(codes.values())
    return sums


@dataclass(frozen=True, slots=True)
class _Stretches:
    """Stretches of time without overlaps, in order."""

    starts: Int64Array
    ends: Int64Array

    @staticmethod
    def of(intervals: Intervals) -> _Stretches:
        """The union of ``intervals`` (start_ns, end_ns)."""
        ordered = intervals.filter(pl.col("end_ns") > pl.col("start_ns")).sort("start_ns")
        starts, ends = ordered["start_ns"].to_numpy(), ordered["end_ns"].to_numpy()
        covered = np.maximum.accumulate(ends) if len(ends) else ends
        begins = np.append(True, starts[1:] > covered[:-1])[: len(starts)]
        last = np.append(begins[1:], True)[: len(starts)]
        return _Stretches(starts[begins], covered[last])

    def until(self, at: Int64Array) -> Int64Array:
        """How much of the stretches lies before each instant."""
        before = np.append(0, np.cumsum(self.ends - self.starts))
        place = np.searchsorted(self.starts, at, side="right")
        beyond = np.append(0, self.ends)[place] - at
        return np.asarray(before[place] - np.where(place > 0, np.maximum(0, beyond), 0), dtype=np.int64)

    def within(self, start: Int64Array, end: Int64Array) -> Int64Array:
        """How much of the stretches lies between each pair of instants."""
        return np.asarray(self.until(end) - self.until(start), dtype=np.int64)

    def overlap(self, other: _Stretches) -> _Stretches:
        """What is in both."""
        bounds = _sort_unique(self.starts, self.ends, other.starts, other.ends)
        at = bounds[:-1]
        inside = np.ones(len(at), dtype=np.bool_)
        for part in (self, other):
            opened, closed = (np.searchsorted(times, at, side="right") for times in (part.starts, part.ends))
            inside &= opened > closed
        return _Stretches(at[inside], bounds[1:][inside])


def _sort_unique(*times: Int64Array) -> Int64Array:
    ordered = np.sort(np.concatenate(times))
    return np.asarray(ordered[np.append(True, ordered[1:] > ordered[:-1])[: len(ordered)]], dtype=np.int64)


def _find_starved_threads(step: StepView, timeline: Timeline, gaps: GapCauses) -> pl.DataFrame:
    """Gaps without compute that no CUDA call explains, with the ``thread`` whose launch ended them."""
    columns = ("start_ns", "end_ns", "category", "launch_start_ns", "launch_thread")
    computing = (
        take_rank(timeline.operations, step.rank_index)
        .select(columns)
        .filter(
            (pl.col("start_ns") >= step.start_ns)
            & pl.col("category").is_in(list(COMPUTE_CATEGORIES))
            & (pl.col("end_ns") > pl.col("start_ns"))
        )
    )
    following = computing.sort("start_ns", pl.col("launch_start_ns").fill_null(_NEVER), maintain_order=True)
    return (
        gaps.filter(pl.col("cause") == str(Cause.NOTHING_VISIBLE))
        .sort("end_ns")
        .join_asof(
            following.select(thread="launch_thread", next_ns="start_ns"),
            left_on="end_ns",
            right_on="next_ns",
            strategy="forward",
            check_sortedness=False,
        )
        .select("start_ns", "end_ns", "thread")
    )


def _measure_thread(
    step: StepView,
    ranges: NamedRanges,
    launches: Operations,
    in_calls: _Stretches,
    idle: _Stretches,
    starved: _Stretches,
) -> list[HostWorkRow]:
    """A row per place of a thread, in no order. ``launches``: its operations in the order of their launches.

    ``in_calls``: in CUDA calls; ``idle``: nothing runs on the device; ``starved``: no compute kernel runs, because this
    thread has not launched the next one.
    """
    nested = _nest(ranges, step.window)
    launched = launches["launch_start_ns"].to_numpy()
    inside = launched[(launched > step.start_ns) & (launched < step.end_ns)]
    bounds = _sort_unique(nested.bounds, inside, np.array(step.window, dtype=np.int64))
    starts, ends = bounds[:-1], bounds[1:]
    stretch = np.searchsorted(nested.bounds, starts, side="right") - 1
    labels = launches.select("module", "direction").rows()
    known = {label: place for place, label in enumerate(dict.fromkeys([*labels, (None, None)]))}
    label_of = np.array([known[label] for label in [*labels, (None, None)]], dtype=np.int64)
    place = nested.place[stretch] * len(known) + label_of[np.searchsorted(launched, starts, side="left")]
    outside_ns = ends - starts - in_calls.within(starts, ends)
    idle_ns = idle.within(starts, ends) - in_calls.overlap(idle).within(starts, ends)
    frame = pl.DataFrame(
        {
            "place": place,
            "ns": outside_ns,
            "idle_ns": idle_ns,
            "starved_ns": starved.within(starts, ends),
            "range": nested.range[stretch],
        }
    )
    in_range = pl.col("range").filter(pl.col("range") >= 0)
    sums = frame.group_by("place").agg(pl.col("ns", "idle_ns", "starved_ns").sum(), calls=in_range.n_unique())
    thread = launches["launch_thread"][0] % THREADS_PER_PROCESS
    names, label_names = nested.names, list(known)
    return [
        HostWorkRow(thread, *label_names[place % len(known)], *names[place // len(known)], *times)
        for place, *times in sums.iter_rows()
    ]


@dataclass(frozen=True, slots=True)
class _Nested:
    """The time of a thread, cut where its ranges open and close."""

    bounds: Int64Array
    """Where stretches begin."""
    place: Int64Array
    """Per stretch the place that it is in."""
    range: Int64Array
    """Per stretch the innermost range, or -1."""
    names: Sequence[tuple[str, str]]
    """Per place the ranges around it except operators, and the innermost operator."""


def _nest(ranges: NamedRanges, window: tuple[int, int]) -> _Nested:
    """``ranges`` of one thread, NAMED_RANGES, nested within ``window``.

    A range inside as many others as ``limits.MOST_NESTED_RANGES`` is not distinguished from the one around it.
    """
    begin, until = window
    clipped = ranges.select(
        pl.col("start_ns").clip(begin, until),
        pl.col("end_ns").fill_null(until).clip(begin, until),
        "name",
        "has_sequence",
    ).filter(pl.col("end_ns") > begin, pl.col("start_ns") < until)
    bounds, places, innermost = [begin], [_NO_RANGE], [-1]
    stack: list[tuple[int, int, int]] = [(_NEVER, _NO_RANGE, -1)]  # end, place, range
    children: dict[tuple[int, str, bool], int] = {}
    paths: list[tuple[int, str, bool]] = [(_NO_RANGE, "", False)]

    def begin_stretch(at_ns: int) -> None:
        _, place, innermost_range = stack[-1]
        bounds.append(at_ns)
        places.append(place)
        innermost.append(innermost_range)

    for index, (start, end, name, has_sequence) in enumerate(clipped.iter_rows()):
        while stack[-1][0] <= start:
            begin_stretch(stack.pop()[0])
        if len(stack) > limits.MOST_NESTED_RANGES:
            continue
        path = (stack[-1][1], name, has_sequence)
        place = children.setdefault(path, len(paths))
        if place == len(paths):
            paths.append(path)
        stack.append((end, place, index))
        begin_stretch(start)
    while len(stack) > 1:
        begin_stretch(stack.pop()[0])
    # Ranges that overlap without nesting end after the one around them: what is noted last begins last.
    at = np.maximum.accumulate(np.array(bounds))
    is_last = np.append(at[1:] > at[:-1], True)
    name_of_path = [_name(paths, place) for place in range(len(paths))]
    names = {name: place for place, name in enumerate(dict.fromkeys(name_of_path))}
    of_path = np.array([names[name] for name in name_of_path])
    return _Nested(at[is_last], of_path[places][is_last], np.array(innermost)[is_last], list(names))


def _name(paths: Sequence[tuple[int, str, bool]], place: int) -> tuple[str, str]:
    """The ranges of a place except operators, and the innermost operator; both empty outside of all ranges."""
    names: list[str] = []
    operator = ""
    while place != _NO_RANGE:
        place, name, has_sequence = paths[place]
        if not is_place(name):
            continue
        if has_sequence or _OPERATOR in name:
            operator = operator or generalize(name)
        elif len(names) < MOST_RANGES_SHOWN and (general := generalize(name)) not in names:
            names.append(general)
    return SEPARATOR.join(reversed(names)), operator


def _list_longest(rows: Sequence[HostWorkRow]) -> tuple[HostWorkRow, ...]:
    """The rows with most starvation, idle time and time, and the rest of each thread summed."""
    ordered = sorted(
        rows,
        key=lambda row: (
            (-row.starved_ns, -row.idle_ns, -row.ns, row.thread),
            (row.module or "", row.direction or "", row.range, row.operator),
        ),
    )
    by_time = sorted(range(len(ordered)), key=lambda place: -ordered[place].ns)
    places = {*range(MOST_ROWS // 2), *by_time[: MOST_ROWS // 2]}
    longest = [row for place, row in enumerate(ordered) if place in places]
    rest: dict[int, list[HostWorkRow]] = {}
    for place, row in enumerate(ordered):
        if place not in places:
            rest.setdefault(row.thread, []).append(row)
    sums = [
        HostWorkRow(
            thread,
            module=None,
            direction=None,
            range="",
            operator="",
            ns=sum(row.ns for row in others),
            idle_ns=sum(row.idle_ns for row in others),
            starved_ns=sum(row.starved_ns for row in others),
            calls=sum(row.calls for row in others),
            places=len(others),
        )
        for thread, others in sorted(rest.items())
    ]
    return (*longest, *sums)
