"""Where the threads that launch work spend the representative step outside of CUDA calls: NVTX ranges and operators.

The time of a thread is cut where a range opens or closes, and each stretch belongs to the innermost range that is open.
Of a stretch counts what is in no CUDA call; of that, what is idle time of the device; and what is a gap whose cause is
``starved_nothing_visible``: the next compute kernel was not launched yet, and its thread was in no CUDA call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from three_walls.attribution.compute_gaps import Cause, list_compute_gaps
from three_walls.attribution.ownership import OWNER
from three_walls.export.kernel_table import generalize, is_place
from three_walls.facts.step_view import StepView
from three_walls.inputs.nsys.tables import THREADS_PER_PROCESS
from three_walls.model.buckets import BUCKETS, COMPUTE_CATEGORIES, Group
from three_walls.model.report import GapCause, HostWorkRow, RankReport
from three_walls.replay.layer_order import OUTSIDE
from three_walls.timeline.operators import Operators
from three_walls.timeline.timeline import Timeline

MOST_ROWS = 60
MOST_RANGES_SHOWN = 4
"""Of the ranges around a stretch the inner ones are named."""
MOST_GAP_PLACES = 12
OTHER_PLACES = "other places"
BETWEEN = "outside of NVTX ranges"
SEPARATOR = " > "
_OUTSIDE = "outside of layers"

_OPERATOR = "::"
"""In the names of operators (``aten::mm``) and of nothing that a user calls a range."""

_IDLE = [bucket.name for bucket in BUCKETS if bucket.group == Group.IDLE]

Times = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class HostWork:
    """The rows of the report, and the time that ``starved_nothing_visible`` holds by place."""

    rows: tuple[HostWorkRow, ...]
    starved_ns: Mapping[str, int]
    """By what was launched next, in words."""


def measure_host_work(step: StepView, timeline: Timeline, operations: pl.DataFrame, operators: Operators) -> HostWork:
    """Host time outside of CUDA calls by place, of each thread that launched something that started in the step.

    ``operations``: what started in the step, with module and direction. ``operators``: the ranges of the rank's process
    that are open at some time of the step. Raises AssertionError unless the rows of a thread sum to the step without
    its CUDA calls.
    """
    threads = sorted(step.started["launch_thread"].drop_nulls().unique().to_list())
    calls = timeline.api_calls.filter(
        (pl.col("capture_id") == step.trace.capture_id)
        & pl.col("thread").is_in(threads)
        & (pl.col("start_ns") < step.end_ns)
        & (pl.col("end_ns") > step.start_ns)
    )
    starved = _list_starved(step, timeline)
    idle = _Stretches.of(step.slices.filter(OWNER.is_in(_IDLE)).select("start_ns", "end_ns").rows())
    rows: list[HostWorkRow] = []
    for thread in threads:
        in_calls = _Stretches.of(calls.filter(pl.col("thread") == thread).select("start_ns", "end_ns").rows())
        of_thread = _Stretches.of(starved.filter(pl.col("launch_thread") == thread).select("start_ns", "end_ns").rows())
        launches = operations.filter(pl.col("launch_thread") == thread).sort("launch_start_ns", "start_ns")
        found = _measure_thread(step, thread, operators, launches, _Busy(in_calls, idle, of_thread))
        outside_ns = step.step_ns - in_calls.within(np.array([step.start_ns]), np.array([step.end_ns])).sum()
        assert sum(row.ns for row in found) == outside_ns, "host work does not sum to the time outside of CUDA calls"
        rows += found
    return HostWork(_list_longest(rows), _sum_starvation(rows))


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
        words = (direction, _OUTSIDE) if module == OUTSIDE else (module, direction)
        part = " ".join(word for word in words if word)
        most = min(codes, key=lambda code: (-codes[code], code))
        how = most if len(codes) == 1 else f"most {'' if most == BETWEEN else 'in '}{most}"
        sums[", ".join(word for word in (part, how) if word)] = sum(codes.values())
    return sums


def detail_gaps(rank: RankReport, starved_ns: Mapping[str, int]) -> RankReport:
    """``rank`` with the places of ``starved_nothing_visible`` as details of that cause. Its sum stays the same."""
    causes: list[GapCause] = []
    for cause in rank.gap_causes:
        if cause.cause != Cause.NOTHING_VISIBLE or cause.detail or not starved_ns:
            causes.append(cause)
            continue
        longest = sorted(starved_ns.items(), key=lambda each: (-each[1], each[0]))
        listed = [GapCause(cause.cause, ns, place) for place, ns in longest[:MOST_GAP_PLACES]]
        other_ns = sum(ns for _, ns in longest[MOST_GAP_PLACES:])
        if other_ns:
            listed.append(GapCause(cause.cause, other_ns, OTHER_PLACES))
        rest_ns = cause.ns - sum(each.ns for each in listed)
        assert rest_ns >= 0, "places of starvation exceed the cause"
        causes += [*listed, *([GapCause(cause.cause, rest_ns, "")] if rest_ns else [])]
    ordered = sorted(causes, key=lambda each: (-each.ns, each.cause, each.detail))
    return replace(rank, gap_causes=tuple(ordered))


@dataclass(frozen=True, slots=True)
class _Stretches:
    """Stretches of time without overlaps, in order, and how much of them lies before each."""

    starts: Times
    ends: Times
    before: Times

    @staticmethod
    def of(rows: Iterable[tuple[int, int]]) -> _Stretches:
        """The union of ``rows``."""
        starts: list[int] = []
        ends: list[int] = []
        for start, end in sorted(rows):
            if ends and start <= ends[-1]:
                ends[-1] = max(ends[-1], end)
            elif end > start:
                starts.append(start)
                ends.append(end)
        first, last = np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64)
        return _Stretches(first, last, np.append(0, np.cumsum(last - first)))

    def until(self, at: Times) -> Times:
        """How much of the stretches lies before each instant."""
        place = np.searchsorted(self.starts, at, side="right")
        cut = np.where(place > 0, np.maximum(0, np.append(0, self.ends)[place] - at), 0)
        return np.asarray(self.before[place] - cut, dtype=np.int64)

    def within(self, start: Times, end: Times) -> Times:
        """How much of the stretches lies between each pair of instants."""
        return np.asarray(self.until(end) - self.until(start), dtype=np.int64)

    def without(self, other: _Stretches) -> _Stretches:
        """What of the stretches is not in ``other``."""
        rows = []
        for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True):
            at = start
            first = int(np.searchsorted(other.ends, start, side="right"))
            for place in range(first, len(other.starts)):
                if other.starts[place] >= end:
                    break
                rows.append((at, int(other.starts[place])))
                at = int(other.ends[place])
            rows.append((at, end))
        return _Stretches.of((start, end) for start, end in rows if end > start)


@dataclass(frozen=True, slots=True)
class _Busy:
    """What is measured of the time of a thread."""

    in_calls: _Stretches
    """In CUDA calls."""
    idle: _Stretches
    """Nothing runs on the device."""
    starved: _Stretches
    """No compute kernel runs, because this thread has not launched the next one."""


_Place = tuple[str | None, str | None, str, str]
"""Module, direction, range, operator."""


def _list_starved(step: StepView, timeline: Timeline) -> pl.DataFrame:
    """Gaps without compute that no CUDA call explains, with the thread whose launch ended them."""
    window = (pl.col("rank_index") == step.rank_index) & (pl.col("step") == step.step)
    gaps = list_compute_gaps(timeline.with_steps(timeline.steps.filter(window)), step.slices)
    computing = timeline.operations.filter(
        (pl.col("rank_index") == step.rank_index)
        & pl.col("category").is_in(list(COMPUTE_CATEGORIES))
        & (pl.col("end_ns") > pl.col("start_ns"))
    ).select("start_ns", "launch_start_ns", "launch_thread")
    following = computing.sort("start_ns", pl.col("launch_start_ns").fill_null(2**62), maintain_order=True)
    return (
        gaps.filter(pl.col("cause") == str(Cause.NOTHING_VISIBLE))
        .sort("end_ns")
        .join_asof(
            following.select("launch_thread", next_ns="start_ns"),
            left_on="end_ns",
            right_on="next_ns",
            strategy="forward",
            check_sortedness=False,
        )
        .select("start_ns", "end_ns", "launch_thread")
    )


def _measure_thread(
    step: StepView,
    thread: int,
    operators: Operators,
    launches: pl.DataFrame,
    busy: _Busy,
) -> list[HostWorkRow]:
    """A row per place of ``thread``, in no order. ``launches``: its operations in the order of their launches."""
    opened, ranges = _cut(operators, thread, step.window)
    launched = launches["launch_start_ns"].to_numpy()
    inside = launched[(launched > step.start_ns) & (launched < step.end_ns)]
    bounds = np.unique(np.concatenate([opened, inside, np.array(step.window)]))
    starts, ends = bounds[:-1], bounds[1:]
    of_range = np.searchsorted(opened, starts, side="right") - 1
    following = np.searchsorted(launched, starts, side="left")
    labels = [*launches.select("module", "direction").rows(), (None, None)]
    outside_ns = ends - starts - busy.in_calls.within(starts, ends)
    idle_ns = busy.idle.without(busy.in_calls).within(starts, ends)
    starved_ns = busy.starved.within(starts, ends)
    names: dict[int, tuple[str, str]] = {}
    sums: dict[_Place, list[int]] = {}
    seen: dict[_Place, set[int]] = {}
    columns = (of_range.tolist(), following.tolist(), outside_ns.tolist(), idle_ns.tolist(), starved_ns.tolist())
    for stretch, launch, *times in zip(*columns, strict=True):
        index = ranges[stretch]
        if index not in names:
            names[index] = _name(operators, index)
        place = (*labels[launch], *names[index])
        total = sums.setdefault(place, [0, 0, 0])
        for column, ns in enumerate(times):
            total[column] += ns
        if index >= 0:
            seen.setdefault(place, set()).add(index)
    shown = thread % THREADS_PER_PROCESS
    rows = []
    for place, (outside, idle, starved) in sums.items():
        module, direction, around, operator = place
        calls = len(seen.get(place, ()))
        rows.append(HostWorkRow(shown, module, direction, around, operator, outside, idle, starved, calls))
    return rows


def _cut(operators: Operators, thread: int, window: tuple[int, int]) -> tuple[Times, Sequence[int]]:
    """Where ``window`` is cut by ranges of ``thread`` that open and close, and the innermost range after it, or -1."""
    begin, until = window
    bounds: list[int] = [begin]
    inside: list[int] = []
    stack: list[int] = []

    def go_on(at: int) -> None:
        at = min(max(at, begin), until)
        if at > bounds[-1]:
            bounds.append(at)
            inside.append(stack[-1] if stack else -1)

    for start, index in zip(operators.starts.get(thread, ()), operators.order.get(thread, ()), strict=True):
        while stack and operators.ends[stack[-1]] <= start:
            go_on(operators.ends[stack[-1]])
            stack.pop()
        go_on(start)
        stack.append(index)
    while stack:
        go_on(operators.ends[stack[-1]])
        stack.pop()
    go_on(until)
    return np.array(bounds[:-1], dtype=np.int64), inside


def _name(operators: Operators, index: int) -> tuple[str, str]:
    """The ranges around a stretch except operators, and the innermost operator; both empty outside of all ranges."""
    names: list[str] = []
    operator = ""
    for around in operators.around(index if index >= 0 else None):
        name = operators.found[around].name
        if not is_place(name):
            continue
        if _OPERATOR in name or operators.found[around].sequence is not None:
            operator = operator or generalize(name)
        elif (shown := generalize(name)) not in names:
            names.append(shown)
    return SEPARATOR.join(reversed(names[:MOST_RANGES_SHOWN])), operator


def _list_longest(rows: Sequence[HostWorkRow]) -> tuple[HostWorkRow, ...]:
    """The rows with most starvation, idle time and time, and the rest of each thread summed."""
    ordered = sorted(
        rows,
        key=lambda row: (
            (-row.starved_ns, -row.idle_ns, -row.ns, row.thread),
            (row.module or "", row.direction or "", row.range, row.operator),
        ),
    )
    longest = sorted(ordered, key=lambda row: -row.ns)[: MOST_ROWS // 2]
    listed = [row for place, row in enumerate(ordered) if place < MOST_ROWS // 2 or row in longest]
    rest: dict[int, list[HostWorkRow]] = {}
    for row in ordered:
        if row not in listed:
            rest.setdefault(row.thread, []).append(row)
    summed = [
        HostWorkRow(
            thread,
            None,
            None,
            "",
            "",
            sum(row.ns for row in left),
            sum(row.idle_ns for row in left),
            sum(row.starved_ns for row in left),
            sum(row.calls for row in left),
            len(left),
        )
        for thread, left in sorted(rest.items())
    ]
    return (*listed, *summed)
