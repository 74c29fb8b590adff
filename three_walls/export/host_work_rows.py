"""Where the threads that launch work spend the representative step outside of CUDA calls: NVTX ranges and operators.

The time of a thread is cut where a range opens or closes and where it launches something. Each stretch belongs to the
innermost range that is open, and to the module of what is launched next. Of a stretch counts what is in no CUDA call;
of that, what is idle time of the device; and what is a gap whose cause is ``starved_nothing_visible``: the next compute
kernel was not launched yet, and its thread was in no CUDA call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import polars as pl

from three_walls.export.kernel_table import DescribedOperations, name_part
from three_walls.export.step_detail_rows import HostWorkRow
from three_walls.lib import limits
from three_walls.lib.declare import artifact
from three_walls.lib.measurement import Measurement
from three_walls.step.attribute_steps import Attribution
from three_walls.step.build_timeline import Timeline, take_rank
from three_walls.step.compute_gaps import Cause
from three_walls.step.intervals import DURATION, find_next, merge_overlapping, sweep
from three_walls.step.operators import generalize, is_place, read_named_ranges
from three_walls.step.ownership import OWNER
from three_walls.step.step_rows import GapCause, RankReport
from three_walls.step.step_tables import GapCauses, Intervals, NamedRanges, Operations
from three_walls.step.step_view import StepView
from three_walls.tables.buckets import COMPUTE_CATEGORIES, IDLE_BUCKETS
from three_walls.trace.read_tables import THREADS_PER_PROCESS

MOST_ROWS = 60
MOST_RANGES_SHOWN = 4
"""Of the ranges around a stretch the inner ones are named."""
MOST_GAP_PLACES = 12
OTHER_PLACES = "other places"
BETWEEN = "outside of NVTX ranges"
SEPARATOR = " > "

_OPERATOR = "::"
"""In the names of operators (``aten::mm``) and of nothing that a user calls a range."""
_NEVER = 2**62
_NO_RANGE = -1
_STATES = ("in a CUDA call", "device idle", "starved")
"""Of a thread; starved: no compute kernel runs, because this thread has not launched the next one."""
_Place = tuple[tuple[str, ...], str]
"""The ranges around except operators, the outer first, and the innermost operator."""
_NO_PLACE: _Place = ((), "")


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
    calls = timeline.api_calls.during({step.trace.capture_id: [step.window]}).frame()
    called = merge_overlapping(calls.with_columns(pl.col("start_ns", "end_ns").clip(*step.window)), ["thread"])
    starved = _find_starved_threads(step, timeline, gaps)
    idle = step.slices.filter(OWNER.is_in(IDLE_BUCKETS))
    rows: list[HostWorkRow] = []
    for thread in threads:
        is_own = pl.col("thread") == thread
        in_calls = called.filter(is_own)
        launches = operations.filter(pl.col("launch_thread") == thread).sort("launch_start_ns", "start_ns")
        of_thread = _measure_thread(step, ranges.filter(is_own), launches, (in_calls, idle, starved.filter(is_own)))
        outside_ns = step.step_ns - in_calls.select(DURATION.sum()).item()
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


def _find_starved_threads(step: StepView, timeline: Timeline, gaps: GapCauses) -> pl.DataFrame:
    """Gaps without compute that no CUDA call explains, with the ``thread`` whose launch ended them."""
    computing = take_rank(timeline.operations, step.rank_index).filter(
        (pl.col("start_ns") >= step.start_ns) & pl.col("category").is_in(list(COMPUTE_CATEGORIES)) & (DURATION > 0)
    )
    starved = gaps.filter(pl.col("cause") == str(Cause.NOTHING_VISIBLE))
    ended_by = find_next(computing, starved, [], ["launch_start_ns"])
    return starved.select("start_ns", "end_ns", thread=computing["launch_thread"].gather(ended_by))


def _measure_thread(
    step: StepView, ranges: NamedRanges, launches: Operations, states: Sequence[Intervals]
) -> list[HostWorkRow]:
    """A row per place of a thread, in no order. ``launches``: its operations in the order of their launches.

    ``states``: when it is in each of :data:`_STATES`.
    """
    nested, places = _nest(ranges, step.window)
    launched = launches["launch_start_ns"].unique()
    inside = launched.filter(launched.is_between(*step.window, closed="none"))
    bounds = pl.concat([nested["start_ns"], inside, pl.Series([*step.window])]).unique().sort()
    stretches = (
        pl.DataFrame({"start_ns": bounds[:-1], "end_ns": bounds[1:]})
        .join_asof(nested, on="start_ns")
        .join_asof(
            launches.select("launch_start_ns", "module", "direction"),
            left_on="start_ns",
            right_on="launch_start_ns",
            strategy="forward",
        )
    )
    labelled = [
        part.select("start_ns", "end_ns", state=pl.lit(name)) for name, part in zip(_STATES, states, strict=True)
    ]
    in_call, idle, starved = (pl.col("active") & (1 << bit) != 0 for bit in range(len(_STATES)))
    sums = (
        sweep(pl.concat(labelled), stretches, "state", _STATES, by=[], carry=["place", "module", "direction", "range"])
        .group_by("module", "direction", "place", maintain_order=True)
        .agg(
            ns=DURATION.filter(~in_call).sum(),
            idle_ns=DURATION.filter(~in_call & idle).sum(),
            starved_ns=DURATION.filter(starved).sum(),
            calls=pl.col("range").filter(pl.col("range") != _NO_RANGE).n_unique(),
        )
    )
    thread = launches["launch_thread"][0] % THREADS_PER_PROCESS
    return [
        HostWorkRow(thread, module, direction, SEPARATOR.join(places[place][0]), places[place][1], *times)
        for module, direction, place, *times in sums.iter_rows()
    ]


def _nest(ranges: NamedRanges, window: tuple[int, int]) -> tuple[pl.DataFrame, list[_Place]]:
    """The time of a thread within ``window``, cut where its ranges open and close; and the places in it.

    Per stretch ``start_ns``, the number of its ``place``, and the number of the innermost ``range``. A range inside as
    many others as ``limits.MOST_NESTED_RANGES`` is not distinguished from the one around it.
    """
    begin, until = window
    clipped = ranges.select(
        pl.col("start_ns").clip(begin, until),
        pl.col("end_ns").fill_null(until).clip(begin, until),
        "name",
        "has_sequence",
    ).filter(pl.col("end_ns") > begin, pl.col("start_ns") < until)
    numbers: dict[_Place, int] = {_NO_PLACE: 0}
    starts, places, innermost = [begin], [0], [_NO_RANGE]
    stack: list[tuple[int, _Place, int]] = [(_NEVER, _NO_PLACE, _NO_RANGE)]  # end, place, range

    def begin_stretch(at_ns: int) -> None:
        _, place, index = stack[-1]
        starts.append(at_ns)
        places.append(numbers.setdefault(place, len(numbers)))
        innermost.append(index)

    for index, (start, end, name, has_sequence) in enumerate(clipped.iter_rows()):
        while stack[-1][0] <= start:
            begin_stretch(stack.pop()[0])
        if len(stack) > limits.MOST_NESTED_RANGES:
            continue
        stack.append((end, _enter(stack[-1][1], name, has_sequence), index))
        begin_stretch(start)
    while len(stack) > 1:
        begin_stretch(stack.pop()[0])
    # Ranges that overlap without nesting end after the one around them: what is noted last begins last.
    stretches = pl.DataFrame({"start_ns": starts, "place": places, "range": innermost})
    stretches = stretches.with_columns(pl.col("start_ns").cum_max())
    return stretches.filter(pl.col("start_ns").ne_missing(pl.col("start_ns").shift(-1))), [*numbers]


@lru_cache(maxsize=20_000)
def _enter(around: _Place, name: str, has_sequence: bool) -> _Place:
    """The place within a range in the place ``around``."""
    if not is_place(name):
        return around
    names, operator = around
    general = generalize(name)
    if has_sequence or _OPERATOR in name:
        return names, general
    outer = tuple(name for name in names if name != general)
    return (*outer, general)[-MOST_RANGES_SHOWN:], operator


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
            places=len(others),
            **{name: sum(getattr(row, name) for row in others) for name in ("ns", "idle_ns", "starved_ns", "calls")},
        )
        for thread, others in sorted(rest.items())
    ]
    return (*longest, *sums)
